"""`DispatchClient` as callers see it: what it refuses, what it bounds, what it tells, and that its ceilings hold under load.

Behaviour by behaviour of bad receivers is in tests/hostile; cancellation in tests/unit/test_cancellation.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import ssl
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trustme

from gatepost import deadline as ambient
from gatepost.clock import SYSTEM_CLOCK
from gatepost.deadline import Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.policy import POOL_FIELDS
from gatepost.errors import ConfigurationError
from gatepost.net.client import DispatchClient, open_client_count
from gatepost.net.resolver import Resolution
from gatepost.net.tls import TLSProfile
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.hostile import HostileServer
from gatepost.testing.receiver import Receiver
from gatepost.testing.virtual import VirtualLoop, run_virtual
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.elsewhere import elsewhere
from tests.hostile.engine import IDENTITY, LOOPBACK, FixedResolver, assert_nothing_held, limits, same_descriptors


class Recorder:
    """An observer that keeps what it hears, and does `then` inside the callback."""

    def __init__(self, then: Callable[[AttemptObservation], None] = lambda _: None) -> None:
        self.attempts: list[AttemptObservation] = []
        self.events: list[OperationalObservation] = []
        self._then = then

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Keep it."""
        self.attempts.append(observation)
        self._then(observation)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """The client decides nothing."""
        raise AssertionError(observation)

    def operational(self, observation: OperationalObservation) -> None:
        """Keep it."""
        self.events.append(observation)


class Broken(Recorder):
    """Raises whatever it hears."""

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Keep it, then fail."""
        super().attempt_finished(observation)
        raise RuntimeError("a bug in an observer")

    def operational(self, observation: OperationalObservation) -> None:
        """Keep it, then fail."""
        super().operational(observation)
        raise RuntimeError("a bug in an observer")


REFUSED = "http://127.0.0.1:1024/"
"""Nothing listens there."""
WIDE = {"connect_timeout": 5.0, "read_timeout": 15.0, "pool_timeout": 30.0, "admission_timeout": 30.0}
"""Nothing may time out here on a slow machine."""


# ------------------------------------------------------------------------------------------------ misuse

MISUSE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"payload": "text"}, TypeError, r"payload\.encode\(\).*json\.dumps"),
    ({"payload": math.nan}, ValueError, "NaN"),
    ({"payload": {"a": [1.0, math.inf]}}, ValueError, "Infinity"),
    ({"payload": object()}, TypeError, "JSON"),
    ({"payload": {1, 2}}, TypeError, "JSON"),
    ({"payload": {("a",): 1}}, TypeError, "JSON"),
    ({"headers": {"X": "a\r\nb: c"}}, ValueError, "'X'"),
    ({"headers": {"Content-Length": "3"}}, ValueError, "Content-Length"),
    ({"headers": [("X", "y")]}, TypeError, "headers is a list: write a mapping"),
    ({"headers": {"X": 1}}, TypeError, "write a str"),
    ({"content_type": "text/plain\r\n"}, ValueError, "content-type"),
    ({"content_type": None}, TypeError, "content-type"),
    ({"policy": 3.0}, TypeError, r"policy=3\.0.*no bare number"),
    ({"deadline": 3.0}, TypeError, r"deadline=3\.0: write gatepost\.deadline\.Deadline\.after"),
    ({"tls": "-----BEGIN"}, TypeError, "write a TLSProfile"),
    ({"tls": TLSProfile(ca_pem="no certificate")}, ConfigurationError, "ca_pem"),
    ({"url": b"http://127.0.0.1/"}, TypeError, "url must be str"),
    ({"url": None}, TypeError, "url"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISUSE, ids=range(len(MISUSE)))
async def test_misuse_raises_before_anything_is_sent(
    call: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A slip in a call is the programmer's to mend: as a failed delivery it would be tried again for days."""
    recorder = Recorder()
    async with Receiver() as receiver, DispatchClient(limits(), egress=LOOPBACK, observer=recorder) as client:
        arguments = {"url": receiver.url, "payload": b"x", **call}
        with pytest.raises(error, match=message):
            await client.deliver(**arguments)
        assert receiver.connections == 0
        assert not recorder.attempts
        assert_nothing_held(client)


@pytest.mark.parametrize("field", sorted(POOL_FIELDS))
async def test_a_call_may_not_change_what_all_calls_share(field: str) -> None:
    """Two callers with different ceilings on one pool: neither would hold."""
    async with Receiver() as receiver, DispatchClient(limits(), egress=LOOPBACK) as client:
        other = limits(**{field: getattr(client.policy, field) - 1})
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"policy\.{field}=.* differs .*evolve"):
                await client.deliver(receiver.url, b"x", policy=other)
        same = limits(read_timeout=4.0)
        assert (await client.deliver(receiver.url, b"x", policy=same)).delivered


async def test_a_closed_client_says_so() -> None:
    """And closing it twice does nothing."""
    client = DispatchClient(limits(), egress=LOOPBACK)
    await client.aclose()
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await client.deliver(REFUSED, b"x")
    assert "closed" in repr(client)


def test_a_client_belongs_to_one_loop() -> None:
    """Its sockets are on that loop's selector; on another they would hang."""
    client = DispatchClient(limits(), egress=LOOPBACK)

    async def use() -> Attempt:
        return await client.deliver(REFUSED, b"x")

    async def close() -> None:
        await client.aclose()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(use()).reason is Reason.CONNECTION_REFUSED
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(use())
        errors: list[BaseException] = []

        def in_a_thread() -> None:
            try:
                asyncio.run(use())
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
        assert "another event loop" in str(errors[0])
        first.run(close())


FORK = """
import asyncio, os, warnings
from gatepost.net.client import DispatchClient
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads, which is the point here

async def main():
    client = DispatchClient()
    assert (await client.deliver("http://127.0.0.1:9/", b"x")).reason == "scheme_not_allowed"
    child = os.fork()
    if child == 0:
        said = []
        for call in (client.deliver("https://127.0.0.1:9/", b"x"), client.aclose()):
            try:
                call.send(None)
            except RuntimeError as error:
                said.append("fork" in str(error))
        os._exit(0 if said == [True, True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await client.aclose()

asyncio.run(main())
"""


def test_after_a_fork_the_client_raises_in_the_child() -> None:
    """Parent and child would read each other's responses from the same sockets."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_second_client_on_a_loop_warns_with_both_places() -> None:
    """One client per request is the commonest mistake with any HTTP client: no keep-alive, and no limit holds."""
    recorder = Broken()
    before = open_client_count()

    def make_the_first() -> DispatchClient:
        return DispatchClient(limits(), egress=LOOPBACK)

    def make_the_second() -> DispatchClient:
        return DispatchClient(limits(), egress=LOOPBACK, observer=recorder)

    first, second = make_the_first(), make_the_second()
    assert open_client_count() == before, "a client counts from its first use on"
    await first.deliver(REFUSED, b"x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await second.deliver(REFUSED, b"x")
        await second.deliver(REFUSED, b"x")
    (warning,) = [one for one in caught if one.category is RuntimeWarning]
    text = str(warning.message)
    assert text.index("make_the_first") < text.index("make_the_second")
    assert [event.kind for event in recorder.events] == ["second_client"]
    assert open_client_count() == before + 2
    await first.aclose()
    assert open_client_count() == before + 1
    third = make_the_first()
    with pytest.warns(RuntimeWarning, match="make_the_second"):
        await third.deliver(REFUSED, b"x")
    await second.aclose()
    await third.aclose()
    fourth = make_the_first()
    await fourth.deliver(REFUSED, b"x")
    await fourth.aclose()
    assert open_client_count() == before


async def test_a_client_that_was_dropped_is_no_second_client() -> None:
    """Tests of users make clients and forget them."""
    before = open_client_count()
    client = DispatchClient(limits(), egress=LOOPBACK)
    await client.deliver(REFUSED, b"x")
    del client
    await asyncio.sleep(0.2)  # the sweeper's last tick holds it
    gc.collect()
    assert open_client_count() == before


# ------------------------------------------------------------------------------------------------ what is sent


class CountedDict(dict[str, object]):
    """Counts how often it is read."""

    reads = 0

    def items(self) -> Any:
        """Called by the JSON writer."""
        self.reads += 1
        return super().items()


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (b"\x00\xffas it is", b"\x00\xffas it is"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        (b"", b""),
        ({"name": "ü", "n": 1.5}, '{"name":"ü","n":1.5}'.encode()),
        ([1, None, True], b"[1,null,true]"),
        (None, b"null"),
        (5, b"5"),
        ({}, b"{}"),
    ],
)
async def test_bytes_go_as_they_are_and_anything_else_as_json(payload: object, sent: bytes) -> None:
    """A signature covers the exact bytes: nothing may rewrite them on the way."""
    async with Receiver(keep=10) as receiver, DispatchClient(limits(), egress=LOOPBACK) as client:
        assert (await client.deliver(receiver.url, payload, IDENTITY)).delivered
        (request,) = receiver.received
        assert request.body == sent
        assert request.headers["content-length"] == str(len(sent))
        assert request.headers["content-type"] == "application/json"


async def test_an_object_is_serialised_once_also_when_it_is_sent_twice() -> None:
    """A second serialisation could differ, and then the two copies of one event would too."""
    payload = CountedDict(a=1)
    async with (
        HostileServer("stale-close-on-request") as server,
        DispatchClient(limits(), egress=LOOPBACK) as client,
    ):
        attempts = [await client.deliver(server.url, payload, IDENTITY) for _ in range(4)]
    assert any(attempt.stale_retry for attempt in attempts)
    assert payload.reads == 4


async def test_a_denied_destination_is_an_outcome_and_is_told() -> None:
    """The URL comes from a customer, so a bad one is no misuse of the caller; nothing is resolved or opened for it."""
    recorder = Recorder()
    async with DispatchClient(observer=recorder) as client:
        for _ in range(2):
            attempt = await client.deliver("https://169.254.169.254/latest", b"x", endpoint_id="ep_1", tenant="t")
            assert (attempt.outcome, attempt.retry_safety) == (Outcome.EGRESS_DENIED, RetrySafety.POINTLESS)
            assert attempt.blame is Blame.ENDPOINT
            assert (attempt.elapsed, attempt.phases, attempt.address) == (0.0, {}, None)
            assert "latest" not in repr(attempt), "a path or query may hold a secret"
        assert [(one.endpoint_id, one.tenant, one.outcome) for one in recorder.attempts] == [
            ("ep_1", "t", "egress_denied")
        ] * 2
        assert_nothing_held(client)


# ------------------------------------------------------------------------------------------------ limits


async def test_admission_sheds_within_its_limit_and_counts_it() -> None:
    """A slow endpoint's own backlog waits for its own slots and goes away in time; it holds nothing meanwhile."""
    policy = limits(per_endpoint_concurrency=2, admission_timeout=0.2, read_timeout=10.0, max_per_host=8)
    recorder = Recorder()
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
        slow = f"{receiver.url}/slow/1.0"
        first = [asyncio.create_task(client.deliver(slow, b"x", endpoint_id="slow")) for _ in range(2)]
        await asyncio.sleep(0.01)
        began = SYSTEM_CLOCK.monotonic()
        more = await asyncio.gather(*(client.deliver(slow, b"x", endpoint_id="slow") for _ in range(5)))
        took = SYSTEM_CLOCK.monotonic() - began
        other = await client.deliver(slow.replace("1.0", "0.0"), b"x", endpoint_id="other")
        assert other.delivered, "the same host, another endpoint"
        assert {(one.outcome, one.phase, one.reason, one.blame, one.retry_safety) for one in more} == {
            (Outcome.SHED, Phase.ADMISSION, Reason.ADMISSION_TIMEOUT, Blame.US, RetrySafety.SAFE)
        }
        assert 0.19 <= took < 1.0
        assert all(one.elapsed < 1.0 and one.bytes_sent == 0 for one in more)
        assert client.statistics().shed == {receiver.url: 5}
        assert client.statistics().admitted == 2
        assert all(attempt.delivered for attempt in await asyncio.gather(*first))
        assert Counter(one.outcome for one in recorder.attempts) == {"shed": 5, "response": 3}
        assert_nothing_held(client, idle=client.statistics().connections_idle)


async def test_the_admission_key_is_the_endpoint_else_the_host() -> None:
    """As in the first design note: a caller without endpoints gets a bulkhead per host."""
    policy = limits(per_endpoint_concurrency=1, admission_timeout=0.1, read_timeout=10.0)
    async with Receiver(ports=2) as receiver, DispatchClient(policy, egress=LOOPBACK) as client:
        one, two = (f"{url}/slow/0.4" for url in receiver.urls)
        attempts = await asyncio.gather(
            client.deliver(one, b"x"),
            client.deliver(f"{one}?b", b"x"),
            client.deliver(two, b"x"),
            client.deliver(one, b"x", endpoint_id="e"),
        )
        assert [one.outcome for one in attempts] == ["response", "shed", "response", "response"]


async def test_a_caller_that_holds_the_slot_itself_passes_the_gate() -> None:
    """The dispatcher admits by endpoint before it starts an attempt; twice would count every slot double."""
    policy = limits(per_endpoint_concurrency=1, admission_timeout=0.05, read_timeout=10.0)
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK) as client:
        slow = f"{receiver.url}/slow/0.1"
        attempts = await asyncio.gather(*(client.deliver_admitted(slow, b"x", endpoint_id="e") for _ in range(4)))
        assert all(attempt.delivered for attempt in attempts)
        assert Phase.ADMISSION not in attempts[0].phases or attempts[0].phases[Phase.ADMISSION] < 0.01


async def _silent(client: DispatchClient, url: str, **arguments: Any) -> tuple[Attempt, float]:
    began = SYSTEM_CLOCK.monotonic()
    attempt = await client.deliver(url, b"x", **arguments)
    return attempt, SYSTEM_CLOCK.monotonic() - began


async def test_the_total_and_every_kind_of_deadline_bound_an_attempt() -> None:
    """Whichever ends first; and the total blames the receiver, a deadline of ours never does."""
    async with HostileServer("silence") as server:
        policy = limits(read_timeout=10.0, total_timeout=0.2)
        async with DispatchClient(policy, egress=LOOPBACK) as client:
            attempt, took = await _silent(client, server.url)
            assert (attempt.outcome, attempt.reason, attempt.blame) == (
                Outcome.DEADLINE_EXCEEDED,
                Reason.TOTAL_TIMEOUT,
                Blame.ENDPOINT,
            )
            assert 0.19 <= took < 1.2
            roomy = policy.evolve(total_timeout=9.0)
            cases: list[tuple[float | None, float | None]] = [(0.2, None), (None, 0.2), (0.2, 9.0), (9.0, 0.2)]
            for explicit, surrounding in cases:
                given = None if explicit is None else Deadline.after(explicit)
                if surrounding is None:
                    attempt, took = await _silent(client, server.url, policy=roomy, deadline=given)
                else:
                    with ambient.deadline(surrounding):
                        attempt, took = await _silent(client, server.url, policy=roomy, deadline=given)
                assert (attempt.outcome, attempt.reason, attempt.blame) == (
                    Outcome.DEADLINE_EXCEEDED,
                    Reason.DEADLINE_EXPIRED,
                    Blame.US,
                ), (explicit, surrounding)
                assert attempt.phase is Phase.WAIT
                assert 0.19 <= took < 1.2, (explicit, surrounding)
            assert_nothing_held(client)


async def test_the_dispatchers_attempts_do_not_inherit_a_deadline() -> None:
    """A delivery outlives the request that published it."""
    async with Receiver() as receiver, DispatchClient(limits(), egress=LOOPBACK) as client:
        with ambient.deadline(0.0):
            assert (await client.deliver(receiver.url, b"x")).outcome is Outcome.DEADLINE_EXCEEDED
            assert (await client.deliver_admitted(receiver.url, b"x")).delivered


async def test_a_deadline_bounds_the_waits_for_admission_and_for_a_connection_too() -> None:
    """The total does not, those waits have limits of their own; the caller's deadline covers everything."""
    policy = limits(
        per_endpoint_concurrency=2, max_per_host=1, admission_timeout=9.0, pool_timeout=9.0, read_timeout=9.0
    )
    async with HostileServer("silence") as server, DispatchClient(policy, egress=LOOPBACK) as client:
        held = asyncio.create_task(client.deliver(server.url, b"x", endpoint_id="e"))
        await asyncio.sleep(0.02)
        pool = asyncio.create_task(client.deliver(server.url, b"x", endpoint_id="e", deadline=Deadline.after(0.3)))
        await asyncio.sleep(0)
        admission, took = await _silent(client, server.url, endpoint_id="e", deadline=Deadline.after(0.15))
        assert (admission.phase, admission.outcome, admission.blame) == (
            Phase.ADMISSION,
            Outcome.DEADLINE_EXCEEDED,
            Blame.US,
        )
        assert took < 1.0
        waited = await pool
        assert (waited.phase, waited.outcome, waited.retry_safety) == (
            Phase.POOL,
            Outcome.DEADLINE_EXCEEDED,
            RetrySafety.SAFE,
        )
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert_nothing_held(client)


def test_an_earlier_limit_is_named_although_a_deadline_follows_within_the_same_tick() -> None:
    """The sweeper looks every few milliseconds; of two limits that passed between two looks the first one did it."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, DispatchClient(limits(read_timeout=0.6), egress=LOOPBACK, clock=loop.clock) as client:
            for after, outcome in ((0.61, Outcome.READ_TIMEOUT), (0.59, Outcome.DEADLINE_EXCEEDED)):
                given = Deadline.after(after, clock=loop.clock)
                attempt = await client.deliver(url, b"x", deadline=given)
                assert attempt.outcome is outcome
        await asyncio.sleep(0.01)

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ closing


async def test_closing_ends_what_is_in_flight_as_cancelled_and_ours() -> None:
    """In every phase at once: in the queue for admission, in the pool's, dialling, writing, waiting and reading."""
    recorder = Recorder()

    class Hanging:
        async def resolve(self, host: str) -> Resolution:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    with same_descriptors():
        async with (
            HostileServer("silence") as silent,
            HostileServer("never-reads") as deaf,
            HostileServer("black-hole") as hole,
            HostileServer("drip-body", seconds=0.01) as dripping,
        ):
            policy = limits(
                per_endpoint_concurrency=2,
                max_per_host=1,
                admission_timeout=9.0,
                pool_timeout=9.0,
                read_timeout=9.0,
                write_timeout=9.0,
                connect_timeout=9.0,
            )
            client = DispatchClient(policy, egress=LOOPBACK, resolver=Hanging(), observer=recorder)
            tasks = [asyncio.create_task(client.deliver(silent.url, b"x")) for _ in range(4)]
            tasks += [
                asyncio.create_task(client.deliver(url, bytes(4_000_000), IDENTITY))
                for url in (deaf.url, hole.url, dripping.url, silent.url.replace("127.0.0.1", "never.example.com"))
            ]
            await asyncio.sleep(0.15)
            assert client.statistics().in_flight == 8
            await client.aclose()
            attempts = await asyncio.gather(*tasks)
            assert {(one.outcome, one.reason, one.blame) for one in attempts if one.status is None} == {
                (Outcome.CANCELLED, Reason.CLIENT_CLOSED, Blame.US)
            }
            # The status of a head that has come stands, also when its body will not.
            (answered,) = [one for one in attempts if one.status is not None]
            assert (answered.delivered, answered.body_fault) == (True, BodyFault.INCOMPLETE)
            # Nobody inherits a place in the middle of it: who waited was still waiting.
            assert Counter(one.phase for one in attempts) == {
                Phase.ADMISSION: 2,
                Phase.POOL: 1,
                Phase.DNS: 1,
                Phase.CONNECT: 1,
                Phase.WRITE: 1,
                Phase.WAIT: 1,
                Phase.READ: 1,
            }
            assert len(recorder.attempts) == 8
            assert_nothing_held(client)


async def test_a_cancelled_close_leaves_nothing_either() -> None:
    """Shutdown code runs under limits of its own."""

    class Stubborn:
        async def resolve(self, host: str) -> Resolution:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
                raise
            raise AssertionError("unreachable")

    client = DispatchClient(limits(), egress=LOOPBACK, resolver=Stubborn())
    task = asyncio.create_task(client.deliver("http://never.example.com:8080/", b"x"))
    await asyncio.sleep(0.02)
    before = open_client_count()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.aclose()
    assert (await task).outcome is Outcome.CANCELLED
    assert open_client_count() == before - 1
    assert_nothing_held(client)


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "timed out"])
async def test_a_redirect_whose_body_we_cut_is_not_followed(closing: bool) -> None:
    """Its head has come and says 307, so the status stands; but what was just stopped must not begin anew elsewhere."""
    requests = 0
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\nx")
        requests += 1
        writer.write(b"HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 10\r\n\r\nabc")
        answered.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        policy = limits(follow_redirects=True, read_timeout=5.0 if closing else 0.2)
        client = DispatchClient(policy, egress=LOOPBACK)
        task = asyncio.create_task(client.deliver(url, b"x"))
        await answered.wait()  # what comes first, a TLS context for elsewhere, takes its time
        await asyncio.sleep(0.1)
        if closing:
            await client.aclose()
        attempt = await task
        await client.aclose()
        await asyncio.sleep(0.05)
    assert (attempt.outcome, attempt.status, attempt.delivered) == (Outcome.RESPONSE, 307, False)
    assert attempt.body_fault is (BodyFault.INCOMPLETE if closing else BodyFault.TIMEOUT)
    assert requests == 1


async def test_closing_or_cancelling_while_the_tls_context_is_built_is_told_like_any_other() -> None:
    """The first attempt with a profile waits for a thread: it is in flight too, although nothing was asked of the network."""
    recorder = Recorder()
    profile = TLSProfile(ca_pem=trustme.CA().cert_pem.bytes())
    client = DispatchClient(limits(), egress=LOOPBACK, observer=recorder)
    cancelled, closed = (
        asyncio.create_task(client.deliver("https://127.0.0.1:1024/", b"x", tls=profile, endpoint_id="e"))
        for _ in range(2)
    )
    await asyncio.sleep(0)
    cancelled.cancel()
    await client.aclose()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    attempt = await closed
    assert (attempt.outcome, attempt.reason, attempt.blame) == (Outcome.CANCELLED, Reason.CLIENT_CLOSED, Blame.US)
    assert (attempt.host, attempt.retry_safety) == ("https://127.0.0.1:1024", RetrySafety.SAFE)
    assert sorted(one.reason for one in recorder.attempts) == [Reason.CANCELLED, Reason.CLIENT_CLOSED]


# ------------------------------------------------------------------------------------------------ observers


SHARED_FACTS = (
    *("outcome", "delivered", "phase", "reason", "retry_safety", "blame", "status", "host", "address", "elapsed"),
    *("phases", "reused", "stale_retry", "bytes_sent", "body_fault", "lagged"),
)


async def test_the_observer_sees_every_attempt_once_with_the_same_facts() -> None:
    """Metrics, breaker and learning stand on it: one missing end is a slot that looks busy for ever."""
    recorder = Recorder()
    async with Receiver() as receiver, HostileServer("silence") as silent:
        policy = limits(per_endpoint_concurrency=1, admission_timeout=0.05, read_timeout=0.2)
        async with DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
            good = await client.deliver(receiver.url, b"x", endpoint_id="ep_1", tenant="acme")
            bad = await client.deliver(f"{receiver.url}/status/503", b"x")
            cancelled = asyncio.create_task(client.deliver(silent.url, b"x"))
            await asyncio.sleep(0.02)
            shed = await client.deliver(silent.url, b"x")
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            late = await client.deliver(silent.url, b"x")
    assert [one.outcome for one in recorder.attempts] == ["response", "response", "shed", "cancelled", "read_timeout"]
    for attempt, told in zip((good, bad, shed, None, late), recorder.attempts, strict=True):
        if attempt is not None:
            for name in SHARED_FACTS:
                assert getattr(attempt, name) == getattr(told, name), name
    assert (recorder.attempts[0].endpoint_id, recorder.attempts[0].tenant) == ("ep_1", "acme")
    assert recorder.attempts[3].blame == "us"


async def test_an_observer_that_raises_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry is a guest: its bug is logged and attempts go on, those that wait for the ended one's slot too."""
    recorder = Broken()
    policy = limits(max_per_host=1, per_endpoint_concurrency=3, **WIDE)
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
        with caplog.at_level(logging.CRITICAL, logger="gatepost.client"):
            attempts = await asyncio.gather(*(client.deliver(receiver.url, b"x") for _ in range(20)))
        assert all(attempt.delivered for attempt in attempts)
        assert len(recorder.attempts) == 20
        assert_nothing_held(client, idle=1)


async def test_an_observer_may_use_the_client_from_inside_its_callback() -> None:
    """It is called in the middle of the engine's own work; whatever it does there must find everything in order."""
    seen: list[int] = []
    follow_ups: list[asyncio.Task[Attempt]] = []

    def use(observation: AttemptObservation) -> None:
        statistics = client.statistics()
        seen.append(statistics.in_flight)
        assert statistics.connections_in_use <= 1
        client.forget(observation.host)
        repr(client)
        if len(follow_ups) < 10:
            follow_ups.append(asyncio.get_running_loop().create_task(client.deliver(receiver.url, b"again")))

    policy = limits(max_per_host=1, per_endpoint_concurrency=2, **WIDE)
    recorder = Recorder(use)
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
        attempts = await asyncio.gather(*(client.deliver(receiver.url, b"x") for _ in range(10)))
        attempts += await asyncio.gather(*follow_ups)
        assert len(attempts) == 20
        assert all(attempt.delivered for attempt in attempts)
        assert len(recorder.attempts) == 20
        assert seen[-1] == 0
        assert_nothing_held(client)


async def test_an_observer_may_cancel_the_other_attempts() -> None:
    """For example to give up all copies once one was delivered."""
    tasks: list[asyncio.Task[Attempt]] = []

    def cancel(_: AttemptObservation) -> None:
        for task in tasks:
            task.cancel()

    policy = limits(max_per_host=2, per_endpoint_concurrency=4, **WIDE)
    recorder = Recorder(cancel)
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
        tasks += [asyncio.create_task(client.deliver(f"{receiver.url}/slow/0.05", b"x")) for _ in range(10)]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert len(recorder.attempts) == 10
        assert_nothing_held(client, idle=client.statistics().connections_idle)


async def test_an_observer_may_close_the_client_in_the_middle_of_the_end_of_an_attempt() -> None:
    """With eager tasks (Python 3.12) `create_task(client.aclose())` runs at once, inside the engine's own callbacks."""

    def close(_: AttemptObservation) -> None:
        with pytest.raises(StopIteration):  # nothing to wait for: it runs to its end here
            client.aclose().send(None)

    recorder = Recorder(close)
    policy = limits(max_per_host=1, per_endpoint_concurrency=3, **WIDE)
    async with Receiver() as receiver:
        client = DispatchClient(policy, egress=LOOPBACK, observer=recorder)
        attempts = await asyncio.gather(*(client.deliver(receiver.url, b"x") for _ in range(10)))
        assert Counter(one.outcome for one in attempts) == {"response": 1, "cancelled": 9}
        assert len(recorder.attempts) == 10
        assert receiver.requests <= 2, "the connection may have been handed on before the observer was told"
        assert_nothing_held(client)


# ------------------------------------------------------------------------------------------------ load


def sockets_to(ports: set[int]) -> Counter[int]:
    """Open sockets of this process that are connected or connecting to these local ports, as the kernel counts them."""
    ours = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the directory's own descriptor is closed by now
            ours.add(os.readlink(f"/proc/self/fd/{name}"))
    found = {}
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            port, inode = int(fields[2].partition(":")[2], 16), fields[9]
            if port in ports and f"socket:[{inode}]" in ours:
                found[inode] = port  # the table is no snapshot and may say a line twice
    return Counter(found.values())


async def test_the_ceilings_hold_under_load_as_the_kernel_counts_them() -> None:
    """A limit that counted only busy connections let 675 sockets be open instead of 50."""
    policy = limits(max_connections=12, max_per_host=3, per_endpoint_concurrency=50, **WIDE)
    async with Receiver(ports=8) as receiver:
        ports = set(receiver.ports)
        most: Counter[str] = Counter()

        def look(_: AttemptObservation) -> None:
            if len(recorder.attempts) % 5 == 0:
                found = sockets_to(ports)
                most["all"] = max(most["all"], found.total())
                most["host"] = max(most["host"], *found.values())

        recorder = Recorder(look)
        async with DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
            attempts = await asyncio.gather(
                *(
                    client.deliver(f"{receiver.urls[number % 8]}/slow/0.002", b"x", endpoint_id=f"e{number % 16}")
                    for number in range(400)
                )
            )
            assert all(attempt.delivered for attempt in attempts), Counter(one.outcome for one in attempts)
            assert (most["all"], most["host"]) in ((12, 2), (12, 3))
            await asyncio.gather(*(client.deliver(f"{receiver.url}/slow/0.002", b"x") for _ in range(40)))
            assert most["host"] == 3
            assert sockets_to(ports).total() == client.statistics().connections_open <= 12
            assert_nothing_held(client, idle=client.statistics().connections_idle)
        assert sockets_to(ports).total() == 0


async def test_two_endpoints_on_one_host_share_its_connections() -> None:
    """One endpoint with a backlog of slow requests holds at most half of them while the other waits."""
    order: list[str | None] = []
    recorder = Recorder(lambda observation: order.append(observation.endpoint_id))
    policy = limits(max_per_host=4, per_endpoint_concurrency=50, **WIDE)
    async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
        slow = f"{receiver.url}/slow/0.02"
        greedy = [asyncio.create_task(client.deliver(slow, b"x", endpoint_id="greedy")) for _ in range(40)]
        await asyncio.sleep(0)
        small = [asyncio.create_task(client.deliver(slow, b"x", endpoint_id="small")) for _ in range(10)]
        await asyncio.gather(*greedy, *small)
        last_small = max(place for place, name in enumerate(order) if name == "small")
        # Served in turn the ten are through with about ten others; in one queue they would come after forty.
        assert last_small < 30, order
        assert client.statistics().hosts[receiver.url].created == 4


async def test_connections_are_reused_and_counted() -> None:
    """`connection_reuse_ratio` is the first thing to look at when CPU rises."""
    async with Receiver() as receiver, DispatchClient(limits(**WIDE), egress=LOOPBACK) as client:
        for number in range(5):
            attempt = await client.deliver(receiver.url, b"x")
            assert attempt.reused == (number > 0)
        host = client.statistics().hosts[receiver.url]
        assert (host.created, host.reused, host.reuse_ratio) == (1, 4, 0.8)
        assert (host.idle, host.in_use, host.waiting) == (1, 0, 0)
        client.forget(receiver.url)
        assert client.statistics().connections_open == 0
        assert not (await client.deliver(receiver.url, b"x")).reused


@pytest.mark.parametrize("host", ["127.0.0.1", "http://127.0.0.1", "http://127.0.0.1:80/path", "", "127.0.0.1:80"])
async def test_forgetting_what_is_no_host_is_refused(host: str) -> None:
    """A slip in the spelling would leave connections to the old address in use, in silence."""
    async with DispatchClient(limits(), egress=LOOPBACK) as client:
        with pytest.raises(ValueError, match="write scheme://host:port"):
            client.forget(host)


async def test_a_host_with_several_tls_profiles_is_counted_as_one() -> None:
    """Each profile has its own connections, the operator sees one host."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    pem = authority.cert_pem.bytes()
    async with Receiver(tls=server) as receiver, DispatchClient(limits(**WIDE), egress=LOOPBACK) as client:
        for profile in (TLSProfile(ca_pem=pem), TLSProfile(ca_pem=pem + b"\n"), TLSProfile(ca_pem=pem)):
            assert (await client.deliver(receiver.url, b"x", tls=profile)).delivered
        host = client.statistics().hosts[receiver.url]
        assert (host.created, host.reused, host.idle) == (2, 1, 2)


async def test_a_changed_egress_policy_is_asked_before_a_connection_is_used_again() -> None:
    """An operator who denies a network during an incident means the open connections too."""
    resolver = FixedResolver({"hooks.example.com": ("127.0.0.1",)})
    async with Receiver() as receiver, DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
        url = receiver.url.replace("127.0.0.1", "hooks.example.com")
        assert (await client.deliver(url, b"x")).delivered
        client.egress = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",), deny_cidrs=("127.0.0.1/32",))
        assert client.statistics().connections_idle == 1, "a reload itself drops nothing"
        attempt = await client.deliver(url, b"x")
        assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, Reason.ADDR_OPERATOR_DENIED)
        assert receiver.requests == 1
        assert_nothing_held(client)


# ------------------------------------------------------------------------------------------------ a late loop


async def _block_while_waiting(client: DispatchClient, url: str, block: float, after: float) -> Attempt:
    """Deliver, and block the loop for `block` seconds `after` the start."""
    task = asyncio.create_task(client.deliver(url, b"x"))
    await asyncio.sleep(after)
    threading.Event().wait(block)
    return await task


async def test_an_answer_that_came_in_time_counts_although_our_loop_was_late() -> None:
    """Three loops: the receiver answers after 100 ms, the limit is 200, and ours sleeps through both."""
    with elsewhere("slow-ok", seconds=0.1) as server:
        async with DispatchClient(limits(read_timeout=0.2), egress=LOOPBACK) as client:
            attempt = await _block_while_waiting(client, server.url, 0.3, 0.02)
            assert attempt.delivered
            assert attempt.elapsed > 0.3
            assert_nothing_held(client, idle=1)


async def test_a_limit_that_fires_in_a_late_tick_is_marked_as_lagged() -> None:
    """Learner and breaker leave it out: nobody can tell whether the receiver was slow or we."""
    recorder = Recorder()
    async with (
        HostileServer("silence") as server,
        DispatchClient(limits(read_timeout=0.2), egress=LOOPBACK, observer=recorder) as client,
    ):
        attempt = await _block_while_waiting(client, server.url, 0.5, 0.02)
        assert (attempt.outcome, attempt.lagged) == (Outcome.READ_TIMEOUT, True)
        assert recorder.attempts[0].lagged
        assert client.statistics().late_sweeps >= 1
        attempt = await client.deliver(server.url, b"x")
        assert (attempt.outcome, attempt.lagged) == (Outcome.READ_TIMEOUT, False)


async def test_no_lag_extends_a_deadline() -> None:
    """`deadline=` is a promise to somebody else."""
    async with HostileServer("silence") as server, DispatchClient(limits(read_timeout=5.0), egress=LOOPBACK) as client:
        task = asyncio.create_task(client.deliver(server.url, b"x", deadline=Deadline.after(0.2)))
        await asyncio.sleep(0.02)
        threading.Event().wait(0.3)
        attempt = await task
        assert attempt.outcome is Outcome.DEADLINE_EXCEEDED
        assert attempt.elapsed < 0.45


# ------------------------------------------------------------------------------------------------ both loops


def test_the_same_deliveries_work_on_uvloop() -> None:
    """Production runs on it; readers, writers and timers there are other code."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        policy = limits(max_per_host=2, max_connections=3, per_endpoint_concurrency=20, **WIDE)
        async with (
            Receiver() as receiver,
            HostileServer("silence") as silent,
            DispatchClient(policy, egress=LOOPBACK) as client,
        ):
            attempts = await asyncio.gather(
                *(client.deliver(receiver.url, bytes(size), IDENTITY) for size in (0, 10, 70_000, 3_000_000) * 5)
            )
            assert all(attempt.delivered for attempt in attempts)
            quick = client.policy.evolve(read_timeout=0.3, connect_timeout=0.1)
            late = await client.deliver(silent.url, b"x", policy=quick)
            assert late.outcome is Outcome.READ_TIMEOUT
            refused = await client.deliver(REFUSED, b"x")
            assert refused.reason is Reason.CONNECTION_REFUSED
            task = asyncio.create_task(client.deliver(silent.url, b"x"))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert_nothing_held(client, idle=client.statistics().connections_idle)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
