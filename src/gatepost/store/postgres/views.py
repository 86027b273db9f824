"""What operators look at: deliveries, their attempts, dead letters. Read-only; each query walks a bounded number of index entries.

Deliveries are found first, by the narrowest order there is, and then shown: both in one snapshot, so that a page agrees with its
filter. Dead letters are listed without their bodies, which lie outside of their rows. Called by `operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gatepost.store.paging import check_limit, check_listing, decode_numbers, encode_cursor, id_bounds
from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import AttemptRow, DeadFilter, DeadLetter, DeliveryFilter, DeliveryInfo, Page
from gatepost.store.showing import STATES, delivery_info

NEWEST: Final = (1 << 63) - 1
"""Before this id: from the beginning."""
WALK_MAX: Final = 2_000
"""Rows looked at in one call when no order matches what is asked for: some 10 ms."""
SORT_MAX: Final = 10_000
"""Waiting rows that are read and sorted in one call; where more wait, nearly all that is walked waits."""
_ENDED: Final = {"dead": 1, "cancelled": 2}

# A scalar subquery with a limit is asked row by row; EXISTS may be answered from a hash of the whole table.
_WALK: Final = """
SELECT h.id, h.event_id, h.lane >> 8, h.tenant, h.state, h.state = 0 AND (
  SELECT 1 FROM gp_delivery AS d WHERE d.lane = h.lane AND d.due_at = h.at AND d.id = h.id LIMIT 1) IS NOT NULL, {type}
 FROM (SELECT id, event_id, lane, tenant, state, at FROM gp_history
  WHERE {base} AND id >= $4::bigint AND id < $2::bigint ORDER BY id DESC LIMIT $3::bigint) AS h"""
_TYPE: Final = """coalesce((SELECT e.type FROM gp_event AS e WHERE e.id = h.event_id),
  (SELECT x.event_type FROM gp_dead AS x WHERE h.state = 1 AND x.died_at = h.at AND x.id = h.id LIMIT 1), '')"""
_NO_TYPE: Final = "NULL"
_EVENT: Final = "event_id = $1::bigint"
_ENDPOINT: Final = "(lane >> 8) = $1::bigint"
_TENANT: Final = "tenant = $1::text"
_NUMBERS: Final = "id = ANY($1::bigint[])"
_ANYTHING: Final = "id > $1::bigint"
# By index only; the inner limit keeps the planner from joining whole tables for the outer one.
_WAITING_OF_ENDPOINT: Final = (
    "SELECT id FROM gp_delivery WHERE lane >= $1::bigint << 8 AND lane < ($1::bigint + 1) << 8 LIMIT $2::bigint"
)
_WAITING_OF_TENANT: Final = """
SELECT d.id FROM gp_active AS a
 CROSS JOIN LATERAL (SELECT x.id FROM gp_delivery AS x WHERE x.lane = a.lane LIMIT $2::bigint) AS d
 WHERE a.tenant = $1::text LIMIT $2::bigint"""
_SHOW: Final = """
SELECT h.id, h.event_id, h.tenant, h.lane >> 8, h.state, h.at, d.attempt, coalesce(e.type, x.event_type, ''),
  a.number, a.outcome, a.status, a.started_at + a.elapsed_us, x.attempts, x.outcome, x.status
 FROM gp_history AS h
 LEFT JOIN gp_delivery AS d ON h.state = 0 AND d.lane = h.lane AND d.due_at = h.at AND d.id = h.id
 LEFT JOIN gp_event AS e ON e.id = h.event_id
 LEFT JOIN gp_dead AS x ON h.state = 1 AND x.died_at = h.at AND x.id = h.id
 LEFT JOIN LATERAL (SELECT number, outcome, status, started_at, elapsed_us FROM gp_attempt
  WHERE delivery_id = h.id ORDER BY started_at DESC LIMIT 1) AS a ON true
 WHERE h.id = ANY($1::bigint[]) ORDER BY h.id DESC"""
_ATTEMPTS: Final = f"""
SELECT {", ".join(AttemptRow._fields)} FROM gp_attempt WHERE delivery_id = $1::bigint ORDER BY started_at"""  # noqa: S608 - our words
# Word for word the condition of the index gp_attempt_remarkable: what is not prompt (rows.PROMPT_US).
REMARKABLE: Final = (
    "number > 1 OR decision <> 'complete' OR started_at / 1000 - (delivery_id >> 22) > 1735689600000::bigint + 10000"
)
_REMARKABLE: Final = f"""
SELECT {", ".join(AttemptRow._fields)} FROM gp_attempt WHERE endpoint = $1::bigint AND ({REMARKABLE})
 ORDER BY started_at DESC LIMIT $2::bigint"""  # noqa: S608 - our own words
_PROMPT: Final = f"""
SELECT {", ".join(f"a.{name}" for name in AttemptRow._fields)}
 FROM (SELECT id FROM gp_history WHERE (lane >> 8) = $1::bigint ORDER BY id DESC LIMIT $2::bigint) AS h
 CROSS JOIN LATERAL (SELECT * FROM gp_attempt WHERE delivery_id = h.id AND NOT ({REMARKABLE}) LIMIT 1) AS a
 LIMIT $3::bigint"""  # noqa: S608 - our own words
_DEAD_COLUMNS: Final = (
    "id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status, died_at"
)
_DEAD_LETTER: Final = f"SELECT {_DEAD_COLUMNS}, body FROM gp_dead WHERE id = $1::bigint"  # noqa: S608 - our own words
_DEAD_TESTS: Final = (
    # Those that have an order by death; the others are tested on a bounded number of rows.
    ("delivery_id", "id = {}::bigint"),
    ("endpoint", "endpoint = {}::bigint"),
    ("tenant", "tenant = {}::text"),
    ("died_from", "died_at >= {}::bigint"),
    ("died_before", "died_at < {}::bigint"),
)


class Found(NamedTuple):
    """Ids, newest first."""

    ids: Sequence[int]
    resume: int | None
    """Fewer than wanted were found, but there may be more before this id."""


class DeadKey(NamedTuple):
    """Names a dead letter, in their order."""

    died_at: int
    delivery_id: int


# ----------------------------------------------------------------------------------------------------- deliveries


async def deliveries(
    connection: Connection, where: DeliveryFilter, after: str | None, limit: int
) -> Page[DeliveryInfo]:
    """A page of deliveries, newest first."""
    check_limit(limit)
    check_listing(where)
    (before,) = decode_numbers(after, 1) or (NEWEST,)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        ids, resume = await find(connection, where, before, limit + 1)
        if len(ids) > limit:
            resume = ids[limit - 1]
        items = await show(connection, ids[:limit])
    return Page(items, None if resume is None else encode_cursor(resume))


async def show(connection: Connection, ids: Sequence[int]) -> list[DeliveryInfo]:
    """The deliveries of these ids that exist, newest first."""
    return [delivery_info(*row) for row in await connection.fetch(_SHOW, list(ids))]


async def find(connection: Connection, where: DeliveryFilter, before: int, want: int) -> Found:
    """Up to `want` ids below `before` that match the filter."""
    state = None if where.state is None else _ENDED.get(where.state)
    base, key = _base(where)
    since, before = id_bounds(where, before)
    if (where.endpoint, where.tenant) != (None, None) and where.event_id is None and state is not None:
        base = f"{base} AND state = {state} AND state > 0"
    elif base in (_ENDPOINT, _TENANT) and where.state == "waiting":
        query = _WAITING_OF_ENDPOINT if where.endpoint is not None else _WAITING_OF_TENANT
        rows = await connection.fetch(query, key, SORT_MAX + 1)
        if len(rows) <= SORT_MAX:
            newest = sorted((row[0] for row in rows if since <= row[0] < before), reverse=True)
            return await _first_matching(connection, where, newest, want)
    walk = want if _answers(where, state is not None) else max(want, WALK_MAX)
    rows = await connection.fetch(_walk(where, base), key, before, walk, since)
    ids = [row[0] for row in rows if _matches(where, *row[1:])][:want]
    return Found(ids, rows[-1][0] if len(rows) == walk and len(ids) < want else None)


async def matching(connection: Connection, where: DeliveryFilter, ids: Sequence[int]) -> list[int]:
    """Those of `ids` that exist and match the filter, newest first."""
    rows = await connection.fetch(_walk(where, _NUMBERS), list(ids), NEWEST, len(ids), 0)
    return [row[0] for row in rows if _matches(where, *row[1:])]


async def _first_matching(connection: Connection, where: DeliveryFilter, newest: Sequence[int], want: int) -> Found:
    """Of rows that waited a moment ago, nearly all match: look at few more than wanted."""
    ids: list[int] = []
    for begin in range(0, len(newest), WALK_MAX):
        ids += await matching(connection, where, newest[begin : begin + WALK_MAX])
        if len(ids) >= want:
            break
    return Found(ids[:want], None)


def _walk(where: DeliveryFilter, base: str) -> str:
    """The walk, with each delivery's type only where it is asked for: that is another probe a row."""
    return _WALK.format(base=base, type=_NO_TYPE if where.event_type is None else _TYPE)


def _base(where: DeliveryFilter) -> tuple[str, int | str]:
    """The condition that has an order by id, and its value."""
    if where.event_id is not None:
        return _EVENT, where.event_id
    if where.endpoint is not None:
        return _ENDPOINT, where.endpoint
    if where.tenant is not None:
        return _TENANT, where.tenant
    return _ANYTHING, 0


def _answers(where: DeliveryFilter, by_state: bool) -> bool:
    """The base alone is the whole filter."""
    given = sum(value is not None for value in (where.event_id, where.endpoint, where.tenant))
    if given == 0:
        by_state = False  # no order of all deliveries by state
    return given <= 1 and where.event_type is None and (where.state is None or by_state)


def _matches(
    where: DeliveryFilter, event_id: int, endpoint: int, tenant: str, state: int, waiting: bool, event_type: str | None
) -> bool:
    return (
        where.event_id in (None, event_id)
        and where.endpoint in (None, endpoint)
        and where.tenant in (None, tenant)
        and where.state in (None, "waiting" if waiting else STATES[state])
        and where.event_type in (None, event_type)
    )


async def attempts_of(connection: Connection, delivery_id: int) -> list[AttemptRow]:
    """The attempt log of one delivery, oldest first."""
    return [AttemptRow(*row) for row in await connection.fetch(_ATTEMPTS, delivery_id)]


async def newest_attempts(connection: Connection, endpoint: int, limit: int) -> list[AttemptRow]:
    """The newest attempts at an endpoint, newest first: what has an order of its own, and what its newest deliveries show."""
    check_limit(limit)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        found = [AttemptRow(*row) for row in await connection.fetch(_REMARKABLE, endpoint, limit)]
        for walk in (limit, WALK_MAX):
            rows = await connection.fetch(_PROMPT, endpoint, max(walk, limit), limit)
            if len(rows) >= limit:
                break
    found += [AttemptRow(*row) for row in rows]
    return sorted(found, key=lambda row: (row.started_at, row.delivery_id), reverse=True)[:limit]


# ----------------------------------------------------------------------------------------------------- dead letters


async def dead_letter(connection: Connection, delivery_id: int) -> DeadLetter | None:
    """One dead letter with its body."""
    row = await connection.fetchrow(_DEAD_LETTER, delivery_id)
    return None if row is None else DeadLetter(*row)


async def dead_letters(connection: Connection, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
    """A page of dead letters, newest death first."""
    check_limit(limit)
    start = decode_numbers(after, 2)
    walk = max(WALK_MAX, limit + 1) if _needs_walk(where) else limit + 1
    tests, values = _dead_tests(where)
    if start is not None:
        tests.append(f"(died_at, id) < (${len(values) + 1}::bigint, ${len(values) + 2}::bigint)")
        values += start
    query = f"""SELECT {_DEAD_COLUMNS} FROM gp_dead {_where(tests)}
 ORDER BY died_at DESC, id DESC LIMIT ${len(values) + 1}::bigint"""  # noqa: S608 - our own words
    walked = [DeadLetter(*row) for row in await connection.fetch(query, *values, walk)]
    found = [letter for letter in walked if _is_meant(where, letter.tenant, letter.event_type, letter.why)]
    last = None
    if len(found) > limit:
        last = found[limit - 1]
    elif len(walked) == walk:
        last = walked[-1]
    return Page(found[:limit], None if last is None else encode_cursor(last.died_at, last.delivery_id))


async def dead_keys(
    connection: Connection, where: DeadFilter, after: DeadKey | None, limit: int
) -> tuple[list[DeadKey], DeadKey | None]:
    """Up to `limit` dead letters that match, oldest death first, of a bounded stretch behind `after`; and where to go on, None at
    the end."""
    walk = max(WALK_MAX, limit) if _needs_walk(where) else limit
    tests, values = _dead_tests(where)
    if after is not None:
        tests.append(f"(died_at, id) > (${len(values) + 1}::bigint, ${len(values) + 2}::bigint)")
        values += after
    query = f"""SELECT died_at, id, tenant, event_type, why FROM gp_dead {_where(tests)}
 ORDER BY died_at, id LIMIT ${len(values) + 1}::bigint"""  # noqa: S608 - our own words
    rows = await connection.fetch(query, *values, walk)
    keys = [DeadKey(row[0], row[1]) for row in rows if _is_meant(where, *row[2:])][:limit]
    if len(keys) == limit:
        return keys, keys[-1]
    return keys, DeadKey(rows[-1][0], rows[-1][1]) if len(rows) == walk else None


def _dead_tests(where: DeadFilter) -> tuple[list[str], list[Any]]:
    tests: list[str] = []
    values: list[Any] = []
    for name, test in _DEAD_TESTS:
        value = getattr(where, name)
        if value is not None and not (name == "tenant" and where.endpoint is not None):
            values.append(value)
            tests.append(test.format(f"${len(values)}"))
    return tests, values


def _needs_walk(where: DeadFilter) -> bool:
    """It names something that has no order by death; an endpoint has one tenant, so naming both is a test, not an order."""
    return where.event_type is not None or where.why is not None or None not in (where.endpoint, where.tenant)


def _is_meant(where: DeadFilter, tenant: str, event_type: str, why: str) -> bool:
    return where.tenant in (None, tenant) and where.event_type in (None, event_type) and where.why in (None, why)


def _where(tests: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(tests)}" if tests else ""
