"""What an attempt that may follow redirects carries with it: how to write its request and speak TLS at another place.

Made by `net.client` before the attempt, so that the flight has nothing to wait for; `wire.redirects` decides about each hop.
Endpoint headers and the client certificate go to the registered origin only; the signature goes along, since it is the
message: whoever allows other origins hands them a signed message.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import Target
from gatepost.wire.headers import WEBHOOK_PREFIX
from gatepost.wire.request import request_head, static_head


@dataclass(frozen=True, slots=True)
class Redirects:
    """The request of one attempt, to be written anew for each hop."""

    registered: Target
    """Where the attempt begins."""
    user_agent: str
    content_type: str
    length: int
    headers: Mapping[str, str] | None = field(repr=False)
    tls: TLSProfile | None
    context: ssl.SSLContext | None
    elsewhere: TLSProfile | None
    """The profile for other origins: `elsewhere_profile(tls)`."""
    elsewhere_context: ssl.SSLContext

    def at(self, target: Target) -> tuple[bytes, TLSProfile | None, ssl.SSLContext | None]:
        """Head, TLS profile and context for a hop to `target`."""
        static = static_head("POST", target.target, target.authority)
        headers = self.headers
        if target.origin == self.registered.origin:
            head = request_head(static, self.user_agent, self.content_type, self.length, headers)
            return head, self.tls, self.context
        signed = {name: value for name, value in (headers or {}).items() if name.lower().startswith(WEBHOOK_PREFIX)}
        head = request_head(static, self.user_agent, self.content_type, self.length, signed)
        return head, self.elsewhere, self.elsewhere_context


def elsewhere_profile(tls: TLSProfile | None) -> TLSProfile | None:
    """The profile without its client certificate: trust is the endpoint's, identity is for its own origin."""
    if tls is None or (tls.ca_pem is None and tls.x509_strict):
        return None
    return replace(tls, client_cert_pem=None, client_key_pem=None)
