"""Redirects: off by default, and when followed, never more than the same POST at a place that passes every rule anew."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.client import DispatchClient
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import HostileServer, answering
from gatepost.testing.receiver import Receiver
from gatepost.wire.egress import Denied, EgressPolicy, Target, check_url
from gatepost.wire.reasons import Reason
from gatepost.wire.redirects import next_hop, resolve
from tests.hostile.engine import LOOPBACK, Certificates, FixedResolver, assert_nothing_held, limits

SIGNED = {"webhook-id": "evt_1", "webhook-timestamp": "1700000000", "webhook-signature": "v1,abc"}
HEADERS = {**SIGNED, "authorization": "Bearer endpoint", "x-team": "billing"}
BODY = b'{"n": 1}'


def following(**changes: float) -> ClientPolicy:
    """A policy that follows."""
    return limits(**{"follow_redirects": True, "connect_timeout": 3.0, "read_timeout": 3.0, **changes})


def redirect_to(location: str, status: int = 307) -> bytes:
    """A redirect without a body."""
    return f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


# ------------------------------------------------------------------------------------------------ the rules

BASE = check_url("https://hooks.example.com/a/b?q=1", EgressPolicy())
assert isinstance(BASE, Target)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://other.example.com/x", "https://other.example.com/x"),
        ("//127.0.0.1/x", "https://127.0.0.1/x"),
        ("/x?y", "https://hooks.example.com/x?y"),
        ("x", "https://hooks.example.com/a/x"),
        ("../x", "https://hooks.example.com/x"),
        ("../../../x/./y/..", "https://hooks.example.com/x/"),
        ("?r=2", "https://hooks.example.com/a/b?r=2"),
        ("", "https://hooks.example.com/a/b"),
        ("/a/../b?c=/../d", "https://hooks.example.com/b?c=/../d"),
        ("file:///etc/passwd", "file:///etc/passwd"),
    ],
)
def test_a_location_is_resolved_against_the_url_it_came_from(location: str, url: str) -> None:
    """RFC 3986 section 5.2; half of the servers send relative ones."""
    assert isinstance(BASE, Target)
    assert resolve(BASE, location) == url


@given(st.text(max_size=60))
def test_no_location_breaks_the_decision(location: str) -> None:
    """It is the peer's text: whatever it is, there is an answer, and one that may be called."""
    assert isinstance(BASE, Target)
    hop = next_hop(
        307, [location], BASE, lambda url: check_url(url, EgressPolicy()), hops=0, limit=3, cross_origin=False
    )
    assert isinstance(hop, Target | Denied | Reason)
    if isinstance(hop, Target):
        assert hop.origin == BASE.origin


REFUSED: list[tuple[int, str, dict[str, bool | int], Reason]] = [
    (307, "https://other.example.com/", {}, Reason.REDIRECT_CROSS_ORIGIN),
    (307, "https://hooks.example.com:8443/", {}, Reason.REDIRECT_CROSS_ORIGIN),
    (308, "http://hooks.example.com/in", {"cross_origin": True}, Reason.REDIRECT_SCHEME_DOWNGRADE),
    (302, "/login", {}, Reason.REDIRECT_METHOD_CHANGE),
    (301, "/login", {}, Reason.REDIRECT_METHOD_CHANGE),
    (303, "/login", {}, Reason.REDIRECT_METHOD_CHANGE),
    (307, "/x", {"hops": 3}, Reason.REDIRECT_LIMIT),
    (302, "https://169.254.169.254/latest/", {"cross_origin": True}, Reason.ADDR_METADATA),
    (307, "https://10.0.0.5/api", {"cross_origin": True}, Reason.ADDR_PRIVATE),
    (307, "https://hooks.example.com:6379/", {"cross_origin": True}, Reason.PORT_NOT_ALLOWED),
    (302, "https://0177.0.0.1/", {"cross_origin": True}, Reason.IPV4_NONCANONICAL),
    (302, "//127.0.0.1/x", {"cross_origin": True}, Reason.ADDR_LOOPBACK),
    (302, "gopher://127.0.0.1:6379/_x", {"cross_origin": True}, Reason.SCHEME_NOT_ALLOWED),
    (302, "file:///etc/passwd", {"cross_origin": True}, Reason.SCHEME_NOT_ALLOWED),
    (302, "https://hooks.example.com/\r\nX: 1", {}, Reason.URL_CONTROL_CHAR),
    (307, "https://user@hooks.example.com/", {}, Reason.USERINFO_PRESENT),
    (307, "/\xe9", {}, Reason.URL_NON_ASCII),
]


@pytest.mark.parametrize(("status", "location", "changes", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_may_not_be_followed_has_its_reason(
    status: int, location: str, changes: dict[str, bool | int], reason: Reason
) -> None:
    """One classic hole per line; the same function as at registration judges the place."""
    assert isinstance(BASE, Target)
    both = EgressPolicy(schemes=("https", "http"))
    hop = next_hop(
        status,
        [location],
        BASE,
        lambda url: check_url(url, both),
        hops=int(changes.get("hops", 0)),
        limit=3,
        cross_origin=bool(changes.get("cross_origin", False)),
    )
    assert (hop.reason if isinstance(hop, Denied) else hop) is reason


def test_no_location_or_two_of_them_lead_nowhere() -> None:
    """Two parsers would pick different ones."""
    assert isinstance(BASE, Target)
    for locations in ([], ["/a", "/b"]):
        hop = next_hop(307, locations, BASE, lambda _: BASE, hops=0, limit=3, cross_origin=True)
        assert hop is Reason.URL_MALFORMED


# ------------------------------------------------------------------------------------------------ the client


async def test_off_by_default_and_said_so() -> None:
    """A 3xx is a failed delivery that its owner must mend."""
    async with HostileServer("redirect-307") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, BODY, HEADERS)
        assert (attempt.outcome, attempt.status, attempt.reason) == (
            Outcome.RESPONSE,
            307,
            Reason.REDIRECT_DISABLED,
        )
        assert (attempt.retry_safety, attempt.blame, attempt.delivered) == (RetrySafety.SAFE, Blame.ENDPOINT, False)
        assert server.request_count == 1
        assert_nothing_held(client, idle=1)


async def test_a_307_on_the_same_origin_is_the_same_post_once_more() -> None:
    """Same bytes, same signature and headers, over a lease of its own; the connection may be the same."""
    async with HostileServer("redirect-307") as server, DispatchClient(following(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url + "start", BODY, HEADERS)
        assert attempt.delivered, attempt
        assert attempt.status == 200
        first, second = server.requests
        assert second.head == first.head.replace(b"POST /start ", b"POST /elsewhere ")
        assert_nothing_held(client, idle=1)
        assert abs(sum(attempt.phases.values()) - attempt.elapsed) < 0.01
        per_call = await client.deliver(server.url, BODY, HEADERS, policy=limits(connect_timeout=3.0, read_timeout=3.0))
        assert per_call.reason is Reason.REDIRECT_DISABLED, "the call's policy decides"


async def test_a_302_is_not_followed_and_no_get_is_ever_sent() -> None:
    """A login page that answers a GET with 200 is no delivery."""
    async with HostileServer("redirect-302") as server, DispatchClient(following(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, BODY, HEADERS)
        assert (attempt.outcome, attempt.status, attempt.reason) == (
            Outcome.RESPONSE,
            302,
            Reason.REDIRECT_METHOD_CHANGE,
        )
        assert [request.head[:5] for request in server.requests] == [b"POST "]
        assert_nothing_held(client, idle=1)


async def test_a_loop_ends_at_the_limit() -> None:
    """Three hops are four requests."""
    async with HostileServer("redirect-loop") as server, DispatchClient(following(), egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, BODY, HEADERS)
        assert (attempt.outcome, attempt.reason, attempt.status) == (Outcome.RESPONSE, Reason.REDIRECT_LIMIT, 307)
        assert server.request_count == 4
        assert_nothing_held(client, idle=1)


async def test_all_hops_share_one_total() -> None:
    """Each hop 0.2 s: a hundred of them must not be a hundred times the limit."""
    policy = following(redirect_limit=100, total_timeout=0.5)
    async with HostileServer("redirect-loop", seconds=0.2) as server, DispatchClient(policy, egress=LOOPBACK) as client:
        attempt = await client.deliver(server.url, BODY, HEADERS)
        assert (attempt.outcome, attempt.reason) == (Outcome.DEADLINE_EXCEEDED, Reason.TOTAL_TIMEOUT)
        assert 0.45 < attempt.elapsed < 1.5
        assert_nothing_held(client)


async def test_a_denied_place_is_denied_and_never_dialled() -> None:
    """By URL, and by the address behind a name; the registered URL is not to blame, so the status is kept."""
    resolver = FixedResolver({"hooks.example.com": ("127.0.0.1",), "inside.example.com": ("10.0.0.5",)})
    policy = following(redirect_cross_origin=True)
    for location, reason in (
        ("http://10.0.0.5/api", Reason.ADDR_PRIVATE),
        ("http://inside.example.com/", Reason.ADDR_PRIVATE),
        ("file:///etc/passwd", Reason.SCHEME_NOT_ALLOWED),
    ):
        async with (
            HostileServer(answering(redirect_to(location))) as server,
            DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client,
        ):
            url = server.url.replace("127.0.0.1", "hooks.example.com")
            attempt = await client.deliver(url, BODY, HEADERS)
            assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, reason), attempt
            assert attempt.retry_safety is RetrySafety.POINTLESS
            assert client.statistics().connections_in_use == 0


async def test_another_origin_gets_neither_endpoint_headers_nor_client_certificate() -> None:
    """They were given for the registered origin. The signature goes along: it is the message."""
    certificates = Certificates.make()
    contexts = []
    for name in ("127.0.0.1", "127.0.0.2"):
        context = certificates.server(name)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=certificates.authority.cert_pem.bytes().decode())
        contexts.append(context)
    certificate: trustme.LeafCert = certificates.authority.issue_cert("client@example.com")
    profile = TLSProfile(
        ca_pem=certificates.authority.cert_pem.bytes(),
        client_cert_pem=certificate.cert_chain_pems[0].bytes(),
        client_key_pem=certificate.private_key_pem.bytes(),
    )
    async with HostileServer("ok", host="127.0.0.2", tls_context=contexts[1]) as second:
        away = f"https://127.0.0.2:{second.port}/in"
        async with (
            HostileServer(answering(redirect_to(away, 308)), tls_context=contexts[0]) as first,
            DispatchClient(following(redirect_cross_origin=True), egress=LOOPBACK) as client,
        ):
            refused = await client.deliver(
                first.url, BODY, HEADERS, tls=profile, policy=following(redirect_cross_origin=False)
            )
            assert refused.reason is Reason.REDIRECT_CROSS_ORIGIN
            assert second.connections == 0
            attempt = await client.deliver(first.url, BODY, HEADERS, tls=profile)
            assert attempt.delivered, attempt
            assert attempt.host == f"https://127.0.0.2:{second.port}"
            (there,) = second.requests
            assert b"authorization" not in there.head
            assert b"x-team" not in there.head
            assert b"webhook-signature: v1,abc" in there.head
            assert f"host: 127.0.0.2:{second.port}".encode() in there.head
            keys = {host.tls for host in client.pool.hosts if host.target.host == "127.0.0.2"}
            assert keys == {TLSProfile(ca_pem=profile.ca_pem)}, "no client certificate in the profile used there"
            assert_nothing_held(client, idle=client.statistics().connections_idle)


async def test_a_hop_waits_for_a_lease_of_its_own_and_gives_up_in_time() -> None:
    """One connection a host: the hop's host is full, and the first one's is free again."""
    async with Receiver() as busy:
        busy.answer("/slow", 200, delay=1.0)
        policy = following(redirect_cross_origin=True, max_per_host=1, pool_timeout=0.2)
        async with (
            HostileServer(answering(redirect_to(busy.url + "/slow"))) as server,
            DispatchClient(policy, egress=LOOPBACK) as client,
        ):
            holding = asyncio.ensure_future(client.deliver(busy.url + "/slow", BODY, HEADERS))
            await asyncio.sleep(0.05)
            attempt = await client.deliver(server.url, BODY, HEADERS)
            assert (attempt.outcome, attempt.reason) == (Outcome.POOL_TIMEOUT, Reason.POOL_HOST_FULL)
            assert client.statistics().hosts[server.url.rstrip("/")].in_use == 0
            assert (await holding).delivered
            assert_nothing_held(client, idle=client.statistics().connections_idle)
