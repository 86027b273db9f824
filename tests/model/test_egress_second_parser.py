"""Whatever `check_url` accepts names the host that an independent parser (ada, the WHATWG URL standard) sees too.

A difference between the parser that checks and the one that connects is the oldest hole of all; here there is one parser, and
this says that it agrees with the one in browsers and Node.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import ada_url
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatepost.wire.egress import EgressPolicy, Target, check_url

CORPUS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "egress.json").read_text(encoding="utf-8"))
OPEN = EgressPolicy(
    schemes=("https", "http"),
    allow_cidrs=("0.0.0.0/0", "::/0"),
    internal_hosts=("localhost", "intranet", "a", "test"),
)
"""Everything the syntax lets through is to be compared, not only what the default tables allow."""
DEFAULT_PORTS = {"https:": 443, "http:": 80}


def assert_same_host(url: str, target: Target) -> None:
    """The other parser reads the same scheme, host and port, and no credentials."""
    parsed = ada_url.URL(url)
    assert parsed.protocol == target.scheme + ":", url
    assert (parsed.username, parsed.password) == ("", ""), url
    port = int(parsed.port) if parsed.port else DEFAULT_PORTS[parsed.protocol]
    assert port == target.port, url
    host = parsed.hostname.removesuffix(".")
    if host.startswith("["):
        assert ipaddress.IPv6Address(host[1:-1]) == ipaddress.IPv6Address(target.host), url
    else:
        assert host == target.host, url
    if target.address is not None:
        assert target.host == target.address
    assert parsed.hash == ""


def compare(url: str) -> None:
    """Refused is always fine; accepted must be the same to both."""
    result = check_url(url, OPEN)
    if isinstance(result, Target):
        assert_same_host(url, result)
        # What is dialled and what is written as Host name the same place as the URL.
        assert_same_host(f"{result.scheme}://{result.authority}{result.target}", result)


HOSTS = st.one_of(
    st.sampled_from(
        [
            "a.example.com", "A.EXAMPLE.com", "a.example.com.", "a.example.com..", "xn--bcher-kva.example.com", "b\u00fccher.example.com",
            "fa\u00df.example.com", "\u0130stanbul.example.com", "\uff41.example.com", "a\u3002example\uff0ecom", "\u2460.example.com",
            "127.0.0.1", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.0x4", "a.0x7f", "a.1",
            "[::1]", "[::ffff:127.0.0.1]", "[1:2:3:4:5:6:7:8]", "[::1%25lo]", "[v1.a]", "[::1", "::1]", "%31.example.com",
            "a_b.example.com",
            "-a.example.com", "a-.example.com", "a..example.com", ".example.com", "xn--a.example.com", "xn--.example.com",
            "\u00ad.example.com",
            "a\u00adb.example.com", "a\u200db.example.com", "a\u200cb.example.com", "\u0669.example.com", "localhost", "intranet",
        ]
    ),
    st.from_regex(r"[a-zA-Z0-9.\-_]{1,24}", fullmatch=True),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.lists(st.integers(0, 300).map(str), min_size=1, max_size=5).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address.exploded}]"),
)  # fmt: skip
URLS = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(["https://", "http://", "HTTPS://", "https:/", "https:", "https:///", "https:\\\\", " https://", "//", "ht\ttps://"]),
    st.sampled_from(["", "", "", "", "u@", "u:p@", "@", "a.example.com@", "a.example.com\\@", "a.example.com#@", "a.example.com/@"]),
    HOSTS,
    st.sampled_from(["", "", ":", ":443", ":80", ":0443", ":8443", ":65536", ":0", ":+80", ":8 0", ":\u0661", ":443:80"]),
    st.sampled_from(["", "/", "/a?b", "?x", "#f", "/\\x", "\\", "/..//../@b.example.com", "/%00", "/a b", ";x", "/\u00e9"]),
    st.sampled_from(["", "", "", "\n", "\t", "\x00", "@b.example.com", "://c.example.com"]),
)  # fmt: skip


@given(url=URLS)
@settings(max_examples=1_500, deadline=None, derandomize=True)
@example(url="https://\u212aubernetes.example.com/")
@example(url="https://a.example.com\\@b.example.com/")
@example(url="https://a.example.com:443\n@b.example.com/")
def test_built_urls_name_one_host(url: str) -> None:
    """Parts that have fooled parsers, in every combination."""
    compare(url)


@given(
    url=st.sampled_from([case["url"] for case in CORPUS["cases"] if "url" in case]),
    at=st.floats(0, 1),
    insert=st.one_of(st.sampled_from(list("@:/\\#?[]%.\t\n\x00 ;&=0x")), st.characters(codec="utf-8")),
    delete=st.integers(0, 2),
)
@settings(max_examples=1_500, deadline=None, derandomize=True)
def test_mutated_urls_of_the_corpus_name_one_host(url: str, at: float, insert: str, delete: int) -> None:
    """Known bypasses, one character on."""
    place = int(at * len(url))
    compare(url[:place] + insert + url[place + delete :])


def test_the_corpus_names_one_host() -> None:
    """Every URL that is allowed by its own case."""
    count = 0
    for case in CORPUS["cases"]:
        if case["stage"] == "url" and isinstance(result := check_url(case["url"], OPEN), Target):
            assert_same_host(case["url"], result)
            count += 1
    assert count > 30
