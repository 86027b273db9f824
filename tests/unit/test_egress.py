"""What the corpus does not show: the parts of a target, the edges of the address rules, and misuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gatepost.errors import ConfigurationError
from gatepost.wire.egress import Denied, EgressPolicy, Target, check_address, check_addresses, check_url
from gatepost.wire.egress_addresses import decode_nat64
from gatepost.wire.reasons import Reason

OPEN = EgressPolicy(schemes=("https", "http"), allow_cidrs=("127.0.0.0/8", "::1/128"))


def target(url: str, policy: EgressPolicy = OPEN) -> Target:
    """The parts of a URL that must pass."""
    result = check_url(url, policy)
    assert isinstance(result, Target), result
    return result


def denied(result: object) -> Denied:
    """A refusal that must be one."""
    assert isinstance(result, Denied), result
    return result


def test_a_target_holds_what_dialler_and_request_need() -> None:
    """Nothing later reads the URL again, so nothing later can read it differently."""
    assert target("HTTPS://Hooks.Example.com.:8443?x=%20&y") == Target(
        scheme="https",
        host="hooks.example.com",
        port=8443,
        target="/?x=%20&y",
        origin="https://hooks.example.com:8443",
        address=None,
        sni="hooks.example.com",
        authority="hooks.example.com:8443",
    )
    assert target("http://127.0.0.1/a//b/../c") == Target(
        "http", "127.0.0.1", 80, "/a//b/../c", "http://127.0.0.1:80", "127.0.0.1", "127.0.0.1", "127.0.0.1"
    )
    assert target("https://[0:0:0:0:0:0:0:1]:8443") == Target(
        "https", "::1", 8443, "/", "https://[::1]:8443", "::1", "::1", "[::1]:8443"
    )
    assert target("https://b\u00fccher.example.com/").host == "xn--bcher-kva.example.com"


def test_a_target_does_not_show_path_or_query() -> None:
    """They carry tokens, and a repr ends in logs."""
    assert "s3cret" not in repr(target("https://hooks.example.com/s3cret?token=s3cret"))


@pytest.mark.parametrize(
    "url",
    [
        "https://h.example.com/s3cret#s3cret",
        "https://u:s3cret@h.example.com/",
        "https://u:s3cret/x@h.example.com/",
        "s3cret",
    ],
)
def test_refusals_do_not_show_secrets(url: str) -> None:
    """A refusal is shown to customers and logged."""
    assert "s3cret" not in str(denied(check_url(url, OPEN)))


@pytest.mark.parametrize("url", [b"https://hooks.example.com/", None, 1])
def test_a_url_must_be_text(url: Any) -> None:
    """Misuse raises before anything is sent."""
    with pytest.raises(TypeError, match="url must be str"):
        check_url(url, OPEN)


def test_length_is_counted_in_bytes() -> None:
    """A path of 2,048 ASCII bytes passes, one byte more does not, nor do fewer characters of more bytes."""
    room = 2_048 - len("https://hooks.example.com/")
    target("https://hooks.example.com/" + "a" * room)
    for path in ("a" * (room + 1), "\u00e9" * (room // 2 + 1), "\ud800" * (room // 3 + 1)):
        assert denied(check_url("https://hooks.example.com/" + path, OPEN)).reason is Reason.URL_TOO_LONG


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://[::1", Reason.HOST_BRACKET_INVALID),
        ("https://a[::1]/", Reason.HOST_BRACKET_INVALID),
        ("https://[::1]a/", Reason.HOST_BRACKET_INVALID),
        ("https://[::1]:/", Reason.PORT_INVALID),
        ("https://[::1]:443:1/", Reason.PORT_INVALID),
        ("https://:443/", Reason.HOST_EMPTY),
        ("https://hooks.example.com:65536/", Reason.PORT_INVALID),
        ("https://hooks.example.com:443\u0660/", Reason.PORT_INVALID),
        ("https://" + "a" * 64 + ".example.com/", Reason.HOST_INVALID),
        ("https://a_b.example.com/", Reason.HOST_INVALID),
        ("https://xn--bcher-kvb.example.com/", Reason.IDN_INVALID),
        ("https://\ud800.example.com/", Reason.IDN_INVALID),
        ("https://127.0.0.1.:8443/", Reason.IPV4_NONCANONICAL),
        ("https://example.0x/", Reason.IPV4_NONCANONICAL),
        ("https://256.1.1.1/", Reason.IPV4_NONCANONICAL),
        ("hooks.example.com/in", Reason.URL_MALFORMED),
        ("", Reason.URL_MALFORMED),
        ("localhost:8080/in", Reason.SCHEME_NOT_ALLOWED),
        ("https://hooks.example.com/\u3000", Reason.URL_WHITESPACE),
    ],
)
def test_malformed_urls(url: str, reason: Reason) -> None:
    """Edges beside the corpus."""
    assert denied(check_url(url, OPEN)).reason is reason


def test_names_of_253_characters_pass_and_longer_ones_do_not() -> None:
    """RFC 1035; the final dot does not count."""
    name = ".".join(["a" * 63] * 3 + ["b" * 57, "com"])
    assert len(name) == 253
    assert target(f"https://{name}./").host == name
    assert denied(check_url(f"https://b{name}/", OPEN)).reason is Reason.HOST_INVALID


def test_ports_follow_the_policy() -> None:
    """The default rule is for the public Internet; a list is exact, service ports included."""
    default, listed = OPEN, EgressPolicy(ports=(443, 5432))
    assert target("http://hooks.example.com:443/", default).port == 443
    assert target("https://hooks.example.com:1024/", default).port == 1024
    assert target("https://hooks.example.com:5432/", listed).port == 5432
    assert denied(check_url("https://hooks.example.com:80/", default)).reason is Reason.PORT_NOT_ALLOWED
    assert denied(check_url("https://hooks.example.com:8443/", listed)).reason is Reason.PORT_NOT_ALLOWED
    assert denied(check_url("https://hooks.example.com/", EgressPolicy(ports=[8443]))).reason is Reason.PORT_NOT_ALLOWED


def test_plain_http_needs_the_setting() -> None:
    """And the message names it."""
    refusal = denied(check_url("http://hooks.example.com/", EgressPolicy()))
    assert refusal.reason is Reason.SCHEME_NOT_ALLOWED
    assert "schemes" in refusal.remedy


def test_literals_can_be_switched_off() -> None:
    """Some operators want names only; the message says which setting."""
    refusal = denied(check_url("https://8.8.8.8/", EgressPolicy(allow_ip_literals=False)))
    assert refusal.reason is Reason.IP_LITERAL_FORBIDDEN
    assert "allow_ip_literals" in str(refusal)


def test_internal_hosts_open_names_but_not_addresses() -> None:
    """Both locks must be opened on purpose."""
    policy = EgressPolicy(internal_hosts=("Receiver.", "vault.corp.internal"), allow_cidrs=("10.20.0.0/16",))
    assert target("https://receiver/", policy).host == "receiver"
    assert target("https://VAULT.corp.internal./", policy).host == "vault.corp.internal"
    assert denied(check_url("https://a.vault.corp.internal/", policy)).reason is Reason.HOST_SPECIAL_USE
    assert check_addresses(["10.20.0.1"], policy, ["receiver"]) == ("10.20.0.1",)
    assert denied(check_addresses(["10.21.0.1"], policy)).reason is Reason.ADDR_PRIVATE


def test_answers_come_back_canonical_once_and_in_order() -> None:
    """The dialler compares them with the peer's address as text."""
    answers = ["2606:4700:4700:0::1111", "93.184.216.34", "2606:4700:4700::1111", "93.184.216.34"]
    assert check_addresses(answers, EgressPolicy()) == ("2606:4700:4700::1111", "93.184.216.34")


def test_a_mixed_answer_names_the_first_refused_address_and_says_when_only_ipv6_is() -> None:
    """The commonest cause is a forgotten AAAA record, which nobody finds from the code alone."""
    refusal = denied(check_addresses(["93.184.216.34", "fd00::1"], EgressPolicy()))
    assert (refusal.reason, refusal.subject) == (Reason.DNS_MIXED_ANSWERS, "fd00::1")
    assert "1 of 2" in refusal.rule
    assert "AAAA" in refusal.remedy
    assert "AAAA" not in denied(check_addresses(["10.0.0.1", "93.184.216.34"], EgressPolicy())).remedy
    assert "AAAA" not in denied(check_addresses(["fd00::1", "2606:4700::1"], EgressPolicy())).remedy


def test_too_many_answers_counts_before_duplicates_go() -> None:
    """A resolver that repeats itself a thousand times is broken, too."""
    policy = EgressPolicy(max_answers=2)
    assert check_addresses(["93.184.216.34"] * 2, policy) == ("93.184.216.34",)
    assert denied(check_addresses(["93.184.216.34"] * 3, policy)).reason is Reason.DNS_TOO_MANY_ANSWERS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fe80::1%eth0", Reason.IPV6_ZONE_ID),
        ("2606:4700::1%1", Reason.IPV6_ZONE_ID),
        ("0177.0.0.1", Reason.IPV4_NONCANONICAL),
        ("hooks.example.com", Reason.IPV4_NONCANONICAL),
        ("", Reason.IPV4_NONCANONICAL),
        ("\u0661.1.1.1", Reason.IPV4_NONCANONICAL),
        ("2606:::1", Reason.ADDR_NOT_GLOBAL_UNICAST),
    ],
)
def test_what_is_no_plain_address_is_refused(text: str, reason: Reason) -> None:
    """Resolvers are replaceable, so their answers are input like any other."""
    refusal = denied(check_address(text, EgressPolicy(allow_cidrs=("0.0.0.0/0", "::/0"))))
    assert refusal.reason is reason
    assert str(refusal).isascii()


def test_own_addresses_are_refused_unless_allowed() -> None:
    """Services bound to all interfaces answer on public addresses of this machine, too."""
    own = frozenset({"198.20.30.40", "2606:4700::40"})
    for address in sorted(own):
        refusal = denied(check_address(address, EgressPolicy(), own))
        assert refusal.reason is Reason.ADDR_LOCAL_INTERFACE
        assert check_address(address, EgressPolicy()) is None
        assert check_address(address, EgressPolicy(allow_cidrs=(address,)), own) is None
    assert denied(check_url("https://198.20.30.40/", EgressPolicy(), own)).reason is Reason.ADDR_LOCAL_INTERFACE
    assert denied(check_addresses(["198.20.30.40"], EgressPolicy(), (), own)).reason is Reason.ADDR_LOCAL_INTERFACE
    behind = EgressPolicy(nat64_prefixes=("64:ff9b::/96",))
    assert denied(check_address("64:ff9b::198.20.30.40", behind, own)).reason is Reason.ADDR_LOCAL_INTERFACE


def test_rules_apply_in_their_order() -> None:
    """Metadata, operator deny, declared NAT64, operator allow, own interfaces, deny table, global unicast."""
    own = frozenset({"10.0.0.1"})
    everything = ("0.0.0.0/0", "::/0")
    deny_over_allow = EgressPolicy(deny_cidrs=("10.0.0.0/8", "169.254.0.0/16"), allow_cidrs=everything)
    assert denied(check_address("169.254.169.254", deny_over_allow)).reason is Reason.ADDR_METADATA
    assert denied(check_address("10.0.0.1", deny_over_allow, own)).reason is Reason.ADDR_OPERATOR_DENIED
    nat64_over_allow = EgressPolicy(nat64_prefixes=("2606:4700:64::/96",), allow_cidrs=("::/0",))
    assert denied(check_address("2606:4700:64::10.0.0.1", nat64_over_allow)).reason is Reason.ADDR_PRIVATE
    deny_over_nat64 = EgressPolicy(nat64_prefixes=("64:ff9b::/96",), deny_cidrs=("64:ff9b::/96",))
    assert denied(check_address("64:ff9b::8.8.8.8", deny_over_nat64)).reason is Reason.ADDR_OPERATOR_DENIED
    assert check_address("10.0.0.1", EgressPolicy(allow_cidrs=everything), own) is None
    assert denied(check_address("10.0.0.1", EgressPolicy(), own)).reason is Reason.ADDR_LOCAL_INTERFACE
    assert check_address("4000::1", EgressPolicy(allow_cidrs=("4000::/16",))) is None


def test_nat64_checks_the_address_inside() -> None:
    """IPv6-only platforms reach the whole IPv4 Internet through one prefix, the private parts included."""
    policy = EgressPolicy(nat64_prefixes=("64:ff9b::/96",), deny_cidrs=("9.9.9.0/24",), allow_cidrs=("10.20.0.0/16",))
    assert check_address("64:ff9b::8.8.8.8", policy) is None
    assert check_address("64:ff9b::10.20.0.1", policy) is None
    assert denied(check_address("64:ff9b::9.9.9.9", policy)).reason is Reason.ADDR_OPERATOR_DENIED
    refusal = denied(check_address("64:ff9b::169.254.169.254", policy))
    assert refusal.reason is Reason.ADDR_METADATA
    assert "169.254.169.254" in refusal.rule


def test_the_most_specific_nat64_prefix_decodes() -> None:
    """Overlapping declarations must not read another IPv4 address than the translator does."""
    policy = EgressPolicy(nat64_prefixes=("64:ff9b:1::/48", "64:ff9b:1::/96"))
    assert check_address("64:ff9b:1::8.8.8.8", policy) is None  # under /48 this would be 0.0.0.8


def test_undeclared_nat64_is_refused_and_the_setting_named() -> None:
    """On an IPv6-only platform every IPv4-only receiver fails until it is declared."""
    for address, seen in (("64:ff9b::8.8.8.8", ()), ("2606:4700:64::8.8.8.8", ("2606:4700:64::/96",))):
        refusal = denied(check_address(address, EgressPolicy(), nat64_seen=seen))
        assert refusal.reason is Reason.ADDR_NAT64
        assert "nat64_prefixes" in refusal.remedy
        assert address.split("::")[0] in refusal.remedy
    assert check_address("2606:4700::1", EgressPolicy(), nat64_seen=("2606:4700:64::/96",)) is None
    declared = EgressPolicy(nat64_prefixes=("2606:4700:64::/96",))
    assert check_address("2606:4700:64::8.8.8.8", declared, nat64_seen=("2606:4700:64::/96",)) is None


@pytest.mark.parametrize(
    ("address", "length"),
    [
        (0x20010DB8C0000221_0000000000000000, 32),
        (0x20010DB801C00002_0021000000000000, 40),
        (0x20010DB80122C000_0002210000000000, 48),
        (0x20010DB8012203C0_0000022100000000, 56),
        (0x20010DB801220344_00C0000221000000, 64),
        (0x20010DB801220344_00000000C0000221, 96),
    ],
)
def test_nat64_decodes_the_table_of_rfc_6052(address: int, length: int) -> None:
    """192.0.2.33 in each prefix length, from section 2.4."""
    assert decode_nat64(address, length) == 0xC0000221
    if length != 96:
        assert decode_nat64(address | 1 << 56, length) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schemes": ()}, "schemes"),
        ({"schemes": ("ftp",)}, 'write \\("https",\\)'),
        ({"schemes": "https"}, "write a list"),
        ({"allow_cidrs": "10.0.0.0/8"}, "write a list of texts"),
        ({"allow_cidrs": None}, "write a list of texts"),
        ({"allow_cidrs": (1,)}, "is no text"),
        ({"allow_cidrs": ("10.0.0.1/8",)}, "has host bits set"),
        ({"deny_cidrs": ("ten",)}, "write CIDR"),
        ({"deny_cidrs": ("fe80::1%eth0",)}, "zone"),
        ({"allow_cidrs": ("::ffff:10.0.0.0/104",)}, "write the IPv4 network itself"),
        ({"allow_cidrs": ("2002:a00::/24",)}, "nat64_prefixes"),
        ({"nat64_prefixes": ("10.0.0.0/8",)}, "RFC 6052"),
        ({"nat64_prefixes": ("64:ff9b::/95",)}, "RFC 6052"),
        ({"nat64_prefixes": ("2606:4700:64:0:ff00::/96",)}, "bits 64 to 71"),
        ({"ports": "strict"}, 'write "default" or a list'),
        ({"ports": ()}, "empty"),
        ({"ports": 443}, 'write "default" or a list'),
        ({"ports": (0,)}, "no port"),
        ({"ports": (True,)}, "no port"),
        ({"ports": ("443",)}, "no port"),
        ({"ports": (65_536,)}, "no port"),
        ({"allow_ip_literals": 1}, "True or False"),
        ({"max_answers": 0}, "write 1 to"),
        ({"max_answers": 1_001}, "write 1 to"),
        ({"max_answers": True}, "whole number"),
        ({"max_answers": 1.5}, "whole number"),
        ({"internal_hosts": ("https://receiver/",)}, "exact host name"),
        ({"internal_hosts": ("*.internal",)}, "exact host name"),
        ({"internal_hosts": (".",)}, "exact host name"),
        ({"internal_hosts": ("b\u00fccher",)}, "xn--"),
    ],
)
def test_impossible_policies_are_refused_with_the_way_out(fields: dict[str, Any], message: str) -> None:
    """A typing error in a security setting must not start."""
    with pytest.raises(ConfigurationError, match=message):
        EgressPolicy(**fields)


def test_equal_policies_are_one_cache_key_and_travel() -> None:
    """Spelling, duplicates and container do not matter; processes pass policies around."""
    first = EgressPolicy(allow_cidrs=["10.0.0.0/8", "10.0.0.0/8"], ports=[443, 443], internal_hosts=["A."])
    again = EgressPolicy(allow_cidrs=("10.0.0.0/8",), ports=(443,), internal_hosts=("a",))
    assert first == again
    assert hash(first) == hash(again)
    assert first != EgressPolicy()
    copied = pickle.loads(pickle.dumps(first))
    assert copied == first
    assert check_address("10.0.0.1", copied) is None
    assert "allow_networks" not in repr(first)
