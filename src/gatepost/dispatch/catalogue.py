"""The registry in memory: every endpoint with what was derived from it once per generation, and who takes which event type.

It follows `changes_since` and decides nothing; a record that cannot be used any more (its URL is refused by today's rules) is
kept closed and says why. Read by intake (fan-out), the scheduler (settings) and attempts (signer, limits, headers).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gatepost.admission.endpoint_limits import LimitRules
from gatepost.admission.rollout import cohort_of
from gatepost.clock import Clock
from gatepost.deadline.wire import REQUEST_TIMEOUT, format_seconds
from gatepost.delivery.decide import DeliveryRules, rules_of
from gatepost.delivery.policy import POOL_FIELDS, ClientPolicy
from gatepost.delivery.records import Endpoint, EndpointStatus, Tenant
from gatepost.dispatch.endpoint_rules import UrlCheck
from gatepost.dispatch.policy_view import PolicyView, Shared
from gatepost.dispatch.seats import EndpointSettings
from gatepost.dispatch.type_index import TypeIndex
from gatepost.dispatch.verification import tls_profile
from gatepost.errors import ConfigurationError
from gatepost.store.port import Registry
from gatepost.wire.egress import Denied
from gatepost.wire.signing import Signer

PAGE: Final = 1_000
"""Endpoints read at a time when the catalogue is filled."""
MATCHES_MAX: Final = 4_096
"""Remembered answers to "who takes this type", over all tenants; emptied when full, a tenant's when an endpoint of its changes."""
NEVER_US: Final = 1 << 62

_log = logging.getLogger("gatepost.dispatch")


class Listed:
    """One endpoint, with what an attempt needs of it worked out once."""

    __slots__ = (
        "_own_headers",
        "_policy",
        "_settings",
        "_shared",
        "_signer",
        "_signs_until",
        "_version",
        "_view",
        "_worked_out",
        "endpoint",
        "number",
        "place",
        "refusal",
        "rules",
        "tls",
    )

    def __init__(self, endpoint: Endpoint, view: PolicyView, check_url: UrlCheck) -> None:
        """Raises `ConfigurationError` for overrides that cannot be together with what is in force."""
        self.endpoint: Final = endpoint
        self.number: Final = endpoint.number
        self.place: Final = cohort_of(endpoint.number)
        """Among all endpoints, 0 to 1: which cohorts it belongs to."""
        self.rules: Final[DeliveryRules] = rules_of(endpoint)
        self._view = view
        self._version = view.version
        self._shared = view.shared(endpoint.tier, self.place)
        self._policy = _with_own(self._shared, endpoint)
        self.tls: Final = tls_profile(endpoint)
        checked = check_url(endpoint.url)
        self.refusal: Final = checked if isinstance(checked, Denied) else None
        """The rule that refuses the URL today; the attempt then ends in `egress_denied`."""
        self._settings = EndpointSettings(
            number=self.number,
            tenant=endpoint.tenant,
            host=endpoint.id if isinstance(checked, Denied) else checked.origin,
            cap=endpoint.concurrency or self._shared.cap,
            rate=endpoint.rate,
            open=endpoint.status is EndpointStatus.ACTIVE,
        )
        self._own_headers = _own_headers(endpoint, self._policy)
        self._worked_out: LimitRules | None = None
        self._signer: Signer | None = None
        self._signs_until = 0

    @property
    def policy(self) -> ClientPolicy:
        """Limits of one attempt, as they are now; what was learned is not in them."""
        if self._version != self._view.version:
            self._follow()
        return self._policy

    @property
    def settings(self) -> EndpointSettings:
        """What the scheduler goes by."""
        if self._version != self._view.version:
            self._follow()
        return self._settings

    @property
    def shared(self) -> Shared:
        """What it has before its own overrides."""
        if self._version != self._view.version:
            self._follow()
        return self._shared

    @property
    def limit_rules(self) -> LimitRules | None:
        """Place for what `dispatch.limits` works out from all that: None after each change of the policy."""
        if self._version != self._view.version:
            self._follow()
        return self._worked_out

    @limit_rules.setter
    def limit_rules(self, rules: LimitRules) -> None:
        self._worked_out = rules

    @property
    def origin(self) -> str | None:
        """`scheme://host:port`, None while the URL is refused."""
        return None if self.refusal is not None else self._settings.host

    def request_headers(self, webhook_id: str, now_us: int, body: bytes) -> dict[str, str]:
        """The endpoint's own headers and a fresh signature over exactly these bytes."""
        if self._version != self._view.version:
            self._follow()
        signer = self._signer
        if signer is None or now_us >= self._signs_until:
            signer = self._renew_signer(now_us)
        signed = signer.headers(webhook_id, now_us // 1_000_000, body)
        if self._own_headers is not None:
            return {**self._own_headers, **signed}
        return signed

    def _follow(self) -> None:
        """The policy changed since this was worked out."""
        self._version = self._view.version
        shared = self._view.shared(self.endpoint.tier, self.place)
        try:
            policy = _with_own(shared, self.endpoint)
        except ConfigurationError as error:
            # A change is checked against all overrides before it is stored; one that was made meanwhile is not.
            _log.error("endpoint %s keeps its limits, its own do not go with the new ones: %s", self.endpoint.id, error)
            policy = self._policy.with_values({name: getattr(shared.policy, name) for name in POOL_FIELDS})
        self._shared, self._policy, self._worked_out = shared, policy, None
        self._settings = self._settings._replace(cap=self.endpoint.concurrency or shared.cap)
        self._own_headers = _own_headers(self.endpoint, policy)

    def _renew_signer(self, now_us: int) -> Signer:
        """Secrets in force now, the current one first; asked again when the first of them expires."""
        valid = [secret for secret in self.endpoint.secrets if secret.expires_at is None or secret.expires_at > now_us]
        self._signs_until = min((secret.expires_at or NEVER_US for secret in valid), default=NEVER_US)
        self._signer = Signer([secret.secret.reveal() for secret in valid])
        return self._signer


def _with_own(shared: Shared, endpoint: Endpoint) -> ClientPolicy:
    return shared.policy.with_values(endpoint.limits) if endpoint.limits else shared.policy


def _own_headers(endpoint: Endpoint, policy: ClientPolicy) -> Mapping[str, str] | None:
    """What every attempt sends beside its signature; None for nothing. The owner's own Request-Timeout is left alone."""
    if not endpoint.send_deadline or any(name.lower() == REQUEST_TIMEOUT for name in endpoint.headers):
        return endpoint.headers or None
    # From the last request byte on, a receiver has until our read timeout; the total may end before it.
    ms = math.floor(min(policy.read_timeout, policy.attempt_budget) * 1_000)
    return {**endpoint.headers, "Request-Timeout": format_seconds(ms)} if ms else endpoint.headers or None


class Catalogue:
    """All endpoints and tenants. `on_change` hears the number of every endpoint that changed or went, `on_left` the tenant and
    the origin whose connections it no longer uses: its scheme, host, port or TLS settings changed.
    """

    def __init__(
        self,
        registry: Registry,
        view: PolicyView,
        check_url: UrlCheck,
        clock: Clock,
        on_change: Callable[[int], None],
        on_left: Callable[[str, str], None],
    ) -> None:
        self._registry = registry
        self._view = view
        self.on_policy: Callable[[], Awaitable[None]] | None = None
        """Reads the policy anew: called first, and when it changed."""
        self.on_event_type: Callable[[str], Awaitable[None]] | None = None
        """Reads the schema of an event type anew, by the id of its record."""
        self._check_url = check_url
        self._clock = clock
        self._on_change = on_change
        self._on_left = on_left
        self._cursor = 0
        self._by_number: dict[int, Listed] = {}
        self._by_tenant: dict[str, dict[int, Listed]] = {}
        self._tenants: dict[str, Tenant] = {}
        self._types: dict[str, TypeIndex] = {}
        """By tenant; one for each that has endpoints."""
        self._matches: dict[str, dict[str, tuple[Listed, ...]]] = {}
        """By tenant and type."""
        self._match_count = 0

    @property
    def endpoint_count(self) -> int:
        """Endpoints known."""
        return len(self._by_number)

    @property
    def numbers(self) -> Collection[int]:
        """Of all endpoints."""
        return self._by_number.keys()

    @property
    def all(self) -> Collection[Listed]:
        """All endpoints."""
        return self._by_number.values()

    def get(self, number: int) -> Listed | None:
        """An endpoint by its number."""
        return self._by_number.get(number)

    def settings(self, number: int) -> EndpointSettings | None:
        """What the scheduler asks for; None for an endpoint that is not registered (any more)."""
        listed = self._by_number.get(number)
        if listed is None:
            return None
        return listed.settings._replace(open=False) if self.stopped(listed.endpoint.tenant) else listed.settings

    def tenant(self, name: str) -> Tenant | None:
        """A tenant's record, None when it never got one."""
        return self._tenants.get(name)

    def stopped(self, name: str) -> bool:
        """The tenant is being erased: it takes no events, and its deliveries do not start."""
        tenant = self._tenants.get(name)
        return tenant is not None and tenant.stopped_at is not None

    def endpoints_of(self, tenant: str) -> Mapping[int, Listed]:
        """A tenant's endpoints by number."""
        return self._by_tenant.get(tenant, {})

    def takers(self, tenant: str, event_type: str) -> Sequence[Listed]:
        """Who gets an event of this type, in order of number: paused and disabled endpoints too, their deliveries wait."""
        if self.stopped(tenant):
            return ()
        known = self._matches.get(tenant)
        found = None if known is None else known.get(event_type)
        if found is None:
            index = self._types.get(tenant)
            if index is None:
                return ()
            owned = self._by_tenant[tenant]
            found = tuple(owned[number] for number in index.takers(event_type))
            if self._match_count >= MATCHES_MAX:
                self._matches.clear()
                self._match_count = 0
            self._matches.setdefault(tenant, {})[event_type] = found
            self._match_count += 1
        return found

    def _forget_matches(self, tenant: str) -> None:
        self._match_count -= len(self._matches.pop(tenant, ()))

    async def load(self) -> None:
        """Fill from the registry. Changes made meanwhile are caught by the first `follow`."""
        _, cursor = await self._registry.changes_since(0)
        if self.on_policy is not None:
            await self.on_policy()
        after: str | None = None
        while True:
            page = await self._registry.endpoints(None, after, PAGE)
            for endpoint in page.items:
                self._put(endpoint)
            after = page.next
            if after is None:
                break
        while True:
            tenants = await self._registry.tenants(after, PAGE)
            for tenant in tenants.items:
                self._tenants[tenant.name] = tenant
            after = tenants.next
            if after is None:
                break
        self._cursor = cursor

    async def follow(self) -> int:
        """Take over what changed since the last call; returns how many records that were."""
        changes, cursor = await self._registry.changes_since(self._cursor)
        for kind, record_id in changes:
            if kind == "endpoint":
                await self.refresh(record_id)
            elif kind == "tenant":
                await self.refresh_tenant(record_id)
            elif kind == "policy" and self.on_policy is not None:
                await self.on_policy()
            elif kind == "event_type" and self.on_event_type is not None:
                await self.on_event_type(record_id)
        self._cursor = cursor
        return len(changes)

    async def refresh(self, endpoint_id: str) -> None:
        """Read one endpoint anew, so that a change made in this process holds when its call returns."""
        endpoint = await self._registry.endpoint(endpoint_id)
        if endpoint is None:
            self._drop(Endpoint(id=endpoint_id, tenant="", url="").number)
        else:
            self._put(endpoint)

    async def refresh_tenant(self, name: str) -> None:
        """The same for a tenant's record."""
        stopped = self.stopped(name)
        tenant = await self._registry.tenant(name)
        if tenant is None:
            self._tenants.pop(name, None)
        else:
            self._tenants[name] = tenant
        if stopped != self.stopped(name):
            for number in list(self.endpoints_of(name)):
                self._on_change(number)

    def _put(self, endpoint: Endpoint) -> None:
        known = self._by_number.get(endpoint.number)
        if known is not None and known.endpoint.generation >= endpoint.generation:
            return  # two reads may end in the wrong order
        try:
            listed = Listed(endpoint, self._view, self._check_url)
        except (ConfigurationError, TypeError) as error:
            # Stored under other rules or by another version: its events wait until somebody mends the record.
            _log.error("endpoint %s cannot be used and is held: %s", endpoint.id, error)
            held = replace(
                endpoint,
                limits={},
                tier=None,
                status_rules={},
                schedule=None,
                window=None,
                ca_pem=None,
                client_cert_pem=None,
                client_key_pem=None,
            )
            listed = Listed(replace(held, status=EndpointStatus.DISABLED), self._view, self._check_url)
        self._by_number[listed.number] = listed
        self._by_tenant.setdefault(endpoint.tenant, {})[listed.number] = listed
        types = self._types.setdefault(endpoint.tenant, TypeIndex())
        if known is not None:
            types.drop(known.endpoint)
        types.put(listed.endpoint)
        self._forget_matches(endpoint.tenant)
        self._on_change(listed.number)
        if known is not None and known.origin is not None and (known.origin, known.tls) != (listed.origin, listed.tls):
            self._on_left(endpoint.tenant, known.origin)

    def _drop(self, number: int) -> None:
        known = self._by_number.pop(number, None)
        if known is not None:
            owned = self._by_tenant[known.endpoint.tenant]
            del owned[number]
            self._types[known.endpoint.tenant].drop(known.endpoint)
            if not owned:
                del self._by_tenant[known.endpoint.tenant]
                del self._types[known.endpoint.tenant]
            self._forget_matches(known.endpoint.tenant)
            self._on_change(number)
