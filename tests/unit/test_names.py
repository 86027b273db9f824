"""Names to addresses: one look-up at a time, answers kept for their time, and no resolver can hang or break an attempt."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import cast

import pytest

from gatepost.deadline import current, deadline
from gatepost.errors import ResolveError
from gatepost.net.names import (
    ADDRESSES_KEPT_MAX,
    FAILURE_TTL,
    FAILURE_TTL_MAX,
    LOOKUP_LIMIT,
    NAMES_MAX,
    PENDING_MAX,
    Found,
    NameCache,
)
from gatepost.net.resolver import THREADS, Resolution, ThreadResolver
from gatepost.testing.virtual import VirtualClock, VirtualLoop, run_virtual
from gatepost.wire.reasons import Reason


class Scripted:
    """Answers what it was given, after `delay` seconds; exceptions are raised."""

    def __init__(self, *answers: object, delay: float = 0.0) -> None:
        self.answers = list(answers)
        self.delay = delay
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Resolution:
        """The next answer; the last one repeats."""
        self.asked.append(host)
        await asyncio.sleep(self.delay)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return cast(Resolution, answer)


GOOD = Resolution(("192.0.2.1",))


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.event = asyncio.Event()

    def __call__(self, found: Found) -> None:
        self.found.append(found)
        self.event.set()

    async def wait(self) -> Found:
        """What was found; it must come exactly once."""
        await self.event.wait()
        await asyncio.sleep(0)
        (found,) = self.found
        return found


def code(found: Found) -> tuple[str, bool]:
    """The error's code and whether it is temporary."""
    assert isinstance(found, ResolveError)
    return found.code, found.temporary


def clock() -> VirtualClock:
    """The clock of the virtual loop that runs the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.clock


def test_many_who_ask_for_one_name_share_one_look_up() -> None:
    """A thousand deliveries to one host must not be a thousand questions to its name server."""

    async def main() -> None:
        resolver = Scripted(GOOD, delay=1.0)
        names = NameCache(resolver, 30.0, clock())
        heard = [Heard() for _ in range(100)]
        for listener in heard:
            names.ask("a.example", listener)
            assert not listener.found, "a listener is never called before ask returns"
        assert names.pending_count == 1
        assert [await listener.wait() for listener in heard] == [GOOD] * 100
        assert resolver.asked == ["a.example"]
        assert names.pending_count == 0
        await names.aclose()

    run_virtual(main)


def test_an_answer_is_kept_for_its_time_and_no_longer() -> None:
    """A DNS change must be followed; a name must not be asked for at every connection."""

    async def main() -> None:
        other = Resolution(("192.0.2.2",))
        names = NameCache(Scripted(GOOD, other), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        await heard.wait()
        assert names.known("a.example") is GOOD
        assert names.known("b.example") is None
        await asyncio.sleep(29.9)
        assert names.known("a.example") is GOOD
        await asyncio.sleep(0.2)
        assert names.known("a.example") is None
        heard = Heard()
        names.ask("a.example", heard)
        assert await heard.wait() is other
        await names.aclose()

    run_virtual(main)


def test_a_ttl_of_0_asks_anew_but_still_one_at_a_time() -> None:
    """What `dns_ttl=0` means: an answer serves those who waited for it, and nobody later."""

    async def main() -> None:
        resolver = Scripted(GOOD, delay=0.5)
        names = NameCache(resolver, 0.0, clock())
        first, second = Heard(), Heard()
        names.ask("a.example", first)
        names.ask("a.example", second)
        await first.wait()
        await second.wait()
        assert names.known("a.example") is None
        assert len(resolver.asked) == 1
        third = Heard()
        names.ask("a.example", third)
        await third.wait()
        assert len(resolver.asked) == 2
        await names.aclose()

    run_virtual(main)


def test_a_failure_is_remembered_for_a_moment() -> None:
    """A backlog behind a dead name asks once a second, and finds out within one when the name comes back."""

    async def main() -> None:
        names = NameCache(Scripted(ResolveError(Reason.DNS_NO_ADDRESS, temporary=False), GOOD), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        assert code(await heard.wait()) == (Reason.DNS_NO_ADDRESS, False)
        assert isinstance(names.known("a.example"), ResolveError)
        await asyncio.sleep(FAILURE_TTL + 0.01)
        assert names.known("a.example") is None
        await names.aclose()

    run_virtual(main)


@pytest.mark.parametrize(("took", "kept"), [(0.5, FAILURE_TTL), (20.0, 20.0), (1e9, FAILURE_TTL_MAX)])
def test_a_slow_failure_is_remembered_for_as_long_as_it_took(took: float, kept: float) -> None:
    """Each look-up of a name whose server hangs holds a thread for 20 s: asked for again at once, 32 names hold all of them."""

    async def main() -> None:
        names = NameCache(Scripted(ResolveError("SERVFAIL", temporary=True), delay=took), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        await heard.wait()
        await asyncio.sleep(kept - 0.1)
        assert names.known("a.example") is not None
        await asyncio.sleep(0.2)
        assert names.known("a.example") is None
        await names.aclose()

    run_virtual(main)


def test_an_answer_of_thousands_is_heard_and_not_kept() -> None:
    """16,384 names of a zone that answers with 4,000 addresses would take 4 GiB."""

    async def main() -> None:
        many = [Resolution(tuple(f"192.0.2.{n}" for n in range(count))) for count in (64, 65)]
        names = NameCache(Scripted(*many), 30.0, clock())
        for name in ("a.example", "b.example"):
            heard = Heard()
            names.ask(name, heard)
            assert isinstance(await heard.wait(), Resolution)
        assert ADDRESSES_KEPT_MAX == 64
        assert names.known("a.example") is many[0]
        assert names.known("b.example") is None
        await names.aclose()

    run_virtual(main)


def test_who_stops_listening_is_not_called_and_the_others_are() -> None:
    """An attempt whose dns limit fired is over; the look-up belongs to all who wait for it."""

    async def main() -> None:
        names = NameCache(Scripted(GOOD, delay=1.0), 30.0, clock())
        gone, stays = Heard(), Heard()
        names.ask("a.example", gone)
        names.ask("a.example", stays)
        names.forget_listener("a.example", gone)
        names.forget_listener("a.example", gone)
        names.forget_listener("b.example", gone)
        assert await stays.wait() is GOOD
        assert not gone.found
        await names.aclose()

    run_virtual(main)


BUGS: list[tuple[object, tuple[str, bool]]] = [
    (RuntimeError("a bug"), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (OSError(5, "input/output error"), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (TimeoutError(), (Reason.DNS_TIMEOUT, True)),
    (ResolveError("NXDOMAIN", temporary=False), (Reason.DNS_NO_ADDRESS, False)),
    (ResolveError("SERVFAIL", temporary=True), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (None, (Reason.DNS_TEMPORARY_FAILURE, True)),
    (("192.0.2.1",), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (Resolution("192.0.2.1"), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (Resolution(cast(Sequence[str], (1,))), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (Resolution(cast(Sequence[str], 1)), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (Resolution(cast(Sequence[str], iter(("192.0.2.1",)))), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (asyncio.CancelledError(), (Reason.DNS_TEMPORARY_FAILURE, True)),
    (Resolution(("192.0.2.1",), cast(Sequence[str], None)), (Reason.DNS_TEMPORARY_FAILURE, True)),
]


@pytest.mark.parametrize(("answer", "expected"), BUGS, ids=range(len(BUGS)))
def test_a_resolvers_bug_is_an_answer_at_once(answer: object, expected: tuple[str, bool]) -> None:
    """Resolvers are users' code: an answer of the wrong kind once left every attempt behind it to its limit."""

    async def main() -> None:
        names = NameCache(Scripted(answer), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        assert code(await heard.wait()) == expected
        await names.aclose()

    run_virtual(main)


def test_a_resolver_that_ends_in_a_cancellation_is_asked_again() -> None:
    """A future of its own that was cancelled once left the name pending for ever, and each attempt at it to its limit."""

    async def main() -> None:
        names = NameCache(Scripted(asyncio.CancelledError(), GOOD), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        await heard.wait()
        assert names.pending_count == 0
        await asyncio.sleep(FAILURE_TTL + 0.01)
        heard = Heard()
        names.ask("a.example", heard)
        assert await heard.wait() is GOOD
        await names.aclose()

    run_virtual(main)


def test_a_failure_that_is_kept_keeps_nobody_who_heard_it() -> None:
    """The traceback of a raised error holds the listeners: 16,384 dead names held as many attempts with their payloads."""

    async def main() -> None:
        names = NameCache(Scripted(ResolveError(Reason.DNS_NO_ADDRESS, temporary=False)), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        found = await heard.wait()
        assert names.known("a.example") is found
        assert isinstance(found, ResolveError)
        gone = weakref.ref(heard)
        del heard
        gc.collect()
        assert gone() is None
        await names.aclose()

    run_virtual(main)


def test_a_look_up_knows_nothing_of_who_asked_first() -> None:
    """It belongs to all who wait: the first one's deadline of 10 ms would end it for the others."""

    class Curious(Scripted):
        async def resolve(self, host: str) -> Resolution:
            assert current() is None
            return await super().resolve(host)

    async def main() -> None:
        names = NameCache(Curious(GOOD), 30.0, clock())
        heard = Heard()
        with deadline(0.01):
            names.ask("a.example", heard)
        assert await heard.wait() is GOOD
        await names.aclose()

    run_virtual(main)


def test_a_look_up_that_hangs_is_given_up_for_everybody() -> None:
    """Each attempt has a dns limit of its own; this one frees the place among the pending ones."""

    async def main() -> None:
        names = NameCache(Scripted(GOOD, delay=1e9), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        began = clock().monotonic()
        assert code(await heard.wait()) == (Reason.DNS_TIMEOUT, True)
        assert clock().monotonic() - began == pytest.approx(LOOKUP_LIMIT, abs=0.1)
        assert names.pending_count == 0
        await names.aclose()

    run_virtual(main)


def test_too_many_pending_names_are_refused_at_once_and_as_ours() -> None:
    """Names that hang must not pile up without bound; that they do is our problem, not the next endpoint's."""

    async def main() -> None:
        names = NameCache(Scripted(GOOD, delay=1e9), 30.0, clock())
        for number in range(PENDING_MAX):
            names.ask(f"{number}.example", Heard())
        heard, known = Heard(), Heard()
        names.ask("one-more.example", heard)
        names.ask("0.example", known)
        assert not heard.found
        assert code(await heard.wait()) == (Reason.DNS_OVERLOAD, True)
        assert not known.found, "a name that is being asked for already costs nothing more"
        await names.aclose()

    run_virtual(main)


def test_names_kept_are_bounded_and_the_least_used_goes() -> None:
    """Customers come and go for years."""

    async def main() -> None:
        names = NameCache(Scripted(GOOD), 1e9, clock())
        for start in range(0, NAMES_MAX, 512):
            batch = [(f"{number}.example", Heard()) for number in range(start, start + 512)]
            for name, heard in batch:
                names.ask(name, heard)
            for _, heard in batch:
                await heard.wait()
        assert names.known("0.example") is GOOD  # used, so number 1 is now the least used
        last = Heard()
        names.ask("last.example", last)
        await last.wait()
        assert names.known("0.example") is GOOD
        assert names.known("1.example") is None
        assert len(names._answers) == NAMES_MAX
        await names.aclose()

    run_virtual(main)


def test_closing_ends_the_look_ups_and_calls_nobody() -> None:
    """The client's attempts have ended before; their listeners must not be woken."""

    async def main() -> None:
        names = NameCache(Scripted(GOOD, delay=1e9), 30.0, clock())
        heard = Heard()
        names.ask("a.example", heard)
        await asyncio.sleep(0.1)
        await names.aclose()
        await asyncio.sleep(0.1)
        assert not heard.found
        assert names.pending_count == 0
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)


# ------------------------------------------------------------------------------------------ the system's resolver


async def test_the_systems_view_is_asked_in_threads_of_our_own() -> None:
    """The loop's default executor is shared and small: 60 hanging names would stop every tenant and all of the application."""
    resolver = ThreadResolver()
    found = await resolver.resolve("localhost")
    assert set(found.addresses) <= {"127.0.0.1", "::1"}
    assert found.addresses
    assert any(thread.name.startswith("gatepost-dns") for thread in threading.enumerate())
    resolver.close()


@pytest.mark.parametrize("name", ["x" * 70 + ".example", "a..example", "\ud800.example"])
async def test_a_name_that_cannot_be_asked_for_is_an_error_of_ours(name: str) -> None:
    """Python refuses some names by UnicodeError, before any question."""
    resolver = ThreadResolver(1)
    with pytest.raises(ResolveError):
        await resolver.resolve(name)
    resolver.close()


async def test_threads_are_bounded_and_a_closed_resolver_leaves_none_busy() -> None:
    """Each thread costs 8 MiB of address space and may hang for half a minute."""
    assert THREADS <= 256
    before = set(threading.enumerate())
    resolver = ThreadResolver(2)
    await asyncio.gather(*(resolver.resolve("localhost") for _ in range(20)))
    assert len(set(threading.enumerate()) - before) <= 2
    resolver.close()
    with pytest.raises(RuntimeError):
        await resolver.resolve("localhost")
