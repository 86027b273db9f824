"""Fault cases of class connect: several addresses share one limit, the stagger works, and refusals move on at once."""

from __future__ import annotations

import asyncio

from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import ScriptedResolver, closed_port
from tests.hostile.engine import (
    IDENTITY,
    LIMIT,
    LOOPBACK,
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


async def test_connect_01_three_black_holes_share_one_connect_limit() -> None:
    """The limit was once handed to each address in turn. The record names the address tried last, not a list of all."""
    addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    with same_descriptors():
        async with (
            HostileServer("black-hole") as first,
            HostileServer("black-hole", host=addresses[1], port=first.port),
            HostileServer("black-hole", host=addresses[2], port=first.port),
            DispatchClient(
                limits(), egress=LOOPBACK, resolver=FixedResolver({"many.example.com": addresses})
            ) as client,
        ):
            attempt = await client.deliver(f"http://many.example.com:{first.port}/", SMALL, IDENTITY)
            timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT).check(attempt)
            assert attempt.elapsed < 2 * LIMIT, "one limit, not three"
            assert attempt.bytes_sent == 0
            assert attempt.address is not None
            assert_nothing_held(client)


async def test_connect_03_a_black_holed_ipv6_costs_one_stagger_and_later_deliveries_none() -> None:
    """Happy Eyeballs must work on the path that is used. Our stagger is 250 ms (RFC 8305), the case's 50 ms is not offered."""
    with same_descriptors():
        async with HostileServer("ok") as good, HostileServer("black-hole", host="::1", port=good.port):
            resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
            policy = limits(connect_timeout=2.0, keepalive_expiry=0.0)
            async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
                spent = []
                for _ in range(5):
                    attempt = await client.deliver(f"http://dual.example.com:{good.port}/", SMALL, IDENTITY)
                    assert attempt.delivered
                    spent.append(attempt.phases[Phase.CONNECT])
                    assert_nothing_held(client)  # the losing connect is closed at once: descriptors are counted too
        assert spent[0] < 2 * STAGGER
        assert max(spent[1:]) < STAGGER / 2, "the family that won goes first"


async def test_connect_04_the_second_address_is_tried_while_the_first_is_pending() -> None:
    """An option that cannot take effect is worse than none. Seen by the receiver: it is connected to before the limit."""
    with same_descriptors():
        async with HostileServer("ok") as good, HostileServer("black-hole", host="::1", port=good.port):
            resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
            async with DispatchClient(limits(connect_timeout=5.0), egress=LOOPBACK, resolver=resolver) as client:
                sending = asyncio.create_task(client.deliver(f"http://dual.example.com:{good.port}/", SMALL, IDENTITY))
                await asyncio.sleep(STAGGER / 2)
                assert good.connections == 0
                assert (await sending).delivered
                assert good.connections == 1


async def test_connect_06_every_address_is_tried_before_a_refusal_is_told() -> None:
    """A receiver on IPv4 only is the commonest dual-stack mistake; a refusal moves on without the stagger."""
    with same_descriptors():
        async with HostileServer("ok") as good:
            resolver = FixedResolver({"dual.example.com": ("::1", "127.0.0.1")})
            async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
                attempt = await client.deliver(f"http://dual.example.com:{good.port}/", SMALL, IDENTITY)
                answered(kept=True).check(attempt)
                assert attempt.phases[Phase.CONNECT] < STAGGER / 2
                refused = await client.deliver(f"http://dual.example.com:{closed_port()}/", SMALL, IDENTITY)
                fault(Phase.CONNECT, Reason.CONNECTION_REFUSED).check(refused)
                assert_nothing_held(client, idle=1)


async def test_connect_06_more_than_four_addresses_are_not_all_tried_but_all_are_checked() -> None:
    """The same kind: a zone may answer with dozens, and one attempt must not walk through them all."""
    addresses = tuple(f"127.0.0.{number}" for number in range(2, 12))
    resolver = ScriptedResolver(addresses)
    async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
        attempt = await client.deliver(f"http://wide.example.com:{closed_port()}/", SMALL, IDENTITY)
        fault(Phase.CONNECT, Reason.CONNECTION_REFUSED).check(attempt)
        assert attempt.address is not None
        assert attempt.address.startswith("127.0.0.5")
