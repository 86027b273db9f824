"""TLS contexts and the names of handshake failures, by handshakes in memory against contexts of a real server side."""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.x509.oid import NameOID

from gatepost.errors import ConfigurationError
from gatepost.net.tls import CONTEXTS_MAX, TLSContexts, TLSProfile, tls_reason
from gatepost.net.tls_stream import OVERHEAD_FREE, TlsStream
from gatepost.wire.reasons import Reason

NAME = "receiver.example"
CA = trustme.CA()
PRIVATE = TLSProfile(ca_pem=CA.cert_pem.bytes())
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def server_side(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A server's context; by default with a good certificate for `NAME`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (certificate or CA.issue_cert(NAME)).configure_cert(context)
    return context


class Conversation:
    """A client stream and a server object with bytes carried between them by hand."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, name: str = NAME) -> None:
        self.stream = TlsStream(client, name)
        self.to_server, self.from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.to_server, self.from_server, server_side=True)
        self.server_done = False
        self.rest = b""
        """What the server said last in the handshake: session tickets, or an alert."""

    def serve(self) -> bytes:
        """Let the server handshake on; returns what it says."""
        data = self.stream.outgoing()
        if data:
            self.to_server.write(data)
        if not self.server_done:
            try:
                self.server.do_handshake()
                self.server_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                pass  # its alert is in what it says
        return self.from_server.read()

    def handshake(self, piece: int = 1 << 20) -> Reason | None:
        """Run it to its end, the server's bytes arriving `piece` at a time; None when it succeeded."""
        data = b""
        try:
            while not self.stream.handshake(b""):
                data = self.serve()
                if not data:
                    self.stream.handshake_end()
                    return Reason.TLS_CONNECTION_CLOSED
                for at in range(0, len(data), piece):
                    if self.stream.handshake(data[at : at + piece]):
                        break
        except ssl.SSLError as error:
            return tls_reason(error, data)
        self.rest = self.serve()
        return None


def attempt(profile: TLSProfile | None, server: ssl.SSLContext, name: str = NAME) -> Reason | None:
    """What a handshake with `profile` comes to."""
    return Conversation(TLSContexts().get(profile), server, name).handshake()


# ------------------------------------------------------------------------------------------------ whom we trust


def test_a_private_ca_is_trusted_and_replaces_the_public_store() -> None:
    """An endpoint pinned to its own CA must not accept what any of 140 public ones signs for its name."""
    context = TLSContexts().get(PRIVATE)
    assert attempt(PRIVATE, server_side()) is None
    assert context.cert_store_stats()["x509_ca"] == 1
    assert attempt(PRIVATE, server_side(trustme.CA().issue_cert(NAME))) is Reason.TLS_CERT_UNKNOWN_CA
    assert attempt(None, server_side()) is Reason.TLS_CERT_UNKNOWN_CA


def test_comments_between_certificates_may_be_in_any_language() -> None:
    """Bundles come with the authority's name above each certificate; Python's `cadata` wants ASCII."""
    commented = "# Büro-CA №1\n".encode() + CA.cert_pem.bytes()
    for pem in (commented, commented.decode(), commented.decode("latin-1")):
        assert attempt(TLSProfile(ca_pem=pem), server_side()) is None


def test_there_is_no_context_without_checks() -> None:
    """Whatever the profile: certificate and name are verified, TLS is at least 1.2, HTTP/1.1 is what we say we speak."""
    for profile in (None, PRIVATE, TLSProfile(x509_strict=False)):
        context = TLSContexts().get(profile)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert not context.hostname_checks_common_name
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        strict = bool(context.verify_flags & ssl.VERIFY_X509_STRICT)
        assert strict == (profile is None or profile.x509_strict)


def test_the_environment_does_not_change_whom_we_trust(tmp_path: Path) -> None:
    """SSL_CERT_FILE of a shell or container image must not be a way to read all payloads."""
    file = tmp_path / "ca.pem"
    file.write_bytes(CA.cert_pem.bytes())
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update({"SSL_CERT_FILE": str(file), "SSL_CERT_DIR": str(tmp_path)})
    try:
        assert attempt(None, server_side()) is Reason.TLS_CERT_UNKNOWN_CA
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_alpn_says_http_1_1_and_a_server_without_an_opinion_is_fine() -> None:
    """An h2-only peer is told apart by what it chooses or refuses."""
    chooses = server_side()
    chooses.set_alpn_protocols(["h2", "http/1.1"])
    conversation = Conversation(TLSContexts().get(PRIVATE), chooses)
    assert conversation.handshake() is None
    assert conversation.stream.alpn == "http/1.1"
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake() is None
    assert conversation.stream.alpn is None


def test_an_address_is_checked_against_the_addresses_of_the_certificate() -> None:
    """There is no SNI for an address, but there is a check."""
    assert attempt(PRIVATE, server_side(CA.issue_cert("127.0.0.1")), "127.0.0.1") is None
    assert attempt(PRIVATE, server_side(CA.issue_cert("127.0.0.2")), "127.0.0.1") is Reason.TLS_HOSTNAME_MISMATCH
    assert attempt(PRIVATE, server_side(CA.issue_cert(NAME)), "127.0.0.1") is Reason.TLS_HOSTNAME_MISMATCH


# ------------------------------------------------------------------------------------------------ what can be wrong


def build(
    subject: str,
    *,
    names: tuple[str, ...] = (NAME,),
    signer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    is_ca: bool = False,
    weak: bool = False,
    extra: Callable[[x509.CertificateBuilder, object], x509.CertificateBuilder] = lambda builder, _key: builder,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
    """A certificate by hand, for what trustme rightly cannot make."""
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    key = rsa.generate_private_key(65_537, 1_024) if weak else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    issuer, signing_key = signer or (name, key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
    return extra(builder, key).sign(signing_key, hashes.SHA256()), key


def serving(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> ssl.SSLContext:
    """A server that presents it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    pem = serialization.Encoding.PEM
    with tempfile.NamedTemporaryFile() as file:
        file.write(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.public_bytes(pem)
        )
        file.flush()
        context.load_cert_chain(file.name)
    return context


def pinned(certificate: x509.Certificate, *, strict: bool = True) -> TLSProfile:
    """A profile that trusts this certificate."""
    return TLSProfile(ca_pem=certificate.public_bytes(serialization.Encoding.PEM), x509_strict=strict)


def old_server() -> ssl.SSLContext:
    """TLS 1.1 at most."""
    context = server_side()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


BAD: dict[str, tuple[Callable[[], ssl.SSLContext], Reason]] = {
    "expired": (
        lambda: server_side(CA.issue_cert(NAME, not_before=NOW - 3 * DAY, not_after=NOW - DAY)),
        Reason.TLS_CERT_EXPIRED,
    ),
    "not yet valid": (
        lambda: server_side(CA.issue_cert(NAME, not_before=NOW + DAY, not_after=NOW + 3 * DAY)),
        Reason.TLS_CERT_NOT_YET_VALID,
    ),
    "wrong name": (lambda: server_side(CA.issue_cert("other.example")), Reason.TLS_HOSTNAME_MISMATCH),
    "wildcard a level too low": (
        lambda: server_side(CA.issue_cert("*.receiver.example")),
        Reason.TLS_HOSTNAME_MISMATCH,
    ),
    "unknown authority": (lambda: server_side(trustme.CA().issue_cert(NAME)), Reason.TLS_CERT_UNKNOWN_CA),
    "self-signed": (lambda: serving(*build("self")), Reason.TLS_CERT_SELF_SIGNED),
    "too old a TLS": (old_server, Reason.TLS_PROTOCOL_VERSION),
}


@pytest.mark.parametrize("case", BAD)
def test_each_fault_has_a_reason_of_its_own(case: str) -> None:
    """The owner of the endpoint gets a notice with it; "handshake failed" would send him searching."""
    server, reason = BAD[case]
    assert attempt(PRIVATE, server()) is reason


def test_a_self_signed_receiver_is_served_by_pinning_its_certificate() -> None:
    """Instead of a switch that turns checks off; the name is checked all the same."""
    certificate, key = build("self")
    server = serving(certificate, key)
    assert attempt(pinned(certificate), server) is None
    assert attempt(pinned(certificate), server, "other.example") is Reason.TLS_HOSTNAME_MISMATCH


def test_a_name_only_in_the_subject_is_no_name() -> None:
    """RFC 9525: the common name is free text."""
    certificate, key = build(NAME, names=())
    assert attempt(pinned(certificate, strict=False), serving(certificate, key)) is Reason.TLS_HOSTNAME_MISMATCH


def test_a_weak_key_is_named_as_such() -> None:
    """The remedy is a new key, not a new authority."""
    certificate, key = build("weak", weak=True)
    assert attempt(pinned(certificate), serving(certificate, key)) is Reason.TLS_CERT_WEAK


def test_strict_checks_refuse_an_old_private_ca_and_can_be_relaxed_for_it() -> None:
    """Certificates without key identifiers are common in house; relaxing that must not relax anything else."""
    authority, authority_key = build("old house CA", names=(), is_ca=True)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    leaf = build("leaf", signer=(authority.subject, authority_key))
    server = serving(*leaf)
    assert attempt(pinned(authority), server) is Reason.TLS_CERT_MALFORMED
    assert attempt(pinned(authority, strict=False), server) is None
    assert attempt(pinned(authority, strict=False), server, "other.example") is Reason.TLS_HOSTNAME_MISMATCH


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Reason.TLS_NOT_TLS),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Reason.TLS_NOT_TLS),
        (b"\x15\x03\x01\x00\x02\x02\x46", Reason.TLS_PROTOCOL_VERSION),
        (b"\x15\x03\x03\x00\x02\x02\x28", Reason.TLS_HANDSHAKE_FAILURE),
        (b"\x15\x03\x03\x00\x02\x02\x78", Reason.TLS_NO_HTTP1),
        (b"\x15\x03\x03\x00\x02\x02\x70", Reason.TLS_HANDSHAKE_FAILURE),
    ],
    ids=[
        "plain HTTP",
        "another protocol",
        "protocol version",
        "handshake failure",
        "no application protocol",
        "no name",
    ],
)
def test_what_is_no_handshake_and_what_an_alert_says_are_told_apart(answer: bytes, reason: Reason) -> None:
    """A TLS port typed wrong, a plain-text port, an h2-only server: three owners, three remedies."""
    stream = TlsStream(TLSContexts().get(PRIVATE), NAME)
    assert not stream.handshake(b"")
    with pytest.raises(ssl.SSLError) as caught:
        stream.handshake(answer)
    assert tls_reason(caught.value, answer) is reason


def test_a_peer_that_closes_during_the_handshake_closed() -> None:
    """No alert, no certificate: a load balancer without a backend looks like this."""
    stream = TlsStream(TLSContexts().get(PRIVATE), NAME)
    assert not stream.handshake(b"")
    with pytest.raises(ssl.SSLError) as caught:
        stream.handshake_end()
    assert tls_reason(caught.value) is Reason.TLS_CONNECTION_CLOSED


def test_an_unknown_failure_has_a_reason_too() -> None:
    """OpenSSL grows new ones."""
    new = ssl.SSLError(1, "something new")
    new.reason = "SOMETHING_NEW"
    assert tls_reason(new) is Reason.TLS_HANDSHAKE_FAILURE
    assert tls_reason(new, b"\x15") is Reason.TLS_HANDSHAKE_FAILURE
    unknown = ssl.SSLCertVerificationError(1, "something new")
    unknown.verify_code = 9_999
    assert tls_reason(unknown) is Reason.TLS_CERT_INVALID


# ------------------------------------------------------------------------------------------------ client certificates

CLIENT_CA = trustme.CA()


def asking_server() -> ssl.SSLContext:
    """It demands a certificate of `CLIENT_CA`."""
    context = server_side()
    CLIENT_CA.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_profile(certificate: trustme.LeafCert) -> TLSProfile:
    """With a client certificate and its key."""
    return TLSProfile(
        ca_pem=CA.cert_pem.bytes(),
        client_cert_pem=b"".join(part.bytes() for part in certificate.cert_chain_pems),
        client_key_pem=certificate.private_key_pem.bytes(),
    )


def answer_to(profile: TLSProfile, version: ssl.TLSVersion) -> Reason | bytes:
    """Handshake, then one message of the server; in TLS 1.3 a refusal comes only then."""
    server = asking_server()
    server.maximum_version = version
    conversation = Conversation(TLSContexts().get(profile), server)
    reason = conversation.handshake()
    if reason is not None:
        return reason
    if conversation.server_done:
        conversation.server.write(b"welcome")
    try:
        return conversation.stream.receive(conversation.rest + conversation.from_server.read())
    except ssl.SSLError as error:
        return tls_reason(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_is_shown_and_its_refusals_are_named(version: ssl.TLSVersion) -> None:
    """Missing, of the wrong authority, or expired: each is the endpoint owner's to mend, and final until he does."""
    good = client_profile(CLIENT_CA.issue_cert("client@example.com"))
    assert answer_to(good, version) == b"welcome"
    missing = Reason.TLS_CLIENT_CERT_REQUIRED if version is ssl.TLSVersion.TLSv1_3 else Reason.TLS_HANDSHAKE_FAILURE
    assert answer_to(PRIVATE, version) is missing
    unknown = client_profile(trustme.CA().issue_cert("client@example.com"))
    assert answer_to(unknown, version) is Reason.TLS_CLIENT_CERT_REJECTED
    expired = CLIENT_CA.issue_cert("client@example.com", not_before=NOW - 3 * DAY, not_after=NOW - DAY)
    assert answer_to(client_profile(expired), version) is Reason.TLS_CLIENT_CERT_REJECTED


def test_key_material_is_in_no_repr_and_in_no_file() -> None:
    """Profiles stand in logs and tracebacks; and a key in a temporary directory outlives a crash."""
    certificate = CLIENT_CA.issue_cert("client@example.com")
    profile = client_profile(certificate)
    assert "PEM" not in repr(profile)
    assert "-----" not in repr(profile)
    before = (set(os.listdir(tempfile.gettempdir())), len(os.listdir("/proc/self/fd")))
    TLSContexts().get(profile)
    assert (set(os.listdir(tempfile.gettempdir())), len(os.listdir("/proc/self/fd"))) == before


def unreadable() -> list[tuple[dict[str, str | bytes], str]]:
    """Profiles that can never work, and what the message must say."""
    certificate = CLIENT_CA.issue_cert("client@example.com")
    chain, key = certificate.cert_chain_pems[0].bytes(), certificate.private_key_pem.bytes()
    other = CLIENT_CA.issue_cert("other@example.com").private_key_pem.bytes()
    encrypted = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    return [
        ({"ca_pem": ""}, "ca_pem"),
        ({"ca_pem": "no certificate"}, "BEGIN CERTIFICATE"),
        ({"ca_pem": b"\xff\xfe"}, "BEGIN CERTIFICATE"),
        ({"ca_pem": "ünreadable"}, "BEGIN CERTIFICATE"),
        ({"client_cert_pem": chain}, "both client_cert_pem and client_key_pem"),
        ({"client_key_pem": key}, "both client_cert_pem and client_key_pem"),
        ({"client_cert_pem": chain, "client_key_pem": other}, "no matching pair"),
        ({"client_cert_pem": "", "client_key_pem": ""}, "no matching pair"),
        ({"client_cert_pem": "ü", "client_key_pem": "ü"}, "no matching pair"),
        ({"client_cert_pem": chain, "client_key_pem": encrypted}, "write a key without password"),
    ]


@pytest.mark.parametrize(("fields", "message"), unreadable(), ids=range(10))
def test_what_cannot_be_read_is_refused_before_anything_is_sent(fields: dict[str, str | bytes], message: str) -> None:
    """By configuration error, not at the first handshake; and an encrypted key must not make OpenSSL ask the terminal."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigurationError, match=message):
        TLSContexts().get(TLSProfile(**fields))  # type: ignore[arg-type]  # all of these fields take text or bytes
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("spoiled", ["\u201c", "\ud800", "\x00"])
def test_a_key_that_is_no_pem_is_shown_by_no_error(spoiled: str) -> None:
    """The error of `str.encode` carries the whole text, and error trackers store the errors behind an error."""
    certificate = CLIENT_CA.issue_cert("client@example.com")
    key = certificate.private_key_pem.bytes().decode()
    profile = TLSProfile(
        client_cert_pem=certificate.cert_chain_pems[0].bytes(), client_key_pem=key[:100] + spoiled + key[100:]
    )
    with pytest.raises(ConfigurationError, match="client_key_pem") as caught:
        TLSContexts().get(profile)
    error: BaseException | None = caught.value
    while error is not None:
        for text in (repr(error), "".join(traceback.format_exception(error))):
            assert key.splitlines()[1] not in text
        error = error.__cause__ or error.__context__


# ------------------------------------------------------------------------------------------------ contexts and streams


def test_contexts_are_shared_by_profile_and_bounded() -> None:
    """Building one costs up to 30 ms, and a customer may change his profile every minute."""
    contexts = TLSContexts()
    assert contexts.get(None) is contexts.get(None)
    assert contexts.get(TLSProfile(ca_pem=CA.cert_pem.bytes())) is contexts.get(PRIVATE)
    first = contexts.get(PRIVATE)
    pem = CA.cert_pem.bytes()
    for number in range(CONTEXTS_MAX - 1):
        contexts.get(TLSProfile(ca_pem=pem + b"\n" * (number + 1)))
    assert contexts.get(PRIVATE) is first, "just within the bound, and used again"
    contexts.get(TLSProfile(ca_pem=b"\n" + pem))
    assert contexts.get(PRIVATE) is first, "another was unused for longer"
    assert len(contexts._by_profile) == CONTEXTS_MAX


@pytest.mark.parametrize("piece", [1, 7, 1_000])
def test_a_handshake_and_answer_survive_any_cut(piece: int) -> None:
    """Records end where they like, segments too."""
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake(piece) is None
    conversation.server.write(b"answer " * 1_000)
    data = conversation.rest + conversation.from_server.read()
    plain = b"".join(conversation.stream.receive(data[at : at + piece]) for at in range(0, len(data), piece))
    assert plain == b"answer " * 1_000
    assert not conversation.stream.eof


def test_tickets_are_no_answer_and_a_closed_session_is_an_end() -> None:
    """A reused connection that got only tickets may be taken for stale; one that was closed in order is over."""
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake() is None
    assert conversation.rest
    assert conversation.stream.receive(conversation.rest) == b""
    assert not conversation.stream.eof
    conversation.server.write(b"bye")
    with pytest.raises(ssl.SSLWantReadError):
        conversation.server.unwrap()
    assert conversation.stream.receive(conversation.from_server.read()) == b"bye"
    assert conversation.stream.eof


def test_garbage_in_a_session_is_an_error_by_code() -> None:
    """A middlebox that injects bytes must not look like the receiver's answer."""
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake() is None
    conversation.stream.receive(conversation.rest)
    with pytest.raises(ssl.SSLError):
        conversation.stream.receive(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50"], ids=["text", "alert"])
def test_what_was_decrypted_before_an_error_counts(behind: bytes) -> None:
    """A whole 2xx in front of a fatal alert is a delivery; lost, the event is sent again for days."""
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake() is None
    conversation.server.write(b"answer")
    data = conversation.rest + conversation.from_server.read() + behind
    assert conversation.stream.receive(data) == b"answer"
    assert conversation.stream.fault is not None
    assert not conversation.stream.eof


def test_an_answer_in_one_byte_records_is_read() -> None:
    """Some servers flush each character: 23 bytes of frame for one of text are slow, not hostile."""
    conversation = Conversation(TLSContexts().get(PRIVATE), server_side())
    assert conversation.handshake() is None
    plain = conversation.stream.receive(conversation.rest)
    for _ in range(4_000):
        conversation.server.write(b"a")
        plain += conversation.stream.receive(conversation.from_server.read())
    assert plain == b"a" * 4_000
    assert conversation.stream.fault is None


def expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label without context (RFC 8446 section 7.1), for TLS_AES_256_GCM_SHA384."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(hashes.SHA384(), size, info).derive(secret)


def key_updates(secret: bytes, size: int) -> bytes:
    """`size` bytes or more of key updates that ask for one in return, each sealed with the key of the one before it."""
    records = b""
    while len(records) < size:
        message = b"\x18\x00\x00\x01\x01" + b"\x16"
        header = b"\x17\x03\x03" + (len(message) + 16).to_bytes(2, "big")
        records += header + AESGCM(expand(secret, b"key", 32)).encrypt(expand(secret, b"iv", 12), message, header)
        secret = expand(secret, b"traffic upd", 48)
    return records


def test_a_flood_of_key_updates_ends_the_session(tmp_path: Path) -> None:
    """Each takes 45 µs and an answer as long as itself: 64 KiB held the loop for 0.1 s, and a peer that never reads filled memory."""
    server = server_side()
    server.num_tickets = 0  # so that the key updates are the first records under the traffic key
    server.keylog_filename = str(tmp_path / "keys")
    conversation = Conversation(TLSContexts().get(PRIVATE), server)
    assert conversation.handshake() is None
    assert conversation.server.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    log = (tmp_path / "keys").read_text().split()
    secret = bytes.fromhex(log[log.index("SERVER_TRAFFIC_SECRET_0") + 2])
    assert conversation.stream.receive(key_updates(secret, 100)) == b"", "a few are lawful"
    assert conversation.stream.outgoing(), "and answered"

    conversation = Conversation(TLSContexts().get(PRIVATE), server)
    assert conversation.handshake() is None
    log = (tmp_path / "keys").read_text().split()
    secret = bytes.fromhex(log[len(log) - log[::-1].index("SERVER_TRAFFIC_SECRET_0") + 1])
    with pytest.raises(ssl.SSLError) as caught:
        conversation.stream.receive(key_updates(secret, 2 * OVERHEAD_FREE))
    assert tls_reason(caught.value) is Reason.RESPONSE_PROTOCOL_ERROR
    assert len(conversation.stream.outgoing()) < 1.5 * OVERHEAD_FREE


def test_only_a_client_with_a_certificate_shakes_hands_anew() -> None:
    """In TLS 1.2 a peer's 33 bytes make us begin a handshake of 541; some receivers ask for the certificate that way."""
    contexts = TLSContexts()
    assert contexts.get(None).options & ssl.OP_NO_RENEGOTIATION
    assert contexts.get(PRIVATE).options & ssl.OP_NO_RENEGOTIATION
    certified = contexts.get(client_profile(CLIENT_CA.issue_cert("client@example.com")))
    assert not certified.options & ssl.OP_NO_RENEGOTIATION
