"""Fault cases of class tls: a handshake has its own limit and name, a close waits for nobody, names are checked as written."""

from __future__ import annotations

import asyncio

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, Reason
from tests.faults.kit import PATIENT, Case, meet_all
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    FixedResolver,
    assert_nothing_held,
    fault,
    limits,
    same_descriptors,
    timed_out,
)


async def test_tls_02_a_stalled_handshake_costs_one_limit_and_is_charged_to_tls() -> None:
    """Elsewhere it was told as a connect that worked, and the request then waited for a second limit."""
    (attempt,) = await meet_all([Case("tls-stall", timed_out(Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT))])
    assert attempt.bytes_sent == 0
    assert Phase.WRITE not in attempt.phases


async def test_tls_03_a_peer_that_ignores_our_close_holds_no_descriptor() -> None:
    """Two hundred peers that neither answer the close nor close themselves: each slot is free with the response."""
    certificates = Certificates.make()
    with same_descriptors():
        async with (
            HostileServer("tls-no-shutdown", tls_context=certificates.server("127.0.0.1")) as server,
            DispatchClient(
                limits(**{**PATIENT, "max_per_host": 10, "per_endpoint_concurrency": 10}), egress=LOOPBACK
            ) as client,
        ):

            async def twenty() -> None:
                for _ in range(20):
                    attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
                    assert attempt.delivered, attempt

            await asyncio.gather(*(twenty() for _ in range(10)))
            assert_nothing_held(client)
            await server.wait_disconnected()
            assert server.connections == 200


async def test_tls_04_closing_the_client_waits_for_no_peer() -> None:
    """TLS 1.3 peers need not answer a close_notify; a shutdown that waits for it hangs for 30 s."""
    certificates = Certificates.make()
    with same_descriptors():
        async with (
            HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as idle,
            HostileServer("silence", tls_context=certificates.server("127.0.0.1")) as busy,
        ):
            client = DispatchClient(limits(**PATIENT), egress=LOOPBACK)
            for _ in range(2):
                assert (await client.deliver(idle.url, SMALL, IDENTITY, tls=certificates.profile)).delivered
            waiting = asyncio.create_task(client.deliver(busy.url, SMALL, IDENTITY, tls=certificates.profile))
            while busy.request_count == 0:  # noqa: ASYNC110  # a counter of the server
                await asyncio.sleep(0.005)
            began = SYSTEM_CLOCK.monotonic()
            await client.aclose()
            assert SYSTEM_CLOCK.monotonic() - began < 0.3
            assert (await waiting).outcome is Outcome.CANCELLED
            await idle.wait_disconnected()


async def test_tls_07_a_name_with_its_final_dot_is_the_same_name() -> None:
    """One pool key for both spellings, and SNI, certificate and Host all without the dot (RFC 6066 section 3)."""
    certificates = Certificates.make()
    context = certificates.server("hook.example.com")
    shown: list[str | None] = []
    context.sni_callback = lambda _socket, sni, _context: shown.append(sni)
    resolver = FixedResolver({"hook.example.com": ("127.0.0.1",)})
    with same_descriptors():
        async with (
            HostileServer("ok", tls_context=context) as server,
            DispatchClient(limits(**PATIENT), egress=LOOPBACK, resolver=resolver) as client,
        ):
            for host in ("hook.example.com.", "hook.example.com"):
                url = f"https://{host}:{server.port}/x"
                assert (await client.deliver(url, SMALL, IDENTITY, tls=certificates.profile)).delivered
            assert server.connections == 1
            assert shown == ["hook.example.com"]
            hosts = {
                line.split(b": ", 1)[1]
                for request in server.requests
                for line in request.head.split(b"\r\n")
                if line.lower().startswith(b"host:")
            }
            assert hosts == {f"hook.example.com:{server.port}".encode()}


async def test_tls_08_an_address_is_no_sni_but_is_checked() -> None:
    """RFC 6066 has no literal in SNI; leaving the name out must not leave the check out. Retried slowly: certificates get fixed."""
    certificates = Certificates.make()
    shown: list[str | None] = []
    good, bad = certificates.server("127.0.0.1"), certificates.server("localhost", "hook.example.com")
    for context in (good, bad):
        context.sni_callback = lambda _socket, sni, _context: shown.append(sni)
    with same_descriptors():
        async with (
            HostileServer("ok", tls_context=good) as right,
            HostileServer("tls-bad-certificate", tls_context=bad) as wrong,
            DispatchClient(limits(**PATIENT), egress=LOOPBACK) as client,
        ):
            assert (await client.deliver(right.url, SMALL, IDENTITY, tls=certificates.profile)).delivered
            refused = await client.deliver(wrong.url, SMALL, IDENTITY, tls=certificates.profile)
            fault(Phase.TLS, Reason.TLS_HOSTNAME_MISMATCH).check(refused)
            assert refused.bytes_sent == 0
            assert refused.reason in PERMANENT_TLS_REASONS
            assert wrong.request_count == 0
            assert shown == [None, None]
            assert_nothing_held(client, idle=1)
