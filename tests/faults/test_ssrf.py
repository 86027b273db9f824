"""Fault case of class ssrf: every spelling of a forbidden address is refused before a packet leaves."""

from __future__ import annotations

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.reasons import Reason
from tests.faults.kit import ScriptedResolver
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, assert_nothing_held, limits

DEFAULT = EgressPolicy(schemes=("http", "https"))
LITERALS = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "017700000001", "127.0.0.1.",
    "0", "0.0.0.0", "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[fec0::1]", "[fc00::1]", "[ff02::1]",
    "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "localhost", "LOCALHOST.", "127。0。0。1", "①②⑦.0.0.1", "127.0.0.1%00", "1️27.0.0.1",
]  # fmt: skip
ANSWERS = [
    ["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"], ["::1"], ["2606:4700::1", "fe80::1"], ["::ffff:127.0.0.1"],
    ["8.8.8.8", "::ffff:8.8.8.8"], ["fe80::1%eth0"], ["169.254.169.254"], ["not an address"],
]  # fmt: skip


@pytest.mark.parametrize("host", LITERALS)
async def test_ssrf_02_every_spelling_of_an_inner_address_is_refused(host: str) -> None:
    """The receiver listens on every port that could be meant; it sees no connection."""
    async with HostileServer("ok") as canary:
        async with DispatchClient(limits(), egress=DEFAULT) as client:
            attempt = await client.deliver(f"http://{host}:{canary.port}/", SMALL, IDENTITY)
            assert attempt.outcome is Outcome.EGRESS_DENIED, attempt
            assert (attempt.retry_safety, attempt.blame) == (RetrySafety.POINTLESS, Blame.ENDPOINT)
            assert_nothing_held(client)
        assert canary.connections == 0


@pytest.mark.parametrize("answers", ANSWERS, ids=",".join)
async def test_ssrf_02_one_forbidden_answer_refuses_the_name(answers: list[str]) -> None:
    """All or nothing, decided once: a mixed answer is refused whole."""
    async with HostileServer("ok") as canary:
        resolver = ScriptedResolver(answers)
        async with DispatchClient(limits(), egress=DEFAULT, resolver=resolver) as client:
            attempt = await client.deliver(f"http://mixed.example.com:{canary.port}/", SMALL, IDENTITY)
            assert attempt.outcome is Outcome.EGRESS_DENIED, attempt
            assert resolver.asked == ["mixed.example.com"]
            assert_nothing_held(client)
        assert canary.connections == 0


async def test_ssrf_02_a_pooled_connection_is_checked_again_when_the_policy_changed() -> None:
    """An operator who closes a network means the connections that are open too: by name and by address."""
    closed = EgressPolicy(schemes=("http", "https"), allow_cidrs=("127.0.0.0/8",), deny_cidrs=("127.0.0.1/32",))
    for host in ("127.0.0.1", "pooled.example.com"):
        async with HostileServer("ok") as server:
            resolver = ScriptedResolver(("127.0.0.1",))
            async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
                url = f"http://{host}:{server.port}/"
                assert (await client.deliver(url, SMALL, IDENTITY)).delivered
                assert_nothing_held(client, idle=1)
                client.egress = closed
                attempt = await client.deliver(url, SMALL, IDENTITY)
                assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, Reason.ADDR_OPERATOR_DENIED)
                if host != "127.0.0.1":  # a literal is refused before the pool is asked
                    assert_nothing_held(client)
                    await server.wait_disconnected()
            assert server.request_count == 1
