"""The engine against connections that die, or say something, between two requests.

The race cannot be avoided: the peer's FIN and our next request may cross on the wire. What must hold is that no delivery is
lost by it, that the receiver can tell a repetition (same id), and that nothing is sent on a connection known to be dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer, Peer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.elsewhere import elsewhere
from tests.hostile.engine import (
    BIG,
    IDENTITY,
    LIMIT,
    LOOPBACK,
    SLACK,
    SMALL,
    answered,
    assert_nothing_held,
    fault,
    limits,
    same_descriptors,
    wait_idle,
)

STEP = 0.00025
"""Seconds between two steps of a sweep."""


def ids(server: HostileServer) -> dict[bytes, int]:
    """How often each `webhook-id` reached the server."""
    seen: dict[bytes, int] = {}
    for request in server.requests:
        for line in request.head.split(b"\r\n"):
            if line.lower().startswith(b"webhook-id:"):
                value = line.partition(b":")[2].strip()
                seen[value] = seen.get(value, 0) + 1
    return seen


async def wait_exactly(seconds: float) -> None:
    """Sleep to a fraction of a millisecond; timers of event loops are coarser."""
    until = SYSTEM_CLOCK.monotonic() + seconds
    if seconds > 0.003:
        await asyncio.sleep(seconds - 0.003)
    while SYSTEM_CLOCK.monotonic() < until:  # noqa: ASYNC110  # timers are too coarse
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["stale-close", "stale-reset"])
async def test_no_delivery_is_lost_when_the_close_crosses_the_request(name: str) -> None:
    """The server closes 3 ms after its answer, and we send 0 to 6 ms after it, in steps of 0.25 ms."""
    stale = 0
    steps = 25
    # What the sweep is about is a connection we believe in: learning when the peer closes would spare us the race.
    policy = limits(connect_timeout=2.0, read_timeout=5.0)
    with same_descriptors(), elsewhere(name, seconds=0.003) as server:
        for step in range(steps):
            async with DispatchClient(policy, egress=LOOPBACK) as client:
                first = await client.deliver(server.url, SMALL, {"webhook-id": f"evt_{step}_a"})
                await wait_exactly(step * STEP)
                second = await client.deliver(server.url, SMALL, {"webhook-id": f"evt_{step}_b"})
                for attempt in (first, second):
                    assert attempt.delivered, (step, attempt)
                assert second.retry_safety is RetrySafety.POINTLESS
                stale += second.stale_retry
                assert client.statistics().stale_retries == second.stale_retry
                assert client.statistics().connections_in_use == 0
    seen = ids(server)
    assert len(seen) == 2 * steps, "every id arrived"
    assert max(seen.values()) <= 2
    assert stale > 0, "the sweep has met the race"


@pytest.mark.parametrize("name", ["stale-close-on-request", "stale-reset-on-request"])
@pytest.mark.parametrize("payload", [SMALL, BIG[:300_000]], ids=["small", "large"])
async def test_a_request_swallowed_by_a_dying_connection_is_sent_once_more(name: str, payload: bytes) -> None:
    """The receiver closes 0 to 4 ms after the second request; it may have acted, and can tell the repetition by its id."""
    with same_descriptors():
        for step in range(17):
            async with (
                HostileServer(name, seconds=step * STEP) as server,
                DispatchClient(limits(read_timeout=2.0), egress=LOOPBACK) as client,
            ):
                assert (await client.deliver(server.url, SMALL, {"webhook-id": "evt_a"})).delivered
                attempt = await client.deliver(server.url, payload, {"webhook-id": "evt_b"})
                assert attempt.delivered, (step, attempt)
                assert attempt.stale_retry
                assert not attempt.reused, "the connection that answered was a fresh one"
                assert client.statistics().stale_retries == 1
                assert_nothing_held(client, idle=1)
                assert ids(server) == {b"evt_a": 1, b"evt_b": 2}
                bodies = {request.body for request in server.requests if b"evt_b" in request.head}
                assert bodies == {payload[:8_192]}, "the same bytes"


@pytest.mark.parametrize("headers", [{}, {"x-other": "1"}])
async def test_a_request_nobody_can_deduplicate_is_not_sent_twice(headers: Mapping[str, str]) -> None:
    """Without an id a repetition is a second event to the receiver."""
    async with (
        HostileServer("stale-reset-on-request") as server,
        DispatchClient(limits(), egress=LOOPBACK) as client,
    ):
        assert (await client.deliver(server.url, SMALL, headers)).delivered
        attempt = await client.deliver(server.url, SMALL, headers)
        fault(Phase.WAIT, Reason.CONNECTION_RESET).check(attempt)
        assert attempt.reused
        assert not attempt.stale_retry
        assert server.request_count == 2
        assert_nothing_held(client)


async def test_an_idempotency_key_is_an_id_too() -> None:
    """Users of the client who are no webhook senders know this header."""
    async with (
        HostileServer("stale-reset-on-request") as server,
        DispatchClient(limits(), egress=LOOPBACK) as client,
    ):
        headers = {"Idempotency-Key": "k1"}
        assert (await client.deliver(server.url, SMALL, headers)).delivered
        attempt = await client.deliver(server.url, SMALL, headers)
        assert attempt.delivered
        assert attempt.stale_retry


async def test_a_receiver_that_does_not_deduplicate_gets_no_second_copy() -> None:
    """`Endpoint.deduplicates=False` narrows the retry to requests that were not fully written."""
    async with (
        HostileServer("stale-close-on-request") as server,
        DispatchClient(limits(), egress=LOOPBACK) as client,
    ):
        assert (await client.deliver_admitted(server.url, SMALL, IDENTITY, deduplicates=False)).delivered
        attempt = await client.deliver_admitted(server.url, SMALL, IDENTITY, deduplicates=False)
        fault(Phase.WAIT, Reason.CONNECTION_CLOSED).check(attempt)
        assert server.request_count == 2


async def test_a_second_stale_connection_in_one_attempt_is_not_retried_again() -> None:
    """One retry: a receiver that always dies would else be asked for ever."""

    async with HostileServer("close-before-response") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        fault(Phase.WAIT, Reason.CONNECTION_CLOSED).check(attempt)
        assert server.request_count == 1, "a fresh connection is never stale"


@pytest.mark.parametrize("name", ["stale-close", "stale-reset", "close-after-204"])
async def test_a_connection_closed_long_before_is_never_written_to(name: str) -> None:
    """Its end lies in our buffer: the request must go to a fresh connection without costing anything."""
    with same_descriptors():
        async with HostileServer(name) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
            for number in range(10):
                attempt = await client.deliver(server.url, SMALL, IDENTITY)
                assert attempt.delivered
                assert (attempt.reused, attempt.stale_retry) == (False, False)
                await wait_idle(client, 0)
                assert_nothing_held(client)
                assert server.connections == number + 1
            assert server.request_count == 10


async def test_back_to_back_deliveries_survive_a_close_after_each_answer() -> None:
    """`Connection: keep-alive` and a FIN right behind it: half of all requests failed in more than one client."""
    with elsewhere("stale-close") as server:
        async with DispatchClient(limits(read_timeout=2.0), egress=LOOPBACK) as client:
            for number in range(50):
                attempt = await client.deliver(server.url, SMALL, {"webhook-id": f"evt_{number}"})
                assert attempt.delivered, (number, attempt)
    assert len(ids(server)) == 50


async def test_an_unsolicited_response_is_never_taken_for_the_next_answer() -> None:
    """Else every later delivery on that connection gets its predecessor's answer."""
    with same_descriptors():
        async with (
            HostileServer("unsolicited-response", seconds=0.002) as server,
            DispatchClient(limits(), egress=LOOPBACK) as client,
        ):
            for _ in range(10):
                attempt = await client.deliver(server.url, SMALL, IDENTITY)
                answered(kept=True).check(attempt)
                assert not attempt.reused
                await wait_idle(client, 0)
                assert_nothing_held(client)


async def test_an_unsolicited_response_is_found_by_a_late_loop_too() -> None:
    """It lies in the kernel's buffer, unseen, when the next request is written: forged 200s counted as delivered."""
    with elsewhere("unsolicited-response", seconds=0.01) as server:
        async with DispatchClient(limits(read_timeout=2.0), egress=LOOPBACK) as client:
            for number in range(3):
                attempt = await client.deliver(server.url, SMALL, IDENTITY)
                answered().check(attempt)
                assert not attempt.reused, number
                time.sleep(0.05)  # noqa: ASYNC251 - the loop is late on purpose
            assert server.connections == 3


@pytest.mark.parametrize("name", ["two-responses", "body-on-204", "short-content-length"])
async def test_surplus_bytes_cost_the_connection(name: str) -> None:
    """In the same write as the response, or a moment later: either way nobody knows what they answer."""
    async with HostileServer(name) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        for _ in range(5):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.delivered
            assert attempt.body != b"evil"
            assert not attempt.reused
        assert server.connections == 5
        assert_nothing_held(client)


async def test_an_answer_before_the_request_was_sent_belongs_to_nobody() -> None:
    """On a reused connection a 2xx that comes before our last byte is somebody else's: never delivered."""
    with same_descriptors():
        async with HostileServer("early-200-on-reuse") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
            assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
            attempt = await client.deliver(server.url, BIG, IDENTITY)
            unsolicited = fault((Phase.WRITE, Phase.READ), Reason.RESPONSE_UNSOLICITED)
            replace(unsolicited, status=200).check(attempt)  # what was said, not what it means
            assert attempt.reused
            assert attempt.elapsed < LIMIT
            assert_nothing_held(client)


async def test_the_stale_retry_stays_inside_the_total() -> None:
    """One budget for the attempt: a retry gets what is left, not a new total."""
    policy = limits(read_timeout=0.4, total_timeout=0.6)
    async with HostileServer(stale_then_silent()) as server, DispatchClient(policy, egress=LOOPBACK) as client:
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert attempt.outcome is Outcome.DEADLINE_EXCEEDED, attempt
        assert attempt.reason is Reason.TOTAL_TIMEOUT
        assert attempt.retry_safety is RetrySafety.AMBIGUOUS
        assert attempt.blame is Blame.ENDPOINT
        assert attempt.stale_retry
        assert 0.59 <= attempt.elapsed < 0.6 + SLACK
        assert_nothing_held(client)


def stale_then_silent() -> Behaviour:
    """The first connection dies on its second request, 0.35 s after it; later connections never answer."""
    connections = 0

    async def run(peer: Peer, seconds: float) -> None:
        nonlocal connections
        connections += 1
        await peer.read_request()
        if connections > 1:
            await peer.drain()
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await peer.read_request()
            await peer.pause_exactly(seconds)
            await peer.fin()

    return Behaviour("stale-then-silent", "dies, then is silent", "deadline_exceeded", run, seconds=0.35)
