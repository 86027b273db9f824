"""`/console/endpoints`: every destination, found by id, URL or tenant, with what is wrong with it beside it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.dispatch.endpoint_search import WORD_CHARS_MAX, Shown
from gatepost.service.api.problems import Problem
from gatepost.service.console.view import ViewDep

PAGE_ROWS: Final = 50
DEPTH_SHOWN_MAX: Final = 300
"""Waiting rows counted for each line of the list; where more wait it says so."""
LOOKS_MAX: Final = 5
"""A search that finds nothing looks on so often before it asks whether to."""

router = APIRouter()


@router.get("/endpoints")
async def endpoints_page(
    view: ViewDep,
    q: Annotated[str, Query(max_length=WORD_CHARS_MAX)] = "",
    tenant: str = "",
    state: str = "",
    after: str | None = None,
) -> Response:
    """A page of them, in order of id."""
    dispatcher = view.service.dispatcher
    shown: Shown | None
    match state:
        case "active" | "paused" | "disabled" | "unverified":
            shown = state
        case "":
            shown = None
        case _:
            raise Problem("invalid_request", "state: write active, paused, disabled or unverified")
    owner = view.access.tenant_filter(tenant)
    begin = after
    for _ in range(LOOKS_MAX):
        try:
            page = dispatcher.search.page(owner, q, shown, begin, PAGE_ROWS)
        except ValueError:
            raise Problem("invalid_request", "after: leave it out for the first page") from None
        begin = page.next
        if page.items or begin is None:
            break
    numbers = [listed.number for listed in page.items]
    looks = await dispatcher.looks.of(numbers)
    backlogs = await view.service.store.backlogs(numbers, DEPTH_SHOWN_MAX) if numbers else {}
    return view.page(
        "endpoints.html",
        title="Endpoints",
        section="endpoints",
        asked={"q": q, "tenant": tenant, "state": state},
        rows=[(listed, looks[listed.number].limits, backlogs.get(listed.number)) for listed in page.items],
        after=after,
        next=page.next,
        total=dispatcher.policies.endpoint_count if view.access.admin else None,
        depth_max=DEPTH_SHOWN_MAX,
    )
