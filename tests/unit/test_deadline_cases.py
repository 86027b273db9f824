"""The numbered cases of the deadline reference: headers, nesting, queue age, threads, messages. Those that need a real gRPC
server are in `test_deadline_grpc`, those of clients, stores and queues beside their adapters."""

from __future__ import annotations

import asyncio
import copy
import pickle
import string
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.deadline import (
    Counters,
    Deadline,
    DeadlineExceeded,
    DeadlinePolicy,
    Metric,
    Problem,
    ProblemKind,
    deadline,
    propagate,
    remaining,
    shield,
)
from gatepost.deadline.estimate import Admission, Estimate, median_of
from gatepost.deadline.gate import Gate, GateSettings, Operation, Refusal, Run
from gatepost.deadline.wire import HeaderFormat
from gatepost.errors import ConfigurationError
from gatepost.testing.virtual import START_WALL_US, VirtualClock, run_virtual

ENVOY = DeadlinePolicy(formats=("request-timeout", "grpc-timeout", "x-envoy-expected-rq-timeout-ms"))


def left(*items: tuple[str, str], policy: DeadlinePolicy | None = None) -> tuple[float, str, list[ProblemKind]]:
    """Seconds left of what these headers ask for, where they came from, and what was wrong."""
    received, problems = Deadline.from_headers(items, policy, clock=VirtualClock())
    assert received is not None
    return received.remaining(), received.origin, [problem.kind for problem in problems]


def grpc(text: str) -> tuple[float, str, list[ProblemKind]]:
    """The same for one `grpc-timeout`."""
    return left(("grpc-timeout", text))


def http(text: str) -> tuple[float, str, list[ProblemKind]]:
    """The same for one `Request-Timeout`."""
    return left(("Request-Timeout", text))


INVALID = (10.0, "default", [ProblemKind.INVALID])


def test_case_01_grpc_milliseconds() -> None:
    """`140m` is the seed's example."""
    assert grpc("140m") == (0.14, "grpc-timeout", [])


def test_case_02_grpc_seconds_minutes_hours() -> None:
    """The units differ by case only from others: M is minutes, m milliseconds."""
    wide = DeadlinePolicy(max=4000)
    assert [left(("grpc-timeout", text), policy=wide)[0] for text in ("1S", "1M", "1H")] == [1, 60, 3600]


def test_case_03_the_longest_grpc_timeout_is_clamped() -> None:
    """41,000 years are an error of somebody, but not one to refuse work for."""
    assert grpc("99999999H") == (60.0, "grpc-timeout", [ProblemKind.CLAMPED])


@pytest.mark.parametrize("text", ["100000000m", "000000001n"])
def test_case_04_nine_digits_are_invalid(text: str) -> None:
    """The grammar has eight."""
    assert grpc(text) == INVALID


def test_case_05_leading_zeros_are_digits() -> None:
    """Eight of them."""
    assert grpc("00000001n")[0] == 1e-9
    assert grpc("00000005S")[0] == 5.0


@pytest.mark.parametrize("text", ["-1S", "+5S", "1234", "S", "1234s", "0.25S", "5SS", ""])
def test_case_06_what_is_no_grpc_timeout(text: str) -> None:
    """None of them may become "no limit"."""
    assert grpc(text) == INVALID


@pytest.mark.parametrize("text", ["0S", "00000000S"])
def test_case_07_zero_is_expired(text: str) -> None:
    """Not "unlimited", as for half of all libraries."""
    assert grpc(text) == (0.0, "grpc-timeout", [])


def test_case_08_grpc_microseconds() -> None:
    """Sub-millisecond budgets exist inside a machine."""
    assert grpc("1500u")[0] == 0.0015


def test_case_09_spaces_around_but_not_inside() -> None:
    """HTTP strips the first kind itself."""
    assert grpc(" 5S ")[0] == 5.0
    assert grpc("5 S") == INVALID


def test_case_10_request_timeout_in_decimals() -> None:
    """The ordinary case."""
    assert http("0.25") == (0.25, "request-timeout", [])


def test_case_11_request_timeout_in_whole_seconds() -> None:
    """The form of draft-thomson-hybi-http-timeout."""
    assert http("5")[0] == 5.0
    assert http(" 2 ")[0] == 2.0
    assert http("\t2")[0] == 2.0


@pytest.mark.parametrize("text", ["0", "0.0"])
def test_case_12_zero_seconds_are_refused_on_arrival(text: str) -> None:
    """With the answer that tells a caller why."""
    gate, _, counters = new_gate()
    verdict = gate.arrive("GET", "/", [(b"request-timeout", text.encode())])
    assert isinstance(verdict, Refusal)
    assert (verdict.status, (b"deadline-exceeded", b"arrival") in verdict.headers) == (504, True)
    assert counters.value(Metric.REJECTED, "arrival") == 1


BAD_SECONDS = ["-1", "+1", "1e3", "inf", "nan", "1_000", "0x10", "5.", ".5", "2s", "250ms", "\u0663", ""]


@pytest.mark.parametrize("text", BAD_SECONDS)
def test_case_13_what_is_no_request_timeout(text: str) -> None:
    """`float()` takes half of them."""
    gate, _, counters = new_gate()
    verdict = gate.arrive("GET", "/", [("request-timeout", text)])
    assert isinstance(verdict, Run)
    assert verdict.deadline.remaining() == 10.0
    assert http(text) == INVALID
    assert counters.value(Metric.INVALID, "request-timeout") == 1


def test_case_14_nine_decimals_and_no_more() -> None:
    """Nanoseconds are what the clock has."""
    assert http("1.123456789")[0] == 1.123456789
    assert http("1.0000000001") == INVALID


def test_case_15_eight_digits_and_no_more() -> None:
    """Three years are clamped, thirty are no number any more."""
    assert http("99999999") == (60.0, "request-timeout", [ProblemKind.CLAMPED])
    assert http("100000000") == INVALID


def test_case_16_the_least_of_several_headers_holds() -> None:
    """Each hop and each library may add its own."""
    assert left(("Request-Timeout", "2"), ("grpc-timeout", "140m")) == (0.14, "grpc-timeout", [])


def test_case_17_a_bad_one_does_not_spoil_a_good_one() -> None:
    """It is counted all the same."""
    found = left(("Request-Timeout", "bogus"), ("grpc-timeout", "1S"))
    assert found == (1.0, "grpc-timeout", [ProblemKind.INVALID])


def test_case_18_repeated_and_joined_values() -> None:
    """Proxies may do either to the other."""
    assert http("5, 2")[0] == 2.0
    assert left(("Request-Timeout", "5"), ("request-timeout", "2"))[0] == 2.0
    assert http("5, soon")[::2] == (5.0, [ProblemKind.INVALID])
    assert http(",".join(["5"] * 33)) == INVALID


def test_case_19_without_a_header_the_default_holds() -> None:
    """Never "unlimited"."""
    assert left() == (10.0, "default", [])
    gate, _, counters = new_gate()
    gate.arrive("GET", "/", [])
    assert counters.value(Metric.REQUESTS, "default") == 1


def test_case_20_an_hour_is_clamped_and_says_by_what() -> None:
    """Not an error: the caller gets as much as there is."""
    received, problems = Deadline.from_headers([("Request-Timeout", "3600")], clock=VirtualClock())
    assert received is not None
    assert received.remaining() == 60.0
    assert received.clamped_by is not None
    assert received.clamped_by.name == "max"
    assert [limit.seconds for limit in received.chain] == [60.0, 3600.0]
    assert problems[0].kind is ProblemKind.CLAMPED


def test_case_21_envoy_is_read_only_when_enabled_and_its_zero_says_nothing() -> None:
    """Envoy's 0 is "no limit", which is no information."""
    name = "x-envoy-expected-rq-timeout-ms"
    assert left((name, "0"), policy=ENVOY) == (10.0, "default", [])
    assert left((name, "250"), policy=ENVOY) == (0.25, name, [])
    assert left((name, "1.5"), policy=ENVOY)[2] == [ProblemKind.INVALID]
    assert left((name, "250")) == (10.0, "default", [])


def test_case_22_nesting_is_the_minimum_and_says_what_clamped() -> None:
    """10 inside 2.5 is 2.5; 0.4 inside 2.5 is 0.4."""
    clock = VirtualClock()
    with deadline(2.5, name="request", clock=clock), deadline(10) as inner:
        assert inner.remaining() == 2.5
        assert inner.clamped_by is not None
        assert inner.clamped_by.name == "request"
    with deadline(2.5, clock=clock), deadline(0.4) as inner:
        assert inner.remaining() == 0.4
        assert inner.clamped_by is None


def test_case_23_a_hop_hands_down_what_is_left_less_its_reserve() -> None:
    """2.0 s, 0.3 s used, 10 ms kept for the way back: 1.69 s."""
    clock = VirtualClock()
    ours = Deadline.after(2.0, clock=clock)
    clock.advance(0.3)
    handed = ours.child(reserve=0.01)
    assert handed.to_headers() == [("Request-Timeout", "1.69")]
    assert ours.child(cap=0.5).remaining() == 0.5
    with pytest.raises(DeadlineExceeded):
        ours.child(reserve=1.7)


def test_case_24_a_late_hop_is_never_called() -> None:
    """A has 20 s and spends 12; B, with a static 15, gets 8 and spends them; C is not called (userver's example)."""
    clock = VirtualClock()
    with deadline(20, name="A", clock=clock):
        clock.advance(12)
        with deadline(15, name="B") as at_b:
            assert at_b.remaining() == 8.0
            clock.advance(8)
            with pytest.raises(DeadlineExceeded):
                at_b.to_headers()


@pytest.mark.parametrize(("seconds", "text"), [(1.2349, "1.234"), (12.0, "12"), (0.001, "0.001"), (0.25, "0.25")])
def test_case_25_emission_is_floored_to_the_millisecond(seconds: float, text: str) -> None:
    """What is handed down must not be more than what is left."""
    assert Deadline.after(seconds, clock=VirtualClock()).to_headers() == [("Request-Timeout", text)]


def test_case_25_less_than_a_millisecond_is_not_sent() -> None:
    """A request without time is work for nobody."""
    short = Deadline.after(0.0009, clock=VirtualClock())
    formats: tuple[HeaderFormat, ...] = ("request-timeout", "grpc", "both")
    for fmt in formats:
        with pytest.raises(DeadlineExceeded):
            short.to_headers(fmt)
    with pytest.raises(DeadlineExceeded):
        short.to_message()
    with pytest.raises(ValueError, match="'both'"):
        Deadline.after(1).to_headers("seconds")  # type: ignore[arg-type]  # misuse


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2349, "1234m"), (99_999.999, "99999999m"), (100_000, "100000S"), (1e8, "1666666M"), (9.9e8, "16500000M")],
)
def test_case_25_grpc_emission_keeps_to_eight_digits(seconds: float, text: str) -> None:
    """Milliseconds as long as they fit, then coarser units, always floored."""
    assert Deadline.after(seconds, clock=VirtualClock()).to_headers("grpc") == [("grpc-timeout", text)]
    assert len(Deadline.after(seconds, clock=VirtualClock()).to_headers("both")) == 2


def new_gate(**settings: Any) -> tuple[Gate, VirtualClock, Counters]:
    """A gate on a clock and counters of its own."""
    clock, counters = VirtualClock(), Counters()
    return Gate(GateSettings(clock=clock, counters=counters, **settings)), clock, counters


def taught(gate: Gate, clock: VirtualClock, seconds: float, count: int = 200) -> None:
    """An operation that takes that long."""
    for _ in range(count):
        run = gate.arrive("POST", "/render", [("request-timeout", "5")])
        assert isinstance(run, Run)
        clock.advance(seconds)
        gate.answered(run, ok=True)


def test_case_26_less_than_the_learned_median_is_refused() -> None:
    """0.08 s left for what takes 0.12 s is dead work; 0.13 s is not."""
    gate, clock, counters = new_gate()
    taught(gate, clock, 0.12)
    verdict = gate.arrive("POST", "/render", [("request-timeout", "0.08")])
    assert isinstance(verdict, Refusal)
    assert (b"deadline-exceeded", b"admission") in verdict.headers
    assert counters.value(Metric.DEAD_WORK_AVOIDED) == pytest.approx(0.12)
    assert isinstance(gate.arrive("POST", "/render", [("request-timeout", "0.13")]), Run)


def test_case_27_the_valve_lets_through_once_a_fifth_is_refused() -> None:
    """A wrong estimate must cost a fifth, not everything."""
    gate, clock, counters = new_gate()
    taught(gate, clock, 0.12)
    verdicts = [gate.arrive("POST", "/render", [("request-timeout", "0.08")]) for _ in range(300)]
    refused = sum(isinstance(verdict, Refusal) for verdict in verdicts)
    requests = gate.statistics()["POST /render"].requests
    assert 0.19 * requests <= refused <= 0.2 * requests + 1
    assert counters.value(Metric.LET_THROUGH, "valve") == 300 - refused


def test_case_27_one_a_second_is_begun_whatever_it_has_left() -> None:
    """Otherwise nothing would ever show that the operation is quick again."""
    gate, clock, counters = new_gate()
    taught(gate, clock, 0.12)
    clock.advance(1)
    assert isinstance(gate.arrive("POST", "/render", [("request-timeout", "0.08")]), Run)
    assert counters.value(Metric.LET_THROUGH, "probe") == 1
    assert isinstance(gate.arrive("POST", "/render", [("request-timeout", "0.08")]), Refusal)


def test_case_27_an_estimate_heals_when_the_work_gets_quick() -> None:
    """Nobody has to restart the service after an incident."""
    gate, clock, _ = new_gate()
    taught(gate, clock, 2.0)
    for _ in range(400):
        verdict = gate.arrive("POST", "/render", [("request-timeout", "1")])
        clock.advance(0.1)
        if isinstance(verdict, Run):
            gate.answered(verdict, ok=True)
    assert gate.statistics()["POST /render"].median == pytest.approx(0.1)


@pytest.mark.parametrize("step", [3600, -3600])
def test_case_28_the_wall_clock_may_step_during_handling(step: float) -> None:
    """NTP and operators move it; a budget stays what it was."""
    clock = VirtualClock()
    received, _ = Deadline.from_headers([("Request-Timeout", "5")], clock=clock)
    assert received is not None
    clock.advance(1)
    clock.step_wall(step)
    assert received.remaining() == 4.0
    assert received.to_headers() == [("Request-Timeout", "4")]


def started(age: float, form: str) -> tuple[str, str]:
    """`X-Request-Start` that many seconds ago."""
    us = START_WALL_US - round(age * 1e6)
    forms = {
        "s": f"t={us / 1e6:.3f}",
        "bare": f"{us / 1e6:.3f}",
        "ms": f"t={us // 1000}",
        "us": f"t={us}",
        "ns": f"{us}000",
    }
    return "X-Request-Start", forms[form]


@pytest.mark.parametrize("form", ["s", "bare", "ms", "us", "ns"])
def test_case_29_time_in_the_queue_is_taken_off(form: str) -> None:
    """nginx, Heroku and others write different units."""
    assert left(("Request-Timeout", "1.0"), started(0.4, form))[::2] == (0.6, [])


@pytest.mark.parametrize("age", [-5, 7200, 60.1])
def test_case_29_an_age_that_cannot_be_is_ignored(age: float) -> None:
    """The two clocks differ, or the header is nonsense."""
    assert left(("Request-Timeout", "1.0"), started(age, "s"))[::2] == (1.0, [ProblemKind.SKEW])


def test_case_29_the_oldest_stamp_counts_and_bad_ones_do_not() -> None:
    """Each proxy on the way may add its own."""
    name, early = started(0.4, "s")
    assert left(("Request-Timeout", "1"), (name, started(0.1, "s")[1]), (name, early))[0] == 0.6
    assert left(("Request-Timeout", "1"), (name, f"soon, {early}"))[::2] == (0.6, [ProblemKind.INVALID])
    assert left(("Request-Timeout", "1"), started(3, "s"))[0] == 0.0
    assert left(started(0.4, "s"))[0] == 9.6
    policy = DeadlinePolicy(queue_header=None, allowance=0.05)
    assert left(("Request-Timeout", "1"), started(0.4, "s"), policy=policy)[::2] == (0.95, [])


def test_case_39_threads_see_a_deadline_only_through_propagate() -> None:
    """A pool's thread belongs to nobody's request."""
    with ThreadPoolExecutor(1) as pool, deadline(2, clock=VirtualClock()):
        assert pool.submit(remaining).result() is None
        assert pool.submit(propagate(remaining)).result() == 2.0


def test_case_40_a_cancellation_from_outside_stays_one() -> None:
    """At any moment, the tick of the expiry included, nested or not, in a TaskGroup or not."""

    async def body() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
        async with deadline(5, clock=clock), deadline(3), asyncio.timeout(4), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for at in (0.5, 3.0):
            for early in (True, False):
                if early:
                    task = loop.create_task(body())
                    loop.call_at(loop.time() + at, task.cancel)
                else:
                    task = loop.create_task(body())
                    await asyncio.sleep(0)  # its timers come first now
                    loop.call_at(loop.time() + at, task.cancel)
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()

    run_virtual(main)


def test_case_40_our_cut_leaves_no_trace_in_the_tasks_count_of_cancellations() -> None:
    """`uncancel` is how TaskGroup and timeouts around tell whose turn it is, on 3.11 as on 3.13."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with asyncio.timeout(100):
            for _ in range(3):
                with pytest.raises(DeadlineExceeded):
                    async with deadline(1), asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(10))
                assert task.cancelling() == 0
            await asyncio.sleep(1)
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(1), deadline(5):
                await asyncio.sleep(10)
        assert not isinstance(caught.value, DeadlineExceeded)
        assert task.cancelling() == 0

    run_virtual(main)


def test_case_41_a_shield_runs_inside_an_expired_scope() -> None:
    """Clean-up comes after the deadline, by its nature."""
    clock = VirtualClock()
    with deadline(1, clock=clock):
        clock.advance(2)
        with shield(max=5) as inside:
            assert 0 < inside.remaining() <= 5


def test_case_42_messages_carry_what_was_left_and_when() -> None:
    """Ten seconds in the queue are taken off; a clock that is behind takes nothing off; older than that is expired."""
    clock = VirtualClock()
    message = Deadline.after(12.5, clock=clock).to_message()
    assert message == {"rt": 12.5, "at": START_WALL_US / 1e6}
    for later, expected, kinds in ((10, 2.5, []), (-3, 12.5, [ProblemKind.SKEW]), (13, 0.0, []), (-0.5, 12.5, [])):
        receiver = VirtualClock(start_wall_us=START_WALL_US + round(later * 1e6))
        received, problems = Deadline.from_message(message, clock=receiver)
        assert received is not None
        assert received.remaining() == pytest.approx(expected)
        assert [problem.kind for problem in problems] == kinds
        assert received.origin == "message"
        assert received.expired is (expected == 0)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"rt": 1},
        {"rt": "1", "at": 1},
        {"rt": True, "at": 1},
        {"rt": float("nan"), "at": 1},
        {"rt": -1, "at": 1},
        "1",
    ],
)
def test_case_42_an_unreadable_message_has_no_deadline_and_says_so(message: Any) -> None:
    """The queue's own default holds then, not "none" in silence."""
    received, problems = Deadline.from_message(message)
    assert received is None
    assert {problem.kind for problem in problems} == {ProblemKind.INVALID}
    assert all(str(problem) for problem in problems)
    assert Deadline.from_message(None) == (None, [])


def test_case_43_pickling_raises_and_names_what_to_use() -> None:
    """A monotonic instant of one machine is a random number on another."""
    one = Deadline.after(1)
    for function in (pickle.dumps, copy.deepcopy):
        if function is pickle.dumps:
            with pytest.raises(TypeError, match="to_message"):
                function(one)
        else:
            assert function(one) is one


FORK = """
import os
from gatepost.deadline import COUNTERS, Metric, deadline, remaining
with deadline(60) as scope:
    ours, theirs = os.pipe()
    if os.fork() == 0:
        COUNTERS.count(Metric.CLAMPED)
        os.write(theirs, f"{remaining()} {scope.remaining()}".encode())
        os._exit(0)
    os.wait()
    ambient, inherited = map(float, os.read(ours, 100).split())
    assert 50 < inherited <= ambient <= 60, (ambient, inherited)
"""


def test_case_43_a_fork_keeps_the_deadline() -> None:
    """Parent and child read the same monotonic clock. In a process of its own, without the threads of other tests."""
    subprocess.run([sys.executable, "-W", "error", "-c", FORK], check=True, timeout=60)


# ------------------------------------------------------------------------------------------------ properties

HEADER_TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="0123456789.,SmunHM +-eE_xnif\t", max_size=20),
    st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,10})?", fullmatch=True),
    st.from_regex(r"[0-9]{1,9}[HMSmun]", fullmatch=True),
)
NAMES = st.sampled_from(
    ["Request-Timeout", "grpc-timeout", "x-envoy-expected-rq-timeout-ms", "X-Request-Start", "Cookie"]
)


@given(items=st.lists(st.tuples(NAMES, HEADER_TEXT), max_size=6), reject=st.booleans(), step=st.integers(-3600, 3600))
def test_any_headers_yield_a_deadline_within_the_bounds_or_a_rejection(
    items: list[tuple[str, str]], reject: bool, step: int
) -> None:
    """Never an error, never "unlimited", never more than `max`, and no step of the wall clock changes it afterwards."""
    clock = VirtualClock()
    policy = DeadlinePolicy(formats=ENVOY.formats, on_invalid="reject" if reject else "ignore")
    received, problems = Deadline.from_headers(items, policy, clock=clock)
    if received is None:
        assert reject
        assert any(problem.kind is ProblemKind.INVALID for problem in problems)
        return
    before = received.remaining()
    assert 0 <= before <= policy.max
    if received.origin == "default":
        assert before <= policy.default
    clock.step_wall(step)
    assert received.remaining() == before
    for problem in problems:
        assert isinstance(problem, Problem)
        assert str(problem)
        assert len(problem.value) <= 64


@given(ns=st.integers(1_000_000, 10**18))
def test_what_is_emitted_is_read_back_and_never_more(ns: int) -> None:
    """A budget only shrinks on its way."""
    clock = VirtualClock()
    sent = Deadline.until(clock.monotonic_ns() + ns, clock=clock)
    policy = DeadlinePolicy(max=2e9)
    formats: tuple[HeaderFormat, ...] = ("request-timeout", "grpc")
    for fmt in formats:
        headers = sent.to_headers(fmt)
        received, problems = Deadline.from_headers(headers, policy, clock=clock)
        assert received is not None
        if fmt == "request-timeout" and ns >= 10**17:
            continue  # nine digits of seconds: three years
        assert problems == []
        assert ns - 3_600 * 10**9 < received.remaining_ns() <= ns
        if ns < 10**14:
            assert received.remaining_ns() == ns // 1_000_000 * 1_000_000


@given(message=st.fixed_dictionaries({"rt": st.floats(), "at": st.floats()}), now=st.integers(0, 2**60))
def test_any_message_yields_a_deadline_or_a_problem(message: dict[str, float], now: int) -> None:
    """Queues hold what any version of any producer wrote."""
    received, problems = Deadline.from_message(message, clock=VirtualClock(start_wall_us=now))
    if received is None:
        assert problems
    else:
        assert 0 <= received.remaining() <= 1e9


@given(limits=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=12), step=st.integers(-3600, 3600))
def test_any_nesting_of_scopes_is_the_minimum(limits: list[float], step: int) -> None:
    """However the layers of a program are stacked."""
    clock = VirtualClock()

    def nest(rest: list[float]) -> float | None:
        if not rest:
            clock.step_wall(step)
            return remaining()
        with deadline(rest[0], clock=clock):
            return nest(rest[1:])

    assert nest(limits) == round(min(limits) * 1e9) / 1e9


# --------------------------------------------------------------------------------------- the parts of the cases


def test_the_censored_median_is_the_references() -> None:
    """The vectors of the reference's section 2(f), at one half."""
    assert median_of([1, -2, 3, 4, -5]) == 4
    assert median_of([-1, -1, 2]) == 2
    assert median_of([-1, -1, -1]) is None
    assert median_of([]) is None
    assert median_of([3, 1, 2]) == 2


def test_calls_that_were_cut_keep_the_estimate_up() -> None:
    """Learning from survivors alone would call the slowest operation the quickest."""
    estimate = Estimate()
    for _ in range(60):
        estimate.learn(0.1)
        estimate.learn(0.3, cut=True)
    assert estimate.median is None or estimate.median >= 0.1
    survivors = Estimate()
    for number in range(100):
        survivors.learn(0.5, cut=number % 3 == 0)
    assert survivors.median == 0.5


def test_nothing_is_refused_before_fifty_samples() -> None:
    """A guess is no reason to refuse work."""
    estimate = Estimate()
    for _ in range(49):
        estimate.learn(1.0)
    assert estimate.median is None
    assert estimate.admit(0.01, 100.0) is Admission.ENOUGH
    estimate.learn(1.0)
    assert estimate.median == 1.0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 0.5), st.floats(0.001, 1.0)), min_size=100, max_size=300))
def test_the_valve_holds_for_any_arrivals(arrivals: list[tuple[float, float]]) -> None:
    """At most a fifth and one are refused over any window, and never two seconds pass without a start."""
    estimate = Estimate()
    for _ in range(50):
        estimate.learn(0.5)
    now, refused, begun_at = 1000.0, 0, 1000.0
    estimate.admit(1.0, now)
    for gap, budget in arrivals:
        now += gap
        answer = estimate.admit(budget, now)
        if answer is Admission.REFUSED:
            refused += 1
            assert now - begun_at < 1.0
            statistics = estimate.statistics()
            assert statistics.refused <= 0.2 * statistics.requests + 1
        else:
            begun_at = now


def names(gate: Gate) -> Iterator[str]:
    """Operations learned."""
    yield from gate.statistics()


def test_paths_with_ids_are_one_operation_and_their_number_is_bounded() -> None:
    """Clients make up paths; memory must not follow them."""
    gate, _, _ = new_gate(operations={"GET /orders/{id}/lines": Operation()})
    for number in range(1_000):
        gate.arrive("GET", f"/orders/{number}/lines", [])
        gate.arrive("GET", f"/users/u{number}", [])
        gate.arrive("GET", "/" + "".join(string.ascii_lowercase[int(digit)] for digit in str(number)), [])
    assert len(gate.statistics()) == 256
    gate.arrive("GET", "/orders/abc/lines", [])
    assert {"GET /orders/{id}/lines", "GET /users/{}"} <= set(names(gate))


@pytest.mark.parametrize(
    "fields",
    [
        {"default": 0},
        {"default": 61},
        {"max": float("inf")},
        {"min_budget": -1},
        {"allowance": 10.0},
        {"allowance": -1},
        {"formats": ()},
        {"formats": "request-timeout"},
        {"formats": ("x-timeout",)},
        {"on_invalid": "drop"},
        {"queue_header": "X-Request-Start"},
        {"default": None},
    ],
)
def test_an_impossible_policy_is_refused(fields: Any) -> None:
    """At the start, with what to write instead."""
    with pytest.raises(ConfigurationError, match="write"):
        DeadlinePolicy(**fields)
