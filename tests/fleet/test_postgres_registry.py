"""The registry on PostgreSQL beyond the contract: late commits, repeated writes, keys that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gatepost.delivery.records import Tenant
from gatepost.errors import ConfigurationError, Conflict
from gatepost.store.port import Change
from gatepost.store.postgres import changes
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.keycheck import box_of, check_keys
from gatepost.store.postgres.pool import Pool, connect
from gatepost.store.postgres.registry import PostgresRegistry
from gatepost.store.postgres.schema import prepare
from gatepost.store.secretbox import SecretBox
from gatepost.testing.contract_registry import FULL, endpoint_id
from gatepost.testing.postgres import empty_database

KEY = SecretBox.new_key()


@asynccontextmanager
async def registry() -> AsyncIterator[tuple[PostgresRegistry, Pool]]:
    """A registry in a new database, and its connections."""
    address = postgres_address(await asyncio.to_thread(empty_database))
    pool = Pool(address)
    try:
        await pool.run(lambda connection: prepare(connection, address.place, create=True))
        yield PostgresRegistry(pool, SecretBox([KEY])), pool
    finally:
        await pool.aclose()


async def test_a_change_that_commits_late_is_not_missed() -> None:
    """With a sequence, a follower that saw 2 would never see 1: here the second change waits for the first one's commit."""
    async with registry() as (store, pool):
        late = await connect(pool.address)
        transaction = late.transaction()
        await transaction.start()
        await late.execute("INSERT INTO gp_tenant (name, document) VALUES ('late', '{}')")
        await changes.record(late, [("tenant", "late")])
        second = asyncio.ensure_future(store.put_tenant(Tenant("second")))
        seen: list[Change] = []
        cursor = 0
        for _ in range(10):
            found, cursor = await store.changes_since(cursor)
            seen += found
            await asyncio.sleep(0.02)
        assert (seen, second.done()) == ([], False)
        await transaction.commit()
        await second
        found, cursor = await store.changes_since(cursor)
        assert list(found) == [("tenant", "late"), ("tenant", "second")]
        await late.close()


async def test_a_follower_beside_many_writers_misses_nothing() -> None:
    """Twenty at a time over eight connections; every record's last change is seen, and numbers never fall behind the cursor."""
    async with registry() as (store, _):
        seen: set[Change] = set()
        done = asyncio.Event()

        async def follow() -> None:
            cursor = 0
            while True:
                ended = done.is_set()
                found, cursor = await store.changes_since(cursor)
                seen.update(found)
                if ended:
                    return

        following = asyncio.ensure_future(follow())
        names = [f"t{number}" for number in range(100)]
        await asyncio.gather(*(store.put_tenant(Tenant(name)) for name in names))
        done.set()
        await following
        assert seen == {("tenant", name) for name in names}


async def test_changes_that_are_rolled_back_leave_no_gap_and_no_trace() -> None:
    """Their number goes to whoever comes next."""
    async with registry() as (store, pool):
        await store.put_tenant(Tenant("one"))
        other = await connect(pool.address)
        transaction = other.transaction()
        await transaction.start()
        await changes.record(other, [("tenant", "never"), ("endpoint", "never")])
        await transaction.rollback()
        await other.close()
        await store.put_tenant(Tenant("two"))
        assert await store.changes_since(0) == ([("tenant", "one"), ("tenant", "two")], 2)


async def test_secrets_are_sealed_for_their_place() -> None:
    """The same associated data as in every engine: a document moved to another endpoint does not open."""
    async with registry() as (store, pool):
        await store.create_endpoint(FULL)
        [row] = await pool.fetch("SELECT document FROM gp_endpoint")
        for secret in ("whsec_bmV3", "Bearer abc", "PRIVATE KEY"):
            assert secret not in row["document"]
        with pytest.raises(Conflict):
            await store.create_endpoint(FULL)
        await store.create_endpoint(replace(FULL, id=endpoint_id(2)))


async def test_keys_are_checked_when_a_process_opens_the_database() -> None:
    """No key, a wrong key, another key: each is told with what to write; a new key before the old one is taken."""
    nothing: tuple[list[str] | None, ...] = (None, [])
    for none in nothing:
        with pytest.raises(ConfigurationError, match=r"security\.keys .* key such as 'k"):
            box_of(none)
    async with registry() as (_, pool):
        await asyncio.gather(*(pool.run(lambda one: check_keys(one, box_of([KEY]))) for _ in range(4)))
        name, _, _ = KEY.partition(":")
        wrong = f"{name}:{SecretBox.new_key().partition(':')[2]}"
        with pytest.raises(ConfigurationError, match="is not the key of that id that sealed this database's secrets"):
            await pool.run(lambda one: check_keys(one, box_of([wrong])))
        with pytest.raises(ConfigurationError, match="restore the old key"):
            await pool.run(lambda one: check_keys(one, box_of([SecretBox.new_key()])))
        await pool.run(lambda one: check_keys(one, box_of([SecretBox.new_key(), KEY])))
