"""Names to addresses by c-ares (`aiodns`, extra `dns`): no threads that hang, with the answers' TTL and CNAME chain.

It asks name servers only: no hosts file, no nsswitch, no search list. It neither caches nor checks addresses. Given by users
as `resolver=AioDnsResolver()`; the system's resolver (`net.resolver`) is the default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gatepost.errors import ConfigurationError, ResolveError
from gatepost.net.resolver import Resolution, find_nat64_prefixes
from gatepost.wire.reasons import Reason

if TYPE_CHECKING:
    import aiodns

TIMEOUT: Final = 2.0
"""Seconds for the first try at one server; c-ares doubles them with each round."""
TRIES: Final = 2
FAMILIES: Final = ("AAAA", "A")
CHAIN_MAX: Final = 16
"""CNAMEs followed within one answer, as many as common resolvers follow."""


class AioDnsResolver:
    """Construct it once per process: it holds one c-ares channel, made at the first question and closed by `aclose`.

    A channel per client or per session leaks descriptors, which is how most trouble with `aiodns` began. `servers` are
    `address` or `address:port` texts; none given means those of resolv.conf. A cancelled look-up costs nothing more. Raises
    `ConfigurationError` when `aiodns` is not installed.
    """

    def __init__(self, servers: Sequence[str] = (), *, timeout: float = TIMEOUT, tries: int = TRIES) -> None:
        try:
            import aiodns
            import pycares
        except ImportError:
            raise ConfigurationError(
                "AioDnsResolver needs the package aiodns 4 or later: pip install 'gatepost[dns]', or leave resolver out"
            ) from None
        if not hasattr(aiodns.DNSResolver, "query_dns"):
            raise ConfigurationError(
                "AioDnsResolver needs the package aiodns 4 or later: pip install -U 'gatepost[dns]'"
            )
        if isinstance(servers, str):
            raise ConfigurationError(f"servers={servers!r} is one text: write a list, for example [{servers!r}]")
        self._aiodns = aiodns
        # The whole name exists and has no address of this kind, or does not exist: both are answers.
        self._permanent = frozenset({pycares.errno.ARES_ENODATA, pycares.errno.ARES_ENOTFOUND})
        self._cname = pycares.QUERY_TYPE_CNAME
        self._servers = tuple(servers)
        self._timeout = timeout
        self._tries = tries
        self._channel: aiodns.DNSResolver | None = None

    async def resolve(self, host: str) -> Resolution:
        """Ask for A and AAAA at once. Raises `ResolveError`: `temporary` unless every server says there is no address."""
        channel = self._open()
        # The dot makes the name absolute. A cancellation reaches both questions through gather.
        answers = await asyncio.gather(
            *(channel.query_dns(host + ".", family) for family in FAMILIES), return_exceptions=True
        )
        addresses: list[str] = []
        chain: list[str] = []
        ttls: list[int] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                self._read(answer.answer, addresses, chain, ttls)
        if addresses:
            return Resolution(tuple(dict.fromkeys(addresses)), tuple(dict.fromkeys(chain)), float(min(ttls)))
        for failure in failures:
            if not isinstance(failure, self._aiodns.error.DNSError):
                raise failure
            if not failure.args or failure.args[0] not in self._permanent:
                raise ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True) from failure
        raise ResolveError(Reason.DNS_NO_ADDRESS, temporary=False)

    async def nat64_prefixes(self) -> tuple[str, ...]:
        """The network's NAT64 prefixes (RFC 7050). Raises `ResolveError` when that cannot be known now."""
        return await find_nat64_prefixes(self)

    async def aclose(self) -> None:
        """Close the channel; a later `resolve` opens another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _open(self) -> aiodns.DNSResolver:
        channel = self._channel
        loop = asyncio.get_running_loop()
        if channel is None:
            servers = list(self._servers) or None
            channel = self._channel = self._aiodns.DNSResolver(
                nameservers=servers, loop=loop, timeout=self._timeout, tries=self._tries
            )
        elif channel.loop is not loop:
            raise RuntimeError(
                "this AioDnsResolver belongs to another event loop: close it there before it is used here"
            )
        return channel

    def _read(self, records: Sequence[Any], addresses: list[str], chain: list[str], ttls: list[int]) -> None:
        """Take addresses and CNAMEs out of one answer section."""
        links = [record for record in records if record.type == self._cname]
        chain += [str(record.data.cname).removesuffix(".") for record in links[:CHAIN_MAX]]
        found = [record for record in records if hasattr(record.data, "addr")]
        if found:
            addresses += [str(record.data.addr) for record in found]
            ttls += [record.ttl for record in (*links, *found)]
