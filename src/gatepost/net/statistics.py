"""Frozen snapshots of a client for `statistics()`, metrics and tests; they count and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gatepost.net.pool import OBSERVED_FOR, Host


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """A snapshot of one host."""

    in_use: int
    idle: int
    waiting: int
    created: int
    reused: int
    reuse_ratio: float
    """Requests that found a connection, of all; 0.0 before the first."""


@dataclass(frozen=True, slots=True)
class KeepAliveHistory:
    """What is known of how a host keeps its connections."""

    open_peak: int
    """Most connections that were open at once."""
    announced: int | None
    """Seconds of its last `Keep-Alive: timeout=N`."""
    closed_after: tuple[float, ...]
    """Idle ages in seconds at which it closed connections, the newest last: of its last 20 closes those that still count."""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A snapshot of a client."""

    in_flight: int
    connections_open: int
    """Sockets, idle ones and ones being opened included."""
    connections_in_use: int
    connections_idle: int
    admitted: int
    """Endpoint slots taken."""
    waiting_for_admission: int
    waiting_for_connection: int
    names_pending: int
    stale_retries: int
    late_sweeps: int
    shed: Mapping[str, int]
    """Attempts shed, by host."""
    hosts: Mapping[str, HostStatistics]


def by_origin(hosts: Sequence[Host]) -> dict[str, HostStatistics]:
    """A host has a record per TLS profile: they are counted together."""
    records: dict[str, list[Host]] = {}
    for host in hosts:
        records.setdefault(host.target.origin, []).append(host)
    return {origin: _host_statistics(same) for origin, same in records.items()}


def keep_alive_by_origin(hosts: Sequence[Host], now: float) -> dict[str, KeepAliveHistory]:
    """The records of one host, of which each TLS profile has its own, taken together. `now` in monotonic seconds."""
    horizon = now - OBSERVED_FOR
    found: dict[str, KeepAliveHistory] = {}
    for host in hosts:
        known = found.get(host.target.origin, KeepAliveHistory(0, None, ()))
        closed = () if host.observed is None else tuple(age for at, age in host.observed if at >= horizon)
        announced = [seconds for seconds in (host.announced, known.announced) if seconds is not None]
        found[host.target.origin] = KeepAliveHistory(
            known.open_peak + host.open_peak, min(announced, default=None), known.closed_after + closed
        )
    return found


def _host_statistics(hosts: Sequence[Host]) -> HostStatistics:
    created = sum(host.created_count for host in hosts)
    reused = sum(host.reused_count for host in hosts)
    return HostStatistics(
        in_use=sum(host.in_use for host in hosts),
        idle=sum(len(host.idle) for host in hosts),
        waiting=sum(host.waiting for host in hosts),
        created=created,
        reused=reused,
        reuse_ratio=reused / (created + reused) if created + reused else 0.0,
    )
