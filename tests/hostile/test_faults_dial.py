"""The engine's way to a connection: several addresses, two families, refusals, black holes, and one budget for all of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.outcome import Outcome
from gatepost.errors import ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.engine import (
    IDENTITY,
    LIMIT,
    LOOPBACK,
    SLACK,
    SMALL,
    FixedResolver,
    answered,
    assert_nothing_held,
    fault,
    limits,
    same_descriptors,
    timed_out,
)

STAGGER = 0.25
"""Seconds between two addresses (RFC 8305)."""


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_ipv6_loopback_is_delivered_to() -> None:
    """Half of the internet."""
    with same_descriptors():
        async with HostileServer("ok", host="::1") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
            assert server.url.startswith("http://[::1]:")
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            answered(kept=True).check(attempt)
            assert attempt.address == f"[::1]:{server.port}"
            assert f"host: [::1]:{server.port}".encode() in server.requests[0].head.lower()
            assert_nothing_held(client, idle=1)


async def test_a_refused_connection_is_safe_and_immediate() -> None:
    """Nothing left us: it may be sent again without a second thought."""
    with same_descriptors():
        async with DispatchClient(limits(), egress=LOOPBACK) as client:
            attempt = await client.deliver(f"http://127.0.0.1:{closed_port()}/", SMALL, IDENTITY)
            fault(Phase.CONNECT, Reason.CONNECTION_REFUSED).check(attempt)
            assert attempt.bytes_sent == 0
            assert_nothing_held(client)


async def test_a_black_holed_first_address_costs_one_stagger_and_then_nothing() -> None:
    """Broken IPv6 must not cost the connect limit, and the family that won is tried first from then on."""
    with same_descriptors():
        async with HostileServer("ok") as good, HostileServer("black-hole", host="::1", port=good.port):
            policy = limits(connect_timeout=2.0, keepalive_expiry=0.0)
            resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
            async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
                spent = []
                for _ in range(5):
                    attempt = await client.deliver(f"http://dual.example.com:{good.port}/", SMALL, IDENTITY)
                    answered(at_least=attempt.elapsed).check(attempt)
                    assert attempt.address == f"127.0.0.1:{good.port}"
                    spent.append(attempt.phases[Phase.CONNECT])
                    assert_nothing_held(client)
            assert STAGGER - 0.01 <= spent[0] < STAGGER + 0.25
            assert max(spent[1:]) < STAGGER / 2
            assert good.connections == 5


async def test_the_second_address_is_tried_while_the_first_is_still_pending() -> None:
    """A first address that answers late still wins if it answers first: nothing is given up by the stagger."""
    async with HostileServer("black-hole") as hole:
        policy = limits(connect_timeout=STAGGER + 0.2)
        resolver = FixedResolver({"twin.example.com": ("127.0.0.1", "::1")})
        async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
            sending = asyncio.create_task(client.deliver(f"http://twin.example.com:{hole.port}/", SMALL, IDENTITY))
            await asyncio.sleep(STAGGER / 2)
            assert client.statistics().connections_open == 1
            # Nobody listens on ::1 with this port: the refusal must not end the pending first attempt.
            attempt = await sending
            timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT, after=STAGGER + 0.2).check(
                attempt
            )
            assert_nothing_held(client)


async def test_a_refusal_moves_on_at_once() -> None:
    """The stagger is for silence; an answer, even a bad one, needs no waiting."""
    async with HostileServer("ok") as good:
        resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
        async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
            attempt = await client.deliver(f"http://dual.example.com:{good.port}/", SMALL, IDENTITY)
            answered(kept=True).check(attempt)
            assert attempt.phases[Phase.CONNECT] < STAGGER / 2


async def test_all_addresses_refused_is_a_refusal() -> None:
    """The last error stands for all of them."""
    resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
    async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
        attempt = await client.deliver(f"http://dual.example.com:{closed_port()}/", SMALL, IDENTITY)
        fault(Phase.CONNECT, Reason.CONNECTION_REFUSED).check(attempt)
        assert_nothing_held(client)


async def test_three_black_holes_share_one_connect_limit() -> None:
    """N addresses must not cost N limits: one name could then hold a slot for minutes."""
    with same_descriptors():
        async with (
            HostileServer("black-hole") as first,
            HostileServer("black-hole", host="127.0.0.2", port=first.port),
            HostileServer("black-hole", host="127.0.0.3", port=first.port),
        ):
            resolver = FixedResolver({"many.example.com": ("127.0.0.1", "127.0.0.2", "127.0.0.3")})
            policy = limits(connect_timeout=0.6)
            async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
                attempt = await client.deliver(f"http://many.example.com:{first.port}/", SMALL, IDENTITY)
                timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT, after=0.6).check(attempt)
                assert_nothing_held(client)


class SlowResolver:
    """Answers, or fails, after a while; counts how often it was asked."""

    def __init__(self, seconds: float, answer: Sequence[str] | ResolveError = ("127.0.0.1",)) -> None:
        self.seconds = seconds
        self.answer = answer
        self.asked = 0

    async def resolve(self, host: str) -> Resolution:
        """Wait, then answer."""
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if isinstance(self.answer, ResolveError):
            raise self.answer
        return Resolution(tuple(self.answer))


@pytest.mark.parametrize("changes", [{"dns_timeout": 0.1}, {"connect_timeout": 0.1}])
async def test_a_stalled_name_is_cut_by_its_own_limit_or_by_the_connect_limit(changes: dict[str, float]) -> None:
    """`connect_timeout` covers the name too: else DNS would be outside every limit."""
    with same_descriptors():
        policy = limits(**changes)
        async with DispatchClient(policy, egress=LOOPBACK, resolver=SlowResolver(30.0)) as client:
            attempt = await client.deliver("http://slow.example.com:9999/", SMALL, IDENTITY)
            timed_out(Outcome.CONNECT_TIMEOUT, Phase.DNS, Reason.DNS_TIMEOUT, after=0.1).check(attempt)
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.connections_open) == (0, 0)


async def test_dns_and_connect_share_one_limit() -> None:
    """A slow name leaves less for the connect, not another limit."""
    async with HostileServer("black-hole") as hole:
        policy = limits(connect_timeout=0.5)
        async with DispatchClient(policy, egress=LOOPBACK, resolver=SlowResolver(0.3)) as client:
            attempt = await client.deliver(f"http://slow.example.com:{hole.port}/", SMALL, IDENTITY)
            timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT, after=0.5).check(attempt)
            assert attempt.phases[Phase.DNS] >= 0.29
            assert_nothing_held(client)


@pytest.mark.parametrize("code", [Reason.DNS_NO_ADDRESS, Reason.DNS_TEMPORARY_FAILURE])
async def test_a_name_without_address_is_a_fault_of_the_path(code: Reason) -> None:
    """The owner's zone, not our request."""
    resolver = SlowResolver(0.0, ResolveError(code, temporary=True))
    async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
        attempt = await client.deliver("http://none.example.com/", SMALL, IDENTITY)
        fault(Phase.DNS, code).check(attempt)
        assert_nothing_held(client)


async def test_many_deliveries_to_a_new_name_ask_once() -> None:
    """A thousand look-ups for one name would starve every other tenant's."""
    async with HostileServer("ok") as server:
        resolver = SlowResolver(0.05)
        policy = limits(max_per_host=20, per_endpoint_concurrency=20)
        async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
            url = f"http://name.example.com:{server.port}/"
            attempts = await asyncio.gather(*(client.deliver(url, SMALL, IDENTITY) for _ in range(20)))
            assert all(attempt.delivered for attempt in attempts)
            assert resolver.asked == 1


async def test_a_hanging_name_delays_nobody_else() -> None:
    """The default executor has six threads; sixty stalled names stop it for everybody."""
    async with (
        HostileServer("ok") as server,
        DispatchClient(limits(max_per_host=1), egress=LOOPBACK, resolver=HalfDead()) as client,
    ):
        stalled = [
            asyncio.create_task(client.deliver(f"http://dead-{number}.example.com/", SMALL, IDENTITY))
            for number in range(60)
        ]
        await asyncio.sleep(0)
        began = SYSTEM_CLOCK.monotonic()
        attempt = await client.deliver(f"http://good.example.com:{server.port}/", SMALL, IDENTITY)
        assert attempt.delivered
        assert SYSTEM_CLOCK.monotonic() - began < LIMIT
        for task in stalled:
            ended = await task
            assert (ended.phase, ended.reason) == (Phase.DNS, Reason.DNS_TIMEOUT)
            assert ended.elapsed < LIMIT + SLACK
        assert client.statistics().connections_in_use == 0


class HalfDead:
    """Resolves good names at once and no others ever."""

    async def resolve(self, host: str) -> Resolution:
        """Answer for `good.`."""
        if not host.startswith("good."):
            await asyncio.Event().wait()
        return Resolution(("127.0.0.1",))
