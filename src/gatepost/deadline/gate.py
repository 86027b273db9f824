"""What a server does with a request's deadline on arrival: begin it by then, or refuse it at once. The same for ASGI and WSGI.

It reads the headers, looks up the operation, asks the estimate, and counts; it sends nothing and runs nothing. One per
middleware; not safe for several threads at once, so `wsgi` holds a lock around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.estimate import Admission, Estimate, EstimateStatistics
from gatepost.deadline.metrics import COUNTERS, Counters, Metric, SpanHook
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import NANOSECONDS, Deadline, DeadlineExceeded
from gatepost.deadline.wire import DEADLINE_EXCEEDED_HEADER, Problem, ProblemKind, Text, read_headers
from gatepost.errors import ConfigurationError

Mode = Literal["enforce", "dark"]
Where = Literal["arrival", "admission", "handler"]
"""The step at which a deadline was found to have passed, as the header `Deadline-Exceeded` says it."""

ESTIMATES_MAX: Final = 256
"""Operations learned at once, the least recently used goes: paths are made up by clients, so their number needs a bound."""
NAMES_MAX: Final = 4_096
"""Remembered answers to "which operation is this path"; emptied when full."""
SEGMENT_MAX: Final = 32
"""Longer path segments are ids, like those with a digit in them: they do not make an operation of their own."""
GRPC: Final = "grpc"
"""Source of a deadline that gRPC itself carried."""
GRPC_METHOD: Final = "GRPC"
"""What stands for the HTTP method of a gRPC call."""
MEDIA_TYPE: Final = b"application/problem+json"

_TITLES: Final = {
    "deadline_exceeded": "The deadline of this request has passed, or leaves too little time for it.",
    "deadline_required": "This operation is begun only with a deadline.",
    "deadline_invalid": "The deadline of this request cannot be read.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How one route treats deadlines."""

    need: float | None = None
    """Seconds that must be left to begin; None: the median learned from its own answers."""
    require_deadline: bool = False
    """Refuse requests that bring none (400): for operations whose callers must know what they want."""
    stream: bool = False
    """The deadline covers the whole response. False: until its first byte, so that streams, downloads, server-sent events
    and WebSockets may go on."""
    exempt: bool = False
    """No deadline at all: long polls and exports. `require_deadline` and `need` do nothing then."""

    def __post_init__(self) -> None:
        need = self.need
        if need is not None and (isinstance(need, bool) or not isinstance(need, int | float) or not 0 < need < 1e9):
            raise ConfigurationError(f"need={need!r}: write the seconds the work takes, for example 0.12")
        if self.exempt and (need is not None or self.require_deadline or self.stream):
            raise ConfigurationError("exempt=True takes no other setting: nothing of a deadline applies then")


_SOURCES: Final = ("default", GRPC)
ORDINARY: Final = Operation()
EXEMPT: Final = Operation(exempt=True)


@dataclass(slots=True)
class Run:
    """Begin the request. In dark mode `deadline` is only measured, not enforced."""

    deadline: Deadline
    operation: Operation
    arrived_ns: int
    estimate: Estimate | None
    settled: bool = False
    """Answered in time, or counted already: the end of the request says nothing new."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer at once."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]
    detail: str
    """The reason in words."""
    where: Where | None
    """None for a deadline that is missing or cannot be read."""


class Exempted:
    """Run it as if there were no deadlines."""

    __slots__ = ()


EXEMPTED: Final = Exempted()
Verdict = Run | Refusal | Exempted


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """What both middlewares take."""

    policy: DeadlinePolicy = DEFAULT_POLICY
    operations: Mapping[str, Operation] | None = None
    mode: Mode = "enforce"
    status: int = 504
    counters: Counters = COUNTERS
    spans: SpanHook | None = None
    clock: Clock = SYSTEM_CLOCK


class Gate:
    """The decision for each request.

    `operations` maps `"POST /render"`, `"GET /orders/{id}"` or `"/health"` (any method) to its `Operation`; other paths are
    ordinary, and learned under a name in which ids are collapsed.
    """

    def __init__(self, settings: GateSettings) -> None:
        if settings.mode not in ("enforce", "dark"):
            raise ConfigurationError(f"mode={settings.mode!r}: write 'enforce' or 'dark'")
        if not 400 <= settings.status <= 599 or settings.status in (429, 502, 503):
            raise ConfigurationError(
                f"status={settings.status!r}: write 504, or another error that invites no retry (not 429, 502 or 503)"
            )
        self.settings: Final = settings
        self.dark: Final = settings.mode == "dark"
        self.looks_back: Final = self.dark or settings.spans is not None
        """Whether `ended` has anything to do."""
        self._policy = settings.policy
        self._counters = settings.counters
        self._clock = settings.clock
        self._exact: dict[str, Operation] = {}
        self._patterns: list[tuple[re.Pattern[str], str, Operation]] = []
        for key, operation in (settings.operations or {}).items():
            self._add(key, operation)
        self._names: dict[tuple[str, str], tuple[str, Operation]] = {}
        self._estimates: dict[str, Estimate] = {}
        self._default_ns = round(max(0.0, self._policy.default - self._policy.allowance) * NANOSECONDS)
        self._min_budget_ns = round(self._policy.min_budget * NANOSECONDS)

    @property
    def header_names(self) -> tuple[str, ...]:
        """Headers that `arrive` reads, lower-case: others need not be passed to it."""
        queue = self._policy.queue_header
        return self._policy.formats if queue is None else (*self._policy.formats, queue)

    def arrive(
        self, method: str, path: str, items: Iterable[tuple[Text, Text]], known: tuple[str, int] | None = None
    ) -> Verdict:
        """What to do with a request that has just arrived with these headers, and with `known` as `read_headers` takes it."""
        name, operation = self._names.get((method, path)) or self._name(method, path)
        if operation.exempt:
            return EXEMPTED
        refusal: Refusal | None
        now_ns = self._clock.monotonic_ns()
        if items or known is not None:
            received = read_headers(items, self._policy, self._clock.wall_us(), known)
            if received.problems:
                self._count_problems(received.problems)
            given, budget_ns = received.given, received.budget_ns
            if budget_ns is None:
                refusal = self._refuse(400, "invalid", "deadline_invalid", "; ".join(map(str, received.problems)))
                if not self.dark:
                    return refusal
                budget_ns = self._default_ns
            source, asked_ns = received.source, max(received.asked_ns, budget_ns)
        else:
            given, source = False, "default"
            budget_ns = asked_ns = self._default_ns
        self._counters.arrived(source if source in _SOURCES else "header", budget_ns / NANOSECONDS)
        deadline = Deadline.received(budget_ns, asked_ns, source, self._clock, now_ns)
        if self.settings.spans is not None:
            self.settings.spans({"deadline.received_ms": budget_ns / 1e6})
        estimate = self._estimate(name) if operation.need is None else None
        if operation.require_deadline and not given:
            names = " or ".join(self._policy.formats)
            refusal = self._refuse(400, "missing", "deadline_required", f"send {names} with the seconds you will wait")
        elif budget_ns <= 0:
            refusal = self._refuse_late("arrival", "it had passed on arrival", estimate)
        else:
            refusal = self._admit(operation, estimate, budget_ns, now_ns)
        if refusal is not None and not self.dark:
            return refusal
        return Run(deadline, operation, now_ns, estimate, settled=refusal is not None)

    def answered(self, run: Run, *, ok: bool) -> None:
        """The first byte goes out, or the last one of a stream; `ok` False: an error, which says nothing about the time."""
        if self.dark and not run.deadline.expired:
            run.settled = True
        if ok and run.estimate is not None:
            run.estimate.learn((self._clock.monotonic_ns() - run.arrived_ns) / NANOSECONDS)

    def cut(self, run: Run) -> Refusal:
        """The deadline passed before the first byte: the answer to send."""
        if run.estimate is not None:
            run.estimate.learn((self._clock.monotonic_ns() - run.arrived_ns) / NANOSECONDS, cut=True)
        late = max(0.0, -run.deadline.remaining())
        return self.refusal(self.settings.status, "deadline_exceeded", f"it passed {late:.3f} s ago", "handler")

    def ended(self, run: Run) -> None:
        """The request is over, however it ended; need not be told unless `looks_back`."""
        left = run.deadline.remaining()
        if self.dark and left <= 0 and not run.settled:
            self._counters.count(Metric.WOULD_REJECT, "handler")
        if self.settings.spans is not None:
            self.settings.spans({"deadline.remaining_ms": left * 1e3, "deadline.exceeded": left <= 0})

    def exceeded(self) -> None:
        """The handler's time was found to be over, other than by a scope, which counts itself."""
        self._counters.count(Metric.EXCEEDED, "handler")

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is known of each operation."""
        return {name: estimate.statistics() for name, estimate in self._estimates.items()}

    @staticmethod
    def refusal(status: int, code: str, detail: str, where: Where | None = None) -> Refusal:
        """An answer in problem+json (RFC 9457). Never `Retry-After`: a caller without time must not come again."""
        document = {"type": f"urn:gatepost:problem:{code}", "title": _TITLES[code], "status": status, "code": code}
        if where is not None:
            document["where"] = where
        body = json.dumps({**document, "detail": detail}).encode()
        headers = [(b"content-type", MEDIA_TYPE), (b"content-length", b"%d" % len(body))]
        if where is not None:
            headers.append((DEADLINE_EXCEEDED_HEADER.encode(), where.encode()))
        return Refusal(status, body, headers, detail, where)

    # ------------------------------------------------------------------------------------------------------ parts

    def _admit(self, operation: Operation, estimate: Estimate | None, budget_ns: int, now_ns: int) -> Refusal | None:
        left = budget_ns / NANOSECONDS
        if budget_ns < self._min_budget_ns:
            least = f"{left:.4f} s are left, no request is begun with less than {self._policy.min_budget:g} s"
            return self._refuse_late("admission", least, estimate)
        if operation.need is not None:
            if left >= operation.need:
                return None
            return self._refuse_late("admission", f"{left:.3f} s are left, the work needs {operation.need:g} s", None)
        assert estimate is not None
        admission = estimate.admit(left, now_ns / NANOSECONDS)
        match admission:
            case Admission.ENOUGH:
                return None
            case Admission.PROBE | Admission.VALVE:
                self._counters.count(Metric.LET_THROUGH, admission)
                return None
            case Admission.REFUSED:
                median = estimate.median or 0.0
                return self._refuse_late(
                    "admission", f"{left:.3f} s are left, half of these requests take {median:.3f} s", estimate
                )
            case _ as never:
                assert_never(never)

    def _refuse_late(self, where: Where, detail: str, estimate: Estimate | None) -> Refusal:
        if estimate is not None and estimate.median is not None and not self.dark:
            self._counters.count(Metric.DEAD_WORK_AVOIDED, "", estimate.median)
        return self._refuse(self.settings.status, where, "deadline_exceeded", detail, where)

    def _refuse(self, status: int, label: str, code: str, detail: str, where: Where | None = None) -> Refusal:
        """The refusal, counted as what it is in this mode."""
        self._counters.count(Metric.WOULD_REJECT if self.dark else Metric.REJECTED, label)
        return self.refusal(status, code, detail, where)

    def _count_problems(self, problems: list[Problem]) -> None:
        for problem in problems:
            match problem.kind:
                case ProblemKind.INVALID:
                    self._counters.count(Metric.INVALID, problem.header)
                case ProblemKind.CLAMPED:
                    self._counters.count(Metric.CLAMPED)
                case ProblemKind.SKEW:
                    self._counters.count(Metric.SKEW, problem.header)
                case _ as never:
                    assert_never(never)

    def _estimate(self, name: str) -> Estimate:
        estimate = self._estimates.pop(name, None)
        if estimate is None:
            estimate = Estimate()
            if len(self._estimates) >= ESTIMATES_MAX:
                del self._estimates[next(iter(self._estimates))]
        self._estimates[name] = estimate  # last in line again
        return estimate

    def _name(self, method: str, path: str) -> tuple[str, Operation]:
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        found = self._names[method, path] = self._look_up(method, path)
        return found

    def _look_up(self, method: str, path: str) -> tuple[str, Operation]:
        text = f"{method} {path}"
        for key in (text, path):
            if key in self._exact:
                return key, self._exact[key]
        for pattern, key, operation in self._patterns:
            if pattern.fullmatch(text):
                return key, operation
        # The methods of a gRPC service are no path of ids, though "v1" may stand in them.
        return f"{method} {path if method == GRPC_METHOD else collapse_ids(path)}", ORDINARY

    def _add(self, key: str, operation: Operation) -> None:
        method, _, path = key.rpartition(" ")
        if not path.startswith("/") or " " in method or method != method.upper():
            raise ConfigurationError(
                f"operations[{key!r}]: write a method and a path, for example 'POST /render' or 'GET /orders/{{id}}'"
            )
        if not isinstance(operation, Operation):
            raise ConfigurationError(f"operations[{key!r}]={operation!r}: write gatepost.deadline.gate.Operation(…)")
        if "{" not in path:
            self._exact[key] = operation
            return
        parts = [
            "[^/]+" if part.startswith("{") and part.endswith("}") else re.escape(part) for part in path.split("/")
        ]
        self._patterns.append(
            (re.compile((re.escape(method) if method else "[A-Z]+") + " " + "/".join(parts)), key, operation)
        )


def collapse_ids(path: str) -> str:
    """A path with its ids left out: segments that hold a digit or are long become `{}`."""
    return "/".join(
        "{}" if len(part) > SEGMENT_MAX or any(map(str.isdecimal, part)) else part for part in path.split("/")
    )


def is_ours(error: DeadlineExceeded, run: Run) -> bool:
    """Whether an error that left the handler is about this request's deadline, not about one that it set for a call."""
    if run.deadline.expired:
        return True
    tightest = min(error.chain, key=lambda limit: limit.expires_ns, default=None)
    return tightest in run.deadline.chain
