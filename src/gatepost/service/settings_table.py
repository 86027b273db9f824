"""Every setting of `gatepost serve`, once: its place in `gatepost.toml`, its kind, its default and what it is for.

The environment name follows from the place (`policy.read_timeout` is `GATEPOST_POLICY_READ_TIMEOUT`), so there is exactly one
spelling in each source. Read by `service.config`; the reference page is generated from it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum, auto
from typing import Any, Final

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import DISABLE_AFTER
from gatepost.store.rows import Retention
from gatepost.wire.egress import EgressPolicy

PREFIX: Final = "GATEPOST_"


class Kind(Enum):
    """How a value is written, in TOML and as text in the environment."""

    TEXT = auto()
    SECONDS = auto()
    COUNT = auto()
    NUMBER = auto()
    FLAG = auto()
    LIST = auto()  # TOML array of strings; comma-separated in the environment
    PORTS = auto()  # "default", or a list of numbers
    SECRET = auto()
    SECRETS = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` None means "not given": it is derived, and the start table says from what."""

    path: str
    kind: Kind
    default: object
    help: str
    choices: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.path.replace(".", "_").upper()


POLICY_HELP: Final = {
    "connect_timeout": "DNS, TCP and TLS together, over all addresses.",
    "write_timeout": "From the first to the last request byte handed to the kernel.",
    "read_timeout": "From the last request byte to the end of the response; dripping bytes never extend it.",
    "pool_timeout": "Waiting for a connection.",
    "admission_timeout": "Waiting for one of the endpoint's slots.",
    "dns_timeout": "Looking the name up; may only tighten connect_timeout.",
    "tls_timeout": "The TLS handshake; may only tighten connect_timeout.",
    "total_timeout": "A whole attempt; not given: connect, write and read together.",
    "max_connections": "Sockets open, idle ones included; not given: half of the open files, at most 16384.",
    "max_per_host": "Connections to one scheme, host and port.",
    "per_endpoint_concurrency": "Attempts in flight at one endpoint.",
    "keepalive_expiry": "How long an idle connection is kept; 0 means never.",
    "max_connection_age": "How long a connection is used at most, so that a DNS change is followed.",
    "dns_ttl": "How long an address is remembered; 0 asks for every connection.",
    "max_response_head": "Bytes of status line and headers.",
    "max_response_body": "Bytes of a response body that are read.",
    "max_interim_responses": "1xx responses before the final one.",
    "follow_redirects": "Follow 307 and 308.",
    "redirect_limit": "Redirects followed one after the other.",
    "redirect_cross_origin": "Follow redirects to another scheme, host or port, which then gets the signed message.",
    "require_complete_body": "Count a faulty body after a complete 2xx head as a failure.",
}
EGRESS_HELP: Final = {
    "schemes": "https, and http for receivers you operate.",
    "allow_cidrs": "Networks opened although the deny table refuses them.",
    "deny_cidrs": "Networks refused although they are public, such as your own; beats allow_cidrs.",
    "nat64_prefixes": "Your platform's NAT64 prefixes; the IPv4 address inside is checked instead.",
    "ports": "default: 443, 80 for http, and 1024 and above less well-known service ports.",
    "allow_ip_literals": "Allow URLs with an address instead of a name.",
    "max_answers": "Addresses a name may have.",
    "internal_hosts": "Exact names exempt from the rules on names; their addresses are still checked.",
}
RETENTION_HELP: Final = {
    "events": "How long payloads are kept; at least the delivery window and a day.",
    "attempts": "How long the attempt log is kept.",
    "dead_letters": "How long dead letters are kept, with their payloads.",
    "idempotency": "How long a repeated idempotency key is recognised.",
}


def _of_dataclass(section: str, of: type[Any], help_texts: Mapping[str, str]) -> list[Setting]:
    """A setting per field, so that a new limit is configurable the day it exists; a field without help is a KeyError."""
    hints = typing.get_type_hints(of)
    settings = []
    for field in fields(of):
        if not field.init:
            continue
        default = field.default if field.default is not MISSING else None
        if (section, field.name) == ("policy", "max_connections"):
            default = None  # the service derives it from the limit on open files
        kind = _kind(hints[field.name], field.name)
        settings.append(Setting(f"{section}.{field.name}", kind, default, help_texts[field.name]))
    return settings


def _kind(hint: object, name: str) -> Kind:
    if name == "ports":
        return Kind.PORTS
    options = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    for python_type, kind in ((bool, Kind.FLAG), (float, Kind.SECONDS), (int, Kind.COUNT), (str, Kind.TEXT)):
        if python_type in options:
            return kind
    return Kind.LIST


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "database",
        Kind.TEXT,
        "sqlite:///gatepost.db",
        "Where events are kept: sqlite:///PATH, postgresql://USER@HOST/DATABASE or memory://.",
    ),
    Setting(
        "outboxes",
        Kind.SECRETS,
        (),
        "Producers' databases to follow, where they publish in their own transactions: postgresql://… or sqlite:///PATH; only "
        "the owner of part 0 does.",
    ),
    Setting("listen.host", Kind.TEXT, "127.0.0.1", "Address to listen on; other than loopback needs an API key."),
    Setting("listen.port", Kind.COUNT, 8080, "Port to listen on; 0 takes a free one."),
    Setting("ingest.max_payload", Kind.COUNT, 1_048_576, "Bytes of one event's payload; more is answered with 413."),
    Setting("ingest.publish_timeout", Kind.SECONDS, 5.0, "How long a publish may wait for the store."),
    Setting(
        "ingest.max_loop_lag",
        Kind.SECONDS,
        0.1,
        "While the event loop runs later than this (p99 of a second), events are answered with 503: deliveries go first.",
    ),
    Setting("dispatch.slots", Kind.COUNT, None, "Attempts in flight at once."),
    Setting("dispatch.shutdown_grace", Kind.SECONDS, None, "How long a drain waits for attempts in flight."),
    Setting(
        "dispatch.disable_after",
        Kind.SECONDS,
        DISABLE_AFTER,
        "An endpoint whose attempts have all failed for so long is disabled; 0: never.",
    ),
    Setting(
        "dispatch.breaker",
        Kind.TEXT,
        "on",
        "Hold endpoints and hosts that fail, hang or are slow, and probe them: on; dry_run counts what it would do.",
        choices=("off", "dry_run", "on"),
    ),
    Setting(
        "dispatch.adaptive_timeout",
        Kind.TEXT,
        "on",
        "Follow each endpoint's p99 with its read timeout, 3 to 15 s, from 200 responses on; shadow only computes it.",
        choices=("off", "shadow", "on"),
    ),
    Setting(
        "dispatch.adaptive_concurrency",
        Kind.FLAG,
        True,
        "Let an endpoint's attempts in flight follow its need and health, unless its record fixes them.",
    ),
    Setting(
        "fleet.processes", Kind.COUNT, 1, "Processes of `gatepost serve` on this machine; above 1 needs PostgreSQL."
    ),
    Setting("fleet.weight", Kind.NUMBER, 1.0, "Share of the parts that each process takes, relative to the others'."),
    Setting(
        "fleet.name",
        Kind.TEXT,
        None,
        "What this machine's processes are called in status and log; not given: its host name.",
    ),
    Setting(
        "fleet.host",
        Kind.TEXT,
        "127.0.0.1",
        "Address of the processes' own pages: health, metrics, doctor. Beyond this machine, for Prometheus, it needs API keys.",
    ),
    Setting(
        "fleet.port",
        Kind.COUNT,
        0,
        "First port of the processes' own health and metrics pages: process i listens on this plus i; 0: free ones.",
    ),
    *_of_dataclass("policy", ClientPolicy, POLICY_HELP),
    *_of_dataclass("egress", EgressPolicy, EGRESS_HELP),
    Setting(
        "proxy.url",
        Kind.TEXT,
        None,
        "HTTP proxy that all attempts leave through: http://HOST:PORT or https://HOST:PORT.",
    ),
    Setting("proxy.username", Kind.TEXT, None, "Who we are at the proxy (basic authentication)."),
    Setting("proxy.password", Kind.SECRET, None, "Its password."),
    Setting("proxy.password_file", Kind.TEXT, None, "File that holds the password."),
    Setting("proxy.no_proxy", Kind.LIST, (), "Connected to directly: host names, .suffixes, addresses and networks."),
    Setting(
        "proxy.ca_file", Kind.TEXT, None, "PEM file of the authority behind an https proxy; not given: the system's."
    ),
    *_of_dataclass("retention", Retention, RETENTION_HELP),
    Setting("security.admin_key", Kind.SECRET, None, "API key with access to every tenant, at least 24 characters."),
    Setting("security.admin_key_file", Kind.TEXT, None, "File that holds admin_key."),
    Setting("security.keys", Kind.SECRETS, None, "Keys that seal secrets in the store; the first one writes."),
    Setting("security.keys_file", Kind.TEXT, None, "File that holds keys, one a line."),
    Setting("log.format", Kind.TEXT, "auto", "auto: console on a terminal, else json.", ("auto", "json", "console")),
    Setting("log.attempts", Kind.TEXT, "all", "Which attempts get a log line.", ("all", "failures", "none")),
    Setting(
        "log.sample_healthy",
        Kind.NUMBER,
        1.0,
        "Share of deliveries whose delivered attempts get a log line, 0 to 1, always the same ones; failures are never left out.",
    ),
    Setting("log.level", Kind.TEXT, "info", "Lowest level of other lines.", ("debug", "info", "warning", "error")),
    Setting("metrics.hosts", Kind.COUNT, 100, "Hosts, and as many endpoints, that get labels of their own."),
    Setting(
        "tracing.enabled",
        Kind.FLAG,
        False,
        "Make OpenTelemetry spans of publishes, deliveries and attempts; needs gatepost[otel].",
    ),
    Setting(
        "tracing.endpoint",
        Kind.TEXT,
        "http://127.0.0.1:4318/v1/traces",
        "Where spans are sent: OTLP over HTTP (protobuf). OTEL_EXPORTER_OTLP_HEADERS is read for its credentials.",
    ),
    Setting(
        "tracing.sample",
        Kind.NUMBER,
        0.1,
        "Share of traces that is sent, 0 to 1, unless the publisher has decided; failed attempts are always sent.",
    ),
    Setting(
        "tracing.deliveries",
        Kind.TEXT,
        "linked",
        "linked: a delivery is a trace of its own with a link to its publisher's span; child: it goes on in the publisher's trace.",
        ("linked", "child"),
    ),
    Setting("metrics.public", Kind.FLAG, False, "Serve /metrics without an API key although keys exist."),
)

BY_PATH: Final = {setting.path: setting for setting in SETTINGS}
BY_ENV: Final = {setting.env: setting for setting in SETTINGS}
CLIENT_ENV: Final = frozenset({"GATEPOST_CONFIG", "GATEPOST_URL", "GATEPOST_API_KEY"})
"""Known to the command line, not settings of the service."""
