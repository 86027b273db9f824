"""TLS contexts: key material that cannot be read is refused without showing it, and nothing around the process changes trust."""

from __future__ import annotations

import traceback
from functools import cache

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gatepost.errors import ConfigurationError
from gatepost.net.tls import TLSContexts, TLSProfile


@cache
def client() -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM."""
    leaf = trustme.CA().issue_cert("client@example.com")
    return leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()


def refusal(certificate: str | bytes, key: str | bytes) -> ConfigurationError:
    """What is said about this pair."""
    with pytest.raises(ConfigurationError, match="client_key_pem") as caught:
        TLSContexts().get(TLSProfile(client_cert_pem=certificate, client_key_pem=key))
    return caught.value


def test_a_pair_is_read_from_bytes_and_from_text() -> None:
    """Configuration files hold text, secret stores hold bytes."""
    certificate, key = client()
    TLSContexts().get(TLSProfile(client_cert_pem=certificate, client_key_pem=key))
    TLSContexts().get(TLSProfile(client_cert_pem=certificate.decode(), client_key_pem=key.decode()))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it() -> None:
    """OpenSSL asks the terminal when it is given no password: a customer's key would stop the event loop of a worker."""
    certificate, key = client()
    encrypted = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")
    )
    assert "without password" in str(refusal(certificate, encrypted))


@pytest.mark.parametrize("spoiled", ["\u201c", "\ud800", "\x00"])
def test_a_key_that_is_no_pem_is_refused_without_showing_it(spoiled: str) -> None:
    """The error of `str.encode` carries the whole text, and error trackers store the errors behind an error."""
    certificate, key = client()
    text = key.decode()
    secret = text.splitlines()[1]
    error: BaseException | None = refusal(certificate, text[:100] + spoiled + text[100:])
    while error is not None:
        assert secret not in repr(error)
        assert secret not in "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__


def test_a_profile_shows_no_key_material() -> None:
    """Profiles stand in log lines of whoever configures them."""
    certificate, key = client()
    assert repr(TLSProfile(client_cert_pem=certificate, client_key_pem=key)) == "TLSProfile(x509_strict=True)"
