"""The test receiver, over plain sockets: what other tests and benchmarks count on must itself be right."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import trustme

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError
from gatepost.testing.receiver import Receiver
from gatepost.testing.receiver_process import ReceiverProcess
from tests.hostile.wire import Wire, post


async def test_a_connection_is_kept_and_ids_are_counted() -> None:
    """Crash tests tell lost from duplicated deliveries by this ledger alone."""
    async with Receiver(keep=10) as receiver:
        wire = await Wire.open(receiver.port)
        for webhook_id in ("evt_1", "evt_2", "evt_1"):
            await wire.send(post("/e/1", webhook_id=webhook_id))
            assert await wire.response() == (200, b"ok")
        await wire.close()
        assert receiver.ledger == {"evt_1": 2, "evt_2": 1}
        statistics = receiver.statistics()
        assert (
            statistics.requests,
            statistics.unique_ids,
            statistics.duplicates,
            statistics.connections,
        ) == (3, 2, 1, 1)
        assert receiver.paths == {"/e/1": 3}
        assert [request.headers["webhook-id"] for request in receiver.received] == ["evt_1", "evt_2", "evt_1"]
        assert receiver.received[0].body == b"{}"


async def test_requests_split_or_joined_anywhere_are_understood() -> None:
    """The network cuts where it likes; a receiver that miscounts would blame the sender."""
    request = post("/ok", b"x" * 300, webhook_id="evt_cut")
    async with Receiver() as receiver:
        for cut in range(1, len(request), 7):
            wire = await Wire.open(receiver.port)
            await wire.send(request[:cut])
            await asyncio.sleep(0)
            await wire.send(request[cut:] + request)
            assert await wire.response() == (200, b"ok")
            assert await wire.response() == (200, b"ok")
            await wire.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ok", 200),
        ("/", 200),
        ("/status/503", 503),
        ("/status/99", 400),
        ("/status", 400),
        ("/slow/x", 400),
        ("/slow/0.01/500", 500),
        ("/retry-after/7", 503),
        ("/retry-after/7/429", 429),
        ("/bytes/70000", 200),
    ],
)
async def test_the_path_chooses_the_answer(path: str, status: int) -> None:
    """A misspelt behaviour must not look like a healthy endpoint."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        await wire.send(post(path))
        got, body = await wire.response()
        assert status == got
        assert len(body) == 70_000 or not path.startswith("/bytes")
        await wire.close()


async def test_a_flaky_path_fails_each_id_as_often_as_told() -> None:
    """Retry tests need failures that belong to a delivery and not to a connection."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        statuses = []
        for webhook_id in ("a", "b", "a", "a", "b", "b"):
            await wire.send(post("/flaky/2/503", webhook_id=webhook_id))
            statuses.append((await wire.response())[0])
        assert statuses == [503, 503, 503, 200, 503, 200]
        await wire.close()


async def test_a_slow_answer_comes_late_and_holds_back_the_one_behind_it() -> None:
    """Answers in another order than the requests would be a fault of ours, not of the sender."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        started = SYSTEM_CLOCK.monotonic()
        await wire.send(post("/slow/0.05/202") + post("/ok"))
        assert (await wire.response())[0] == 202
        assert SYSTEM_CLOCK.monotonic() - started >= 0.05
        assert (await wire.response())[0] == 200
        await wire.close()


async def test_an_answer_can_be_changed_while_it_runs() -> None:
    """An endpoint that breaks and recovers is the commonest scene of the service tests."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        for status in (200, 500, 204):
            receiver.answer("/hook", status, headers={"X-Seen": "1"})
            await wire.send(post("/hook"))
            assert status == (await wire.response())[0]
        assert receiver.paths == {"/hook": 3}
        await wire.close()


@pytest.mark.parametrize("request_headers", ["Connection: close\r\n", ""])
async def test_the_connection_closes_when_either_side_asked(request_headers: str) -> None:
    """Both spellings of the end of a connection occur in the field."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        await wire.send(post("/ok" if request_headers else "/close", headers=request_headers))
        assert b"200 OK" in await wire.rest()
        await wire.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"x" * 70_000, 431),
    ],
)
async def test_what_it_cannot_parse_is_refused_and_counted(head: bytes, status: int) -> None:
    """A desynchronised parser would count requests that were never sent."""
    async with Receiver() as receiver:
        wire = await Wire.open(receiver.port)
        await wire.send(head)
        assert b"HTTP/1.1 %d " % status in await wire.rest()
        assert receiver.statistics().malformed == 1
        assert receiver.requests == 0
        await wire.close()


async def test_only_signed_requests_enter_the_ledger() -> None:
    """The demo shows verified deliveries; an unsigned one must show up as such."""
    from gatepost.wire.signing import new_secret, sign

    secret = new_secret(bytes(range(32)))
    body = b'{"n":1}'
    signed = sign("evt_1", int(SYSTEM_CLOCK.wall_us() / 1e6), body, [secret])
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
    async with Receiver(secrets=[secret]) as receiver:
        wire = await Wire.open(receiver.port)
        await wire.send(post("/ok", body, headers=lines))
        assert (await wire.response())[0] == 200
        await wire.send(post("/ok", body + b" ", headers=lines))
        assert (await wire.response())[0] == 401
        assert receiver.ledger == {"evt_1": 1}
        assert receiver.statistics().bad_signatures == 1
        await wire.close()


async def test_reports_are_served_and_not_counted() -> None:
    """A benchmark polls the totals while it runs and must not change them."""
    async with Receiver(stamps=True) as receiver:
        wire = await Wire.open(receiver.port)
        before = SYSTEM_CLOCK.monotonic_ns()
        await wire.send(post("/ok", webhook_id="evt_1"))
        await wire.response()
        reports = {}
        for name in ("stats", "ledger", "stamps", "paths"):
            await wire.send(f"GET /__{name} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            reports[name] = json.loads((await wire.response())[1])
        assert reports["stats"]["requests"] == 1
        assert reports["ledger"] == {"evt_1": 1}
        assert before <= reports["stamps"]["evt_1"] <= SYSTEM_CLOCK.monotonic_ns()
        assert reports["paths"] == {"/ok": 1}
        await wire.close()


async def test_it_speaks_tls_and_closes_what_is_open_at_the_end() -> None:
    """A receiver that leaves sockets behind would spoil every descriptor count after it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with Receiver(tls=context) as receiver:
        assert receiver.url.startswith("https://127.0.0.1:")
        wire = Wire(*await asyncio.open_connection("localhost", receiver.port, ssl=trusting))
        await wire.send(post("/ok"))
        assert await wire.response() == (200, b"ok")
    assert await wire.rest() == b""
    await wire.close()


def test_as_a_process_it_writes_a_ledger_file_that_outlives_it(tmp_path: Path) -> None:
    """After a crash test the file is the evidence."""
    import socket

    path = tmp_path / "ledger"
    with ReceiverProcess("--ports", "3", "--ledger", str(path), "--stamps") as receiver:
        assert 3 == len(set(receiver.ports)) == len(receiver.urls)
        with socket.create_connection(("127.0.0.1", receiver.ports[2])) as plain:
            plain.sendall(post("/status/503", webhook_id="evt_1"))
            assert b"503" in plain.recv(1_000)
        assert receiver.stats()["requests"] == 1
        assert receiver.ledger() == {"evt_1": 1}
        assert receiver.paths() == {"/status/503": 1}
        assert list(receiver.stamps()) == ["evt_1"]
    name, stamp, status = path.read_text().split()
    assert (name, status) == ("evt_1", "503")
    assert int(stamp) > 0


def test_impossible_ports_are_refused_with_what_to_write() -> None:
    """A clear error beats a traceback of bind()."""
    with pytest.raises(ConfigurationError, match="none above 65535"):
        Receiver(port=65_535, ports=2)
