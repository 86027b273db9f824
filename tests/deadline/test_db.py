"""Statements end with the deadline on a real PostgreSQL, by SQLAlchemy, psycopg and asyncpg: case 36 and its surroundings."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from gatepost.deadline import DeadlineExceeded, deadline
from gatepost.deadline.db.asyncpg import DeadlineConnection as AsyncpgConnection
from gatepost.deadline.db.asyncpg import acquire, create_pool
from gatepost.deadline.db.psycopg import AsyncDeadlineConnection, DeadlineConnection
from gatepost.deadline.db.sqlalchemy import AsyncDeadlineQueuePool, DeadlineQueuePool, install
from gatepost.deadline.tiers import DATASTORE
from gatepost.deadline.value import Deadline, Limit
from gatepost.errors import ConfigurationError
from gatepost.testing.hostile import HostileServer
from gatepost.testing.postgres import empty_database, shared_server
from tests.deadline.kit import LATE, takes

LIMITS = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"


@pytest.fixture(scope="module")
def url() -> str:
    return empty_database()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), poolclass=DeadlineQueuePool, pool_size=1, max_overflow=0
    )
    install(engine)
    yield engine
    engine.dispose()


def running(marker: str) -> int:
    """Statements with `marker` in them that the server runs now."""
    found = shared_server().run_sql(
        f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%{marker}%' "
        "AND pid <> pg_backend_pid()"
    )
    return int(found)


def ms(value: str) -> float:
    """Milliseconds of a setting as PostgreSQL writes it."""
    for unit, factor in (("ms", 1), ("min", 60_000), ("s", 1_000)):
        if value.endswith(unit):
            return float(value.removesuffix(unit)) * factor
    return float(value)


# -- SQLAlchemy


def test_36_a_sqlalchemy_statement_ends_with_the_deadline(engine: Engine) -> None:
    """Dead work in the database is the most expensive kind: everybody shares it."""
    with (
        deadline(0.4),
        takes(0.3, 0.4 + LATE),
        pytest.raises(DeadlineExceeded, match="db"),
        engine.connect() as connection,
    ):
        connection.execute(text("SELECT pg_sleep(5), 'sa-sync'"))
    assert running("sa-sync") == 0
    with engine.connect() as connection:
        assert tuple(connection.execute(text(LIMITS)).one()) == ("0", "0")


def test_36_a_spent_budget_reaches_no_server(engine: Engine) -> None:
    """0.4 ms are less than the way to the server."""
    with engine.connect() as connection, deadline(0.0004), pytest.raises(DeadlineExceeded):
        connection.execute(text("SELECT 1"))
    with engine.connect() as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with deadline(0.0), pytest.raises(DeadlineExceeded):
            connection.execute(text("SELECT 1"))
        assert connection.scalar(text("SELECT pg_backend_pid()")) == pid


def test_the_orm_and_savepoints_keep_their_limits(engine: Engine) -> None:
    """Rolling a savepoint back takes what was set in it along: it must be set again."""
    with deadline(5.0), Session(engine) as session:
        nested = session.begin_nested()
        first = ms(session.execute(text(LIMITS)).one()[0])
        assert 4_000 < first <= 4_990
        nested.rollback()
        statement, lock = session.execute(text(LIMITS)).one()
        assert 4_000 < ms(statement) <= 4_990
        assert ms(lock) == 1_000
        session.commit()
        assert ms(session.execute(text(LIMITS)).one()[0]) <= 4_990


def test_limits_of_the_operator_are_only_tightened(engine: Engine) -> None:
    """A role with 100 ms keeps them under a deadline of a minute, and gets them back."""
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL statement_timeout = '100ms'"))
        with deadline(50.0):
            assert connection.execute(text(LIMITS)).one()[0] == "100ms"
            with pytest.raises(DBAPIError):  # the operator's limit is not our deadline
                connection.execute(text("SELECT pg_sleep(3)"))


def test_a_transaction_goes_on_after_the_scope(engine: Engine) -> None:
    """The scope's last milliseconds must not cut what follows it."""
    with engine.connect() as connection:
        with deadline(0.2):
            connection.execute(text("SELECT 1"))
        connection.execute(text("SELECT pg_sleep(0.4)"))
        assert tuple(connection.execute(text(LIMITS)).one()) == ("0", "0")


def test_autocommit_leaves_no_limit_behind(engine: Engine) -> None:
    """There the limit can only be set for the session, which the pool hands to somebody else."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, deadline(0.4):
        assert 0 < ms(connection.execute(text(LIMITS)).one()[0]) <= 390
        with takes(0.2, 0.4 + LATE), pytest.raises(DeadlineExceeded):
            connection.execute(text("SELECT pg_sleep(5)"))
    with engine.connect() as connection:  # the same one: the pool has no other
        assert tuple(connection.execute(text(LIMITS)).one()) == ("0", "0")


def test_the_wait_for_a_pooled_connection_counts(engine: Engine) -> None:
    """Thirty seconds in the queue of an exhausted pool are the usual way in which a timeout is none."""
    with engine.connect():
        with deadline(0.2), takes(0.15, 0.2 + LATE), pytest.raises(DeadlineExceeded, match="pool"):
            engine.connect()
        with deadline(0.0), pytest.raises(DeadlineExceeded):
            engine.connect()


def test_disposing_of_an_engine_late_keeps_its_pools_limit(engine: Engine) -> None:
    """The new pool is made from the old one's numbers, not from what was left of some request."""
    with deadline(0.0):
        engine.dispose()
    pool = engine.pool
    assert isinstance(pool, DeadlineQueuePool)
    assert pool.timeout() == 30.0
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1


def test_a_lock_is_waited_for_a_second_at_most_or_as_long_as_is_left(engine: Engine, url: str) -> None:
    """A lock timeout is no deadline, and keeps its own error."""
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute("CREATE TABLE IF NOT EXISTS locked (id int PRIMARY KEY)")
        holder.execute("INSERT INTO locked VALUES (1) ON CONFLICT DO NOTHING")
        with holder.transaction():
            holder.execute("SELECT * FROM locked FOR UPDATE")
            with engine.connect() as connection, deadline(30.0), takes(0.9, 1.0 + LATE), pytest.raises(DBAPIError):
                connection.execute(text("SELECT * FROM locked FOR UPDATE"))


async def test_36_an_async_engine_ends_with_the_deadline(url: str) -> None:
    """The same listeners, under asyncpg and under psycopg's async mode."""
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(
            url.replace("postgresql://", f"postgresql+{driver}://"),
            poolclass=AsyncDeadlineQueuePool,
            pool_size=1,
            max_overflow=0,
        )
        install(engine)
        try:
            async with engine.connect() as connection:
                with deadline(5.0):
                    assert ms((await connection.execute(text(LIMITS))).one()[0]) <= 4_990
                    with deadline(0.1), pytest.raises(DeadlineExceeded, match="pool"):
                        await engine.connect().start()
            with deadline(0.4), takes(0.3, 0.4 + LATE), pytest.raises(DeadlineExceeded):
                async with engine.connect() as connection:
                    await connection.execute(text(f"SELECT pg_sleep(5), 'sa-{driver}'"))
            assert running(f"sa-{driver}") == 0
            async with engine.connect() as connection:
                options = await connection.execution_options(isolation_level="AUTOCOMMIT")
                with deadline(2.0):
                    assert 0 < ms((await options.execute(text(LIMITS))).one()[0]) <= 1_990
            async with engine.connect() as connection:
                assert tuple((await connection.execute(text(LIMITS))).one()) == ("0", "0")
        finally:
            await engine.dispose()


def test_a_tier_gives_statements_a_limit_without_a_deadline(url: str) -> None:
    """1 s for a query is the data store's profile, deadline or not."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    install(engine, tier=DATASTORE.evolve(read=0.3))
    try:
        with engine.connect() as connection:
            assert connection.execute(text(LIMITS)).one()[0] == "300ms"
            with takes(0.2, 0.3 + LATE), pytest.raises(DBAPIError):
                connection.execute(text("SELECT pg_sleep(5)"))
    finally:
        engine.dispose()


def test_other_databases_are_refused_by_name() -> None:
    """Silence would look like protection."""
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="sqlite"):
        install(engine)
    engine.dispose()


def test_pool_errors_without_a_deadline_stay_sqlalchemys(url: str) -> None:
    """`pool_timeout` is still the operator's."""
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"),
        poolclass=DeadlineQueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.1,
    )
    try:
        with engine.connect(), deadline(10.0), pytest.raises(PoolTimeout):
            engine.connect()
    finally:
        engine.dispose()


# -- psycopg


def test_36_a_psycopg_statement_ends_with_the_deadline(url: str) -> None:
    """psycopg has no timeout for a call at all."""
    with DeadlineConnection.connect(url) as connection:
        with deadline(0.4), takes(0.3, 0.4 + LATE), pytest.raises(DeadlineExceeded):
            connection.execute("SELECT pg_sleep(5), 'psycopg-sync'")
        assert running("psycopg-sync") == 0
        connection.rollback()
        assert connection.execute(LIMITS).fetchone() == ("0", "0")
        with deadline(0.0004), pytest.raises(DeadlineExceeded):
            connection.execute("SELECT 1")


def limits_of(connection: DeadlineConnection) -> tuple[str, str]:
    """What the server enforces now."""
    row = connection.execute(LIMITS).fetchone()
    assert row is not None
    return row[0], row[1]


def test_psycopg_in_autocommit_and_in_savepoints(url: str) -> None:
    """Limits follow the scope in both modes."""
    with DeadlineConnection.connect(url, autocommit=True) as connection:
        with deadline(5.0):
            assert ms(limits_of(connection)[0]) <= 4_990
            with connection.transaction():
                with connection.transaction(force_rollback=True):
                    assert ms(limits_of(connection)[0]) <= 4_990
                assert 0 < ms(limits_of(connection)[0]) <= 4_990
        assert connection.execute(LIMITS).fetchone() == ("0", "0")
        with deadline(5.0):
            connection.execute("SELECT 1")
        connection.restore_limits()
        assert psycopg.Cursor(connection).execute(LIMITS).fetchone() == ("0", "0")


def test_psycopg_cancels_when_the_server_does_not_keep_its_limit(url: str) -> None:
    """Somebody turns the limit off inside the statement: the client's own clock still ends it."""
    with DeadlineConnection.connect(url) as connection:
        connection.execute(
            "CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LOOP BEGIN PERFORM pg_sleep(0.3); "
            "EXCEPTION WHEN query_canceled THEN NULL; END; EXIT WHEN clock_timestamp() > now() + interval '1.5 s'; "
            "END LOOP; END $$"
        )
        connection.commit()
        # It swallows the server's own limit once; our cancel request is then swallowed too, and the connection given up.
        with deadline(0.3), takes(0.25, 0.3 + 2.0 + LATE), pytest.raises(DeadlineExceeded):
            connection.execute("SELECT stubborn()")


async def test_psycopg_gives_up_connecting_at_the_deadline() -> None:
    """A server that accepts and says nothing held a caller for libpq's own limit: two whole seconds at least, or for ever."""
    async with HostileServer("silence", seconds=30) as server:
        address = f"postgresql://127.0.0.1:{server.port}/nothing"

        def connect() -> None:
            DeadlineConnection.connect(address)

        with deadline(0.3), takes(0.25, 0.3 + 0.1 + LATE), pytest.raises(DeadlineExceeded, match="db connect"):
            await asyncio.to_thread(connect)
        with deadline(0.3), takes(0.25, 0.3 + 0.1 + LATE), pytest.raises(DeadlineExceeded, match="db connect"):
            await AsyncDeadlineConnection.connect(address)


class Jumping:
    """A clock that jumps over every deadline after `quiet` looks: a process that was stopped there for a while."""

    def __init__(self, quiet: int) -> None:
        self._looks = quiet

    def monotonic_ns(self) -> int:
        self._looks -= 1
        return 10**9 if self._looks >= 0 else 10**11

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    def wall_us(self) -> int:
        return 0


@pytest.mark.parametrize("quiet", range(1, 9))
def test_a_pause_at_any_moment_leaves_no_limit_in_a_psycopg_session(url: str, quiet: int) -> None:
    """A limit that was set while nobody saw the answer would cut whoever gets the connection from the pool next."""
    limit = Deadline(15 * 10**8, (Limit("short", 0.5, 15 * 10**8),), Jumping(quiet))
    with DeadlineConnection.connect(url, autocommit=True) as connection:
        with deadline(limit), contextlib.suppress(DeadlineExceeded):
            connection.execute("SELECT 1")
        if not connection.closed:
            connection.restore_limits()
            assert psycopg.Cursor(connection).execute(LIMITS).fetchone() == ("0", "0")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 40])
async def test_a_cancellation_at_any_moment_leaves_no_limit_in_a_session(url: str, turns: int) -> None:
    """The same for tasks that are cancelled from outside."""

    async def ended(work: Coroutine[Any, Any, Any]) -> None:
        with deadline(5.0):
            task = asyncio.get_running_loop().create_task(work)
        for _ in range(turns):
            await asyncio.sleep(0.0001 if turns == 40 else 0)
        task.cancel()
        await asyncio.wait({task})

    async with await AsyncDeadlineConnection.connect(url, autocommit=True) as first:
        await ended(first.execute("SELECT 1"))
        if not first.closed:
            await first.restore_limits()
            assert await (await psycopg.AsyncCursor(first).execute(LIMITS)).fetchone() == ("0", "0")
    second: Any = await asyncpg.connect(url, connection_class=AsyncpgConnection)
    await ended(second.execute("SELECT 1"))
    if second.is_closed():
        with pytest.raises(asyncpg.InterfaceError, match="closed"):
            await second.fetchrow(LIMITS)
    else:
        assert tuple(await second.fetchrow(LIMITS)) == ("0", "0")
        await second.close()


async def test_36_psycopg_async_ends_with_the_deadline(url: str) -> None:
    """The async half of the same."""
    async with await AsyncDeadlineConnection.connect(url) as connection:
        with deadline(0.4), takes(0.3, 0.4 + LATE), pytest.raises(DeadlineExceeded):
            await connection.execute("SELECT pg_sleep(5), 'psycopg-async'")
        assert running("psycopg-async") == 0
        await connection.rollback()
        cursor: Any = await connection.execute(LIMITS)
        assert await cursor.fetchone() == ("0", "0")


# -- asyncpg


async def test_36_an_asyncpg_statement_ends_with_the_deadline(url: str) -> None:
    """asyncpg's own timeout is per call; here nobody needs to pass it."""
    pool = await create_pool(url, min_size=1, max_size=1)
    try:
        with deadline(0.4), takes(0.3, 0.4 + LATE), pytest.raises(DeadlineExceeded):
            async with acquire(pool) as connection:
                await connection.fetch("SELECT pg_sleep(5), 'asyncpg'")
        assert running("asyncpg") == 0
        async with acquire(pool) as connection:
            assert tuple(await connection.fetchrow(LIMITS)) == ("0", "0")
            with deadline(0.2), takes(0.1, 0.2 + LATE), pytest.raises(TimeoutError):
                async with acquire(pool, tier=DATASTORE.evolve(pool=0.15)):
                    pass
            with deadline(0.0004), pytest.raises(DeadlineExceeded):
                await connection.fetchval("SELECT 1")
    finally:
        await pool.close()


async def test_asyncpg_transactions_and_savepoints(url: str) -> None:
    """Limits end with what they were set in, and are set again."""
    connection: Any = await asyncpg.connect(url, connection_class=AsyncpgConnection)
    try:
        with deadline(5.0):
            assert ms((await connection.fetchrow(LIMITS))[0]) <= 4_990
            async with connection.transaction():
                inner = connection.transaction()
                await inner.start()
                assert ms((await connection.fetchrow(LIMITS))[0]) <= 4_990
                await inner.rollback()
                assert 0 < ms((await connection.fetchrow(LIMITS))[0]) <= 4_990
        assert tuple(await connection.fetchrow(LIMITS)) == ("0", "0")
    finally:
        await connection.close()


async def test_the_servers_limit_outlives_a_dead_client(url: str) -> None:
    """A killed client sends no cancel request; the server ends the query at the deadline all the same."""
    connection: Any = await asyncpg.connect(url, connection_class=AsyncpgConnection)
    with deadline(0.6):
        task = asyncio.get_running_loop().create_task(_run(connection, "SELECT pg_sleep(8), 'orphan'"))
        await asyncio.sleep(0.2)
        assert await asyncio.to_thread(running, "orphan") == 1
        connection._transport.abort()  # as a killed process: nothing is said to the server
        with pytest.raises(Exception):  # noqa: B017 - whatever a lost connection raises
            await task
    with takes(0.0, 2.0):
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(running, "orphan") == 0
    connection.terminate()


async def _run(connection: Any, sql: str) -> Any:
    return await connection.execute(sql)


def test_threads_do_not_share_what_was_told(engine: Engine) -> None:
    """Budgets belong to connections; a thread without a deadline is not cut by another's."""
    results: list[Any] = []

    def work() -> None:
        with engine.connect() as connection:
            results.append(tuple(connection.execute(text(LIMITS)).one()))

    with deadline(5.0):
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results == [("0", "0")]
