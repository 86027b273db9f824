"""Every path of the console that is none: a page that says so, for whoever is signed in. Strangers are sent to the login, as from
any page."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.service.api.problems import not_found
from gatepost.service.console.view import ViewDep

router = APIRouter()


@router.get("/{path:path}")
async def missing(view: ViewDep, path: str) -> Response:
    """There is no such page."""
    raise not_found()
