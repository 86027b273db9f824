"""What was seen on the way to one endpoint, phase by phase: numbers and words, judged by `endpoint_verdict`."""

from __future__ import annotations

from dataclasses import dataclass

from gatepost.delivery.attempt import Attempt
from gatepost.service.doctor.certificates import CertificateFacts


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """One handshake."""

    reason: str
    """`ok`: done, and the certificate is right for the name."""
    seconds: float
    version: str | None
    cipher: str | None
    alpn: str | None
    """What the peer chose of h2 and http/1.1."""
    chain: tuple[CertificateFacts, ...]
    """As the peer sent it, its own first; empty when it could not be seen. Verified only if `reason` says so."""


@dataclass(frozen=True, slots=True)
class AddressFacts:
    """One answer of the resolver."""

    address: str
    denied: str | None
    """The egress rule that refuses it; None: allowed."""
    connect: str | None = None
    """`ok` or the reason of the failure; None: not tried."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NameLook:
    """The name, asked twice: the second answer comes from a cache where there is one."""

    name: str
    reason: str
    """`ok` or why there is no answer."""
    seconds: float
    again_seconds: float | None
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """Another endpoint, known to be well, by the same way out."""

    origin: str
    dns: str
    dns_seconds: float | None
    connect: str | None
    connect_seconds: float | None


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """Everything seen; what was not reached is None or empty."""

    origin: str
    denied: tuple[str, str] | None
    """The rule that refuses the URL, and its text."""
    address_denied: tuple[str, str] | None = None
    """The rule that refuses the answers as a whole, and its text."""
    name: NameLook | None = None
    addresses: tuple[AddressFacts, ...] = ()
    tls: TlsFacts | None = None
    """At the first address that took a connection."""
    tls_elsewhere: tuple[tuple[str, str], ...] = ()
    """Other addresses and what their handshake came to."""
    sent: str = "nothing"
    """What was sent to the endpoint."""
    exchanges: tuple[Attempt, ...] = ()
    """The first on a connection of its own, the second right after it."""
    keep_alive: str | None = None
    """What its answer said about keeping the connection."""
    reference: ReferenceFacts | None = None
