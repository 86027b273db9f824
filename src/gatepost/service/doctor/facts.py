"""What one process says about itself, and what the store says about the fleet: plain numbers and words, judged elsewhere.

Every field may be absent (None) where nobody could tell, and then nothing is said about it. Gathered by `collect` from a running
process and by `offline` from a configuration; judged by the `checks_` modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """The limits in force in the process, not those of a file."""

    phases: Mapping[str, float | None]
    """Seconds by phase; None: that phase has no limit."""
    attempt_budget: float | None
    """Seconds of one attempt: connect + write + read, or the total."""
    keepalive_expiry: float
    max_connections: int
    slots: int
    follow_redirects: bool
    redirect_cross_origin: bool
    shared_store: bool
    """Several processes may own parts of the store, so that part leases matter."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host in the last five minutes, as far as this process is concerned."""

    host: str
    attempts: int
    opened: int
    """Requests that were written on a connection of their own."""
    reused: int
    pool_timeouts: int
    stale_retries: int
    open_peak: int = 0
    """Most connections open at once since the start."""
    announced: int | None = None
    """Seconds of its `Keep-Alive: timeout=N`."""
    closed_after: tuple[float, ...] = ()
    """Idle ages in seconds at which it closed connections."""


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The one client of the process."""

    clients_open: int
    clients_made: int
    """That came into use since the process' own was made, that one included if it has."""
    made_at: str | None
    """Where the others were made, as far as that is known."""
    contexts_unverifying: int
    """TLS contexts that check neither certificate nor name."""
    nat64_undeclared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NameFacts:
    """A name that was looked up for the examination."""

    name: str
    seconds: float
    reason: str | None
    """None: there was an answer; `no_answer`: none within the patience; else why not."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store as this process meets it."""

    seconds: tuple[float, ...]
    """Of small writes, one after the other."""
    error: str | None
    """What the last of them came to, None when it was stored."""
    failing: bool
    """Results could not be stored lately."""
    results_waiting: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Open files of the process."""

    limit: int
    """RLIMIT_NOFILE, the soft one."""
    open: int | None
    needed: int
    """At least twice the connections it may open: the other half is for the API, the store and the rest."""
    narrows: bool
    """The limit is what holds connections and slots below what `serve` would take."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk that the store is on."""

    path: str
    free: int
    total: int
    reserve: int
    """Bytes below which no event is taken any more."""


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """Sockets in TIME_WAIT on this machine, those of ours by where they went."""

    total: int
    outgoing: Mapping[str, int]
    """By the peer's address and port, of those with a port that this process connects to."""
    ports: int
    """Local ports there are for one peer."""
    proxied: bool = False
    """Connections to all hosts go to one proxy, so that many towards one peer are ordinary."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process."""

    node: str
    machine: str
    """What its machine is called; processes of one machine have the same."""
    running: bool
    draining: bool
    lease_seconds_left: float
    parts: int
    clock_skew: float
    """Seconds that the store's clock is ahead of this machine's."""
    limits: LimitFacts
    client: ClientFacts
    hosts: tuple[HostFacts, ...]
    """Those about which there is something to say, the busiest first."""
    names: tuple[NameFacts, ...]
    names_pending: int
    store: StoreFacts | None
    files: FileFacts | None
    disk: DiskFacts | None
    sockets: SocketFacts | None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A process as the store knows it."""

    name: str
    address: str | None
    draining: bool
    seen_ago: float
    """Seconds since its last heartbeat."""
    parts: int


@dataclass(frozen=True, slots=True)
class PartFacts:
    """A part with due work that nobody delivers."""

    part: int
    owner: str | None
    due_for: float
    """Seconds that the oldest row has been due."""
    waiting: int
    lease_left: float


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What the store knows of all processes, and the registry of all endpoints."""

    nodes: tuple[NodeFacts, ...] = ()
    parts_free: int = 0
    owners_gone: Mapping[str, int] = field(default_factory=dict)
    """Parts by owners that are not alive."""
    stuck: tuple[PartFacts, ...] = ()
    unverified: tuple[tuple[str, str], ...] = ()
    """Endpoints and why nobody saw their certificate."""
    over_lease: tuple[tuple[str, float], ...] = ()
    """Endpoints whose own limits give an attempt longer than a part lease allows, and the seconds."""
    redirecting: tuple[str, ...] = ()
    """Endpoints whose own limits follow redirects."""
