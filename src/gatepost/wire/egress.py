"""Decides whether a URL may be called at all, and takes it apart once, strictly, into what dialler and request need.

Refuses whatever two URL parsers could read differently, so that the host checked here is the host connected to; looks
nothing up. Called when an endpoint is registered, before each attempt, and for each hop of a redirect; the addresses
behind a name are then judged by `check_addresses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gatepost.wire.egress_addresses import canonical, check_address, check_addresses
from gatepost.wire.egress_hosts import Host, check_name, parse_bracketed, parse_host
from gatepost.wire.egress_policy import Denied, EgressPolicy
from gatepost.wire.egress_tables import FIRST_FREE_PORT, SERVICE_PORTS
from gatepost.wire.reasons import Reason

__all__ = [
    "Denied",
    "EgressPolicy",
    "Target",
    "canonical",
    "check_address",
    "check_addresses",
    "check_url",
]

URL_BYTES_MAX: Final = 2_048
"""Bytes of UTF-8. Longer request lines are refused by common servers, so such a URL would fail anyway."""
DEFAULT_PORTS: Final = {"https": 443, "http": 80}

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SPACE: Final = re.compile(r"\s")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AFTER_SCHEME: Final = re.compile(r"//([^/?#]*)([^#]*)(#?)")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_WRITE_URL: Final = "Write https://host/path."


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed, in parts; nothing later reads the text again. `repr` shows neither path nor query."""

    scheme: str
    """`https` or `http`."""
    host: str
    """Lower case, A-labels, no final dot, no brackets. Also the name for certificate checks."""
    port: int
    target: str = field(repr=False)
    """Path and query as given, for the request line (RFC 9112 section 3.2.1); starts with `/`."""
    origin: str
    """`scheme://host:port`, the pool's "host"."""
    address: str | None
    """The canonical address when the URL names one, already checked; else the host must be resolved."""
    sni: str
    """What TLS is told to expect: the host. (`ssl` sends no SNI for addresses but checks them against the certificate.)"""
    authority: str
    """The `Host` header: host, brackets where needed, and the port unless it is the scheme's own."""


def check_url(
    url: str,
    policy: EgressPolicy,
    own_addresses: frozenset[str] = frozenset(),
    *,
    nat64_seen: tuple[str, ...] = (),
) -> Target | Denied:
    """Take a URL apart, or say why it is refused. Raises `TypeError` when `url` is not text."""
    if not isinstance(url, str):
        raise TypeError(f"url must be str, not {type(url).__name__}")
    denied = _check_characters(url)
    if denied is not None:
        return denied
    parts = _split(url, policy)
    if isinstance(parts, Denied):
        return parts
    scheme, authority, target = parts
    split = _split_authority(authority)
    if isinstance(split, Denied):
        return split
    host, port_text = split
    denied = _check_host(host, policy)
    if denied is not None:
        return denied
    port = _parse_port(port_text, scheme, policy)
    if isinstance(port, Denied):
        return port
    if host.address is not None:
        denied = check_address(host.name, policy, own_addresses, nat64_seen=nat64_seen)
        if denied is not None:
            return denied
    shown = f"[{host.name}]" if ":" in host.name else host.name
    return Target(
        scheme=scheme,
        host=host.name,
        port=port,
        target=target,
        origin=f"{scheme}://{shown}:{port}",
        address=None if host.address is None else host.name,
        sni=host.name,
        authority=shown if port == DEFAULT_PORTS[scheme] else f"{shown}:{port}",
    )


def _check_characters(url: str) -> Denied | None:
    if len(url) > URL_BYTES_MAX or len(url.encode("utf-8", "surrogatepass")) > URL_BYTES_MAX:
        return Denied(
            Reason.URL_TOO_LONG,
            f"a URL has at most {URL_BYTES_MAX} bytes",
            "URL",
            "Move what is long into the payload.",
        )
    if _CONTROL.search(url):
        return Denied(
            Reason.URL_CONTROL_CHAR,
            "a URL holds no control characters",
            "URL",
            "Remove line breaks, tabs and the like.",
        )
    if _SPACE.search(url):
        return Denied(
            Reason.URL_WHITESPACE, "a URL holds no blanks", "URL", "Remove them, or write %20 in path and query."
        )
    if "\\" in url:
        return Denied(
            Reason.URL_BACKSLASH,
            "parsers disagree on what a backslash means",
            "URL",
            "Write / or, in path and query, %5C.",
        )
    return None


def _split(url: str, policy: EgressPolicy) -> tuple[str, str, str] | Denied:
    """Scheme, authority and request target, as RFC 3986 appendix B but without its forgiveness."""
    match = _SCHEME.match(url)
    if match is None:
        return Denied(Reason.URL_MALFORMED, "the URL does not start with a scheme", "URL", _WRITE_URL)
    scheme = match[1].lower()
    if scheme not in DEFAULT_PORTS:
        return Denied(Reason.SCHEME_NOT_ALLOWED, f"{scheme[:20]!r} is no scheme for webhooks", scheme[:20], _WRITE_URL)
    rest = _AFTER_SCHEME.match(url, match.end())
    if rest is None:
        return Denied(Reason.URL_MALFORMED, "two slashes must follow the scheme", "URL", _WRITE_URL)
    authority, target, fragment = rest.groups()
    if fragment:
        return Denied(
            Reason.FRAGMENT_PRESENT, "a fragment is never sent to the receiver", "URL", "Remove # and what follows it."
        )
    if not target.isascii():
        return Denied(
            Reason.URL_NON_ASCII,
            "path and query are ASCII",
            "URL",
            "Percent-encode other characters as UTF-8 (RFC 3987).",
        )
    if scheme not in policy.schemes:
        return Denied(
            Reason.SCHEME_NOT_ALLOWED,
            f"{scheme} is not in schemes={policy.schemes!r}",
            scheme,
            f"Write https://, or add {scheme!r} to schemes for receivers you operate.",
        )
    if not target.startswith("/"):
        target = "/" + target
    return scheme, authority, target


def _split_authority(authority: str) -> tuple[Host, str | None] | Denied:
    """The host and the text after its colon, None when there is no colon."""
    if "@" in authority:
        return Denied(
            Reason.USERINFO_PRESENT,
            "user names and passwords in a URL are read differently by different parsers, and end up in logs",
            "URL",
            "Put credentials into the endpoint's headers, and remove everything up to the @.",
        )
    if authority.startswith("["):
        inside, closing, after = authority[1:].partition("]")
        whole = closing and after[:1] in ("", ":")
        host = parse_bracketed(inside) if whole else parse_host(authority)  # which says what is wrong
        port_text = after[1:] if after else None
    else:
        text, colon, rest = authority.partition(":")
        host = parse_host(text)
        port_text = rest if colon else None
    return host if isinstance(host, Denied) else (host, port_text)


def _check_host(host: Host, policy: EgressPolicy) -> Denied | None:
    if host.address is None:
        return check_name(host.name, policy)
    if not policy.allow_ip_literals:
        return Denied(
            Reason.IP_LITERAL_FORBIDDEN,
            "allow_ip_literals is off",
            host.name,
            "Use the receiver's name, or set allow_ip_literals to true.",
        )
    return None


def _parse_port(text: str | None, scheme: str, policy: EgressPolicy) -> int | Denied:
    if text is None:
        port = DEFAULT_PORTS[scheme]
    elif _PORT.fullmatch(text) is None or int(text) > 65_535:
        # Shown only when it is a number: in https://user:pass/word@host the "port" is half a password.
        shown = f" {text[:20]}" if _NUMBER.fullmatch(text) else ""
        return Denied(
            Reason.PORT_INVALID,
            "a port is a plain number from 1 to 65535",
            f"port{shown}",
            "Write it without sign or leading zeros, or leave out the colon too.",
        )
    else:
        port = int(text)
    if policy.ports == "default":
        usual = port == 443 or (port == 80 and scheme == "http")
        if usual or (port >= FIRST_FREE_PORT and port not in SERVICE_PORTS):
            return port
        rule = "the default port rule opens 443, 80 for http, and 1024 and above less the ports of other services"
    else:
        if port in policy.ports:
            return port
        rule = f"ports={policy.ports!r} does not list it"
    return Denied(
        Reason.PORT_NOT_ALLOWED, rule, f"port {port}", f"Move the receiver to an open port, or list {port} in ports."
    )
