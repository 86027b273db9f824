"""Takes the way to one endpoint apart: every answer of the resolver, a connect to each address, the handshake, an exchange.

It uses the resolver, dialler, rules and limits of a `DispatchClient`, and so reaches nothing that an attempt would not. By default
it delivers nothing: it asks with OPTIONS, which a receiver must not act on. It judges nothing (`endpoint_verdict` does).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Outcome
from gatepost.errors import ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.dial import Dial
from gatepost.net.tls import TLSProfile
from gatepost.service.doctor.endpoint_facts import AddressFacts, EndpointFacts, NameLook, ReferenceFacts, TlsFacts
from gatepost.service.doctor.handshake import shake_hands
from gatepost.wire.egress import Denied, Target
from gatepost.wire.reasons import Reason

HANDSHAKES_MAX: Final = 4
"""Addresses whose certificate is looked at: as many as an attempt may end up at."""
ADDRESSES_MAX: Final = 16
"""Addresses connected to: an attempt tries four, and the others may be the ones it gets tomorrow."""
_OK: Final = Reason.OK.value


@dataclass(frozen=True, slots=True)
class EventToSend:
    """What `--send` delivers: a signed event of type `gatepost.test`."""

    payload: bytes
    headers: Mapping[str, str]


async def look_at(
    client: DispatchClient,
    url: str,
    *,
    tls: TLSProfile | None = None,
    event: EventToSend | None = None,
    reference: str | None = None,
) -> EndpointFacts:
    """Go as far as one gets. `event`: POST it instead of asking with OPTIONS. `reference`: another URL, to compare with.

    Raises `ConfigurationError` for a TLS profile that cannot be used.
    """
    compared = None if reference is None else await _look_at_reference(client, reference)
    target = client.check_url(url)
    if isinstance(target, Denied):
        return EndpointFacts(target.subject, (target.reason.value, str(target)), reference=compared)
    facts = EndpointFacts(target.origin, None, reference=compared)
    allowed: Sequence[str]
    if target.address is not None:
        allowed = (target.address,)
        facts = replace(facts, addresses=(AddressFacts(target.address, None),))
    else:
        name, answers = await _look_up(client, target.host)
        facts = replace(facts, name=name)
        if name.reason != _OK:
            return facts
        facts = replace(facts, addresses=tuple(_judged(client, answer) for answer in answers))
        checked = client.rules.check_addresses(answers, name.chain)
        if isinstance(checked, Denied):
            return replace(facts, address_denied=(checked.reason.value, str(checked)))
        allowed = checked
    tried = await _connect_each(client, allowed[:ADDRESSES_MAX], target.port)
    # In the rules' spelling, which may be another than the resolver's.
    facts = replace(facts, addresses=tuple(tried.get(address) or AddressFacts(address, None) for address in allowed))
    reached = [one.address for one in tried.values() if one.connect == _OK]
    if not reached:
        return facts
    if target.scheme == "https":
        first, *others = await asyncio.gather(
            _handshakes(client, reached[0], target, tls),
            *(_handshake(client, address, target, tls) for address in reached[1:HANDSHAKES_MAX]),
        )
        elsewhere = zip(reached[1:], (one.reason for one in others), strict=False)
        facts = replace(facts, tls=first, tls_elsewhere=tuple(elsewhere))
        if first.reason != _OK:
            return facts
    return await _exchange(client, url, facts, tls, event)


async def _exchange(
    client: DispatchClient, url: str, facts: EndpointFacts, tls: TLSProfile | None, event: EventToSend | None
) -> EndpointFacts:
    if event is not None:
        attempt = await client.deliver(url, event.payload, event.headers, tls=tls)
        return replace(facts, sent="POST of a test event", exchanges=(attempt,), keep_alive=_keep_alive(attempt))
    first = await client.inquire(url, tls=tls)
    exchanges: tuple[Attempt, ...] = (first,)
    if first.outcome is Outcome.RESPONSE and first.body_fault is None:
        exchanges += (await client.inquire(url, tls=tls),)
    return replace(facts, sent="OPTIONS without a body", exchanges=exchanges, keep_alive=_keep_alive(first))


def _keep_alive(attempt: Attempt) -> str | None:
    said = [f"{name}: {value}" for name in ("connection", "keep-alive") if (value := attempt.header(name)) is not None]
    return ", ".join(said) or None


def _judged(client: DispatchClient, address: str) -> AddressFacts:
    denied = client.rules.check_address(address)
    return AddressFacts(address, None if denied is None else denied.reason.value)


# ------------------------------------------------------------------------------------------------------ names


async def _look_up(client: DispatchClient, name: str) -> tuple[NameLook, Sequence[str]]:
    limit = client.policy.dns_timeout or client.policy.connect_timeout
    began = client.clock.monotonic()
    reason, answers, chain = await _ask(client, name, limit)
    seconds = client.clock.monotonic() - began
    again: float | None = None
    if reason == _OK:
        began = client.clock.monotonic()
        await _ask(client, name, limit)
        again = round(client.clock.monotonic() - began, 6)
    return NameLook(name, reason, round(seconds, 6), again, tuple(chain)), answers


async def _ask(client: DispatchClient, name: str, limit: float) -> tuple[str, Sequence[str], Sequence[str]]:
    try:
        async with asyncio.timeout(limit):
            found = await client.resolver.resolve(name)
    except TimeoutError:
        return Reason.DNS_TIMEOUT.value, (), ()
    except ResolveError as error:
        return error.code, (), ()
    if not found.addresses:
        return Reason.DNS_NO_ADDRESS.value, (), found.chain
    return _OK, found.addresses, found.chain


# --------------------------------------------------------------------------------------------------- connects


async def _connect_each(client: DispatchClient, addresses: Sequence[str], port: int) -> dict[str, AddressFacts]:
    """Each for itself and all at once, so that one that hangs costs the others nothing."""
    tried = await asyncio.gather(*(_connect(client, address, port) for address in addresses))
    found = {}
    for address, (reason, sock, seconds) in zip(addresses, tried, strict=True):
        if sock is not None:
            sock.close()
        found[address] = AddressFacts(address, None, reason.value, round(seconds, 6))
    return found


async def _connect(client: DispatchClient, address: str, port: int) -> tuple[Reason, socket.socket | None, float]:
    """A connected socket, or why there is none, and the seconds."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Reason, socket.socket | None]] = loop.create_future()

    def end(reason: Reason, sock: socket.socket | None) -> None:
        if not done.done():
            done.set_result((reason, sock))
        elif sock is not None:  # the limit was faster
            sock.close()

    dial = Dial(loop, (address,), port, lambda sock, _: end(Reason.OK, sock), lambda reason: end(reason, None))
    began = client.clock.monotonic()
    try:
        dial.start()
        await asyncio.wait((done,), timeout=client.policy.connect_timeout)
        reason, sock = done.result() if done.done() else (Reason.CONNECT_TIMEOUT, None)
    except asyncio.CancelledError:
        if done.done() and (late := done.result()[1]) is not None:
            late.close()
        raise
    finally:
        dial.cancel()
        done.cancel()
    return reason, sock, client.clock.monotonic() - began


async def _handshakes(client: DispatchClient, address: str, target: Target, tls: TLSProfile | None) -> TlsFacts:
    """One as deliveries make it; where it does not show the chain, one more of an older version, which does."""
    facts = await _handshake(client, address, target, tls)
    if len(facts.chain) < 2 and facts.reason != Reason.TLS_TIMEOUT.value:
        shown = await _handshake(client, address, target, tls, in_the_clear=True)
        facts = replace(facts, chain=shown.chain or facts.chain)
    return facts


async def _handshake(
    client: DispatchClient, address: str, target: Target, tls: TLSProfile | None, *, in_the_clear: bool = False
) -> TlsFacts:
    reason, sock, _ = await _connect(client, address, target.port)
    if sock is None:
        return TlsFacts(reason.value, 0.0, None, None, None, ())
    patience = client.policy.tls_timeout or client.policy.connect_timeout
    return await shake_hands(sock, target.sni, tls, patience, client.clock, in_the_clear=in_the_clear)


async def _look_at_reference(client: DispatchClient, url: str) -> ReferenceFacts:
    target = client.check_url(url)
    if isinstance(target, Denied):
        return ReferenceFacts(target.subject, target.reason.value, None, None, None)
    addresses: Sequence[str]
    dns, seconds = _OK, None
    if target.address is not None:
        addresses = (target.address,)
    else:
        name, answers = await _look_up(client, target.host)
        dns, seconds = name.reason, name.seconds
        checked = client.rules.check_addresses(answers, name.chain) if answers else answers
        if isinstance(checked, Denied):
            return ReferenceFacts(target.origin, checked.reason.value, seconds, None, None)
        addresses = checked
    if not addresses:
        return ReferenceFacts(target.origin, dns, seconds, None, None)
    reason, sock, connect_seconds = await _connect(client, addresses[0], target.port)
    if sock is not None:
        sock.close()
    return ReferenceFacts(target.origin, dns, seconds, reason.value, round(connect_seconds, 6))
