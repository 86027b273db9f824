"""Somebody at the console without a browser: cookies, the token of a form, and posts, over plain HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from gatepost.service.console.session import COOKIE
from tests.service.running import PATIENCE

_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


class Visitor:
    """One cookie jar."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """A page; `path` below `/console`."""
        return await self.client.get(f"/console{path}", headers={k.replace("_", "-"): v for k, v in headers.items()})

    async def token(self) -> str:
        """What every form of this session carries."""
        page = await self.client.get("/console/login", follow_redirects=True)
        found = _TOKEN.search(page.text)
        if found is None:  # nobody signs in or out of a service without keys
            page = await self.client.get("/console/policy")
            found = _TOKEN.search(page.text)
        assert found is not None, page.text
        return found[1]

    async def post(
        self, path: str, form: Mapping[str, str] | None = None, *, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """Send a form, with this session's token unless another is given."""
        fields = {**(form or {}), "csrf": await self.token() if token is None else token}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(f"/console{path}", data=fields, headers=sent)

    async def sign_in(self, key: str) -> None:
        """With an API key."""
        answer = await self.post("/login", {"key": key})
        assert answer.status_code == 303, answer.text

    @property
    def cookie(self) -> str:
        """The session's cookie."""
        return self.client.cookies[COOKIE]


@asynccontextmanager
async def visiting(url: str, key: str | None = None) -> AsyncIterator[Visitor]:
    """A visitor, signed in when a key is given."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        visitor = Visitor(client)
        if key is not None:
            await visitor.sign_in(key)
        yield visitor
