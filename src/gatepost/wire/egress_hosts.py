"""Decides whether the host of a URL is a name or address we understand exactly as the resolver and the receiver will.

Refuses every spelling that two parsers read differently (octal and hexadecimal IPv4, percent-encoding, full-width
digits, broken punycode), and names that belong to private networks. Called by `egress.check_url`, and for each name of a
CNAME chain by `egress_addresses`; looks nothing up.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

import idna

from gatepost.wire.egress_policy import Denied, EgressPolicy
from gatepost.wire.egress_tables import METADATA_NAMES, SPECIAL_USE_SUFFIXES
from gatepost.wire.reasons import Reason

NAME_MAX: Final = 253
"""Characters of a name without its final dot (RFC 1035 section 2.3.4)."""
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_WRITE_NAME: Final = "Write the host as the receiver's certificate names it, for example hooks.example.com."
_WRITE_IPV4: Final = "Write the address as four decimal numbers without leading zeros, or use the receiver's name."


class Host(NamedTuple):
    """A host in its one spelling: lower case, A-labels, no final dot, no brackets."""

    name: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    """Set when the host is an address; `name` is then its canonical text."""


def parse_host(text: str) -> Host | Denied:
    """The host of an authority without brackets, as it stands in the URL."""
    if not text:
        return Denied(Reason.HOST_EMPTY, "the URL names no host", "host", "Write https://host/path.")
    if "%" in text:
        return Denied(Reason.HOST_PERCENT_ENCODED, "a host is never percent-encoded", _shown(text), _WRITE_NAME)
    if "[" in text or "]" in text:
        return _bad_bracket(text)
    name = text
    if not name.isascii():
        encoded = _encode_idn(name)
        if isinstance(encoded, Denied):
            return encoded
        name = encoded
    name = name.lower()
    absolute = name.endswith(".")
    name = name.removesuffix(".")
    last = name.rpartition(".")[2]
    # The WHATWG URL standard's "ends in a number" rule: what a browser or libc would take for IPv4 must be exactly that.
    if last.isdecimal() or last.startswith("0x"):
        return _parse_ipv4(text, name, absolute)
    return _check_labels(text, name)


def parse_bracketed(text: str) -> Host | Denied:
    """What stands between `[` and `]`: an IPv6 address without zone (RFC 3986 section 3.2.2)."""
    if "%" in text:
        return Denied(
            Reason.IPV6_ZONE_ID,
            "a zone names an interface of this machine",
            f"[{_shown(text)}]",
            "Write the address without %zone; link-local addresses cannot be receivers.",
        )
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return _bad_bracket(f"[{text}]")
    return Host(str(address), address)


def check_name(name: str, policy: EgressPolicy) -> Denied | None:
    """Whether a name (lower case, A-labels, no final dot) may be asked for at all."""
    if name in policy.internal_hosts:
        return None
    if name in METADATA_NAMES:
        return Denied(
            Reason.HOST_METADATA,
            "the name belongs to a cloud metadata service, which hands out credentials",
            name,
            "Register the receiver's own name.",
        )
    labels = name.split(".")
    for start in range(len(labels)):
        suffix = ".".join(labels[start:])
        if suffix in SPECIAL_USE_SUFFIXES:
            return Denied(
                Reason.HOST_SPECIAL_USE,
                f"names under .{suffix} belong to private networks or to no one",
                name,
                f"If this receiver is yours, add {name!r} to internal_hosts and its network to allow_cidrs.",
            )
    if len(labels) == 1:
        return Denied(
            Reason.HOST_SINGLE_LABEL,
            "a name without a dot resolves only inside a private network",
            name,
            f"Write the full name; if this receiver is yours, add {name!r} to internal_hosts and its network to allow_cidrs.",
        )
    return None


def _encode_idn(text: str) -> str | Denied:
    try:
        encoded = idna.encode(text, uts46=True, std3_rules=True, transitional=False).decode("ascii")
    except UnicodeError:  # idna.IDNAError is one
        return Denied(
            Reason.IDN_INVALID, "the name is no valid international domain name (RFC 5891)", _shown(text), _WRITE_NAME
        )
    if not any(label.startswith("xn--") for label in encoded.split(".")):
        return Denied(
            Reason.IDN_MAPS_TO_ASCII,
            "look-alike characters hide a plain name or address",
            _shown(text),
            f"Write {encoded!r} if that is the host you mean.",
        )
    return encoded


def _parse_ipv4(text: str, name: str, absolute: bool) -> Host | Denied:
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError:
        address = None
    if address is None or absolute or str(address) != name:
        return Denied(
            Reason.IPV4_NONCANONICAL,
            "a host that ends in a number must be an IPv4 address in its usual spelling",
            _shown(text),
            _WRITE_IPV4,
        )
    return Host(name, address)


def _check_labels(text: str, name: str) -> Host | Denied:
    if len(name) > NAME_MAX:
        return _bad_host(text, f"a host name has at most {NAME_MAX} characters")
    for label in name.split("."):
        if _LABEL.fullmatch(label) is None:
            return _bad_host(text, "each part of a host name is 1 to 63 letters, digits or hyphens, none at either end")
        if label.startswith("xn--") and not _is_valid_alabel(label):
            return Denied(
                Reason.IDN_INVALID, f"{label!r} is no valid international label (RFC 5891)", _shown(text), _WRITE_NAME
            )
    return Host(name, None)


def _is_valid_alabel(label: str) -> bool:
    try:
        return idna.alabel(idna.ulabel(label)).decode("ascii") == label
    except UnicodeError:
        return False


def _bad_host(text: str, rule: str) -> Denied:
    return Denied(Reason.HOST_INVALID, rule, _shown(text), _WRITE_NAME)


def _bad_bracket(text: str) -> Denied:
    return Denied(
        Reason.HOST_BRACKET_INVALID,
        "brackets enclose exactly one IPv6 address",
        _shown(text),
        "Write https://[2001:db8::1]/ for an address, and names and IPv4 addresses without brackets.",
    )


def _shown(text: str) -> str:
    """Part of a refused host, fit for a log line: ASCII and bounded."""
    return ascii(text[:100])[1:-1]
