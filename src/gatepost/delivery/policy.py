"""The limits in force for one attempt: frozen, complete, and checked when written.

`ClientPolicy` composes and explains limits; it applies none of them (`net.client` does). Built by callers, by
`service.config`, and per call with `evolve`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from gatepost.errors import ConfigurationError

POOL_FIELDS: Final = frozenset(
    {"max_connections", "max_per_host", "keepalive_expiry", "max_connection_age", "dns_ttl", "per_endpoint_concurrency"}
)
"""Fields that shape the client's shared machinery: a call's policy must agree with the client's in them."""

_SECONDS: Final = (
    "connect_timeout",
    "write_timeout",
    "read_timeout",
    "pool_timeout",
    "admission_timeout",
    "dns_timeout",
    "tls_timeout",
    "total_timeout",
    "keepalive_expiry",
    "max_connection_age",
    "dns_ttl",
)
_COUNTS: Final = (
    "max_connections",
    "max_per_host",
    "per_endpoint_concurrency",
    "max_response_head",
    "max_response_body",
    "max_interim_responses",
    "redirect_limit",
)
_SWITCHES: Final = ("follow_redirects", "redirect_cross_origin", "require_complete_body")
_OPTIONAL: Final = frozenset({"dns_timeout", "tls_timeout", "total_timeout"})
_MAY_BE_ZERO: Final = frozenset({"dns_ttl", "keepalive_expiry", "max_response_body", "max_interim_responses"})
LONGEST: Final = 86_400.0
"""No limit may be longer than a day: beyond it a typing error is likelier than a wish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPolicy:
    """Limits for one attempt. Durations are float seconds; None in an optional field means "not given".

    Raises `ConfigurationError` (a `ValueError`) for zero, negative, NaN or impossible values, saying what to write instead.
    """

    connect_timeout: float = 3.0
    """DNS, TCP and TLS together, over all addresses. `dns_timeout` and `tls_timeout` may only tighten it."""
    write_timeout: float = 5.0
    """First to last request byte handed to the kernel."""
    read_timeout: float = 10.0
    """One clock from the last request byte to the end of the body; dripping bytes never extend it."""
    pool_timeout: float = 2.0
    """Waiting for a connection lease."""
    admission_timeout: float = 1.0
    """Waiting for an endpoint slot."""
    dns_timeout: float | None = None
    tls_timeout: float | None = None
    total_timeout: float | None = None
    """From the granted connection lease to the end, stale retry included. Not given: connect + write + read."""
    max_connections: int = 200
    """Sockets really open, idle ones included."""
    max_per_host: int = 8
    per_endpoint_concurrency: int = 6
    keepalive_expiry: float = 30.0
    """An idle connection older than this is not reused; 0 means never keep."""
    max_connection_age: float = 120.0
    """Counted from the connect, jittered downwards, so that a DNS change is followed."""
    dns_ttl: float = 30.0
    """How long an answer is kept; 0 asks anew for every connection."""
    max_response_head: int = 65_536
    """Bytes of status line and headers, interim responses included."""
    max_response_body: int = 65_536
    """Bytes read before the connection is closed and the body counts as too large."""
    max_interim_responses: int = 10
    follow_redirects: bool = False
    """Follow 307 and 308, each hop checked like a registered URL. Off: a redirect is a failed delivery."""
    redirect_limit: int = 3
    redirect_cross_origin: bool = False
    """Follow to another scheme, host or port. It gets the signed message, but no endpoint headers and no client certificate."""
    require_complete_body: bool = False
    """A faulty body after a complete 2xx head counts as a failure instead of as delivered."""

    def __post_init__(self) -> None:
        self._check()
        if self.connect_timeout * 3 > self.read_timeout * 1.000001:
            warnings.warn(
                f"connect_timeout={self.connect_timeout} is over a third of read_timeout={self.read_timeout}: "
                f"a dead host then costs nearly as much as a slow one; write connect_timeout={self.read_timeout / 3:.3g} or less",
                stacklevel=3,
            )

    def _check(self) -> None:
        self._check_each()
        self._check_together()

    def _check_each(self) -> None:
        for name in _SECONDS:
            _check_seconds(name, getattr(self, name))
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        for name in _SWITCHES:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name}={value!r}: write True or False")

    def _check_together(self) -> None:
        for name in ("dns_timeout", "tls_timeout"):
            value = getattr(self, name)
            if value is not None and value > self.connect_timeout:
                raise ConfigurationError(
                    f"{name}={value} is longer than connect_timeout={self.connect_timeout}, which covers it: "
                    f"write {name}={self.connect_timeout} or less, or raise connect_timeout"
                )
        if self.max_per_host > self.max_connections:
            raise ConfigurationError(
                f"max_per_host={self.max_per_host} is more than max_connections={self.max_connections}: "
                f"write max_per_host={self.max_connections} or less, or raise max_connections"
            )

    @property
    def attempt_budget(self) -> float:
        """Seconds an attempt may last once it has a connection lease: `total_timeout`, or connect + write + read."""
        if self.total_timeout is not None:
            return self.total_timeout
        return self.connect_timeout + self.write_timeout + self.read_timeout

    def evolve(self, **changes: Any) -> ClientPolicy:
        """A copy with `changes`; an unknown field raises `TypeError` that lists the known ones."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise TypeError(f"ClientPolicy has no field {name!r}; write one of {', '.join(known)}")
        return replace(self, **changes)

    def check_call(self, policy: object) -> None:
        """Raises when a client with this policy cannot use `policy` for one call: `TypeError` for anything but a `ClientPolicy`,
        `ValueError` for one with other pool limits."""
        if not isinstance(policy, ClientPolicy):
            raise TypeError(f"policy={policy!r}: write client.policy.evolve(read_timeout=...), no bare number")
        for name in sorted(POOL_FIELDS):
            given, own = getattr(policy, name), getattr(self, name)
            if given != own:
                raise ValueError(
                    f"policy.{name}={given} differs from the client's {own}: pool limits belong to the client, "
                    f"write client.policy.evolve(...) with per-attempt limits only"
                )

    def with_read_timeout(self, seconds: float) -> ClientPolicy:
        """A copy with a read timeout that was learned, not written: the warnings for people who write one are left out."""
        if not 0 < seconds <= LONGEST:
            raise ConfigurationError(f"read_timeout={seconds}: a limit is a positive number of seconds")
        made = object.__new__(ClientPolicy)
        for field in fields(self):
            object.__setattr__(made, field.name, seconds if field.name == "read_timeout" else getattr(self, field.name))
        return made

    def with_values(self, changes: Mapping[str, Any], *, alone: bool = False) -> ClientPolicy:
        """A copy that was composed and not written: checked as any other, without the warning for people who write one.

        `alone`: check each value by itself only. Raises `ConfigurationError`, also for an unknown field.
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise ConfigurationError(f"{name!r} is no limit: write one of {', '.join(sorted(known))}")
        made = object.__new__(ClientPolicy)
        for name in known:
            object.__setattr__(made, name, changes[name] if name in changes else getattr(self, name))
        made._check_each() if alone else made._check()
        return made

    def explain(self) -> str:
        """Each effective value, who set it and what it beat, a line each."""
        return "\n".join(f"{row.name:<26}{row.value!s:<10}{row.source}" for row in self.explain_rows())

    def explain_rows(self) -> tuple[ExplainedValue, ...]:
        """The rows of `explain`, for programs."""
        rows = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "total_timeout" and value is None:
                rows.append(ExplainedValue(field.name, self.attempt_budget, "derived: connect + write + read"))
            elif value is None:
                rows.append(ExplainedValue(field.name, self.connect_timeout, "derived: connect_timeout"))
            elif value == field.default:
                rows.append(ExplainedValue(field.name, value, "built-in"))
            else:
                rows.append(ExplainedValue(field.name, value, f"given (beats built-in {field.default})"))
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """One effective limit and where it comes from."""

    name: str
    value: float | int | bool
    source: str


def parse_field(text: str) -> tuple[str, Any]:
    """`"read_timeout=3"` as (name, value), for the command line and configuration.

    Raises `ConfigurationError` naming the known fields or the expected type.
    """
    name, separator, raw = text.partition("=")
    defaults: Mapping[str, Any] = {field.name: field.default for field in fields(ClientPolicy)}
    if not separator or name not in defaults:
        raise ConfigurationError(f"{text!r} is not FIELD=VALUE with a field of {', '.join(defaults)}")
    default = defaults[name]
    if isinstance(default, bool):
        if raw not in ("true", "false"):
            raise ConfigurationError(f"{name}={raw!r}: write {name}=true or {name}=false")
        return name, raw == "true"
    try:
        return name, int(raw) if isinstance(default, int) else float(raw)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "seconds"
        raise ConfigurationError(f"{name}={raw!r}: write {kind}, for example {name}={default or 3.0}") from None


def _check_seconds(name: str, value: object) -> None:
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name}={value!r}: write seconds as a number, for example {name}=3.0")
    if value > LONGEST:  # first, because an int may be too large to be asked whether it is NaN
        raise ConfigurationError(f"{name}={value}: write at most {LONGEST:.0f} (a day)")
    if math.isnan(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise ConfigurationError(
            f"{name}={value}: a limit is a positive number of seconds, for example {name}=3.0; there is no 'never'"
        )


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name}={value!r}: write a whole number, for example {name}=8")
    if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise ConfigurationError(f"{name}={value}: write a positive whole number")
