"""`/console/fleet`: which processes live, what each holds and for how long, what nobody holds, and how late deliveries are. For admins.

It shows what the store knows of all processes, and what the one that answers knows of itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.service.api import fleet
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import PART_LEASE

LEASE_LOW: Final = PART_LEASE / 3
"""Seconds left of a lease that mean missed heartbeats: one in eight seconds renews thirty."""

router = APIRouter()


@router.get("/fleet")
async def fleet_page(view: ViewDep, endpoint: Annotated[str, Query(max_length=64)] = "") -> Response:
    """The page; `endpoint` asks who owns one."""
    return view.page("fleet.html", title="Fleet", section="fleet", **await _fleet(view, endpoint))


@router.get("/fleet/live")
async def fleet_live(view: ViewDep, endpoint: Annotated[str, Query(max_length=64)] = "") -> Response:
    """Its live part."""
    return view.fragment("fleet_live.html", **await _fleet(view, endpoint))


async def _fleet(view: View, endpoint: str) -> dict[str, Any]:
    view.access.check_admin()
    document = await fleet.fleet(view.service, view.access.caller, endpoint.strip() or None)
    statistics = view.service.dispatcher.statistics()
    return {
        "fleet": document,
        "asked": endpoint.strip(),
        "owned": document.get("endpoint"),
        "one": view.service.dispatcher.store.capabilities.parts == 1,
        "lease": PART_LEASE,
        "lease_low": LEASE_LOW,
        "statistics": statistics,
    }
