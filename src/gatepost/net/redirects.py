"""A flight that follows redirects, and what it carries with it: how to write its request and speak TLS at another place.

Made by `net.client` when the policy says so, with everything built before; `wire.redirects` decides about each hop.
Endpoint headers and the client certificate go to the registered origin only; the signature goes along, since it is the
message: whoever allows other origins hands them a signed message.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gatepost.delivery.outcome import End
from gatepost.net.flight import Flight
from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import Denied, Target
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.head import Head
from gatepost.wire.headers import WEBHOOK_PREFIX
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from gatepost.wire.redirects import next_hop
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


class FollowingFlight(Flight):
    """Set `redirects` before `start`. Each hop takes a lease, a look-up and checks of its own, within the attempt's total."""

    __slots__ = ("_hops", "_place", "redirects")

    redirects: Redirects

    def start(self, now: float) -> None:
        """Begin at the registered place."""
        self._hops = 0
        self._place = self.redirects.registered
        super().start(now)

    def _leased(self, now: float) -> None:
        if self._hops:
            self._holds_slot = True  # the total runs from the first lease
        else:
            super()._leased(now)

    def _on_redirect(self, reader: ResponseReader, head: Head, lagged: bool) -> None:
        policy = self._policy
        hop = next_hop(
            head.status,
            [value for name, value in head.fields if name == "location"],
            self._place,
            self._client.check_url,
            hops=self._hops,
            limit=policy.redirect_limit,
            cross_origin=policy.redirect_cross_origin,
        )
        if isinstance(hop, Denied):
            self._end(End.DENIED, hop.reason, lagged)
        elif isinstance(hop, Reason):
            self._end(End.RESPONSE, hop, lagged)
        else:
            self._follow(reader, hop)

    def _follow(self, reader: ResponseReader, target: Target) -> None:
        """The same POST once more, at `target`."""
        connection = self._connection
        now = self._next(Phase.POOL)
        self._hops += 1
        self._connection = None
        self._release(reader, connection, True, now)
        self._reader = None
        self._reused = False
        self._written = False
        self._early = False
        self._write_fault = None
        self.address = None
        self._place = target
        self._head, tls, self._context = self.redirects.at(target)
        self._host = self._client.pool.host(target, tls)
        self._lease(now)


def elsewhere_profile(tls: TLSProfile | None) -> TLSProfile | None:
    """The profile without its client certificate: trust is the endpoint's, identity is for its own origin."""
    if tls is None or (tls.ca_pem is None and tls.x509_strict):
        return None
    return replace(tls, client_cert_pem=None, client_key_pem=None)
