"""Signing in with an API key, following a portal link, signing out. Each begins a session with a new id.

A wrong key is told apart from nothing: unknown, revoked and malformed get the same words. Keys are long and random, so attempts
are not counted. These pages are the only ones that strangers reach.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.service.console.access import access_of
from gatepost.service.console.session import PATH, Kind
from gatepost.service.console.view import Visit, VisitDep

KEY_FIELD: Final = "key"
NEXT_CHARS_MAX: Final = 1_024
_NEXT: Final = re.compile(r"/(?!/)[A-Za-z0-9_\-./?=&%:+,~@]*")
"""A path of ours: neither another host's (`//host`) nor one that a browser would read as such."""

router = APIRouter()


@router.get("/login")
async def login(visit: VisitDep, wanted: Annotated[str, Query(alias="next")] = "/") -> Response:
    """The form."""
    if access_of(visit.session, visit.service.keys) is not None:
        return visit.redirect(_own_path(wanted))
    return _form(visit, wanted)


@router.post("/login")
async def log_in(visit: VisitDep) -> Response:
    """Begin a session for whoever knows a key."""
    wanted = visit.form.get("next", "/")
    caller = visit.service.keys.with_text(visit.form.get(KEY_FIELD, "").strip())
    if caller is None or caller.key_id is None:
        return _form(visit, wanted, problem="This API key is unknown or was revoked.")
    visit.begin(visit.sessions.signed_in(caller.key_id))
    await visit.service.audit(caller, "console.sign_in", caller.key_id, caller.tenant)
    return visit.redirect(_own_path(wanted))


@router.post("/logout")
async def log_out(visit: VisitDep) -> Response:
    """End it in this browser."""
    visit.end()
    return visit.redirect("/login", "You are signed out.")


@router.get("/portal")
async def portal(visit: VisitDep, token: Annotated[str, Query()] = "") -> Response:
    """Begin a read-only session for one tenant. It works until the link ends or the key that made it is revoked."""
    link = visit.sessions.open_link(token)
    session = None if link is None else visit.sessions.visiting(link)
    if session is None or access_of(session, visit.service.keys) is None:
        return visit.page(
            "error.html",
            title="This link is not valid any more",
            status=410,
            detail="Portal links end after some time, and can be taken back. Ask whoever gave it to you for a new one.",
        )
    if visit.session.kind is Kind.KEY and access_of(visit.session, visit.service.keys) is not None:
        return visit.page(
            "error.html",
            title="You are signed in",
            status=409,
            detail="A portal link would replace your session by its own. Sign out first, or open it in a private window.",
        )
    visit.begin(session)
    return visit.redirect("/")


def path_within(path: str, query: str) -> str:
    """What `next` holds for a request: its path below the console, with its query."""
    inner = path.removeprefix(PATH) or "/"
    return f"{inner}?{query}" if query else inner


def _own_path(wanted: str) -> str:
    return wanted if len(wanted) <= NEXT_CHARS_MAX and _NEXT.fullmatch(wanted) else "/"


def _form(visit: Visit, wanted: str, problem: str | None = None) -> Response:
    return visit.page(
        "login.html",
        title="Sign in",
        status=200 if problem is None else 403,
        next=_own_path(wanted),
        problem=problem,
    )
