"""The page of the HTTP API: every route and every problem code, from the OpenAPI document. Used by `docs.build_reference`."""

from __future__ import annotations

from typing import Any

from docs.tables import generated_note, table
from gatepost.service.api.app import openapi_document
from gatepost.service.api.problems import CODES


def render_api() -> str:
    """`api.md`."""
    parts = [
        "# HTTP API",
        generated_note(),
        "JSON in, JSON out; the whole contract is served at `/openapi.json`. With API keys, send one as "
        "`Authorization: Bearer gpk_…`; without any key the service listens on loopback only and refuses requests that a web "
        "page could have caused. A tenant's key sees that tenant's records; another tenant's are answered as if they were not "
        "there. Ids are opaque, times RFC 3339 in UTC, durations seconds. Listings have `items` and `next`: pass it as "
        "`after`; null means there is no more. `POST /v1/events` delivers the payload's bytes exactly as they stand in the "
        "request, and answers once the event is on disk.",
        "## Routes",
        table(
            ("route", "what it does"),
            [
                (f"`{method.upper()} {path}`", _summary(operation))
                for path, item in openapi_document()["paths"].items()
                for method, operation in item.items()
            ],
        ),
        "## Problems",
        "Errors are `application/problem+json` (RFC 9457) with a stable `code`; act on the code, show `detail` to people. 429 "
        "and 503 say in `Retry-After` when to come back.",
        table(
            ("code", "status", "meaning"), [(f"`{code}`", str(status), text) for code, (status, text) in CODES.items()]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(operation: dict[str, Any]) -> str:
    text = str(operation.get("description") or operation["summary"]).split("\n\n")[0]
    return " ".join(text.split())
