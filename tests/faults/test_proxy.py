"""Fault cases of class proxy: only an explicit proxy counts, its failures are its own, its credentials go to nobody else."""

from __future__ import annotations

import asyncio
import base64

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.net.proxy import ProxyConfig
from gatepost.testing.hostile import Behaviour, HostileServer, Peer
from gatepost.wire.headers import HeaderRefused
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PROXY_REASONS, Reason
from tests.faults.kit import PATIENT, closed_port, head
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    assert_nothing_held,
    limits,
    same_descriptors,
)
from tests.hostile.test_proxy import OnlyTheProxy, proxy_running

REFUSALS: list[tuple[str, bytes | None, Reason]] = [
    ("407", head("Proxy-Authenticate: Basic", "Content-Length: 0", status="407 X"), Reason.PROXY_AUTH_REQUIRED),
    ("403", head("Content-Length: 6", status="403 X") + b"denied", Reason.PROXY_REFUSED),
    ("502", head("Content-Length: 0", status="502 X"), Reason.PROXY_UPSTREAM_FAILED),
    ("503-retry-after", head("Retry-After: 9", "Content-Length: 0", status="503 X"), Reason.PROXY_UPSTREAM_FAILED),
    ("500", head("Content-Length: 0", status="500 X"), Reason.PROXY_FAILED),
    ("302", head("Location: /login", "Content-Length: 0", status="302 X"), Reason.PROXY_FAILED),
    ("101", head("Upgrade: x", status="101 X"), Reason.PROXY_PROTOCOL_ERROR),
    ("garbage", b"SSH-2.0-x\r\n\r\n", Reason.PROXY_PROTOCOL_ERROR),
    ("half-a-head", b"HTTP/1.1 200 Conn", Reason.PROXY_CLOSED),
    ("end", b"", Reason.PROXY_CLOSED),
    ("silence", None, Reason.PROXY_TIMEOUT),
]
"""A name, what the proxy answers to CONNECT (None: nothing, for ever), and the reason."""


def answers_connect(raw: bytes | None, *, hold: bool = False) -> Behaviour:
    """A proxy that answers every CONNECT with `raw` and closes, or stays open with `hold`."""

    async def run(peer: Peer, seconds: float) -> None:
        request = await peer.read_request_head()
        assert request.head.startswith(b"CONNECT "), request
        if raw is None:
            await peer.drain()
        else:
            await peer.send(raw)
            if hold:
                await peer.drain()
            await peer.fin()

    return Behaviour("proxy", "answers CONNECT", "proxy_*", run)


@pytest.mark.parametrize("upper", [True, False])
async def test_proxy_01_the_environment_names_no_proxy(upper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spelling points at a canary that must see nothing."""
    async with HostileServer("ok") as canary, HostileServer("ok") as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
            monkeypatch.setenv(name.upper() if upper else name, canary.url)
        monkeypatch.setenv("NO_PROXY", "")
        async with DispatchClient(limits(), egress=LOOPBACK) as client:
            assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        assert canary.connections == 0
        assert server.connections == 1


@pytest.mark.parametrize(("raw", "reason"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxy_03_a_refused_tunnel_is_ours_and_safe(scheme: str, raw: bytes | None, reason: Reason) -> None:
    """Who failed is the proxy, not the endpoint: it is neither charged nor its breaker told, and nothing was sent to it."""
    with same_descriptors():
        async with (
            HostileServer(answers_connect(raw)) as proxy,
            DispatchClient(
                limits(connect_timeout=0.2, read_timeout=1.0),
                egress=LOOPBACK,
                resolver=OnlyTheProxy(),
                proxy=ProxyConfig(f"http://proxy.internal:{proxy.port}"),
            ) as client,
        ):
            attempt = await client.deliver(f"{scheme}://hook.example.com:8443/", SMALL, IDENTITY)
            assert (attempt.outcome, attempt.reason) == (Outcome.TRANSPORT_ERROR, reason), attempt
            assert (attempt.blame, attempt.retry_safety) == (Blame.US, RetrySafety.SAFE)
            assert attempt.reason in PROXY_REASONS
            assert (attempt.bytes_sent, attempt.status) == (0, None)
            assert attempt.elapsed < 1.2
            assert_nothing_held(client)
            await proxy.wait_disconnected()


async def test_proxy_03_a_length_on_a_2xx_is_ignored_and_an_end_behind_it_is_safe() -> None:
    """RFC 9110 section 9.3.6: such an answer has no body. An end behind the open tunnel may be the receiver's or the proxy's:
    it is told as the receiver's (`tls_connection_closed`), which the case would tell as the proxy's; safe either way.
    """
    certificates = Certificates.make()
    async with (
        proxy_running() as proxy,
        HostileServer("ok", tls_context=certificates.server("hook.example.com")) as server,
    ):
        async with DispatchClient(
            limits(**PATIENT),
            egress=LOOPBACK,
            resolver=OnlyTheProxy(),
            proxy=ProxyConfig(f"http://127.0.0.1:{proxy.port}"),
        ) as client:
            url = f"https://hook.example.com:{server.port}/"
            attempt = await client.deliver(url, SMALL, IDENTITY, tls=certificates.profile)
            assert (attempt.delivered, attempt.body) == (True, b"ok")
        assert b"Content-Length" not in proxy.heads[0]
    async with (
        HostileServer(answers_connect(head(status="200 Connection established"))) as closing,
        DispatchClient(
            limits(), egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=ProxyConfig(f"http://127.0.0.1:{closing.port}")
        ) as client,
    ):
        attempt = await client.deliver("https://hook.example.com/", SMALL, IDENTITY)
        assert (attempt.phase, attempt.reason) == (Phase.TLS, Reason.TLS_CONNECTION_CLOSED)
        assert (attempt.retry_safety, attempt.bytes_sent) == (RetrySafety.SAFE, 0)
        assert_nothing_held(client)


async def test_proxy_03_a_proxy_that_is_down_is_ours_too() -> None:
    """A hundred endpoints must not be disabled for it."""
    proxy = ProxyConfig(f"http://127.0.0.1:{closed_port()}")
    async with DispatchClient(limits(), egress=LOOPBACK, proxy=proxy) as client:
        attempts = await asyncio.gather(
            *(client.deliver(f"https://hook{number}.example.com/", SMALL, IDENTITY) for number in range(20))
        )
        assert {attempt.reason for attempt in attempts} == {Reason.PROXY_CONNECT_FAILED}
        assert {attempt.blame for attempt in attempts} == {Blame.US}
        assert_nothing_held(client)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxy_04_credentials_go_to_the_proxy_and_nowhere_else(scheme: str) -> None:
    """On the CONNECT only, whether the receiver speaks TLS or not."""
    certificates = Certificates.make()
    context = certificates.server("hook.example.com") if scheme == "https" else None
    async with proxy_running() as proxy, HostileServer("ok", tls_context=context) as server:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}", "user", "canary7391password")
        async with DispatchClient(limits(**PATIENT), egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=config) as client:
            attempt = await client.deliver(
                f"{scheme}://hook.example.com:{server.port}/",
                SMALL,
                IDENTITY,
                tls=certificates.profile if context else None,
            )
            assert attempt.delivered, attempt
            for shown in (config, client, attempt, client.statistics(), client.pool.hosts):
                assert "canary7391" not in repr(shown)
        token = base64.b64encode(b"user:canary7391password")
        assert token in proxy.heads[0]
        assert b"proxy-" not in server.requests[0].head.lower()
        assert token not in server.requests[0].head


async def test_proxy_04_a_customers_proxy_authorization_is_refused() -> None:
    """It would reach the endpoint, or speak to our proxy in our name."""
    async with HostileServer("ok") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        for name in ("Proxy-Authorization", "PROXY-AUTHORIZATION", "proxy-connection"):
            with pytest.raises(HeaderRefused):
                await client.deliver(server.url, SMALL, {name: "Basic eA==", **IDENTITY})
        assert server.connections == 0
