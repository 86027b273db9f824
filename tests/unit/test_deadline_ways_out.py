"""The counted ways out, scopes on trio, and the counters themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gatepost.deadline import (
    COUNTERS,
    Counters,
    Deadline,
    DeadlineExceeded,
    Metric,
    current,
    deadline,
    no_deadline,
    remaining,
    run_to_completion,
    shield,
)
from gatepost.deadline.context import detached_context
from gatepost.deadline.metrics import BOUNDS, FAMILIES, LABELS_MAX, OTHER, opentelemetry_span, prometheus_collector
from gatepost.testing.virtual import VirtualClock, run_virtual


def counted(metric: Metric, label: str) -> float:
    """The process's own counter."""
    return COUNTERS.value(metric, label)


def test_no_deadline_needs_a_reason_is_counted_and_lets_nothing_cut() -> None:
    """An export of an hour inside a request of ten seconds, on purpose and with a name."""
    for bad in ("", " ", None):
        with pytest.raises(ValueError, match="nightly export"):
            no_deadline(reason=bad)  # type: ignore[arg-type]  # misuse
    before = counted(Metric.NO_DEADLINE, "export")

    @no_deadline(reason="export")
    async def export() -> Deadline | None:
        await asyncio.sleep(3600)
        return current()

    async def main() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
        async with deadline(10, clock=clock):
            assert await export() is None
            with no_deadline(reason="export"):
                assert remaining() is None
                with deadline(1):
                    assert remaining() is not None
            async with no_deadline(reason="export") as inside:
                assert inside is None
        assert clock.monotonic() == 4600

    run_virtual(main)
    assert counted(Metric.NO_DEADLINE, "export") == before + 3


def test_a_cancellation_passes_through_no_deadline() -> None:
    """It is a way out of deadlines, not of shutting down."""

    async def body() -> None:
        async with no_deadline(reason="poll"):
            await asyncio.sleep(100)

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(body())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)


def test_work_runs_to_completion_whatever_happens_around_it() -> None:
    """A charge that cannot be repeated: neither the deadline nor a cancellation leaves it half done."""
    done: list[str] = []
    before = counted(Metric.RUN_TO_COMPLETION, "done")

    @run_to_completion(max=30)
    async def charge(name: str) -> str:
        await asyncio.sleep(5)
        done.append(name)
        return name

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = loop.clock  # type: ignore[attr-defined]  # a VirtualLoop
        async with deadline(1, clock=clock):
            assert await charge("past the deadline") == "past the deadline"
        task = loop.create_task(charge("cancelled"))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        task.cancel()
        started = loop.time()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.time() - started == 3

    run_virtual(main)
    assert done == ["past the deadline", "cancelled"]
    assert counted(Metric.RUN_TO_COMPLETION, "done") == before + 2


def test_completion_has_a_limit_and_failures_stay_failures() -> None:
    """Never unlimited; an error of the work is what the caller sees."""
    before = {end: counted(Metric.RUN_TO_COMPLETION, end) for end in ("cut", "failed")}

    @run_to_completion(max=2, name="charge")
    async def slow() -> None:
        await asyncio.sleep(60)

    @run_to_completion(max=2)
    async def failing() -> None:
        await asyncio.sleep(1)
        raise KeyError("card")

    async def main() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
        with deadline(1, clock=clock):
            with pytest.raises(DeadlineExceeded, match="at charge"):
                await slow()
            with pytest.raises(KeyError):
                await failing()
            task = asyncio.get_running_loop().create_task(failing())
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
        assert isinstance(caught.value.__cause__, KeyError)

    run_virtual(main)
    assert counted(Metric.RUN_TO_COMPLETION, "cut") == before["cut"] + 1
    assert counted(Metric.RUN_TO_COMPLETION, "failed") == before["failed"] + 2


def test_completion_as_a_scope_and_of_plain_functions_holds_deadlines_off() -> None:
    """In a thread there is nothing else to hold off."""
    clock = VirtualClock()

    @run_to_completion(max=30, clock=clock)
    def write() -> float | None:
        return remaining()

    with deadline(1, clock=clock):
        clock.advance(2)
        assert write() == 30
        with run_to_completion(max=7) as inside:
            assert inside.remaining() == 7

    async def main() -> None:
        loop_clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
        async with deadline(1, clock=loop_clock), run_to_completion(max=7):
            await asyncio.sleep(5)

    run_virtual(main)


def test_a_detached_context_has_no_deadline_and_everything_else() -> None:
    """For workers that the first request happens to start."""
    with deadline(5):
        context = detached_context()
        assert context.run(current) is None
        assert current() is not None


def test_an_instant_can_be_given_instead_of_seconds() -> None:
    """For callers that computed when, not how long."""
    clock = VirtualClock()
    with deadline(until=clock.monotonic() + 2.5, clock=clock) as inside:
        assert inside.remaining() == 2.5
    for bad, error in ((float("inf"), ValueError), ("soon", TypeError), (True, TypeError)):
        with pytest.raises(error, match="until="):
            deadline(until=bad)  # type: ignore[arg-type]  # misuse
    with pytest.raises(TypeError, match="seconds"):
        deadline()
    with pytest.raises(TypeError, match="not both"):
        deadline(1, until=2)


# ------------------------------------------------------------------------------------------------------- counters


def test_labels_are_bounded() -> None:
    """A program that makes up names of scopes must not make up series."""
    counters = Counters()
    for number in range(LABELS_MAX + 10):
        counters.count(Metric.EXCEEDED, f"scope {number}")
    counters.count(Metric.EXCEEDED, "scope 0")
    assert counters.value(Metric.EXCEEDED, OTHER) == 10
    assert counters.value(Metric.EXCEEDED, "scope 0") == 2
    assert len(counters.snapshot()) == LABELS_MAX + 1


def test_counts_of_threads_are_not_lost() -> None:
    """Threads count while others do."""
    counters = Counters()

    def many() -> None:
        for _ in range(2_000):
            counters.count(Metric.CLAMPED)
            counters.remaining("call", 0.02)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.value(Metric.CLAMPED) == 8_000
    buckets, total = counters.buckets()["call"]
    assert list(buckets[0]) == [BOUNDS[0], 0]
    assert list(buckets[-1]) == [float("inf"), 8_000]
    assert total == pytest.approx(160)


def test_the_observer_hears_each_count_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Users' code in the middle of requests."""
    heard: list[tuple[Metric, str, float]] = []
    counters = Counters(lambda metric, label, amount: heard.append((metric, label, amount)))
    counters.count(Metric.CLAMPED)
    counters.remaining("arrival", 2.5)
    assert heard == [(Metric.CLAMPED, "", 1.0), (Metric.REMAINING, "arrival", 2.5)]

    def broken(*_: object) -> None:
        raise RuntimeError("the observer's own")

    counters = Counters(broken)
    counters.count(Metric.CLAMPED)
    assert counters.value(Metric.CLAMPED) == 1
    assert "observer" in caplog.text


def test_prometheus_shows_every_metric_under_its_documented_name() -> None:
    """The reference page lists these names."""
    from prometheus_client import CollectorRegistry, generate_latest

    counters = Counters()
    for metric, family in FAMILIES.items():
        if not family.histogram:
            counters.count(metric, "x" if family.label else "")
    counters.remaining("arrival", 0.02)
    registry = CollectorRegistry()
    registry.register(prometheus_collector(counters))
    text = generate_latest(registry).decode()
    assert 'deadline_requests_total{source="x"} 1.0' in text
    assert "deadline_clamped_total 1.0" in text
    assert 'deadline_remaining_seconds_bucket{at="arrival",le="+Inf"} 1.0' in text
    for metric in Metric:
        assert f"# HELP {metric}" in text


def test_opentelemetry_gets_attributes_without_a_provider() -> None:
    """The API alone records nothing, and must not fail."""
    opentelemetry_span()({"deadline.received_ms": 1.0, "deadline.exceeded": False})


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"gatepost"}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
import gatepost.deadline, gatepost.deadline.asgi, gatepost.deadline.wsgi
from gatepost.deadline.metrics import opentelemetry_span, prometheus_collector
for function in (prometheus_collector, opentelemetry_span):
    try:
        function()
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(function)
try:
    import gatepost.deadline.grpc
except ImportError as error:
    assert "gatepost[grpc]" in str(error), error
else:
    raise AssertionError("grpc")
import asyncio
async def main():
    try:
        async with gatepost.deadline.deadline(0.01):
            await asyncio.sleep(5)
    except gatepost.deadline.DeadlineExceeded:
        return "cut"
assert asyncio.run(main()) == "cut"
"""


def test_everything_but_grpc_works_with_all_other_packages_blocked() -> None:
    """The standard library is all that a service needs for deadlines, servers included."""
    source = Path(__file__).resolve().parents[2] / "src"
    program = f"import sys; sys.path.insert(0, {str(source)!r})\n{BLOCKED}"
    subprocess.run([sys.executable, "-I", "-S", "-W", "error", "-c", program], check=True, timeout=60)


# ------------------------------------------------------------------------------------------------------------ trio


def trio_run(main: Any) -> Any:
    """`main` on trio with virtual time; the deadlines' clock is trio's own."""
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    return trio.run(main, clock=testing.MockClock(autojump_threshold=0))


class TrioClock(VirtualClock):
    """The mock clock of the running trio loop."""

    def monotonic_ns(self) -> int:
        """Its time."""
        import trio

        return round(trio.current_time() * 1e9)


def test_on_trio_a_scope_cuts_and_names_itself() -> None:
    """The same words on another loop."""

    async def main() -> None:
        import trio

        clock = TrioClock()
        with pytest.raises(DeadlineExceeded, match="at render"):
            async with deadline(3, name="render", clock=clock):
                await trio.sleep(10)
        with pytest.raises(DeadlineExceeded) as caught:
            async with deadline(1, name="outer", clock=clock), deadline(5, name="inner"):
                await trio.sleep(10)
        assert caught.value.chain[0].name == "outer"
        async with deadline(9, clock=clock):
            with pytest.raises(DeadlineExceeded):
                async with deadline(1), trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, 10)
            assert (remaining() or 0) > 7

    trio_run(main)


def test_on_trio_cancellations_from_around_stay_what_they_are() -> None:
    """A nursery that is cancelled, and a timeout of trio's own."""

    async def main() -> None:
        import trio

        with trio.move_on_after(1) as around:
            async with deadline(5, clock=TrioClock()):
                await trio.sleep(10)
        assert around.cancelled_caught

        async def too_slow() -> None:
            with trio.fail_after(1):
                async with deadline(5, clock=TrioClock()):
                    await trio.sleep(10)

        with pytest.raises(trio.TooSlowError):
            await too_slow()

    trio_run(main)


def test_on_trio_a_shield_holds_the_cut_before_and_after_it_came() -> None:
    """trio cancels every await of a cancelled scope, so cleaning up needs more than a new limit."""

    async def main() -> list[float]:
        import trio

        times: list[float] = []
        started = trio.current_time()

        @deadline(1, clock=TrioClock())
        async def shielded() -> None:
            async with shield(5):
                await trio.sleep(3)
                times.append(trio.current_time() - started)
            await trio.sleep(3)

        @deadline(1, clock=TrioClock())
        async def cleans_up() -> None:
            try:
                await trio.sleep(3)
            finally:
                async with shield(20):
                    await trio.sleep(10)
                    times.append(trio.current_time() - started)

        with pytest.raises(DeadlineExceeded):
            await shielded()
        times.append(trio.current_time() - started)
        with pytest.raises(DeadlineExceeded):
            await cleans_up()
        return times

    assert trio_run(main) == pytest.approx([3.0, 3.0, 14.0])


def test_on_trio_work_runs_to_completion() -> None:
    """A cancelled scope around it waits."""
    done = []

    @run_to_completion(max=30)
    async def charge() -> None:
        import trio

        await trio.sleep(5)
        done.append("charged")

    async def main() -> None:
        import trio

        with trio.move_on_after(1):
            await charge()
        async with no_deadline(reason="poll"):
            await trio.sleep(1)

    trio_run(main)
    assert done == ["charged"]


def test_an_async_scope_outside_any_loop_says_what_to_do() -> None:
    """Driving a coroutine by hand is a mistake."""
    with pytest.raises(RuntimeError, match="running task"):
        deadline(1).__aenter__().send(None)
