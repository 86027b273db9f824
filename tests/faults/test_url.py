"""Fault cases of class url: the target is sent as written, nothing is read from the environment, one name per thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.egress import Denied, EgressPolicy, Target, check_url
from gatepost.wire.reasons import Reason
from tests.faults.kit import delivering
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, answered, assert_nothing_held, limits, same_descriptors

PUBLIC = EgressPolicy(schemes=("https", "http"))


@pytest.mark.parametrize(
    "target",
    [
        "/a%2Fb/%3B%27%40?x=%2B+%20&y=a%3Db",
        "/a%2fb//c/./d/../e",
        "/?",
        "/??x=?#"[:-1],
        "/%00%0d%0a%zz",
        "/a;b=c,d'(e)!*$&+,=@:~",
        '/{braces}|pipe^caret`tick"quote<angle>',
    ],
)
async def test_url_01_the_request_target_is_sent_byte_for_byte(target: str) -> None:
    """Signed URLs break when an escape is decoded, or when another is added."""
    async with delivering("ok") as (server, client):
        attempt = await client.deliver(server.url.rstrip("/") + target, SMALL, IDENTITY)
        assert attempt.delivered, attempt
        assert server.requests[0].head.split(b"\r\n")[0] == f"POST {target} HTTP/1.1".encode()


async def test_url_03_netrc_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Implicit credentials must not outrank, or join, what the endpoint's record says."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login foreign password foreign\ndefault login foreign password foreign\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    async with delivering("ok") as (server, client):
        await client.deliver(server.url, SMALL, IDENTITY)
        await client.deliver(server.url, SMALL, {**IDENTITY, "Authorization": "Bearer ours"})
        without, with_ours = (request.head.lower() for request in server.requests)
    assert b"authorization" not in without
    assert with_ours.count(b"authorization") == 1
    assert b"authorization: bearer ours\r\n" in with_ours


async def test_url_05_an_ipv6_literal_has_one_key_and_no_zone() -> None:
    """Equal spellings share connections; Host has brackets, and a zone is refused before anything is dialled."""
    with same_descriptors():
        async with (
            HostileServer("ok", host="::1") as server,
            DispatchClient(limits(), egress=LOOPBACK) as client,
        ):
            for literal in ("[::1]", "[0:0:0:0:0:0:0:1]", "[0000:0000::0001]"):
                attempt = await client.deliver(f"http://{literal}:{server.port}/", SMALL, IDENTITY)
                answered(kept=True).check(attempt)
                assert attempt.host == f"http://[::1]:{server.port}"
            assert server.connections == 1
            assert {
                request.head.lower().count(f"host: [::1]:{server.port}\r\n".encode()) for request in server.requests
            } == {1}
            for zone in ("[fe80::1%25lo]", "[fe80::1%lo]", "[::1%251]"):
                refused = await client.deliver(f"http://{zone}:{server.port}/", SMALL, IDENTITY)
                assert (refused.outcome, refused.reason) == (Outcome.EGRESS_DENIED, Reason.IPV6_ZONE_ID)
            assert_nothing_held(client, idle=1)
    for url, authority in (
        ("http://[2606:4700::1]:80/", "[2606:4700::1]"),
        ("https://[2606:4700:0::1]:443/", "[2606:4700::1]"),
        ("https://[2606:4700::1]:8443/", "[2606:4700::1]:8443"),
    ):
        target = check_url(url, PUBLIC)
        assert isinstance(target, Target)
        assert target.authority == authority


REFUSED = [
    "localhost:7777?a=1 HTTP/1.1\r\nX: y",
    "http://host.example.com:7777?a=1 HTTP/1.1\r\nX: y",
    "http://a b.example.com/",
    "http://a\tb.example.com/",
    "http://a.example.com/\x00",
    "http://a.example.com\\@b.example.com/",
    "http://good.example.com@bad.example.com/",
    "http://user:pass@a.example.com/",
    "http://user:pa/ss@a.example.com/",
    "http://a.example.com:/",
    "http://a.example.com:0/",
    "http://a.example.com:65536/",
    "http://a.example.com:0080/",
    "http://a.example.com:+80/",
    "http://a.example.com:80a/",
    "http://a.example.com/#frag",
    "http://a.example.com#@b.example.com/",
    "http:///path",
    "http:a.example.com/",
    "http:/a.example.com/",
    "//a.example.com/",
    "/path",
    "",
    "ftp://a.example.com/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://xn--a.example.com/",
    "http://-a.example.com/",
    "http://a..example.com/",
    "http://" + "a" * 64 + ".example.com/",
    "http://a_b.example.com/",
    "http://a%2eb.example.com/",
]
CANONICAL = [
    ("HTTP://A.Example.COM", "http://a.example.com:80", "/"),
    ("http://a.example.com?x", "http://a.example.com:80", "/?x"),
    ("http://a.example.com.:80/x", "http://a.example.com:80", "/x"),
    ("https://a.example.com:443", "https://a.example.com:443", "/"),
    ("https://b\u00fccher.example.com/", "https://xn--bcher-kva.example.com:443", "/"),
    ("https://XN--BCHER-KVA.example.com/", "https://xn--bcher-kva.example.com:443", "/"),
]


@pytest.mark.parametrize("url", REFUSED, ids=ascii)
def test_url_06_what_two_parsers_read_differently_is_refused(url: str) -> None:
    """At configuration, with a reason, and without a fragment of what may be a password."""
    verdict = check_url(url, PUBLIC)
    assert isinstance(verdict, Denied), verdict
    assert "good.example" not in str(verdict)
    for part in ("pass", "pa/ss", "ss@"):
        assert part not in f"{verdict.subject} {verdict.reason}"


@pytest.mark.parametrize(("url", "origin", "target"), CANONICAL, ids=lambda value: ascii(value))
def test_url_06_what_is_accepted_has_one_canonical_form(url: str, origin: str, target: str) -> None:
    """And the canonical form means itself."""
    checked = check_url(url, PUBLIC)
    assert isinstance(checked, Target)
    assert (checked.origin, checked.target) == (origin, target)
    again = check_url(checked.origin + checked.target, PUBLIC)
    assert again == checked
