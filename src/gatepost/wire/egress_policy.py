"""What an operator may say about destinations, and the verdict `Denied`.

`EgressPolicy` checks and normalises the operator's lists when it is written; it applies none of them. The rules that do
are in `egress_hosts`, `egress_addresses` and `egress`; callers outside `wire` import everything from `gatepost.wire.egress`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from gatepost.errors import ConfigurationError
from gatepost.wire.reasons import Reason

ANSWERS_MAX: Final = 32
"""Addresses accepted for one name: more is a misconfigured zone or an attempt to make one attempt try for ever."""
ANSWERS_CEILING: Final = 1_000
"""Upper end of the setting: a DNS message cannot hold many more."""
NAT64_LENGTHS: Final = (32, 40, 48, 56, 64, 96)
"""The prefix lengths of RFC 6052 section 2.2."""
SCHEMES: Final = ("https", "http")


@dataclass(frozen=True, slots=True)
class Denied:
    """A destination is refused. Meant for the operator: it may name addresses, never secrets, paths or queries."""

    reason: Reason
    rule: str
    """The rule that refused it, as a clause: "10.0.0.0/8 is Private-Use (RFC 1918)"."""
    subject: str
    """What was refused: the host, port, address or scheme."""
    remedy: str
    """What to write or configure instead, as a sentence."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.rule}. {self.remedy}"


class Network(NamedTuple):
    """A CIDR block as two integers, which compare faster than `ipaddress` objects."""

    version: int
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """Which destinations may be called. Lists are sequences of text and are kept as tuples in canonical spelling.

    Raises `ConfigurationError` (a `ValueError`) that says what to write. Equal policies are equal and hash alike, whatever
    spelling they were written in, so verdicts can be cached by policy.
    """

    schemes: Sequence[str] = ("https",)
    """Add "http" only for receivers you operate: a plain request can be read and changed on its way."""
    allow_cidrs: Sequence[str] = ()
    """Networks opened although the deny table refuses them, for example "10.20.0.0/16". Never opens metadata services,
    nor IPv4 addresses written inside IPv6 ones."""
    deny_cidrs: Sequence[str] = ()
    """Networks refused although they are public, for example your own. Beats `allow_cidrs`."""
    nat64_prefixes: Sequence[str] = ()
    """Your platform's NAT64 prefixes (RFC 6052), for example "64:ff9b::/96": the IPv4 address inside is checked instead."""
    ports: Literal["default"] | Sequence[int] = "default"
    """"default": 443, 80 when the scheme is http, and 1024 and above less well-known service ports. A list: exactly these."""
    allow_ip_literals: bool = True
    """Whether a URL may name an address instead of a host. The address is checked either way."""
    max_answers: int = ANSWERS_MAX
    """A name with more addresses is refused."""
    internal_hosts: Sequence[str] = ()
    """Exact host names exempt from the rules on names (single label, special-use). Their addresses are still checked, so
    they usually need an entry in `allow_cidrs` too."""
    allow_networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)
    deny_networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)
    nat64_networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)
    """Longest prefix first, so that the most specific declaration decodes an address."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "schemes", _schemes(self.schemes))
        put(self, "ports", _ports(self.ports))
        put(self, "internal_hosts", _hosts(self.internal_hosts))
        allow = _networks("allow_cidrs", self.allow_cidrs)
        for network in allow:
            _refuse_wrapping(network)
        deny = _networks("deny_cidrs", self.deny_cidrs)
        nat64 = _networks("nat64_prefixes", self.nat64_prefixes)
        for network in nat64:
            _check_nat64(network)
        put(self, "allow_networks", allow)
        put(self, "deny_networks", deny)
        put(self, "nat64_networks", tuple(sorted(nat64, key=lambda network: network.last - network.first)))
        put(self, "allow_cidrs", tuple(network.text for network in allow))
        put(self, "deny_cidrs", tuple(network.text for network in deny))
        put(self, "nat64_prefixes", tuple(network.text for network in nat64))
        if not isinstance(self.allow_ip_literals, bool):
            raise ConfigurationError(f"allow_ip_literals={self.allow_ip_literals!r}: write True or False")
        if isinstance(self.max_answers, bool) or not isinstance(self.max_answers, int):
            raise ConfigurationError(
                f"max_answers={self.max_answers!r}: write a whole number, for example {ANSWERS_MAX}"
            )
        if not 1 <= self.max_answers <= ANSWERS_CEILING:
            raise ConfigurationError(f"max_answers={self.max_answers}: write 1 to {ANSWERS_CEILING}")
        put(
            self,
            "_hash",
            hash(
                (
                    self.schemes,
                    self.allow_cidrs,
                    self.deny_cidrs,
                    self.nat64_prefixes,
                    self.ports,
                    self.allow_ip_literals,
                    self.max_answers,
                    self.internal_hosts,
                )
            ),
        )

    def __hash__(self) -> int:
        # Computed once: the verdict cache hashes the policy at each connection borrow.
        return self._hash


def parse_network(text: str) -> Network:
    """A CIDR block or single address. Raises `ValueError` for anything else, host bits included."""
    if "%" in text:  # ipaddress accepts a zone in some versions
        raise ValueError("an IPv6 zone has no place in a network")
    network = ipaddress.ip_network(text, strict=True)
    return Network(network.version, int(network.network_address), int(network.broadcast_address), str(network))


def find_network(networks: Iterable[Network], version: int, value: int) -> Network | None:
    """The first block that holds the address. Family-exact: an IPv4 block holds no IPv6 address, mapped ones included."""
    for network in networks:
        if network.first <= value <= network.last and network.version == version:
            return network
    return None


WRAPPINGS: Final = tuple(
    parse_network(text)
    for text in (
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
    )
)
"""IPv6 blocks whose addresses contain an IPv4 one (compatible, mapped, translated, NAT64, 6to4, Teredo). `allow_cidrs`
never opens them: an allowed block could otherwise reach any IPv4 address, metadata services included."""


def is_wrapping(version: int, value: int) -> bool:
    """Whether the address is an IPv4 address inside an IPv6 one. `::` and `::1` are themselves, not `0.0.0.0` and `0.0.0.1`."""
    return value > 1 and find_network(WRAPPINGS, version, value) is not None


def _refuse_wrapping(network: Network) -> None:
    for wrapping in WRAPPINGS:
        if (
            network.version == 6
            and wrapping.first <= network.first
            and network.last <= wrapping.last
            and network.last > 1
        ):
            raise ConfigurationError(
                f"allow_cidrs: {network.text} holds IPv4 addresses inside IPv6 ones, which no list opens; write the IPv4 "
                "network itself, or declare your NAT64 prefix in nat64_prefixes"
            )


def _check_nat64(network: Network) -> None:
    length = int(network.text.rpartition("/")[2])
    if network.version != 6 or length not in NAT64_LENGTHS:
        raise ConfigurationError(
            f"nat64_prefixes: {network.text} is no NAT64 prefix; its length must be one of "
            f"{', '.join(f'/{n}' for n in NAT64_LENGTHS)} (RFC 6052 section 2.2), for example 64:ff9b::/96"
        )
    if network.first >> 56 & 0xFF:
        raise ConfigurationError(
            f"nat64_prefixes: {network.text} has bits 64 to 71 set, which RFC 6052 section 2.2 keeps zero; "
            "ask your platform for the prefix it really uses"
        )


def _networks(name: str, texts: Sequence[str]) -> tuple[Network, ...]:
    networks = []
    for text in _texts(name, texts, '("10.20.0.0/16",)'):
        try:
            networks.append(parse_network(text))
        except ValueError as error:
            raise ConfigurationError(
                f"{name}: {text!r} is no network ({error}); write CIDR, for example 10.20.0.0/16 or 2001:db8::/48"
            ) from None
    return tuple(dict.fromkeys(networks))


def _schemes(schemes: Sequence[str]) -> tuple[str, ...]:
    texts = _texts("schemes", schemes, '("https",)')
    if not texts or not set(texts) <= set(SCHEMES):
        raise ConfigurationError(f'schemes={tuple(texts)!r}: write ("https",) or ("https", "http")')
    return tuple(dict.fromkeys(texts))


def _hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    texts = []
    for text in _texts("internal_hosts", hosts, '("receiver",)'):
        name = text.lower().removesuffix(".")
        if not name or not name.isascii() or any(char in name for char in "*/:@[]% \\"):
            raise ConfigurationError(
                f"internal_hosts: {text!r} is no exact host name; write it as in the URL, without scheme, port or "
                "wildcard, and international names in their xn-- form"
            )
        texts.append(name)
    return tuple(dict.fromkeys(texts))


def _ports(ports: Literal["default"] | Sequence[int]) -> Literal["default"] | tuple[int, ...]:
    if ports == "default":
        return "default"
    hint = 'write "default" or a list of port numbers, for example (443, 8443)'
    if isinstance(ports, str | bytes) or not isinstance(ports, Iterable):
        raise ConfigurationError(f"ports={ports!r}: {hint}")
    numbers = tuple(dict.fromkeys(ports))
    if not numbers:
        raise ConfigurationError(f"ports is empty, so that nothing could be delivered: {hint}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65_535:
            raise ConfigurationError(f"ports: {number!r} is no port: {hint}")
    return numbers


def _texts(name: str, values: Sequence[str], example: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{name}={values!r}: write a list of texts, for example {example}")
    texts = tuple(values)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigurationError(f"{name}: {text!r} is no text; write for example {example}")
    return texts
