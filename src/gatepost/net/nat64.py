"""Finds out once, in the background, whether this network translates to IPv4 (RFC 7050), by the client's own resolver.

It decides nothing: what it finds goes to `net.client`, which puts it into the egress rules. A resolver that does not ask the
network (no `nat64_prefixes`) is not asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import ResolveError
from gatepost.net.names import LOOKUP_LIMIT
from gatepost.net.resolver import Nat64Aware, Resolver

RETRY: Final = 60.0
"""Seconds after which the question is repeated, when name servers failed to answer it."""
NEVER: Final = float("inf")

_log = logging.getLogger("gatepost.client")


class Nat64Finder:
    """`found` hears the prefixes, at most once and never without one."""

    __slots__ = ("_again_at", "_clock", "_found", "_resolver", "_task")

    def __init__(self, resolver: Resolver, clock: Clock, found: Callable[[tuple[str, ...]], None]) -> None:
        self._resolver = resolver
        self._clock = clock
        self._found = found
        self._task: asyncio.Task[None] | None = None
        self._again_at = 0.0 if isinstance(resolver, Nat64Aware) else NEVER

    def look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask if that is still to be done. Called before names are asked for: literals need no answer."""
        if self._clock.monotonic() >= self._again_at:
            self._again_at = NEVER
            # In a context of its own, like a look-up: it belongs to no caller.
            self._task = loop.create_task(self._find(), name="gatepost nat64", context=Context())

    async def _find(self) -> None:
        assert isinstance(self._resolver, Nat64Aware)
        try:
            async with asyncio.timeout(LOOKUP_LIMIT):
                prefixes = tuple(await self._resolver.nat64_prefixes())
        except (ResolveError, TimeoutError):
            self._again_at = self._clock.monotonic() + RETRY
            return
        except Exception:  # noqa: BLE001 - users' code: nobody awaits this task, so the log must have it
            _log.exception("the resolver could not say whether the network uses NAT64")
            return
        if prefixes:
            self._found(prefixes)

    async def aclose(self) -> None:
        """Give up asking."""
        self._again_at = NEVER
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
