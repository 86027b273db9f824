"""Scenarios 24, 26 to 34 of the egress page: who is trusted, what is named, and what is never asked or reused."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, Reason
from tests.egress.kit import IDENTITY, NAME, PUBLIC, canary
from tests.faults.kit import PATIENT, Case, ScriptedResolver, meet_all
from tests.hostile.engine import (
    SMALL,
    Certificates,
    assert_nothing_held,
    fault,
    limits,
    same_descriptors,
    timed_out,
)
from tests.unit.test_tls import build, pinned, serving

POLICY = limits(**PATIENT)


def client_for() -> DispatchClient:
    """A client that resolves every name to 127.0.0.1."""
    return DispatchClient(POLICY, egress=PUBLIC, resolver=ScriptedResolver(("127.0.0.1",)))


async def deliver_to(context: ssl.SSLContext, profile: TLSProfile | None, host: str = NAME) -> Reason:
    """How one delivery to a receiver with this context ends; a refused one sends no byte."""
    with same_descriptors():
        async with HostileServer("ok", tls_context=context) as server, client_for() as client:
            attempt = await client.deliver(f"https://{host}:{server.port}/", SMALL, IDENTITY, tls=profile)
            if not attempt.delivered:
                assert attempt.phase is Phase.TLS, attempt
                assert attempt.bytes_sent == 0
                assert server.request_count == 0
                assert_nothing_held(client)
            return attempt.reason


async def test_scenario_24_the_environment_changes_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE names the attacker's authority, SSLKEYLOGFILE a file: neither has any effect."""
    attacker = trustme.CA()
    attacker.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    attacker.issue_cert(NAME).configure_cert(context)
    assert await deliver_to(context, None) is Reason.TLS_CERT_UNKNOWN_CA
    certificates = Certificates.make()
    assert await deliver_to(certificates.server(NAME), certificates.profile) is Reason.OK
    assert not (tmp_path / "keys.log").exists()


async def test_scenario_26_two_profiles_of_one_host_share_nothing() -> None:
    """The right authority has a pooled connection; the wrong one must fail all the same, and each has its own."""
    certificates, stranger = Certificates.make(), Certificates.make()
    async with HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as server, client_for() as client:
        assert (await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)).delivered
        refused = await client.deliver(server.url, SMALL, IDENTITY, tls=stranger.profile)
        fault(Phase.TLS, Reason.TLS_CERT_UNKNOWN_CA).check(refused)
        assert (await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)).reused
        leaf = certificates.authority.issue_cert("client@hook.example.com")
        with_key = TLSProfile(
            ca_pem=certificates.profile.ca_pem,
            client_cert_pem=leaf.cert_chain_pems[0].bytes(),
            client_key_pem=leaf.private_key_pem.bytes(),
        )
        other = await client.deliver(server.url, SMALL, IDENTITY, tls=with_key)
        assert (other.delivered, other.reused) == (True, False)
        assert server.connections == 3


async def test_scenario_27_two_names_on_one_address() -> None:
    """The certificate is for one of them: the other fails although a good connection to that address is idle."""
    certificates = Certificates.make()
    async with HostileServer("ok", tls_context=certificates.server(NAME)) as server, client_for() as client:
        good = f"https://{NAME}:{server.port}/"
        assert (await client.deliver(good, SMALL, IDENTITY, tls=certificates.profile)).delivered
        other = await client.deliver(
            f"https://other.example.com:{server.port}/", SMALL, IDENTITY, tls=certificates.profile
        )
        fault(Phase.TLS, Reason.TLS_HOSTNAME_MISMATCH).check(other)
        assert (await client.deliver(good, SMALL, IDENTITY, tls=certificates.profile)).reused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_scenario_28_no_session_is_resumed(version: ssl.TLSVersion) -> None:
    """A session of one name, offered to another, would skip the name check. The server sees whether any is offered."""
    certificates = Certificates.make()
    context = certificates.server(NAME)
    context.maximum_version = version
    resumed: list[int] = []
    async with HostileServer("close-before-response", tls_context=context) as server, client_for() as client:
        for host in (NAME, NAME, "other.example.com"):
            attempt = await client.deliver(f"https://{host}:{server.port}/", SMALL, IDENTITY, tls=certificates.profile)
            assert attempt.reason is (Reason.CONNECTION_CLOSED if host == NAME else Reason.TLS_HOSTNAME_MISMATCH)
        resumed.append(context.session_stats()["hits"])
        assert context.session_stats()["accept"] >= 3
    assert resumed == [0]


def leaf_of(
    names: tuple[str, ...] = (NAME,),
    *,
    extra: Callable[[x509.CertificateBuilder, object], x509.CertificateBuilder] = lambda builder, _key: builder,
    key_ids: bool = True,
) -> tuple[TLSProfile, ssl.SSLContext]:
    """A leaf of an authority made by hand, and who trusts the authority."""

    def authority_extra(builder: x509.CertificateBuilder, key: object) -> x509.CertificateBuilder:
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(usage, critical=True)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    authority, authority_key = build("authority", names=(), is_ca=True, extra=authority_extra)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    public = authority_key.public_key()

    def leaf_extra(builder: x509.CertificateBuilder, key: object) -> x509.CertificateBuilder:
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        builder = extra(builder, key)
        if key_ids:
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
            ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return builder

    leaf = build("leaf", names=names, signer=(authority.subject, authority_key), extra=leaf_extra)
    return pinned(authority), serving(*leaf)


def purpose(builder: x509.CertificateBuilder, _key: object) -> x509.CertificateBuilder:
    """For clients only."""
    return builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)


CERTIFICATES = [
    ("ok", lambda: leaf_of(), Reason.OK),
    ("wildcard-one-label", lambda: leaf_of(("*.example.com",)), Reason.OK),
    ("wildcard-two-labels", lambda: leaf_of(("*.com",)), Reason.TLS_HOSTNAME_MISMATCH),
    ("wildcard-itself", lambda: leaf_of(("*.hook.example.com",)), Reason.TLS_HOSTNAME_MISMATCH),
    ("mismatch", lambda: leaf_of(("other.example.com",)), Reason.TLS_HOSTNAME_MISMATCH),
    ("wrong-purpose", lambda: leaf_of(extra=purpose), Reason.TLS_CERT_INVALID_PURPOSE),
    ("no-key-ids", lambda: leaf_of(key_ids=False), Reason.TLS_CERT_MALFORMED),
    ("self-signed", lambda: (Certificates.make().profile, serving(*build("self"))), Reason.TLS_CERT_SELF_SIGNED),
]


@pytest.mark.parametrize(
    ("make", "reason"), [case[1:] for case in CERTIFICATES], ids=[case[0] for case in CERTIFICATES]
)
async def test_scenario_29_each_certificate_has_its_class(
    make: Callable[[], tuple[TLSProfile, ssl.SSLContext]], reason: Reason
) -> None:
    """On every Python: the flags are set by us and not by the interpreter's defaults."""
    profile, context = make()
    assert await deliver_to(context, profile) is reason
    assert reason is Reason.OK or reason in PERMANENT_TLS_REASONS


async def test_scenario_29_a_name_in_the_subject_only_is_no_name() -> None:
    """The common name is free text (RFC 9525). The authority accepts such a leaf; the client does not."""
    certificate, key = build(NAME, names=())
    profile = pinned(certificate, strict=False)
    assert await deliver_to(serving(certificate, key), profile) is Reason.TLS_HOSTNAME_MISMATCH


async def test_scenario_29_an_intermediate_that_is_not_sent_is_an_unknown_authority() -> None:
    """The receiver's fault, and nothing is fetched to mend it."""
    root = trustme.CA()
    intermediate = root.create_child_ca()
    leaf = intermediate.issue_cert(NAME)
    profile = TLSProfile(ca_pem=root.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with leaf.private_key_pem.tempfile() as key, leaf.cert_chain_pems[0].tempfile() as chain:
        context.load_cert_chain(chain, key)
    assert await deliver_to(context, profile) is Reason.TLS_CERT_UNKNOWN_CA
    whole = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(whole)
    assert await deliver_to(whole, profile) is Reason.OK


async def test_scenario_29_an_address_in_the_certificate() -> None:
    """A literal needs it there, and only there."""
    certificates = Certificates.make()
    assert await deliver_to(certificates.server("127.0.0.1"), certificates.profile, "127.0.0.1") is Reason.OK
    wrong = await deliver_to(certificates.server(NAME), certificates.profile, "127.0.0.1")
    assert wrong is Reason.TLS_HOSTNAME_MISMATCH


def only(version: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
    """A server with this version and these ciphers."""
    context = Certificates.make().server(NAME)
    context.set_ciphers(ciphers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    return context


async def test_scenario_30_each_spoiled_handshake_has_its_class_and_ends_in_time() -> None:
    """Old versions, weak ciphers, plain HTTP, an end, a reset and a stall."""
    profile = Certificates.make().profile
    old = only(ssl.TLSVersion.TLSv1_1, "DEFAULT:@SECLEVEL=0")
    assert await deliver_to(old, profile) is Reason.TLS_PROTOCOL_VERSION
    weak = only(ssl.TLSVersion.TLSv1_2, "NULL-SHA256:@SECLEVEL=0")
    assert await deliver_to(weak, profile) is Reason.TLS_HANDSHAKE_FAILURE
    await meet_all(
        [
            Case("tls-not-tls", fault(Phase.TLS, Reason.TLS_NOT_TLS)),
            Case("tls-close", fault(Phase.TLS, Reason.TLS_CONNECTION_CLOSED)),
            Case("tls-reset", fault(Phase.TLS, Reason.CONNECTION_RESET)),
            Case("tls-stall", timed_out(Outcome.CONNECT_TIMEOUT, Phase.TLS, Reason.TLS_TIMEOUT)),
        ]
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_scenario_31_client_certificates_none_right_and_wrong(
    version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS 1.3 the refusal comes behind our handshake, at times as a bare end: never a delivery, and never a retry storm."""
    caplog.set_level(0)
    certificates, stranger = Certificates.make(), trustme.CA()
    context = certificates.server(NAME)
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    certificates.authority.configure_trust(context)

    def with_key(authority: trustme.CA) -> TLSProfile:
        leaf = authority.issue_cert("client@hook.example.com")
        return TLSProfile(
            ca_pem=certificates.profile.ca_pem,
            client_cert_pem=leaf.cert_chain_pems[0].bytes(),
            client_key_pem=leaf.private_key_pem.bytes(),
        )

    async with HostileServer("ok", tls_context=context) as server, client_for() as client:
        url = f"https://{NAME}:{server.port}/"
        for profile in (certificates.profile, with_key(stranger)):
            before = server.connections
            attempt = await client.deliver(url, SMALL, IDENTITY, tls=profile)
            assert attempt.outcome is Outcome.TRANSPORT_ERROR
            assert attempt.reason in (
                Reason.TLS_CLIENT_CERT_REQUIRED,
                Reason.TLS_CLIENT_CERT_REJECTED,
                Reason.TLS_HANDSHAKE_FAILURE,
                Reason.TLS_CONNECTION_CLOSED,
                Reason.CONNECTION_CLOSED,
                Reason.CONNECTION_RESET,
            ), attempt
            assert server.connections == before + 1
        assert (await client.deliver(url, SMALL, IDENTITY, tls=with_key(certificates.authority))).delivered
        assert server.request_count == 1
    assert "PRIVATE KEY" not in caplog.text


async def test_scenario_32_a_private_authority_replaces_the_public_ones() -> None:
    """A certificate that the public store would accept is refused where a private one is asked for."""
    public, private = Certificates.make(), Certificates.make()
    assert await deliver_to(public.server(NAME), public.profile) is Reason.OK
    assert await deliver_to(public.server(NAME), private.profile) is Reason.TLS_CERT_UNKNOWN_CA
    assert await deliver_to(private.server(NAME), None) is Reason.TLS_CERT_UNKNOWN_CA


async def test_scenario_33_nothing_that_a_certificate_names_is_fetched() -> None:
    """Issuer, CRL and OCSP URLs are chosen by the peer: fetching them is a request forgery."""
    async with canary() as inside:
        url = x509.UniformResourceIdentifier(inside.url)

        def naming(builder: x509.CertificateBuilder, _key: object) -> x509.CertificateBuilder:
            access = [
                x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, url),
                x509.AccessDescription(AuthorityInformationAccessOID.OCSP, url),
            ]
            point = x509.DistributionPoint([url], None, None, None)
            return builder.add_extension(x509.AuthorityInformationAccess(access), critical=False).add_extension(
                x509.CRLDistributionPoints([point]), critical=False
            )

        profile, context = leaf_of(extra=naming)
        assert await deliver_to(context, profile) is Reason.OK
        assert await deliver_to(context, Certificates.make().profile) is Reason.TLS_CERT_UNKNOWN_CA


async def test_scenario_34_only_http_1_1_is_spoken() -> None:
    """h2 is offered and not taken; an upgrade is a failure; nothing in our request asks for one."""
    certificates = Certificates.make()
    context = certificates.server(NAME)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with HostileServer("ok", tls_context=context) as server, client_for() as client:
        attempt = await client.deliver(f"https://{NAME}:{server.port}/", SMALL, IDENTITY, tls=certificates.profile)
        assert attempt.delivered
        head = server.requests[0].head.lower()
        assert b" http/1.1\r\n" in head
        assert b"upgrade" not in head
        assert b"http2-settings" not in head
    await meet_all([Case("switching-protocols", fault(Phase.READ, Reason.RESPONSE_UPGRADE))])
