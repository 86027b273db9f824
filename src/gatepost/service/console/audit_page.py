"""`/console/audit`: who changed what and when, newest first; a tenant sees what concerns it.

It shows the store's audit log as it stands, where every change over API, command line and console is.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.service.api.problems import Problem
from gatepost.service.console.view import ViewDep

PAGE_ROWS = 50

router = APIRouter()


@router.get("/audit")
async def audit_page(view: ViewDep, tenant: str = "", after: str | None = None) -> Response:
    """A page of it."""
    try:
        page = await view.service.store.audit_log(view.access.tenant_filter(tenant.strip()), after, PAGE_ROWS)
    except ValueError:
        raise Problem("invalid_request", "after: leave it out for the first page") from None
    return view.page(
        "audit.html",
        title="Audit log",
        section="audit",
        tenant=tenant,
        entries=page.items,
        after=after,
        next=page.next,
    )
