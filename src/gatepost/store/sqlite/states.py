"""What the dispatcher learned about endpoints: a small opaque value for each, kept so that a restart does not begin from nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from itertools import chain

from gatepost.store.sqlite.bulk import BulkStatement, where_in

_SAVE = BulkStatement("INSERT OR REPLACE INTO endpoint_state (endpoint, state) VALUES ", "(?, ?)")
_FORGET = where_in("DELETE FROM endpoint_state WHERE endpoint IN")
_LOAD = where_in("SELECT endpoint, state FROM endpoint_state WHERE endpoint IN")


def save(connection: sqlite3.Connection, states: Mapping[int, bytes]) -> None:
    """Keep these values, replacing what was kept; none where empty. Sorted, so that neighbours share a page."""
    _SAVE.run(connection, list(chain.from_iterable(sorted(item for item in states.items() if item[1]))))
    _FORGET.run(connection, [number for number, state in states.items() if not state])


def load(connection: sqlite3.Connection, endpoints: Collection[int]) -> Mapping[int, bytes]:
    """Values by endpoint number; absent ones are left out."""
    return dict(_LOAD.fetch(connection, list(endpoints)))
