"""The guard against lost speed: it holds now, and it would notice a cost planted on the way of a delivery."""

from __future__ import annotations

import asyncio

import pytest

from bench.guard import TOLERANCE, CallCounter, dispatcher_calls, measure, python_version, recorded, shortfalls
from gatepost.testing.receiver_process import ReceiverProcess
from gatepost.wire.signing import new_secret


def test_a_delivery_makes_no_more_calls_than_recorded() -> None:
    """The guard itself: counted and not timed, so it holds on a busy machine."""
    wanted = recorded().get(python_version())
    if wanted is None:
        pytest.skip(f"no figures recorded for Python {python_version()}")
    assert shortfalls(measure(), wanted) == []


def test_a_cost_planted_in_each_delivery_is_found() -> None:
    """A guard that cannot fail guards nothing: a few calls of our own code per delivery must show."""
    wanted = recorded().get(python_version())
    if wanted is None:
        pytest.skip(f"no figures recorded for Python {python_version()}")
    extra = round(wanted["dispatcher"] * TOLERANCE * 2)

    def plant() -> None:
        for _ in range(extra):
            new_secret(bytes(32))

    with ReceiverProcess("--no-ids") as receiver:
        planted = asyncio.run(dispatcher_calls(f"{receiver.urls[0]}/hooks", plant))
    found = shortfalls({"dispatcher": planted}, {"dispatcher": wanted["dispatcher"]})
    assert len(found) == 1
    assert "--update" in found[0]


@pytest.mark.parametrize(("calls", "wrong"), [(100.0, 0), (104.9, 0), (105.1, 1), (95.1, 0), (94.9, 1)])
def test_five_percent_either_way_is_the_limit(calls: float, wrong: int) -> None:
    """A gain is recorded too, or it could be lost again without a sound."""
    assert len(shortfalls({"client": calls}, {"client": 100.0})) == wrong


def test_calls_of_others_do_not_count() -> None:
    """The event loop turns more often on a busy machine; that is no cost of ours."""
    counter = CallCounter()
    counter.start()
    sorted("abc", key=str.upper)
    counter.stop()
    assert counter.calls == 0
