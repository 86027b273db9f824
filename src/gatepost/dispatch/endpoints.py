"""`dispatcher.endpoints`: register destinations, change, pause and resume them, rotate their secrets, try them out.

Every change is checked before it is stored, raises the record's generation, and holds in this process when the call returns;
other processes follow within two seconds. Attempts in flight end under the record they began with.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from gatepost.clock import Clock, Entropy
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.ids import ENDPOINT, decode_id, encode_id, new_endpoint_number
from gatepost.delivery.records import Endpoint, EndpointSecret, EndpointStatus, Secret
from gatepost.dispatch.catalogue import Catalogue
from gatepost.dispatch.endpoint_rules import check_endpoint
from gatepost.dispatch.policy_view import PolicyView
from gatepost.dispatch.verification import Destinations, verify
from gatepost.errors import ConfigurationError, Conflict, LimitExceeded, NotFound
from gatepost.store.port import Registry
from gatepost.store.rows import Page
from gatepost.wire.signing import SECRETS_MAX, new_secret

OVERLAP: Final = 86_400.0
"""Seconds for which a rotated secret goes on signing beside its successor: a day for the owner to change over."""
OVERLAP_MAX: Final = 30 * 86_400.0
UPDATE_TRIES: Final = 5
"""An update that met another writer is repeated on the newer record."""
SECRET_BYTES: Final = 32

_CHANGEABLE: Final = frozenset(field.name for field in fields(Endpoint)) - {
    "id",
    "tenant",
    "generation",
    "created_at",
    "updated_at",
    "secrets",
    "status",
    "status_reason",
    "unverified",
}
_VERIFIED: Final = frozenset({"url", "ca_pem", "client_cert_pem", "client_key_pem", "x509_strict"})
"""Fields whose change makes what was seen at registration worthless."""


_log = logging.getLogger("gatepost.dispatch")


class Endpoints:
    """The calls. `try_out` makes one test attempt; `withdraw` cancels what waits for an endpoint that goes."""

    def __init__(
        self,
        registry: Registry,
        catalogue: Catalogue,
        view: PolicyView,
        destinations: Destinations,
        clock: Clock,
        entropy: Entropy,
        try_out: Callable[[Endpoint], Awaitable[Attempt]],
        withdraw: Callable[[int], Awaitable[int]],
    ) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._view = view
        self._destinations = destinations
        self._clock = clock
        self._entropy = entropy
        self._try_out = try_out
        self._withdraw = withdraw

    async def create(
        self,
        url: str,
        *,
        tenant: str = "default",
        event_types: Sequence[str] = ("*",),
        secret: str | None = None,
        description: str = "",
        headers: Mapping[str, str] | None = None,
        schedule: Sequence[float] | None = None,
        window: float | None = None,
        status_rules: Mapping[str, str] | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        disable_after: float | None = None,
        limits: Mapping[str, float] | None = None,
        tier: str | None = None,
        deduplicates: bool = True,
        send_deadline: bool = False,
        send_trace: bool = False,
        ca_pem: str | None = None,
        client_cert_pem: str | None = None,
        client_key_pem: str | None = None,
        x509_strict: bool = True,
        probe: bool = True,
    ) -> Endpoint:
        """Register a destination; a signing secret is made unless one is given.

        An https URL is connected to and its certificate looked at: a broken chain is refused, a receiver that cannot be reached
        is stored as `unverified`; `probe=False` asks nobody. Raises `DestinationDenied`, `HeaderRefused` or
        `ConfigurationError` (all `ValueError`s) saying what to write instead, and `LimitExceeded` when the tenant has as many
        endpoints as it may.
        """
        now = self._clock.wall_us()
        known = Secret(new_secret(self._entropy.token(SECRET_BYTES)) if secret is None else _revealed(secret))
        endpoint = Endpoint(
            id=encode_id(ENDPOINT, new_endpoint_number(self._entropy)),
            tenant=tenant,
            url=url,
            event_types=_as_tuple(event_types),
            description=description,
            created_at=now,
            updated_at=now,
            secrets=(EndpointSecret(known, now),),
            headers={} if headers is None else dict(headers),
            schedule=None if schedule is None else tuple(schedule),
            window=window,
            status_rules={} if status_rules is None else dict(status_rules),
            concurrency=concurrency,
            rate=rate,
            disable_after=disable_after,
            limits={} if limits is None else dict(limits),
            tier=tier,
            deduplicates=deduplicates,
            send_deadline=send_deadline,
            send_trace=send_trace,
            ca_pem=_text(ca_pem),
            client_cert_pem=_text(client_cert_pem),
            client_key_pem=_secret(client_key_pem),
            x509_strict=x509_strict,
        )
        check_endpoint(endpoint, self._view.of(endpoint).policy, self._destinations.check_url)
        self._check_count(tenant)
        endpoint = await self._verified(endpoint, probe)
        self._check_count(tenant)  # the probe took its time, in which others were registered
        await self._registry.create_endpoint(endpoint)
        await self._catalogue.refresh(endpoint.id)
        return endpoint

    async def get(self, endpoint_id: str, tenant: str | None = None) -> Endpoint:
        """One endpoint. Raises `NotFound`, also when it belongs to another tenant than `tenant`."""
        endpoint = await self._registry.endpoint(_checked_id(endpoint_id))
        if endpoint is None or (tenant is not None and endpoint.tenant != tenant):
            raise NotFound(f"there is no endpoint {endpoint_id[:40]}")
        return endpoint

    async def list(self, tenant: str | None = None, after: str | None = None, limit: int = 100) -> Page[Endpoint]:
        """Endpoints in order of id; `after` is the `next` of the page before."""
        return await self._registry.endpoints(tenant, after, limit)

    async def update(self, endpoint_id: str, *, probe: bool | None = None, **changes: Any) -> Endpoint:
        """Change settings by field name. Raises `TypeError` for a field that is not there or not changed this way.

        `probe` as in `create`; None: when the URL or a TLS setting is among the changes.
        """
        for name in changes:
            if name not in _CHANGEABLE:
                raise TypeError(
                    f"an endpoint has no changeable field {name!r}; write one of {', '.join(sorted(_CHANGEABLE))}"
                )
        if "event_types" in changes:
            changes["event_types"] = _as_tuple(changes["event_types"])
        if changes.get("schedule") is not None:
            changes["schedule"] = tuple(changes["schedule"])
        for name in ("headers", "status_rules", "limits"):
            if name in changes:
                changes[name] = dict(changes[name] or {})
        for name in ("ca_pem", "client_cert_pem"):
            if name in changes:
                changes[name] = _text(changes[name])
        if "client_key_pem" in changes:
            changes["client_key_pem"] = _secret(changes["client_key_pem"])
        verify_anew = probe is not None or not _VERIFIED.isdisjoint(changes)
        return await self._change(
            endpoint_id,
            lambda endpoint: replace(endpoint, **changes),
            probe=(probe is None or probe) if verify_anew else None,
        )

    async def mark_verified(self, endpoint_id: str, seen: int) -> bool:
        """An attempt got through TLS: its certificate has been seen now. Raises `NotFound`.

        `seen` is the generation that the attempt was made with: of a record that has changed since it says nothing, and the
        answer is False.
        """
        endpoint = await self.get(endpoint_id)
        if endpoint.generation != seen:
            return False
        verified = replace(endpoint, unverified=None, generation=seen + 1, updated_at=self._clock.wall_us())
        try:
            await self._registry.update_endpoint(verified, seen)
        except Conflict:
            return False
        await self._catalogue.refresh(endpoint_id)
        _log.info("endpoint %s is verified: an attempt got through TLS", endpoint_id)
        return True

    async def delete(self, endpoint_id: str) -> int:
        """Remove an endpoint and cancel what waits for it; returns how many deliveries that were. Raises `NotFound`."""
        endpoint = await self.get(endpoint_id)
        await self._registry.delete_endpoint(endpoint.id)
        await self._catalogue.refresh(endpoint.id)
        return await self._withdraw(endpoint.number)

    async def pause(self, endpoint_id: str, reason: str | None = None) -> Endpoint:
        """Start nothing more for it; events keep waiting, within their window."""
        return await self._set_status(endpoint_id, EndpointStatus.PAUSED, reason)

    async def disable(self, endpoint_id: str, reason: str, seen: int) -> bool:
        """As `pause`, by Gatepost itself: the receiver said 410, took nothing for days, or its URL is refused. Raises `NotFound`.

        `seen` is the generation that the attempt was made with. A record that its owner has changed or resumed since is left
        alone, and the answer is False: what is said of the old URL says nothing about the new one.
        """
        endpoint = await self.get(endpoint_id)
        if endpoint.generation != seen:
            return False
        disabled = replace(
            endpoint,
            status=EndpointStatus.DISABLED,
            status_reason=reason,
            generation=seen + 1,
            updated_at=self._clock.wall_us(),
        )
        try:
            await self._registry.update_endpoint(disabled, seen)
        except Conflict:
            return False
        await self._catalogue.refresh(endpoint_id)
        return True

    async def resume(self, endpoint_id: str) -> Endpoint:
        """Deliver again what waits, slowly at first, and what comes."""
        return await self._set_status(endpoint_id, EndpointStatus.ACTIVE, None)

    async def rotate_secret(self, endpoint_id: str, overlap: float = OVERLAP, secret: str | None = None) -> Endpoint:
        """A new current secret; the old one signs beside it for `overlap` seconds."""
        if not 0 <= overlap <= OVERLAP_MAX:
            raise ConfigurationError(f"overlap={overlap}: write seconds from 0 to {OVERLAP_MAX:.0f}")
        now = self._clock.wall_us()
        until = now + round(overlap * 1_000_000)
        fresh = Secret(new_secret(self._entropy.token(SECRET_BYTES)) if secret is None else _revealed(secret))

        def rotated(endpoint: Endpoint) -> Endpoint:
            older = [
                replace(known, expires_at=until if known.expires_at is None else min(known.expires_at, until))
                for known in endpoint.secrets
                if known.expires_at is None or known.expires_at > now
            ]
            kept = [known for known in older if known.expires_at is not None and known.expires_at > now]
            return replace(endpoint, secrets=(EndpointSecret(fresh, now), *kept[: SECRETS_MAX - 1]))

        return await self._change(endpoint_id, rotated)

    async def test(self, endpoint_id: str) -> Attempt:
        """One signed attempt with an event of type `gatepost.test`, outside the queue; nothing is recorded."""
        return await self._try_out(await self.get(endpoint_id))

    async def _set_status(self, endpoint_id: str, status: EndpointStatus, reason: str | None) -> Endpoint:
        return await self._change(
            endpoint_id, lambda endpoint: replace(endpoint, status=status, status_reason=reason), check=False
        )

    async def _change(
        self,
        endpoint_id: str,
        change: Callable[[Endpoint], Endpoint],
        *,
        check: bool = True,
        probe: bool | None = None,
    ) -> Endpoint:
        """`probe` None: what is known of its certificate stays as it is."""
        for _ in range(UPDATE_TRIES):
            endpoint = await self.get(endpoint_id)
            changed = replace(change(endpoint), generation=endpoint.generation + 1, updated_at=self._clock.wall_us())
            if check:
                check_endpoint(changed, self._view.of(changed).policy, self._destinations.check_url)
            if probe is not None:
                changed = await self._verified(changed, probe)
            try:
                await self._registry.update_endpoint(changed, endpoint.generation)
            except Conflict:
                continue
            await self._catalogue.refresh(changed.id)
            return changed
        raise Conflict(f"endpoint {endpoint_id} was changed by others {UPDATE_TRIES} times meanwhile: try again")

    async def _verified(self, endpoint: Endpoint, probe: bool) -> Endpoint:
        unverified = await verify(endpoint, self._destinations, probe=probe)
        if unverified is not None:
            _log.warning("endpoint %s is stored unverified: %s", endpoint.id, unverified)
        return replace(endpoint, unverified=unverified)

    def _check_count(self, tenant: str) -> None:
        record = self._catalogue.tenant(tenant)
        if record is not None and record.stopped_at is not None:
            raise NotFound(f"tenant {tenant} is being erased: it gets no endpoints")
        most = None if record is None else record.limits.endpoints
        if most is not None and len(self._catalogue.endpoints_of(tenant)) >= most:
            raise LimitExceeded(
                f"tenant {tenant} has its {most} endpoints: delete one, or raise the limit", retry_after=60.0
            )


def _checked_id(endpoint_id: str) -> str:
    try:
        decode_id(ENDPOINT, endpoint_id)
    except ValueError as error:
        raise NotFound(str(error)) from None
    return endpoint_id


def _revealed(secret: str) -> str:
    return secret.reveal() if isinstance(secret, Secret) else secret


def _text(pem: str | bytes | None) -> str | None:
    return pem.decode("ascii", "replace") if isinstance(pem, bytes) else pem


def _secret(pem: str | bytes | None) -> Secret | None:
    if pem is None:
        return None
    if not isinstance(pem, str | bytes):
        raise ConfigurationError(f"client_key_pem is a {type(pem).__name__}: write PEM text")
    return Secret(_revealed(pem if isinstance(pem, str) else pem.decode("ascii", "replace")))


def _as_tuple(event_types: Sequence[str]) -> tuple[str, ...]:
    return event_types if isinstance(event_types, str) else tuple(event_types)  # type: ignore[return-value]  # check_endpoint says what is wrong with a text
