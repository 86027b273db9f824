"""Fault cases of class cancellation: it is noticed in every phase at once, and never takes anybody else's place along."""

from __future__ import annotations

import asyncio

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from tests.faults.kit import PATIENT, Heard, ScriptedResolver, delivering
from tests.hostile.engine import BIG, IDENTITY, LOOPBACK, SMALL, assert_nothing_held, limits, same_descriptors

PHASES = [
    (Phase.DNS, "ok"),
    (Phase.CONNECT, "black-hole"),
    (Phase.TLS, "tls-stall"),
    (Phase.WRITE, "never-reads"),
    (Phase.WAIT, "silence"),
    (Phase.READ, "drip-head"),
    (Phase.READ, "drip-body"),
]


@pytest.mark.parametrize(("phase", "behaviour"), PHASES)
async def test_cancel_03_every_phase_gives_everything_back_at_once(phase: Phase, behaviour: str) -> None:
    """CancelledError is no Exception: clean-up that hangs on `except Exception` misses it."""
    heard = Heard()
    with same_descriptors():
        async with (
            HostileServer(behaviour, seconds=0.01 if behaviour.startswith("drip") else None) as server,
            DispatchClient(
                limits(**PATIENT),
                egress=LOOPBACK,
                observer=heard,
                resolver=ScriptedResolver(("127.0.0.1",), seconds=30.0),
            ) as client,
        ):
            url = server.url.replace("127.0.0.1", "slow.example.com") if phase is Phase.DNS else server.url
            task = asyncio.create_task(client.deliver(url, BIG if phase is Phase.WRITE else SMALL, IDENTITY))
            while not any(flight.phase is phase for flight in client.flights):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            began = SYSTEM_CLOCK.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert SYSTEM_CLOCK.monotonic() - began < 0.2
            assert_nothing_held(client)
            await server.wait_disconnected()
    assert [(seen.outcome, seen.phase) for seen in heard.attempts] == [("cancelled", phase)]


def test_cancel_03_an_exit_raised_by_a_hook_leaves_nothing_behind() -> None:
    """SystemExit in an observer ends the program, not the books: everything was given back before the observer was told."""
    held: list[DispatchClient] = []

    class Exits(Heard):
        def attempt_finished(self, observation: object) -> None:
            assert_nothing_held(held[0], idle=1)
            raise SystemExit(3)

    async def main() -> None:
        async with (
            HostileServer("ok") as server,
            DispatchClient(limits(**PATIENT), egress=LOOPBACK, observer=Exits()) as client,
        ):
            held.append(client)
            try:
                await client.deliver(server.url, SMALL, IDENTITY)
            finally:
                assert_nothing_held(client, idle=1)

    with same_descriptors(), pytest.raises(SystemExit):
        asyncio.run(main())
    assert_nothing_held(held[0])


@pytest.mark.parametrize("late", range(8))
async def test_cancel_04_a_place_handed_to_one_that_has_expired_is_passed_on(late: int) -> None:
    """A holds the only place, B's wait ends about when A is done, C waits behind: C must run in any case."""
    policy = limits(**{**PATIENT, "max_per_host": 1, "per_endpoint_concurrency": 9})
    async with delivering("slow-ok", policy, seconds=0.05) as (server, client):
        first = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
        await asyncio.sleep(0)
        hasty = client.deliver(server.url, SMALL, IDENTITY)
        second = asyncio.create_task(hasty)
        third = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
        await asyncio.wait([first])
        for _ in range(late):
            await asyncio.sleep(0)
        second.cancel()
        assert (await third).delivered
        await asyncio.gather(second, return_exceptions=True)
        assert client.statistics().connections_in_use == 0


async def test_cancel_05_a_cancelled_connect_returns_at_once() -> None:
    """Not when the connect ends by itself, seconds later; its socket is closed in the same moment."""
    async with delivering("black-hole", limits(**PATIENT)) as (server, client):
        task = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
        await asyncio.sleep(0.05)
        assert client.statistics().connections_open == 1
        began = SYSTEM_CLOCK.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert SYSTEM_CLOCK.monotonic() - began < 0.1
        assert_nothing_held(client)
