"""The egress proxy: only a tunnel, its failures are ours, its credentials go nowhere else, and every rule still holds."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.errors import ConfigurationError, ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.proxy import ProxyConfig
from gatepost.net.resolver import Resolution
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import Behaviour, HostileServer
from gatepost.testing.hostile_peer import Peer
from gatepost.testing.receiver import Receiver
from gatepost.wire.egress import EgressPolicy, Target, check_url
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PROXY_REASONS, Reason
from tests.hostile.engine import (
    BIG,
    IDENTITY,
    LOOPBACK,
    SMALL,
    Certificates,
    assert_nothing_held,
    limits,
    same_descriptors,
)

PATIENT = limits(connect_timeout=3.0, write_timeout=5.0, read_timeout=5.0)


class OnlyTheProxy:
    """Knows the proxy's name; anything else would be our own look-up of a receiver."""

    async def resolve(self, host: str) -> Resolution:
        """127.0.0.1."""
        if host != "proxy.internal":
            raise AssertionError(f"{host} is for the proxy to resolve")
        return Resolution(("127.0.0.1",))


class RealProxy:
    """A small CONNECT proxy: tunnels every name to 127.0.0.1 and keeps the requests it got."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One tunnel."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            port = int(head.split(b" ")[1].rpartition(b":")[2])
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65_536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            sink.close()

        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))


@asynccontextmanager
async def proxy_running(context: ssl.SSLContext | None = None) -> AsyncIterator[RealProxy]:
    """The proxy, on a port of its own."""
    proxy = RealProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------- settings

WRONG: list[tuple[dict[str, object], str]] = [
    ({"url": "socks5://proxy:1080"}, "socks5 is not offered"),
    ({"url": "socks5h://u:p@proxy:1080"}, "socks5h is not offered"),
    ({"url": "ftp://proxy:21"}, "no proxy's address"),
    ({"url": "proxy:3128"}, "write http://"),
    ({"url": "http://proxy"}, "port is missing"),
    ({"url": "http://proxy:99999"}, "port is missing"),
    ({"url": "http://u:hunter2@proxy:3128"}, "username and password apart"),
    ({"url": "http://proxy:3128/path"}, "no proxy's address"),
    ({"url": None}, "no proxy's address"),
    ({"username": "u"}, "both username and password"),
    ({"username": "a:b", "password": "c"}, "no colon"),
    ({"username": "u", "password": "p\r\nX: 1"}, "visible ASCII"),
    ({"no_proxy": "example.com"}, "write a list"),
    ({"no_proxy": ("*",)}, "no name, .suffix"),
    ({"no_proxy": ("10.0.0.1/8",)}, "no name, .suffix"),
    ({"tls": TLSProfile()}, "https:// proxy"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=range(len(WRONG)))
def test_a_proxy_that_cannot_be_meant_is_refused_in_words(fields: dict[str, object], message: str) -> None:
    """And no message shows a password."""
    with pytest.raises(ConfigurationError, match=message) as error:
        ProxyConfig(**{"url": "http://proxy:3128", **fields})  # type: ignore[arg-type]  # wrong on purpose
    assert "hunter2" not in str(error.value)


def test_credentials_are_in_no_repr() -> None:
    """Settings stand in logs."""
    proxy = ProxyConfig("http://proxy:3128", "user", "hunter2")
    assert "hunter2" not in repr(proxy)
    assert proxy.authorization is not None
    assert proxy.authorization.split()[1] not in repr(proxy)
    assert base64.b64decode(proxy.authorization.split()[1]) == b"user:hunter2"


def test_who_goes_around() -> None:
    """Exact names, domains, and networks for URLs that name an address."""
    proxy = ProxyConfig("http://proxy:3128", no_proxy=("a.example.com", ".example.net", "10.0.0.0/8", "::1"))
    everything = EgressPolicy(schemes=("http",), allow_cidrs=("10.0.0.0/8", "::1/128", "127.0.0.0/8"))
    for host, around in {
        "a.example.com": True,
        "b.a.example.com": False,
        "example.net": True,
        "x.y.example.net": True,
        "badexample.net": False,
        "10.1.2.3": True,
        "127.0.0.1": False,
        "[::1]": True,
    }.items():
        target = check_url(f"http://{host}/", everything)
        assert isinstance(target, Target)
        assert (proxy.route(target) is None) is around, host


async def test_anything_else_than_a_config_is_refused() -> None:
    """A text would be a proxy with defaults nobody chose."""
    with pytest.raises(ConfigurationError, match="ProxyConfig"):
        DispatchClient(proxy="http://proxy:3128")  # type: ignore[arg-type]  # what the test is about


# ------------------------------------------------------------------------------------------------- delivery


@pytest.mark.parametrize("to_proxy", ["http", "https"])
@pytest.mark.parametrize("to_receiver", ["http", "https"])
@pytest.mark.parametrize("payload", [SMALL, BIG[:3_000_000]], ids=["small", "big"])
async def test_deliveries_go_through_a_tunnel_and_reuse_it(to_proxy: str, to_receiver: str, payload: bytes) -> None:
    """TLS end to end, inside TLS to the proxy if need be; the name is the proxy's to resolve, the credentials its alone."""
    certificates = Certificates.make()
    inside = certificates.server("hooks.example.com") if to_receiver == "https" else None
    outside = certificates.server("proxy.internal") if to_proxy == "https" else None
    async with proxy_running():
        pass  # uvloop keeps a descriptor in reserve from its first listener on
    with same_descriptors():
        async with (
            proxy_running(outside) as running,
            Receiver(tls=inside, keep=2) as receiver,
            DispatchClient(
                PATIENT,
                egress=LOOPBACK,
                resolver=OnlyTheProxy(),
                proxy=ProxyConfig(
                    f"{to_proxy}://proxy.internal:{running.port}",
                    "user",
                    "hunter2",
                    tls=certificates.profile if outside else None,
                ),
            ) as client,
        ):
            url = f"{to_receiver}://hooks.example.com:{receiver.port}/in"
            tls = certificates.profile if inside else None
            first = await client.deliver(url, payload, IDENTITY, tls=tls)
            assert first.delivered, first
            assert first.address == f"127.0.0.1:{running.port}"
            again = await client.deliver(url, payload, IDENTITY, tls=tls)
            assert again.delivered
            assert again.reused
            assert len(running.heads) == 1
            (head,) = running.heads
            assert head.startswith(f"CONNECT hooks.example.com:{receiver.port} HTTP/1.1\r\n".encode())
            assert b"Proxy-Authorization: Basic dXNlcjpodW50ZXIy\r\n" in head
            for request in receiver.received:
                assert not any(name.lower().startswith("proxy") for name in request.headers)
                assert request.body == payload
            assert_nothing_held(client, idle=1)


async def test_who_goes_around_is_resolved_and_connected_to_by_us() -> None:
    """An internal receiver that the proxy cannot reach."""

    class Known(OnlyTheProxy):
        async def resolve(self, host: str) -> Resolution:
            return Resolution(("127.0.0.1",))

    async with proxy_running() as running, Receiver() as receiver:
        proxy = ProxyConfig(f"http://127.0.0.1:{running.port}", no_proxy=(".example.com",))
        async with DispatchClient(PATIENT, egress=LOOPBACK, resolver=Known(), proxy=proxy) as client:
            assert (await client.deliver(f"http://hooks.example.com:{receiver.port}/", SMALL)).delivered
            assert running.heads == []
            assert (await client.deliver(f"http://hooks.example.org:{receiver.port}/", SMALL)).delivered
            assert len(running.heads) == 1


async def test_url_and_literal_rules_hold_before_the_proxy_is_asked() -> None:
    """The proxy stands inside our network: what it may reach, the receiver's owner may not name."""
    async with HostileServer("ok") as canary:
        proxy = ProxyConfig(f"http://127.0.0.1:{canary.port}")
        async with DispatchClient(PATIENT, resolver=OnlyTheProxy(), proxy=proxy) as client:
            for url, reason in (
                ("https://127.0.0.1/", Reason.ADDR_LOOPBACK),
                ("https://169.254.169.254/", Reason.ADDR_METADATA),
                ("http://hooks.example.com/", Reason.SCHEME_NOT_ALLOWED),
                ("https://metadata.google.internal/", Reason.HOST_METADATA),
            ):
                attempt = await client.deliver(url, SMALL)
                assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, reason)
        assert canary.connections == 0


async def test_a_wrong_certificate_behind_the_proxy_is_still_wrong() -> None:
    """A proxy that lies about who is there is found out: TLS is end to end."""
    certificates = Certificates.make()
    async with (
        proxy_running() as running,
        HostileServer("tls-bad-certificate", tls_context=certificates.server("other.example.com")) as server,
        DispatchClient(
            PATIENT, egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=ProxyConfig(f"http://127.0.0.1:{running.port}")
        ) as client,
    ):
        attempt = await client.deliver(f"https://hooks.example.com:{server.port}/", SMALL, tls=certificates.profile)
        assert (attempt.phase, attempt.reason) == (Phase.TLS, Reason.TLS_HOSTNAME_MISMATCH)
        assert attempt.blame is Blame.PATH
        assert_nothing_held(client)


# ------------------------------------------------------------------------------------------------- failures


def answers(data: bytes, *, hold: bool = True) -> Behaviour:
    """A proxy that answers every CONNECT so."""

    async def run(peer: Peer, _seconds: float) -> None:
        await peer.read_request_head()
        await peer.send(data)
        if hold:
            await peer.hold()

    return Behaviour("proxy", "answers", "transport_error", run)


FAILURES: list[tuple[bytes, bool, Reason]] = [
    (b"HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", True, Reason.PROXY_AUTH_REQUIRED),
    (b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno", True, Reason.PROXY_REFUSED),
    (b"HTTP/1.1 429 Slow\r\n\r\n", True, Reason.PROXY_REFUSED),
    (b"HTTP/1.1 502 Bad\r\n\r\n", True, Reason.PROXY_UPSTREAM_FAILED),
    (b"HTTP/1.1 503 Busy\r\nRetry-After: 9\r\n\r\n", True, Reason.PROXY_UPSTREAM_FAILED),
    (b"HTTP/1.1 504 Late\r\n\r\n", True, Reason.PROXY_UPSTREAM_FAILED),
    (b"HTTP/1.1 500 Odd\r\n\r\n", True, Reason.PROXY_FAILED),
    (b"HTTP/1.1 302 Go\r\nLocation: /login\r\n\r\n", True, Reason.PROXY_FAILED),
    (b"HTTP/1.1 101 Switch\r\n\r\n", True, Reason.PROXY_PROTOCOL_ERROR),
    (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, True, Reason.PROXY_PROTOCOL_ERROR),
    (b"SSH-2.0-OpenSSH\r\n\r\n", True, Reason.PROXY_PROTOCOL_ERROR),
    (b"HTTP/1.1 200 OK\r\n\r\nextra", True, Reason.PROXY_PROTOCOL_ERROR),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, True, Reason.PROXY_PROTOCOL_ERROR),
    (b"", False, Reason.PROXY_CLOSED),
    (b"HTTP/1.1 200", False, Reason.PROXY_CLOSED),
    (b"", True, Reason.PROXY_TIMEOUT),
]


@pytest.mark.parametrize(("answer", "hold", "reason"), FAILURES, ids=range(len(FAILURES)))
async def test_every_failure_of_the_proxy_is_ours_and_safe(answer: bytes, hold: bool, reason: Reason) -> None:
    """The endpoint's breaker, schedule and owner have nothing to do with it."""
    with same_descriptors():
        async with (
            HostileServer(answers(answer, hold=hold)) as server,
            DispatchClient(
                limits(), egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=ProxyConfig(f"http://127.0.0.1:{server.port}")
            ) as client,
        ):
            attempt = await client.deliver("http://hooks.example.com/", SMALL, IDENTITY)
            assert (attempt.outcome, attempt.phase, attempt.reason) == (
                Outcome.TRANSPORT_ERROR,
                Phase.CONNECT,
                reason,
            )
            assert (attempt.blame, attempt.retry_safety) == (Blame.US, RetrySafety.SAFE)
            assert (attempt.status, attempt.bytes_sent) == (None, 0)
            assert attempt.elapsed < 1.5
            assert reason in PROXY_REASONS
            assert_nothing_held(client)
            await server.wait_disconnected()


async def test_a_proxy_that_cannot_be_reached_is_ours_too() -> None:
    """Refused, unknown, silent in its handshake, or with a wrong certificate."""

    class Unknown:
        async def resolve(self, host: str) -> Resolution:
            raise ResolveError(Reason.DNS_NO_ADDRESS, temporary=False)

    certificates = Certificates.make()
    other = Certificates.make()
    async with (
        HostileServer("tls-stall") as stalled,
        proxy_running(other.server("127.0.0.1")) as wrong,
        HostileServer("ok") as plain,
    ):
        for url, resolver, reason in (
            ("http://127.0.0.1:1", OnlyTheProxy(), Reason.PROXY_CONNECT_FAILED),
            ("http://proxy.internal:3128", Unknown(), Reason.PROXY_DNS_FAILED),
            (f"https://127.0.0.1:{stalled.port}", OnlyTheProxy(), Reason.PROXY_TIMEOUT),
            (f"https://127.0.0.1:{wrong.port}", OnlyTheProxy(), Reason.PROXY_TLS_FAILED),
            (f"https://127.0.0.1:{plain.port}", OnlyTheProxy(), Reason.PROXY_TIMEOUT),
        ):
            proxy = ProxyConfig(url, tls=certificates.profile if url.startswith("https") else None)
            async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver, proxy=proxy) as client:
                attempt = await client.deliver("http://hooks.example.com/", SMALL)
                assert (attempt.outcome, attempt.reason, attempt.blame) == (
                    Outcome.TRANSPORT_ERROR,
                    reason,
                    Blame.US,
                ), url
                assert_nothing_held(client)


async def test_a_cancelled_tunnel_holds_nothing() -> None:
    """Socket, reader and lease go with the attempt."""
    with same_descriptors():
        async with (
            HostileServer("silence") as server,
            DispatchClient(
                PATIENT, egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=ProxyConfig(f"http://127.0.0.1:{server.port}")
            ) as client,
        ):
            task = asyncio.ensure_future(client.deliver("http://hooks.example.com/", SMALL))
            async with asyncio.timeout(3.0):
                while not server.connections:  # noqa: ASYNC110  # a counter of the server
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert_nothing_held(client)
            await server.wait_disconnected()


async def test_a_policy_reload_does_not_judge_the_proxys_own_address() -> None:
    """It is inside, by design; the literal of the URL is what is asked about."""
    async with proxy_running() as running, Receiver() as receiver:
        proxy = ProxyConfig(f"http://127.0.0.1:{running.port}")
        async with DispatchClient(PATIENT, egress=LOOPBACK, resolver=OnlyTheProxy(), proxy=proxy) as client:
            url = f"http://hooks.example.com:{receiver.port}/"
            assert (await client.deliver(url, SMALL)).delivered
            client.egress = EgressPolicy(schemes=("http",))
            assert (await client.deliver(url, SMALL)).reused
