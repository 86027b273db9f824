"""Names to addresses: the resolver port, and the system's resolver in threads of our own.

A resolver only asks; it neither caches nor checks (`net.names` caches, `wire.egress` checks). The default executor of the
loop is never used: it is small and shared, and 60 hanging names would stop every tenant. `net.names` limits what one tenant
may hold of the threads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from gatepost.errors import ResolveError
from gatepost.net.name_queue import RUNNING_MAX
from gatepost.wire.nat64 import NAT64_NAME, nat64_prefixes_in
from gatepost.wire.reasons import Reason

THREADS: Final = RUNNING_MAX
"""Concurrent look-ups. A hung one holds its thread for 20 to 30 s with glibc's defaults. Threads start only when all others are
busy, so that this many exist only while as many names hang; each then takes some 50 KiB."""

_PERMANENT: Final = frozenset(
    code
    for code in (getattr(socket, name, None) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_FAIL"))
    if code is not None
)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name resolved to: numeric addresses in the resolver's order, and the CNAME chain when it is known."""

    addresses: Sequence[str]
    chain: Sequence[str] = ()
    ttl: float | None = None
    """Seconds for which the zone lets it be kept, when the resolver tells; the client's `dns_ttl` shortens it."""


class Resolver(Protocol):
    """Anything with this method; raises `ResolveError` when there is no address."""

    async def resolve(self, host: str) -> Resolution:
        """Addresses of an absolute name, given without its trailing dot."""
        ...


@runtime_checkable
class Nat64Aware(Protocol):
    """A resolver that asks the network, and so can say whether it translates. Others are not asked."""

    async def nat64_prefixes(self) -> tuple[str, ...]:
        """The network's NAT64 prefixes (RFC 7050); raises `ResolveError` when that cannot be known now."""
        ...


async def find_nat64_prefixes(resolver: Resolver) -> tuple[str, ...]:
    """Ask `resolver` for the prefixes; a name without an IPv6 address means that nothing translates."""
    try:
        found = await resolver.resolve(NAT64_NAME)
    except ResolveError as error:
        if error.temporary:
            raise
        return ()
    return nat64_prefixes_in(found.addresses)


class ThreadResolver:
    """`getaddrinfo` in a thread pool of its own: the system's view (nsswitch), at most `threads` at once.

    Names are asked for with their final dot, so that no search list completes them. glibc compares the hosts file with that dot
    too: of its names only those without a dot inside are found (`localhost`, but not `host.docker.internal`).
    """

    def __init__(self, threads: int = THREADS, look_up: Callable[[str], Sequence[str]] | None = None) -> None:
        """`look_up` answers one name in a thread, raising what `getaddrinfo` raises; None: `getaddrinfo` itself."""
        self._look_up = look_up or _look_up
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="gatepost-dns")

    async def resolve(self, host: str) -> Resolution:
        """Ask the system. Raises `ResolveError`: `temporary` unless the name does not exist."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._executor, self._look_up, host)
        except socket.gaierror as error:
            if error.errno in _PERMANENT:
                raise ResolveError(Reason.DNS_NO_ADDRESS, temporary=False) from error
            raise ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True) from error
        except (OSError, UnicodeError) as error:
            raise ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True) from error
        return Resolution(found)

    async def nat64_prefixes(self) -> tuple[str, ...]:
        """See `Nat64Aware`."""
        return await find_nat64_prefixes(self)

    def close(self) -> None:
        """Let the threads end; a hung look-up keeps its own until the system gives up."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> tuple[str, ...]:
    # The trailing dot makes the name absolute: the search list of resolv.conf must not complete a customer's name.
    # A name without a dot inside is an internal host that the operator listed, often one of the hosts file: as it is.
    name = host + "." if "." in host else host
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
