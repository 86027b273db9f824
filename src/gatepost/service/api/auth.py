"""Who is calling: API keys, looked up by hash, for one tenant or for all (admin).

Without any key in the store the API serves everyone who reaches it, and then only loopback reaches it: the service refuses
another bind, and requests that a browser may have been tricked into are refused here. Another tenant's record is answered
exactly like a missing one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gatepost.clock import Clock, Entropy
from gatepost.delivery.records import ApiKey
from gatepost.errors import StoreError
from gatepost.service.api.problems import Problem, not_found

KEY_PREFIX: Final = "gpk_"
"""Secret scanners find keys by their prefix."""
KEY_BYTES: Final = 32
REFRESH_INTERVAL: Final = 2.0
"""Seconds until a key made or revoked by another process is followed."""
KEY_CHARS_MAX: Final = 512
"""Longer credentials are refused unhashed."""

_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `tenant` None: an admin, who acts for any tenant."""

    tenant: str | None
    key_id: str | None

    @property
    def actor(self) -> str:
        """How the audit log names the caller."""
        return self.key_id or "loopback"

    def tenant_for(self, asked: str | None) -> str:
        """The tenant a new record belongs to; another one than the caller's own raises not_found."""
        if self.tenant is None:
            return asked or "default"
        if asked is not None and asked != self.tenant:
            raise not_found()
        return self.tenant

    def tenant_filter(self, asked: str | None) -> str | None:
        """The tenant a listing is limited to; None is all, which only an admin gets."""
        return asked if self.tenant is None else self.tenant_for(asked)

    def check_sees(self, tenant: str) -> None:
        """Raises not_found unless the caller may see this tenant's records."""
        if self.tenant is not None and self.tenant != tenant:
            raise not_found()

    def check_admin(self) -> None:
        """Raises not_found unless the caller is an admin."""
        if self.tenant is not None:
            raise not_found()


class KeyReader(Protocol):
    """The part of the registry that is used here."""

    async def api_keys(self) -> Sequence[ApiKey]: ...


ANYONE: Final = Caller(None, None)


class KeyRing:
    """All keys in memory by hash, read again every two seconds while requests come.

    `open_on_loopback`: the service listens on loopback only, so that without any key everyone who reaches it may call it.
    Elsewhere no key means no caller, also when the last one is revoked while the service runs.
    """

    def __init__(self, registry: KeyReader, clock: Clock, *, open_on_loopback: bool) -> None:
        self._registry = registry
        self._open_on_loopback = open_on_loopback
        self._monotonic = clock.monotonic
        self._callers: dict[bytes, Caller] = {}
        self._by_id: dict[str, Caller] = {}
        self._read_at = float("-inf")

    @property
    def empty(self) -> bool:
        """There is no key."""
        return not self._callers

    @property
    def open(self) -> bool:
        """Everyone who reaches the service may call it: there is no key, and it listens on loopback only."""
        return not self._callers and self._open_on_loopback

    def with_id(self, key_id: str | None) -> Caller | None:
        """Whoever holds the key of this id; None when there is no such key now."""
        return None if key_id is None else self._by_id.get(key_id)

    def with_text(self, key: str) -> Caller | None:
        """Whoever holds this key; None when it is no key of ours."""
        return self._callers.get(hash_key(key)) if 0 < len(key) <= KEY_CHARS_MAX else None

    async def follow(self) -> None:
        """Read the keys again when that is due. While the store fails, those known go on to count."""
        if self._monotonic() - self._read_at > REFRESH_INTERVAL:
            try:
                await self.refresh()
            except StoreError:
                pass  # what the request needs of the store will say so itself

    async def refresh(self) -> None:
        """Read the keys now: at the start, and after a change."""
        # Set first, so that one of many waiting requests reads and the others go by what is known.
        self._read_at = self._monotonic()
        keys = await self._registry.api_keys()
        self._callers = {key.hash: Caller(key.tenant, key.id) for key in keys}
        self._by_id = {key.id: Caller(key.tenant, key.id) for key in keys}

    async def caller_of(self, headers: Mapping[str, str]) -> Caller:
        """The caller behind a request's headers (names in lower case). Raises `Problem`."""
        await self.follow()
        if self.open:
            check_from_loopback(headers)
            return ANYONE
        credentials = headers.get("authorization", "")
        scheme, _, key = credentials.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not 0 < len(key) <= KEY_CHARS_MAX:
            raise Problem("unauthorized", "send the API key as `Authorization: Bearer gpk_…`")
        # A dictionary by SHA-256: what a timing difference could tell is about the hash, not the key.
        caller = self.with_text(key)
        if caller is None:
            raise Problem("unauthorized", "this API key is unknown or was revoked")
        return caller


def check_from_loopback(headers: Mapping[str, str]) -> None:
    """Refuse what a web page could make a browser on this machine send: a rebound name, or a foreign origin."""
    check_loopback_host(headers)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers["host"]:
        raise _elsewhere()


def check_loopback_host(headers: Mapping[str, str]) -> None:
    """Refuse a rebound name: a page elsewhere whose host name was made to point at this machine."""
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name not in _LOOPBACK_NAMES:
        raise _elsewhere()


def _elsewhere() -> Problem:
    return Problem(
        "host_not_allowed",
        "without API keys, call the service as localhost or 127.0.0.1, or set security.admin_key",
    )


def hash_key(key: str) -> bytes:
    """What is kept of a key: keys are long and random, so a slow hash would add nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def new_key(entropy: Entropy) -> str:
    """A fresh key's text, to be shown once."""
    return KEY_PREFIX + entropy.token(KEY_BYTES).hex()


def key_record(text: str, *, tenant: str | None, name: str, now: int) -> ApiKey:
    """The record of a key; its id is the start of the hash, so that the same key never has two. `now` in UTC microseconds."""
    digest = hash_key(text)
    return ApiKey(id="key_" + digest.hex()[:16], hash=digest, tenant=tenant, name=name, created_at=now)
