"""Webhooks in a Django project: a decorator for views, which get a checked message, once for each id.

    @webhook(["whsec_…"], seen=SqliteSeenIds("seen.db"))
    def orders(request: HttpRequest, message: Message) -> HttpResponse: ...

The view runs only for what is to be handled, and only for POST; it needs no CSRF token. An exception in it, or an answer of 400
or above, frees the id, so that the repetition is handled. Asynchronous views may be decorated too. Needs Django.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from gatepost.receive.inbox import Inbox, Received, Secrets

try:
    from django.core.exceptions import RequestDataTooBig
    from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
    from django.views.decorators.csrf import csrf_exempt
except ImportError as error:
    raise ImportError("gatepost.receive.django needs Django: pip install django") from error

View = Callable[..., Any]


class _Failed(Exception):
    """Carries the view's answer out of the block that must free the id."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.response = response


def webhook(secrets: Secrets | Inbox, **options: Any) -> Callable[[View], View]:
    """Decorate a view `(request, message, …)`. `secrets` and `options` are those of `Inbox`, or give an `Inbox` itself.

    Answers 401 with the code of the fault, 405, 413 (also by `DATA_UPLOAD_MAX_MEMORY_SIZE`), 503 with `Retry-After` while
    another request has the same id, and 204 for a repetition.
    """
    if isinstance(secrets, Inbox) and options:
        raise TypeError("options are those of the Inbox: give them where it is made")
    inbox = secrets if isinstance(secrets, Inbox) else Inbox(secrets, **options)

    def decorate(view: View) -> View:
        if inspect.iscoroutinefunction(view):

            @wraps(view)
            async def handle_async(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
                refused, body = _read(request, inbox)
                if refused is not None:
                    return refused
                try:
                    async with inbox.areceive(body, request.headers) as received:
                        if received.message is None:
                            return _response(received)
                        return _passed(await view(request, received.message, *arguments, **named))
                except _Failed as failed:
                    return failed.response

            return _exempt(handle_async)

        @wraps(view)
        def handle(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
            refused, body = _read(request, inbox)
            if refused is not None:
                return refused
            try:
                with inbox.receive(body, request.headers) as received:
                    if received.message is None:
                        return _response(received)
                    return _passed(view(request, received.message, *arguments, **named))
            except _Failed as failed:
                return failed.response

        return _exempt(handle)

    return decorate


def _exempt(view: View) -> View:
    exempted: View = csrf_exempt(view)
    return exempted


def _read(request: HttpRequest, inbox: Inbox) -> tuple[HttpResponse | None, bytes]:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"]), b""
    try:
        return None, request.body
    except RequestDataTooBig:
        return _response(inbox.too_large()), b""


def _passed(response: HttpResponse | None) -> HttpResponse:
    if response is None:
        return HttpResponse(status=204)
    if response.status_code >= 400:
        raise _Failed(response)
    return response


def _response(received: Received) -> HttpResponse:
    text = "" if received.status == 204 else received.code
    return HttpResponse(text, status=received.status, headers=received.headers, content_type="text/plain")
