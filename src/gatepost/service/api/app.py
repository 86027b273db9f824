"""Puts the API together: routers, error answers, the OpenAPI document, and the hot routes in front.

No CORS, no cookies, no interactive pages from other hosts: the API is for programs, and its document is at `/openapi.json`.
The console for people is an application of its own, mounted at `/console`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from gatepost.deadline import DeadlinePolicy
from gatepost.deadline.asgi import DeadlineMiddleware
from gatepost.errors import GatepostError
from gatepost.service.api import (
    dead_letters,
    deliveries,
    doctor,
    endpoints,
    event_types,
    fleet,
    health,
    ingest,
    policies,
    policy_pages,
    portal_links,
    tenants,
)
from gatepost.service.api.bounded_body import BODY_BYTES_MAX, BoundedBody
from gatepost.service.api.context import Service
from gatepost.service.api.problems import CODES, MEDIA_TYPE, Problem, problem_of
from gatepost.service.console.app import create_console
from gatepost.service.console.session import PATH as CONSOLE

log = logging.getLogger("gatepost.api")

_TITLE = "Gatepost"
_DESCRIPTION = (
    "Publish events, manage endpoints, look into deliveries. Errors are problem+json (RFC 9457) with a stable `code`."
)


INGEST_DEADLINES: Final = DeadlinePolicy(default=60.0)
"""Of publishing, the only calls that a caller's deadline may cut: they are stored whole or not at all. A caller who says
nothing has time to upload a batch over a slow line; the store answers within `publish_timeout` in any case."""


ROUTED: Final = (
    endpoints,
    event_types,
    deliveries,
    dead_letters,
    tenants,
    portal_links,
    policies,
    policy_pages,
    fleet,
    doctor,
    health,
)


def create_api(service: Service) -> ingest.App:
    """The ASGI application over `service`."""
    app = _serving(_framework(), service)
    app.add_route(CONSOLE, _to_console, include_in_schema=False)
    app.mount(CONSOLE, create_console(service))
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_document(app))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the document
    api = ingest.Ingest(service, app)
    bounded = DeadlineMiddleware(api, INGEST_DEADLINES, clock=service.clock)

    async def route(scope: ingest.Message, receive: ingest.Receive, send: ingest.Send) -> None:
        publishes = scope["type"] == "http" and scope["path"] in ingest.PATHS
        await (bounded if publishes else api)(scope, receive, send)

    return route


def create_pages(service: Service) -> FastAPI:
    """What one process of several says about itself on its own port: health, metrics and the fleet's status."""
    app = _serving(_framework((fleet, doctor, policy_pages, health)), service)
    app.state.own_pages = True
    return app


def _serving(app: FastAPI, service: Service) -> FastAPI:
    app.state.service = service
    app.state.own_pages = False
    app.add_middleware(BoundedBody)
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(GatepostError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_fault)
    return app


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document, without a service to serve it: for the reference pages and client generators."""
    return _document(_framework())


def _framework(modules: Sequence[Any] = ROUTED) -> FastAPI:
    app = FastAPI(title=_TITLE, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    for module in modules:
        app.include_router(module.router)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    from importlib.metadata import version

    document = get_openapi(title=_TITLE, version=version("gatepost"), description=_DESCRIPTION, routes=app.routes)
    document["paths"] = {**ingest.PATHS, **document["paths"]}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": list(CODES)},
            "detail": {"type": "string"},
        },
    }
    # The framework documents its own form of a validation error, which we never send.
    for path in document["paths"].values():
        for operation in path.values():
            answers = operation["responses"]
            if "422" in answers and MEDIA_TYPE not in answers["422"].get("content", {}):
                answers["422"] = {
                    "description": "A problem with a stable `code`.",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document


def _respond(problem: Problem) -> Response:
    body, headers = problem.encode()
    response = Response(body, problem.status)
    response.raw_headers = headers
    return response


async def _to_console(_: Request) -> Response:
    return RedirectResponse(f"{CONSOLE}/", 308)


async def _answer_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _respond(error)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatepostError)
    problem = problem_of(error)
    if problem.code == "internal_error":
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _respond(problem)


async def _answer_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes) and "json" not in request.headers.get("content-type", ""):
        return _respond(Problem("invalid_request", "send the body with the header `Content-Type: application/json`"))
    if any(fault["type"] == "json_invalid" for fault in error.errors()):
        return _respond(Problem("invalid_json", "the body is not JSON"))
    faults = [
        {"field": ".".join(str(part) for part in fault["loc"][1:]) or "body", "message": fault["msg"]}
        for fault in error.errors()
    ]
    detail = "; ".join(f"{fault['field']}: {fault['message']}" for fault in faults)
    return _respond(Problem("invalid_request", detail, {"errors": faults}))


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _respond(Problem("method_not_allowed", "this path takes other methods; see /openapi.json"))
    if error.status_code == 413:
        return _respond(Problem("payload_too_large", f"the body has more than {BODY_BYTES_MAX} bytes"))
    if error.status_code == 404:
        return _respond(Problem("not_found", "no such path; see /openapi.json"))
    return _respond(Problem("invalid_json", str(error.detail)))


async def _answer_fault(_: Request, __: Exception) -> Response:
    # The framework raises it again after this answer, and the server logs it with its traceback.
    return _respond(Problem("internal_error", "see the log"))
