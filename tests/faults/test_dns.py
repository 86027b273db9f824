"""Fault cases of class dns: shared look-ups survive their first caller, failures keep their names, and changes are followed."""

from __future__ import annotations

import asyncio
import threading

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.decide import DeliveryRules, RetryAt, decide
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution, ThreadResolver
from gatepost.testing.hostile import HostileServer, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import PATIENT, ScriptedResolver, head, not_found
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    assert_nothing_held,
    fault,
    limits,
    same_descriptors,
    timed_out,
)

NOW = 1_800_000_000_000_000


async def test_dns_02_the_end_of_who_asked_first_does_not_end_the_look_up() -> None:
    """The first caller's limit is over before the answer comes; the second must still get it, from the same question."""
    with same_descriptors():
        async with HostileServer("ok") as server:
            resolver = ScriptedResolver(("127.0.0.1",), seconds=0.15)
            async with DispatchClient(limits(**PATIENT), egress=LOOPBACK, resolver=resolver) as client:
                url = f"http://shared.example.com:{server.port}/"
                hasty = client.policy.evolve(dns_timeout=0.05)
                first = asyncio.create_task(client.deliver(url, SMALL, IDENTITY, policy=hasty))
                await asyncio.sleep(0.01)
                second = asyncio.create_task(client.deliver(url, SMALL, IDENTITY))
                timed_out(Outcome.CONNECT_TIMEOUT, Phase.DNS, Reason.DNS_TIMEOUT, after=0.05).check(await first)
                assert (await second).delivered
                assert len(resolver.asked) == 1
                assert_nothing_held(client, idle=1)


async def test_dns_04_each_failure_of_a_name_keeps_its_own_reason() -> None:
    """ "Name server unreachable" and "no such name" have different owners; both are safe to try again."""
    script = {
        "timeout.example.com": (not_found("dns_timeout", temporary=True), Reason.DNS_TIMEOUT),
        "none.example.com": (not_found("dns_no_address", temporary=False), Reason.DNS_NO_ADDRESS),
        "servfail.example.com": (not_found("dns_temporary_failure", temporary=True), Reason.DNS_TEMPORARY_FAILURE),
    }
    for host, (error, reason) in script.items():
        async with DispatchClient(limits(), egress=LOOPBACK, resolver=ScriptedResolver(error)) as client:
            attempt = await client.deliver(f"http://{host}/", SMALL, IDENTITY)
            fault(Phase.DNS, reason).check(attempt)
            assert attempt.retry_safety is RetrySafety.SAFE
            assert_nothing_held(client)


async def test_dns_05_a_failing_resolver_never_makes_a_failure_final() -> None:
    """Three look-ups fail, each in another way, and the fourth answers. A client of its own for each: a failure is remembered."""
    script = ScriptedResolver(
        not_found("dns_temporary_failure", temporary=True),
        not_found("dns_no_address", temporary=False),
        OSError("an error nobody listed"),
        ("127.0.0.1",),
    )
    attempts = []
    with same_descriptors():
        async with HostileServer("ok") as server:
            for _ in range(4):
                async with DispatchClient(limits(), egress=LOOPBACK, resolver=script) as client:
                    attempts.append(await client.deliver(f"http://flaky.example.com:{server.port}/", SMALL, IDENTITY))
    assert [attempt.delivered for attempt in attempts] == [False, False, False, True]
    assert {attempt.retry_safety for attempt in attempts[:3]} == {RetrySafety.SAFE}


async def test_dns_07_busy_connections_are_retired_by_age_so_that_a_change_is_followed() -> None:
    """A steady stream keeps a connection from ever being idle; only its age can move the traffic."""
    with same_descriptors():
        async with HostileServer("ok") as old, HostileServer("ok", host="127.0.0.2", port=old.port) as new:
            resolver = ScriptedResolver(("127.0.0.1",), ("127.0.0.2",))
            policy = limits(max_connection_age=0.2, dns_ttl=0.05)
            async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
                began = SYSTEM_CLOCK.monotonic()
                url = f"http://moving.example.com:{old.port}/"
                while new.request_count == 0:  # bounded by the runner's own limit
                    assert (await client.deliver(url, SMALL, IDENTITY)).delivered
                    await asyncio.sleep(0.01)
                assert SYSTEM_CLOCK.monotonic() - began < 0.2 + 0.05 + 1.0
                before = old.request_count
                for _ in range(10):
                    assert (await client.deliver(url, SMALL, IDENTITY)).delivered
                assert old.request_count == before, "nothing goes to the old machine any more"


async def test_dns_08_the_documented_ttl_is_the_effective_one() -> None:
    """Five deliveries further apart than the TTL are five questions; within it, one."""
    with same_descriptors():
        closing = answering(head("Content-Length: 0", "Connection: close"), close=True)
        async with HostileServer(closing) as server:
            resolver = ScriptedResolver(("127.0.0.1",))
            async with DispatchClient(limits(dns_ttl=0.05), egress=LOOPBACK, resolver=resolver) as client:
                for number in range(5):
                    if number:
                        await asyncio.sleep(0.06)
                    assert (await client.deliver(f"http://n.example.com:{server.port}/", SMALL, IDENTITY)).delivered
                assert len(resolver.asked) == 5
            resolver = ScriptedResolver(("127.0.0.1",))
            async with DispatchClient(limits(dns_ttl=30.0), egress=LOOPBACK, resolver=resolver) as client:
                for _ in range(5):
                    assert (await client.deliver(f"http://n.example.com:{server.port}/", SMALL, IDENTITY)).delivered
                assert len(resolver.asked) == 1


async def test_dns_09_a_name_that_blocks_its_thread_delays_nobody_else() -> None:
    """The check of a destination and its dialling use one asynchronous answer; no look-up ever runs on the loop."""
    release = asyncio.Event()

    class Blocking:
        """Blocks a thread for one name, as the system's resolver does, and answers the others."""

        async def resolve(self, host: str) -> Resolution:
            if host.startswith("slow."):
                await release.wait()
            return Resolution(("127.0.0.1",))

    async with HostileServer("ok") as server:
        policy = limits(**{**PATIENT, "per_endpoint_concurrency": 10, "max_per_host": 10})
        async with DispatchClient(policy, egress=LOOPBACK, resolver=Blocking()) as client:
            slow = asyncio.create_task(client.deliver(f"http://slow.example.com:{server.port}/", SMALL, IDENTITY))
            good = await asyncio.gather(
                *(client.deliver(f"http://good.example.com:{server.port}/", SMALL, IDENTITY) for _ in range(10))
            )
            assert all(attempt.delivered and attempt.elapsed < 1.0 for attempt in good)
            assert not slow.done()
            release.set()
            assert (await slow).delivered


async def test_dns_09_the_system_resolver_uses_no_thread_of_the_loop() -> None:
    """While it looks up, the loop's default executor, which everybody shares, has no thread."""
    resolver = ThreadResolver()
    before = {thread.name for thread in threading.enumerate()}
    found = await resolver.resolve("localhost")
    assert {"127.0.0.1", "::1"} & set(found.addresses)
    made = {thread.name for thread in threading.enumerate()} - before
    assert made
    assert not [name for name in made if name.startswith("asyncio")]
    resolver.close()


async def test_dns_05_the_decision_after_a_failed_name_is_a_retry() -> None:
    """What the dispatcher makes of it: never a dead letter on the first failure, whatever the name server says."""
    for error in (
        not_found("dns_no_address", temporary=False),
        not_found("dns_temporary_failure", temporary=True),
        RuntimeError("an error nobody listed"),
    ):
        async with DispatchClient(limits(), egress=LOOPBACK, resolver=ScriptedResolver(error)) as client:
            attempt = await client.deliver("http://gone.example.com/", SMALL, IDENTITY)
        assert (attempt.blame, attempt.retry_safety) == (Blame.PATH, RetrySafety.SAFE)
        decision = decide(attempt, DeliveryRules(), used=0, born_at=NOW, now=NOW, u=0.5)
        assert isinstance(decision, RetryAt), decision
