"""`/console/fleet`: which processes live, what each holds and for how long, what nobody holds, and how late deliveries are. For admins.

It shows what the store knows of all processes, what those of this machine say of themselves, and more of the one that answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.service.api import fleet
from gatepost.service.api.context import Service
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import PART_LEASE

LEASE_LOW: Final = PART_LEASE / 3
"""Seconds left of a lease that mean missed heartbeats: one in eight seconds renews thirty."""

QUESTION: Final = "console.fleet"
"""What siblings are asked."""

router = APIRouter()


def answer_siblings(service: Service) -> None:
    """Tell the other processes of this machine how this one is doing when they ask."""

    async def answer(_: Any) -> dict[str, Any]:
        return own_look(service)

    service.siblings.answer(QUESTION, answer)


def own_look(service: Service) -> dict[str, Any]:
    """How this process is doing, which the store does not know."""
    statistics = service.dispatcher.statistics()
    return {
        "node": statistics.node,
        "late_by": service.dispatcher.lag_seconds(),
        "in_flight": statistics.scheduler.in_flight,
        "loop_lag": statistics.loop_lag_p99,
        "results_waiting": statistics.results_waiting,
    }


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
    heard = await view.service.siblings.ask(QUESTION)
    looks = [own_look(view.service), *heard.answers.values()]
    return {
        "fleet": document,
        "looks": {look["node"]: look for look in looks},
        "missing": len(heard.missing),
        "asked": endpoint.strip(),
        "owned": document.get("endpoint"),
        "one": view.service.dispatcher.store.capabilities.parts == 1,
        "lease": PART_LEASE,
        "lease_low": LEASE_LOW,
        "statistics": statistics,
    }
