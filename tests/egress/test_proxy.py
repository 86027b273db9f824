"""Scenarios 49 and 50 of the egress page: the explicit egress proxy, and what it is never asked for."""

from __future__ import annotations

import base64

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.net.proxy import ProxyConfig
from gatepost.testing.hostile import HostileServer
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.egress.kit import DEFAULT, IDENTITY, NAME, PUBLIC, assert_denied
from tests.faults.kit import PATIENT, head
from tests.faults.test_proxy import answers_connect
from tests.hostile.engine import SMALL, Certificates, assert_nothing_held, fault, limits
from tests.hostile.test_proxy import OnlyTheProxy, proxy_running


async def test_scenario_49_a_tunnel_is_asked_for_by_name_and_certificates_are_checked_through_it() -> None:
    """The proxy sees host and port and never a payload; TLS is end to end, and a wrong certificate is still wrong."""
    certificates, stranger = Certificates.make(), Certificates.make()
    async with proxy_running() as proxy, HostileServer("ok", tls_context=certificates.server(NAME)) as server:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}", "user", "secret")
        async with DispatchClient(limits(**PATIENT), egress=PUBLIC, resolver=OnlyTheProxy(), proxy=config) as client:
            url = f"https://{NAME}:{server.port}/x?token=1"
            assert (await client.deliver(url, SMALL, IDENTITY, tls=certificates.profile)).delivered
            refused = await client.deliver(url, SMALL, IDENTITY, tls=stranger.profile)
            fault(Phase.TLS, Reason.TLS_CERT_UNKNOWN_CA).check(refused)
        assert len(proxy.heads) == 2
        for asked in proxy.heads:
            assert asked.startswith(f"CONNECT {NAME}:{server.port} HTTP/1.1\r\n".encode())
            assert base64.b64encode(b"user:secret") in asked
            assert b"token" not in asked
            assert b"webhook-id" not in asked.lower()
        assert b"proxy-authorization" not in server.requests[0].head.lower()


LIES = [
    (head("Content-Length: 0", status="403 X"), Reason.PROXY_REFUSED),
    (head("Content-Length: 0", status="407 X"), Reason.PROXY_AUTH_REQUIRED),
    (head("Content-Length: 0", status="502 X"), Reason.PROXY_UPSTREAM_FAILED),
    (b"", Reason.PROXY_CLOSED),
]


@pytest.mark.parametrize(("raw", "reason"), LIES, ids=[case[1] for case in LIES])
async def test_scenario_49_refusals_of_the_proxy_have_outcomes_of_their_own(raw: bytes, reason: Reason) -> None:
    """Ours and safe: no endpoint is charged for our proxy."""
    async with HostileServer(answers_connect(raw)) as proxy:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}")
        async with DispatchClient(limits(), egress=PUBLIC, resolver=OnlyTheProxy(), proxy=config) as client:
            attempt = await client.deliver(f"https://{NAME}/", SMALL, IDENTITY)
            assert (attempt.outcome, attempt.reason) == (Outcome.TRANSPORT_ERROR, reason)
            assert (attempt.blame, attempt.retry_safety) == (Blame.US, RetrySafety.SAFE)
            assert_nothing_held(client)


async def test_scenario_49_a_proxy_that_lies_about_tls_gets_no_payload() -> None:
    """It says the tunnel is open and answers in the receiver's place: no certificate, no request."""
    lie = head(status="200 Connection established")
    async with HostileServer(answers_connect(lie, hold=True)) as proxy:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}")
        async with DispatchClient(limits(), egress=PUBLIC, resolver=OnlyTheProxy(), proxy=config) as client:
            attempt = await client.deliver(f"https://{NAME}/", SMALL, IDENTITY)
            assert (attempt.outcome, attempt.phase) == (Outcome.CONNECT_TIMEOUT, Phase.TLS)
            assert attempt.bytes_sent == 0
    extra = head(status="200 Connection established") + head("Content-Length: 0")
    async with HostileServer(answers_connect(extra, hold=True)) as proxy:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}")
        async with DispatchClient(limits(), egress=PUBLIC, resolver=OnlyTheProxy(), proxy=config) as client:
            attempt = await client.deliver(f"http://{NAME}/", SMALL, IDENTITY)
            assert attempt.reason is Reason.PROXY_PROTOCOL_ERROR, (
                "bytes behind the answer would be taken for the receiver's"
            )


@pytest.mark.parametrize("egress", [DEFAULT, EgressPolicy(schemes=("http", "https"), deny_cidrs=("127.0.0.0/8",))])
async def test_scenario_50_a_forbidden_literal_never_reaches_the_proxy(egress: EgressPolicy) -> None:
    """URL rules and literals are checked by us; only names are the proxy's."""
    async with HostileServer(answers_connect(b"")) as proxy:
        config = ProxyConfig(f"http://127.0.0.1:{proxy.port}")
        async with DispatchClient(limits(), egress=egress, proxy=config) as client:
            loopback = Reason.ADDR_LOOPBACK if egress is DEFAULT else Reason.ADDR_OPERATOR_DENIED
            await assert_denied(client, "http://127.0.0.1:8080/", loopback)
            await assert_denied(client, "http://169.254.169.254/", Reason.ADDR_METADATA)
            await assert_denied(client, "http://[::ffff:127.0.0.1]/", Reason.ADDR_IPV4_MAPPED)
            await assert_denied(client, "http://localhost/", Reason.HOST_SPECIAL_USE)
            await assert_denied(client, "http://metadata.google.internal/", Reason.HOST_METADATA)
            await assert_denied(client, "http://2130706433/", Reason.IPV4_NONCANONICAL)
        assert proxy.connections == 0
