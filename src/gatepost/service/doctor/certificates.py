"""Reads certificates for people: who, by whom, for which names, until when; and finds the chain in a handshake as it came.

Nothing here verifies or trusts anything: that is the handshake's own, and whoever prints says which it is. Used by `handshake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

_HANDSHAKE_RECORD: Final = 22
_CERTIFICATE: Final = 11
"""Of TLS up to 1.2, where it travels in the clear (RFC 5246 section 7.4.2)."""
NAMES_MAX: Final = 20
"""Names shown of one certificate: shared ones have hundreds."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """One certificate."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """It is for these hosts and addresses."""
    not_before: str
    not_after: str
    days_left: float
    """Until it expires; negative: it has."""
    self_signed: bool


def read_certificate(der: bytes, now: float) -> CertificateFacts | None:
    """The facts of a certificate, None for one that cannot be read. `now` in seconds since 1970."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        begins, ends = _times(certificate)
        return CertificateFacts(
            subject=certificate.subject.rfc4514_string(),
            issuer=certificate.issuer.rfc4514_string(),
            names=_names(certificate),
            not_before=begins.isoformat(),
            not_after=ends.isoformat(),
            days_left=round((ends.timestamp() - now) / 86_400, 2),
            self_signed=certificate.issuer == certificate.subject,
        )
    except (ValueError, x509.UnsupportedGeneralNameType):
        return None


def _times(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    if hasattr(certificate, "not_valid_before_utc"):  # from cryptography 42 on
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return certificate.not_valid_before.replace(tzinfo=UTC), certificate.not_valid_after.replace(tzinfo=UTC)


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    names = extension.get_values_for_type(x509.DNSName)
    addresses = extension.get_values_for_type(x509.IPAddress)
    return (*names, *map(str, addresses))[:NAMES_MAX]


def chain_in(received: bytes) -> tuple[bytes, ...]:
    """The certificates, in DER, of a TLS 1.2 handshake's bytes as they were received; empty when they are not (all) there."""
    messages = _handshake_bytes(received)
    at = 0
    while at + 4 <= len(messages):
        kind, size = messages[at], int.from_bytes(messages[at + 1 : at + 4], "big")
        body = messages[at + 4 : at + 4 + size]
        if len(body) < size:
            return ()
        if kind == _CERTIFICATE:
            return tuple(_listed(body))
        at += 4 + size
    return ()


def _handshake_bytes(received: bytes) -> bytes:
    """What the handshake records hold, one after the other."""
    parts = []
    at = 0
    while at + 5 <= len(received) and received[at] == _HANDSHAKE_RECORD:
        size = int.from_bytes(received[at + 3 : at + 5], "big")
        parts.append(received[at + 5 : at + 5 + size])
        at += 5 + size
    return b"".join(parts)


def _listed(body: bytes) -> Sequence[bytes]:
    found = []
    at = 3
    while at + 3 <= len(body):
        size = int.from_bytes(body[at : at + 3], "big")
        found.append(body[at + 3 : at + 3 + size])
        at += 3 + size
    return found
