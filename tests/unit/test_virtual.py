"""Virtual time itself: if these fail, no timing test can be believed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from gatepost.clock import Clock, Entropy
from gatepost.testing.virtual import SeededEntropy, VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual


def test_a_day_of_sleep_costs_no_real_time() -> None:
    """Retry schedules span days; their tests must not."""
    clock = VirtualClock()
    started = time.monotonic()

    async def main() -> float:
        await asyncio.sleep(86_400 * 3)
        return clock.monotonic()

    assert run_virtual(main, clock=clock) == 1_000.0 + 86_400 * 3
    assert time.monotonic() - started < 5
    assert clock.wall_us() == 1_767_225_600_000_000 + 86_400 * 3 * 1_000_000


def test_timers_fire_in_order_at_exactly_their_instants() -> None:
    """Tests compare instants with ==, so many small sleeps must not add up an error."""
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, step: float, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(step)
            seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("a", 0.1, 10))
            group.create_task(sleeper("b", 0.25, 4))

    run_virtual(main)
    assert [name for name, _ in seen][:5] == ["a", "a", "b", "a", "a"]
    assert [at for name, at in seen if name == "a"] == pytest.approx([1000 + 0.1 * n for n in range(1, 11)], abs=1e-9)
    assert seen[-1][1] == 1001.0


def test_asyncio_timeout_runs_on_virtual_time() -> None:
    """The engine uses asyncio.timeout; it must see the same clock."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(31)
        return loop.time()

    assert run_virtual(main) == 1030.0


def test_a_deadlock_names_the_waiting_task() -> None:
    """A hanging test on a shared machine costs minutes and says nothing."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("the-waiting-one")
        await asyncio.get_running_loop().create_future()

    with pytest.raises(VirtualDeadlock, match=r"the-waiting-one at .*test_virtual\.py:\d+"):
        run_virtual(main)


def test_real_sockets_work_on_the_loop() -> None:
    """Engine tests with limits in virtual time talk over real loopback sockets."""

    async def main() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            async with asyncio.timeout(5):
                writer.write(b"hello\n")
                reply = await reader.read()
            writer.close()
            await writer.wait_closed()
        return reply

    assert run_virtual(main) == b"HELLO\n"


def test_a_silent_socket_lets_the_timer_fire() -> None:
    """The point of it all: a read limit of ten seconds is tested without waiting ten seconds."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await loop.sock_recv(left, 1)
        return loop.time()

    assert run_virtual(main) == 1010.0


def test_executor_work_is_waited_for_before_time_jumps() -> None:
    """Name resolution runs in threads; a jump over its timeout would make every such test flaky."""

    def slow() -> str:
        time.sleep(0.05)
        return "answer"

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(1):
            answer = await asyncio.to_thread(slow)
        return answer, loop.time()

    assert run_virtual(main) == ("answer", 1000.0)


def test_stuck_executor_work_does_not_stop_time() -> None:
    """A resolver thread that never returns must still end in dns_timeout."""
    release = threading.Event()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, release.wait)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await future
            for _ in range(20):  # patience is spent once, not before each jump
                await asyncio.sleep(1)
            return loop.time()
        finally:
            release.set()

    started = time.monotonic()
    assert run_virtual(main) == 1023.0
    assert time.monotonic() - started < 8


def test_foreign_threads_reach_the_loop_under_hold_and_with_patience() -> None:
    """A store's writer thread answers by call_soon_threadsafe; the loop cannot see it coming."""

    def later(loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], value: int) -> None:
        time.sleep(0.02)
        loop.call_soon_threadsafe(future.set_result, value)

    async def held() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        future: asyncio.Future[int] = loop.create_future()
        thread = threading.Thread(target=later, args=(loop, future, 1))
        thread.start()
        with loop.hold():
            async with asyncio.timeout(0.001):
                value = await future
        thread.join()
        return value

    async def patient() -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        thread = threading.Thread(target=later, args=(loop, future, 2))
        thread.start()
        async with asyncio.timeout(0.001):
            value = await future
        thread.join()
        return value

    assert run_virtual(held) == 1
    assert run_virtual(patient, patience=5.0) == 2


def test_clock_moves_only_when_told_and_only_forward() -> None:
    """Going back would break every invariant that rests on a monotonic clock."""
    clock: Clock = VirtualClock(start_wall_us=5_000_000, start_monotonic_ns=7)
    assert isinstance(clock, VirtualClock)
    assert (clock.monotonic_ns(), clock.wall_us()) == (7, 5_000_000)
    clock.advance(1.5)
    assert (clock.monotonic_ns(), clock.wall_us()) == (1_500_000_007, 6_500_000)
    clock.step_wall(-2)
    assert (clock.monotonic_ns(), clock.wall_us()) == (1_500_000_007, 4_500_000)
    assert "wall_us=4500000" in repr(clock)
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time only goes forward"):
            clock.advance(bad)
    with pytest.raises(ValueError, match="time only goes forward"):
        clock.advance_ns(-1)


def test_advancing_the_clock_in_a_callback_makes_due_timers_late_not_lost() -> None:
    """This is how tests play a blocked event loop: time passes while a callback runs."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        task = loop.create_task(asyncio.sleep(1, loop.time))
        await asyncio.sleep(0)
        loop.clock.advance(5)
        return (await task)()

    assert run_virtual(main) == 1005.0


def test_entropy_repeats_for_the_same_seed() -> None:
    """A failing random test must be repeatable from its seed."""
    first: Entropy = SeededEntropy(7)
    again, other = SeededEntropy(7), SeededEntropy(8)
    assert (first.uniform(), first.token(8)) == (again.uniform(), again.token(8))
    assert len(other.token(24)) == 24
    assert 0 <= other.uniform() < 1
