"""Finds deliveries for operators, newest first, by the narrowest order there is; never by reading a whole table.

Waiting ones come from the queue, dead and cancelled ones from their partial index, others from the endpoint's list, walked a
bounded number of rows at a time. Runs on a reader's connection; `views` shows what is found, `operate` cancels it.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gatepost.store.paging import id_bounds
from gatepost.store.rows import DeliveryFilter
from gatepost.store.sqlite.bulk import where_in
from gatepost.store.sqlite.meta import read_meta
from gatepost.store.sqlite.tally import Tally

NEWEST: Final = (1 << 63) - 1
"""Before this id: from the beginning."""
WALK_MAX: Final = 2_000
"""Rows looked at in one call when no order matches the state asked for: some 5 ms."""
SORT_MAX: Final = 10_000
"""Waiting rows that are read and sorted in one call; where more wait, nearly all that is walked waits."""
_ENDED_STATES: Final = {"dead": 1, "cancelled": 2}

_TENANT_OF = "SELECT tenant FROM destination WHERE endpoint = ?"
_CHECK = where_in("""
SELECT h.id, h.event_id, h.lane >> 8, o.tenant, CASE h.state WHEN 1 THEN 'dead' WHEN 2 THEN 'cancelled' ELSE
  CASE WHEN EXISTS (SELECT 1 FROM delivery AS d WHERE d.lane = h.lane AND d.due_at = h.at AND d.id = h.id)
   THEN 'waiting' ELSE 'delivered' END END, coalesce((SELECT e.type FROM event AS e WHERE e.id = h.event_id),
   (SELECT x.event_type FROM dead AS x WHERE x.id = h.id), '')
 FROM history AS h JOIN destination AS o ON o.endpoint = h.lane >> 8 WHERE h.id IN""")
_OF_EVENT = """
SELECT value FROM event, json_each(event.targets) WHERE event.id = ?1 AND value < ?2
 UNION SELECT id FROM dead WHERE event_id = ?1 AND id < ?2 ORDER BY 1 DESC LIMIT ?3"""
_QUEUED = "SELECT id FROM delivery WHERE lane >= ? AND lane <= ? AND id < ? ORDER BY id DESC LIMIT ?"
_ENDED = "SELECT id FROM history WHERE lane >> 8 = ? AND state = ? AND state > 0 AND id < ? ORDER BY id DESC LIMIT ?"
_RECENT = "SELECT id FROM history WHERE id < ? ORDER BY id DESC LIMIT ?"
_LISTED = "SELECT id FROM endpoint_history WHERE endpoint = ? AND id < ? ORDER BY id DESC LIMIT ?"
_TAIL = "SELECT id FROM history WHERE id > ? AND id < ? AND lane >> 8 = ? ORDER BY id DESC LIMIT ?"
_TENANT_TAIL = """
SELECT h.id FROM history AS h JOIN destination AS o ON o.endpoint = h.lane >> 8
 WHERE h.id > ? AND h.id < ? AND o.tenant = ? ORDER BY h.id DESC LIMIT ?"""
# A page of n can only come from the n endpoints whose newest is newest.
_LISTED_HEADS = """
SELECT endpoint FROM (
 SELECT o.endpoint, (SELECT max(id) FROM endpoint_history AS l WHERE l.endpoint = o.endpoint AND l.id < ?2) AS head
 FROM destination AS o WHERE o.tenant = ?1)
 WHERE head IS NOT NULL ORDER BY head DESC LIMIT ?3"""
_ENDED_HEADS = """
SELECT endpoint FROM (
 SELECT o.endpoint, (SELECT max(id) FROM history AS h
   WHERE h.lane >> 8 = o.endpoint AND h.state = ?4 AND h.state > 0 AND h.id < ?2) AS head
 FROM destination AS o WHERE o.tenant = ?1)
 WHERE head IS NOT NULL ORDER BY head DESC LIMIT ?3"""


class Found(NamedTuple):
    """Ids, newest first."""

    ids: Sequence[int]
    resume: int | None
    """Fewer than wanted were found, but there may be more before this id."""


def find(connection: sqlite3.Connection, tally: Tally, where: DeliveryFilter, before: int, want: int) -> Found:
    """Up to `want` ids below `before` that match the filter."""
    since, before = id_bounds(where, before)
    found = _find(connection, tally, where, before, want)
    if not since or not (found.ids or found.resume is not None):
        return found
    ids = [number for number in found.ids if number >= since]
    more = len(ids) == len(found.ids) and found.resume is not None and found.resume > since
    return Found(ids, found.resume if more else None)


def _find(connection: sqlite3.Connection, tally: Tally, where: DeliveryFilter, before: int, want: int) -> Found:
    if where.event_id is not None:
        candidates = _ids(connection.execute(_OF_EVENT, (where.event_id, before, WALK_MAX)))
        return _narrow(connection, where, candidates, want)
    if where.endpoint is not None and where.tenant is not None:
        row = connection.execute(_TENANT_OF, (where.endpoint,)).fetchone()
        if row is None or row[0] != where.tenant:
            return Found((), None)
    anyone = where.endpoint is None and where.tenant is None
    plain = where.event_type is None
    walk = want if plain else max(want, WALK_MAX)
    if anyone:
        walk = want if plain and where.state is None else max(want, WALK_MAX)
        ids = _ids(connection.execute(_RECENT, (before, walk)))
        plain = plain and where.state is None
    elif where.state in _ENDED_STATES:
        ids = _ended(connection, where, _ENDED_STATES[where.state], before, walk)
    elif where.state == "waiting" and _waiting(tally, where) <= SORT_MAX:
        ids = _queued(connection, tally, where, before, walk)
    elif where.state is None:
        ids = _listed(connection, where, before, walk)
    else:
        return _narrow(connection, where, _listed(connection, where, before, WALK_MAX), want)
    return Found(ids, None) if plain else _narrow(connection, where, ids, want)


def matching(connection: sqlite3.Connection, where: DeliveryFilter, ids: Sequence[int]) -> list[int]:
    """Those of `ids` that exist and match the filter, newest first."""
    return sorted(
        (
            number
            for number, event_id, endpoint, tenant, state, event_type in _CHECK.fetch(connection, ids)
            if where.event_id in (None, event_id)
            and where.endpoint in (None, endpoint)
            and where.tenant in (None, tenant)
            and where.state in (None, state)
            and where.event_type in (None, event_type)
        ),
        reverse=True,
    )


def _narrow(connection: sqlite3.Connection, where: DeliveryFilter, candidates: Sequence[int], want: int) -> Found:
    ids = matching(connection, where, candidates)[:want]
    unfinished = len(candidates) >= WALK_MAX and len(ids) < want
    return Found(ids, candidates[-1] if unfinished else None)


def _waiting(tally: Tally, where: DeliveryFilter) -> int:
    if where.endpoint is None:
        return tally.backlog.get(where.tenant or "", 0)
    first = where.endpoint << 8
    return sum(tally.depth.get(lane, 0) for lane in range(first, first + 256))


def _queued(connection: sqlite3.Connection, tally: Tally, where: DeliveryFilter, before: int, want: int) -> list[int]:
    if where.endpoint is not None:
        endpoints = {where.endpoint}
    else:
        endpoints = {lane >> 8 for lane in list(tally.depth) if tally.owners.get(lane >> 8) == where.tenant}
    return _newest(
        want,
        (connection.execute(_QUEUED, (one << 8, one << 8 | 255, before, want)) for one in endpoints),
    )


def _ended(connection: sqlite3.Connection, where: DeliveryFilter, state: int, before: int, want: int) -> list[int]:
    if where.endpoint is not None:
        endpoints = [where.endpoint]
    else:
        endpoints = _ids(connection.execute(_ENDED_HEADS, (where.tenant, before, want, state)))
    return _newest(want, (connection.execute(_ENDED, (one, state, before, want)) for one in endpoints))


def _listed(connection: sqlite3.Connection, where: DeliveryFilter, before: int, want: int) -> list[int]:
    """The tail of history first, then the list: together they miss nothing and overlap a little."""
    upto = read_meta(connection, "listed_upto")
    if where.endpoint is not None:
        tail = _ids(connection.execute(_TAIL, (upto, before, where.endpoint, want)))
        endpoints = [where.endpoint]
    else:
        tail = _ids(connection.execute(_TENANT_TAIL, (upto, before, where.tenant, want)))
        endpoints = [] if len(tail) == want else _ids(connection.execute(_LISTED_HEADS, (where.tenant, before, want)))
    if len(tail) == want:
        return tail
    listed = (connection.execute(_LISTED, (one, before, want)) for one in endpoints)
    # What the list holds may be forgotten already: `matching` and `show` leave that out.
    return _newest(want, [((number,) for number in tail), *listed])


def newest_of(connection: sqlite3.Connection, endpoint: int, want: int) -> list[int]:
    """The newest deliveries of an endpoint; some of them may be forgotten already."""
    return _listed(connection, DeliveryFilter(endpoint=endpoint), NEWEST, want)


def _newest(want: int, sources: Iterable[Iterable[tuple[int]]]) -> list[int]:
    """Of sources that are newest first each; only as much of them is read as is taken."""
    ids: list[int] = []
    for (number,) in heapq.merge(*sources, reverse=True):
        if not ids or ids[-1] != number:
            if len(ids) == want:
                break
            ids.append(number)
    return ids


def _ids(rows: Iterable[tuple[int]]) -> list[int]:
    return [row[0] for row in rows]
