"""Deadlines through queues: case 42 in the generic form, and Celery with its real worker and in-memory broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import celery
import pytest
from celery import signals, states
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError

from gatepost.deadline import Counters, Deadline, DeadlineExceeded, Metric, check, current, deadline, remaining
from gatepost.deadline.celery import DETACHED, DeadlineTask, install
from gatepost.deadline.queues import KEY, attach, outgoing, receive
from gatepost.testing.virtual import VirtualClock


def test_42_age_is_taken_off_skew_counts_as_none_and_late_messages_are_expired() -> None:
    """12.5 s sent at T: 2.5 s are left at T+10, all of it at T-3 (a clock is wrong), nothing at T+13."""
    sender = VirtualClock()
    with deadline(12.5, clock=sender):
        headers: dict[str, Any] = {}
        attach(headers)
    sent_at = headers[KEY]["at"]
    for offset, left, skew in ((10.0, 2.5, 0), (-3.0, 12.5, 1), (13.0, 0.0, 0)):
        counters = Counters()
        receiver = VirtualClock(start_wall_us=round((sent_at + offset) * 1e6))
        received = receive(headers, clock=receiver, counters=counters)
        assert received.deadline is not None
        assert received.deadline.remaining() == pytest.approx(left, abs=1e-6)
        assert received.expired is (left == 0.0)
        assert counters.value(Metric.SKEW, "at") == skew
        assert counters.value(Metric.REJECTED, "queue") == (left == 0.0)
        if left:
            with received.scope():
                assert remaining() == pytest.approx(left, abs=1e-6)
        else:
            with pytest.raises(DeadlineExceeded, match="queue"):
                received.scope()


def test_fire_and_forget_says_so() -> None:
    """An audit record must be written however long its request had left; a report may have a limit of its own."""
    with deadline(5.0):
        assert outgoing(inherit=False) is None
        message = outgoing(inherit=False, cap=60.0)
        assert message is not None
        assert 59.0 < message["rt"] <= 60.0
        message = outgoing(cap=60.0)
        assert message is not None
        assert message["rt"] <= 5.0
        headers: dict[str, Any] = {KEY: None}
        attach(headers)
        assert headers == {KEY: None}
    assert outgoing() is None
    assert receive({}).deadline is None
    with receive({KEY: {"rt": "soon"}}).scope():
        assert current() is None
    with deadline(0.0), pytest.raises(DeadlineExceeded):
        outgoing()


# -- Celery

app = celery.Celery("deadlines", broker="memory://", backend="cache+memory://", task_cls=DeadlineTask)
app.conf.update(
    broker_transport_options={"polling_interval": 0.02},
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=10,
)
install(app)
ran: list[str] = []


def task(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`app.task`, which has no types."""
    decorate: Callable[[Callable[..., Any]], Any] = app.task(**options)
    return decorate


@task()
def left(label: str) -> float | None:
    ran.append(label)
    return remaining()


@task()
def parent() -> Any:
    return child.delay().id


@task()
def child() -> float | None:
    return remaining()


@task()
def busy(seconds: float) -> None:
    time.sleep(seconds)


@task()
def late(seconds: float) -> str:
    time.sleep(seconds)
    check()
    return "done"


@task(acks_late=True)
def late_acknowledged(label: str) -> float | None:
    ran.append(label)
    return remaining()


@task()
def audit() -> float | None:
    return remaining()


audit.deadline_inherit = False


def leave_logging(**_: object) -> None:
    """Set up nothing."""


@pytest.fixture(scope="module")
def worker() -> Iterator[None]:
    # With somebody connected, Celery leaves the process' logging as it is; its own set-up would silence other tests' loggers.
    celery.signals.setup_logging.connect(leave_logging)
    with start_worker(app, pool="solo", concurrency=1, perform_ping_check=False, shutdown_timeout=20.0):
        yield


@pytest.mark.usefixtures("worker")
def test_a_task_runs_in_what_is_left_and_hands_it_to_its_children() -> None:
    """A budget that ends at the queue leaves the slow half of the work unbounded."""
    with deadline(20.0):
        result = left.delay("inherits")
        assert 15.0 < result.get(timeout=10) <= 20.0
        grandchild = app.AsyncResult(parent.delay().get(timeout=10))
        assert 10.0 < grandchild.get(timeout=10) <= 20.0
    assert left.delay("free").get(timeout=10) is None
    assert current() is None


@pytest.mark.usefixtures("worker")
def test_42_a_task_received_too_late_is_revoked_and_neither_run_nor_retried() -> None:
    """Behind a second of other work, 0.3 s have passed: nobody waits for the result."""
    ran.clear()
    for refused in (left, late_acknowledged):
        ahead = busy.delay(0.8)
        with deadline(0.3):
            result = refused.delay("expired")
        ahead.get(timeout=10)
        with pytest.raises(TaskRevokedError):
            result.get(timeout=10)
        assert result.state == states.REVOKED
    assert left.delay("next").get(timeout=10) is None
    assert ran == ["next"]


@pytest.mark.usefixtures("worker")
def test_work_for_nobody_in_particular_runs_however_late() -> None:
    """By a header of the call, or once for the task."""
    with deadline(0.2):
        ahead = busy.delay(0.5)
        detached = left.apply_async(("detached",), headers=DETACHED)
        recorded = audit.delay()
    assert detached.get(timeout=10) is None
    assert recorded.get(timeout=10) is None
    assert ahead.state == states.REVOKED or ahead.get(timeout=10) is None


@pytest.mark.usefixtures("worker")
def test_a_body_that_outlives_its_deadline_fails_at_its_next_check() -> None:
    """No signals, no thread is killed: the next call or check ends it."""
    with deadline(2.0):
        result = late.delay(2.1)
    # Celery's JSON rebuilds errors from their text.
    with pytest.raises(Exception, match="deadline exceeded at handler"):
        result.get(timeout=10)


@pytest.mark.usefixtures("worker")
def test_a_task_sent_with_no_time_left_is_revoked() -> None:
    """Celery swallows what signal handlers raise, so the message itself must say it."""
    ran.clear()
    with deadline(0.0):
        result = left.delay("spent")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=10)
    assert ran == []


@pytest.mark.usefixtures("worker")
def test_an_expiry_of_the_callers_own_stays_when_it_is_earlier() -> None:
    """A deadline only tightens: a task that must begin within 0.3 s is not begun later because 20 s are left."""
    ran.clear()
    ahead = busy.delay(0.8)
    with deadline(20.0):
        result = left.apply_async(("stale",), expires=0.3)
        later = left.apply_async(("fresh",), expires=3_600)
    ahead.get(timeout=10)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=10)
    assert later.get(timeout=10) <= 20.0
    assert ran == ["fresh"]


def test_a_task_delivered_twice_leaves_no_deadline_in_either_thread() -> None:
    """Brokers deliver again what takes long; a scope left behind would fail whatever runs in that thread next."""
    both = threading.Barrier(2, timeout=10)
    afterwards: list[Any] = []

    def run() -> None:
        left.push_request(**{KEY: {"rt": 20.0, "at": time.time()}})
        try:
            signals.task_prerun.send(sender=left, task_id="twice", task=left, args=(), kwargs={})
            assert current() is not None
            both.wait()
            signals.task_postrun.send(
                sender=left, task_id="twice", task=left, args=(), kwargs={}, retval=None, state="SUCCESS"
            )
            both.wait()
            afterwards.append(current())
        finally:
            left.pop_request()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert afterwards == [None, None]


def test_time_limits_are_what_is_left() -> None:
    """For prefork pools, whose worker can end a task that checks nothing."""
    other = celery.Celery("limits", broker="memory://", backend="cache+memory://", set_as_current=False)
    install(other, time_limits=True)
    sent: list[dict[str, Any]] = []

    def record(headers: dict[str, Any], properties: dict[str, Any], **_rest: Any) -> None:
        sent.append({**headers, **properties})

    celery.signals.before_task_publish.connect(record, weak=False)
    try:
        with deadline(10.0):
            other.send_task("somewhere.else", queue="nobody")
    finally:
        celery.signals.before_task_publish.disconnect(record)
    hard, soft = sent[-1]["timelimit"]
    assert 9.0 < soft <= 10.0
    assert hard == soft + 1.0
    assert 9.0 < sent[-1]["expiration"] <= 10.0
    assert sent[-1]["expires"].endswith("+00:00")
    found, problems = Deadline.from_message(sent[-1][KEY])
    assert found is not None
    assert problems == []
