"""Hypothesis drives the lane scheduler beside a store in two dictionaries, with every delay that real life has.

Reads return what was true when they began, results are committed some time before the scheduler hears of it, and rows are
handed over after they were stored. Invariants of the queue's design: I2 (caps), I3 (FIFO order), I4 (nobody is left behind),
I5 (blocked means free), I9 (never before due), and that no row is started twice.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatepost.dispatch.round import SchedulerLimits, Start
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.seats import EndpointSettings
from gatepost.store.rows import LaneRows, LaneWant, Row, endpoint_of, lane_of

SECOND = 1_000_000
ENDPOINTS = (1, 2, 3)
SUBS = (0, 0, 2, 16)
SLOTS = 7
HOST_CAP = 3


@dataclass
class Result:
    """An attempt that ended: what is to be written, and how far that has come."""

    start: Start
    retry_due: int | None
    committed: bool = False


@dataclass
class Read:
    """A read under way, with the answer as of its beginning."""

    wants: list[LaneWant]
    asked_at: int
    answer: list[LaneRows] = field(default_factory=list)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000 * SECOND
        self.settings = {
            number: EndpointSettings(number, f"t{number % 2}", f"h{number % 2}", 2, 2.0 if number == 3 else None, True)
            for number in ENDPOINTS
        }
        self.scheduler = LaneScheduler(SchedulerLimits(SLOTS, HOST_CAP), self.settings.get)
        self.lanes: dict[int, list[Row]] = {}
        self.ids = 0
        self.handovers: list[Row] = []
        self.flying: list[Start] = []
        self.results: list[Result] = []
        self.read: Read | None = None
        self.last_fifo: dict[int, tuple[int, int]] = {}
        self.held_back: list[int] = []

    # -- the store

    def _find(self, row: Row) -> bool:
        return row in self.lanes.get(row.lane, [])

    def _answer(self, wants: list[LaneWant]) -> list[LaneRows]:
        answer = []
        for want in wants:
            rows = [row for row in self.lanes.get(want.lane, []) if row.due_at >= want.low_water]
            due = [row for row in rows if row.due_at <= self.now]
            rest = rows[min(len(due), want.limit) :]
            answer.append(LaneRows(want.lane, due[: want.limit], rest[0].due_at if rest else None))
        return answer

    # -- producers

    @rule(
        endpoint=strategies.sampled_from(ENDPOINTS),
        sub=strategies.sampled_from(SUBS),
        delay=strategies.sampled_from([0, 0, 0, 1, 5]),
        count=strategies.integers(1, 30),
        late=strategies.booleans(),
    )
    def publish(self, endpoint: int, sub: int, delay: int, count: int, late: bool) -> None:
        for _ in range(count):
            self.ids += 1
            due = self.now if sub >= 16 else self.now + delay * SECOND
            row = Row(lane_of(endpoint, sub), due, self.ids, self.ids, 0, self.now, 0)
            insort(self.lanes.setdefault(row.lane, []), row)
            self.handovers.append(row)
        if not late:
            self.hand_over()

    @rule()
    def hand_over(self) -> None:
        rows, self.handovers = self.handovers, []
        self.scheduler.hand_over(rows, self.now)

    # -- the owner

    @rule(seconds=strategies.sampled_from([0.001, 0.2, 1.0, 5.0, 61.0, 200.0]))
    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.scheduler.tick(self.now)

    @precondition(lambda self: self.read is None)
    @rule()
    def begin_read(self) -> None:
        wants = self.scheduler.wants(self.now)
        for want in wants:
            number = endpoint_of(want.lane)
            assert self.settings[number].open, "a row of a closed endpoint is read"
            assert number not in self.held_back
            flying = sum(start.endpoint.number == number for start in self.flying)
            assert flying < self.settings[number].cap, "a row of a full endpoint is read"
        if wants:
            self.read = Read(wants, self.now, self._answer(wants))

    @precondition(lambda self: self.read is not None)
    @rule(fails=strategies.booleans(), late=strategies.booleans())
    def end_read(self, fails: bool, late: bool) -> None:
        assert self.read is not None
        read, self.read = self.read, None
        if fails:
            self.scheduler.read_failed(read.wants)
        else:
            self.scheduler.read(self._answer(read.wants) if late else read.answer, read.asked_at, self.now)

    @rule(count=strategies.integers(1, SLOTS))
    def start(self, count: int) -> None:
        for _ in range(count):
            start = self.scheduler.take(self.now)
            if start is None:
                break
            row = start.row
            assert self._find(row), "a row is started that is not in the store as it was read"
            assert row.delivery_id not in {s.row.delivery_id for s in self.flying}, "started twice"
            assert row.delivery_id not in {r.start.row.delivery_id for r in self.results}, (
                "started before it was settled"
            )
            assert self.settings[endpoint_of(row.lane)].open
            assert endpoint_of(row.lane) not in self.held_back
            assert row.due_at <= self.now, "started before it is due"
            if row.lane & 0xFF >= 16:
                assert row == self.lanes[row.lane][0], "not the head of a FIFO lane"
                assert all(s.row.lane != row.lane for s in self.flying)
                assert all(r.start.row.lane != row.lane for r in self.results)
            self.flying.append(start)

    @precondition(lambda self: self.flying)
    @rule(data=strategies.data(), how=strategies.sampled_from(["done", "done", "retry", "defer"]))
    def finish(self, data: strategies.DataObject, how: str) -> None:
        start = self.flying.pop(data.draw(strategies.integers(0, len(self.flying) - 1)))
        self.scheduler.finish(start, self.now)
        if how == "defer":
            self.scheduler.deferred(start, self.now + data.draw(strategies.sampled_from([0, SECOND])), self.now)
        else:
            delay = data.draw(strategies.sampled_from([0, SECOND, 30 * SECOND]))
            self.results.append(Result(start, self.now + delay if how == "retry" else None))

    @precondition(lambda self: any(not result.committed for result in self.results))
    @rule()
    def commit(self) -> None:
        """The settle transaction, with everything that waits for it."""
        self.hand_over()  # enqueues are reported in order with settles
        for result in self.results:
            if not result.committed:
                self._commit(result)

    def _commit(self, result: Result) -> None:
        result.committed = True
        row = result.start.row
        if not self._find(row):
            return  # cancelled meanwhile
        self.lanes[row.lane].remove(row)
        if result.retry_due is not None:
            fifo = row.lane & 0xFF >= 16
            due = row.due_at if fifo else result.retry_due
            insort(self.lanes[row.lane], row._replace(attempt=row.attempt + 1, due_at=due))

    @precondition(lambda self: any(result.committed for result in self.results))
    @rule()
    def hear_of_commit(self) -> None:
        for result in [result for result in self.results if result.committed]:
            self.results.remove(result)
            if result.retry_due is None:
                self.scheduler.settled(result.start, self.now)
            else:
                self.scheduler.retried(result.start, result.start.row.attempt + 1, result.retry_due, self.now)

    # -- from outside

    @rule(
        number=strategies.sampled_from(ENDPOINTS),
        opened=strategies.sampled_from([True, True, False]),
        cap=strategies.integers(1, 5),
        host=strategies.sampled_from(["h0", "h1"]),
    )
    def configure(self, number: int, opened: bool, cap: int, host: str) -> None:
        flying = sum(start.endpoint.number == number for start in self.flying)
        self.settings[number] = self.settings[number]._replace(open=opened, cap=max(cap, flying), host=host)
        self.scheduler.endpoint_changed(number, self.now)

    @rule(number=strategies.sampled_from(ENDPOINTS))
    def cancel(self, number: int) -> None:
        """All that is not in flight, the way the dispatcher does it."""
        self.hand_over()
        busy = {s.row.delivery_id for s in self.flying} | {r.start.row.delivery_id for r in self.results}
        self.scheduler.hold_back(number, self.now)
        gone = []
        for lane, rows in self.lanes.items():
            if endpoint_of(lane) == number:
                gone += [row.delivery_id for row in rows if row.delivery_id not in busy]
                self.lanes[lane] = [row for row in rows if row.delivery_id in busy]
        self.scheduler.forget(gone, self.now)
        self.scheduler.let_go(number, self.now)

    @rule(number=strategies.sampled_from(ENDPOINTS))
    def hold_back(self, number: int) -> None:
        if number in self.held_back:
            self.held_back.remove(number)
            self.scheduler.let_go(number, self.now)
        else:
            self.held_back.append(number)
            self.scheduler.hold_back(number, self.now)

    @precondition(lambda self: not self.flying and not self.results)
    @rule()
    def lose_the_part(self) -> None:
        """The lease is lost and won again."""
        self.handovers.clear()
        self.scheduler.drop_parts([0], self.now)
        assert self.scheduler.buffered == 0
        assert self.scheduler.statistics().lanes == 0
        self.scheduler.take_idle()
        self.scheduler.adopt([(0, lane) for lane, rows in self.lanes.items() if rows], self.now)

    @rule()
    def take_idle(self) -> None:
        for _, lane in self.scheduler.take_idle():
            handed_over = [row for row in self.lanes.get(lane, []) if row not in self.handovers]
            assert not handed_over, "a marker would go while its lane has rows"

    # -- always

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.scheduler.statistics()
        assert len(self.flying) == statistics.in_flight <= SLOTS
        assert len(self.results) == statistics.unsettled
        assert statistics.buffered >= 0
        roster = self.scheduler._roster
        assert sum(lane.buffered for lane in roster.lanes.values()) == statistics.buffered
        assert sum(lane.reading for lane in roster.lanes.values()) == statistics.reading
        assert sum(start.kind for start in self.flying) == statistics.retries_in_flight
        for number, settings_ in self.settings.items():
            flying = sum(start.endpoint.number == number for start in self.flying)
            assert flying <= settings_.cap
            if number in roster.endpoints:
                assert roster.endpoints[number].in_flight == flying
        for host in roster._hosts.values():
            assert sum(start.host is host for start in self.flying) == host.in_flight <= HOST_CAP
            assert host.promised >= 0
            assert host.called_retries >= 0

    def teardown(self) -> None:
        """I4: once everything is open, every row is started within a bounded number of turns."""
        for number in list(self.held_back):
            self.hold_back(number)
        for number in ENDPOINTS:
            self.settings[number] = self.settings[number]._replace(open=True, cap=2, rate=None)
            self.scheduler.endpoint_changed(number, self.now)
        for _ in range(2_000):
            self.hand_over()
            if self.read is not None:
                self.end_read(fails=False, late=False)
            self.begin_read()
            self.start(SLOTS)
            while self.flying:
                start = self.flying.pop()
                self.scheduler.finish(start, self.now)
                self.results.append(Result(start, None))
            for result in self.results:
                if not result.committed:
                    self._commit(result)
            self.hear_of_commit()
            self.counts_agree()
            if self.read is None and not any(self.lanes.values()) and not self.scheduler.statistics().lanes:
                break
            self.now += SECOND
            self.scheduler.tick(self.now)
        left = {lane: rows for lane, rows in self.lanes.items() if rows}
        assert not left, f"never started: {left}, {self.scheduler!r}"
        assert self.scheduler.take(self.now) is None
        self.advance(200.0)
        self.take_idle()
        statistics = self.scheduler.statistics()
        assert (
            statistics.buffered,
            statistics.lanes,
            statistics.endpoints,
            statistics.hosts,
            statistics.tenants,
        ) == (0, 0, 0, 0, 0), "something idle is kept"


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=200, stateful_step_count=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
