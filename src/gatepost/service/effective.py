"""What the service will really do with its settings, as rows: each limit, its value, who set it.

Also the two refusals that need the whole picture: a phase without a limit, and an open door. Called by `service.app` before
anything is opened, and by `gatepost policy`.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ConfigurationError
from gatepost.service.config import IDLE_TLS_CONNECTION_KIB, Settings
from gatepost.service.settings_table import BY_PATH
from gatepost.wire.phases import Phase

PHASE_LIMITS: Final[Mapping[Phase, tuple[str, ...]]] = {
    Phase.ADMISSION: ("admission_timeout",),
    Phase.POOL: ("pool_timeout",),
    Phase.DNS: ("dns_timeout", "connect_timeout"),
    Phase.CONNECT: ("connect_timeout",),
    Phase.TLS: ("tls_timeout", "connect_timeout"),
    Phase.WRITE: ("write_timeout",),
    Phase.WAIT: ("read_timeout",),
    Phase.READ: ("read_timeout",),
}
"""Which setting bounds each phase: the first one that is given."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One effective limit."""

    name: str
    value: float | int | str | bool
    source: str


def phase_limits(policy: ClientPolicy) -> dict[Phase, float]:
    """The limit of each phase in seconds. Raises `ConfigurationError` when a phase has none."""
    limits = {}
    for phase in Phase:
        given = [value for name in PHASE_LIMITS[phase] if (value := getattr(policy, name)) is not None]
        if not given or not 0 < given[0] < math.inf:
            raise ConfigurationError(
                f"phase {phase.value} has no limit; write policy.{PHASE_LIMITS[phase][-1]} in seconds"
            )
        limits[phase] = given[0]
    return limits


def limit_rows(settings: Settings) -> list[LimitRow]:
    """Every limit in force, phases first."""
    policy = settings.policy
    rows = [
        LimitRow(f"phase {phase.value}", seconds, f"policy.{_bounding(policy, phase)}")
        for phase, seconds in phase_limits(policy).items()
    ]
    for value in policy.explain_rows():
        path = f"policy.{value.name}"
        if value.name == "max_per_host" and settings.auto_host_cap:
            rows.append(
                LimitRow(path, "auto", "built-in for serve: what the endpoints need, 8 to a quarter of the slots")
            )
            continue
        rows.append(LimitRow(path, value.value, _source(settings, path, value.value, value.source)))
    rows.append(_row(settings, "dispatch.slots", settings.slots, "built-in for serve"))
    rows.append(_row(settings, "dispatch.shutdown_grace", settings.grace, "derived: the attempt budget"))
    rows.append(_row(settings, "ingest.max_payload", settings.max_payload, "built-in"))
    rows.append(_row(settings, "ingest.publish_timeout", settings.publish_timeout, "built-in"))
    rows.append(_row(settings, "ingest.max_loop_lag", settings.max_loop_lag, "built-in"))
    for name in ("events", "attempts", "dead_letters", "idempotency"):
        rows.append(_row(settings, f"retention.{name}", getattr(settings.retention, name), "built-in"))
    return rows


def idle_memory(settings: Settings) -> str:
    """What all connections would hold if they were idle TLS ones."""
    connections = settings.policy.max_connections
    mebibytes = connections * IDLE_TLS_CONNECTION_KIB / 1_024
    return (
        f"{connections} connections, idle ones included: up to {mebibytes:,.0f} MiB "
        f"({IDLE_TLS_CONNECTION_KIB} KiB for each idle TLS connection)"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on `host`. Names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, has_keys: bool, named: str = "listen.host") -> None:
    """Refuse to let the network reach an API, or a process' pages, without keys. Raises `ConfigurationError`."""
    if not has_keys and not is_loopback(host):
        raise ConfigurationError(
            f"{named}={host} is reachable from other machines, and there is no API key: set security.admin_key "
            f"(GATEPOST_SECURITY_ADMIN_KEY), or write {named}=127.0.0.1"
        )


def doubts(settings: Settings) -> list[str]:
    """What will run and was probably not meant, a sentence each."""
    found = list(settings.doubts)
    budget = settings.policy.attempt_budget
    if settings.grace < budget:
        found.append(
            f"dispatch.shutdown_grace={settings.grace} is below the attempt budget of {budget} s: a drain then cuts attempts "
            f"off, and they are made again; write {budget} or more"
        )
    return found


def _bounding(policy: ClientPolicy, phase: Phase) -> str:
    return next(name for name in PHASE_LIMITS[phase] if getattr(policy, name) is not None)


def _row(settings: Settings, path: str, value: float, otherwise: str) -> LimitRow:
    return LimitRow(path, value, _source(settings, path, value, otherwise))


def _source(settings: Settings, path: str, value: object, otherwise: str) -> str:
    given = settings.sources.get(path)
    if given is not None:
        default = BY_PATH[path].default
        return given if default is None or default == value else f"{given}, beats built-in {default}"
    if path == "policy.max_connections":
        return "derived: half of the open files, at most 16384"
    return otherwise
