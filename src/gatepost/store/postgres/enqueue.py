"""Stores a batch of new events with their deliveries in one statement; what it refuses is told apart afterwards.

One statement is one transaction and one round trip: everything of an accepted event becomes durable together, the time limit of
a statement bounds it, and a commit of unknown outcome is simply repeated. Idempotency keys are inserted in a fixed order, then
markers in theirs, so that two batches never wait for each other in a circle. Called by `queue`; it checks no limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from gatepost.errors import StoreError
from gatepost.store.fingerprint import KEY_BYTES, key_fingerprint
from gatepost.store.postgres.packing import pack_texts, unpacked
from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import SUB_FIFO_FIRST, EnqueueResult, NewEvent, Target

ROUNDS_MAX: Final = 4
"""Times an event may be refused by a row that is gone when it is looked at (retention took it); then something is wrong."""

# `IS TRUE` keeps the planner from making a join of the test: it is a lookup in a hash, however wrong the row estimates are.
MARK_AND_WAIT: Final = """
active AS (
 INSERT INTO gp_active (part, lane, tenant) SELECT t.part, t.lane, min(t.tenant) FROM t
  WHERE NOT EXISTS (SELECT 1 FROM gp_active AS a WHERE a.part = t.part AND a.lane = t.lane AND a.idle_at IS NULL)
  GROUP BY 1, 2 ORDER BY 1, 2 ON CONFLICT (part, lane) DO UPDATE SET idle_at = NULL),
delivery AS (
 INSERT INTO gp_delivery (lane, due_at, id, event_id, born_at, part)
  SELECT t.lane, t.due_at, t.id, t.event_id, t.born_at, t.part FROM t),
history AS (
 INSERT INTO gp_history (id, lane, at, event_id, tenant) SELECT t.id, t.lane, t.due_at, t.event_id, t.tenant FROM t)"""
"""Adds the rows of a CTE `t` (event_id, lane, due_at, id, born_at, part, tenant) to their lanes. A marker that an enqueue sees
unset is not written: `settle` deletes none before every statement that may have seen it so has ended."""


_IN_ORDER: Final = """
CASE WHEN {sub} >= {first} THEN coalesce($29::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
 ELSE {due} END AS due_at"""
"""An ordered row is due from when it is stored, by the one clock that all publishers share: what was acknowledged before stands
before, whoever published it. Processes know that clock to a few milliseconds only, which is too late for who waits for one
acknowledgement before the next event. Within a statement the order is that of the ids."""


def _in_order(sub: str, due: str) -> str:
    return _IN_ORDER.format(sub=sub, first=SUB_FIFO_FIRST, due=due)


def _texts(column: str) -> str:
    return unpacked(column, "$27", "NULL")


_ENQUEUE: Final = f"""
WITH k AS (
 INSERT INTO gp_dedup (tenant, key, event_id)
  SELECT k.tenant, substr($2::bytea, {KEY_BYTES} * (k.place - 1)::integer + 1, {KEY_BYTES}), k.event_id
   FROM unnest({_texts("$1")}, $3::bigint[]) WITH ORDINALITY AS k(tenant, event_id, place)
  ON CONFLICT DO NOTHING RETURNING event_id),
e AS (
 INSERT INTO gp_event (id, created_at, tenant, type, content_type, body, trace)
  SELECT n.id, n.created_at, n.tenant, n.type, n.content_type, n.body, nullif(n.trace, '')
   FROM unnest($4::bigint[], $5::bigint[], {_texts("$6")}, {_texts("$7")}, {_texts("$8")}, $9::bytea[], $10::boolean[],
     {_texts("$28")})
    AS n(id, created_at, tenant, type, content_type, body, keyed, trace)
   WHERE NOT n.keyed OR n.id IN (SELECT event_id FROM k)
  ON CONFLICT DO NOTHING RETURNING id),
t AS MATERIALIZED (
 SELECT x.event_id, x.lane, {_in_order("(x.lane & 255)", "x.due_at")}, x.id, x.born_at, x.part, x.tenant
  FROM unnest($11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::integer[],
   {_texts("$17")})
   AS x(event_id, lane, due_at, id, born_at, part, tenant)
  WHERE (x.event_id IN (SELECT id FROM e)) IS TRUE),
{MARK_AND_WAIT},
fan_out AS (
 INSERT INTO gp_fan_out (event_id, part, tenant, type, sub, due_at, after)
  SELECT f.event_id, f.part, f.tenant, f.type, f.sub, {_in_order("f.sub", "f.due_at")}, f.after
   FROM unnest($18::bigint[], $19::integer[], $20::text[], $21::text[], $22::integer[], $23::bigint[], $24::bigint[])
    AS f(event_id, part, tenant, type, sub, due_at, after)
   WHERE (f.event_id IN (SELECT id FROM e)) IS TRUE),
outbox AS (
 DELETE FROM gatepost_outbox AS o USING unnest($25::bigint[], $26::bigint[]) AS s(outbox_id, event_id)
  WHERE o.event_id = s.outbox_id AND (s.event_id IN (SELECT id FROM e)) IS TRUE)
SELECT id FROM e"""  # noqa: S608 - our own words
# Bodies are compared where they are: nobody waits for a megabyte to learn that it is the same one.
_LOOK_AT: Final = """
SELECT c.place, own.id IS NOT NULL,
 own.tenant = c.tenant AND own.type = c.type AND own.content_type = c.content_type AND sha256(own.body) = c.digest,
 d.event_id, f.id IS NULL OR f.type = c.type AND f.content_type = c.content_type AND sha256(f.body) = c.digest
 FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::bytea[])
   AS c(place, id, tenant, key, type, content_type, digest)
 LEFT JOIN gp_event AS own ON own.id = c.id
 LEFT JOIN gp_dedup AS d ON d.tenant = c.tenant AND d.key = c.key
 LEFT JOIN gp_event AS f ON f.id = d.event_id"""
_DROP_OUTBOX: Final = "DELETE FROM gatepost_outbox WHERE event_id = ANY($1::bigint[])"


class _Candidate(NamedTuple):
    place: int
    event: NewEvent
    key: bytes | None


async def enqueue(
    connection: Connection, events: Sequence[NewEvent], *, repeated: bool, now: int | None
) -> list[EnqueueResult]:
    """One result per event, in order. `now` is for ordered ones; None: the database's clock.

    `repeated`: an earlier try of this very call was interrupted, so what is stored under an event's own id is its work, not a
    duplicate: whoever called must start those deliveries.
    """
    results: dict[int, EnqueueResult] = {}
    pending = [
        _Candidate(place, event, None if event.key is None else key_fingerprint(event.tenant, event.key))
        for place, event in enumerate(events)
    ]
    firsts = _firsts(pending)
    own = {candidate.place for candidate in firsts} if repeated else set()
    for _ in range(ROUNDS_MAX):
        accepted = await _store(connection, firsts, now)
        refused = []
        for candidate in pending:
            if candidate.place in accepted:
                results[candidate.place] = EnqueueResult(candidate.event.event_id, duplicate=False, conflict=False)
            else:
                refused.append(candidate)
        if not refused:
            return [results[place] for place in range(len(events))]
        results |= await _look_at(connection, refused, own)
        pending = [candidate for candidate in refused if candidate.place not in results]
        firsts = _firsts(pending)
        duplicates = [candidate.event.outbox_id for candidate in refused if _is_duplicate(results.get(candidate.place))]
        if outbox_ids := [number for number in duplicates if number is not None]:
            await drop_outbox(connection, outbox_ids)
        if not pending:
            return [results[place] for place in range(len(events))]
    raise StoreError(f"{len(pending)} events were refused {ROUNDS_MAX} times by rows that are not there")


async def drop_outbox(connection: Connection, outbox_ids: Collection[int]) -> None:
    """Remove outbox rows."""
    await connection.execute(_DROP_OUTBOX, sorted(outbox_ids))


def _is_duplicate(result: EnqueueResult | None) -> bool:
    return result is not None and result.duplicate


def _firsts(pending: Sequence[_Candidate]) -> list[_Candidate]:
    """Without those that repeat an id or a key of the same batch: they are told apart once the first one is stored."""
    ids: set[int] = set()
    keys: set[tuple[str, bytes]] = set()
    firsts = []
    for candidate in pending:
        event = candidate.event
        if event.event_id in ids:
            continue
        if candidate.key is not None:
            if (event.tenant, candidate.key) in keys:
                continue
            keys.add((event.tenant, candidate.key))
        ids.add(event.event_id)
        firsts.append(candidate)
    return firsts


async def _store(connection: Connection, candidates: Sequence[_Candidate], now: int | None) -> set[int]:
    """Places of those that were accepted."""
    keyed = sorted((c.event.tenant, c.key, c.event.event_id) for c in candidates if c.key is not None)
    key_tenants, keys, key_events = columns(keyed, 3)
    events = [candidate.event for candidate in candidates]
    targets = target_columns((event.event_id, event.created_at, event.tenant, event.targets) for event in events)
    separator, (packed_key_tenants, tenants, types, content_types, target_tenants, traces) = pack_texts(
        (
            key_tenants,
            [event.tenant for event in events],
            [event.type for event in events],
            [event.content_type for event in events],
            targets[-1],
            [event.trace or "" for event in events],
        )
    )
    fan_outs = [event.fan_out for event in events if event.fan_out is not None]
    outbox = [(event.outbox_id, event.event_id) for event in events if event.outbox_id is not None]
    rows = await connection.fetch(
        _ENQUEUE,
        packed_key_tenants,
        b"".join(keys),
        key_events,
        [event.event_id for event in events],
        [event.created_at for event in events],
        tenants,
        types,
        content_types,
        [event.body for event in events],
        [event.key is not None for event in events],
        *targets[:-1],
        target_tenants,
        *columns(fan_outs, 7),
        *columns(outbox, 2),
        separator,
        traces,
        now,
    )
    if len(rows) == len(candidates):
        return {candidate.place for candidate in candidates}
    stored = {row[0] for row in rows}
    return {candidate.place for candidate in candidates if candidate.event.event_id in stored}


async def _look_at(
    connection: Connection, refused: Sequence[_Candidate], own: Collection[int]
) -> dict[int, EnqueueResult]:
    """What became of those that were refused; without those whose reason is gone by now. `own`: places whose id may be stored."""
    rows = await connection.fetch(
        _LOOK_AT,
        [candidate.place for candidate in refused],
        [candidate.event.event_id for candidate in refused],
        [candidate.event.tenant for candidate in refused],
        [candidate.key for candidate in refused],
        [candidate.event.type for candidate in refused],
        [candidate.event.content_type for candidate in refused],
        [sha256(candidate.event.body).digest() for candidate in refused],
    )
    events = {candidate.place: candidate.event for candidate in refused}
    results = {}
    for place, stored, same, first, same_as_first in rows:
        if stored:
            duplicate = same and place not in own
            results[place] = EnqueueResult(events[place].event_id, duplicate, conflict=not same)
        elif first is not None:
            results[place] = EnqueueResult(first, duplicate=same_as_first, conflict=not same_as_first)
    return results


def columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Rows turned into columns, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


def target_columns(groups: Iterable[tuple[int, int, str, Sequence[Target]]]) -> list[list[Any]]:
    """The columns of `t` in `MARK_AND_WAIT`, for (event_id, born_at, tenant, targets)."""
    event_ids: list[int] = []
    lanes: list[int] = []
    due: list[int] = []
    ids: list[int] = []
    born: list[int] = []
    parts: list[int] = []
    tenants: list[str] = []
    for event_id, born_at, tenant, targets in groups:
        for lane, part, number, due_at in targets:
            event_ids.append(event_id)
            lanes.append(lane)
            due.append(due_at)
            ids.append(number)
            born.append(born_at)
            parts.append(part)
            tenants.append(tenant)
    return [event_ids, lanes, due, ids, born, parts, tenants]
