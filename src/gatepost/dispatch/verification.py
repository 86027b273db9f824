"""Is there somebody at an endpoint's URL whose certificate is right? Asked when the URL or its TLS settings are registered.

A broken chain is refused with what its owner must mend, since every delivery would fail by it; a receiver that cannot be
reached just now is taken and marked as unverified. Called by `dispatch.endpoints`; connects through the client, as attempts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Outcome
from gatepost.delivery.records import Endpoint
from gatepost.errors import DestinationDenied
from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import Denied, Target
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import Reason

NOT_PROBED: Final = "not_probed"
"""`Endpoint.unverified` when the caller asked for no probe."""

_NEW_CERTIFICATE: Final = "Install a valid certificate for the host name."
_CHAIN: Final = (
    "Let the server send its intermediate certificates too (fullchain.pem); a private authority's goes into ca_pem."
)
REMEDIES: Final[Mapping[Reason, str]] = {
    Reason.TLS_CERT_EXPIRED: "Renew the certificate, and check that renewal runs by itself.",
    Reason.TLS_CERT_NOT_YET_VALID: "Wait until it is valid, or install one that is; check the clock it was made by.",
    Reason.TLS_CERT_SELF_SIGNED: "Install a certificate of a public authority, or give this one as ca_pem.",
    Reason.TLS_CERT_UNKNOWN_CA: _CHAIN,
    Reason.TLS_CERT_INVALID_PURPOSE: "Install a certificate whose extended key usage has serverAuth.",
    Reason.TLS_CERT_MALFORMED: "Have it issued anew by the rules of RFC 5280; for an old private authority, set x509_strict to false.",
    Reason.TLS_CERT_WEAK: "Have it issued anew with RSA of 2048 bits or more, or ECDSA, and SHA-256.",
    Reason.TLS_CERT_REVOKED: _NEW_CERTIFICATE,
    Reason.TLS_CERT_INVALID: _NEW_CERTIFICATE,
    Reason.TLS_HOSTNAME_MISMATCH: "Use the name that the certificate is for, or have it issued with this host as a subjectAltName.",
    Reason.TLS_PROTOCOL_VERSION: "Switch on TLS 1.2 or 1.3 on the server.",
    Reason.TLS_NO_HTTP1: "Switch on HTTP/1.1 beside HTTP/2 on the server (ALPN http/1.1).",
    Reason.TLS_CLIENT_CERT_REQUIRED: "Give the endpoint a client certificate (client_cert_pem and client_key_pem).",
    Reason.TLS_CLIENT_CERT_REJECTED: "Give a client certificate of an authority that the server trusts, or let it trust this one's.",
    Reason.TLS_NOT_TLS: "Check the port: this one does not speak TLS.",
}
"""What the owner must mend, for every reason that refuses a registration."""


class Destinations(Protocol):
    """What registration needs of `DispatchClient`: the checks of every attempt, without one."""

    def check_url(self, url: str) -> Target | Denied:
        """The URL in parts, or why it is refused."""
        ...

    async def prepare_tls(self, target: Target, tls: TLSProfile | None) -> object:
        """Raises `ConfigurationError` for TLS settings that can never work."""
        ...

    async def probe(
        self, url: str, *, endpoint_id: str | None = None, tenant: str | None = None, tls: TLSProfile | None = None
    ) -> Attempt | None:
        """None when the peer's certificate was right, else how it ended."""
        ...


async def verify(endpoint: Endpoint, destinations: Destinations, *, probe: bool) -> str | None:
    """What to store as `unverified`: None, or why nobody's certificate was seen. Plain http has none to see.

    Raises `DestinationDenied` for a broken chain or a denied address, `ConfigurationError` for TLS settings that cannot work.
    """
    target = destinations.check_url(endpoint.url)
    if isinstance(target, Denied):
        raise DestinationDenied(target.reason, f"the URL is refused ({target.reason}): {target}")
    tls = tls_profile(endpoint)
    if tls is not None:
        await destinations.prepare_tls(target, tls)
    if target.scheme == "http":
        return None
    if not probe:
        return NOT_PROBED
    attempt = await destinations.probe(endpoint.url, endpoint_id=endpoint.id, tenant=endpoint.tenant, tls=tls)
    if attempt is None:
        return None
    reason = attempt.reason
    if attempt.outcome is Outcome.EGRESS_DENIED:
        raise DestinationDenied(reason, f"{target.origin} is refused ({reason}): {REASON_HELP[reason]}")
    if reason in REMEDIES:
        raise DestinationDenied(
            reason,
            f"{target.origin} is refused ({reason}): {REASON_HELP[reason]} {REMEDIES[reason]} "
            'To register it before that is done, write probe=False ("probe": false, --no-probe).',
        )
    return reason.value


def tls_profile(endpoint: Endpoint) -> TLSProfile | None:
    """The endpoint's own TLS settings; None when it has none. Raises `ConfigurationError` for half a client certificate."""
    if endpoint.ca_pem is None and endpoint.client_cert_pem is None and endpoint.client_key_pem is None:
        return None if endpoint.x509_strict else TLSProfile(x509_strict=False)
    return TLSProfile(
        ca_pem=endpoint.ca_pem,
        client_cert_pem=endpoint.client_cert_pem,
        client_key_pem=None if endpoint.client_key_pem is None else endpoint.client_key_pem.reveal(),
        x509_strict=endpoint.x509_strict,
    )
