"""Properties of the egress rules over all addresses and URLs, against a slow and independent reading of the same table."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from gatepost.wire.egress import Denied, EgressPolicy, Target, canonical, check_address, check_addresses, check_url
from gatepost.wire.egress_addresses import decode_nat64

TABLES: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "egress_tables.json").read_text(encoding="utf-8")
)
METADATA = {ipaddress.ip_address(text) for text in TABLES["metadata_addresses"]}
DEFAULT = EgressPolicy()

_ROWS4 = [ipaddress.IPv4Network(row["cidr"]) for row in TABLES["deny_ipv4"]]
_ROWS6 = [ipaddress.IPv6Network(row["cidr"]) for row in TABLES["deny_ipv6"]]


def inside(networks: list[Any]) -> st.SearchStrategy[Any]:
    """Addresses of these blocks, edges often."""
    return st.sampled_from(networks).flatmap(
        lambda network: st.one_of(
            st.sampled_from([network[0], network[-1]]),
            st.integers(0, network.num_addresses - 1).map(lambda offset: network[offset]),
        )
    )


DENIED_V4 = st.one_of(inside(_ROWS4), st.sampled_from([address for address in METADATA if address.version == 4]))
ANY = st.one_of(
    inside(_ROWS4),
    inside(_ROWS6),
    st.sampled_from(sorted(METADATA, key=str)),
    st.ip_addresses(v=4),
    st.ip_addresses(v=6),
)
CIDRS = st.sampled_from(
    [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "::/0",
        "::/1",
        "2000::/3",
        "fc00::/7",
        "::/8",
        "64:ff9b::/32",
    ]
)


def wrapped(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """The address in every form that carries an IPv4 address inside an IPv6 one."""
    v4 = int(address)
    forms = [
        v4,  # compatible
        0xFFFF << 32 | v4,  # mapped
        0xFFFF << 48 | v4,  # translated
        0x64_FF9B << 96 | v4,  # NAT64, well-known prefix
        0x64_FF9B_0001 << 80 | (v4 >> 16) << 64 | (v4 & 0xFFFF) << 40,  # NAT64, local use /48 (RFC 6052)
        0x64_FF9B_0001 << 80 | v4,  # NAT64, local use /96
        0x2002 << 112 | v4 << 80 | 1,  # 6to4
        0x2001_0000 << 96 | v4 << 64 | 1,  # Teredo server
        0x2001_0000 << 96 | 0x0102_0304 << 64 | (v4 ^ 0xFFFF_FFFF),  # Teredo client
    ]
    return [ipaddress.IPv6Address(form) for form in forms]


@given(address=DENIED_V4, allow=st.lists(CIDRS, max_size=4))
@example(address=ipaddress.IPv4Address("169.254.169.254"), allow=["::/0", "0.0.0.0/0"])
def test_no_wrapped_form_of_an_ipv4_address_passes_whatever_is_allowed(
    address: ipaddress.IPv4Address, allow: list[str]
) -> None:
    """An allowed IPv6 block must not become a tunnel to loopback or to the metadata service."""
    assume(int(address) > 1)  # `::` and `::1` are addresses of their own
    policy = EgressPolicy(allow_cidrs=allow)
    for form in wrapped(address):
        assert check_address(str(form), policy) is not None, form


@given(address=DENIED_V4, length=st.sampled_from([32, 40, 48, 56, 64, 96]))
def test_no_denied_ipv4_address_passes_behind_declared_nat64(address: ipaddress.IPv4Address, length: int) -> None:
    """The declaration opens the translator, not what it can reach."""
    prefix = 0x2606_4700_0064_0000 << 64 >> (128 - length) << (128 - length)
    value = int(address) << (128 - 32 - length) if length == 96 else _with_u_octet(int(address), length)
    text = str(ipaddress.IPv6Address(prefix | value))
    assert decode_nat64(prefix | value, length) == int(address)
    policy = EgressPolicy(nat64_prefixes=(f"{ipaddress.IPv6Address(prefix)}/{length}",))
    assert check_address(text, policy) is not None
    assert check_address(text.upper(), policy) is not None


def _with_u_octet(v4: int, length: int) -> int:
    bits = v4 << (120 - length - 32)  # 120 bits without the u-octet
    return bits >> 56 << 64 | bits & ((1 << 56) - 1)


@given(address=ANY)
def test_the_default_verdict_is_what_the_table_says(address: Any) -> None:
    """Integers and `ipaddress` must agree on every edge."""
    rows: list[Any] = _ROWS4 if address.version == 4 else _ROWS6
    expected = (
        address in METADATA
        or any(address in row for row in rows)
        or (address.version == 6 and address not in ipaddress.IPv6Network(TABLES["ipv6_only_inside"]))
    )
    assert (check_address(str(address), DEFAULT) is not None) == expected


@given(address=ANY, allow=st.lists(CIDRS, max_size=3), deny=st.lists(CIDRS, max_size=3))
def test_lists_apply_in_their_order(address: Any, allow: list[str], deny: list[str]) -> None:
    """Metadata beats deny, deny beats allow, allow beats the table."""
    refusal = check_address(str(address), EgressPolicy(allow_cidrs=allow, deny_cidrs=deny))
    denied_by_list = any(address in ipaddress.ip_network(cidr) for cidr in deny)
    if address in METADATA:
        assert refusal is not None
        assert refusal.reason == "addr_metadata"
    elif denied_by_list:
        assert refusal is not None
        assert refusal.reason == "addr_operator_denied"
    elif refusal is not None:
        plain = check_address(str(address), DEFAULT)
        assert plain == refusal


@given(addresses=st.lists(ANY, min_size=1, max_size=5))
def test_answers_pass_all_or_not_at_all(addresses: list[Any]) -> None:
    """And what passes is canonical, without duplicates, in order."""
    texts = [address.exploded.upper() for address in addresses]
    refused = [check_address(text, DEFAULT) is not None for text in texts]
    result = check_addresses(texts, DEFAULT)
    if any(refused):
        assert isinstance(result, Denied)
        assert (result.reason == "dns_mixed_answers") == (not all(refused))
    else:
        assert result == tuple(dict.fromkeys(str(address) for address in addresses))


@given(address=ANY)
def test_every_spelling_has_one_canonical_text(address: Any) -> None:
    """The peer of a socket is compared with it."""
    assert canonical(address.exploded) == canonical(str(address).upper()) == str(address)


URLS = st.one_of(
    st.text(max_size=40),
    st.builds(
        "{}://{}{}{}{}".format,
        st.sampled_from(["https", "http", "HTTPS", "ftp"]),
        st.sampled_from(["", "u@", "[", "\u2460", "127.", "%31"]),
        st.one_of(
            st.from_regex(r"[a-zA-Z0-9.\-_]{0,30}", fullmatch=True),
            st.text(max_size=20),
            st.ip_addresses(v=6).map(lambda address: f"[{address.exploded}]"),
            st.ip_addresses(v=4).map(str),
        ),
        st.sampled_from(["", ":", ":443", ":0443", ":8443", ":1\u0660"]),
        st.one_of(st.just(""), st.text(max_size=20).map(lambda text: "/" + text), st.just("?a=b")),
    ),
)


@given(url=URLS)
@example(url="https://\u212aubernetes.default.svc.\u24d2om/")
def test_a_target_is_clean_and_reads_the_same_again(url: str) -> None:
    """No input raises, and what passes holds nothing that a second parser could read in another way."""
    policy = EgressPolicy(schemes=("https", "http"))
    result = check_url(url, policy)
    if isinstance(result, Denied):
        assert str(result).isascii()
        assert str(result).isprintable()
        return
    assert isinstance(result, Target)
    for part in (result.host, result.target, result.origin, result.authority):
        assert part.isascii()
        assert part.isprintable()
        assert not any(char in part for char in " \\#@") or part == result.target
    assert result.host == result.host.lower()
    assert not result.host.endswith(".")
    assert result.target.startswith("/")
    assert check_url(result.origin + result.target, policy) == result
    assert check_url(f"{result.scheme}://{result.authority}{result.target}", policy) == result
