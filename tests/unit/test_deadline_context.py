"""Scopes: what code inside sees, what is cut and what is not, and that cancellations from elsewhere stay what they are."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import gatepost.deadline
from gatepost.deadline import (
    Deadline,
    DeadlineExceeded,
    check,
    current,
    deadline,
    propagate,
    remaining,
    shield,
    timeout_for,
)
from gatepost.testing.virtual import VirtualClock, VirtualLoop, run_virtual


def virtual_clock() -> VirtualClock:
    """The clock of the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.clock


def test_without_a_scope_nothing_is_limited() -> None:
    """The library must be harmless where nobody set a deadline."""
    assert current() is None
    assert remaining() is None
    assert timeout_for(1.5) == 1.5
    check(1e6)
    for cap in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="cap="):
            timeout_for(cap)


def test_scopes_nest_to_the_minimum_and_put_back_what_was() -> None:
    """Cases 22 of the reference: 10 inside 2.5 is 2.5, then 0.4 inside is 0.4."""
    clock = VirtualClock()
    with deadline(2.5, name="request", clock=clock) as outer:
        assert current() is outer
        with deadline(10, clock=clock) as wide:
            assert wide.remaining() == remaining() == 2.5
            with deadline(0.4, name="query", clock=clock):
                assert timeout_for(1.0, reserve=0.1) == pytest.approx(0.3)
                with pytest.raises(
                    DeadlineExceeded, match=r"at warm-up, .* request 2\.5 s > unnamed 10 s > query 0\.4 s"
                ):
                    check(0.5, where="warm-up")
        assert current() is outer
    assert current() is None


def test_a_received_deadline_opens_a_scope() -> None:
    """Middleware has a value, not a number of seconds."""
    clock = VirtualClock()
    received = Deadline.after(1, name="arrival", clock=clock)
    clock.advance(0.25)
    with deadline(received) as inside:
        assert inside is received
        assert remaining() == 0.75
    with deadline(0.5, clock=clock), deadline(received) as inside:
        assert inside.remaining() == 0.5


def test_leaving_a_synchronous_scope_never_raises() -> None:
    """Results that are there are not thrown away because they came late; `remaining` stays at zero."""
    clock = VirtualClock()
    with deadline(1, clock=clock) as scope:
        clock.advance(5)
        assert remaining() == 0.0
        assert scope.remaining() == -4.0
    assert current() is None

    @deadline(1, clock=clock)
    def failing() -> None:
        clock.advance(5)
        raise KeyError("the body's own error")

    with pytest.raises(KeyError):
        failing()


@pytest.mark.parametrize("make", [deadline, shield])
def test_bad_numbers_are_refused_where_they_stand(make: Any) -> None:
    """Not when the scope is entered, three calls away."""
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="write seconds"):
            make(bad)
    with pytest.raises(TypeError):
        make("1")


def test_a_scope_is_entered_once() -> None:
    """A shared scope object would share its clock between requests."""
    scope = deadline(1)
    with scope:
        pass
    with pytest.raises(RuntimeError, match="entered once"), scope:
        pass

    async def main() -> None:
        async with scope:
            pass

    with pytest.raises(RuntimeError, match="entered once"):
        run_virtual(main)


def test_functions_are_decorated_and_each_call_has_its_own_time() -> None:
    """The decorator is made once, at import."""
    clock = VirtualClock()

    @deadline(2, clock=clock)
    def step(seconds: float) -> float | None:
        clock.advance(seconds)
        return remaining()

    assert step(0.5) == 1.5
    assert step(0.5) == 1.5
    assert step.__name__ == "step"
    assert deadline(1, clock=clock)(partial(step, 0.25))() == 0.75

    @shield(7, clock=clock)
    def audit() -> float | None:
        return remaining()

    with deadline(1, clock=clock):
        assert audit() == 7.0


def test_coroutine_functions_are_decorated_and_cut() -> None:
    """The name of the function is where it was exceeded, unless the scope has one."""

    @deadline(2)
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @deadline(2, name="named")
    async def named() -> None:
        await asyncio.sleep(3)

    async def main() -> None:
        clock = virtual_clock()
        with deadline(60, clock=clock):  # scopes inside use its clock
            assert await slow(1.5) == "done"
            with pytest.raises(DeadlineExceeded) as caught:
                await slow(2.5)
            assert caught.value.where.endswith("slow")
            with pytest.raises(DeadlineExceeded, match="at named"):
                await named()
        assert clock.monotonic() == 1005.5

    run_virtual(main)


def test_generators_are_not_decorated() -> None:
    """The scope would stay open in whatever code runs between two items."""

    def items() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (items, later):
        with pytest.raises(TypeError, match="generator"):
            deadline(1)(function)


def test_an_async_scope_cuts_its_body_and_says_so() -> None:
    """A TimeoutError as well, so that existing handlers keep working."""

    async def render() -> None:
        async with deadline(3, name="render", clock=virtual_clock()) as inside:
            assert current() is inside
            await asyncio.sleep(10)

    async def main() -> None:
        with pytest.raises(TimeoutError) as caught:
            await render()
        assert isinstance(caught.value, DeadlineExceeded)
        assert (caught.value.where, caught.value.overdue) == ("render", 0.0)
        assert asyncio.get_running_loop().time() == 1003.0
        assert current() is None
        await asyncio.sleep(10)  # nothing is left that could cut this
        with pytest.raises(DeadlineExceeded, match="at scope"):
            async with deadline(0):
                await asyncio.sleep(1)

    run_virtual(main)


def test_a_body_that_ends_late_without_waiting_keeps_its_result() -> None:
    """Only a scope that was cut raises."""

    async def main() -> str:
        clock = virtual_clock()
        async with deadline(1, clock=clock):
            clock.advance(2)
            return "late but there"

    assert run_virtual(main) == "late but there"


def test_errors_of_the_body_keep_their_type() -> None:
    """A TimeoutError of some library inside is not our deadline."""

    async def main() -> None:
        with pytest.raises(TimeoutError) as caught:
            async with deadline(3):
                raise TimeoutError("a library's own")
        assert not isinstance(caught.value, DeadlineExceeded)
        with pytest.raises(KeyError):
            async with deadline(3):
                raise KeyError

    run_virtual(main)


def test_a_cancellation_from_outside_stays_a_cancellation() -> None:
    """Before, at, and after the deadline: `DeadlineExceeded` in a cancelled task would keep a server from stopping."""

    async def body() -> None:
        async with deadline(3, clock=virtual_clock()):
            await asyncio.sleep(10)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for at in (1.0, 3.0):
            task = loop.create_task(body())
            loop.call_at(loop.time() + at, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    run_virtual(main)


def test_nested_async_scopes_cut_at_the_earliest() -> None:
    """The inner scope ends when the outer limit is reached, and the outer is told apart from it."""

    @deadline(5, name="inner")
    async def inner() -> None:
        await asyncio.sleep(10)

    async def main() -> None:
        clock = virtual_clock()
        with pytest.raises(DeadlineExceeded) as caught:
            async with deadline(1, name="outer", clock=clock):
                await inner()
        assert caught.value.chain[0].name == "outer"
        assert clock.monotonic() == 1001.0
        async with deadline(9, name="outer", clock=clock):
            with pytest.raises(DeadlineExceeded, match="at inner"):
                await inner()
            await asyncio.sleep(1)
        assert clock.monotonic() == 1007.0

    run_virtual(main)


def test_tasks_inherit_the_deadline() -> None:
    """Work fanned out in a TaskGroup has no more time than the request."""

    async def child() -> float | None:
        await asyncio.sleep(0.5)
        return remaining()

    async def main() -> None:
        async with deadline(2, clock=virtual_clock()), asyncio.TaskGroup() as group:
            tasks = [group.create_task(child()) for _ in range(2)]
        assert [task.result() for task in tasks] == [1.5, 1.5]

    run_virtual(main)


def test_an_async_scope_needs_a_task() -> None:
    """In a callback there is nothing to cut."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def callback() -> None:
            try:
                deadline(1).__aenter__().send(None)
            except RuntimeError as error:
                done.set_result(str(error))

        loop.call_soon(callback)
        return await done

    assert "running task" in run_virtual(main)


def test_a_shield_has_its_own_time_and_is_not_cut_from_around() -> None:
    """Cleaning up after a deadline is what a shield is for; the outer scope cuts when the shield ends."""

    async def request(clock: VirtualClock, times: list[float]) -> None:
        async with deadline(1, name="request", clock=clock):
            async with shield(5) as inside:
                assert [limit.name for limit in inside.chain] == ["shield"]
                await asyncio.sleep(3)
                times.append(clock.monotonic())
            times.append(clock.monotonic())
            await asyncio.sleep(1)  # the cut that was due meanwhile comes here
            times.append(clock.monotonic())

    async def main() -> list[float]:
        times: list[float] = []
        with pytest.raises(DeadlineExceeded, match=r"at request, 2\.000 s too late"):
            await request(virtual_clock(), times)
        return times

    assert run_virtual(main) == [1003.0, 1003.0]


def test_a_plain_shield_in_a_coroutine_holds_off_the_cut_too() -> None:
    """`with` and `async with` differ in cutting themselves, not in what they protect from."""

    async def main() -> float:
        clock = virtual_clock()
        async with deadline(1, clock=clock):
            with shield(5, clock=clock):
                await asyncio.sleep(3)
                assert remaining() == 2.0
            assert remaining() == 0.0
        return clock.monotonic()

    assert run_virtual(main) == 1003.0


def test_a_shield_in_a_finally_block_after_the_cut() -> None:
    """The commonest place: the scope has done its cutting, and the clean-up awaits."""

    async def request(done: list[str]) -> None:
        async with deadline(9, clock=virtual_clock()), deadline(1):
            try:
                await asyncio.sleep(5)
            finally:
                async with shield(20):
                    await asyncio.sleep(10)
                    done.append("cleaned")

    async def main() -> list[str]:
        done: list[str] = []
        with pytest.raises(DeadlineExceeded):
            await request(done)
        return done

    assert run_virtual(main) == ["cleaned"]


def test_shields_end_and_nest() -> None:
    """A shield is never unlimited, and one inside another has its own time again."""

    async def main() -> None:
        clock = virtual_clock()
        with pytest.raises(DeadlineExceeded, match="at shield"):
            async with shield(2, clock=clock):
                await asyncio.sleep(5)
        assert clock.monotonic() == 1002.0
        async with deadline(2, clock=clock), shield(1), shield(4):
            await asyncio.sleep(3)
        assert clock.monotonic() == 1005.0

    run_virtual(main)


def test_a_shield_does_not_stop_cancellations_from_elsewhere() -> None:
    """It shields from deadlines, not from the process stopping."""

    async def body() -> None:
        async with shield(60):
            await asyncio.sleep(30)

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(body())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)


def test_a_shield_in_a_child_task_leaves_the_parents_scope_alone() -> None:
    """The parent still keeps its promise; it cancels the child as it would without us."""

    async def child() -> None:
        with shield(60):
            await asyncio.sleep(30)

    async def main() -> float:
        with pytest.raises(DeadlineExceeded):
            async with deadline(1, clock=virtual_clock()), asyncio.TaskGroup() as group:
                group.create_task(child())
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 1001.0


def test_a_shield_that_outlives_its_surroundings_is_harmless() -> None:
    """Generators can leave scopes in any order."""

    async def main() -> None:
        outer, inner = deadline(1), shield(5)
        await outer.__aenter__()
        inner.__enter__()
        await outer.__aexit__(None, None, None)
        inner.__exit__(None, None, None)
        await asyncio.sleep(10)

    run_virtual(main)


def test_a_scope_left_in_another_context_does_not_raise() -> None:
    """Frameworks finish generator dependencies in a context of their own."""

    def dependency() -> Iterator[None]:
        with deadline(5):
            yield

    generator = dependency()
    contextvars.copy_context().run(next, generator)
    assert next(generator, "finished") == "finished"
    assert current() is None


def test_threads_see_the_deadline_only_through_propagate() -> None:
    """Case 39 of the reference; the wrapped function may run in many threads at once."""
    clock = VirtualClock()
    barrier = threading.Barrier(3)

    def together() -> float | None:
        barrier.wait(timeout=10)
        return remaining()

    with ThreadPoolExecutor(3) as pool, deadline(2, clock=clock):
        assert pool.submit(remaining).result() is None
        function = propagate(together)
        assert [future.result() for future in [pool.submit(function) for _ in range(3)]] == [2.0, 2.0, 2.0]
        assert function.__name__ == "together"

        def inner() -> float | None:
            with shield(9, clock=clock), deadline(3, clock=clock):
                return remaining()

        assert pool.submit(propagate(inner)).result() == 3.0
        assert remaining() == 2.0


def test_a_shield_in_a_thread_leaves_the_loop_alone() -> None:
    """Timers belong to the loop's thread."""

    def work() -> float | None:
        with shield(9):
            return remaining()

    async def main() -> None:
        async with deadline(30):
            left = await asyncio.to_thread(work)
            assert left is not None
            assert 8 < left <= 9

    asyncio.run(main())


def test_coroutines_are_not_propagated() -> None:
    """The wrapper would run nothing but the creation of the coroutine."""

    async def work() -> None: ...

    with pytest.raises(TypeError, match="inherits"):
        propagate(work)


def test_a_context_that_outlives_a_scope_keeps_no_task_alive() -> None:
    """Background tasks copy the context; they must not hold the frames of every request that started one."""

    async def main() -> bool:
        contexts: list[contextvars.Context] = []

        async def request() -> None:
            async with deadline(1):
                contexts.append(contextvars.copy_context())

        task = asyncio.get_running_loop().create_task(request())
        await task
        gone = weakref.ref(task)
        del task
        await asyncio.sleep(0)
        gc.collect()
        return gone() is None and len(contexts) == 1

    assert run_virtual(main)


def test_the_public_names_are_exactly_these() -> None:
    """Users import them from the package."""
    wanted = {"deadline", "remaining", "timeout_for", "check", "shield", "current", "propagate"}
    wanted |= {"no_deadline", "run_to_completion", "COUNTERS", "Counters", "Metric"}
    values = {"Deadline", "DeadlineExceeded", "DeadlinePolicy", "Limit", "Problem", "ProblemKind"}
    assert wanted | values == set(gatepost.deadline.__all__)


@pytest.mark.parametrize("line", ["import gatepost.deadline", "from gatepost import sign, verify, SignatureError"])
def test_deadlines_and_signatures_need_the_standard_library_only(line: str) -> None:
    """Receivers and other services use them without installing a sender's dependencies."""
    blocked = ("httptools", "idna", "cryptography", "uvloop", "fastapi", "pydantic", "h11", "typing_extensions")
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
{line}
foreign = sorted(
    name for name in sys.modules
    if "." not in name and name not in sys.stdlib_module_names and name not in ("gatepost", "__main__")
    and getattr(sys.modules[name], "__file__", None) and "site-packages" in sys.modules[name].__file__
)
before = set({sorted(_preloaded())!r})
assert not set(foreign) - before, foreign
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def _preloaded() -> set[str]:
    """What an interpreter of this environment loads by itself (`.pth` files of test tools)."""
    output = subprocess.run(
        [sys.executable, "-c", "import sys; print(' '.join(sys.modules))"], check=True, capture_output=True, text=True
    )
    return {name for name in output.stdout.split() if "." not in name}
