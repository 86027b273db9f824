"""Moves a house: everything an SQLite file holds into an empty PostgreSQL database, with all ids as they are.

A move that was cut is repeated, and finds what it carried. Nothing is delivered meanwhile: the old file is owned by the mover,
the new database opens only when the counts of both agree. At the end the old file is closed for good, so that nobody delivers
from it a second time. Called by `gatepost migrate --from … --to …`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.house import Kind
from gatepost.store.migrate import administering
from gatepost.store.open import sqlite_path
from gatepost.store.postgres import schema
from gatepost.store.postgres.address import SCHEMES, postgres_address
from gatepost.store.postgres.house import PostgresHouse
from gatepost.store.postgres.keycheck import box_of, check_keys
from gatepost.store.postgres.partitions import make_ahead
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.house import SqliteHouse

Progress = Callable[[Kind, int, int], None]
"""Kind, rows of it carried so far, rows of it in all."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The receipt of a move."""

    source: str
    target: str
    started_at: int
    """UTC microseconds; of this run."""
    finished_at: int
    counts: Mapping[Kind, int]
    """Rows by kind, counted in the new database and equal to the old one's."""
    resumed: bool
    """An earlier run had begun, or had finished."""


async def move_house(
    source: str,
    target: str,
    *,
    keys: Sequence[str] | None,
    idempotency: float,
    on_progress: Progress = lambda _kind, _done, _total: None,
) -> Moved:
    """Carry everything from `source` (sqlite:///…) to `target` (postgresql://…).

    `keys` seal the secrets in the new database; those of the old file are opened with its key file where it has one, else with
    `keys`. `idempotency` in seconds: keys used within it go along. Blocks the event loop while it reads.
    Raises `ConfigurationError` for what cannot be right (URLs, keys, a database that is not empty), `StoreLocked` while a
    dispatcher owns the file, `StoreError` when the counts differ or a store fails; the old file is then as it was.
    """
    if urlsplit(target).scheme not in SCHEMES or urlsplit(source).scheme in SCHEMES:
        raise ConfigurationError("a house is moved from sqlite:///… to postgresql://…: write --from and --to so")
    started_at = SYSTEM_CLOCK.wall_us()
    path, address, box = sqlite_path(source), postgres_address(target), box_of(keys)
    old = SqliteHouse(path, _old_box(path, keys))
    try:
        async with administering(address) as connection:
            await schema.migrate(connection, address.place, post=False)
            state = await schema.read_state(connection)
            schema.check(address.place, state)
            await make_ahead(connection, started_at)
            await check_keys(connection, box)
            new = PostgresHouse(connection, address.place, box)
            begun_at = await new.begin(old.number, old.epoch, old.place, started_at, may_begin=not old.left)
            old.keys_since = begun_at - round(idempotency * 1e6)  # the same for every run
            counts = new.finished or await _carry(old, new, on_progress)
            return Moved(old.place, new.place, started_at, SYSTEM_CLOCK.wall_us(), counts, begun_at < started_at)
    finally:
        old.close()


async def _carry(old: SqliteHouse, new: PostgresHouse, on_progress: Progress) -> dict[Kind, int]:
    totals = old.counts()
    for kind in Kind:
        await _put(old, new, kind, totals[kind], on_progress)
    # Publishers may have added to the outbox meanwhile: from here on they cannot, and what they did add is carried.
    old.begin_to_leave()
    try:
        totals = old.counts()
        await _put(old, new, Kind.OUTBOX, totals[Kind.OUTBOX], on_progress)
        counts = await new.counts()
        wrong = [
            f"{kind.value}: {counts[kind]} instead of {totals[kind]}" for kind in Kind if counts[kind] != totals[kind]
        ]
        if wrong:
            raise StoreError(
                f"the move to {new.place} did not carry everything ({'; '.join(wrong)}): {old.place} stays as it was; "
                "drop that database, create it anew and move again"
            )
        # Closed first: whenever this is cut, at most one of the two can be opened.
        old.leave(SYSTEM_CLOCK.wall_us())
        await new.finish(counts, SYSTEM_CLOCK.wall_us())
    finally:
        old.stay()
    return counts


async def _put(old: SqliteHouse, new: PostgresHouse, kind: Kind, total: int, on_progress: Progress) -> None:
    done = 0
    on_progress(kind, done, total)
    for batch in old.batches(kind):
        await new.put(kind, batch)
        done += len(batch)
        on_progress(kind, done, max(total, done))
        await asyncio.sleep(0)


def _old_box(path: str, keys: Sequence[str] | None) -> SecretBox:
    """The keys of the file that is moved: those of its key file, if it has one, and those given."""
    file = Path(f"{path}.key")
    if not file.exists():
        return SecretBox(keys or ())
    SecretBox.for_sqlite(path)  # refuses a file that others may read
    lines = (line.strip() for line in file.read_text().splitlines())
    found = {line.partition(":")[0]: line for line in lines if line and not line.startswith("#")}
    for key in keys or ():
        found.setdefault(key.partition(":")[0], key)
    return SecretBox(list(found.values()), origin=f"{file} and the setting `keys`")
