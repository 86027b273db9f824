"""TLS as endpoints configure it: what a profile may not be, where trust comes from, and what an end without notice means."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.errors import ConfigurationError
from gatepost.net.client import DispatchClient
from gatepost.net.tls import SystemStore, TLSContexts, TLSProfile
from gatepost.testing.hostile import Behaviour, HostileServer
from gatepost.testing.hostile_peer import Peer
from gatepost.testing.receiver import Receiver
from gatepost.wire.phases import Phase
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    assert_nothing_held,
    limits,
    same_descriptors,
)

PATIENT = limits(connect_timeout=3.0, read_timeout=3.0)


def with_client_certificate(certificates: Certificates) -> TLSProfile:
    """A profile that shows a certificate."""
    certificate = trustme.CA().issue_cert("client@example.com")
    return TLSProfile(
        ca_pem=certificates.authority.cert_pem.bytes(),
        client_cert_pem=certificate.cert_chain_pems[0].bytes(),
        client_key_pem=certificate.private_key_pem.bytes(),
    )


async def test_a_client_certificate_with_plain_http_is_refused() -> None:
    """Nobody would be shown the certificate, and whoever configured it believes that somebody is."""
    certificates = Certificates.make()
    async with Receiver() as receiver, DispatchClient(PATIENT, egress=LOOPBACK) as client:
        with pytest.raises(ValueError, match="write https://"):
            await client.deliver(receiver.url, SMALL, tls=with_client_certificate(certificates))
        assert (await client.deliver(receiver.url, SMALL, tls=certificates.profile)).delivered
        assert receiver.requests == 1
        assert_nothing_held(client, idle=1)


# ------------------------------------------------------------------------------------------ the system's store


def broken_stores(folder: Path) -> list[tuple[SystemStore, str]]:
    """Stores without a certificate, and what the message says of each."""
    (folder / "empty.pem").write_text("")
    (folder / "garbage.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (folder / "certs").mkdir()
    (folder / "certs" / "README").write_text("no certificate")
    nothing = str(folder / "missing")
    return [
        (SystemStore(nothing, nothing), "install the package ca-certificates"),
        (SystemStore(nothing, str(folder / "certs")), "install the package ca-certificates"),
        (SystemStore(str(folder / "empty.pem"), nothing), "cannot be read"),
        (SystemStore(str(folder / "garbage.pem"), nothing), "cannot be read"),
    ]


async def test_a_machine_without_certificates_blames_itself(tmp_path: Path) -> None:
    """As tls_cert_unknown_ca every receiver's owner would be told to mend a chain that is right."""
    certificates = Certificates.make()
    async with HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as server:
        for store, message in broken_stores(tmp_path):
            async with DispatchClient(PATIENT, egress=LOOPBACK) as client:
                client.contexts = TLSContexts(store)
                for _ in range(2):
                    with pytest.raises(ConfigurationError, match=message):
                        await client.deliver(server.url, SMALL)
                attempt = await client.deliver(server.url, SMALL, tls=certificates.profile)
                assert attempt.delivered, "an endpoint with an authority of its own needs no store"
        assert server.connections == 4


async def test_a_hashed_directory_is_a_store(tmp_path: Path) -> None:
    """Some systems have only that: its certificates are loaded when they are looked for."""
    certificates = Certificates.make()
    context = ssl.create_default_context(cadata=certificates.authority.cert_pem.bytes().decode())
    assert context.cert_store_stats()["x509_ca"] == 1
    (tmp_path / "0a1b2c3d.0").write_bytes(certificates.authority.cert_pem.bytes())
    assert TLSContexts(SystemStore("/nonexistent", str(tmp_path))).get(None) is not None


# ------------------------------------------------------------------------------------------------- contexts


async def test_contexts_are_built_in_a_thread_and_once_for_all_who_wait() -> None:
    """30 ms on the loop would delay every other attempt; a hundred at once would be 3 s."""
    threads: set[str] = set()
    certificates = Certificates.make()
    contexts = TLSContexts()
    built = await asyncio.gather(*(contexts.build(certificates.profile) for _ in range(20)))
    assert len(set(map(id, built))) == 1
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("gatepost-tls")}
    assert len(threads) == 1
    assert await contexts.build(certificates.profile) is contexts.get(certificates.profile) is built[0]
    contexts.close()
    contexts.close()


async def test_who_is_cancelled_while_a_context_is_built_only_stops_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """The others wait for the same one; and a failure that nobody waits for any more is no news."""
    contexts = TLSContexts()
    bad = TLSProfile(ca_pem="no certificate")
    with caplog.at_level(logging.DEBUG):
        first = asyncio.ensure_future(contexts.build(bad))
        second = asyncio.ensure_future(contexts.build(bad))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(ConfigurationError, match="ca_pem"):
            await second
        alone = asyncio.ensure_future(contexts.build(bad))
        await asyncio.sleep(0)
        alone.cancel()
        await asyncio.sleep(0.05)
        assert (first.cancelled(), alone.cancelled()) == (True, True)
        gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR]
    contexts.close()


async def test_a_client_closed_while_a_context_is_built_sends_nothing() -> None:
    """It was in flight when the client closed, so it ends like all that were: cancelled, and ours."""
    certificates = Certificates.make()
    with same_descriptors():
        async with HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as server:
            client = DispatchClient(PATIENT, egress=LOOPBACK)
            task = asyncio.ensure_future(client.deliver(server.url, SMALL, tls=certificates.profile))
            await asyncio.sleep(0)
            await client.aclose()
            attempt = await task
            assert (attempt.outcome, attempt.reason) == (Outcome.CANCELLED, Reason.CLIENT_CLOSED)
            assert (attempt.retry_safety, attempt.blame) == (RetrySafety.SAFE, Blame.US)
            assert server.connections == 0


# ------------------------------------------------------------------------------------------------------ ends


def ending(*, close_notify: bool) -> Behaviour:
    """Answers with a body that only the end of the connection delimits."""

    async def run(peer: Peer, _seconds: float) -> None:
        await peer.read_request()
        await peer.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhalf of it")
        await peer.fin(close_notify=close_notify)

    return Behaviour("ending", "ends", "response", run)


@pytest.mark.parametrize(("close_notify", "body_fault"), [(True, None), (False, BodyFault.INCOMPLETE)])
async def test_an_end_without_close_notify_cuts_a_body_that_only_the_end_delimits(
    close_notify: bool, body_fault: BodyFault | None
) -> None:
    """A FIN is not authenticated: anybody on the way can send one (RFC 9112 section 9.8)."""
    certificates = Certificates.make()
    context = certificates.server("127.0.0.1")
    async with (
        HostileServer(ending(close_notify=close_notify), tls_context=context) as server,
        DispatchClient(PATIENT, egress=LOOPBACK) as client,
    ):
        attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
        assert attempt.delivered
        assert attempt.body_fault is body_fault
        strict = limits(connect_timeout=3.0, read_timeout=3.0, require_complete_body=True)
        attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile, policy=strict)
        assert attempt.delivered is close_notify
        assert_nothing_held(client)


async def test_a_reset_with_a_client_certificate_says_what_it_may_mean() -> None:
    """TLS 1.3 refuses a certificate after the request was written, and often by a bare reset."""

    async def run(peer: Peer, _seconds: float) -> None:
        await peer.read_request()
        peer.rst()

    certificates = Certificates.make()
    behaviour = Behaviour("resetting", "resets", "transport_error", run)
    async with (
        HostileServer(behaviour, tls_context=certificates.server("127.0.0.1")) as server,
        DispatchClient(PATIENT, egress=LOOPBACK) as client,
    ):
        attempt = await client.deliver(server.url, SMALL, tls=with_client_certificate(certificates))
        assert (attempt.outcome, attempt.phase) == (Outcome.TRANSPORT_ERROR, Phase.WAIT)
        assert attempt.reason is Reason.CONNECTION_RESET
        for reason in (Reason.CONNECTION_RESET, Reason.CONNECTION_CLOSED):
            assert "client certificate" in REASON_HELP[reason]
