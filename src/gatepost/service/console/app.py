"""Puts the console together: its pages, all guarded, its error pages, its static files, and the headers of every answer.

Mounted at `/console` by `service.api.app`. It has no routes in the API's document: pages are for people.
"""

from __future__ import annotations

import logging
from typing import Final

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from gatepost.errors import GatepostError
from gatepost.service.api.context import Service
from gatepost.service.api.problems import CODES, Problem, problem_of
from gatepost.service.console import (
    audit_page,
    dead_letters,
    dead_replay,
    deliveries,
    delivery_page,
    endpoint_actions,
    endpoint_page,
    endpoints,
    fleet_page,
    missing,
    overview,
    policy_page,
    signin,
    static,
)
from gatepost.service.console.headers import SafeHeaders
from gatepost.service.console.kept import Kept
from gatepost.service.console.render import url
from gatepost.service.console.session import Sessions
from gatepost.service.console.signin import path_within
from gatepost.service.console.view import Refused, SignInFirst, Visit, view_of

log = logging.getLogger("gatepost.console")

PAGES: Final = (
    overview,
    endpoints,
    endpoint_page,
    endpoint_actions,
    deliveries,
    delivery_page,
    dead_replay,
    dead_letters,
    policy_page,
    fleet_page,
    audit_page,
)
"""Modules with a `router` whose every route needs a session."""
OPEN: Final = (signin, static)
"""Those that strangers reach."""
TITLES: Final = {
    "not_found": "There is no such page",
    "unauthorized": "Sign in first",
    "conflict": "That is not possible now",
    "host_not_allowed": "Use another address",
    "store_failing": "The store does not answer",
    "internal_error": "Something went wrong here",
    "method_not_allowed": "That is not possible",
}


def create_console(service: Service) -> ASGIApp:
    """The ASGI application of the console over `service`, which then also answers its siblings' consoles."""
    overview.answer_siblings(service)
    fleet_page.answer_siblings(service)
    return SafeHeaders(console_framework(service))


def console_framework(service: Service) -> FastAPI:
    """The application without its headers: for the mounted console, and for tests that walk its routes."""
    app = FastAPI(title="Gatepost console", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.kept = Kept(service.clock)
    app.state.sessions = Sessions(service.signing_keys, service.clock, service.entropy)
    for module in OPEN:
        app.include_router(module.router)
    for module in (*PAGES, missing):  # which takes every other path, so it is last
        app.include_router(module.router, dependencies=[Depends(view_of)])
    app.add_exception_handler(SignInFirst, _sign_in)
    app.add_exception_handler(Refused, _refuse)
    app.add_exception_handler(Problem, _explain)
    app.add_exception_handler(GatepostError, _explain_error)
    app.add_exception_handler(RequestValidationError, _explain_query)
    app.add_exception_handler(HTTPException, _explain_http)
    app.add_exception_handler(Exception, _explain_fault)
    return app


async def _sign_in(request: Request, _: Exception) -> Response:
    if request.method == "GET":
        return RedirectResponse(url("/login", next=path_within(request.url.path, request.url.query)), 303)
    return RedirectResponse(url("/login"), 303)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _page(request, error.status, error.title, error.detail)


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    detail = "It does not exist, or you may not see it." if error.code == "not_found" else error.detail
    return _page(request, error.status, TITLES.get(error.code, CODES[error.code][1].rstrip(".")), detail)


async def _explain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatepostError)
    problem = problem_of(error)
    if problem.code == "internal_error":
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _explain(request, problem)


async def _explain_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
    return await _explain(request, Problem("invalid_request", faults))


async def _explain_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _explain(
        request, Problem("method_not_allowed" if error.status_code == 405 else "not_found", "no such page")
    )


async def _explain_fault(request: Request, _: Exception) -> Response:
    # The framework raises it again after this answer, and the server logs it with its traceback.
    return _page(request, 500, TITLES["internal_error"], "The log of the service has more.")


def _page(request: Request, status: int, title: str, detail: str) -> Response:
    visit = getattr(request.state, "visit", None)
    if isinstance(visit, Visit):
        return visit.page("error.html", title=title, status=status, detail=detail)
    # Nothing is known of the visitor: the path does not exist, or the host is not ours.
    return Response(f"{title}: {detail}\n", status, media_type="text/plain; charset=utf-8")
