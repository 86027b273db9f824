"""Fault cases of class keepalive: no delivery is lost to a connection that died, and none is sent on one known to be dead."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gatepost.delivery.outcome import Blame, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering
from gatepost.wire.reasons import Reason
from tests.faults.kit import PATIENT, delivering, head
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    assert_nothing_held,
    limits,
    same_descriptors,
    wait_idle,
)

OK = head("Content-Length: 2") + b"ok"


async def test_keepalive_01_a_close_that_crosses_the_next_request_loses_no_delivery() -> None:
    """The receiver closes 50 ms after its answer; the next request leaves 45 to 55 ms after it. Same id, same bytes."""
    gaps = [0.045 + step * 0.0005 for step in range(21)]
    with same_descriptors():
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(DispatchClient(limits(**PATIENT), egress=LOOPBACK))

            async def visit(gap: float) -> HostileServer:
                server = await stack.enter_async_context(HostileServer("stale-close", seconds=0.05))
                for number in range(2):
                    attempt = await client.deliver(server.url, SMALL, {"webhook-id": f"evt_{number}"})
                    assert attempt.delivered, attempt
                    if number == 0:
                        await asyncio.sleep(gap)
                return server

            for server in await asyncio.gather(*map(visit, gaps)):
                seen = {request.head for request in server.requests if b"evt_1" in request.head}
                assert len(seen) == 1, "a repetition is the same request"
                assert {request.body for request in server.requests} == {SMALL}


async def test_keepalive_02_a_connection_seen_dead_is_not_written_to() -> None:
    """The FIN lies in our buffer long before the next request: no attempt is charged and no byte is wasted."""
    async with delivering("stale-close", seconds=0.02) as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        await wait_idle(client, 0)
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert attempt.delivered
        assert (attempt.reused, attempt.stale_retry) == (False, False)
        assert server.request_count == 2
        assert client.statistics().stale_retries == 0


@pytest.mark.parametrize("deduplicates", [True, False])
async def test_keepalive_03_a_written_request_is_repeated_only_where_the_receiver_can_tell(deduplicates: bool) -> None:
    """One retry inside the attempt when the request carries an id, none otherwise; never both it and another."""
    async with delivering("stale-reset-on-request") as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver(server.url, SMALL, IDENTITY if deduplicates else {})
        if deduplicates:
            assert attempt.delivered
            assert attempt.stale_retry
            assert server.request_count == 3
        else:
            assert not attempt.delivered
            assert (attempt.reason, attempt.retry_safety) == (Reason.CONNECTION_RESET, RetrySafety.AMBIGUOUS)
            assert not attempt.stale_retry
            assert server.request_count == 2


async def test_keepalive_04_requests_at_the_end_of_the_servers_idle_time_all_arrive() -> None:
    """Forty-one gaps around an unannounced idle limit of 100 ms, five rounds each."""
    gaps = [0.090 + step * 0.0005 for step in range(41)]
    with same_descriptors():
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(DispatchClient(limits(**PATIENT), egress=LOOPBACK))

            async def visit(gap: float) -> int:
                server = await stack.enter_async_context(HostileServer("idle-limit", seconds=0.1))
                for _ in range(5):
                    attempt = await client.deliver(server.url, SMALL, IDENTITY)
                    assert attempt.delivered, attempt
                    await asyncio.sleep(gap)
                return server.connections

            assert max(await asyncio.gather(*map(visit, gaps))) <= 5, "at most one extra connection per gap"


HINTS = [
    ("timeout=1, max=3", False),
    ("Timeout = 1", False),
    ("max=3,timeout=1", False),
    ('timeout="1"', False),
    ("garbage", True),
    ("timeout=99999999999", True),
    ("timeout=30", True),
]
"""A hint, and whether the connection is kept: one second is taken off, and what cannot be read says nothing."""


async def test_keepalive_05_an_announced_limit_is_honoured_less_its_margin() -> None:
    """Fifty deliveries in all, and not one reset; nonsense is ignored and a huge number is capped by our own limit."""
    with same_descriptors():
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(DispatchClient(limits(**PATIENT), egress=LOOPBACK))
            for hint, kept in HINTS:
                server = await stack.enter_async_context(
                    HostileServer(answering(head(f"Keep-Alive: {hint}", "Content-Length: 0")))
                )
                for _ in range(7):
                    attempt = await client.deliver(server.url, SMALL, IDENTITY)
                    assert attempt.delivered
                    assert not attempt.stale_retry
                assert server.connections == (1 if kept else 7), hint


async def test_keepalive_05_a_server_that_allows_three_requests_gets_three() -> None:
    """`max=3` and it closes after three: the fourth must not be tried there."""

    async def run(peer: Peer, seconds: float) -> None:
        for _ in range(3):
            await peer.read_request()
            await peer.send(head("Keep-Alive: timeout=30, max=3", "Content-Length: 0"))
        await peer.fin()

    async with delivering(Behaviour("three", "three requests", "", run)) as (server, client):
        for _ in range(9):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert not attempt.stale_retry
        assert server.connections == 3


@pytest.mark.parametrize("hint", ["timeout=0", "timeout=1"])
async def test_keepalive_06_the_tightest_hint_keeps_nothing(hint: str) -> None:
    """Less than the margin is not "no limit"."""
    behaviour = answering(head(f"Keep-Alive: {hint}", "Content-Length: 0"), close=True)
    async with delivering(behaviour) as (server, client):
        for _ in range(3):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert not attempt.stale_retry
            assert_nothing_held(client)
        assert server.connections == 3


async def test_keepalive_07_a_keep_alive_that_is_a_lie_charges_no_attempt() -> None:
    """The FIN follows the answer at once; twenty deliveries, twenty connections, twenty deliveries."""
    behaviour = answering(head("Connection: keep-alive", "Content-Length: 2") + b"ok", close=True)
    async with delivering(behaviour, limits(**PATIENT)) as (server, client):
        for _ in range(20):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered, attempt
        assert server.connections == 20


@pytest.mark.parametrize("variant", ["plain", "tls", "tls-without-notify"])
async def test_keepalive_08_a_204_and_a_fin_in_one_go_are_one_connection_each(variant: str) -> None:
    """In TLS with and without its closing alert; the error classes must not differ."""

    async def run(peer: Peer, seconds: float) -> None:
        await peer.read_request()
        await peer.send(head("Connection: keep-alive", status="204 No Content"))
        await peer.fin(close_notify=variant == "tls")

    certificates = Certificates.make()
    tls = variant != "plain"
    with same_descriptors():
        async with (
            HostileServer(
                Behaviour("204", "204 and FIN", "", run),
                tls_context=certificates.server("127.0.0.1") if tls else None,
            ) as server,
            DispatchClient(limits(**PATIENT), egress=LOOPBACK) as client,
        ):
            for _ in range(5):
                attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile if tls else None)
                assert (attempt.status, attempt.delivered) == (204, True), attempt
            assert server.connections == 5


async def test_keepalive_09_what_expires_while_it_is_asked_for_is_never_handed_out() -> None:
    """Expiry and request meet in the same turns of the loop, many times over."""
    async with delivering("ok", limits(**PATIENT, keepalive_expiry=0.004)) as (server, client):
        for number in range(200):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert not attempt.stale_retry
            await asyncio.sleep(0.003 + (number % 8) * 0.00025)
        assert server.request_count == 200


async def test_keepalive_10_a_reset_idle_connection_leaves_nothing_behind() -> None:
    """Two deliveries after the reset, both on fresh connections, both good."""
    async with delivering("stale-reset", seconds=0.02) as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        await wait_idle(client, 0)
        for _ in range(2):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert attempt.blame is Blame.ENDPOINT
            assert not attempt.reused
            await wait_idle(client, 0)
        assert_nothing_held(client)
