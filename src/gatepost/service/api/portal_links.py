"""`/v1/tenants/{tenant}/portal-links`: links to one tenant's pages of the console, read only, for some hours.

A link is a signature and nothing is stored: it ends at its time, and with the API key that made it. Whoever wants to take back the
links of one purpose makes them with a key of their own and revokes that.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from gatepost.service.api.context import CallerDep, ServiceDep
from gatepost.service.api.models import Body
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import time_text
from gatepost.service.console.render import url
from gatepost.service.console.session import LINK_SECONDS, LINK_SECONDS_MAX, Sessions
from gatepost.service.console.view import over_tls

router = APIRouter(prefix="/v1/tenants", tags=["tenants"])


class NewPortalLink(Body):
    """How long the link works."""

    expires_in: float = Field(
        LINK_SECONDS, ge=1.0, le=LINK_SECONDS_MAX, allow_inf_nan=False, description="Seconds; a week at most."
    )


@router.post("/{tenant}/portal-links", status_code=201)
async def create_portal_link(
    request: Request, service: ServiceDep, caller: CallerDep, tenant: str, body: NewPortalLink
) -> dict[str, Any]:
    """A link that opens this tenant's pages of the console, read only, until it ends or the API key that made it is revoked."""
    caller.check_sees(tenant)
    if caller.key_id is None:
        raise Problem("conflict", "make an admin key first: without keys the console is open to whoever reaches it")
    if await service.store.tenant(tenant) is None:
        raise not_found()
    sessions = Sessions(service.signing_keys, service.clock, service.entropy)
    token, expires_at = sessions.portal_link(tenant, caller.key_id, body.expires_in)
    await service.audit(caller, "portal_link.create", tenant, tenant, f"until {time_text(expires_at)}")
    path = url("/portal", token=token)
    scheme = "https" if over_tls(request) else "http"
    return {
        "tenant": tenant,
        "url": f"{scheme}://{request.headers.get('host', request.url.netloc)}{path}",
        "path": path,
        "expires_at": time_text(expires_at),
        "revoked_with": caller.key_id,
    }
