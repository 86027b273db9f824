"""The service's settings: read once at the edge, complete, frozen, and refused as a whole when any of them is impossible.

`load_settings` builds them from `gatepost.toml` and `GATEPOST_*`; `service.app` and the command line consume them. It opens
nothing but the files named in it, and decides nothing at run time.
"""

from __future__ import annotations

import re
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from gatepost.admission.adapt import AdaptMode, AdaptRules
from gatepost.admission.breaker import BreakerMode, BreakerRules
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import DEFAULT_WINDOW, DISABLE_AFTER, Secret
from gatepost.dispatch.limits import LimitSettings
from gatepost.dispatch.share import WEIGHT_MAX
from gatepost.errors import ConfigurationError
from gatepost.net.proxy import ProxyConfig
from gatepost.net.tls import TLSProfile
from gatepost.service.config_sources import Given, read_sources
from gatepost.service.settings_table import BY_PATH
from gatepost.service.tracing import TracingSettings
from gatepost.store.outbox.source import open_sources
from gatepost.store.postgres.address import SCHEMES as POSTGRES_SCHEMES
from gatepost.store.rows import Retention
from gatepost.wire.egress import EgressPolicy

SERVE_SLOTS: Final = 2_048
"""Attempts in flight of one `serve` process, when nobody says otherwise: what two cores keep busy at 0.5 s per attempt."""
SERVE_CONNECTIONS_MAX: Final = 16_384
"""Sockets open at most: 16,384 idle TLS connections hold about 700 MB."""
IDLE_TLS_CONNECTION_KIB: Final = 43
"""Measured memory of one idle TLS connection (`reference/engines.md`)."""
ADMIN_KEY_CHARS_MIN: Final = 24
"""Keys are hashed fast, so they must not be guessable: 24 characters of a password generator are over 128 bits."""
WINDOW_SLACK: Final = 86_400.0
"""A day on top of the delivery window, for deliveries that ended late and are still looked at."""

PROCESSES_MAX: Final = 64
"""Processes of one machine: more than its cores gain nothing, and each holds connections to the database."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where the HTTP API listens."""

    host: str = "127.0.0.1"
    port: int = 8080


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """This machine's part in a fleet."""

    processes: int = 1
    weight: float = 1.0
    name: str | None = None
    """None: the machine's host name."""
    host: str = "127.0.0.1"
    """Where the pages of single processes are: a worker's, and those beside a shared port."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged, and how it is written."""

    format: Literal["auto", "json", "console"] = "auto"
    attempts: Literal["all", "failures", "none"] = "all"
    sample_healthy: float = 1.0
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """How metrics are served."""

    hosts: int = 100
    public: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `gatepost serve` is told. Build it with `load_settings`, or directly in tests and embedding code."""

    database: str = "sqlite:///gatepost.db"
    outboxes: tuple[str, ...] = field(default=(), repr=False)
    """URLs of producers' databases to follow; they hold passwords."""
    listen: ListenSettings = ListenSettings()
    policy: ClientPolicy = field(default_factory=ClientPolicy)
    egress: EgressPolicy = field(default_factory=EgressPolicy)
    proxy: ProxyConfig | None = None
    """The proxy that attempts leave through."""
    slots: int = SERVE_SLOTS
    auto_host_cap: bool = False
    """Connections to a host follow its endpoints' caps, between 8 and a quarter of the slots; `policy.max_per_host` is the
    bound otherwise. `load_settings` sets it unless `policy.max_per_host` is given."""
    shutdown_grace: float | None = None
    """Seconds; None: the attempt budget of `policy`."""
    disable_after: float = DISABLE_AFTER
    """Seconds of nothing but failed attempts after which an endpoint is disabled; 0: never."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    """What is learned of endpoints, and what their breakers do."""
    max_payload: int = 1_048_576
    publish_timeout: float = 5.0
    max_loop_lag: float = 0.1
    """Seconds of lateness above which events are refused. Wider than what holds back new attempts (20 ms), since the commits
    of a busy ingest alone make a loop that late, and a refusal costs the producer a round trip."""
    retention: Retention = field(default_factory=Retention)
    admin_key: Secret | None = None
    keys: tuple[Secret, ...] = ()
    """None given: a key file beside an SQLite database."""
    fleet: FleetSettings = FleetSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = field(default_factory=TracingSettings)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Setting path to who gave it; built-in and derived ones are absent."""
    doubts: tuple[str, ...] = ()
    """What is possible and probably not meant; logged at the start."""

    @property
    def grace(self) -> float:
        """Seconds a drain waits for attempts in flight."""
        return self.policy.attempt_budget if self.shutdown_grace is None else self.shutdown_grace


def load_settings(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    open_files: int | None = None,
) -> Settings:
    """Settings from a file and the environment; the environment wins, and `Settings.sources` says so.

    `path` None: `gatepost.toml` in the working directory if there is one. `open_files`: the limit on open files, for tests;
    None asks the system. Raises `ConfigurationError` that says what to write.
    """
    given = read_sources(path, environ or {})
    files = open_files_limit() if open_files is None else open_files
    slots, connections = _slots_and_connections(given, files)
    policy_values = {**_section(given, "policy"), "max_connections": connections}
    if "policy.max_per_host" not in given:
        policy_values["max_per_host"] = min(ClientPolicy().max_per_host, connections)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = _build(lambda: ClientPolicy(**policy_values))
    egress = _build(lambda: EgressPolicy(**_section(given, "egress")))
    retention = Retention(**_section(given, "retention"))
    _check_retention(retention)
    grace = _get(given, "dispatch.shutdown_grace")
    return Settings(
        database=_get(given, "database"),
        outboxes=_outboxes(given),
        listen=ListenSettings(_get(given, "listen.host"), _check_port(_get(given, "listen.port"))),
        policy=policy,
        egress=egress,
        proxy=_proxy(given),
        slots=slots,
        auto_host_cap="policy.max_per_host" not in given,
        disable_after=_not_negative("dispatch.disable_after", _get(given, "dispatch.disable_after")),
        limits=LimitSettings(
            AdaptRules(mode=AdaptMode(_get(given, "dispatch.adaptive_timeout"))),
            BreakerRules(mode=BreakerMode(_get(given, "dispatch.breaker"))),
            _get(given, "dispatch.adaptive_concurrency"),
        ),
        shutdown_grace=None if grace is None else _positive("dispatch.shutdown_grace", grace),
        max_payload=_positive("ingest.max_payload", _get(given, "ingest.max_payload")),
        publish_timeout=_positive("ingest.publish_timeout", _get(given, "ingest.publish_timeout")),
        max_loop_lag=_positive("ingest.max_loop_lag", _get(given, "ingest.max_loop_lag")),
        retention=retention,
        admin_key=_admin_key(given),
        keys=_store_keys(given),
        fleet=_fleet(given),
        log=_log(given),
        tracing=_tracing(given),
        metrics=MetricsSettings(
            _positive("metrics.hosts", _get(given, "metrics.hosts")), _get(given, "metrics.public")
        ),
        sources={path: value.source for path, value in given.items()},
        doubts=tuple(f"policy: {warning.message}" for warning in caught),
    )


def _log(given: Mapping[str, Given]) -> LogSettings:
    values = _section_with_defaults(given, "log")
    return LogSettings(**{**values, "sample_healthy": _share("log.sample_healthy", values["sample_healthy"])})


def _tracing(given: Mapping[str, Given]) -> TracingSettings:
    values = _section_with_defaults(given, "tracing")
    endpoint = urlsplit(values["endpoint"])
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise ConfigurationError(
            f"tracing.endpoint={values['endpoint']!r}: write the OTLP/HTTP URL of a collector, such as http://127.0.0.1:4318/v1/traces"
        )
    return TracingSettings(**{**values, "sample": _share("tracing.sample", values["sample"])})


def _share(path: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{path}={value!r}: write a share from 0 to 1, such as 0.1")
    return float(value)


def open_files_limit(raise_it: bool = False) -> int:
    """The limit on open files; `raise_it` lifts the soft limit to the hard one first, as servers do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_it and soft != hard:
        # macOS reports an unlimited hard limit but refuses more than OPEN_MAX.
        wanted = min(hard, 10_240) if sys.platform == "darwin" else hard
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_048_576 if soft == resource.RLIM_INFINITY else soft


def _slots_and_connections(given: Mapping[str, Given], files: int) -> tuple[int, int]:
    """Two limits, one file table: half of the open files may be connections, and every slot needs one."""
    slots = _get(given, "dispatch.slots")
    connections = _get(given, "policy.max_connections")
    possible = max(1, files // 2)
    if connections is not None and connections > possible:
        raise ConfigurationError(
            f"policy.max_connections={connections} needs more than the {files} open files allowed here: "
            f"write {possible} or less, or start with `ulimit -n {connections * 2}`"
        )
    if connections is None:
        connections = min(SERVE_CONNECTIONS_MAX, possible)
    if slots is None:
        slots = min(SERVE_SLOTS, connections)
    _positive("dispatch.slots", slots)
    if slots > connections:
        raise ConfigurationError(
            f"dispatch.slots={slots} is more than policy.max_connections={connections}, so attempts would wait for sockets: "
            f"write dispatch.slots={connections} or less, or raise policy.max_connections"
        )
    return slots, connections


def _check_retention(retention: Retention) -> None:
    for item in fields(retention):
        _positive(f"retention.{item.name}", getattr(retention, item.name))
    least = DEFAULT_WINDOW + WINDOW_SLACK
    for name in ("events", "attempts"):
        if getattr(retention, name) < least:
            raise ConfigurationError(
                f"retention.{name}={getattr(retention, name):.0f} ends before deliveries do "
                f"(window {DEFAULT_WINDOW:.0f} s and a day): write {least:.0f} or more"
            )
    if retention.idempotency > retention.events:
        raise ConfigurationError(
            f"retention.idempotency={retention.idempotency:.0f} is longer than retention.events={retention.events:.0f}, "
            f"so a repeated key would name an event that is gone: write {retention.events:.0f} or less"
        )


def _fleet(given: Mapping[str, Given]) -> FleetSettings:
    fleet = FleetSettings(**_section_with_defaults(given, "fleet"))
    if not 1 <= fleet.processes <= PROCESSES_MAX:
        raise ConfigurationError(f"fleet.processes={fleet.processes}: write 1 to {PROCESSES_MAX}")
    if fleet.processes > 1:
        check_shared(_get(given, "database"), f"fleet.processes={fleet.processes}", "write fleet.processes=1")
    if not 0 < fleet.weight <= WEIGHT_MAX:
        raise ConfigurationError(f"fleet.weight={fleet.weight}: write a number above 0, at most {WEIGHT_MAX:g}")
    if fleet.name is not None and not _NAME.fullmatch(fleet.name):
        raise ConfigurationError(f"fleet.name={fleet.name!r}: write 1 to 64 letters, digits and any of _ . -")
    if not 0 <= fleet.port <= 65_536 - fleet.processes:
        raise ConfigurationError(
            f"fleet.port={fleet.port}: write a port with room for {fleet.processes}, or 0 for free ones"
        )
    return fleet


def check_shared(database: str, what: str, otherwise: str) -> None:
    """Refuse what only a store for several processes allows. Raises `ConfigurationError` with both ways out."""
    if urlsplit(database).scheme not in POSTGRES_SCHEMES:
        raise ConfigurationError(
            f"{what}: {database.partition('://')[0]} belongs to one process: write database=postgresql://…, or {otherwise}"
        )


def _outboxes(given: Mapping[str, Given]) -> tuple[str, ...]:
    urls: tuple[str, ...] = _get(given, "outboxes")
    open_sources(urls, own=_get(given, "database"))  # refuses what names no database; connects to nothing
    return urls


def _proxy(given: Mapping[str, Given]) -> ProxyConfig | None:
    url = _get(given, "proxy.url")
    if url is None:
        others = [path for path in given if path.startswith("proxy.")]
        if others:
            raise ConfigurationError(
                f"{others[0]} is given without proxy.url: write the proxy's address, or leave it out"
            )
        return None
    password, file = _get(given, "proxy.password"), _get(given, "proxy.password_file")
    if password is not None and file is not None:
        raise ConfigurationError("proxy.password and proxy.password_file are both given; leave one out")
    if file is not None:
        password = _read_secret_file("proxy.password_file", file)
    ca_file = _get(given, "proxy.ca_file")
    tls = None if ca_file is None else TLSProfile(ca_pem=_read_secret_file("proxy.ca_file", ca_file))
    return _build(lambda: ProxyConfig(url, _get(given, "proxy.username"), password, _get(given, "proxy.no_proxy"), tls))


def _admin_key(given: Mapping[str, Given]) -> Secret | None:
    key = _get(given, "security.admin_key")
    file = _get(given, "security.admin_key_file")
    if key is not None and file is not None:
        raise ConfigurationError("security.admin_key and security.admin_key_file are both given; leave one out")
    if file is not None:
        key = _read_secret_file("security.admin_key_file", file)
    if key is None:
        return None
    if len(key) < ADMIN_KEY_CHARS_MIN or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"security.admin_key must be at least {ADMIN_KEY_CHARS_MIN} visible ASCII characters; "
            f"write for example the output of `openssl rand -hex 32`"
        )
    return Secret(key)


def _store_keys(given: Mapping[str, Given]) -> tuple[Secret, ...]:
    keys = _get(given, "security.keys")
    file = _get(given, "security.keys_file")
    if keys is not None and file is not None:
        raise ConfigurationError("security.keys and security.keys_file are both given; leave one out")
    if file is not None:
        keys = tuple(line for line in _read_secret_file("security.keys_file", file).split() if line)
    if keys is not None and not keys:
        raise ConfigurationError("security.keys is empty; write at least one key, or leave it out")
    return tuple(Secret(key) for key in keys or ())


def _read_secret_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}={path}: cannot be read: {error}") from None


def _section(given: Mapping[str, Given], section: str) -> dict[str, Any]:
    prefix = section + "."
    return {path.removeprefix(prefix): item.value for path, item in given.items() if path.startswith(prefix)}


def _section_with_defaults(given: Mapping[str, Given], section: str) -> dict[str, Any]:
    prefix = section + "."
    return {path.removeprefix(prefix): _get(given, path) for path in BY_PATH if path.startswith(prefix)}


def _get(given: Mapping[str, Given], path: str) -> Any:
    item = given.get(path)
    return BY_PATH[path].default if item is None else item.value


def _positive(name: str, value: Any) -> Any:
    if not value > 0:
        raise ConfigurationError(f"{name}={value}: write a number above 0")
    return value


def _not_negative(name: str, value: Any) -> Any:
    if not value >= 0:
        raise ConfigurationError(f"{name}={value}: write a number, or 0 for never")
    return value


def _check_port(port: int) -> int:
    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"listen.port={port}: write 1 to 65535, or 0 for a free one")
    return port


def _build(make: Callable[[], Built]) -> Built:
    """Whatever a record refuses is a configuration error here."""
    try:
        return make()
    except ConfigurationError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigurationError(str(error)) from error
