"""Names in use: one look-up per name at a time, owned by the cache and not by who asked first, and answers kept for a while.

It decides nothing about addresses (every connection checks them anew) and never blocks the loop. `net.flight` asks; whoever
gives up only stops listening, the look-up goes on for the others. Which look-up starts next is for `net.name_queue` to say.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import ResolveError
from gatepost.net.name_queue import NameQueue
from gatepost.net.resolver import Resolution, Resolver
from gatepost.wire.reasons import Reason

LOOKUP_LIMIT: Final = 30.0
"""Seconds after which a look-up is given up for everybody; each attempt's own dns limit is far shorter."""
PENDING_MAX: Final = 16_384
"""Names being asked for or waiting for that: as many as `serve` has connections, each of which may wait for another name. A
further new name fails at once with `dns_overload`, which is ours to answer for."""
NAMES_MAX: Final = 16_384
"""Answers kept; the one unused for longest goes first. About 300 bytes each, 6 KiB at most."""
ADDRESSES_KEPT_MAX: Final = 64
"""Addresses of an answer that is kept. A zone can answer with thousands; such a name is asked for anew at every connection."""
FAILURE_TTL: Final = 1.0
"""Seconds for which a failure is remembered, so that a backlog behind a dead name asks once a second and not at every attempt."""
FAILURE_TTL_MAX: Final = 30.0
"""A failure that took longer than `FAILURE_TTL` is remembered for as long as it took, up to this many seconds: a name whose
server hangs may hold a thread of the resolver for half of the time, not for all of it."""

Found = Resolution | ResolveError
Listener = Callable[[Found], None]


@dataclass(slots=True)
class _Entry:
    found: Found
    until: float


@dataclass(slots=True)
class _Pending:
    """A look-up that waits or runs."""

    listeners: dict[Listener, None]
    tenants: set[str | None]
    """In whose queues it stands until it starts."""


class NameCache:
    """Answers by name, with single flight. `ttl` in seconds; 0 asks anew for every connection, still one at a time."""

    def __init__(self, resolver: Resolver, ttl: float, clock: Clock) -> None:
        self._resolver = resolver
        self._ttl = ttl
        self._clock = clock
        self._answers: OrderedDict[str, _Entry] = OrderedDict()
        self._pending: dict[str, _Pending] = {}
        self._queue = NameQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def keep_for(self, ttl: float) -> None:
        """Keep answers for `ttl` seconds from now on; those that are known stay as long as they were to."""
        self._ttl = ttl

    @property
    def pending_count(self) -> int:
        """Names being asked for, or waiting for that."""
        return len(self._pending)

    def is_waiting(self, host: str) -> bool:
        """The name stands in our own queue: no resolver has been asked yet."""
        return host in self._pending and not self._queue.is_running(host)

    def known(self, host: str) -> Found | None:
        """The kept answer, or None."""
        entry = self._answers.get(host)
        if entry is None:
            return None
        if entry.until <= self._clock.monotonic():
            del self._answers[host]
            return None
        self._answers.move_to_end(host)
        return entry.found

    def ask(self, host: str, listener: Listener, tenant: str | None = None) -> None:
        """Call `listener` once with the answer, unless `forget_listener` comes first. Never calls it before returning.

        `tenant` is whose look-ups it is counted with; None: nobody's, and not limited.
        """
        pending = self._pending.get(host)
        if pending is None:
            if len(self._pending) >= PENDING_MAX:
                asyncio.get_running_loop().call_soon(listener, ResolveError(Reason.DNS_OVERLOAD, temporary=True))
                return
            pending = self._pending[host] = _Pending({}, set())
        pending.listeners[listener] = None
        if tenant not in pending.tenants and not self._queue.is_running(host):
            # Also when others wait for it already: it starts at the turn of whoever comes first.
            pending.tenants.add(tenant)
            self._queue.put(host, tenant)
            self._start()

    def forget_listener(self, host: str, listener: Listener) -> None:
        """Stop listening. A look-up that nobody listens to is dropped unless it has started."""
        pending = self._pending.get(host)
        if pending is None:
            return
        pending.listeners.pop(listener, None)
        if not pending.listeners and not self._queue.is_running(host):
            del self._pending[host]
            for tenant in pending.tenants:
                self._queue.leave(host, tenant)

    def _start(self) -> None:
        """Start what may start."""
        while (host := self._queue.take()) is not None:
            for tenant in self._pending[host].tenants:
                self._queue.leave(host, tenant)
            # In a context of its own: the deadline of whoever asked first must not end, nor his request outlive, the look-up.
            task = asyncio.get_running_loop().create_task(
                self._look_up(host), name=f"gatepost dns {host}", context=Context()
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look_up(self, host: str) -> None:
        # What listeners hear when the task is cancelled, by the loop's end or by a future of the resolver's own.
        found: Found = ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True, message="the look-up was cancelled")
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(LOOKUP_LIMIT):
                found = _checked(await self._resolver.resolve(host))
        except ResolveError as error:
            found = _known(error)
        except TimeoutError:
            found = ResolveError(Reason.DNS_TIMEOUT, temporary=True)
        except Exception as error:  # noqa: BLE001 - a resolver is users' code: its bug must not leave listeners waiting
            found = ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True, message=f"the resolver raised {error!r}")
        finally:
            self._answer(host, found, began)

    def _answer(self, host: str, found: Found, began: float) -> None:
        pending = self._pending.pop(host)
        self._queue.ended(host)
        if self._closed:
            return
        now = self._clock.monotonic()
        if isinstance(found, ResolveError):
            ttl = min(FAILURE_TTL_MAX, max(FAILURE_TTL, now - began))
        else:
            ttl = self._ttl if len(found.addresses) <= ADDRESSES_KEPT_MAX else 0.0
            if found.ttl is not None:
                ttl = min(ttl, max(found.ttl, FAILURE_TTL))  # a zone's 0 must not cost a question per connection
        if ttl > 0:
            self._answers[host] = _Entry(found, now + ttl)
            if len(self._answers) > NAMES_MAX:
                self._answers.popitem(last=False)
        self._start()
        for listener in pending.listeners:
            listener(found)

    async def aclose(self) -> None:
        """Give up what is being asked."""
        self._closed = True
        self._queue.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pending.clear()


def _checked(answer: object) -> Resolution:
    """The answer, if it is one; raises `TypeError`. What does not fit would raise in every listener instead."""
    if not isinstance(answer, Resolution):
        raise TypeError(f"resolve() returned a {type(answer).__name__}: return a Resolution")
    for texts in (answer.addresses, answer.chain):
        if (
            isinstance(texts, str)
            or not isinstance(texts, Sequence)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise TypeError("addresses and chain are sequences of text: write Resolution(('192.0.2.1',))")
    if answer.ttl is not None and not isinstance(answer.ttl, int | float):
        raise TypeError("ttl is a number of seconds or None: write Resolution(addresses, chain, 30.0)")
    return answer


def _known(error: ResolveError) -> ResolveError:
    """The error with a code of ours: a resolver may have words of its own for a name that does not exist.

    A new one, because it is kept: the traceback of a raised error holds every attempt that waited, with its payload.
    """
    try:
        code = Reason(error.code)
    except ValueError:
        code = Reason.DNS_TEMPORARY_FAILURE if error.temporary else Reason.DNS_NO_ADDRESS
    return ResolveError(code, error.temporary, str(error))
