"""Deadlines through queues: what a message carries, and what its receiver does with it. For any broker and any client.

A message says what was left when it was sent, and when that was by the wall clock; the receiver takes the age off, so that a
clock that is behind cannot lengthen a budget. Work that nobody waits for is sent without: it says so, or it is dropped late.
`gatepost.deadline.celery` does the same by Celery's signals.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.context import current, deadline
from gatepost.deadline.metrics import COUNTERS, Counters, Metric
from gatepost.deadline.value import Deadline, DeadlineExceeded
from gatepost.deadline.wire import DeadlineMessage, Problem, ProblemKind

KEY: Final = "gatepost-deadline"
"""Name of the message header or field."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message's deadline as its receiver finds it."""

    deadline: Deadline | None
    """None: the sender gave none, or none that can be read."""
    problems: tuple[Problem, ...]

    @property
    def expired(self) -> bool:
        """Whether nobody waits for the result any more: acknowledge the message and do not run it, nor requeue it."""
        return self.deadline is not None and self.deadline.expired

    def scope(self) -> AbstractContextManager[Deadline | None]:
        """The scope to do the work in. Raises `DeadlineExceeded` at once for an expired message."""
        if self.deadline is None:
            return nullcontext()
        if self.deadline.expired:
            raise self.deadline.exceeded("queue")
        return deadline(self.deadline, name="message")


def outgoing(*, inherit: bool = True, cap: float | None = None) -> DeadlineMessage | None:
    """What to put into a message sent now: `{"rt": seconds left, "at": wall time}`, None when there is nothing to say.

    `inherit=False` is for fire-and-forget work, which must be done however late. `cap` is the longest the message may wait
    and work, in seconds; with it a message has a deadline even when its sender has none. Raises `DeadlineExceeded` when less
    than a millisecond is left: nobody would see the result.
    """
    ambient = current() if inherit else None
    if cap is not None:
        own = Deadline.after(cap, name="message", clock=SYSTEM_CLOCK if ambient is None else ambient.clock)
        return own.within(ambient).to_message()
    return None if ambient is None else ambient.to_message()


def attach(
    headers: MutableMapping[str, Any], *, inherit: bool = True, cap: float | None = None, key: str = KEY
) -> None:
    """Put the deadline into `headers` of a message, under `key`. One that is there already stays, also when it is None."""
    if key in headers:
        return
    message = outgoing(inherit=inherit, cap=cap)
    if message is not None:
        headers[key] = message


def receive(
    headers: Mapping[str, Any], *, key: str = KEY, clock: Clock = SYSTEM_CLOCK, counters: Counters = COUNTERS
) -> Received:
    """The deadline of a message received now. An unreadable one is counted, and the message counts as one without.

    ```
    received = receive(message.headers)
    if received.expired:
        message.ack()                  # done: not run, not requeued
    with received.scope():
        handle(message)
    ```
    """
    found, problems = Deadline.from_message(headers.get(key), clock=clock)
    for problem in problems:
        counters.count(Metric.SKEW if problem.kind is ProblemKind.SKEW else Metric.INVALID, problem.header)
    if found is not None:
        counters.count(Metric.REQUESTS, "message")
        if found.expired:
            counters.count(Metric.REJECTED, "queue")
    return Received(found, tuple(problems))


__all__ = ["KEY", "DeadlineExceeded", "DeadlineMessage", "Received", "attach", "outgoing", "receive"]
