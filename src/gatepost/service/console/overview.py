"""`/console/`: is it well, and who is not. The figures of now, refreshed while one looks."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.service.console.view import View, ViewDep

router = APIRouter()


@router.get("/")
async def overview(view: ViewDep) -> Response:
    """The page."""
    return view.page("overview.html", title="Overview", section="overview", **await _figures(view))


@router.get("/overview/live")
async def overview_live(view: ViewDep) -> Response:
    """Its live part."""
    return view.fragment("overview_live.html", **await _figures(view))


async def _figures(view: View) -> dict[str, Any]:
    return {"statistics": view.service.dispatcher.statistics()}
