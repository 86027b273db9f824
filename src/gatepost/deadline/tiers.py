"""Timeout profiles by where a dependency stands, so that nobody writes `timeout=30`.

The connect limit follows the network's topology and the read limit the service's own speed, which is why they differ by an
order of magnitude; a profile where they do not warns. `timeouts_for` turns a profile and what is left of the ambient deadline
into each library's own timeout object; a tier is always named by configuration, never guessed from DNS.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from gatepost.deadline.context import current
from gatepost.deadline.value import Deadline
from gatepost.errors import ConfigurationError

if TYPE_CHECKING:
    import aiohttp
    import httpx
    import httpx2
    import urllib3

RATIO_INTERNAL: Final = 10.0
"""Read over connect inside our own networks: a handshake takes milliseconds there, so a dead host must show in a tenth."""
RATIO_EXTERNAL: Final = 3.0
"""The same over the internet, where connect must outlast two lost SYNs (1 s + 2 s) and cannot be a tenth of 10 s."""
CONNECT_FLOOR: Final = 0.05
"""Seconds at or below which no connect limit is called too long, however short the read limit: one round trip must fit."""
P99_BUFFER: Final = 1.5
"""Read limit over the dependency's 99th percentile."""
LIBPQ_CONNECT_MIN: Final = 2
"""libpq counts its connect timeout in whole seconds and rounds 1 up to 2."""


class TierWarning(UserWarning):
    """A profile whose connect limit is too near to its read limit to tell a dead host from a slow answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Limits in seconds for calls to one kind of dependency. Complete and above 0; change one with `evolve`."""

    name: str
    connect: float
    """For the TCP handshake, all addresses together."""
    tls: float
    """For the TLS handshake; 0 where there is none."""
    write: float
    """For each piece of the request handed to the kernel."""
    read: float
    """Until the next bytes of the answer; for a data store, the longest statement."""
    pool: float
    """For a free connection of the pool."""
    internal: bool
    """Whether the dependency is our own: only those are told how much time is left (`Request-Timeout`)."""
    reserve: float = 0.0
    """Most seconds kept back, of what is left, for the way back and for our own answer."""

    def __post_init__(self) -> None:
        for field in ("connect", "write", "read", "pool"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(
                    f"{field}={value!r} in tier {self.name}: write seconds above 0, for example 0.5"
                )
        for field in ("tls", "reserve"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(
                    f"{field}={value!r} in tier {self.name}: write seconds from 0, for example 0.01"
                )
        ratio = RATIO_INTERNAL if self.internal else RATIO_EXTERNAL
        if self.connect > CONNECT_FLOOR and self.connect * ratio > self.read:
            warnings.warn(
                f"tier {self.name}: connect={self.connect:g} s beside read={self.read:g} s; a dead host should show long "
                f"before a slow answer does: write connect={max(CONNECT_FLOOR, self.read / ratio):.3g} or less",
                TierWarning,
                stacklevel=3,
            )

    @property
    def total(self) -> float:
        """Seconds for a whole call, from the wait for a connection to the last byte of the answer."""
        return self.pool + self.connect + self.tls + self.write + self.read

    def evolve(self, **changes: Any) -> Tier:
        """A copy with some fields changed; raises `TypeError` for an unknown field."""
        return dataclasses.replace(self, **changes)

    def for_p99(self, p99: float) -> Tier:
        """A copy whose read limit is the dependency's measured 99th percentile in seconds and half as much again."""
        return self.evolve(read=p99 * P99_BUFFER)

    def reserve_for(self, left: float) -> float:
        """Seconds to keep back of `left`: a twentieth, at least 1 ms and at most `reserve`."""
        return 0.0 if self.reserve == 0 else max(0.001, min(self.reserve, left / 20))


SAME_DC: Final = Tier(
    name="same_dc", connect=0.05, tls=0.1, write=0.1, read=1.0, pool=0.05, internal=True, reserve=0.010
)
"""Our own services in the same data centre, where a handshake takes under 10 ms."""
CROSS_REGION: Final = Tier(
    name="cross_region", connect=0.2, tls=0.4, write=0.5, read=2.0, pool=0.1, internal=True, reserve=0.075
)
"""Our own services in another region: up to 150 ms there and back, half of it reserved for the way back."""
DATASTORE: Final = Tier(
    name="datastore", connect=0.05, tls=0.1, write=0.1, read=1.0, pool=0.05, internal=False, reserve=0.010
)
"""Databases and caches beside us. They are told by their own means (statement timeouts), not by a header."""
THIRD_PARTY: Final = Tier(name="third_party", connect=3.1, tls=3.0, write=5.0, read=10.0, pool=1.0, internal=False)
"""Somebody else's service. 3.1 s outlasts two lost SYNs; nothing of our deadline is told to it."""
TIERS: Final = {tier.name: tier for tier in (SAME_DC, CROSS_REGION, DATASTORE, THIRD_PARTY)}
"""The profiles by name, for configuration files."""


class PsycopgOptions(TypedDict):
    """Keyword arguments of `psycopg.connect`."""

    connect_timeout: int
    tcp_user_timeout: int


class AsyncpgOptions(TypedDict):
    """Keyword arguments of `asyncpg.connect` and `asyncpg.create_pool`."""

    timeout: float
    command_timeout: float


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits for one call, none longer than what is left, as the objects that libraries take. Make it for each call."""

    connect: float
    tls: float
    write: float
    read: float
    pool: float
    total: float

    def httpx(self) -> httpx.Timeout:
        """For `httpx`. It has no total: use `gatepost.deadline.clients.httpx` where a slow drip must not pass."""
        library: Any = _import("httpx")
        timeout: httpx.Timeout = library.Timeout(connect=self.connect, read=self.read, write=self.write, pool=self.pool)
        return timeout

    def httpx2(self) -> httpx2.Timeout:
        """For `httpx2`; as `httpx`."""
        library: Any = _import("httpx2")
        timeout: httpx2.Timeout = library.Timeout(
            connect=self.connect, read=self.read, write=self.write, pool=self.pool
        )
        return timeout

    def requests(self) -> tuple[float, float]:
        """For `requests`: (connect, read). No total either: see `gatepost.deadline.clients.requests`."""
        return (self.connect, self.read)

    def urllib3(self) -> urllib3.Timeout:
        """For `urllib3`, whose total only bounds connect and each read."""
        library: Any = _import("urllib3")
        timeout: urllib3.Timeout = library.Timeout(connect=self.connect, read=self.read, total=self.total)
        return timeout

    def aiohttp(self) -> aiohttp.ClientTimeout:
        """For `aiohttp`, with a true total that is not rounded up to a whole second."""
        library: Any = _import("aiohttp")
        timeout: aiohttp.ClientTimeout = library.ClientTimeout(
            total=self.total,
            connect=min(self.total, self.pool + self.connect + self.tls),
            sock_connect=self.connect,
            sock_read=self.read,
            # aiohttp rounds what is longer than this up to a whole second of the loop's clock: 5.05 s became 5.73 s.
            ceil_threshold=math.inf,
        )
        return timeout

    def psycopg(self) -> PsycopgOptions:
        """For `psycopg.connect`: whole seconds for connecting, and unacknowledged bytes end a dead connection."""
        return {
            "connect_timeout": max(LIBPQ_CONNECT_MIN, math.ceil(self.connect + self.tls)),
            "tcp_user_timeout": max(1, math.floor(self.read * 1000)),
        }

    def asyncpg(self) -> AsyncpgOptions:
        """For `asyncpg.connect` and `create_pool`."""
        return {"timeout": self.connect + self.tls, "command_timeout": self.read}


def timeouts_for(tier: Tier, *, deadline: Deadline | None = None) -> Timeouts:
    """The limits of `tier` for a call that starts now, each at most what is left of `deadline` (default: the ambient one).

    Raises `DeadlineExceeded` when less than a millisecond is left, so that no library is ever given 0, which most read as
    "no timeout".
    """
    in_force = current() if deadline is None else deadline
    left = math.inf
    if in_force is not None:
        left = in_force.timeout_for(tier.total, where=f"call to {tier.name}")
    return Timeouts(
        min(tier.connect, left),
        min(tier.tls, left),
        min(tier.write, left),
        min(tier.read, left),
        min(tier.pool, left),
        min(tier.total, left),
    )


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"timeouts for {name} need the package {name}: install {name}") from error
