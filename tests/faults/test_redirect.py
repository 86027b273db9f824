"""Fault cases of class redirect: a POST never becomes a GET, a 3xx is no delivery, and recording an attempt changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from gatepost.delivery.outcome import Outcome, RetrySafety, status_safety
from gatepost.net.client import DispatchClient
from gatepost.service.logs import LogObserver, Logs
from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import Case, delivering, head, meet_all
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, answered, fault, limits

SAFE = RetrySafety.SAFE


async def test_redirect_01_every_redirect_is_a_failed_delivery_and_no_get_is_sent() -> None:
    """Off by default: nothing is followed, so nothing can turn into a GET without a body and come back as a success."""
    for status in (301, 302, 303, 307, 308):
        answer = head("Location: /elsewhere", "Content-Length: 0", status=f"{status} Moved")
        async with delivering(answering(answer)) as (server, client):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            answered(status, safety=SAFE, kept=True, reason=Reason.REDIRECT_DISABLED).check(attempt)
            assert not attempt.delivered
            assert attempt.header("location") == "/elsewhere"
            assert [request.head.split(b" ", 2)[0] for request in server.requests] == [b"POST"]


async def test_redirect_01_switched_on_only_307_and_308_are_followed_with_the_same_bytes() -> None:
    """A chain 307, then 302 ends there; nothing is ever sent as a GET."""

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            request = await peer.read_request()
            first = request.head.startswith(b"POST / ")
            status = "307 X" if first else "302 X"
            await peer.send(head("Location: /login", "Content-Length: 0", status=status))

    policy = limits(follow_redirects=True)
    async with delivering(Behaviour("chain", "307, then 302", "", run), policy) as (server, client):
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert (attempt.status, attempt.reason, attempt.delivered) == (302, Reason.REDIRECT_METHOD_CHANGE, False)
        assert [request.head.split(b" ", 2)[:2] for request in server.requests] == [
            [b"POST", b"/"],
            [b"POST", b"/login"],
        ]
        assert {request.body for request in server.requests} == {SMALL}
    async with delivering("redirect-307", policy) as (server, client):
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert attempt.delivered
        assert {request.body for request in server.requests} == {SMALL}


def test_redirect_02_only_2xx_is_delivered_over_all_statuses() -> None:
    """1xx are interim, 000 and 099 and four digits are no status; 600 and above count as failures like any unknown one."""
    for number in range(1_000):
        reader = ResponseReader(65_536, 65_536, 2_000)
        reader.feed(head("Content-Length: 0", status=f"{number:03d} X"))
        if number < 100:
            assert reader.fault is Reason.RESPONSE_PROTOCOL_ERROR
        elif number == 101:
            assert reader.fault is Reason.RESPONSE_UPGRADE
        elif number < 200:
            assert not reader.done
        else:
            assert reader.head is not None
            assert reader.head.status == number
            if not 200 <= number < 300:
                assert status_safety(number) is not RetrySafety.POINTLESS


async def test_redirect_02_the_edges_of_success_on_the_wire() -> None:
    """199 to 300, and what is beyond the table."""
    zero = "Content-Length: 0"
    not_delivered = fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)
    await meet_all(
        [
            Case(answering(head(zero, status="200 OK")), answered(200, kept=True)),
            Case(answering(head(zero, status="299 Fine")), answered(299, kept=True)),
            Case(answering(head(zero, status="300 Choices")), answered(300, safety=SAFE, kept=True)),
            Case(answering(head(zero, status="399 Odd")), answered(399, safety=SAFE, kept=True)),
            Case(answering(head(zero, status="400 Bad")), answered(400, safety=SAFE)),
            Case(answering(head(zero, status="000 Zero")), not_delivered),
            Case(answering(head(zero, status="1000 Many")), not_delivered),
        ]
    )


async def test_redirect_04_recording_an_attempt_never_changes_it(tmp_path: Path) -> None:
    """A redirect, no response at all, and a binary body: each is logged, and each comes back as it was."""
    binary = head("Content-Length: 4", "X-Odd: \xff\xfe") + b"\x00\xff\n\x1b"
    with (tmp_path / "log").open("w") as stream:
        logs = Logs("json", stream=stream)
        async with (
            HostileServer("redirect-302") as redirecting,
            HostileServer("close-before-response") as closing,
            HostileServer(answering(binary)) as odd,
            DispatchClient(limits(), egress=LOOPBACK, observer=LogObserver(logs, with_decisions=False)) as client,
        ):
            attempts = [await client.deliver(server.url, SMALL, IDENTITY) for server in (redirecting, closing, odd)]
        logs.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["response", "transport_error", "response"]
    assert [(attempt.outcome, attempt.status) for attempt in attempts] == [
        (Outcome.RESPONSE, 302),
        (Outcome.TRANSPORT_ERROR, None),
        (Outcome.RESPONSE, 200),
    ]
    assert attempts[2].body == b"\x00\xff\n\x1b"
    for attempt in attempts:
        assert repr(attempt).isprintable()
