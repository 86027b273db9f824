"""What waits, counted in memory: depth by lane, backlog by tenant, row totals, and whose each endpoint is.

Exact, because one process writes the queue; read from the tables at the start. Changes are collected while a transaction
runs and count only once it is durable. Written by the writer thread, read by any.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from gatepost.store.sqlite.meta import read_meta

_COUNTED: Final = ("events", "attempts", "dead")


class Tally:
    """The counts, and the pending changes of the transaction under way."""

    __slots__ = (
        "_added",
        "_counts",
        "_disowned",
        "_doubtful",
        "_new_owners",
        "_pending_counts",
        "_recounted",
        "_removed",
        "backlog",
        "depth",
        "owners",
    )

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.owners: dict[int, str] = dict(connection.execute("SELECT endpoint, tenant FROM destination"))
        """Tenant by endpoint number."""
        self.depth: dict[int, int] = dict(connection.execute("SELECT lane, count(*) FROM delivery GROUP BY lane"))
        """Waiting rows by lane; no zeros."""
        self.backlog: dict[str, int] = {}
        """Waiting rows by tenant."""
        for lane, rows in self.depth.items():
            tenant = self.owners.get(lane >> 8, "")
            self.backlog[tenant] = self.backlog.get(tenant, 0) + rows
        self._counts = {name: read_meta(connection, name) for name in _COUNTED}
        self._pending_counts = dict.fromkeys(_COUNTED, 0)
        self._added: list[int] = []
        self._removed: list[int] = []
        self._doubtful: set[int] = set()
        self._recounted: dict[int, int] = {}
        self._new_owners: dict[int, str] = {}
        self._disowned: set[str] = set()

    def total(self, name: str) -> int:
        """Rows of `events`, `attempts` or `dead`."""
        return self._counts[name]

    # -- during a transaction

    def wait(self, lanes: Iterable[int]) -> None:
        """A row was added to each of these lanes."""
        self._added += lanes

    def leave(self, lanes: Iterable[int]) -> None:
        """A row was removed from each of these lanes."""
        self._removed += lanes

    def doubt(self, lanes: Iterable[int]) -> None:
        """Fewer rows than named were removed from these lanes (a repeated settle): count them anew before the commit."""
        self._doubtful.update(lanes)

    def count(self, name: str, change: int) -> None:
        """`change` rows more of `events`, `attempts` or `dead`."""
        self._pending_counts[name] += change

    def own(self, connection: sqlite3.Connection, lane: int, tenant: str) -> None:
        """Note whose endpoint this is, the first time it gets a delivery."""
        endpoint = lane >> 8
        if endpoint not in self._new_owners:
            self._new_owners[endpoint] = tenant
            connection.execute("INSERT OR IGNORE INTO destination (endpoint, tenant) VALUES (?, ?)", (endpoint, tenant))

    def disown(self, tenant: str) -> None:
        """Nothing of this tenant is left, and its endpoints are gone."""
        self._disowned.add(tenant)

    def write(self, connection: sqlite3.Connection) -> None:
        """Last thing before the commit."""
        for lane in self._doubtful:
            row = connection.execute("SELECT count(*) FROM delivery WHERE lane = ?", (lane,)).fetchone()
            self._recounted[lane] = row[0]
        events, attempts, dead = self._pending_counts.values()
        if events or attempts or dead:
            connection.execute(
                "UPDATE meta SET value = value + CASE name WHEN 'events' THEN ? WHEN 'attempts' THEN ? ELSE ? END"
                " WHERE name IN ('events', 'attempts', 'dead')",
                (events, attempts, dead),
            )

    # -- after it

    def committed(self) -> None:
        """Let the pending changes count."""
        if self._new_owners:
            self.owners.update(self._new_owners)
        owners, depth, backlog = self.owners, self.depth, self.backlog
        for lane in self._added:
            depth[lane] = depth.get(lane, 0) + 1
            tenant = owners.get(lane >> 8, "")
            backlog[tenant] = backlog.get(tenant, 0) + 1
        for lane in self._removed:
            rows = depth.get(lane, 0)
            if rows > 1:
                depth[lane] = rows - 1
            else:
                depth.pop(lane, None)
            tenant = owners.get(lane >> 8, "")
            backlog[tenant] = backlog.get(tenant, 0) - 1
        for lane, rows in self._recounted.items():
            tenant = owners.get(lane >> 8, "")
            backlog[tenant] = backlog.get(tenant, 0) + rows - depth.pop(lane, 0)
            if rows:
                depth[lane] = rows
        for name, change in self._pending_counts.items():
            self._counts[name] += change
        if self._disowned:
            # A new one: readers walk through the old one.
            self.owners = {one: tenant for one, tenant in owners.items() if tenant not in self._disowned}
            for tenant in self._disowned:
                if not backlog.get(tenant):
                    backlog.pop(tenant, None)
        self.rolled_back()

    def rolled_back(self) -> None:
        """Forget the pending changes."""
        self._added.clear()
        self._removed.clear()
        self._doubtful.clear()
        self._recounted.clear()
        self._new_owners.clear()
        self._disowned.clear()
        self._pending_counts = dict.fromkeys(_COUNTED, 0)
