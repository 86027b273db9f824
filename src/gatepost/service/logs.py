"""Structured logging: one wide line per attempt with the decision in it, and the program's own log in the same form.

`LogObserver` is an `Observer`; `Logs` owns the writer thread and the standard library's handler. It keeps nothing and drops
lines only when the output stalls, counting them. Started and closed by `service.app`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Final, Literal, TextIO
from zlib import crc32

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.service.line_writer import LineWriter
from gatepost.service.log_format import ConsoleFormat, JsonFormat, LineFormat, Stamp, Value
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
SAMPLE_RANGE: Final = 1 << 32
"""Of the checksum by which deliveries are chosen."""
_NOISY: Final = ("uvicorn", "asyncio")
"""Libraries whose own chatter below a warning says nothing an operator needs."""


class Logs:
    """The process's log. `style` `auto` writes for people on a terminal and JSON otherwise."""

    def __init__(
        self,
        style: Literal["auto", "json", "console"] = "auto",
        *,
        level: str = "info",
        stream: TextIO | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        out = sys.stderr if stream is None else stream
        console = style == "console" or (style == "auto" and out.isatty())
        self._format: LineFormat = ConsoleFormat() if console else JsonFormat()
        self._writer = LineWriter(out.fileno())
        self._wall_us = clock.wall_us
        self._stamp = Stamp()
        self._level = _LEVELS[level]
        self._handler = _Handler(self)
        self._before: tuple[int, list[logging.Handler]] | None = None

    @property
    def dropped(self) -> int:
        """Lines lost because the output stalled."""
        return self._writer.dropped

    def entry(self, level: str, event: str, message: str, **fields: Value) -> None:
        """Write one line."""
        if _LEVELS[level] >= self._level:
            stamp = self._stamp(self._wall_us())
            self._writer.write(self._format.entry(stamp, level, event, message, fields))

    def table(self, event: str, message: str, rows: Sequence[tuple[str, Value, str]]) -> None:
        """Rows of name, value and source: one JSON line with all of them, or a line each for people."""
        if isinstance(self._format, JsonFormat):
            self.entry("info", event, message, **{name: value for name, value, _ in rows})
            return
        self.entry("info", event, message)
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, value, source in rows:
            self._writer.write(f"    {name:<{width}}  {value!s:<10} {source}".rstrip())

    def attempt(
        self,
        level: str,
        observation: AttemptObservation,
        decision: DeliveryObservation | None,
        sample_rate: float = 1.0,
    ) -> None:
        """Write the line of one attempt, one of `sample_rate` of its kind."""
        stamp = self._stamp(self._wall_us())
        self._writer.write(self._format.attempt(stamp, level, observation, decision, sample_rate))

    def take_over(self) -> None:
        """Route the standard library's logging, and warnings, here. Undone by `close`."""
        root = logging.getLogger()
        self._before = (root.level, root.handlers[:])
        root.handlers[:] = [self._handler]
        root.setLevel(self._level)
        for name in _NOISY:
            logging.getLogger(name).setLevel(max(self._level, logging.WARNING))
        logging.captureWarnings(True)

    def close(self) -> None:
        """Write what is left and give the standard library's logging back."""
        if self._before is not None:
            root = logging.getLogger()
            level, root.handlers[:] = self._before
            root.setLevel(level)
            for name in _NOISY:
                logging.getLogger(name).setLevel(logging.NOTSET)
            logging.captureWarnings(False)
            self._before = None
        self._writer.close()


class LogObserver:
    """One line per attempt; of what was delivered at the first attempt, of the share `sample_healthy` of deliveries, always the same
    ones. A delivery that had failed before is shown to its end.

    In a dispatcher every attempt is followed by a decision, and the line is written then (`with_decisions=True`); a bare
    client has no decisions, and the line is written when the attempt ends.
    """

    def __init__(
        self,
        logs: Logs,
        *,
        attempts: Literal["all", "failures", "none"] = "all",
        sample_healthy: float = 1.0,
        with_decisions: bool = True,
    ) -> None:
        self._logs = logs
        self._sample = sample_healthy
        self._sample_below = sample_healthy * SAMPLE_RANGE
        self._healthy = attempts == "all"
        self._failed = attempts != "none"
        self._with_decisions = with_decisions
        self._every = attempts == "all" and sample_healthy == 1.0

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Write the line, unless a decision will."""
        if not self._with_decisions:
            self._write(observation, None)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Write the line of the attempt with what was decided; a decision without an attempt is a line of its own."""
        attempt = observation.attempt
        if attempt is not None:
            if self._every:
                self._logs.attempt("info" if attempt.delivered else "warning", attempt, observation)
            else:
                self._write(attempt, observation)
        elif self._failed:
            self._logs.entry(
                "info",
                "decision",
                f"{observation.decision} ({observation.why})",
                event_id=observation.event_id,
                delivery_id=observation.delivery_id,
                endpoint_id=observation.endpoint_id,
                tenant=observation.tenant,
                delay_s=observation.delay,
            )

    def operational(self, observation: OperationalObservation) -> None:
        """Write what an operator should know."""
        self._logs.entry(
            "warning",
            observation.kind,
            observation.message,
            tenant=observation.tenant,
            endpoint_id=observation.endpoint_id,
            **(observation.fields or {}),
        )

    def _write(self, observation: AttemptObservation, decision: DeliveryObservation | None) -> None:
        if observation.delivered:
            if self._healthy:
                rate = 1.0 if decision is None or decision.used else self._sample
                if rate == 1.0 or (decision is not None and self._is_chosen(decision)):
                    self._logs.attempt("info", observation, decision, rate)
        elif self._failed:
            self._logs.attempt("warning", observation, decision)

    def _is_chosen(self, decision: DeliveryObservation) -> bool:
        return crc32(decision.delivery_id.encode()) < self._sample_below


class _Handler(logging.Handler):
    """The standard library's records as our lines."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
        fields: dict[str, Value] = {"logger": record.name}
        if record.exc_info is not None and record.exc_info[0] is not None:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._logs.entry(level if level in _LEVELS else "info", "log", record.getMessage(), **fields)
