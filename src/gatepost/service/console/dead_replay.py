"""Replaying many dead letters at a rate: asked for on one page, done in portions on the next, which shows how far it is.

Whoever presses the button moves a portion, and the page asks for the next: stopping, or closing it, stops there. What was moved is
delivered at the rate; the rest stays dead. All that a portion needs to know stands in the form, so that any process can do it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.dispatch.operations import REPLAY_RATE, REPLAY_RATE_MAX, REPLAY_RATE_MIN
from gatepost.service.api.problems import Problem
from gatepost.service.console.dead_letters import COUNT_LOOKS, SelectionDep
from gatepost.service.console.dead_selection import Selection, cut_off
from gatepost.service.console.view import View, ViewDep

PORTION: Final = 500
"""Letters in one step: a fraction of a second of the store's time, and a pace at which one can stop."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is. Times are UTC microseconds; 0: it has not begun."""

    rate: float
    moved: int = 0
    began: int = 0
    """When the first letter was due; letters that died later are not part of it."""
    next_due: int = 0
    """When the letter after the last one moved would be due."""
    more: bool = True

    @property
    def fields(self) -> dict[str, str]:
        """For the form of the next step, and for the page's address."""
        return {
            "rate": f"{self.rate:g}",
            "moved": str(self.moved),
            "began": str(self.began),
            "next_due": str(self.next_due),
            "more": str(int(self.more)),
        }


@router.get("/dead-letters/replay")
async def ask_replay(view: ViewDep, selection: SelectionDep) -> Response:
    """How many, and how fast."""
    matching, is_all = await view.service.dispatcher.dead_letters.count(
        selection.filter(view.access), looks=COUNT_LOOKS
    )
    return view.page(
        "dead_replay.html",
        title="Replay dead letters",
        section="dead",
        asked=selection,
        matching=matching,
        is_all=is_all,
        rate=REPLAY_RATE,
        rate_min=REPLAY_RATE_MIN,
        rate_max=REPLAY_RATE_MAX,
    )


@router.post("/dead-letters/replay")
async def replay(view: ViewDep) -> Response:
    """Move the next portion."""
    selection = Selection.of_form(view.form)
    progress = _progress(view.form)
    where = selection.filter(view.access)
    if where.endpoint is not None:
        await view.endpoint(encode_id(ENDPOINT, where.endpoint))
    if progress.began:
        where = cut_off(where, progress.began)
    letters = view.service.dispatcher.dead_letters
    portion = await letters.replay_some(where, progress.rate, not_before=progress.next_due or None, limit=PORTION)
    await view.audit("dead_letter.replay", selection.endpoint or "*", where.tenant, str(portion.moved))
    progress = replace(
        progress,
        moved=progress.moved + portion.moved,
        began=progress.began or portion.died_before,
        next_due=portion.next_due,
        more=portion.more,
    )
    if "part" in view.form:
        return view.fragment("dead_progress.html", **await _shown(view, selection, progress))
    return view.redirect("/dead-letters/replaying", **selection.fields, **progress.fields)


@router.get("/dead-letters/replaying")
async def replaying(view: ViewDep, selection: SelectionDep) -> Response:
    """How far it is, and the button for the next portion, which the script presses."""
    progress = _progress(view.request.query_params)
    shown = await _shown(view, selection, progress)
    return view.page("dead_replaying.html", title="Replaying dead letters", section="dead", **shown)


@router.get("/dead-letters/replaying/live")
async def replaying_live(view: ViewDep, selection: SelectionDep) -> Response:
    """What became of what was moved."""
    shown = await _shown(view, selection, _progress(view.request.query_params))
    return view.fragment("dead_progress.html", **shown)


async def _shown(view: View, selection: Selection, progress: Progress) -> dict[str, Any]:
    where = selection.filter(view.access)
    now = view.service.dispatcher.store_time()
    started = 0
    died, died_is_all = 0, True
    if progress.began:
        # By the plan: one from the beginning on at each step of the rate.
        started = min(progress.moved, max(0, math.floor((now - progress.began) / 1e6 * progress.rate) + 1))
        died, died_is_all = await view.service.dispatcher.dead_letters.count(
            replace(where, died_from=progress.began, died_before=None), looks=COUNT_LOOKS
        )
    waiting = None
    if where.endpoint is not None and await _is_seen(view, where.endpoint):
        backlog = (await view.service.store.backlogs([where.endpoint])).get(where.endpoint)
        waiting = 0 if backlog is None else backlog.depth
    return {
        "asked": selection,
        "progress": progress,
        "started": started,
        "last_due": progress.next_due - round(1e6 / progress.rate) if progress.moved else None,
        "died": died,
        "died_is_all": died_is_all,
        "waiting": waiting,
    }


async def _is_seen(view: View, endpoint: int) -> bool:
    """How much waits behind an endpoint is its tenant's business."""
    found = await view.service.store.endpoint(encode_id(ENDPOINT, endpoint))
    return found is not None and view.access.tenant in (None, found.tenant)


def _progress(given: Mapping[str, str]) -> Progress:
    try:
        progress = Progress(
            rate=float(given.get("rate", REPLAY_RATE)),
            moved=int(given.get("moved", 0)),
            began=int(given.get("began", 0)),
            next_due=int(given.get("next_due", 0)),
            more=given.get("more", "1") == "1",
        )
    except ValueError:
        raise Problem("invalid_request", "rate: write deliveries per second, for example 50") from None
    if not REPLAY_RATE_MIN <= progress.rate <= REPLAY_RATE_MAX:
        limits = f"{REPLAY_RATE_MIN:g} to {REPLAY_RATE_MAX:.0f}"
        raise Problem("invalid_request", f"rate: write deliveries per second, {limits}")
    if min(progress.moved, progress.began, progress.next_due) < 0 or max(progress.began, progress.next_due) >= 1 << 62:
        raise Problem("invalid_request", "this is no replay of ours; begin again")
    return progress
