"""Faults that are our own: a late event loop, no descriptors left. The endpoint must not be blamed, and nothing may leak."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.elsewhere import elsewhere
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, answered, assert_nothing_held, limits, same_descriptors


def block(seconds: float) -> None:
    """What a careless callback does to an event loop."""
    time.sleep(seconds)


async def test_an_answer_that_came_in_time_counts_even_if_our_loop_was_late() -> None:
    """The bytes are in our buffer when the limit is looked at: the endpoint kept its time, we did not."""
    with elsewhere("slow-ok", seconds=0.1) as server:
        async with DispatchClient(limits(read_timeout=0.3), egress=LOOPBACK) as client:
            sending = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            await asyncio.sleep(0.05)
            block(0.6)
            attempt = await sending
            assert attempt.delivered, attempt
            assert_nothing_held(client, idle=1)


async def test_a_late_loop_gives_back_the_time_it_took_and_says_so() -> None:
    """The answer was on its way while we slept; it gets the time we took, and the outcome is marked as ours if it fails."""
    with elsewhere("slow-ok", seconds=0.55) as server:
        async with DispatchClient(limits(read_timeout=0.4), egress=LOOPBACK) as client:
            sending = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            await asyncio.sleep(0.05)
            block(0.3)
            attempt = await sending
            assert attempt.delivered, attempt
            assert attempt.elapsed > 0.5
            assert client.statistics().late_sweeps >= 1


async def test_a_late_loop_extends_no_limit_beyond_itself() -> None:
    """Twice the limit at most: a stalled process must not turn limits into wishes."""
    with elsewhere("silence") as server:
        async with DispatchClient(limits(read_timeout=0.2), egress=LOOPBACK) as client:
            sending = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
            await asyncio.sleep(0.05)
            for _ in range(8):
                block(0.12)
                await asyncio.sleep(0)
            attempt = await sending
            assert attempt.outcome is Outcome.READ_TIMEOUT
            assert attempt.lagged
            assert attempt.elapsed < 1.2
            assert_nothing_held(client)


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """The next one that is asked for is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_running_out_of_descriptors_is_ours_to_answer_for() -> None:
    """Blaming thousands of endpoints for our own ulimit would open every breaker at once."""
    with same_descriptors():
        async with HostileServer("ok") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
            with no_more_descriptors():
                attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.outcome is Outcome.TRANSPORT_ERROR, attempt
            assert (attempt.phase, attempt.reason) == (Phase.CONNECT, Reason.LOCAL_RESOURCES)
            assert (attempt.blame, attempt.retry_safety) == (Blame.US, RetrySafety.SAFE)
            assert_nothing_held(client)
            answered(kept=True).check(await client.deliver(server.url, SMALL, IDENTITY))


class Loud:
    """An observer with a bug."""

    def attempt_finished(self, observation: object) -> None:
        """Raise."""
        raise RuntimeError("bug in an observer")

    def delivery_decided(self, observation: object) -> None:
        """Never called here."""

    def operational(self, observation: object) -> None:
        """Never called here."""


async def test_a_bug_in_an_observer_ends_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry is a guest."""
    async with (
        HostileServer("ok") as server,
        DispatchClient(limits(), egress=LOOPBACK, observer=Loud()) as client,
    ):
        for _ in range(3):
            assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        assert_nothing_held(client, idle=1)
    assert caplog.messages


async def test_the_request_asks_for_nothing_it_cannot_handle() -> None:
    """No `Expect`, no compression, no cookies; one Host, one Content-Length, and the body exactly as given."""
    async with HostileServer("ok") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        await client.deliver(server.url + "a/b?c=d", b"\x00exact\xff", IDENTITY)
        await client.deliver(server.url, b"", IDENTITY)
        first, empty = server.requests
    lines = first.head.decode().split("\r\n")
    assert lines[0] == "POST /a/b?c=d HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in lines[1:-2]]
    assert len(names) == len(set(names))
    assert not {"expect", "cookie", "connection", "transfer-encoding"} & set(names)
    assert "accept-encoding: identity" in (line.lower() for line in lines)
    assert first.body == b"\x00exact\xff"
    assert b"content-length: 0\r\n" in empty.head.lower()
