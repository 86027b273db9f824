"""Idempotency keys: finds the event that used a key first, and keeps the table that outlives memory.

`event.key` is the durable record; `idempotency_key` is an index over it that is written later in sorted strips (`strips`),
and keys not yet in it are held here. Lives in the writer thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from gatepost.store.sqlite.bulk import insert, where_in
from gatepost.store.sqlite.meta import read_meta, write_meta
from gatepost.store.sqlite.strips import STRIP_ROWS, Rounds

STRIPS: Final = 128
"""So that a strip is ~256 keys when as many wait as may (`INDEX_LAG_MAX`). With a million keys in the table some 3 of a strip
share a page, with 200,000 some 16."""
_STRIP_SHIFT: Final = 1
"""The upper 7 bits of a key's first byte are its strip."""

_FIND = where_in("SELECT key, event_id FROM idempotency_key WHERE generation IN (0, 1) AND key IN")
_DELETE = where_in("DELETE FROM idempotency_key WHERE generation IN (0, 1) AND key IN")
_INSERT = insert("idempotency_key", "generation, key, event_id", or_ignore=True)


class KeyIndex:
    """Where each idempotency key was used first."""

    __slots__ = (
        "_connection",
        "_durable_generation",
        "_ending",
        "_forgotten",
        "_generation",
        "_lag_max",
        "_new",
        "_round_wanted",
        "_rounds",
        "_young",
        "_young_count",
    )

    def __init__(self, connection: sqlite3.Connection, newest_event: int, lag_max: int) -> None:
        self._connection = connection
        self._lag_max = lag_max
        self._rounds = Rounds(connection, "keys_upto", STRIPS, newest_event)
        self._young: list[dict[bytes, int]] = [{} for _ in range(STRIPS)]  # key to event, by leading bits
        self._young_count = 0
        self._new: list[tuple[bytes, int]] = []  # added by the transaction under way
        self._forgotten: list[tuple[bytes, int]] = []  # taken out of `_young` by the transaction under way
        self._generation = read_meta(connection, "key_generation")
        self._durable_generation = self._generation
        self._round_wanted = False  # a round begins after the transaction under way
        self._ending = False  # the current generation waits only for the keys in memory to be written
        known = connection.execute("SELECT key, id FROM event WHERE id > ? AND key IS NOT NULL", (self._rounds.marker,))
        self._keep(known.fetchall())

    def __len__(self) -> int:
        """Keys held in memory."""
        return self._young_count

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, int]:
        """The event that used each key; keys never used are left out."""
        found: dict[bytes, int] = dict(_FIND.fetch(self._connection, keys))
        young = self._young
        for key in keys:
            event_id = young[key[0] >> _STRIP_SHIFT].get(key)
            if event_id is not None:
                found[key] = event_id
        return found

    def add(self, keys: Sequence[tuple[bytes, int]]) -> None:
        """These keys were used for the first time, by these events, in the transaction under way."""
        goal = self._rounds.goal
        self._new += [pair for pair in keys if pair[1] > goal]
        late: list[bytes | int] = []
        for key, event_id in keys:
            if event_id <= goal:
                late += (self._generation, key, event_id)
        _INSERT.run(self._connection, late)

    def forget(self, keys: Sequence[bytes]) -> int:
        """These keys count no more; returns how many were known."""
        known = _DELETE.run(self._connection, keys)
        for key in keys:
            event_id = self._young[key[0] >> _STRIP_SHIFT].pop(key, None)
            if event_id is not None:
                self._forgotten.append((key, event_id))
                known += 1
        return known

    def write_strips(self) -> None:
        """Write the next strips of the round under way."""
        written = 0
        while written < STRIP_ROWS and (strip := self._rounds.take()) is not None:
            keys = self._young[strip]
            values: list[bytes | int] = []
            for key, event_id in sorted(keys.items()):
                values += (self._generation, key, event_id)
            _INSERT.run(self._connection, values)
            written += len(keys)

    def committed(self) -> None:
        """The transaction is durable."""
        self._durable_generation = self._generation
        if written := self._rounds.committed():
            for strip in written:
                self._young[strip] = {}
            self._young_count = sum(map(len, self._young))
        if self._forgotten:
            self._forgotten.clear()
            self._young_count = sum(map(len, self._young))
        if self._new:
            self._keep(self._new)
            self._new.clear()
        if self._round_wanted or self._young_count > self._lag_max:
            self._round_wanted = False
            self._rounds.begin()

    def rolled_back(self) -> None:
        """It never was."""
        self._rounds.rolled_back()
        self._new.clear()
        if self._forgotten:
            for key, event_id in self._forgotten:
                self._young[key[0] >> _STRIP_SHIFT][key] = event_id
            self._forgotten.clear()
        self._generation = self._durable_generation

    def settle_before(self, before: int) -> bool:
        """Whether the keys of all events below `before` are in the table, so that those events may go; if not, see to it.

        Called again after each commit until it says yes.
        """
        if self._rounds.covers(before):
            return True
        self._round_wanted = True
        return False

    def expire(self, now: int, keep_us: int, limit: int) -> tuple[int, bool]:
        """Delete up to `limit` keys older than `keep_us` (microseconds); returns how many, and whether there are more.

        The generation before the current one goes as a whole once the current one has lasted `keep_us`, so a key lives
        between one and two of those. In key order, hence without touching a page twice.
        """
        since = read_meta(self._connection, "key_generation_at")
        if since == 0 or now - since < keep_us:
            if since == 0:
                self._begin_generation(self._generation, now)
            return 0, False
        old = 1 - self._generation
        deleted = self._connection.execute(
            "DELETE FROM idempotency_key WHERE generation = ?1 AND key IN"
            " (SELECT key FROM idempotency_key WHERE generation = ?1 ORDER BY key LIMIT ?2)",
            (old, limit),
        ).rowcount
        if deleted == limit:
            return deleted, True
        # Keys in memory belong to the generation that ends: a round brings them there first.
        if self._young_count and not self._ending:
            self._ending = self._round_wanted = True
        if self._rounds.running or self._round_wanted:
            return deleted, True
        self._ending = False
        self._begin_generation(old, now)
        return deleted, False

    def _begin_generation(self, generation: int, now: int) -> None:
        self._generation = generation
        write_meta(self._connection, "key_generation", generation)
        write_meta(self._connection, "key_generation_at", now)

    def _keep(self, keys: Sequence[tuple[bytes, int]]) -> None:
        young, newest = self._young, 0
        for key, event_id in keys:
            young[key[0] >> _STRIP_SHIFT][key] = event_id
            if event_id > newest:
                newest = event_id
        self._young_count += len(keys)
        self._rounds.saw(newest)
