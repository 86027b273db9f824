"""The engine against TLS that fails: each way has its own reason, none sends a request byte, and no check can be turned off."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gatepost.delivery.outcome import Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import BEHAVIOURS, Behaviour, HostileServer, Peer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    Expected,
    FixedResolver,
    answered,
    assert_nothing_held,
    fault,
    limits,
    meet,
    same_descriptors,
    timed_out,
)

PATIENT = limits(connect_timeout=3.0, read_timeout=3.0)
"""For handshakes that succeed: they cost CPU on a shared machine."""

SPOILED: list[tuple[str, Expected]] = [
    ("tls-stall", timed_out(Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT)),
    ("tls-close", fault(Phase.TLS, Reason.TLS_CONNECTION_CLOSED)),
    ("tls-reset", fault(Phase.TLS, Reason.CONNECTION_RESET)),
    ("tls-not-tls", fault(Phase.TLS, Reason.TLS_NOT_TLS)),
    ("tls-no-http1", fault(Phase.TLS, Reason.TLS_NO_HTTP1)),
    ("tls-old-version", fault(Phase.TLS, Reason.TLS_PROTOCOL_VERSION)),
    ("tls-handshake-failure", fault(Phase.TLS, Reason.TLS_HANDSHAKE_FAILURE)),
]


@pytest.mark.parametrize(("name", "expected"), SPOILED, ids=[case[0] for case in SPOILED])
async def test_a_spoiled_handshake_is_charged_to_tls_and_safe(name: str, expected: Expected) -> None:
    """Most clients call this a failed connect; the remedy is another one."""
    attempt = await meet(name, expected)
    assert attempt.bytes_sent == 0
    assert Phase.WRITE not in attempt.phases
    assert BEHAVIOURS[name].expected == f"{expected.outcome} · {expected.phase[0]} · {expected.reason[0]}"


async def test_the_tls_limit_may_only_tighten_the_connect_limit() -> None:
    """Whichever is shorter holds."""
    for changes, after in (({"tls_timeout": 0.1, "connect_timeout": 0.4}, 0.1), ({"connect_timeout": 0.2}, 0.2)):
        expected = timed_out(Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT, after=after)
        await meet("tls-stall", expected, policy=limits(**changes))


async def test_a_good_certificate_is_delivered_to() -> None:
    """For a name with SNI, for an address without, and for a name written with its final dot."""
    certificates = Certificates.make()
    for subject, name in (
        ("127.0.0.1", None),
        ("hook.example.com", "hook.example.com"),
        ("hook.example.com", "hook.example.com."),
    ):
        context = certificates.server(subject)
        names: list[str | None] = []
        context.sni_callback = lambda _socket, sni, _context, names=names: names.append(sni)
        resolver = FixedResolver({"hook.example.com": ("127.0.0.1",)})
        async with (
            HostileServer("ok", tls_context=context) as server,
            DispatchClient(PATIENT, egress=LOOPBACK, resolver=resolver) as client,
        ):
            url = server.url if name is None else server.url.replace("127.0.0.1", name)
            attempt = await client.deliver(url, SMALL, IDENTITY, tls=certificates.profile)
            assert attempt.delivered, attempt
            assert attempt.phases[Phase.TLS] > 0
            again = await client.deliver(url, SMALL, IDENTITY, tls=certificates.profile)
            assert again.reused
            assert_nothing_held(client, idle=1)
        assert names == [None if name is None else "hook.example.com"]


def expired(authority: trustme.CA) -> ssl.SSLContext:
    """A server whose certificate ended yesterday."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.issue_cert(
        "127.0.0.1", not_before=yesterday - datetime.timedelta(days=9), not_after=yesterday
    ).configure_cert(context)
    return context


def not_yet_valid(authority: trustme.CA) -> ssl.SSLContext:
    """A server whose certificate begins tomorrow."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    authority.issue_cert(
        "127.0.0.1", not_before=tomorrow, not_after=tomorrow + datetime.timedelta(days=9)
    ).configure_cert(context)
    return context


async def test_a_bad_certificate_is_named_and_gets_no_request() -> None:
    """Certificates get fixed by their owner, so he must be told which fault it is; the payload must never leave."""
    certificates = Certificates.make()
    stranger = trustme.CA()
    cases = [
        (certificates.server("other.example"), Reason.TLS_HOSTNAME_MISMATCH),
        (certificates.server("127.0.0.2"), Reason.TLS_HOSTNAME_MISMATCH),
        (expired(certificates.authority), Reason.TLS_CERT_EXPIRED),
        (not_yet_valid(certificates.authority), Reason.TLS_CERT_NOT_YET_VALID),
        (certificates.server("127.0.0.1", authority=stranger), Reason.TLS_CERT_UNKNOWN_CA),
    ]
    for context, reason in cases:
        with same_descriptors():
            async with HostileServer("tls-bad-certificate", tls_context=context) as server:
                async with DispatchClient(PATIENT, egress=LOOPBACK) as client:
                    attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
                    fault(Phase.TLS, reason).check(attempt)
                    assert attempt.bytes_sent == 0
                    assert_nothing_held(client)
                await server.wait_disconnected()
                assert server.request_count == 0
                assert server.refused_handshakes == 1


async def test_a_self_signed_certificate_is_named_as_such() -> None:
    """The commonest one of all, and its remedy differs from an unknown authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    self_signed(context)
    async with HostileServer("tls-bad-certificate", tls_context=context) as server:
        async with DispatchClient(PATIENT, egress=LOOPBACK) as client:
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            fault(Phase.TLS, Reason.TLS_CERT_SELF_SIGNED).check(attempt)
        assert server.request_count == 0


def self_signed(context: ssl.SSLContext) -> None:
    """A certificate for 127.0.0.1 that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)


async def test_a_client_certificate_that_is_wanted_and_missing_is_named() -> None:
    """In TLS 1.3 the refusal comes after our handshake is done, so the request may already be on its way."""
    certificates = Certificates.make()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = certificates.server("127.0.0.1")
        context.maximum_version = version
        context.verify_mode = ssl.CERT_REQUIRED
        certificates.authority.configure_trust(context)
        async with (
            HostileServer("ok", tls_context=context) as server,
            DispatchClient(PATIENT, egress=LOOPBACK) as client,
        ):
            attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
            assert attempt.outcome is Outcome.TRANSPORT_ERROR
            assert attempt.reason in (Reason.TLS_CLIENT_CERT_REQUIRED, Reason.TLS_HANDSHAKE_FAILURE), attempt
            if version is ssl.TLSVersion.TLSv1_3:
                assert attempt.reason is Reason.TLS_CLIENT_CERT_REQUIRED
            assert_nothing_held(client)
            assert server.request_count == 0

            identity = certificates.authority.issue_cert("client@hook.example.com")
            profile = TLSProfile(
                ca_pem=certificates.authority.cert_pem.bytes(),
                client_cert_pem=b"".join(blob.bytes() for blob in identity.cert_chain_pems),
                client_key_pem=identity.private_key_pem.bytes(),
            )
            assert (await client.deliver(server.url, SMALL, IDENTITY, tls=profile)).delivered


PLAYED_INSIDE: list[tuple[str, Expected]] = [
    ("silence", timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT)),
    ("never-reads", timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT)),
    ("close-before-response", fault(Phase.WAIT, Reason.CONNECTION_CLOSED)),
    ("reset-before-response", fault(Phase.WAIT, Reason.CONNECTION_RESET)),
    ("close-mid-head", fault(Phase.READ, Reason.RESPONSE_INCOMPLETE)),
    ("reset-mid-head", fault(Phase.READ, Reason.CONNECTION_RESET)),
    ("reset-mid-body", answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)),
    ("garbage", fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)),
    ("switching-protocols", fault(Phase.READ, Reason.RESPONSE_UPGRADE)),
    ("close-mid-body", answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)),
    ("drip-body", answered(body_fault=BodyFault.TIMEOUT, reason=Reason.RESPONSE_TIMEOUT, at_least=0.3)),
    ("endless-body", answered(body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)),
    ("close-delimited", answered()),
    ("two-responses", answered()),
    ("close-after-204", answered(204, kept=True)),
    ("tls-no-shutdown", answered()),
    ("ok", answered(kept=True)),
]


@pytest.mark.parametrize(("name", "expected"), PLAYED_INSIDE, ids=[case[0] for case in PLAYED_INSIDE])
async def test_the_same_faults_have_the_same_names_inside_tls(name: str, expected: Expected) -> None:
    """A layer more must not change which limit applies."""
    certificates = Certificates.make()
    context = certificates.server("127.0.0.1")
    policy = limits(connect_timeout=3.0)
    if name == "close-after-204":
        # Whether the end of the stream is seen before or after the connection is put away is a race; both are right.
        with same_descriptors():
            async with (
                HostileServer(name, tls_context=context) as server,
                DispatchClient(policy, egress=LOOPBACK) as client,
            ):
                for _ in range(3):
                    attempt = await client.deliver(server.url, b"", IDENTITY, tls=certificates.profile)
                    assert (attempt.status, attempt.delivered) == (204, True)
                    assert not attempt.reused
        return
    seconds = 0.02 if name == "drip-body" else None
    await meet(name, expected, seconds=seconds, tls_context=context, tls=certificates.profile, policy=policy)


@pytest.mark.parametrize("behind", [b"\x15\x03\x03\x00\x02\x02\x50", b"no record at all"], ids=["alert", "text"])
async def test_a_whole_answer_counts_whatever_record_follows_it(behind: bytes) -> None:
    """In one segment, as a server that fails while it closes sends it: the 200 was lost, and the event sent again."""

    async def run(peer: Peer, seconds: float) -> None:
        await peer.read_request()
        assert peer._tls is not None
        peer._tls.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        peer._outgoing.write(behind)
        await peer._flush()
        await peer.drain()

    certificates = Certificates.make()
    attempt = await meet(
        Behaviour("answer-and-alert", "answers, then spoils the session", "response", run),
        answered(),
        tls_context=certificates.server("127.0.0.1"),
        tls=certificates.profile,
        policy=PATIENT,
    )
    assert attempt.body == b"ok"


async def test_a_peer_that_never_answers_our_closing_alert_delays_nothing() -> None:
    """A lawful TLS 1.3 peer need not answer it; waiting for it held 30 s in more than one client."""
    certificates = Certificates.make()
    with same_descriptors():
        async with HostileServer("tls-no-shutdown", tls_context=certificates.server("127.0.0.1")) as server:
            async with DispatchClient(PATIENT, egress=LOOPBACK) as client:
                for _ in range(20):
                    attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
                    answered().check(attempt)
                    assert_nothing_held(client)
            await server.wait_disconnected()
            assert server.connections == 20


async def test_large_bodies_stall_and_are_cut_inside_tls_too() -> None:
    """Encrypted bytes that wait must stay bounded, and count as not sent."""
    certificates = Certificates.make()
    await meet(
        "never-reads",
        timed_out(Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT),
        payload=bytes(12_000_000),
        tls_context=certificates.server("127.0.0.1"),
        tls=certificates.profile,
        policy=limits(connect_timeout=3.0),
    )


@pytest.mark.parametrize("name", ["early-413-close", "early-413-drain", "early-413-open"])
async def test_an_early_refusal_is_read_inside_tls_too(name: str) -> None:
    """The answer lies encrypted in a buffer when the write fails: it must be decrypted before the failure is told."""
    certificates = Certificates.make()
    await meet(
        name,
        answered(413, safety=RetrySafety.SAFE, phase=(Phase.READ, Phase.WRITE)),
        payload=bytes(4_000_000),
        tls_context=certificates.server("127.0.0.1"),
        tls=certificates.profile,
        policy=limits(connect_timeout=3.0, read_timeout=3.0, write_timeout=3.0),
    )


@pytest.mark.parametrize("name", ["stale-close-on-request", "stale-reset-on-request"])
async def test_a_stale_connection_is_retried_inside_tls_too(name: str) -> None:
    """Session tickets came on it after the handshake: they are no response bytes."""
    certificates = Certificates.make()
    with same_descriptors():
        async with (
            HostileServer(name, tls_context=certificates.server("127.0.0.1")) as server,
            DispatchClient(PATIENT, egress=LOOPBACK) as client,
        ):
            assert (await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)).delivered
            attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
            answered().check(attempt)
            assert attempt.stale_retry
            assert server.request_count == 3
            assert_nothing_held(client, idle=1)
