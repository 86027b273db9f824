"""What one can do about an endpoint from its page: pause, resume, test, rotate its secret, replay its dead letters.

Each action is a form of the page, done once, recorded, and told on the page that follows. A new secret is shown in the answer to
its form and nowhere else. Pages that only show are in `endpoint_page`.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.dispatch.endpoints import OVERLAP
from gatepost.dispatch.operations import REPLAY_CHUNK, REPLAY_RATE
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.console.filters import duration
from gatepost.service.console.view import ViewDep
from gatepost.store.rows import DeadFilter

REASON_CHARS_MAX: Final = 200
OVERLAPS: Final = ((0.0, "not at all: it leaked"), (3_600.0, "an hour"), (OVERLAP, "a day"), (7 * 86_400.0, "a week"))
"""How long the old secret signs beside the new one, in seconds."""

router = APIRouter()


@router.post("/endpoints/{endpoint_id}/pause")
async def pause_endpoint(view: ViewDep, endpoint_id: str) -> Response:
    """Stop attempts; deliveries wait."""
    endpoint = await view.endpoint(endpoint_id)
    reason = view.form.get("reason", "").strip()[:REASON_CHARS_MAX]
    await view.service.dispatcher.endpoints.pause(endpoint_id, reason or None)
    await view.audit("endpoint.pause", endpoint_id, endpoint.tenant, reason)
    return view.done(f"/endpoints/{endpoint_id}", "Paused. Attempts in flight end; deliveries wait.")


@router.post("/endpoints/{endpoint_id}/resume")
async def resume_endpoint(view: ViewDep, endpoint_id: str) -> Response:
    """Go on."""
    endpoint = await view.endpoint(endpoint_id)
    await view.service.dispatcher.endpoints.resume(endpoint_id)
    await view.audit("endpoint.resume", endpoint_id, endpoint.tenant)
    return view.done(f"/endpoints/{endpoint_id}", "Resumed. What waits is delivered now.")


@router.post("/endpoints/{endpoint_id}/test")
async def send_test_event(view: ViewDep, endpoint_id: str) -> Response:
    """One signed test event now, outside the queue."""
    endpoint = await view.endpoint(endpoint_id)
    attempt = await view.service.dispatcher.endpoints.test(endpoint_id)
    await view.audit("endpoint.test", endpoint_id, endpoint.tenant, attempt.outcome)
    said = f"status {attempt.status}" if attempt.status is not None else f"{attempt.outcome}, {attempt.reason}"
    verdict = "The test event was delivered" if attempt.delivered else "The test event was not delivered"
    where = "" if attempt.delivered else f" in phase {attempt.phase}"
    note = f"{verdict}: {said}{where}, after {duration(attempt.elapsed)}."
    return view.done(f"/endpoints/{endpoint_id}", note.replace("_", " "))


@router.get("/endpoints/{endpoint_id}/rotate")
async def ask_to_rotate(view: ViewDep, endpoint_id: str) -> Response:
    """How long the old secret goes on, before a new one is made."""
    endpoint = await view.endpoint(endpoint_id)
    if not view.access.may_change:
        raise not_found()
    return view.page(
        "rotate.html",
        title="Rotate the secret",
        section="endpoints",
        endpoint=endpoint,
        overlaps=OVERLAPS,
        chosen=OVERLAP,
    )


@router.post("/endpoints/{endpoint_id}/rotate")
async def rotate_secret(view: ViewDep, endpoint_id: str) -> Response:
    """Make a new signing secret, and show it this once."""
    await view.endpoint(endpoint_id)
    asked = view.form.get("overlap", "")
    overlap = next((seconds for seconds, _ in OVERLAPS if asked == f"{seconds:.0f}"), None)
    if overlap is None:
        raise Problem("invalid_request", "overlap: choose how long the old secret signs beside the new one")
    endpoint = await view.service.dispatcher.endpoints.rotate_secret(endpoint_id, overlap=overlap)
    await view.audit("endpoint.rotate_secret", endpoint_id, endpoint.tenant, f"overlap={overlap:.0f}")
    return view.page(
        "rotated.html",
        title="The new secret",
        section="endpoints",
        endpoint=endpoint,
        secret=endpoint.secrets[0].secret.reveal(),
        overlap=overlap,
    )


@router.post("/endpoints/{endpoint_id}/replay")
async def replay_dead_letters(view: ViewDep, endpoint_id: str) -> Response:
    """Put the oldest of its dead letters back into the queue, a bounded number."""
    endpoint = await view.endpoint(endpoint_id)
    where = DeadFilter(endpoint=endpoint.number)
    portion = await view.service.dispatcher.dead_letters.replay_some(where, REPLAY_RATE, limit=REPLAY_CHUNK)
    await view.audit("dead_letter.replay", endpoint_id, endpoint.tenant, str(portion.moved))
    more = " There are more: Dead letters has all of them." if portion.more else ""
    note = f"{portion.moved} dead letters wait again, {REPLAY_RATE:.0f} a second.{more}"
    return view.done(f"/endpoints/{endpoint_id}", note)
