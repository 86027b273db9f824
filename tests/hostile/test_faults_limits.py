"""Every limit of the policy, one after the other, against a receiver that runs into exactly that limit.

A limit nobody has seen fire is a limit that does not exist: each is set to an odd value and the expiry must follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gatepost.deadline import Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.engine import (
    BIG,
    IDENTITY,
    LIMIT,
    LOOPBACK,
    SLACK,
    SMALL,
    Expected,
    assert_nothing_held,
    limits,
    meet,
    same_descriptors,
    timed_out,
)

LONG = 20.0
"""Seconds of the limits that must not be the one that fires."""
OTHERS = dict.fromkeys(
    ("connect_timeout", "write_timeout", "read_timeout", "pool_timeout", "admission_timeout", "total_timeout"), LONG
)

FIRING: list[tuple[str, str, bytes, Callable[[float], Expected]]] = [
    (
        "connect_timeout",
        "black-hole",
        SMALL,
        lambda after: timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT, after=after),
    ),
    (
        "tls_timeout",
        "tls-stall",
        SMALL,
        lambda after: timed_out(Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT, after=after),
    ),
    (
        "write_timeout",
        "never-reads",
        BIG,
        lambda after: timed_out(Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT, after=after),
    ),
    (
        "read_timeout",
        "silence",
        SMALL,
        lambda after: timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT, after=after),
    ),
    (
        "read_timeout",
        "drip-head",
        SMALL,
        lambda after: timed_out(Outcome.READ_TIMEOUT, Phase.READ, Reason.RESPONSE_TIMEOUT, after=after),
    ),
]


@pytest.mark.parametrize("after", [0.13, 0.37])
@pytest.mark.parametrize(("field", "name", "payload", "expected"), FIRING, ids=[f"{c[0]}-{c[1]}" for c in FIRING])
async def test_each_limit_fires_when_it_says(
    field: str, name: str, payload: bytes, expected: Callable[[float], Expected], after: float
) -> None:
    """All other limits are far away, so only this one can have fired."""
    await meet(name, expected(after), payload=payload, seconds=0.02, policy=limits(**{**OTHERS, field: after}))


TOTAL_IN: list[tuple[str, bytes, Phase, Blame, RetrySafety]] = [
    ("black-hole", SMALL, Phase.CONNECT, Blame.PATH, RetrySafety.SAFE),
    ("tls-stall", SMALL, Phase.TLS, Blame.PATH, RetrySafety.SAFE),
    ("never-reads", BIG, Phase.WRITE, Blame.ENDPOINT, RetrySafety.AMBIGUOUS),
    ("silence", SMALL, Phase.WAIT, Blame.ENDPOINT, RetrySafety.AMBIGUOUS),
    ("drip-head", SMALL, Phase.READ, Blame.ENDPOINT, RetrySafety.AMBIGUOUS),
]
IN_PHASE = [case[0] for case in TOTAL_IN]


@pytest.mark.parametrize(("name", "payload", "phase", "blame", "safety"), TOTAL_IN, ids=IN_PHASE)
async def test_the_total_bounds_every_phase(
    name: str, payload: bytes, phase: Phase, blame: Blame, safety: RetrySafety
) -> None:
    """Where it strikes says whose fault it was and whether a repetition is safe."""
    expected = Expected(Outcome.DEADLINE_EXCEEDED, (phase,), (Reason.TOTAL_TIMEOUT,), safety, blame, at_least=0.23)
    await meet(name, expected, payload=payload, seconds=0.02, policy=limits(**{**OTHERS, "total_timeout": 0.23}))


@pytest.mark.parametrize(("name", "payload", "phase", "blame", "safety"), TOTAL_IN, ids=IN_PHASE)
async def test_the_callers_deadline_bounds_every_phase_and_is_ours_to_answer_for(
    name: str, payload: bytes, phase: Phase, blame: Blame, safety: RetrySafety
) -> None:
    """The endpoint did nothing wrong when the caller had no time left."""
    with same_descriptors():
        async with (
            HostileServer(name, seconds=0.02) as server,
            DispatchClient(limits(**OTHERS), egress=LOOPBACK) as client,
        ):
            attempt = await client.deliver(server.url, payload, IDENTITY, deadline=Deadline.after(0.23))
            assert attempt.outcome is Outcome.DEADLINE_EXCEEDED, attempt
            assert attempt.reason is Reason.DEADLINE_EXPIRED
            assert (attempt.phase, attempt.retry_safety, attempt.blame) == (phase, safety, Blame.US)
            assert 0.22 <= attempt.elapsed < 0.23 + SLACK
            assert_nothing_held(client)


async def test_a_deadline_already_over_sends_nothing() -> None:
    """No socket is opened for somebody who has stopped waiting."""
    async with HostileServer("ok") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, SMALL, IDENTITY, deadline=Deadline.after(0.0))
        assert attempt.outcome is Outcome.DEADLINE_EXCEEDED
        assert attempt.retry_safety is RetrySafety.SAFE
        assert attempt.blame is Blame.US
        assert server.connections == 0
        assert_nothing_held(client)


async def fill(
    client: DispatchClient, server: HostileServer, count: int, key: str | None = None
) -> list[asyncio.Task[Attempt]]:
    """`count` deliveries that hold their place at a silent receiver."""
    policy = client.policy.evolve(read_timeout=LONG, total_timeout=LONG, admission_timeout=LONG, pool_timeout=LONG)
    tasks = [
        asyncio.create_task(
            client.deliver(server.url, SMALL, IDENTITY, endpoint_id=f"{key or 'fill'}-{number}", policy=policy)
        )
        for number in range(count)
    ]
    while server.request_count < count:  # noqa: ASYNC110  # a counter of another part
        await asyncio.sleep(0.001)
    return tasks


async def stop(tasks: list[asyncio.Task[Attempt]]) -> None:
    """Cancel and wait."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_endpoint_sheds_after_its_admission_limit() -> None:
    """The silent endpoint's own deliveries are shed; nobody else notices."""
    with same_descriptors():
        async with HostileServer("silence") as silent, HostileServer("ok") as good:
            policy = limits(per_endpoint_concurrency=2, admission_timeout=0.17)
            async with DispatchClient(policy, egress=LOOPBACK) as client:
                slow = policy.evolve(read_timeout=LONG)
                held = [
                    asyncio.create_task(client.deliver(silent.url, SMALL, IDENTITY, endpoint_id="bad", policy=slow))
                    for _ in range(2)
                ]
                await asyncio.sleep(0.02)
                attempt = await client.deliver(silent.url, SMALL, IDENTITY, endpoint_id="bad")
                timed_out(Outcome.SHED, Phase.ADMISSION, Reason.ADMISSION_TIMEOUT, after=0.17).check(attempt)
                assert client.statistics().shed == {silent.url.rstrip("/"): 1}
                assert (await client.deliver(good.url, SMALL, IDENTITY, endpoint_id="good")).delivered
                assert (await client.deliver(good.url, SMALL, IDENTITY)).delivered
                assert client.statistics().admitted == 2
                await stop(held)
                assert_nothing_held(client, idle=1)


async def test_a_full_host_ends_in_a_pool_timeout_that_names_the_host() -> None:
    """Which of the two ceilings was reached decides what the operator changes."""
    async with HostileServer("silence") as silent:
        policy = limits(max_per_host=3, pool_timeout=0.17)
        async with DispatchClient(policy, egress=LOOPBACK) as client:
            held = await fill(client, silent, 3)
            attempt = await client.deliver(silent.url, SMALL, IDENTITY, endpoint_id="other")
            timed_out(Outcome.POOL_TIMEOUT, Phase.POOL, Reason.POOL_HOST_FULL, after=0.17).check(attempt)
            await stop(held)
            assert_nothing_held(client)


async def test_the_global_ceiling_counts_open_sockets_and_says_that_it_was_reached() -> None:
    """Three hosts hold every socket; a fourth must wait, and then be told why."""
    async with HostileServer("silence") as one, HostileServer("silence") as two, HostileServer("ok") as good:
        policy = limits(max_connections=4, max_per_host=2, pool_timeout=0.17)
        async with DispatchClient(policy, egress=LOOPBACK) as client:
            held = await fill(client, one, 2) + await fill(client, two, 2)
            assert client.statistics().connections_open == 4
            attempt = await client.deliver(good.url, SMALL, IDENTITY)
            timed_out(Outcome.POOL_TIMEOUT, Phase.POOL, Reason.POOL_FULL, after=0.17).check(attempt)
            await stop(held[:1])
            assert (await client.deliver(good.url, SMALL, IDENTITY)).delivered, "a freed slot is handed on"
            await stop(held)
            assert_nothing_held(client, idle=1)


async def test_idle_connections_make_room_for_busy_ones() -> None:
    """The ceiling is on sockets: idle ones are closed, oldest first, before anybody has to wait."""
    with same_descriptors():
        async with (
            HostileServer("ok") as a,
            HostileServer("ok") as b,
            HostileServer("ok") as c,
            DispatchClient(limits(max_connections=2, max_per_host=2), egress=LOOPBACK) as client,
        ):
            for server in (a, b, c, a):
                assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
                assert client.statistics().connections_open <= 2
            await b.wait_disconnected()
            assert (a.connections, b.connections, c.connections) == (2, 1, 1)
            assert_nothing_held(client, idle=2)


async def test_a_place_given_back_in_the_moment_a_waiter_gives_up_goes_to_the_next() -> None:
    """One timed-out waiter must never be the reason why a host is not served again."""
    async with HostileServer("slow-ok", seconds=0.1) as server:
        policy = limits(max_per_host=1, pool_timeout=0.1, per_endpoint_concurrency=50)
        async with DispatchClient(policy, egress=LOOPBACK) as client:
            for _ in range(5):
                first = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY, endpoint_id="a"))
                await asyncio.sleep(0)
                expiring = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY, endpoint_id="b"))
                await asyncio.sleep(0.03)
                third = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY, endpoint_id="c"))
                assert (await first).delivered
                ended = await expiring
                assert ended.delivered or ended.outcome is Outcome.POOL_TIMEOUT
                last = await third
                assert last.delivered or (ended.delivered and last.outcome is Outcome.POOL_TIMEOUT)
                assert_nothing_held(client, idle=1)


async def test_a_silent_endpoint_never_slows_a_healthy_one() -> None:
    """The reason for all of this: 50 deliveries to a silent host, and the healthy host's are as quick as before."""
    async with HostileServer("silence") as silent, HostileServer("ok") as good:
        policy = limits(
            max_connections=20, max_per_host=4, per_endpoint_concurrency=4, pool_timeout=0.1, admission_timeout=0.1
        )
        async with DispatchClient(policy, egress=LOOPBACK) as client:
            bad = [asyncio.create_task(client.deliver(silent.url, SMALL, IDENTITY)) for _ in range(50)]
            for _ in range(100):
                attempt = await client.deliver(good.url, SMALL, IDENTITY)
                assert attempt.delivered
                assert attempt.elapsed < LIMIT
            outcomes = [(await task).outcome for task in bad]
            assert set(outcomes) <= {Outcome.SHED, Outcome.READ_TIMEOUT}
            assert outcomes.count(Outcome.SHED) >= 40
            assert_nothing_held(client, idle=1)


async def test_closing_the_client_ends_every_attempt_at_once_and_blames_us() -> None:
    """A shutdown must not wait for a silent receiver, and must not be held against it."""
    with same_descriptors():
        async with (
            HostileServer("silence") as silent,
            HostileServer("black-hole") as hole,
            HostileServer("tls-stall") as stall,
        ):
            client = DispatchClient(limits(**OTHERS), egress=LOOPBACK)
            tasks = [
                asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY, endpoint_id=str(number)))
                for server in (silent, hole, stall)
                for number in range(10)
            ]
            await asyncio.sleep(0.05)
            await client.aclose()
            for task in tasks:
                attempt = await task
                assert attempt.outcome is Outcome.CANCELLED
                assert attempt.reason is Reason.CLIENT_CLOSED
                assert attempt.blame is Blame.US
                assert attempt.elapsed < SLACK
            assert_nothing_held(client)
            with pytest.raises(RuntimeError, match="closed"):
                await client.deliver(silent.url, SMALL, IDENTITY)
