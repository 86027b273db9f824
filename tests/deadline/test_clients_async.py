"""Async clients end with the deadline: cases 33, 34, 35 and 44 against httpx, httpx2 and aiohttp, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import trio

import gatepost.deadline.clients.aiohttp as gp_aiohttp
import gatepost.deadline.clients.httpx as gp_httpx
import gatepost.deadline.clients.httpx2 as gp_httpx2
from gatepost.deadline import DeadlineExceeded, deadline
from gatepost.deadline.clients.call import CallExceeded
from gatepost.deadline.tiers import CROSS_REGION, THIRD_PARTY, Tier, timeouts_for
from gatepost.testing.hostile import HostileServer
from tests.deadline.kit import LATE, REFUSING, answering, client_context, hostile, server_context, takes

PATIENT = CROSS_REGION.evolve(connect=1.0, tls=1.0, read=10.0, write=1.0, pool=1.0)

Get = Callable[[str, Tier], Awaitable[tuple[int, bytes]]]


async def get_httpx(url: str, tier: Tier) -> tuple[int, bytes]:
    transport = gp_httpx.AsyncDeadlineTransport(tier, verify=client_context())
    async with httpx.AsyncClient(transport=transport, timeout=None) as client:
        response = await client.get(url)
        return response.status_code, response.content


async def get_httpx2(url: str, tier: Tier) -> tuple[int, bytes]:
    transport = gp_httpx2.AsyncDeadlineTransport(tier, verify=client_context())
    async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
        response = await client.get(url)
        return response.status_code, response.content


async def get_aiohttp(url: str, tier: Tier) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session:
        client = gp_aiohttp.DeadlineClient(session, tier)
        async with client.get(url, ssl=client_context()) as response:
            return response.status, await response.read()


CLIENTS: dict[str, Get] = {"httpx": get_httpx, "httpx2": get_httpx2, "aiohttp": get_aiohttp}
every_client = pytest.mark.parametrize("name", CLIENTS)


@every_client
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("behaviour", ["drip-head", "drip-body", "silence"])
async def test_35_a_drip_ends_at_the_deadline(name: str, behaviour: str, tls: bool) -> None:
    """A plain `with` does not cut the task: the client itself must end in time."""
    context = server_context() if tls else None
    async with HostileServer(behaviour, seconds=0.1, tls_context=context) as server:
        with deadline(0.25), takes(0.2, 0.25 + LATE), pytest.raises(DeadlineExceeded) as caught:
            await CLIENTS[name](server.url, PATIENT)
        assert isinstance(caught.value, CallExceeded)
        await server.wait_disconnected()


@every_client
@pytest.mark.parametrize("behaviour", ["black-hole", "tls-stall"])
async def test_connect_and_handshake_are_of_the_same_total(name: str, behaviour: str) -> None:
    """A host that is dead or dumb costs no more than the deadline."""
    async with HostileServer(behaviour) as server:
        with deadline(0.3), takes(0.25, 0.3 + LATE), pytest.raises(DeadlineExceeded):
            await CLIENTS[name](server.url, PATIENT)


@every_client
async def test_an_async_scope_cuts_the_same_call_and_names_it_once(name: str) -> None:
    """Scope and client end at the same instant; whoever is first, the caller sees DeadlineExceeded."""
    async with HostileServer("drip-body", seconds=0.05) as server:
        with takes(0.25, 0.3 + LATE), pytest.raises(DeadlineExceeded):
            async with deadline(0.3):
                await CLIENTS[name](server.url, PATIENT)


@every_client
async def test_40_a_cancellation_from_outside_is_never_renamed(name: str) -> None:
    """A cancelled request that looks like a timeout would be retried."""
    async with HostileServer("silence") as server:
        with deadline(30.0):
            task = asyncio.get_running_loop().create_task(_coroutine(CLIENTS[name](server.url, PATIENT)))
        while not server.request_count:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@every_client
async def test_good_answers_arrive_and_only_internal_services_are_told(name: str) -> None:
    """What is left goes out to our own, nothing to others."""
    body = b"y" * 200_000
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with HostileServer(answering(raw), tls_context=server_context()) as server:
        with deadline(5.0):
            assert await CLIENTS[name](server.url, PATIENT) == (200, body)
            assert b"\r\nRequest-Timeout: 4.9" in server.requests[-1].head.title()
            assert await CLIENTS[name](server.url, THIRD_PARTY) == (200, body)
            assert b"request-timeout" not in server.requests[-1].head.lower()


async def test_a_redirect_out_of_the_house_takes_no_budget_along() -> None:
    """aiohttp sends the first request's headers to wherever it is redirected; inside the house the rest is told anew."""
    async with HostileServer("ok") as other:
        away = other.url.replace("127.0.0.1", "localhost").encode()
        for target, tells in ((away, False), (other.url.encode(), True)):
            moved = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + target + b"\r\n\r\n"
            async with HostileServer(answering(moved)) as first, aiohttp.ClientSession() as session:
                with deadline(5.0):
                    async with gp_aiohttp.DeadlineClient(session, PATIENT).get(first.url) as response:
                        assert response.status == 200
                assert b"request-timeout" in first.requests[-1].head.lower()
                assert (b"request-timeout" in other.requests[-1].head.lower()) is tells


async def test_middlewares_of_the_session_and_of_the_call_still_run() -> None:
    """Ours comes last, so that it sees what they made of the request."""
    seen: list[str] = []

    async def of_session(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        seen.append("session")
        response: aiohttp.ClientResponse = await handler(request)
        return response

    async def of_call(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        seen.append("call")
        response: aiohttp.ClientResponse = await handler(request)
        return response

    async with HostileServer("ok") as server, aiohttp.ClientSession(middlewares=(of_session,)) as session:
        client = gp_aiohttp.DeadlineClient(session, PATIENT)
        async with client.get(server.url), client.get(server.url, middlewares=(of_call,)):
            assert seen == ["session", "call"]


@every_client
async def test_44_a_refusal_is_a_timeout_and_says_whether_to_retry(name: str) -> None:
    """As for the blocking clients."""
    async with HostileServer(REFUSING) as server:
        for budget, allowed in ((0.9, False), (60.0, True)):
            with deadline(budget), pytest.raises(CallExceeded) as caught:
                await CLIENTS[name](server.url, PATIENT)
            assert (caught.value.stage, caught.value.retry_allowed) == ("admission", allowed)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("httpx", httpx.TimeoutException),
        ("httpx2", httpx2.TimeoutException),
        ("aiohttp", aiohttp.ServerTimeoutError),
    ],
)
async def test_code_that_catches_the_librarys_timeout_keeps_working(name: str, library: type[Exception]) -> None:
    """Adopting the client must not turn handled timeouts into 500s."""
    async with HostileServer("drip-body", seconds=0.05) as server:
        with deadline(0.2), pytest.raises(library) as caught:
            await CLIENTS[name](server.url, PATIENT)
        assert isinstance(caught.value, DeadlineExceeded)


@pytest.mark.parametrize("left", [0.0, -0.1])
async def test_33_aiohttp_never_gets_a_total_that_means_unlimited(left: float) -> None:
    """`ClientTimeout(total=0)` and `total=-1` wait for ever: the remainder of a spent budget must not become one."""
    async with HostileServer("ok") as server, aiohttp.ClientSession() as session:
        with deadline(0.0):
            if left < 0:
                await asyncio.sleep(-left)
            with pytest.raises(DeadlineExceeded):
                timeouts_for(PATIENT)
            with pytest.raises(DeadlineExceeded):
                async with gp_aiohttp.DeadlineClient(session, PATIENT).get(server.url):
                    pass
        assert server.connections == 0


async def test_33_the_bare_library_takes_zero_for_unlimited() -> None:
    """The trap itself: half a second of drip passes a total of 0."""
    async with HostileServer("slow-ok", seconds=0.5) as server, aiohttp.ClientSession() as session:
        for total in (0, -1):
            async with session.get(server.url, timeout=aiohttp.ClientTimeout(total=total)) as response:
                assert response.status == 200


async def test_34_aiohttp_does_not_round_long_limits_up() -> None:
    """5.05 s fired after 5.73 s: everything over `ceil_threshold` waits for a whole second of the loop's clock."""
    loop = asyncio.get_running_loop()
    async with HostileServer("silence") as server, aiohttp.ClientSession() as session:
        # Start where rounding up costs most: just after a whole second of the loop's clock.
        await asyncio.sleep(-loop.time() % 1)
        started = loop.time()
        with deadline(5.05), pytest.raises(DeadlineExceeded):
            async with gp_aiohttp.DeadlineClient(session, PATIENT).get(server.url):
                pass
        assert 5.0 <= loop.time() - started <= 5.05 + LATE


async def test_a_timeout_given_to_aiohttp_by_hand_is_refused() -> None:
    """Two sources of truth for one limit is how totals of 0 come about."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TypeError, match="the tier says it"):
            gp_aiohttp.DeadlineClient(session, PATIENT).get("http://127.0.0.1:1/", timeout=3)


def test_the_transport_works_on_trio() -> None:
    """Its limits are timeouts of single steps, so it needs no asyncio."""

    async def main() -> None:
        with deadline(0.3), pytest.raises(DeadlineExceeded):
            await get_httpx(url, PATIENT)

    with hostile("drip-body", seconds=0.05) as server, takes(0.25, 0.3 + LATE):
        url = server.url
        trio.run(main)
