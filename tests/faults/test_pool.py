"""Fault cases of class pool: places come back in every ending, waiters are woken in order, and nothing idles for ever."""

from __future__ import annotations

import asyncio

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import PATIENT, ScriptedResolver, closed_port, delivering, head, not_found
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    assert_nothing_held,
    limits,
    same_descriptors,
    timed_out,
    wait_idle,
)


async def test_pool_01_a_place_comes_back_from_every_failed_set_up() -> None:
    """A hundred refusals, name errors and TLS errors with four places: then one delivery, at once."""
    port = closed_port()
    policy = limits(**{**PATIENT, "max_per_host": 4, "max_connections": 4, "per_endpoint_concurrency": 50})
    resolver = ScriptedResolver(not_found("dns_no_address", temporary=False))
    with same_descriptors():
        async with (
            HostileServer("tls-close") as spoiled,
            DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client,
        ):
            urls = [f"http://127.0.0.1:{port}/", "http://none.example.com/", spoiled.url]
            for url in urls:
                attempts = await asyncio.gather(*(client.deliver(url, SMALL, IDENTITY) for _ in range(100 // 3)))
                assert {attempt.outcome for attempt in attempts} == {Outcome.TRANSPORT_ERROR}
                assert {attempt.retry_safety for attempt in attempts} == {RetrySafety.SAFE}
                assert_nothing_held(client)
            async with HostileServer("ok", port=port) as server:
                assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
                assert_nothing_held(client, idle=1)


async def test_pool_02_every_waiter_is_woken_and_the_cap_holds() -> None:
    """A hundred at once for two places, against bodies that are absent, empty, and announced but cut."""
    policy = limits(**{**PATIENT, "max_per_host": 2, "per_endpoint_concurrency": 100})
    for raw in (head(status="204 No Content"), head("Content-Length: 0"), head("Content-Length: 2") + b"ok"):
        open_now = most = 0

        async def run(peer: Peer, seconds: float, raw: bytes = raw) -> None:
            nonlocal open_now, most
            while True:
                await peer.read_request()
                open_now += 1
                most = max(most, open_now)
                await asyncio.sleep(0)
                open_now -= 1
                await peer.send(raw)

        async with delivering(Behaviour("counted", "counts", "", run), policy) as (server, client):
            attempts = await asyncio.gather(*(client.deliver(server.url, SMALL, IDENTITY) for _ in range(100)))
            assert all(attempt.delivered for attempt in attempts)
            assert most <= 2
            assert server.connections == 2


async def test_pool_05_an_idle_connection_is_not_evicted_for_busy_ones_below_the_ceiling() -> None:
    """Here there is one ceiling and no separate idle limit: an idle connection goes only when the ceiling needs its place."""
    policy = limits(**{**PATIENT, "max_connections": 22, "max_per_host": 22, "per_endpoint_concurrency": 50})
    with same_descriptors():
        async with (
            HostileServer("silence") as busy,
            HostileServer("ok") as good,
            HostileServer("ok") as other,
            DispatchClient(policy, egress=LOOPBACK) as client,
        ):
            held = [asyncio.create_task(client.deliver(busy.url, SMALL, IDENTITY)) for _ in range(20)]
            await asyncio.sleep(0)
            for _ in range(100):
                assert (await client.deliver(good.url, SMALL, IDENTITY)).delivered
            assert good.connections == 1, "reused a hundred times beside twenty busy ones"
            assert (await client.deliver(other.url, SMALL, IDENTITY)).delivered
            assert client.statistics().connections_idle == 2
            held.append(asyncio.create_task(client.deliver(busy.url, SMALL, IDENTITY)))
            await asyncio.sleep(0.01)
            assert client.statistics().connections_idle == 1, "the ceiling took the one idle for longest"
            assert (await client.deliver(other.url, SMALL, IDENTITY)).reused
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)


async def test_pool_08_bodies_that_nobody_reads_hold_no_connection() -> None:
    """Two hundred answers with a body above the cap, looked at for their status only."""
    raw = head("Content-Length: 100000") + bytes(100_000)
    async with delivering(answering(raw), limits(**{**PATIENT, "max_per_host": 4})) as (server, client):
        for _ in range(200):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.status == 200
            assert client.statistics().connections_open <= 4
        assert_nothing_held(client)
        await server.wait_disconnected()


async def test_pool_09_a_connection_has_one_request_at_a_time() -> None:
    """Slow and fast answers mixed: no fast one queues behind a slow one, and no request is pipelined."""
    count = 0

    async def run(peer: Peer, seconds: float) -> None:
        nonlocal count
        while True:
            await peer.read_request()
            count += 1
            if count % 2:
                assert not await peer.readable_within(0.1), "a second request came before the answer"
            await peer.send(head("Content-Length: 0"))

    policy = limits(**{**PATIENT, "max_per_host": 10, "per_endpoint_concurrency": 50})
    async with delivering(Behaviour("odd", "odd ones are slow", "", run), policy) as (server, client):
        attempts = await asyncio.gather(*(client.deliver(server.url, SMALL, IDENTITY) for _ in range(50)))
        assert all(attempt.delivered for attempt in attempts)
        assert server.connections <= 10
        fast = [attempt.phases[Phase.WAIT] for attempt in attempts if attempt.phases[Phase.WAIT] < 0.09]
        assert len(fast) >= 20, "half of them are answered at once, whoever else is slow"


async def test_pool_10_who_gave_up_waiting_is_never_sent() -> None:
    """One place, held; the second gives up at its own limit, and its id never reaches the receiver."""
    policy = limits(**{**PATIENT, "max_per_host": 1, "pool_timeout": 0.1, "per_endpoint_concurrency": 9})
    async with delivering("slow-ok", policy, seconds=0.3) as (server, client):
        first = asyncio.create_task(client.deliver(server.url, SMALL, {"webhook-id": "evt_first"}))
        await asyncio.sleep(0.01)
        second = await client.deliver(server.url, SMALL, {"webhook-id": "evt_second"})
        timed_out(Outcome.POOL_TIMEOUT, Phase.POOL, Reason.POOL_HOST_FULL, after=0.1).check(second)
        assert (await first).delivered
        assert (await client.deliver(server.url, SMALL, {"webhook-id": "evt_third"})).delivered
        assert not [request for request in server.requests if b"evt_second" in request.head]
        assert server.request_count == 2


async def test_pool_11_attempts_aborted_in_the_body_leave_no_socket() -> None:
    """Fifty cancellations while the body drips; nothing is reconnected for them, and nothing is left open."""
    policy = limits(**{**PATIENT, "max_per_host": 50, "per_endpoint_concurrency": 50, "keepalive_expiry": 0.2})
    async with delivering("drip-body", policy, seconds=0.01) as (server, client):
        tasks = [asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY)) for _ in range(50)]
        while server.request_count < 50:  # noqa: ASYNC110  # a counter of the server
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert_nothing_held(client)
        await server.wait_disconnected()
        assert server.connections == 50
    async with delivering("ok", limits(**{**PATIENT, "keepalive_expiry": 0.05})) as (server, client):
        await client.deliver(server.url, SMALL, IDENTITY)
        await wait_idle(client, 0)  # the sweeper closes it, asked for by nobody
        await server.wait_disconnected()


async def test_pool_12_waiting_for_our_own_places_is_our_own_fault() -> None:
    """Blame us, safe, and in phase pool: neither breaker nor learner may see it."""
    policy = limits(**{**PATIENT, "max_per_host": 2, "per_endpoint_concurrency": 100, "pool_timeout": 0.12})
    async with delivering("slow-ok", policy, seconds=0.05) as (server, client):
        attempts = await asyncio.gather(*(client.deliver(server.url, SMALL, IDENTITY) for _ in range(40)))
        late = [attempt for attempt in attempts if not attempt.delivered]
        assert late
        assert {(attempt.outcome, attempt.phase) for attempt in late} == {(Outcome.POOL_TIMEOUT, Phase.POOL)}
        assert {(attempt.blame, attempt.retry_safety) for attempt in late} == {(Blame.US, RetrySafety.SAFE)}
        assert {attempt.bytes_sent for attempt in late} == {0}
        assert server.request_count == len(attempts) - len(late)


async def test_pool_13_the_place_is_free_before_a_retry_begins() -> None:
    """One place: a 503 with a page of 1 KiB, and the retry in the very next line of the caller."""
    answers = iter((head("Content-Length: 1024", status="503 Busy") + bytes(1_024), head("Content-Length: 0")))

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            await peer.read_request()
            await peer.send(next(answers))

    async with delivering(Behaviour("once", "503 once", "", run), limits(max_per_host=1, pool_timeout=0.2)) as (
        server,
        client,
    ):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).status == 503
        assert_nothing_held(client, idle=1)
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert (attempt.delivered, attempt.reused) == (True, True)
        assert attempt.phases.get(Phase.POOL, 0.0) < 0.05
        assert server.connections == 1
