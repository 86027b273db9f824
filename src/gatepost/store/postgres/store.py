"""The store on PostgreSQL: puts the pool, the session and the halves of the port together. Opened by `gatepost.store.open`.

Many dispatcher processes share one database; each opens one of these, with a few connections and one session that says that the
process lives (`session`).
"""

from __future__ import annotations

from gatepost.clock import Clock
from gatepost.store.port import StoreCapabilities
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.keycheck import check_keys
from gatepost.store.postgres.operators import PostgresOperators
from gatepost.store.postgres.pool import Connection, Pool, PoolLimits
from gatepost.store.postgres.queue import PostgresQueue
from gatepost.store.postgres.registry import PostgresRegistry
from gatepost.store.postgres.schema import prepare
from gatepost.store.postgres.session import Session
from gatepost.store.postgres.time import StoreClock
from gatepost.store.secretbox import SecretBox

_PARTS = "SELECT value FROM gp_meta WHERE name = 'parts'"
# What the server promises of a commit; with standbys named, it waits for them too.
_REPLICATED = """
SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')"""


class PostgresStore(PostgresRegistry, PostgresOperators, PostgresQueue):
    """Both ports on one database. Make it with `open`."""

    def __init__(
        self, pool: Pool, session: Session, clock: StoreClock, box: SecretBox, capabilities: StoreCapabilities
    ) -> None:
        PostgresRegistry.__init__(self, pool, box)
        PostgresOperators.__init__(self, pool, clock)
        PostgresQueue.__init__(self, pool, session, clock, capabilities)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        box: SecretBox,
        clock: Clock | None = None,
        create: bool = False,
        limits: PoolLimits | None = None,
    ) -> PostgresStore:
        """Connect and check the schema; `create` makes it in an empty database.

        `clock` None: all times are the database's; a test gives its own. The session's connection comes on top of `limits`.
        Raises `ConfigurationError` for a URL or a key that cannot be right, `SchemaMismatch` and `StoreError`.
        """
        address = postgres_address(url)
        pool = Pool(address, limits)

        async def check(connection: Connection) -> StoreCapabilities:
            await prepare(connection, address.place, create=create)
            await check_keys(connection, box)
            replicated = await connection.fetchval(_REPLICATED)
            parts = await connection.fetchval(_PARTS)
            return StoreCapabilities("replicated" if replicated else "fsync", parts, shared=True)

        try:
            capabilities = await pool.run(check)
        except BaseException:
            await pool.aclose()
            raise
        store_clock = StoreClock(clock)
        return cls(pool, Session(pool, store_clock), store_clock, box, capabilities)

    def __repr__(self) -> str:
        return f"PostgresStore({self._pool!r}, {self._session!r})"
