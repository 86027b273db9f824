"""How long the engine believes in an idle connection: what the receiver announces, what it does, and our own limits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer, answering
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, assert_nothing_held, limits, same_descriptors, wait_idle

ANNOUNCED = [
    ("timeout=30", True),
    ("timeout=5, max=100", True),
    ("timeout=99999999999", True),
    ("timeout=999999999", True),
    ("garbage", True),
    ("timeout=", True),
    ("timeout=-1", True),
    ("timeout=soon", True),
    ("timeout=1", False),
    ("timeout=0", False),
    ("Timeout = 1", False),
    ('timeout="1"', False),
    ("max=3,timeout=1", False),
    ("timeout=30, max=0", False),
    ("timeout=30, max=1", False),
]
"""A `Keep-Alive` header's value, and whether the connection may be kept: one second is taken off as margin."""


@pytest.mark.parametrize(("value", "kept"), ANNOUNCED, ids=[case[0] for case in ANNOUNCED])
async def test_an_announced_keep_alive_is_honoured(value: str, kept: bool) -> None:
    """A receiver that says when it will close must not be answered with a reset; nonsense is ignored."""
    answer = f"HTTP/1.1 200 OK\r\nKeep-Alive: {value}\r\nContent-Length: 0\r\n\r\n".encode()
    async with HostileServer(answering(answer)) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        for _ in range(2):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert_nothing_held(client, idle=int(kept))
        assert server.connections == (1 if kept else 2)


async def test_a_receiver_that_allows_three_requests_gets_three() -> None:
    """`max=N` counts down in some servers and is constant in others; neither may see a request too many."""
    answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=30, max=3\r\nContent-Length: 0\r\n\r\n"
    async with HostileServer(answering(answer)) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        reused = [(await client.deliver(server.url, SMALL, IDENTITY)).reused for _ in range(6)]
        assert reused == [False, True, True, False, True, True]
        assert server.connections == 2


async def test_a_silent_idle_limit_costs_no_delivery() -> None:
    """The receiver closes 100 ms after its answer and tells nobody; we come back 90 to 110 ms after it."""
    gaps = [0.090 + step * 0.001 for step in range(21)]
    with same_descriptors():
        async with AsyncExitStack() as stack:
            policy = limits(connect_timeout=2.0, read_timeout=2.0)
            client = await stack.enter_async_context(DispatchClient(policy, egress=LOOPBACK))

            async def visit(gap: float) -> int:
                server = await stack.enter_async_context(HostileServer("idle-limit", seconds=0.1))
                for _ in range(6):
                    attempt = await client.deliver(server.url, SMALL, IDENTITY)
                    assert attempt.delivered, attempt
                    await asyncio.sleep(gap)
                return server.connections

            connections = await asyncio.gather(*(visit(gap) for gap in gaps))
            assert max(connections) <= 6


async def test_a_close_once_observed_is_not_run_into_again() -> None:
    """0.8 of the shortest idle age at which the peer closed: after the first close the race is avoided, not won."""
    async with (
        HostileServer("idle-limit", seconds=1.0) as server,
        DispatchClient(limits(), egress=LOOPBACK) as client,
    ):
        await client.deliver(server.url, SMALL, IDENTITY)
        await wait_idle(client, 0)
        await client.deliver(server.url, SMALL, IDENTITY)
        assert_nothing_held(client, idle=1)
        await asyncio.sleep(0.2)
        assert (await client.deliver(server.url, SMALL, IDENTITY)).reused
        await asyncio.sleep(0.85)
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert not attempt.reused
        assert not attempt.stale_retry


@pytest.mark.parametrize("changes", [{"keepalive_expiry": 0.05}, {"max_connection_age": 0.05}])
async def test_our_own_limits_end_an_idle_connection(changes: dict[str, float]) -> None:
    """The age follows DNS changes, the expiry keeps the sockets few."""
    async with HostileServer("ok") as server, DispatchClient(limits(**changes), egress=LOOPBACK) as client:
        await client.deliver(server.url, SMALL, IDENTITY)
        assert_nothing_held(client, idle=1)
        await asyncio.sleep(0.06)
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert not attempt.reused
        assert server.connections == 2


async def test_a_zero_expiry_keeps_nothing() -> None:
    """Said in so many words by the policy."""
    async with HostileServer("ok") as server, DispatchClient(limits(keepalive_expiry=0.0), egress=LOOPBACK) as client:
        for _ in range(3):
            assert not (await client.deliver(server.url, SMALL, IDENTITY)).reused
            assert_nothing_held(client)
        await server.wait_disconnected()


async def test_asking_at_the_moment_of_expiry_never_gets_a_dead_connection() -> None:
    """Expiry and request in the same turn of the loop, many times over."""
    policy = limits(keepalive_expiry=0.005, connect_timeout=2.0, read_timeout=2.0)
    async with HostileServer("ok") as server, DispatchClient(policy, egress=LOOPBACK) as client:
        for number in range(100):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert not attempt.stale_retry
            await asyncio.sleep(0.004 + (number % 8) * 0.00025)
        assert server.request_count == 100


async def test_forgetting_a_host_closes_idle_connections_at_once_and_busy_ones_later() -> None:
    """An endpoint's certificate or address has changed: nothing may go to the old one any more."""
    async with HostileServer("slow-ok", seconds=0.05) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        origin = server.url.rstrip("/")
        await client.deliver(server.url, SMALL, IDENTITY)
        assert_nothing_held(client, idle=1)
        client.forget(origin)
        assert_nothing_held(client)
        await server.wait_disconnected()
        busy = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
        await asyncio.sleep(0.02)
        client.forget(origin)
        assert (await busy).delivered
        assert_nothing_held(client)
        await server.wait_disconnected()
