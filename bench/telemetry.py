"""What telling costs in its place: microseconds of processor time that metrics, log line and observations add to a delivery.

Runs the dispatcher's own `AttemptRunner` with and without the observers of the service, in turns, over attempts that need no
network. Caches are as cold as they are in a dispatcher: two to three times what `bench.metrics` finds of each part alone. Tracing is
off. `python -m bench.telemetry [--json]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TextIO, cast

from bench.limits_cost import Tracked
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.deadline.value import Deadline
from gatepost.delivery.attempt import Attempt, attempt_record
from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.outcome import End, Evidence, classify
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Endpoint, EndpointSecret, Secret
from gatepost.dispatch.attempt import AttemptRunner
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.hosts import HostState
from gatepost.dispatch.lanes import Kind, Lane
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.policy_view import PolicyView
from gatepost.dispatch.round import Start
from gatepost.dispatch.seats import EndpointState, TenantState
from gatepost.dispatch.settle import Result
from gatepost.dispatch.streaks import Streaks
from gatepost.net.observation import observation_of
from gatepost.net.tls import TLSProfile
from gatepost.service.console.pulse import Pulse
from gatepost.service.doctor.recent import RecentHosts
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.metrics import Metrics
from gatepost.service.observers import Observers
from gatepost.store.memory import MemoryStore
from gatepost.store.rows import EventBody, Row, lane_of
from gatepost.telemetry import Observer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from gatepost.wire.signing import new_secret

ENDPOINTS: Final = 400
"""Each on a host of its own: four times as many as have labels."""
TURNS: Final = 10
"""Different attempts of each endpoint."""
BLOCK: Final = ENDPOINTS
"""Deliveries timed at once, one of each endpoint: some 20 ms, within which a shared machine is equally quick for all."""
FRESH: Final = 0.05
"""Share of attempts that open their connection: seven phases instead of four."""
FAILING_EVERY: Final = 4
"""Endpoints of which one attempt in ten is answered with 500: less than any breaker or alert minds."""
WRITTEN_WITHIN: Final = 0.12
"""Seconds after which the log's thread has woken and written a block."""
EVENT_ID: Final = 1 << 50


def attempts(seed: int = 1) -> list[Attempt]:
    """Attempts as `DispatchClient` returns them, to hosts in turn."""
    dice = random.Random(seed)
    made = []
    for number in range(TURNS * ENDPOINTS):
        phases = {Phase.POOL: 0.00001}
        fresh = dice.random() < FRESH
        if fresh:
            phases |= {Phase.DNS: 0.002, Phase.CONNECT: 0.02, Phase.TLS: dice.uniform(0.02, 0.1)}
        phases |= {Phase.WRITE: 0.0001, Phase.WAIT: dice.lognormvariate(-1.6, 0.4), Phase.READ: 0.0002}
        turn, endpoint = divmod(number, ENDPOINTS)
        status = 500 if endpoint % FAILING_EVERY == 0 and turn == endpoint % TURNS else 200
        made.append(
            attempt_record(
                classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK, status, True)),
                status,
                f"https://hooks{endpoint}.example:443",
                "192.0.2.1:443",
                sum(phases.values()),
                phases,
                not fresh,
                False,
                1_400,
                (),
                b"ok",
                None,
                SYSTEM_CLOCK.wall_us() / 1e6,
                False,
            )
        )
    return made


class Prepared:
    """A client whose attempts are over: it tells its observer as `DispatchClient` does."""

    def __init__(self, observer: Observer | None) -> None:
        self.observer = observer
        self.next: Attempt | None = None

    async def deliver_admitted(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
        deduplicates: bool = True,
    ) -> Attempt:
        """The attempt that was put in."""
        attempt = self.next
        assert attempt is not None, "put in before"
        if self.observer is not None:
            self.observer.attempt_finished(observation_of(attempt, endpoint_id, tenant))
        return attempt


class Desk:
    """Counts results, and drops them."""

    def __init__(self) -> None:
        self.results = 0

    def right_until(self, start: Start, epoch: int, budget: float) -> float | None:
        """Nobody could object."""
        return None

    def held_back(self, start: Start) -> None:
        """Does not happen."""

    def finished(self, start: Start) -> None:
        """Nothing waits."""

    def deferred(self, start: Start, until: int) -> None:
        """Nothing is kept."""

    def result(self, result: Result) -> None:
        """Nothing is stored."""
        self.results += 1

    def disable(self, listed: Listed, code: str) -> None:
        """Does not happen."""

    def verified(self, listed: Listed) -> None:
        """Does not happen."""

    def event_missing(self, start: Start) -> None:
        """Does not happen."""


class Tracking(Tracked):
    """Limits, breakers and the watch over policies, by the clock on the wall."""

    def time(self) -> int:
        """UTC microseconds."""
        return SYSTEM_CLOCK.wall_us()


class Line:
    """What a dispatcher has for its attempts, without store, scheduler and network."""

    def __init__(self, observer: Observer | None) -> None:
        clock, entropy, store = SYSTEM_CLOCK, SYSTEM_ENTROPY, MemoryStore()
        self.desk = desk = Desk()
        now = clock.wall_us
        self._client = Prepared(observer)
        self._store = store
        tracked = Tracking(watched=False)
        limits, watch = tracked.limits, tracked.watch
        notices = Notices(observer, now)
        view = PolicyView(ClientPolicy(), "bench.1-1")
        self._catalogue = Catalogue(
            store, view, tracked.check_url, clock, lambda number: None, lambda tenant, origin: None
        )
        bodies = Bodies(store)
        bodies.put(EventBody(EVENT_ID, "acme", "invoice.paid", "application/json", b"x" * 1_024), 1 << 40)
        streaks = Streaks(tracked.memory, self._catalogue, desk.disable)
        self._runner = AttemptRunner(
            self._client,
            self._catalogue,
            bodies,
            desk,
            streaks,
            limits,
            watch,
            notices,
            observer,
            clock,
            entropy,
            now,
            "bench.1-0123abcd",
        )
        self._starts: list[Start] = []

    async def open(self) -> None:
        """Register the endpoints and put one delivery of each in place."""
        now = SYSTEM_CLOCK.wall_us()
        secret = EndpointSecret(Secret(new_secret(SYSTEM_ENTROPY.token(32))), now)
        for number in range(ENDPOINTS):
            url = f"https://hooks{number}.example/in"
            await self._store.create_endpoint(
                Endpoint(encode_id(ENDPOINT, number + (1 << 40)), "acme", url, secrets=(secret,))
            )
        await self._catalogue.load()
        for number in self._catalogue.numbers:
            lane = lane_of(number, 1)
            state = EndpointState(number, TenantState("acme"), HostState("host", 8, 512))
            row = Row(lane, now, EVENT_ID + number, EVENT_ID, 0, now, 7)
            self._starts.append(Start(row, Lane(lane, 7, state, unread=False), state, Kind.FIRST))

    async def run(self, made: Sequence[Attempt]) -> None:
        """One delivery for each of these attempts, to endpoints in turn; never waits."""
        client, run, starts = self._client, self._runner.run, self._starts
        count = len(starts)
        for number, attempt in enumerate(made):
            client.next = attempt
            await run(starts[number % count], 3)


def service_observers(logs: Logs) -> tuple[Observer, ...]:
    """Those of `service.app`, in its order."""
    return Metrics(), Pulse(SYSTEM_CLOCK), RecentHosts(SYSTEM_CLOCK), LogObserver(logs)


WITH: Final[Mapping[str, Callable[[Logs], Observer | None]]] = {
    "nobody listens": lambda logs: None,
    "observations": lambda logs: Observers(),
    "and metrics": lambda logs: Observers(Metrics()),
    "and log line": lambda logs: Observers(Metrics(), LogObserver(logs)),
    "all of the service": lambda logs: Observers(*service_observers(logs)),
}
"""Who hears of deliveries, each with one more than the last."""
LOGGED: Final = ("and log line", "all of the service")


async def measure(rounds: int, began: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Microseconds of processor time that each kind adds to a delivery: on the event loop, the median over rounds of its difference
    to nobody in the same round; and what the log's thread used in all, by its lines."""
    made = attempts()
    blocks = [made[first : first + BLOCK] for first in range(0, len(made), BLOCK)]
    spent: dict[str, list[float]] = {name: [] for name in WITH}
    with ExitStack() as stack:
        stream = stack.enter_context(tempfile.TemporaryFile("w", prefix="gatepost-bench-"))
        logs = Logs("json", stream=cast(TextIO, stream))
        stack.callback(logs.close)
        lines = {name: Line(make(logs)) for name, make in WITH.items()}
        for line in lines.values():
            await line.open()
            await line.run(made)
            assert line.desk.results == len(made), "an attempt was not made: see the log"
        await asyncio.sleep(WRITTEN_WITHIN)
        gc.collect()
        gc.freeze()
        before = os.fstat(stream.fileno()).st_size
        both, own = time.process_time(), time.thread_time()
        order = list(lines)
        for number in range(rounds):
            began()
            block = blocks[number % len(blocks)]
            for name in order:
                start = time.thread_time()
                await lines[name].run(block)
                spent[name].append((time.thread_time() - start) / BLOCK * 1e6)
            order.append(order.pop(0))
            if number % len(blocks) == 0:
                await asyncio.sleep(WRITTEN_WITHIN)
        await asyncio.sleep(WRITTEN_WITHIN)
        written = rounds * BLOCK * sum(name in LOGGED for name in WITH)
        thread = (time.process_time() - both - time.thread_time() + own) / written * 1e6
        size = (os.fstat(stream.fileno()).st_size - before) / written
        if logs.dropped:
            raise SystemExit(
                f"{logs.dropped} log lines were dropped, their writing is not in the time: run it on an idle machine"
            )
    nobody = spent["nobody listens"]
    added = {
        name: statistics.median(one - bare for one, bare in zip(times, nobody, strict=True))
        + (thread if name in LOGGED else 0.0)
        for name, times in spent.items()
    }
    return {
        "added_us": {name: round(value, 2) for name, value in added.items()},
        "quickest_us": {name: round(min(times), 2) for name, times in spent.items()},
        "delivery_us": {name: round(statistics.median(times), 2) for name, times in spent.items()},
        "log_thread_us": round(thread, 2),
        "log_line_bytes": round(size),
        "rounds": rounds,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command. It has no target: `bench.metrics` does."""
    parser = argparse.ArgumentParser(prog="gatepost bench telemetry", description=__doc__)
    add_common_options(parser)
    arguments = parser.parse_args(argv)
    rounds = 100 if arguments.quick else 500
    with steps(rounds) as progress:
        progress.begin("deliveries")
        result = asyncio.run(measure(rounds, progress.done))
    if arguments.json:
        print_json(result)
    else:
        rows = [(name, result["added_us"][name], result["delivery_us"][name]) for name in WITH]
        print_table(
            "Processor time of a delivery without store and network, us",
            ("who hears of it", "added", "in all on the loop"),
            rows,
        )
        print_line(f"The log's thread took {result['log_thread_us']} us of it, for {result['log_line_bytes']} bytes.")
        print_machine()
    return 0


if __name__ == "__main__":
    sys.exit(main())
