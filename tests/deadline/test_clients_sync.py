"""Blocking clients end with the deadline whatever the server does: cases 23-25, 35 and 44 against the real libraries.

Real sockets, plain and TLS; the server runs in a thread of its own. The bare libraries are shown to fail the same cases, so
that a release which mends them is noticed.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

import gatepost.deadline.clients.httpx as gp_httpx
import gatepost.deadline.clients.httpx2 as gp_httpx2
import gatepost.deadline.clients.requests as gp_requests
import gatepost.deadline.clients.urllib as gp_urllib
import gatepost.deadline.clients.urllib3 as gp_urllib3
from gatepost.deadline import DeadlineExceeded, deadline
from gatepost.deadline.clients.call import CallExceeded
from gatepost.deadline.tiers import CROSS_REGION, SAME_DC, THIRD_PARTY, Tier
from gatepost.testing.hostile import HostileServer
from tests.deadline.kit import LATE, REFUSING, answering, client_context, hostile, takes

PATIENT = CROSS_REGION.evolve(connect=1.0, tls=1.0, read=10.0, write=1.0, pool=1.0)
"""Limits that none of these tests reaches: what ends a call here is its total."""

Get = Callable[[str, Tier], tuple[int, bytes]]


class _Trusting(gp_requests.DeadlineAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=client_context(), **options)


def get_httpx(url: str, tier: Tier) -> tuple[int, bytes]:
    transport = gp_httpx.DeadlineTransport(tier, verify=client_context())
    with httpx.Client(transport=transport, timeout=None) as client:
        response = client.get(url)
        return response.status_code, response.content


def get_httpx2(url: str, tier: Tier) -> tuple[int, bytes]:
    transport = gp_httpx2.DeadlineTransport(tier, verify=client_context())
    with httpx2.Client(transport=transport, timeout=None) as client:
        response = client.get(url)
        return response.status_code, response.content


def get_requests(url: str, tier: Tier) -> tuple[int, bytes]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", _Trusting(tier))
        session.mount("https://", _Trusting(tier))
        response = session.get(url)
        return response.status_code, response.content


def get_requests_streamed(url: str, tier: Tier) -> tuple[int, bytes]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", _Trusting(tier))
        session.mount("https://", _Trusting(tier))
        with session.get(url, stream=True) as response:
            return response.status_code, b"".join(response.iter_content(100))


def get_urllib3(url: str, tier: Tier) -> tuple[int, bytes]:
    with gp_urllib3.DeadlinePoolManager(tier, ssl_context=client_context()) as manager:
        response = manager.request("GET", url)
        return response.status, response.data


def get_urllib(url: str, tier: Tier) -> tuple[int, bytes]:
    with gp_urllib.urlopen(url, tier=tier, context=client_context()) as response:
        return response.status, response.read()


CLIENTS: dict[str, Get] = {
    "httpx": get_httpx,
    "httpx2": get_httpx2,
    "requests": get_requests,
    "requests-streamed": get_requests_streamed,
    "urllib3": get_urllib3,
    "urllib": get_urllib,
}
every_client = pytest.mark.parametrize("name", CLIENTS)


@every_client
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("behaviour", ["drip-head", "drip-body"])
def test_35_a_drip_ends_at_the_deadline(name: str, behaviour: str, tls: bool) -> None:
    """Every byte starts a socket's timeout anew: 3 s of drip pass any read timeout over 0.1 s."""
    with hostile(behaviour, seconds=0.1, tls=tls) as server, deadline(0.3), takes(0.25, 0.3 + LATE):
        with pytest.raises(DeadlineExceeded) as caught:
            CLIENTS[name](server.url, PATIENT)
        assert isinstance(caught.value, CallExceeded)
        assert not caught.value.retry_allowed


@every_client
def test_35_without_a_deadline_the_total_of_the_tier_holds(name: str) -> None:
    """Nobody needs to have opened a scope for a call to be bounded."""
    tier = PATIENT.evolve(connect=0.04, tls=0.06, write=0.05, pool=0.05, read=0.4, name="short")
    assert tier.total == pytest.approx(0.6)
    with hostile("drip-body", seconds=0.1) as server, takes(0.5, 0.6 + LATE):
        with pytest.raises(DeadlineExceeded, match="short total") as caught:
            CLIENTS[name](server.url, tier)
        assert isinstance(caught.value, CallExceeded)
        assert caught.value.retry_allowed


@pytest.mark.parametrize("behaviour", ["drip-head", "drip-body"])
def test_35_the_bare_libraries_let_the_drip_pass(behaviour: str) -> None:
    """The trap that the transports are for: timeout=0.5 s, and the answer dripped for over 0.8 s is no timeout at all."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"

    async def run(peer: Any, seconds: float) -> None:
        await peer.read_request()
        if behaviour == "drip-head":
            await peer.send(answer[:10])
            await peer.drip(answer[10:], seconds)
            await peer.send(b"x" * 9)
        else:
            await peer.send(answer)
            await peer.drip(b"x" * 9, seconds * 3)
        await peer.drain()

    from gatepost.testing.hostile import Behaviour

    bare = Behaviour("bare", "drips and ends", "", run, seconds=0.03)
    with hostile(bare) as server, takes(0.6, 5.0):
        assert httpx.get(server.url, timeout=0.5, trust_env=False).status_code == 200
    with hostile(bare) as server, takes(0.6, 5.0):
        assert requests.get(server.url, timeout=0.5, proxies={"http": ""}).status_code == 200


@every_client
@pytest.mark.parametrize(
    ("behaviour", "tls"),
    [("silence", False), ("black-hole", False), ("tls-stall", False)],
    ids=["silent", "black-hole", "tls-stall"],
)
def test_a_server_that_never_answers_ends_at_the_deadline(name: str, behaviour: str, tls: bool) -> None:
    """Connect, handshake and the wait for the head are of the same total."""
    with hostile(behaviour, tls=tls) as server, deadline(0.3), takes(0.25, 0.3 + LATE), pytest.raises(DeadlineExceeded):
        CLIENTS[name](server.url, PATIENT)


@every_client
def test_the_connect_limit_is_the_tiers_and_the_librarys_own_error(name: str) -> None:
    """A dead host shows after 50 ms, as what the library calls a connect timeout: the deadline is not to blame."""
    kinds: tuple[type[Exception], ...] = (
        httpx.ConnectTimeout,
        httpx2.ConnectTimeout,
        requests.ConnectTimeout,
        urllib3.exceptions.MaxRetryError,
        OSError,
    )
    tier = SAME_DC.evolve(read=5.0, pool=5.0)
    with hostile("black-hole") as server, deadline(5.0), takes(0.04, 0.05 * 4 + 2 * LATE):
        with pytest.raises(kinds) as caught:
            CLIENTS[name](server.url, tier)
        assert not isinstance(caught.value, DeadlineExceeded)


@every_client
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_good_answer_arrives_whole(name: str, tls: bool) -> None:
    """A bound that spoils the ordinary case helps nobody."""
    body = b"y" * 200_000
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with hostile(answering(raw), tls=tls) as server, deadline(10.0):
        assert CLIENTS[name](server.url, PATIENT) == (200, body)


@every_client
def test_25_with_no_time_left_nothing_is_sent(name: str) -> None:
    """Below a millisecond a call only makes work for both sides."""
    with hostile("ok") as server:
        with deadline(0.0005), pytest.raises(DeadlineExceeded):
            CLIENTS[name](server.url, PATIENT)
        with deadline(0.0), pytest.raises(DeadlineExceeded):
            CLIENTS[name](server.url, PATIENT)
        assert server.connections == 0


def header_of(server: HostileServer) -> str | None:
    """The last request's `Request-Timeout`."""
    for line in server.requests[-1].head.split(b"\r\n"):
        header, _, value = line.partition(b": ")
        if header.lower() == b"request-timeout":
            return value.decode()
    return None


@every_client
def test_23_an_internal_service_is_told_what_is_left(name: str) -> None:
    """2.0 s less what has passed less 75 ms for the way back; a hop that says nothing breaks the chain."""
    with hostile("ok") as server, deadline(2.0):
        CLIENTS[name](server.url, PATIENT)
        told = header_of(server)
    assert told is not None
    assert 1.9 < float(told) <= 1.925


@every_client
def test_a_third_party_is_told_nothing(name: str) -> None:
    """Our budgets are nobody else's business, and a stranger's server may read the header in its own way."""
    with hostile("ok") as server, deadline(2.0):
        CLIENTS[name](server.url, THIRD_PARTY)
        assert header_of(server) is None


def test_24_a_static_limit_over_the_remainder_is_cut_and_a_spent_budget_calls_nobody() -> None:
    """A has 20 s and spent 12; B's static 15 s become 8; after 8 s of work B does not call C."""
    from gatepost.deadline.clients.call import Call
    from gatepost.deadline.clients.call import CallExceeded as Exceeded
    from gatepost.testing.virtual import VirtualClock

    clock = VirtualClock()
    static = PATIENT.evolve(read=11.0, reserve=0.0)
    assert static.total == 15.0
    with deadline(20.0, clock=clock):
        clock.advance(12.0)
        assert Call(static).headers({}) == [("Request-Timeout", "8")]
        clock.advance(8.0)
        with pytest.raises(Exceeded):
            Call(static)


@every_client
def test_44_a_refusal_is_a_timeout_and_may_be_retried_only_when_time_was_kept_back(name: str) -> None:
    """Given everything, another try can only fail; given a short cap of a long budget, it may well succeed."""
    with hostile(REFUSING) as server:
        with deadline(0.9), pytest.raises(CallExceeded) as caught:
            CLIENTS[name](server.url, PATIENT)
        assert (caught.value.stage, caught.value.retry_allowed) == ("admission", False)
        with deadline(60.0), pytest.raises(CallExceeded) as caught:
            CLIENTS[name](server.url, PATIENT)
        assert (caught.value.stage, caught.value.retry_allowed) == ("admission", True)
    plain = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n"
    with hostile(answering(plain)) as server, deadline(5.0):
        if name == "urllib":
            with pytest.raises(urllib.request.HTTPError) as answer:
                CLIENTS[name](server.url, PATIENT)
            answer.value.close()
        else:
            assert CLIENTS[name](server.url, PATIENT)[0] == 504


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("httpx", httpx.TimeoutException),
        ("httpx2", httpx2.TimeoutException),
        ("requests", requests.Timeout),
        ("requests-streamed", requests.Timeout),
        ("urllib3", urllib3.exceptions.TimeoutError),
        ("urllib", TimeoutError),
    ],
)
def test_code_that_catches_the_librarys_timeout_keeps_working(name: str, library: type[Exception]) -> None:
    """Adopting the transport must not turn handled timeouts into 500s."""
    with hostile("drip-body", seconds=0.05) as server, deadline(0.2), pytest.raises(library) as caught:
        CLIENTS[name](server.url, PATIENT)
    assert isinstance(caught.value, DeadlineExceeded)


def test_a_connection_used_again_serves_the_new_call() -> None:
    """The second call's limit must not be the first one's, which has passed by then."""
    for make in (
        lambda: httpx.Client(transport=gp_httpx.DeadlineTransport(PATIENT)),
        lambda: _session(PATIENT),
        lambda: gp_urllib3.DeadlinePoolManager(PATIENT),
    ):
        client: Any = make()
        with hostile("ok") as server, client:
            with deadline(0.3):
                client.request("GET", server.url)
            time.sleep(0.35)
            with deadline(5.0):
                client.request("GET", server.url)
            assert server.connections == 1


def test_a_redirect_out_of_the_house_takes_no_budget_along() -> None:
    """The header is for the host that was called; its redirect may name a third party."""
    with hostile("ok") as other:
        target = other.url.replace("127.0.0.1", "localhost").encode()
        moved = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + target + b"\r\n\r\n"
        with hostile(answering(moved)) as first, deadline(5.0):
            with gp_urllib3.DeadlinePoolManager(PATIENT) as manager:
                assert manager.request("GET", first.url).status == 200
            assert header_of(first) is not None
            assert header_of(other) is None
            assert gp_urllib.urlopen(first.url, tier=PATIENT).status == 200
            assert header_of(first) is not None
            assert header_of(other) is None


def test_retry_after_does_not_outlast_the_deadline() -> None:
    """urllib3 sleeps as long as a server asks; an hour of it holds a worker as well as any drip."""
    later = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
    manager = gp_urllib3.DeadlinePoolManager(PATIENT)
    with hostile(answering(later)) as server, deadline(5.0), takes(0.0, 2.0), manager, pytest.raises(DeadlineExceeded):
        manager.request("GET", server.url)


def test_a_name_that_is_never_looked_up_does_not_hold_the_caller() -> None:
    """`getaddrinfo` takes no timeout and blocks for as long as the resolver likes."""
    from gatepost.deadline.clients.call import Call
    from gatepost.deadline.clients.dialling import Info, dial

    release = threading.Event()

    def stuck(host: str, port: int) -> list[Info]:
        release.wait(10)
        return []

    with deadline(0.2), takes(0.15, 0.2 + LATE):
        call = Call(PATIENT)
        with pytest.raises(DeadlineExceeded):
            dial(call, "nowhere.invalid", 80, lookup=stuck)
    release.set()


def test_addresses_share_one_connect_limit() -> None:
    """`create_connection` gives each address the whole timeout: eight dead ones take eight times as long."""
    import socket

    from gatepost.deadline.clients.call import Call
    from gatepost.deadline.clients.dialling import Info, dial

    with hostile("black-hole") as server:
        entry: Info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        with takes(0.15, 0.2 + LATE), pytest.raises(TimeoutError) as caught:
            dial(Call(PATIENT.evolve(connect=0.2)), "many.invalid", 80, lookup=lambda _h, _p: [entry] * 8)
        assert not isinstance(caught.value, DeadlineExceeded)


def test_a_proxy_that_drips_its_answer_to_connect_ends_too() -> None:
    """The tunnel is built before the TLS socket exists, by a reader of its own in each library."""
    target = "https://shop.invalid/"

    def by_httpx(proxy: str) -> None:
        with httpx.Client(transport=gp_httpx.DeadlineTransport(PATIENT, proxy=proxy), timeout=None) as client:
            client.get(target)

    def by_httpx2(proxy: str) -> None:
        with httpx2.Client(transport=gp_httpx2.DeadlineTransport(PATIENT, proxy=proxy), timeout=None) as client:
            client.get(target)

    def by_requests(proxy: str) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.mount("https://", gp_requests.DeadlineAdapter(PATIENT))
            session.get(target, proxies={"https": proxy})

    for call in (by_httpx, by_httpx2, by_requests):
        with hostile("drip-head", seconds=0.05) as server, deadline(0.3), takes(0.25, 0.3 + LATE):
            with pytest.raises(DeadlineExceeded):
                call(server.url)
            assert server.requests[-1].head.startswith(b"CONNECT shop.invalid:443")


def test_uploads_to_a_server_that_does_not_read_end_too() -> None:
    """Writing has the same trap: each piece the kernel takes starts the timeout anew."""
    body = b"z" * 50_000_000
    with hostile("silence") as server:
        for send in (
            lambda url: httpx.Client(transport=gp_httpx.DeadlineTransport(PATIENT), timeout=None).post(
                url, content=body
            ),
            lambda url: _session(PATIENT).post(url, data=body),
        ):
            with deadline(0.5), takes(0.4, 0.5 + 2 * LATE), pytest.raises(DeadlineExceeded):
                send(server.url)


def _session(tier: Tier) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", gp_requests.DeadlineAdapter(tier))
    return session


def test_an_adapter_can_be_used_where_httpadapter_is() -> None:
    """Sessions copy and mount them by that class."""
    assert isinstance(gp_requests.DeadlineAdapter(SAME_DC), HTTPAdapter)
    assert issubclass(gp_urllib.BoundedHTTPConnection, http.client.HTTPConnection)
