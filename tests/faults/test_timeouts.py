"""Fault cases of class timeouts: every limit is real, none multiplies, and a limit never swallows a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer, Peer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import PATIENT, Heard, ScriptedResolver, delivering, head
from tests.hostile.engine import (
    BIG,
    IDENTITY,
    LOOPBACK,
    SLACK,
    SMALL,
    Certificates,
    assert_nothing_held,
    limits,
    same_descriptors,
    timed_out,
)


async def turns(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_timeout_03_a_cancellation_in_the_turn_of_a_grant_is_not_lost() -> None:
    """Place granted and task cancelled, in every order of turns, 400 times: the books balance after each.

    The case asks for 10,000 rounds; 400 pass through every order of turns and keep the test within a second or two.
    """
    rounds = 400
    async with delivering("ok", limits(**{**PATIENT, "max_per_host": 1, "per_endpoint_concurrency": 9})) as (
        server,
        client,
    ):
        for number in range(rounds):
            first = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            second = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            await turns(number % 20)
            second.cancel()
            assert (await first).delivered
            ended = (await asyncio.gather(second, return_exceptions=True))[0]
            assert isinstance(ended, asyncio.CancelledError) or ended.delivered  # type: ignore[union-attr]  # an Attempt
            assert not second.cancelled() or isinstance(ended, asyncio.CancelledError)
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.connections_in_use) == (0, 0)
            assert statistics.connections_open == statistics.connections_idle
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_timeout_04_limit_and_cancellation_in_one_turn_end_once(cancel_first: bool) -> None:
    """Both orders in the same turn of the loop: observed once, never both, never neither."""
    heard = Heard()
    with same_descriptors():
        async with (
            HostileServer("silence") as server,
            DispatchClient(limits(read_timeout=0.05), egress=LOOPBACK, observer=heard) as client,
        ):
            for _ in range(5):
                task = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
                while not any(flight.phase is Phase.WAIT for flight in client.flights):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                (flight,) = client.flights
                now = SYSTEM_CLOCK.monotonic()
                if cancel_first:
                    task.cancel()
                    flight.on_limit(now, lagged=False)
                else:
                    flight.on_limit(now, lagged=False)
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert_nothing_held(client)
    assert len(heard.attempts) == 5
    assert {seen.retry_safety for seen in heard.attempts} == {"ambiguous"}


async def test_timeout_05_a_peer_that_never_answers_our_close_does_not_stretch_a_limit() -> None:
    """The limit fires in the body, inside TLS: closing is one call and waits for nobody."""
    certificates = Certificates.make()
    with same_descriptors():
        async with (
            HostileServer("long-content-length-open", tls_context=certificates.server("127.0.0.1")) as server,
            DispatchClient(limits(**{**PATIENT, "read_timeout": 0.3}), egress=LOOPBACK) as client,
        ):
            attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
            assert attempt.delivered
            assert attempt.reason is Reason.RESPONSE_TIMEOUT
            assert attempt.phases[Phase.WAIT] + attempt.phases.get(Phase.READ, 0.0) < 0.3 + 0.25
            assert_nothing_held(client)
            await server.wait_disconnected()


ODD = [
    ("connect_timeout", 0.137, "black-hole", Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT, SMALL),
    ("tls_timeout", 0.123, "tls-stall", Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT, SMALL),
    ("write_timeout", 0.141, "never-reads", Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT, BIG),
    ("read_timeout", 0.127, "silence", Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT, SMALL),
    ("total_timeout", 0.111, "silence", Outcome.DEADLINE_EXCEEDED, Phase.WAIT, Reason.TOTAL_TIMEOUT, SMALL),
]


@pytest.mark.parametrize("case", ODD, ids=lambda case: case[0])
async def test_timeout_06_each_configured_limit_is_the_one_that_fires(
    case: tuple[str, float, str, Outcome, Phase, Reason, bytes],
) -> None:
    """An odd value for one limit, long ones for the rest: what is measured follows it. A limit lost in a rewrite shows here."""
    name, value, behaviour, outcome, phase, reason, payload = case
    with same_descriptors():
        async with (
            HostileServer(behaviour) as server,
            DispatchClient(limits(**{**PATIENT, name: value}), egress=LOOPBACK) as client,
        ):
            timed_out(outcome, phase, reason, after=value).check(await client.deliver(server.url, payload, IDENTITY))
            assert_nothing_held(client)


async def test_timeout_06_the_limits_on_names_and_on_waiting_fire_as_configured() -> None:
    """dns, admission and pool, each with the others out of the way."""
    resolver = ScriptedResolver(("127.0.0.1",), seconds=30.0)
    async with DispatchClient(
        limits(**{**PATIENT, "dns_timeout": 0.119}), egress=LOOPBACK, resolver=resolver
    ) as client:
        timed_out(Outcome.CONNECT_TIMEOUT, Phase.DNS, Reason.DNS_TIMEOUT, after=0.119).check(
            await client.deliver("http://slow.example.com/", SMALL, IDENTITY)
        )
    for changes, outcome, phase, reason in (
        (
            {"per_endpoint_concurrency": 1, "admission_timeout": 0.109},
            Outcome.SHED,
            Phase.ADMISSION,
            Reason.ADMISSION_TIMEOUT,
        ),
        ({"max_per_host": 1, "pool_timeout": 0.109}, Outcome.POOL_TIMEOUT, Phase.POOL, Reason.POOL_HOST_FULL),
    ):
        async with delivering("silence", limits(**{**PATIENT, **changes})) as (server, client):
            holder = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            await asyncio.sleep(0.02)
            timed_out(outcome, phase, reason, after=0.109).check(await client.deliver(server.url, SMALL, IDENTITY))
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)


async def test_timeout_07_a_stale_retry_gets_only_what_is_left_of_the_total() -> None:
    """The pooled connection swallows the request for 150 ms and dies; the fresh one answers after 350 ms of a total of 400."""
    served = 0

    async def run(peer: Peer, seconds: float) -> None:
        nonlocal served
        served += 1
        if served == 1:
            await peer.read_request()
            await peer.send(head("Content-Length: 0"))
            await peer.read_request()
            await peer.pause(0.15)
            peer.rst()
        else:
            await peer.read_request()
            await peer.pause(0.35)
            await peer.send(head("Content-Length: 0"))

    policy = limits(**{**PATIENT, "total_timeout": 0.4})
    async with delivering(Behaviour("stale-slow", "dies, then is slow", "", run), policy) as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert attempt.stale_retry
        timed_out(Outcome.DEADLINE_EXCEEDED, Phase.WAIT, Reason.TOTAL_TIMEOUT, after=0.4).check(attempt)
        assert attempt.elapsed < 0.4 + SLACK
        assert server.connections == 2
        assert_nothing_held(client)


async def test_timeout_07_redirects_share_one_total() -> None:
    """Five hops of 150 ms each with a total of 400: each hop gets only what is left, and no limit starts anew."""
    policy = limits(**{**PATIENT, "total_timeout": 0.4, "redirect_limit": 5, "follow_redirects": True})
    async with delivering("redirect-loop", policy, seconds=0.15) as (server, client):
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        timed_out(Outcome.DEADLINE_EXCEEDED, Phase.WAIT, Reason.TOTAL_TIMEOUT, after=0.4).check(attempt)
        assert attempt.elapsed < 0.4 + SLACK
        assert server.request_count == 3
        assert_nothing_held(client)
