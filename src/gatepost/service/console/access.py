"""Who is looking at the console: an admin, or one tenant, perhaps read only. Decides from a session and the API keys of now.

A tenant sees its own things; others' are answered exactly like missing ones. Called by `view` for every page; it reads no store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from gatepost.service.api.auth import ANYONE, Caller, KeyRing
from gatepost.service.console.session import Kind, Session


@dataclass(frozen=True, slots=True)
class Access:
    """What the visitor may see and do."""

    caller: Caller
    may_change: bool
    """False: a portal link, which only looks."""
    signed_in: bool
    """False: the service has no API keys and listens on loopback only."""
    until: int | None = None
    """When it ends, in UTC microseconds; None: it does not."""

    @property
    def admin(self) -> bool:
        """The visitor sees every tenant."""
        return self.caller.tenant is None

    @property
    def tenant(self) -> str | None:
        """The only tenant the visitor sees; None: all."""
        return self.caller.tenant

    def tenant_filter(self, asked: str | None) -> str | None:
        """The tenant a listing is limited to, None for all. Raises not-found for somebody else's."""
        return self.caller.tenant_filter(asked or None)

    def check_sees(self, tenant: str) -> None:
        """Raises not-found unless the visitor may see this tenant's things."""
        self.caller.check_sees(tenant)

    def check_admin(self) -> None:
        """Raises not-found unless the visitor is an admin."""
        self.caller.check_admin()


def access_of(session: Session, keys: KeyRing) -> Access | None:
    """What this session may do by the keys there are now; None: nothing, sign in first."""
    match session.kind:
        case Kind.ANONYMOUS:
            return Access(ANYONE, may_change=True, signed_in=False) if keys.open else None
        case Kind.KEY:
            caller = keys.with_id(session.key_id)
            return None if caller is None else Access(caller, may_change=True, signed_in=True, until=session.expires_at)
        case Kind.PORTAL:
            maker = keys.with_id(session.key_id)
            # A key that saw the tenant when it made the link, and still does.
            if maker is None or session.tenant is None or maker.tenant not in (None, session.tenant):
                return None
            visitor = Caller(session.tenant, session.key_id)
            return Access(visitor, may_change=False, signed_in=True, until=session.expires_at)
        case _ as never:
            assert_never(never)
