"""What an endpoint record must look like before it is stored: every refusal says what to write instead.

Checks one record against today's egress policy and limits; looks nothing up and changes nothing. Called for each create and
each update, so that what the catalogue reads later has passed once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from gatepost.delivery.decide import parse_status_rules
from gatepost.delivery.policy import POOL_FIELDS, ClientPolicy
from gatepost.delivery.policy_layers import TIER_NAMES
from gatepost.delivery.records import DEFAULT_SCHEDULE, DEFAULT_WINDOW, Endpoint
from gatepost.delivery.retry import check_schedule
from gatepost.dispatch.verification import tls_profile
from gatepost.errors import ConfigurationError, DestinationDenied
from gatepost.net.tls import check_profile
from gatepost.wire.egress import Denied, Target
from gatepost.wire.headers import check_headers
from gatepost.wire.signing import parse_secret

EVENT_TYPES_MAX: Final = 100
"""Patterns of one endpoint: each is matched against every new type once."""
CONCURRENCY_MAX: Final = 64
"""Attempts in flight at one endpoint (design: 1 to 64)."""
BUDGET_MAX: Final = 120.0
"""Seconds one attempt may last by an endpoint's own limits, unless the process itself allows more. A slot is everybody's: with
limits of a day one tenant could hold all of them with a few endpoints that never answer."""
RATE_MIN: Final = 1e-5
"""Attempts a second: about one a day. With fewer the delivery window ends first; who wants none pauses the endpoint."""
RATE_MAX: Final = 100_000.0
DISABLE_AFTER_MAX: Final = 365 * 86_400.0
"""Seconds of failure after which an endpoint is disabled: whoever waits a year means never, which is 0."""
HEADERS_MAX: Final = 32
PEM_MAX: Final = 65_536
"""Characters of a certificate file or key: a chain has under 10,000."""
DESCRIPTION_MAX: Final = 1_024
TENANT_MAX: Final = 128

_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*:/-]{1,128}")
_TENANT: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")


UrlCheck = Callable[[str], Target | Denied]
"""What each attempt asks about its URL: `DispatchClient.check_url`."""


def check_endpoint(endpoint: Endpoint, policy: ClientPolicy, check_url: UrlCheck) -> None:
    """Raises `DestinationDenied`, `HeaderRefused` or `ConfigurationError` (all `ValueError`s) for the first thing wrong."""
    check_tenant_name(endpoint.tenant)
    checked = check_url(endpoint.url)
    if isinstance(checked, Denied):
        raise DestinationDenied(checked.reason, f"the URL is refused ({checked.reason}): {checked}")
    _check_types(endpoint.event_types)
    if len(endpoint.description) > DESCRIPTION_MAX:
        raise ConfigurationError(
            f"description has {len(endpoint.description)} characters: write at most {DESCRIPTION_MAX}"
        )
    if len(endpoint.headers) > HEADERS_MAX:
        raise ConfigurationError(f"headers has {len(endpoint.headers)} entries: write at most {HEADERS_MAX}")
    check_headers(endpoint.headers)
    for name in ("send_deadline", "send_trace"):
        if not isinstance(given := getattr(endpoint, name), bool):
            raise ConfigurationError(f"{name}={given!r}: write True or False")
    if endpoint.tier is not None and endpoint.tier not in TIER_NAMES:
        raise ConfigurationError(f"tier={endpoint.tier!r}: write one of {', '.join(TIER_NAMES)}, or leave it out")
    _check_tls(endpoint, checked)
    parse_status_rules(endpoint.status_rules)
    limits = _check_limits(endpoint, policy)
    schedule = DEFAULT_SCHEDULE if endpoint.schedule is None else endpoint.schedule
    check_schedule(schedule, DEFAULT_WINDOW if endpoint.window is None else endpoint.window, limits.attempt_budget)
    _check_concurrency(endpoint.concurrency)
    _check_rate(endpoint.rate)
    _check_disable_after(endpoint.disable_after)
    for secret in endpoint.secrets:
        try:
            parse_secret(secret.secret.reveal())
        except ValueError as error:
            raise ConfigurationError(f"secret: {error}") from None


def _check_tls(endpoint: Endpoint, target: Target) -> None:
    for name in ("ca_pem", "client_cert_pem", "client_key_pem"):
        value = getattr(endpoint, name)
        if value is not None and (not isinstance(value, str) or len(value) > PEM_MAX):
            raise ConfigurationError(f"{name}: write PEM text of at most {PEM_MAX} characters")
    if not isinstance(endpoint.x509_strict, bool):
        raise ConfigurationError(f"x509_strict={endpoint.x509_strict!r}: write True or False")
    profile = tls_profile(endpoint)
    if profile is not None:
        check_profile(target, profile)


def check_tenant_name(tenant: str) -> None:
    """Raises `ConfigurationError` for a tenant name that cannot be used."""
    if not isinstance(tenant, str) or _TENANT.fullmatch(tenant) is None:
        raise ConfigurationError(f"tenant={tenant!r}: write 1 to {TENANT_MAX} letters, digits and any of _ . : @ -")


def _check_types(event_types: Sequence[str]) -> None:
    if isinstance(event_types, str):
        raise ConfigurationError(
            f"event_types={event_types!r} is one text: write a list, for example ['{event_types}']"
        )
    if not 1 <= len(event_types) <= EVENT_TYPES_MAX:
        raise ConfigurationError(
            f"event_types has {len(event_types)} entries: write 1 to {EVENT_TYPES_MAX}; ['*'] takes all"
        )
    for pattern in event_types:
        if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
            raise ConfigurationError(
                f"event_types holds {pattern!r}: write a type such as 'invoice.paid', a pattern such as 'invoice.*', or '*'"
            )


def _check_limits(endpoint: Endpoint, policy: ClientPolicy) -> ClientPolicy:
    for name in endpoint.limits:
        if name in POOL_FIELDS:
            raise ConfigurationError(f"limits holds {name!r}, which belongs to the whole client: leave it out")
    try:
        limits = policy.evolve(**endpoint.limits)
    except TypeError as error:
        raise ConfigurationError(f"limits: {error}") from None
    most = max(BUDGET_MAX, policy.attempt_budget)
    if limits.attempt_budget > most:
        raise ConfigurationError(
            f"limits let one attempt last {limits.attempt_budget:g} s, at most {most:g} s are allowed: write a shorter "
            "read_timeout, or answer at once and work afterwards"
        )
    return limits


def _check_concurrency(concurrency: int | None) -> None:
    if concurrency is None:
        return
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise ConfigurationError(f"concurrency={concurrency!r}: write 1 to {CONCURRENCY_MAX}")


def _check_disable_after(seconds: float | None) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= DISABLE_AFTER_MAX:
        raise ConfigurationError(
            f"disable_after={seconds!r}: write seconds up to {DISABLE_AFTER_MAX:.0f}, or 0 for never"
        )


def _check_rate(rate: float | None) -> None:
    if rate is None:
        return
    if (
        isinstance(rate, bool)
        or not isinstance(rate, int | float)
        or math.isnan(rate)
        or not RATE_MIN <= rate <= RATE_MAX
    ):
        raise ConfigurationError(
            f"rate={rate!r}: write attempts per second, {RATE_MIN:.5f} to {RATE_MAX:.0f}; to send nothing, pause the endpoint"
        )
