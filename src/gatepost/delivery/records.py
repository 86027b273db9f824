"""The records that users own: endpoints, tenants, API keys, and the receipt of a publish. Frozen; every change is a new generation.

They hold settings, check none (`dispatch.endpoint_rules` does) and decide nothing. Stores persist them, dispatch and service
read them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gatepost.delivery.ids import ENDPOINT, decode_id

DEFAULT_SCHEDULE: Final = (
    0.0,
    5.0,
    30.0,
    120.0,
    600.0,
    1_800.0,
    7_200.0,
    18_000.0,
    36_000.0,
    50_400.0,
    72_000.0,
    86_400.0,
)
"""Seconds before each attempt, counted from the end of the previous one. Its length is the number of attempts."""
SLOW_SCHEDULE: Final = (60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 86_400.0)
"""Delays after an outcome that the owner must mend (other 4xx, 3xx, permanent TLS faults, a denied address)."""
DEFAULT_JITTER: Final = 0.2
"""A delay is drawn from ±20 %."""
DEFAULT_WINDOW: Final = 4 * 86_400.0
"""Seconds from acceptance within which a delivery is tried."""


DISABLE_AFTER: Final = 5 * 86_400.0
"""Seconds of nothing but failed attempts after which an endpoint is disabled: a delivery window and a day's slack."""
RESERVED_TYPES: Final = "gatepost."
"""Event types of Gatepost's own begin so: what a tenant's operational endpoints hear about its endpoints and events."""


class Secret(str):
    """A string that never shows itself: `repr` and `format` mask it; `reveal()` gives the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Secret is not pickled; pass secret.reveal() where the text is really meant to travel")

    def reveal(self) -> str:
        """The text itself."""
        return str.__str__(self)


class EndpointStatus(StrEnum):
    """`paused` by its owner or an operator, `disabled` by us (410, a denied URL); both keep their deliveries waiting."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"


class Priority(StrEnum):
    """Which sub-lane a delivery waits in; weights 8 : 4 : 1, never 0."""

    HIGH = "high"
    NORMAL = "normal"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class EndpointSecret:
    """One signing secret of an endpoint. The newest is current; older ones sign beside it until `expires_at`."""

    secret: Secret
    created_at: int
    """UTC microseconds."""
    expires_at: int | None = None
    """UTC microseconds; None for the current one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A registered destination. None in a limit means "not given": the dispatcher's policy applies."""

    id: str
    """Public id, `ep_…`."""
    tenant: str
    url: str = field(repr=False)
    """Not shown by `repr`: path and query often hold the receiver's token."""
    event_types: tuple[str, ...] = ("*",)
    """Exact types, or shell-style patterns such as `invoice.*`; `*` takes everything but Gatepost's own events.

    An endpoint with `gatepost.*` is an operational endpoint: it hears when an endpoint of the tenant is disabled, or needs its owner.
    """
    description: str = ""
    status: EndpointStatus = EndpointStatus.ACTIVE
    status_reason: str | None = None
    """Why it is paused or disabled."""
    generation: int = 1
    """Raised by every change."""
    created_at: int = 0
    """UTC microseconds."""
    updated_at: int = 0
    secrets: tuple[EndpointSecret, ...] = field(default=(), repr=False)
    """Newest first."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Extra request headers."""
    schedule: tuple[float, ...] | None = None
    """Delays in seconds before each attempt; None: `DEFAULT_SCHEDULE`."""
    window: float | None = None
    """Seconds within which a delivery is tried; None: `DEFAULT_WINDOW`."""
    status_rules: Mapping[str, str] = field(default_factory=dict)
    """Status or class (`"404"`, `"4xx"`) to `delivered | final | disable | retry | slow`; beats the built-in table."""
    concurrency: int | None = None
    """Attempts in flight at once; None: `per_endpoint_concurrency`."""
    rate: float | None = None
    """Attempts started per second; None: unlimited."""
    disable_after: float | None = None
    """Seconds of nothing but failed attempts after which it is disabled; 0: never, None: as the dispatcher is set."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Overrides of per-attempt limits by `ClientPolicy` field name, for example `{"read_timeout": 20.0}`."""
    tier: str | None = None
    """`same_dc`, `cross_region`, `datastore` or `third_party`: a profile of limits. None: none, those of the dispatcher apply."""
    deduplicates: bool = True
    """The receiver drops repeated `webhook-id`s, so that a request lost on a stale connection may be sent again at once."""
    send_deadline: bool = False
    """Send `Request-Timeout` with each attempt: the seconds for which we wait for its answer. For receivers that read it."""
    send_trace: bool = False
    """Send `traceparent` (and `tracestate`) with each attempt, so that the receiver's trace goes on from ours. For receivers that
    read it, and whose operator may see our trace ids."""
    ca_pem: str | None = field(default=None, repr=False)
    """Certificates that replace the public store for this endpoint; a self-signed receiver's own pins it."""
    client_cert_pem: str | None = field(default=None, repr=False)
    """Shown to the receiver, with `client_key_pem`; https only."""
    client_key_pem: Secret | None = field(default=None, repr=False)
    x509_strict: bool = True
    """RFC 5280 checks; a private authority with old certificates may need False."""
    unverified: str | None = None
    """Why nobody's certificate was seen at registration: `not_probed`, or the reason of the probe's end. Set by registration,
    cleared by the first attempt that got through TLS. None: verified, or plain http."""

    @property
    def number(self) -> int:
        """The number behind the public id."""
        return decode_id(ENDPOINT, self.id)

    def accepts(self, event_type: str) -> bool:
        """Whether the filter takes an event of this type."""
        own = event_type.startswith(RESERVED_TYPES)
        return any(
            pattern == "*" or pattern == event_type or ("*" in pattern and fnmatch.fnmatchcase(event_type, pattern))
            for pattern in self.event_types
            if not own or pattern.startswith(RESERVED_TYPES)
        )


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use. None: unlimited."""

    events_per_second: float | None = None
    backlog_rows: int | None = None
    endpoints: int | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer of whoever runs Gatepost; owns endpoints, events and API keys."""

    name: str
    created_at: int = 0
    """UTC microseconds."""
    limits: TenantLimits = TenantLimits()
    generation: int = 1
    stopped_at: int | None = None
    """Since when it is being erased (UTC microseconds): it takes no events and its deliveries do not start. None: it works."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key to the HTTP API, stored as a hash only."""

    id: str
    hash: bytes = field(repr=False)
    """SHA-256 of the key; keys are 32 random bytes, so a slow hash would add nothing."""
    tenant: str | None
    """None: an admin key, every tenant."""
    name: str
    created_at: int
    """UTC microseconds."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `publish` returns once the event is durable."""

    event_id: str
    duplicate: bool | None
    """The idempotency key had been used with the same event; None when only the dispatcher can know (outbox)."""
    deliveries: int | None
    """Endpoints it goes to; None when only the dispatcher can know (outbox)."""
