"""Who owns which part: heartbeats, takeover, release, and the lists of nodes and parts. One short transaction each.

A node renews its own row, then locks the rows of nodes it may inherit from, then takes parts: whoever renews waits for whoever
is inheriting from it, and so never believes in a part that is being taken. Parts that a node has in the table but does not hold
(its answer was lost) are free. Called by `queue`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gatepost.store.postgres.pool import Connection
from gatepost.store.postgres.session import session_key
from gatepost.store.postgres.time import DATABASE_NOW
from gatepost.store.rows import (
    PART_LEASE,
    SESSION_SETTLED,
    STRICT_AFTER_EXPIRY,
    Heartbeat,
    Lease,
    Node,
    NodeInfo,
    PartInfo,
)

_US: Final = 1_000_000
FORGET_NODE_AFTER: Final = 86_400 * _US
"""Nodes not heard of for a day that own nothing: their names never come again."""

# Session locks of this database that somebody holds. Ours are 64-bit keys: two halves, and 1 beside them.
_HELD_LOCKS: Final = """
SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_RENEW: Final = f"""
INSERT INTO gp_node AS n (name, address, weight, draining, seen_at, lease_until, session_key)
 SELECT $1::text, $2::text, $3::real, $4::boolean, t.now, t.now + $5::bigint, $6::bigint
  FROM (SELECT coalesce($7::bigint, {DATABASE_NOW}) AS now) AS t
ON CONFLICT (name) DO UPDATE SET address = excluded.address, weight = excluded.weight, draining = excluded.draining,
 seen_at = excluded.seen_at, lease_until = excluded.lease_until, session_key = excluded.session_key
RETURNING seen_at"""  # noqa: S608 - our own words
# Those that somebody else inherits from at this moment are left to them.
_DEAD_NODES: Final = f"""
SELECT name, lease_until, lease_until <= $2::bigint AS expired FROM gp_node
 WHERE name <> $1::text AND (lease_until <= $2::bigint
  OR $3::boolean AND session_key IS NOT NULL AND NOT session_key = ANY(ARRAY({_HELD_LOCKS})))
 ORDER BY name FOR UPDATE SKIP LOCKED"""  # noqa: S608 - our own words
# Given back first, then of owners whose session is lost, then expired. A part locked by a settle is left for the next beat.
# No owner is at work for longer than a lease from now: what says so was written before the clock stepped back.
_TAKE: Final = """
WITH free AS (
 SELECT p.part, coalesce(d.strict_from, 0) AS strict_from FROM gp_part AS p
  LEFT JOIN unnest($3::text[], $4::bigint[], $5::integer[]) AS d(name, strict_from, rank) ON d.name = p.owner
  WHERE p.owner IS NULL OR d.name IS NOT NULL
   OR p.owner = $1::text AND NOT EXISTS (
    SELECT 1 FROM unnest($6::integer[], $7::bigint[]) AS h(part, epoch) WHERE h.part = p.part AND h.epoch = p.epoch)
   OR NOT EXISTS (SELECT 1 FROM gp_node AS n WHERE n.name = p.owner)
  ORDER BY coalesce(d.rank, 0), p.part LIMIT $2::bigint FOR UPDATE OF p SKIP LOCKED)
UPDATE gp_part AS p SET owner = $1::text, epoch = p.epoch + 1,
  strict_from = least(greatest(p.strict_from, free.strict_from), $8::bigint)
 FROM free WHERE p.part = free.part RETURNING p.part, p.epoch, p.strict_from"""
_MINE: Final = "SELECT part, epoch FROM gp_part WHERE owner = $1::text"
_GIVE_UP: Final = "UPDATE gp_part SET owner = NULL WHERE owner = $1::text AND part = ANY($2::integer[])"
_RELEASE: Final = """
UPDATE gp_part AS p SET owner = NULL FROM unnest($1::integer[], $2::bigint[]) AS k(part, epoch)
 WHERE p.part = k.part AND p.epoch = k.epoch"""
_FORGET: Final = """
DELETE FROM gp_node WHERE name IN (
 SELECT name FROM gp_node AS n WHERE lease_until < $1::bigint
  AND NOT EXISTS (SELECT 1 FROM gp_part WHERE owner = n.name) FOR UPDATE SKIP LOCKED)"""
NODES: Final = f"""
SELECT n.name, n.address, n.weight, n.draining, n.seen_at, coalesce(p.parts, 0) AS parts FROM gp_node AS n
 LEFT JOIN (SELECT owner, count(*) AS parts FROM gp_part GROUP BY owner) AS p ON p.owner = n.name
 WHERE n.lease_until > coalesce($1::bigint, {DATABASE_NOW})
  AND (n.session_key IS NULL OR n.session_key = ANY(ARRAY({_HELD_LOCKS})))
 ORDER BY n.name"""  # noqa: S608 - our own words
PARTS: Final = f"""
SELECT p.part, p.owner, p.epoch, greatest(0, coalesce(n.lease_until, 0) - coalesce($1::bigint, {DATABASE_NOW})) AS left_us
 FROM gp_part AS p LEFT JOIN gp_node AS n ON n.name = p.owner ORDER BY p.part"""  # noqa: S608 - our own words


class Beat(NamedTuple):
    """What a heartbeat asks."""

    node: Node
    held: Mapping[int, int]
    want: int
    now: int | None
    """None: the database's clock."""
    by_session: bool
    session_age: float
    """Seconds."""


async def heartbeat(connection: Connection, beat: Beat) -> Heartbeat:
    """Renew, take what is wanted, and tell what is held."""
    name = beat.node.name
    async with connection.transaction():
        now = await connection.fetchval(
            _RENEW,
            name,
            beat.node.address,
            beat.node.weight,
            beat.node.draining,
            round(PART_LEASE * _US),
            session_key(name) if beat.by_session else None,
            beat.now,
        )
        taken = await _take(connection, beat, now) if beat.want > 0 else {}
        leases = dict(taken)
        stray = []
        for part, epoch in await connection.fetch(_MINE, name):
            if part in taken:
                continue
            if beat.held.get(part) == epoch:
                leases[part] = Lease(epoch, PART_LEASE)
            else:
                stray.append(part)
        if stray:
            await connection.execute(_GIVE_UP, name, stray)
        await connection.execute(_FORGET, now - FORGET_NODE_AFTER)
        nodes = [_node_info(*row) for row in await connection.fetch(NODES, now)]
    lost = frozenset(part for part, epoch in beat.held.items() if part not in leases or leases[part].epoch != epoch)
    return Heartbeat(leases, lost, now, nodes)


async def _take(connection: Connection, beat: Beat, now: int) -> dict[int, Lease]:
    settled = beat.by_session and beat.session_age >= SESSION_SETTLED
    dead = await connection.fetch(_DEAD_NODES, beat.node.name, now, settled)
    after_expiry = now + round(STRICT_AFTER_EXPIRY * _US)
    rows = await connection.fetch(
        _TAKE,
        beat.node.name,
        beat.want,
        [row["name"] for row in dead],
        [after_expiry if row["expired"] else row["lease_until"] for row in dead],
        [2 if row["expired"] else 1 for row in dead],
        list(beat.held),
        list(beat.held.values()),
        now + round(PART_LEASE * _US),
    )
    return {part: Lease(epoch, PART_LEASE, max(0.0, (strict_from - now) / _US)) for part, epoch, strict_from in rows}


async def release(connection: Connection, parts: Mapping[int, int]) -> None:
    """Give parts back, each if the epoch is still right."""
    await connection.execute(_RELEASE, list(parts), list(parts.values()))


async def nodes(connection: Connection, now: int | None) -> Sequence[NodeInfo]:
    """Those alive, by name."""
    return [_node_info(*row) for row in await connection.fetch(NODES, now)]


async def parts(connection: Connection, now: int | None) -> Sequence[PartInfo]:
    """In order of part."""
    return [
        PartInfo(part, owner, epoch, 0.0 if owner is None else left_us / _US)
        for part, owner, epoch, left_us in await connection.fetch(PARTS, now)
    ]


def _node_info(
    name: str, address: str | None, weight: float, draining: bool, seen_at: int, parts_count: int
) -> NodeInfo:
    return NodeInfo(Node(name, address, weight, draining), seen_at, parts_count)
