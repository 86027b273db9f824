"""Celery within the deadline, by its signals: `install(app)` in the sender and in the worker.

A task sent inside a scope carries what is left, and so do the tasks that it sends; a worker that receives it too late revokes
it, which acknowledges it and does not retry it. The task's body runs in the scope of what is left then. Tasks that nobody waits
for say so: `apply_async(headers=DETACHED)`, or `deadline_inherit = False` on the task.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

try:
    from celery import Celery, Task, signals
    from celery.exceptions import Ignore
except ImportError as error:
    raise ImportError("gatepost.deadline.celery needs celery: pip install celery") from error

from gatepost.clock import SYSTEM_CLOCK
from gatepost.deadline.context import deadline
from gatepost.deadline.metrics import Counters
from gatepost.deadline.queues import KEY, Received, attach, receive
from gatepost.deadline.value import Deadline, DeadlineExceeded

_SILENT: Final = Counters()
"""For looking at a message again: it was counted when it was received."""
DETACHED: Final[dict[str, None]] = {KEY: None}
"""`apply_async(headers=DETACHED)`: fire and forget, however late."""
_EXPIRES_SLACK: Final = timedelta(milliseconds=1)
"""By which a time that went through a message may be off."""
HARD_AFTER_SOFT: Final = 1.0
"""Seconds between a worker's soft limit, which lets the task clean up, and the one that kills its process."""


class DeadlineTask(Task):  # type: ignore[misc]  # celery has no types
    """`Celery(task_cls=DeadlineTask)`: refuses once more where the body would begin, after the wait inside the worker.

    Without it a task that expires between the worker's pool and its first line begins in a scope that has passed, and its
    first call fails. The result says REVOKED, as for one that expired before.
    """

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Called by Celery right before the body."""
        super().before_start(task_id, args, kwargs)
        received = _received(self.request)
        if received.expired:
            self.backend.mark_as_revoked(task_id, "expired", request=self.request, store_result=not self.ignore_result)
            raise Ignore("the caller's deadline has passed")


def install(app: Celery, *, time_limits: bool = False) -> None:
    """Connect `app`'s tasks to deadlines; once per process, in senders and workers.

    `time_limits=True` also sets the worker's own soft and hard time limit to what is left (prefork pools only, where they
    work). A task sent when no time is left goes out as expired: its worker revokes it, and its result says so.
    """
    # By thread too: a broker that delivers a task twice may have it run in two threads of one worker.
    scopes: dict[tuple[str, int], AbstractContextManager[Any]] = {}

    def mine(name: str) -> bool:
        # Signals are of the process, not of the app.
        return name in app.tasks

    def carry(sender: str, headers: dict[str, Any], properties: dict[str, Any], **_rest: Any) -> None:
        task = app.tasks.get(sender)
        try:
            attach(headers, inherit=getattr(task, "deadline_inherit", True))
        except DeadlineExceeded:
            # Celery sends on whatever a signal's handler raises: sent as expired, the worker revokes it.
            headers[KEY] = {"rt": 0.0, "at": SYSTEM_CLOCK.wall_us() / 1e6}
        found, _ = Deadline.from_message(headers.get(KEY))
        if found is None:
            return
        left = max(0.0, found.remaining())
        # Relative for the broker's time to live; the worker compares an absolute time with its clock, so keep NTP.
        properties.setdefault("expiration", left)
        if headers.get("expires") is None:
            headers["expires"] = _expires(headers[KEY]).isoformat()
        if time_limits and headers.get("timelimit") in (None, [None, None], (None, None)):
            headers["timelimit"] = [left + HARD_AFTER_SOFT, left]

    def tighten(request: Any, **_rest: Any) -> None:
        # The worker compares `expires` with its clock before it starts the task: let it compare what the skew guard says.
        if mine(request.type):
            found = receive(request.request_dict).deadline
            if found is not None:
                by_deadline = _now() + timedelta(seconds=found.remaining())
                own = request.expires
                if own is None or abs(own - _expires(request.request_dict[KEY])) < _EXPIRES_SLACK:
                    request.expires = by_deadline  # what is there was put there by `carry`
                else:
                    request.expires = min(own, by_deadline)

    def enter(task_id: str, task: Any, **_rest: Any) -> None:
        if not mine(task.name):
            return
        received = _received(task.request)
        if received.deadline is None:
            return
        # Entered even when it has passed: the body's first check or call then says so.
        scope = deadline(received.deadline, name=task.name)
        scope.__enter__()
        scopes[task_id, threading.get_ident()] = scope

    def leave(task_id: str, **_rest: Any) -> None:
        scope = scopes.pop((task_id, threading.get_ident()), None)
        if scope is not None:
            scope.__exit__(None, None, None)

    for signal, handler in (
        (signals.before_task_publish, carry),
        (signals.task_received, tighten),
        (signals.task_prerun, enter),
        (signals.task_postrun, leave),
    ):
        signal.connect(handler, weak=False, dispatch_uid=f"gatepost-deadline-{handler.__name__}-{id(app)}")


def _received(request: Any) -> Received:
    # Headers of ours become attributes of the task's context, or stay in `headers`, by Celery's release.
    found = getattr(request, KEY, None) or (request.headers or {}).get(KEY) or request.get(KEY)
    return receive({KEY: found}, counters=_SILENT)


def _expires(message: Mapping[str, float]) -> datetime:
    """When a message's deadline ends by its sender's clock."""
    return datetime.fromtimestamp(message["at"], UTC) + timedelta(seconds=message["rt"])


def _now() -> datetime:
    return datetime.fromtimestamp(SYSTEM_CLOCK.wall_us() / 1e6, UTC)
