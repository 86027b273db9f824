"""The hostile server itself, seen through plain sockets: a fault test proves nothing when its server does something else."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass

import pytest
import trustme

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError
from gatepost.testing.hostile import (
    BEHAVIOURS,
    HostileServer,
    TLSUse,
    answering,
    find_behaviour,
    serve_forever,
)
from tests.hostile.wire import Wire, post

PATIENCE = 0.15
"""Seconds after which a connection that is neither closed nor reset counts as open."""
LONG_PATIENCE = 5.0
"""Seconds for what is expected to come, on a busy machine."""


@dataclass(frozen=True)
class Seen:
    """What one plain client saw."""

    data: bytes
    end: str
    """`eof`, `reset` or `open`."""


async def exchange(server: HostileServer, expected: bytes, end: str, *requests: bytes) -> Seen:
    """Send `requests` and read until the end or a reset; for `open`, until `PATIENCE` without a byte after `expected`."""
    loop = asyncio.get_running_loop()
    data = b""
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setblocking(False)
        try:
            for number, request in enumerate(requests):
                if number:
                    data += await loop.sock_recv(sock, 65_536)
                await loop.sock_sendall(sock, request)
            while True:
                async with asyncio.timeout(PATIENCE if end == "open" and expected in data else LONG_PATIENCE):
                    part = await loop.sock_recv(sock, 65_536)
                if not part:
                    return Seen(data, "eof")
                data += part
                if len(data) > 1_000_000:
                    return Seen(data, "open")
        except TimeoutError:
            return Seen(data, "open")
        except (ConnectionResetError, BrokenPipeError):
            return Seen(data, "reset")


ONE_REQUEST = [
    ("silence", b"", "open"),
    ("never-reads", b"", "open"),
    ("slow-read", b"", "open"),
    ("close-at-accept", b"", "eof"),
    ("reset-at-accept", b"", "reset"),
    ("close-before-response", b"", "eof"),
    ("reset-before-response", b"", "reset"),
    ("close-mid-head", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConte", "eof"),
    ("reset-mid-head", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConte", "reset"),
    ("close-mid-body", b"x" * 50, "eof"),
    ("reset-mid-body", b"x" * 50, "reset"),
    ("stale-close", b"\r\n\r\nok", "eof"),
    ("stale-reset", b"\r\n\r\nok", "reset"),
    ("stale-close-on-request", b"\r\n\r\nok", "open"),
    ("stale-reset-on-request", b"\r\n\r\nok", "open"),
    ("close-after-204", b"HTTP/1.1 204 No Content", "eof"),
    ("long-content-length", b"Content-Length: 1000\r\n\r\nok", "eof"),
    ("long-content-length-open", b"Content-Length: 1000\r\n\r\nok", "open"),
    ("short-content-length", b"Content-Length: 2\r\n\r\nok and more", "open"),
    ("endless-interim", b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 103", "open"),
    ("interim-then-silence", b"HTTP/1.1 100 Continue\r\n\r\n", "open"),
    ("interim", b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK", "open"),
    ("endless-headers", b"X-More: and more\r\nX-More: and more\r\n", "open"),
    ("endless-body", b"HTTP/1.1 200 OK\r\n\r\nxxxx", "open"),
    ("endless-chunks", b"\r\n\r\n10000\r\nxxxx", "open"),
    ("endless-trailers", b"0\r\nX-More: and more\r\n", "open"),
    ("two-responses", b"okHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "open"),
    ("unsolicited-response", b"okHTTP/1.1 408 Request Timeout", "open"),
    ("banner", b"220 mail.example ESMTP ready\r\n", "open"),
    ("garbage", b"\x00\xff\x16garbage\r\n\r\n", "open"),
    ("garbled-interim", b"HTTP/1.1 10HTTP/1.1 100 Continue2\r\n\r\nHTTP/1.1 200 OK", "open"),
    ("http-0.9", b"<html>hello from 1991</html>\r\n", "eof"),
    ("switching-protocols", b"HTTP/1.1 101 Switching Protocols", "open"),
    ("body-on-204", b"HTTP/1.1 204 No Content\r\n\r\nunexpected", "open"),
    ("body-on-304", b"\r\n\r\nunexpected", "open"),
    ("chunked-cut", b"5\r\nhello\r\n", "eof"),
    ("bad-chunk", b"nonsense", "open"),
    ("ok", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "open"),
    ("chunked", b"hello\r\n6\r\n world\r\n0\r\n\r\n", "open"),
    ("chunked-trailers", b"0\r\nX-Sum: 1\r\nRetry-After: 9999\r\n\r\n", "open"),
    ("late-last-chunk", b"ok\r\n0\r\n\r\n", "open"),
    ("close-delimited", b"\r\n\r\nuntil the end", "eof"),
    ("http-1.0", b"HTTP/1.0 200 OK", "eof"),
    ("gone", b"HTTP/1.1 410 Gone", "open"),
    ("too-many-requests", b"Retry-After: 30\r\n", "open"),
    ("unavailable", b"HTTP/1.1 503", "open"),
    ("error", b"HTTP/1.1 500", "open"),
    ("redirect-302", b"HTTP/1.1 302 Found\r\nLocation: /elsewhere", "open"),
    ("redirect-307", b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere", "open"),
    ("redirect-loop", b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /loop", "open"),
]
"""name, bytes that must be among those seen, how the connection stands after one small request"""


async def check(name: str, expected: bytes, end: str) -> None:
    async with HostileServer(name) as server:
        seen = await exchange(server, expected, end, post())
        await server.wait_disconnected()
    assert seen.end == end, name
    assert expected in seen.data, name
    assert bool(expected) or not seen.data, name
    assert server.connections == 1, name


async def test_every_plain_behaviour_does_what_its_name_says() -> None:
    """One small request against each, all at once, since most of the time is waiting."""
    async with asyncio.TaskGroup() as group:
        for name, expected, end in ONE_REQUEST:
            group.create_task(check(name, expected, end))


@pytest.mark.parametrize(
    ("name", "data", "end"),
    [
        ("close-mid-request", b"", "reset"),
        ("reset-mid-request", b"", "reset"),
        ("early-200", b"\r\n\r\nok", "open"),
        ("early-200-reset", b"", "reset"),
        ("early-413-close", b"HTTP/1.1 413", "reset"),
        ("early-413-drain", b"HTTP/1.1 413", "eof"),
        ("early-413-open", b"HTTP/1.1 413", "open"),
    ],
)
async def test_an_answer_can_come_before_the_body_is_read(name: str, data: bytes, end: str) -> None:
    """The body is larger than all buffers between us, so that the client is still writing when the answer comes."""
    async with HostileServer(name) as server:
        wire = await Wire.open(server.port)
        wire.writer.write(post(body=b"x" * 12_000_000))
        seen = b""
        how = "open"
        try:
            async with asyncio.timeout(2 * PATIENCE if end == "open" else LONG_PATIENCE):
                while part := await wire.reader.read(65_536):
                    seen += part
                how = "eof"
        except TimeoutError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            how = "reset"
        await wire.reset()
        await server.wait_disconnected()
    assert how == end
    assert data in seen


@pytest.mark.parametrize(
    ("name", "end"), [("stale-close-on-request", "eof"), ("stale-reset-on-request", "reset"), ("stale-close", "eof")]
)
async def test_a_stale_connection_ends_as_the_second_request_arrives(name: str, end: str) -> None:
    """The race every keep-alive client has to win; `seconds` moves it."""
    async with HostileServer(name, seconds=0.003) as server:
        seen = await exchange(server, b"ok", end, post(), post())
        assert seen.end == end
        assert seen.data.count(b"HTTP/1.1 200") == 1
        assert server.request_count == (1 if name == "stale-close" else 2)


async def test_the_second_request_can_be_answered_before_its_body() -> None:
    """An answer to something the server cannot have read belongs to nobody."""
    async with HostileServer("early-200-on-reuse") as server:
        wire = await Wire.open(server.port)
        await wire.send(post())
        assert await wire.response() == (200, b"ok")
        wire.writer.write(post(body=b"x" * 12_000_000))
        assert await wire.response() == (200, b"ok")
        assert server.requests[-1].body_read == 0
        await wire.reset()
        await server.wait_disconnected()


@pytest.mark.parametrize(("name", "start"), [("drip-head", b"HTTP/1.1 200 OK\r\n"), ("drip-body", b"xxxx")])
async def test_dripping_keeps_to_its_interval(name: str, start: bytes) -> None:
    """Each byte comes soon enough to please a limit per read, and the whole takes for ever."""
    async with HostileServer(name, seconds=0.005) as server:
        wire = await Wire.open(server.port)
        await wire.send(post())
        if name == "drip-body":
            await wire.reader.readuntil(b"\r\n\r\n")
        began = SYSTEM_CLOCK.monotonic()
        assert await wire.reader.readexactly(len(start)) == start
        assert SYSTEM_CLOCK.monotonic() - began >= 0.005 * (len(start) - 1)
        await wire.close()
        await server.wait_disconnected()


async def test_interim_heads_drip_too() -> None:
    """A clock restarted by each 1xx would never run out."""
    async with HostileServer("slow-interim", seconds=0.01) as server:
        wire = await Wire.open(server.port)
        await wire.send(post())
        for _ in range(3):
            assert b"103" in await wire.reader.readuntil(b"\r\n\r\n")
        await wire.close()
        await server.wait_disconnected()


async def test_a_slow_success_comes_when_it_said() -> None:
    """Slow is not broken; the difference is one second more of patience."""
    async with HostileServer("slow-ok", seconds=0.1) as server:
        wire = await Wire.open(server.port)
        began = SYSTEM_CLOCK.monotonic()
        await wire.send(post())
        assert await wire.response() == (200, b"ok")
        assert 0.1 <= SYSTEM_CLOCK.monotonic() - began < 1.0
        await wire.close()


@pytest.mark.parametrize("name", ["keep-alive-timeout", "idle-limit"])
async def test_an_idle_connection_is_closed_after_its_limit(name: str) -> None:
    """Requests within the limit are answered, and each starts it anew."""
    async with HostileServer(name, seconds=1.0) as server:
        wire = await Wire.open(server.port)
        began = SYSTEM_CLOCK.monotonic()
        for _ in range(2):
            await wire.send(post())
            head = await wire.reader.readuntil(b"\r\n\r\nok")
            assert (b"Keep-Alive: timeout=1" in head) == (name == "keep-alive-timeout")
            await asyncio.sleep(0.3)
        assert await wire.rest() == b""
        assert 1.25 <= SYSTEM_CLOCK.monotonic() - began < 3.0
        await wire.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_black_hole_answers_no_connect(host: str) -> None:
    """On loopback only a full backlog makes a connect hang; it must hang for every further one too."""
    async with HostileServer("black-hole", host=host) as server:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await asyncio.open_connection(host, server.port)
        assert server.connections == 0


TLS_RAW = [
    ("tls-stall", TimeoutError),
    ("tls-close", ssl.SSLEOFError),
    ("tls-reset", ConnectionResetError),
    ("tls-not-tls", ssl.SSLError),
    ("tls-no-http1", ssl.SSLError),
    ("tls-old-version", ssl.SSLError),
    ("tls-handshake-failure", ssl.SSLError),
]


@pytest.mark.parametrize(("name", "error"), TLS_RAW)
async def test_a_handshake_can_be_spoiled(name: str, error: type[Exception]) -> None:
    """Every way a handshake fails must be told apart from a failed connect."""
    loop = asyncio.get_running_loop()
    async with HostileServer(name) as server:
        assert server.url.startswith("https://")

        def shake() -> None:
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                plain.settimeout(PATIENCE if name == "tls-stall" else LONG_PATIENCE)
                ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")

        with pytest.raises(error):
            await loop.run_in_executor(None, shake)
        await server.wait_disconnected()


def tls_pair() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server for `localhost` and of a client that trusts it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("name", ["ok", "tls-bad-certificate", "close-delimited", "tls-no-shutdown"])
async def test_behaviours_play_inside_tls(name: str) -> None:
    """The same faults exist behind TLS, where only a socket of one's own lets a server commit them."""
    context, trusting = tls_pair()
    async with HostileServer(name, tls_context=context) as server:
        wire = Wire(*await asyncio.open_connection("localhost", server.port, ssl=trusting))
        await wire.send(post(body=b"x" * 50_000))
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        if name == "close-delimited":
            assert await wire.rest() == b"until the end"
        assert server.requests[0].body_read == 50_000
        await wire.reset()
        await server.wait_disconnected()


async def test_a_client_that_refuses_the_certificate_is_counted() -> None:
    """A bad certificate must be refused before any request byte; the server can vouch for it."""
    context, _ = tls_pair()
    async with HostileServer("tls-bad-certificate", tls_context=context) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("localhost", server.port, ssl=ssl.create_default_context())
        await server.wait_disconnected()
        assert server.refused_handshakes == 1
        assert server.request_count == 0


async def test_a_behaviour_of_ones_own_answers_given_bytes() -> None:
    """Header variants are a matter of one line each."""
    async with HostileServer(answering(b"HTTP/1.1 299 Odd\r\nContent-Length: 3\r\n\r\nodd", close=True)) as server:
        wire = await Wire.open(server.port)
        await wire.send(post())
        assert await wire.response() == (299, b"odd")
        assert await wire.rest() == b""
        await wire.close()


async def test_leaving_closes_everything_and_ends_every_task() -> None:
    """A fault server that leaks would spoil the leak tests."""
    tasks = asyncio.all_tasks()
    descriptors = []
    for _ in range(3):
        wires = []
        for name in ("silence", "never-reads", "drip-head", "endless-body", "black-hole"):
            async with HostileServer(name) as server:
                if name == "black-hole":
                    continue
                for _ in range(5):
                    wires.append(await Wire.open(server.port))
                    await wires[-1].send(post())
                await asyncio.sleep(0.01)
                assert server.open_connections == 5
        assert asyncio.all_tasks() == tasks
        for wire in wires:
            await wire.rest()
            await wire.close()
        await asyncio.sleep(0.01)  # uvloop closes its sockets a turn later
        descriptors.append(len(os.listdir("/proc/self/fd")))
    # The first round opens what the loop itself keeps for its streams.
    assert descriptors[1] == descriptors[2]


async def test_a_port_can_be_taken_again_at_once() -> None:
    """The demo restarts its bad endpoints under the URLs already registered."""
    async with HostileServer("silence") as server:
        wire = await Wire.open(server.port)
    async with HostileServer("ok", port=server.port) as again:
        assert again.port == server.port
    await wire.close()


async def test_it_serves_until_cancelled() -> None:
    """`gatepost hostile` is this call."""
    ready: asyncio.Queue[HostileServer] = asyncio.Queue()
    serving = asyncio.create_task(serve_forever("ok", announce=ready.put_nowait))
    wire = await Wire.open((await ready.get()).port)
    await wire.send(post())
    assert await wire.response() == (200, b"ok")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await wire.rest() == b""
    await wire.close()


def test_an_unknown_name_lists_the_nearest() -> None:
    """Nobody remembers fifty names."""
    with pytest.raises(ConfigurationError, match="drip-head"):
        find_behaviour("dripp-head")
    assert find_behaviour("drip_head").name == "drip-head"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ok", {"seconds": -1.0}),
        ("tls-bad-certificate", {}),
        ("tls-stall", {"tls_context": ssl.create_default_context()}),
    ],
)
def test_impossible_servers_are_refused(name: str, arguments: dict[str, object]) -> None:
    """A test against a server that cannot do what it claims would pass for the wrong reason."""
    with pytest.raises(ConfigurationError):
        HostileServer(name, **arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_every_behaviour_is_described_and_tried() -> None:
    """The catalogue is documentation: an entry nobody has tried is a claim."""
    tried = {name for name, _, _ in ONE_REQUEST} | {name for name, _ in TLS_RAW}
    tried |= {"black-hole", "drip-head", "drip-body", "slow-interim", "slow-ok", "keep-alive-timeout", "idle-limit"}
    tried |= {"close-mid-request", "reset-mid-request", "early-200", "early-200-reset", "early-200-on-reuse"}
    tried |= {"early-413-close", "early-413-drain", "early-413-open", "tls-bad-certificate", "tls-no-shutdown"}
    assert tried == set(BEHAVIOURS)
    for behaviour in BEHAVIOURS.values():
        assert behaviour.summary
        assert behaviour.expected
        assert behaviour.name == behaviour.name.lower()
        assert (behaviour.tls is TLSUse.OPTIONAL) == (not behaviour.name.startswith("tls-"))
