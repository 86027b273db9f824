"""The egress proxy that attempts leave through, when the deployment has one: where it is, who we are there, and who goes around.

Only given explicitly: the environment is never read. Every connection is a CONNECT tunnel, plain http included, so that the
proxy sees a host and a port and never a payload; `net.tunnel` opens it. URL rules and address literals are checked before the
proxy is asked; names are resolved by the proxy, which must therefore be the filter for their addresses.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gatepost.errors import ConfigurationError
from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import Target

WRITE_URL: Final = "write http://proxy.example.com:3128 or https://proxy.example.com:3129"
_URL: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*)://(?:([^/?#@]*)@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?"
)
_VISIBLE: Final = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """An HTTP proxy that takes CONNECT. Raises `ConfigurationError` that says what to write."""

    url: str
    """`http://host:port`, or `https://host:port` for TLS to the proxy itself. No credentials in it."""
    username: str | None = None
    """For basic authentication (RFC 7617); never sent to a receiver."""
    password: str | None = field(default=None, repr=False)
    no_proxy: Sequence[str] = ()
    """Who is connected to directly: exact host names, `.suffix` for a domain and all below it, addresses or CIDR blocks for
    URLs that name an address. No wildcard: leave the proxy out instead."""
    tls: TLSProfile | None = None
    """TLS to an https proxy; None: the system's authorities."""
    scheme: str = field(init=False, repr=False, compare=False)
    host: str = field(init=False, repr=False, compare=False)
    """Name or address, without brackets."""
    port: int = field(init=False, repr=False, compare=False)
    address: str | None = field(init=False, repr=False, compare=False)
    """The host when it is an address."""
    authorization: str | None = field(init=False, repr=False, compare=False)
    """The value of Proxy-Authorization."""
    _names: frozenset[str] = field(init=False, repr=False, compare=False)
    _suffixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        scheme, host, port = _parse(self.url)
        put(self, "scheme", scheme)
        put(self, "host", host)
        put(self, "port", port)
        try:
            put(self, "address", str(ipaddress.ip_address(host)))
        except ValueError:
            put(self, "address", None)
        put(self, "authorization", _authorization(self.username, self.password))
        if self.tls is not None and scheme == "http":
            raise ConfigurationError("the proxy's tls needs an https:// proxy URL")
        names, suffixes, networks = _read_no_proxy(self.no_proxy)
        put(self, "no_proxy", tuple(self.no_proxy))
        put(self, "_names", names)
        put(self, "_suffixes", suffixes)
        put(self, "_networks", networks)

    def route(self, target: Target) -> ProxyConfig | None:
        """Self, or None for a target that is connected to directly."""
        if target.address is not None:
            address = ipaddress.ip_address(target.address)
            around = any(address.version == network.version and address in network for network in self._networks)
        else:
            around = target.host in self._names or target.host.endswith(self._suffixes)
        return None if around else self


def _parse(url: str) -> tuple[str, str, int]:
    match = _URL.fullmatch(url) if isinstance(url, str) else None
    scheme = match[1].lower() if match else ""
    if scheme.startswith("socks"):
        raise ConfigurationError(
            f"proxy url: {scheme} is not offered, only HTTP proxies that take CONNECT: {WRITE_URL}"
        )
    if match is None or scheme not in ("http", "https"):
        raise ConfigurationError(
            f"proxy url: this is no proxy's address: {WRITE_URL}"
        )  # not shown: it may hold a password
    if match[2] is not None:
        raise ConfigurationError("proxy url: credentials do not belong into it: write username and password apart")
    if match[4] is None or not 1 <= int(match[4]) <= 65_535:
        raise ConfigurationError(f"proxy url: the port is missing or none: {WRITE_URL}")
    return scheme, match[3].strip("[]").lower(), int(match[4])


def _authorization(username: str | None, password: str | None) -> str | None:
    if username is None and password is None:
        return None
    if username is None or password is None:
        raise ConfigurationError("proxy: basic authentication needs both username and password")
    if not _VISIBLE.fullmatch(username) or not _VISIBLE.fullmatch(password) or ":" in username:
        raise ConfigurationError(
            "proxy: username and password are visible ASCII, and the username has no colon (RFC 7617)"
        )
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _read_no_proxy(
    entries: Sequence[str],
) -> tuple[frozenset[str], tuple[str, ...], tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]]:
    if isinstance(entries, str):
        raise ConfigurationError(
            f"no_proxy={entries!r} is one text: write a list, for example ('.internal.example.com',)"
        )
    names: set[str] = set()
    suffixes: list[str] = []
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for entry in entries:
        text = entry.strip().lower() if isinstance(entry, str) else ""
        try:
            networks.append(ipaddress.ip_network(text))
            continue
        except ValueError:
            pass
        if not re.fullmatch(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*", text):
            raise ConfigurationError(
                f"no_proxy: {entry!r} is no name, .suffix, address or network: write hooks.example.com, .example.com or 10.0.0.0/8"
            )
        if text.startswith("."):
            suffixes.append(text)
            names.add(text[1:])
        else:
            names.add(text)
    return frozenset(names), tuple(suffixes), tuple(networks)
