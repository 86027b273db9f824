"""`/console/dead-letters`: deliveries that were given up; look, export, replay one, purge. Replaying many is `dead_replay`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response, StreamingResponse

from gatepost.delivery.ids import DELIVERY
from gatepost.service.api.context import Service, read_id
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import dead_view
from gatepost.service.console.dead_selection import REASONS, Selection, selection_of
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import DeadFilter, DeadLetter, Page

PAGE_ROWS: Final = 50
LOOKS_MAX: Final = 5
"""A search that finds nothing looks on so often before it asks whether to."""
COUNT_LOOKS: Final = 10
"""Reads of the store to count what matches: a page does not wait for a million that do not."""
PURGE_MAX: Final = 50_000
"""Letters purged by one press: some ten seconds."""
EXPORT_MAX: Final = 10_000
"""Letters of one download; `gatepost dead export` goes on for as many as there are."""
EXPORT_PORTION: Final = 100
CONFIRMATION: Final = "purge"

router = APIRouter()

SelectionDep = Annotated[Selection, Depends(selection_of)]


@router.get("/dead-letters")
async def dead_letters_page(view: ViewDep, selection: SelectionDep, after: str | None = None) -> Response:
    """A page of them, newest first."""
    where = selection.filter(view.access)
    store = view.service.store
    try:
        page = await store.dead_letters(where, after, PAGE_ROWS)
        for _ in range(LOOKS_MAX - 1):
            if page.items or page.next is None:
                break
            page = await store.dead_letters(where, page.next, PAGE_ROWS)
    except ValueError:
        raise Problem("invalid_request", "after: leave it out for the first page") from None
    return view.page(
        "dead_letters.html",
        title="Dead letters",
        section="dead",
        asked=selection,
        reasons=[reason.value for reason in REASONS],
        letters=[dead_view(letter) | {"died": letter.died_at} for letter in page.items],
        after=after,
        next=page.next,
    )


@router.post("/dead-letters/{delivery_id}/replay")
async def replay_one(view: ViewDep, delivery_id: str) -> Response:
    """Deliver one again at once."""
    letter = await view.service.store.dead_letter(read_id(DELIVERY, delivery_id))
    if letter is None:
        raise not_found()
    view.access.check_sees(letter.tenant)
    await view.service.dispatcher.deliveries.replay(delivery_id)
    await view.audit("dead_letter.replay", delivery_id, letter.tenant)
    return view.done("/dead-letters", f"{delivery_id} is delivered again.", **Selection.of_form(view.form).fields)


@router.get("/dead-letters/purge")
async def ask_purge(view: ViewDep, selection: SelectionDep) -> Response:
    """Ask before they are gone for good."""
    return await _ask_purge(view, selection, None)


@router.post("/dead-letters/purge")
async def purge(view: ViewDep) -> Response:
    """Delete them, if the word was written."""
    selection = Selection.of_form(view.form)
    where = _some(selection, view)
    if view.form.get("confirmation", "").strip().lower() != CONFIRMATION:
        return await _ask_purge(view, selection, f"Nothing was purged: write {CONFIRMATION} to confirm.")
    purged = await view.service.dispatcher.dead_letters.purge(where, PURGE_MAX)
    await view.audit("dead_letter.purge", selection.endpoint or "*", where.tenant, str(purged))
    more = " There are more: purge again to go on." if purged == PURGE_MAX else ""
    return view.done("/dead-letters", f"{purged:,} dead letters were purged.{more}", **selection.fields)


@router.get("/dead-letters/export")
async def export(view: ViewDep, selection: SelectionDep) -> Response:
    """Matching letters with their payloads as lines of JSON."""
    where = selection.filter(view.access)
    # The first portion before the answer begins: a filter that the store refuses, or a store that fails, is a page that says so.
    first = await view.service.store.dead_letters(where, None, EXPORT_PORTION)
    headers = {"content-disposition": 'attachment; filename="dead-letters.jsonl"'}
    return StreamingResponse(_lines(view.service, where, first), media_type="application/x-ndjson", headers=headers)


async def _ask_purge(view: View, selection: Selection, problem: str | None) -> Response:
    matching, is_all = await view.service.dispatcher.dead_letters.count(_some(selection, view), looks=COUNT_LOOKS)
    return view.page(
        "dead_purge.html",
        title="Purge dead letters",
        section="dead",
        status=200 if problem is None else 422,
        asked=selection,
        matching=matching,
        is_all=is_all,
        confirmation=CONFIRMATION,
        problem=problem,
    )


def _some(selection: Selection, view: View) -> DeadFilter:
    """Everybody's dead letters are not purged by one press."""
    if view.access.admin and selection.empty:
        raise Problem("invalid_request", "filter first: write a tenant, an endpoint, a type, a reason or a time")
    return selection.filter(view.access)


async def _lines(service: Service, where: DeadFilter, page: Page[DeadLetter]) -> AsyncIterator[str]:
    written = 0
    while True:
        for listed in page.items:
            letter = await service.store.dead_letter(listed.delivery_id)
            if letter is None:
                continue  # replayed or purged between two looks
            try:
                payload = {"payload": letter.body.decode()}
            except UnicodeDecodeError:
                payload = {"payload_hex": letter.body.hex()}
            yield json.dumps(dead_view(letter) | payload) + "\n"
            written += 1
        after = page.next
        if after is None:
            return
        if written >= EXPORT_MAX:
            yield json.dumps({"more": True, "go_on": f"gatepost dead export --after {after}"}) + "\n"
            return
        page = await service.store.dead_letters(where, after, EXPORT_PORTION)
