"""Talks to a running service for the commands that need one: standard library HTTP, one connection, JSON both ways.

A problem the service answers with becomes a message and an exit code; it retries nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from gatepost.service.cli.output import NOT, USAGE, fail

DEFAULT_URL: Final = "http://127.0.0.1:8080"
CALL_TIMEOUT: Final = 30.0
"""Seconds for one call: a batch that waits for a busy store included."""

UrlOption = Annotated[str, typer.Option("--url", envvar="GATEPOST_URL", help="Where the service runs.")]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="GATEPOST_API_KEY", help="API key; better set in the environment.", show_envvar=True
    ),
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Tenant to act for.")]


@dataclass(slots=True)
class Answer:
    """A problem document from the service."""

    status: int
    document: Any


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nobody answered."""

    why: str


class ApiClient:
    """Calls the API at `url`. Ends the command with a message when the service is not there or refuses.

    A command makes one call or a few: each has its own connection, and nothing needs closing. `keep_alive` is for those that
    make many, and close.
    """

    def __init__(self, url: str, key: str | None, *, keep_alive: bool = False, timeout: float = CALL_TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            fail(f"--url {url!r}: write for example {DEFAULT_URL}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._prefix = parts.path.rstrip("/")
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._headers = {"accept": "application/json"} | ({} if keep_alive else {"connection": "close"})
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The service's answer, whatever its status. `body`: a value to be sent as JSON, or bytes of JSON as they are."""
        kept = {name: str(value) for name, value in (query or {}).items() if value is not None}
        target = path + ("?" + urlencode(kept) if kept else "")
        sent = dict(headers or {})
        data: bytes | None = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["content-type"] = "application/json"
        status, raw = self._exchange(method, target, data, sent)
        try:
            document = json.loads(raw) if raw else None
        except ValueError:
            fail(f"{self._url} answered {status} with something that is not JSON; is it Gatepost?", NOT)
        return Answer(status, document)

    def look(self, path: str, query: Mapping[str, object] | None = None) -> Answer | Unreachable:
        """The answer to a GET, or why there is none: for who can do something without a service."""
        target = path + ("?" + urlencode(query) if query else "")
        try:
            status, raw = self._send("GET", target, None, {})
        except (OSError, http.client.HTTPException) as error:
            return Unreachable(str(error) or type(error).__name__)
        try:
            return Answer(status, json.loads(raw) if raw else None)
        except ValueError:
            return Unreachable(f"it answered {status} with something that is not JSON; is it Gatepost?")

    def text(self, path: str) -> str:
        """A page that is not JSON, such as the metrics."""
        status, raw = self._exchange("GET", path, None, {"accept": "text/plain"})
        if status != 200:
            fail(f"{self._url}{path} answered {status}", NOT)
        return raw.decode()

    def _exchange(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            return self._send(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            fail(f"no service at {self._url} ({error}); start it with `gatepost serve`, or set GATEPOST_URL", NOT)

    def _send(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self._connection.request(method, self._prefix + target, data, {**self._headers, **headers})
        response = self._connection.getresponse()
        return response.status, response.read()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's document; a problem ends the command."""
        answer = self.ask(method, path, body, query, headers)
        if answer.status >= 400:
            refuse(answer)
        return answer.document

    def pages(self, path: str, query: Mapping[str, object], limit: int) -> Iterator[dict[str, Any]]:
        """Items of a listing, over as many pages as `limit` needs."""
        after: str | None = None
        left = limit
        while left > 0:
            page = self.call("GET", path, query={**query, "after": after, "limit": min(left, 100)})
            yield from page["items"]
            left -= len(page["items"])
            after = page["next"]
            if after is None:
                return


def refuse(answer: Answer) -> None:
    """End the command with the problem's text: 2 when the request must change, 1 when the time or the state must."""
    document = answer.document if isinstance(answer.document, dict) else {}
    code = document.get("code", answer.status)
    detail = document.get("detail", "no detail")
    wrong_request = answer.status in (400, 401, 405, 413, 421, 422)
    fail(f"{code}: {detail}", USAGE if wrong_request else NOT)


def segment(text: str) -> str:
    """An id as one path segment."""
    return quote(text, safe="")
