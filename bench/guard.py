"""A guard against speed lost unnoticed: how many calls our code makes per delivery, compared with the recorded figures.

Calls of a fixed run are counted, not time, so that a busy machine finds what a quiet one does. The figures, one set for each
version of Python, change only by `python -m bench.guard --update`, on purpose; tests call `shortfalls` and `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import gatepost
from bench.report import add_common_options, print_json, print_table
from bench.rig import LOOPBACK, PAYLOAD
from gatepost import DispatchClient, Dispatcher
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.receiver_process import ReceiverProcess

TOLERANCE: Final = 0.05
"""More than this above a recorded figure fails. As much below it does too: a gain that nobody records can be lost unseen."""
WARM_UP: Final = 50
COUNTED: Final = 200
"""Enough that a timer's turn within the run is far below the tolerance, and still a second of work."""
RECORD: Final = Path(__file__).with_name("guard.json")
OURS: Final = f"{Path(gatepost.__file__).parent}/"

Send = Callable[[], Awaitable[None]]


class CallCounter:
    """Counts calls of our functions and from them into C, in this thread, between `start` and `stop`.

    The event loop's own turns depend on how busy the machine is, so calls elsewhere do not count.
    """

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def start(self) -> None:
        """Begin; replaces any profile function of this thread."""
        sys.setprofile(self._event)

    def stop(self) -> None:
        """End."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
            self.calls += 1


class _Finished:
    """An `Observer` that wakes whoever waits for the one delivery under way."""

    def __init__(self) -> None:
        self.decided = asyncio.Event()
        self.decision = ""

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Decisions count."""

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """The delivery is over."""
        self.decision = observation.decision
        self.decided.set()

    def operational(self, observation: OperationalObservation) -> None:
        """Nothing waits for these."""


async def _calls_per(send: Send) -> float:
    """Send one after the other, which leaves nothing to the order of events; calls per one."""
    for _ in range(WARM_UP):
        await send()
    counter = CallCounter()
    counter.start()
    try:
        for _ in range(COUNTED):
            await send()
    finally:
        counter.stop()
    return round(counter.calls / COUNTED, 2)


async def client_calls(url: str) -> float:
    """Calls of one keep-alive POST by the client alone."""
    async with DispatchClient(egress=LOOPBACK) as client:

        async def send() -> None:
            if not (await client.deliver(url, PAYLOAD)).delivered:
                raise RuntimeError("the receiver did not take a request: nothing to compare")

        return await _calls_per(send)


async def dispatcher_calls(url: str, extra: Callable[[], None] | None = None) -> float:
    """Calls from publish to settled, in a dispatcher on `memory://`; `extra` is called for each decision, for tests."""
    finished = _Finished()
    async with Dispatcher.open("memory://", egress=LOOPBACK, observer=finished, run=True) as gp:
        await gp.endpoints.create(url, event_types=("guard",))

        async def send() -> None:
            finished.decided.clear()
            await gp.publish("guard", PAYLOAD)
            await finished.decided.wait()
            if finished.decision != "complete":
                raise RuntimeError(f"a delivery ended as {finished.decision}: nothing to compare")
            if extra is not None:
                extra()

        return await _calls_per(send)


def measure() -> dict[str, float]:
    """Calls per delivery, by part."""
    with ReceiverProcess("--no-ids") as receiver:
        url = f"{receiver.urls[0]}/hooks"
        with asyncio.Runner() as runner:
            return {"client": runner.run(client_calls(url)), "dispatcher": runner.run(dispatcher_calls(url))}


def python_version() -> str:
    """The key of the record: calls differ between minor versions, as comprehensions became inline."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def recorded() -> dict[str, dict[str, float]]:
    """All recorded figures, by Python version and part."""
    found: dict[str, dict[str, float]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


def shortfalls(measured: Mapping[str, float], wanted: Mapping[str, float]) -> list[str]:
    """A sentence for each part that is off its figure by more than the tolerance; empty when all hold."""
    found = []
    for part, figure in wanted.items():
        change = measured[part] / figure - 1
        if abs(change) > TOLERANCE:
            found.append(
                f"{part}: {measured[part]:,.1f} calls a delivery, recorded {figure:,.1f} ({change:+.1%}): "
                "find what changed; if it is meant, record it by `python -m bench.guard --update`"
            )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when a part is off its figure or none is recorded for this Python."""
    parser = argparse.ArgumentParser("bench.guard", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--update", action="store_true", help="record what is measured now, for this version of Python")
    options = parser.parse_args(argv)
    measured, known, version = measure(), recorded(), python_version()
    if options.update:
        known[version] = measured
        RECORD.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    wanted = known.get(version, {})
    wrong = shortfalls(measured, wanted) if wanted else [f"no figures for Python {version}: run with --update"]
    result: dict[str, Any] = {"python": version, "measured": measured, "recorded": wanted, "wrong": wrong}
    if options.json:
        print_json(result)
    else:
        rows = [(part, f"{calls:,.2f}", f"{wanted.get(part, 0):,.2f}") for part, calls in measured.items()]
        print_table(f"Calls per delivery, Python {version}", ("part", "measured", "recorded"), rows)
        for line in wrong:
            print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
