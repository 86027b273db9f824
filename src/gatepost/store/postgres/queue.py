"""The queue's half of the store on PostgreSQL: each method of the port is one call on a connection of the pool.

Heartbeats go through the session, whose lock tells the others that this process lives. It holds no rows and decides nothing;
the statements are in the modules beside it. Base class of `store.PostgresStore`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gatepost.store.paging import check_limit
from gatepost.store.port import StoreCapabilities
from gatepost.store.postgres import enqueue, fan_outs, outbox, ownership, reads, settle
from gatepost.store.postgres.ownership import Beat
from gatepost.store.postgres.pool import Pool, PoolStatistics
from gatepost.store.postgres.session import Session
from gatepost.store.postgres.time import DATABASE_NOW, StoreClock
from gatepost.store.rows import (
    EnqueueResult,
    EventBody,
    FanOut,
    Heartbeat,
    LaneRows,
    LaneWant,
    NewEvent,
    Node,
    NodeInfo,
    OutboxEvent,
    PartInfo,
    Poke,
    SettleBatch,
    SettleResult,
    Target,
)

_NODE_NUMBER = "SELECT nextval('gp_node_number')"
_TIME = f"SELECT {DATABASE_NOW}"
_PING = "UPDATE gp_meta SET value = value WHERE name = 'parts'"


class PostgresQueue:
    """Producers, owners, and what they read."""

    def __init__(self, pool: Pool, session: Session, clock: StoreClock, capabilities: StoreCapabilities) -> None:
        self.capabilities = capabilities
        self._pool = pool
        self._session = session
        self._clock = clock
        self._outbox_news = outbox.OutboxNews()

    def statistics(self) -> PoolStatistics:
        """How the connections are doing."""
        return self._pool.statistics()

    @property
    def session_pid(self) -> int | None:
        """The server's process of the session, as pg_stat_activity lists it; None while there is none."""
        return self._session.server_pid

    # -- producers

    async def new_node(self) -> int:
        rows = await self._pool.fetch(_NODE_NUMBER)
        return int(rows[0][0])

    async def enqueue(self, batch: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        if not batch:
            return []
        return await self._pool.run_repeated(
            lambda connection, repeated: enqueue.enqueue(
                connection, batch, repeated=repeated, now=self._clock.wall_us()
            )
        )

    async def outbox_put(self, events: Sequence[OutboxEvent]) -> None:
        await self._pool.run(lambda connection: outbox.put(connection, events))
        self._outbox_news.tell()

    async def outbox_peek(self, limit: int) -> Sequence[OutboxEvent]:
        check_limit(limit)
        return await self._pool.run(lambda connection: outbox.peek(connection, limit))

    async def outbox_drop(self, outbox_ids: Collection[int]) -> None:
        await self._pool.run(lambda connection: enqueue.drop_outbox(connection, outbox_ids))

    async def wait_outbox(self) -> None:
        await self._outbox_news.wait()

    # -- ownership

    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        session = self._session
        return await session.run(
            node.name,
            lambda connection: ownership.heartbeat(
                connection,
                Beat(node, held, want, self._clock.wall_us(), session.by_session, session.age),
            ),
        )

    async def parts(self) -> Sequence[PartInfo]:
        return await self._pool.run(lambda connection: ownership.parts(connection, self._clock.wall_us()))

    async def nodes(self) -> Sequence[NodeInfo]:
        # Over the session, which is so proved to answer: `session.ANSWER_MAX`.
        return await self._session.run(None, lambda connection: ownership.nodes(connection, self._clock.wall_us()))

    async def poke(self, pokes: Collection[Poke]) -> None:
        await self._session.poke(pokes)

    async def wait_pokes(self) -> Sequence[Poke]:
        return await self._session.wait_pokes()

    async def release(self, parts: Mapping[int, int]) -> None:
        await self._pool.run(lambda connection: ownership.release(connection, parts))

    # -- owner reads

    async def discover(self, parts: Collection[int]) -> Sequence[tuple[int, int]]:
        return await self._pool.run(lambda connection: reads.discover(connection, parts))

    async def peek(self, wants: Sequence[LaneWant], now: int) -> Sequence[LaneRows]:
        self._pool.check_open()
        if not wants:
            return []
        return await self._pool.run(lambda connection: reads.peek(connection, wants, now))

    async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
        if not ids:
            return {}
        return await self._pool.run(lambda connection: reads.load_events(connection, ids))

    # -- fan-outs too large for one transaction, and learned states

    async def fan_outs(self, parts: Collection[int], limit: int) -> Sequence[FanOut]:
        check_limit(limit)
        return await self._pool.run(lambda connection: fan_outs.fan_outs(connection, parts, limit))

    async def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        return await self._pool.run_repeated(
            lambda connection, repeated: fan_outs.extend(connection, fan_out, targets, after, repeated=repeated)
        )

    async def save_states(self, states: Mapping[int, bytes]) -> None:
        if states:
            await self._pool.run(lambda connection: fan_outs.save_states(connection, states))

    async def load_states(self, endpoints: Collection[int]) -> Mapping[int, bytes]:
        return await self._pool.run(lambda connection: fan_outs.load_states(connection, endpoints))

    # -- owner writes

    async def settle(self, batch: SettleBatch) -> SettleResult:
        return await self._pool.run(lambda connection: settle.settle(connection, batch, self._clock.wall_us()))

    # -- the whole

    @property
    def url(self) -> str:
        """Where it is, for the driver: holds the password."""
        return self._pool.address.url

    async def store_time(self) -> int:
        given = self._clock.wall_us()
        return int((await self._pool.fetch(_TIME))[0][0]) if given is None else given

    async def ping(self) -> None:
        # A write, because a standby, or a disk that is full, still answers reads.
        await self._pool.fetch(_PING)

    async def aclose(self) -> None:
        await self._session.aclose()
        await self._pool.aclose()
