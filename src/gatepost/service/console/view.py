"""One request to the console: who asks, what they sent, and how a page answers. The only way into it for pages.

`view_of` runs before every page: it finds the session, sends strangers to the login, and lets a POST through only with the token
of its form and by somebody who may change things. What a page shows is the page's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from markupsafe import Markup
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gatepost.delivery.records import Endpoint
from gatepost.service.api.auth import check_loopback_host
from gatepost.service.api.context import Service, owned_endpoint
from gatepost.service.api.problems import Problem
from gatepost.service.console.access import Access, access_of
from gatepost.service.console.kept import Kept
from gatepost.service.console.render import render, url
from gatepost.service.console.session import COOKIE, NOTE_COOKIE, NOTE_SECONDS, PATH, Session, Sessions

FORM_BYTES_MAX: Final = 65_536
"""A form of ours is a few fields."""
FORM_FIELDS_MAX: Final = 200
CSRF_FIELD: Final = "csrf"
_READS: Final = ("GET", "HEAD")


class SignInFirst(Exception):
    """The visitor has no session that counts; the answer is the login."""


class Refused(Exception):
    """The request may not be done, whoever asks; a page says why."""

    def __init__(self, title: str, detail: str, status: int = 403) -> None:
        super().__init__(title)
        self.title = title
        self.detail = detail
        self.status = status


@dataclass(slots=True)
class Visit:
    """A request before anybody is let in: its session, and what goes into the answer's cookies."""

    request: Request
    service: Service
    sessions: Sessions
    session: Session
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields of a POST, the last one of each name."""
    note: str | None = None
    """What the page before asked to be said."""
    new_session: bool = False
    """The cookie must be set."""
    let_in: Access | None = None

    def page(self, template: str, *, title: str, section: str = "", status: int = 200, **context: Any) -> Response:
        """A whole page."""
        response = HTMLResponse(render(template, self._context(title, section, context)), status)
        if self.note is not None:
            response.delete_cookie(NOTE_COOKIE, path=PATH)
        return self._finish(response)

    def redirect(self, path: str, note: str | None = None, **query: object) -> Response:
        """On to another page of the console with GET, which says `note`."""
        response = RedirectResponse(url(path, **query), 303)
        if note is not None:
            self._set(response, NOTE_COOKIE, self.sessions.seal_note(note), NOTE_SECONDS)
        return self._finish(response)

    def begin(self, session: Session) -> None:
        """Another session from this answer on."""
        self.session = session
        self.new_session = True

    def end(self) -> None:
        """The session is over: the next one is nobody's."""
        self.begin(self.sessions.anonymous())
        self.let_in = None

    def _context(self, title: str, section: str, context: Mapping[str, Any]) -> dict[str, Any]:
        token = self.sessions.form_token(self.session)
        return {
            "title": title,
            "section": section,
            "access": self.let_in,
            "csrf": Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, token),
            "said": self.note,
            "now": self.service.clock.wall_us(),
            **context,
        }

    def _finish(self, response: Response) -> Response:
        if self.new_session:
            left = (self.session.expires_at - self.service.clock.wall_us()) // 1_000_000
            self._set(response, COOKIE, self.sessions.seal(self.session), max(1, left))
        return response

    def _set(self, response: Response, name: str, value: str, seconds: int) -> None:
        # Lax, not strict: a link to a page from a chat or an alert should find the session; no cross-site POST gets it.
        response.set_cookie(
            name, value, max_age=seconds, path=PATH, secure=over_tls(self.request), httponly=True, samesite="lax"
        )


@dataclass(slots=True)
class View(Visit):
    """A request of somebody who was let in."""

    @property
    def access(self) -> Access:
        """Who it is, and what they may do."""
        assert self.let_in is not None, "made for somebody who was let in"
        return self.let_in

    @property
    def kept(self) -> Kept:
        """Answers that those who look share for some seconds."""
        kept: Kept = self.request.app.state.kept
        return kept

    def fragment(self, template: str, **context: Any) -> Response:
        """The live part of a page."""
        return self._finish(HTMLResponse(render(template, self._context("", "", context))))

    def done(self, path: str, note: str, **query: object) -> Response:
        """After an action: on to `path`, which says what was done."""
        return self.redirect(path, note, **query)

    async def endpoint(self, endpoint_id: str) -> Endpoint:
        """The endpoint. Raises not-found unless the visitor may see it."""
        return await owned_endpoint(self.service, self.access.caller, endpoint_id)

    async def audit(self, action: str, subject: str, tenant: str | None, detail: str = "") -> None:
        """Record who changed what, after it was changed."""
        await self.service.audit(self.access.caller, action, subject, tenant, detail)


async def visit_of(request: Request) -> Visit:
    """The request with its session, a new one if it has none. Raises `Refused` for a POST that is not of our form."""
    state = request.app.state
    service: Service = state.service
    sessions: Sessions = state.sessions
    await service.keys.follow()
    if service.keys.open:
        # Nobody signs in here, so a page that rebinds its name to loopback must not get in.
        check_loopback_host(request.headers)
    known = sessions.open(request.cookies.get(COOKIE))
    visit = Visit(request, service, sessions, known or sessions.anonymous(), new_session=known is None)
    visit.note = sessions.open_note(request.cookies.get(NOTE_COOKIE))
    request.state.visit = visit
    if request.method not in _READS:
        visit.form = await _form_of(request)
        _check_same_site(request)
        if known is None or not sessions.is_form_token(known, visit.form.get(CSRF_FIELD, "")):
            raise Refused(
                "This form is not valid any more",
                "Its page was loaded before you signed in or out, or too long ago. Go back, reload the page and try again.",
            )
    return visit


VisitDep = Annotated[Visit, Depends(visit_of)]


async def view_of(visit: VisitDep) -> View:
    """The request of somebody who may look. Raises `SignInFirst`, and `Refused` for a POST of a read-only visitor."""
    access = access_of(visit.session, visit.service.keys)
    if access is None:
        raise SignInFirst
    view = View(
        visit.request,
        visit.service,
        visit.sessions,
        visit.session,
        visit.form,
        visit.note,
        visit.new_session,
        access,
    )
    visit.request.state.visit = view
    if visit.request.method not in _READS and not access.may_change:
        raise Refused("You are looking through a portal link", "It shows one tenant's pages and changes nothing.")
    return view


ViewDep = Annotated[View, Depends(view_of)]


async def _form_of(request: Request) -> Mapping[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Problem("invalid_request", "send the form as application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise Problem("payload_too_large", f"a form of the console has at most {FORM_BYTES_MAX} bytes")
    except ClientDisconnect:  # nobody reads the answer, but strangers must not fill the log with tracebacks
        raise Problem("invalid_request", "the form did not arrive whole") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        raise Problem("invalid_request", "the form is not UTF-8, or has too many fields") from None
    return dict(fields)


def _check_same_site(request: Request) -> None:
    """Browsers say where a request comes from; the token counts where one does not."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused("This request came from another site", "Open the console itself and try again.")


def over_tls(request: Request) -> bool:
    """The visitor's own connection is TLS, at us or at the proxy in front. A lie about it only marks the liar's own cookie."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.url.scheme == "https" or forwarded == "https"
