"""Scenarios 17, 25 and 35 to 46 of the egress page: what a receiver may send, and what we never send."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gatepost import Dispatcher, sign
from gatepost.delivery.outcome import Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.store.rows import DeliveryFilter
from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering
from gatepost.wire.egress import Target, check_url
from gatepost.wire.headers import HeaderRefused, check_headers
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from gatepost.wire.request import request_head, static_head
from tests.egress.kit import IDENTITY, INSIDE, NAME, PUBLIC, canary, receiver
from tests.faults.kit import PATIENT, Case, head, meet_all
from tests.hostile.engine import (
    BIG,
    LIMIT,
    SLACK,
    SMALL,
    FixedResolver,
    answered,
    fault,
    limits,
    same_descriptors,
    timed_out,
)

SAFE = RetrySafety.SAFE
BAD_BODY = answered(body_fault=BodyFault.PROTOCOL, reason=Reason.RESPONSE_PROTOCOL_ERROR)
TOO_LARGE = answered(body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
NO_HTTP = fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)
LARGE_HEAD = fault(Phase.READ, Reason.RESPONSE_HEADERS_TOO_LARGE)
CHUNKED = head("Transfer-Encoding: chunked")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_scenario_17_a_redirect_to_the_inside_is_a_failure_and_not_followed(status: int) -> None:
    """Off by default: the status is the outcome, and nobody is connected to."""
    async with canary() as inside:
        answer = head(
            f"Location: {inside.url}", "Refresh: 0; url=" + inside.url, "Content-Length: 0", status=f"{status} X"
        )
        async with HostileServer(answering(answer)) as server, DispatchClient(limits(), egress=PUBLIC) as client:
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            answered(status, safety=SAFE, kept=True, reason=Reason.REDIRECT_DISABLED).check(attempt)


async def test_scenario_17_an_endless_redirect_body_is_bounded_like_any_other() -> None:
    """Some clients read it whole before they decide."""
    raw = head("Location: /x", "Content-Length: 10000000", status="302 Found") + bytes(200_000)
    expected = answered(302, safety=SAFE, body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
    await meet_all([Case(answering(raw), expected)])


async def test_scenario_25_no_cookie_is_ever_sent() -> None:
    """Two tenants on one host and port, one connection, and a receiver that sets cookies in every answer."""
    answer = head("Set-Cookie: session=1; Path=/", "Set-Cookie: b=2", "Content-Length: 0")
    async with receiver(answering(answer)) as (server, _), DispatchClient(limits(), egress=PUBLIC) as client:
        for tenant in ("a", "b", "a"):
            attempt = await client.deliver(server.url, SMALL, IDENTITY, tenant=tenant, endpoint_id=tenant)
            assert attempt.delivered
        assert server.connections == 1
        assert not [request for request in server.requests if b"cookie" in request.head.lower()]


async def test_scenario_35_an_alternative_service_is_ignored() -> None:
    """Alt-Svc names the canary; the next requests go where the record says."""
    async with canary() as inside:
        answer = head(f'Alt-Svc: h2="{INSIDE}:{inside.port}"; ma=9', "Content-Length: 0")
        async with HostileServer(answering(answer)) as server, DispatchClient(limits(), egress=PUBLIC) as client:
            for _ in range(3):
                assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
            assert server.request_count == 3


async def test_scenario_36_bodies_are_bounded_in_memory_and_framing_doubts_drop_the_connection() -> None:
    """10 MiB, endless, announced as 10^18 or twice or negative, bad and huge chunks: status kept, memory bounded."""
    large = head("Content-Length: 10485760") + bytes(10_485_760)
    tracemalloc.start()
    try:
        await meet_all(
            [
                Case(answering(large), TOO_LARGE),
                Case("endless-chunks", TOO_LARGE),
                Case(answering(head("Content-Length: 1000000000000000000") + bytes(100_000)), TOO_LARGE),
                Case(answering(head("Content-Length: 10000000000000000000000") + bytes(100_000)), BAD_BODY),
                Case(
                    answering(head("Content-Length: 2", "Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\n\r\n"),
                    answered(),
                ),
                Case(answering(head("Content-Length: 2", "Content-Length: 3") + b"abc"), BAD_BODY),
                Case(answering(head("Content-Length: -1") + b"abc"), BAD_BODY),
                Case(answering(CHUNKED + b"xyz\r\n"), BAD_BODY),
                Case(answering(CHUNKED + b"ffffffffffffffffff\r\n"), BAD_BODY),
                Case(answering(CHUNKED + b"-1\r\n"), BAD_BODY),
                Case(answering(CHUNKED + b"2;" + b"x" * 200_000 + b"\r\nok\r\n0\r\n\r\n"), BAD_BODY),
            ]
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9 * 1_048_576, "less than the one large body"


async def test_scenario_37_heads_are_bounded_and_what_is_no_head_is_refused() -> None:
    """A line of 1 MiB, 10,000 lines, endless 1xx, folds, NUL, HTTP/0.9 and statuses that are none."""
    fold = answered()
    await meet_all(
        [
            Case(answering(head("X-Long: " + "x" * 1_048_576, "Content-Length: 0")), LARGE_HEAD),
            Case(answering(head(*(f"X-{n}: {n}" for n in range(10_000)), "Content-Length: 0")), LARGE_HEAD),
            Case("endless-headers", LARGE_HEAD),
            Case("endless-interim", fault(Phase.READ, Reason.RESPONSE_TOO_MANY_INTERIM)),
            Case(answering(head("X-A: 1", " 2", "Content-Length: 0")), fold),
            Case(answering(head("X-A: 1\x002", "Content-Length: 0")), NO_HTTP),
            Case("http-0.9", NO_HTTP),
            *(
                Case(answering(head("Content-Length: 0", status=f"{s} X")), NO_HTTP)
                for s in ("000", "99", "099", "1000")
            ),
        ]
    )


async def test_scenario_38_dripping_never_outlives_its_limit_and_not_reading_neither() -> None:
    """Status, headers and body dripped; a large request that is read slowly or never."""
    write_limit = timed_out(Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT)
    attempts = await meet_all(
        [
            Case("drip-head", timed_out(Outcome.READ_TIMEOUT, Phase.READ, Reason.RESPONSE_TIMEOUT), seconds=0.02),
            Case(
                "drip-body",
                answered(body_fault=BodyFault.TIMEOUT, reason=Reason.RESPONSE_TIMEOUT, at_least=LIMIT),
                seconds=0.02,
            ),
            Case("never-reads", write_limit, payload=BIG),
            Case("slow-read", write_limit, seconds=0.005, payload=BIG),
        ]
    )
    assert max(attempt.elapsed for attempt in attempts) < LIMIT + SLACK


async def test_scenario_39_compressed_bodies_stay_compressed() -> None:
    """The cap counts raw bytes; nothing is inflated, and a label changes nothing."""
    bomb = gzip.compress(bytes(50_000_000), 9)
    raw = head("Content-Encoding: gzip", f"Content-Length: {len(bomb)}") + bomb
    (attempt,) = await meet_all([Case(answering(raw), answered(kept=True))], limits(max_response_body=len(bomb)))
    assert attempt.body == bomb
    await meet_all([Case(answering(raw), TOO_LARGE)], limits(max_response_body=1_000))


async def test_scenario_40_surplus_and_early_answers_never_reach_the_next_delivery() -> None:
    """Every answer names the request it is for; surplus names another one. Fifty deliveries, each sees its own."""

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            request = await peer.read_request()
            own = request.body.decode()
            answer = head(f"X-For: {own}", "Content-Length: 0")
            evil = head("X-For: evil", "Content-Length: 0")
            await peer.send(answer + evil if int(own) % 3 == 0 else answer)
            if int(own) % 3 == 1 and not peer.readable_now():
                await peer.send(evil)

    policy = limits(**{**PATIENT, "max_per_host": 4, "per_endpoint_concurrency": 9})
    with same_descriptors():
        async with (
            HostileServer(Behaviour("surplus", "evil", "", run)) as server,
            DispatchClient(policy, egress=PUBLIC) as client,
        ):
            waiting = iter(range(60))

            async def worker() -> None:
                for number in waiting:
                    attempt = await client.deliver(server.url, str(number).encode(), IDENTITY)
                    assert attempt.header("x-for") == str(number), attempt

            await asyncio.gather(*(worker() for _ in range(4)))
            assert server.request_count == 60
    await meet_all([Case("banner", fault((Phase.READ, Phase.WRITE), Reason.RESPONSE_PROTOCOL_ERROR))])
    await meet_all([Case("early-200", answered(phase=(Phase.READ, Phase.WRITE)), payload=BIG)], limits(**PATIENT))


@pytest.mark.parametrize("behaviour", ["stale-close-on-request", "stale-reset-on-request"])
async def test_scenario_41_one_retry_when_the_connection_dies_as_it_is_borrowed(behaviour: str) -> None:
    """Same id, one retry, and none when the receiver cannot tell a repetition."""
    async with HostileServer(behaviour) as server, DispatchClient(limits(**PATIENT), egress=PUBLIC) as client:
        assert (await client.deliver(server.url, SMALL, {"webhook-id": "evt_a"})).delivered
        attempt = await client.deliver(server.url, SMALL, {"webhook-id": "evt_b"})
        assert (attempt.delivered, attempt.stale_retry) == (True, True)
        assert [b"evt_b" in request.head for request in server.requests] == [False, True, True]
    async with HostileServer(behaviour) as server, DispatchClient(limits(**PATIENT), egress=PUBLIC) as client:
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver_admitted(server.url, SMALL, IDENTITY, deduplicates=False)
        assert (attempt.delivered, attempt.stale_retry) == (False, False)
        assert attempt.retry_safety is RetrySafety.AMBIGUOUS
        assert server.request_count == 2


BAD_HEADERS = [
    {"X-A": "a\r\nb"}, {"X-A": "a\nb"}, {"X-A": "a\x00b"}, {"X-A": "caf\u00e9"}, {"X-A": "\u010a"}, {"X-A\r\nX-B": "1"}, {"X A": "1"},
    {"": "1"}, {"Host": "x"}, {"content-LENGTH": "1"}, {"Transfer-Encoding": "chunked"}, {"Cookie": "a=b"}, {"Expect": "100-continue"},
    {"Proxy-Authorization": "x"}, {"Sec-Fetch-Mode": "x"}, {"Connection": "close"}, {"X-A": "1", "x-a": "2"},
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=ascii)
async def test_scenario_42_bad_headers_are_refused_at_both_places(headers: dict[str, str]) -> None:
    """At registration, and by the serialiser itself, since stored headers may be older than a rule."""
    with pytest.raises(HeaderRefused):
        check_headers(headers)
    with pytest.raises(HeaderRefused):
        request_head(static_head("POST", "/", NAME), "agent", "text/plain", 0, headers)
    async with HostileServer("ok") as server, Dispatcher.open("memory://", egress=PUBLIC) as gp:
        with pytest.raises(HeaderRefused):
            await gp.endpoints.create(server.url, headers=headers)
        with pytest.raises(HeaderRefused):
            await gp.client.deliver(server.url, SMALL, headers)
        assert server.connections == 0


@pytest.mark.parametrize("evil", ["a\r\nb", "a\nb", "a.b", "a b", "", "\u00e9", "a\x00"])
async def test_scenario_43_ids_types_and_paths_that_would_forge_are_refused(evil: str) -> None:
    """An id with a full stop changes what is signed; a line break changes what is sent."""
    with pytest.raises(ValueError):
        sign(evil, 1, b"{}", ["whsec_" + "A" * 32])
    async with HostileServer("ok") as server, Dispatcher.open("memory://", egress=PUBLIC) as gp:
        if evil != "a.b":
            with pytest.raises(ValueError):
                await gp.publish(evil, {})
            if evil:
                assert not isinstance(check_url(server.url + evil, PUBLIC), Target)
        if "\r" in evil or "\n" in evil or "\x00" in evil:
            with pytest.raises(HeaderRefused):
                await gp.client.deliver(server.url, SMALL, {"webhook-id": evil})
        assert server.connections == 0


async def test_scenario_44_the_host_header_is_the_registered_one() -> None:
    """Never the address that was dialled; the port only where it is not the scheme's own."""
    async with HostileServer("ok") as server:
        resolver = FixedResolver({NAME: ("127.0.0.1",)})
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            for host in (NAME, NAME.upper(), NAME + "."):
                assert (await client.deliver(f"http://{host}:{server.port}/", SMALL, IDENTITY)).delivered
        for request in server.requests:
            assert [line for line in request.head.lower().split(b"\r\n") if line.startswith(b"host:")] == [
                f"host: {NAME}:{server.port}".encode()
            ]
        assert server.connections == 1
    plain = check_url(f"https://{NAME}:443/", PUBLIC)
    assert isinstance(plain, Target)
    assert plain.authority == NAME


VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "signing.json").read_text(encoding="utf-8")
)
OLD, NEW = "whsec_" + "QUFB" * 8, "whsec_" + "QkJC" * 8


async def test_scenario_45_signatures_hold_for_an_independent_verifier_and_through_a_rotation() -> None:
    """Receivers with the old and the new key both accept; a changed body fails; a retry has the same id and a new time."""
    answers = iter((head("Content-Length: 0", status="503 Busy"), head("Content-Length: 0")))

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            await peer.read_request()
            await peer.send(next(answers))

    async with (
        HostileServer(Behaviour("flaky", "503 once", "", run)) as server,
        Dispatcher.open("memory://", egress=PUBLIC, run=True) as gp,
    ):
        endpoint = await gp.endpoints.create(server.url, secret=OLD, schedule=(0.0, 1.05), window=60.0)
        rotated = await gp.endpoints.rotate_secret(endpoint.id, overlap=3_600.0)
        new = rotated.secrets[0].secret.reveal()
        await gp.publish("a.b", {"name": "Zo\u00eb"})
        async with asyncio.timeout(20):
            while server.request_count < 2:  # noqa: ASYNC110 - a counter of the server
                await asyncio.sleep(0.01)
        seen = []
        for request in server.requests:
            lines = [line.split(": ", 1) for line in request.head.decode().split("\r\n")[1:] if ": " in line]
            fields = {name.lower(): value for name, value in lines}
            for secret in (OLD, new):
                assert Webhook(secret).verify(request.body, fields) == {"name": "Zo\u00eb"}
                with pytest.raises(WebhookVerificationError):
                    Webhook(secret).verify(request.body.replace(b"name", b"nome"), fields)
            seen.append((fields["webhook-id"], int(fields["webhook-timestamp"])))
        (first_id, first), (second_id, second) = seen
        assert first_id == second_id
        assert second > first
    assert len(VECTORS) >= 7


async def test_scenario_46_secrets_stay_out_of_everything() -> None:
    """tests/faults/test_secrets.py scans every failure class; here the shortest form of it, for the number."""
    async with HostileServer("gone") as server, Dispatcher.open("memory://", egress=PUBLIC, run=True) as gp:
        endpoint = await gp.endpoints.create(server.url + "x?token=canary", headers={"X-A": "canary"}, secret=NEW)
        await gp.publish("a.b", {})
        async with asyncio.timeout(20):
            while not gp.statistics().attempts.dead:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        page = await gp.deliveries.list(DeliveryFilter(endpoint=endpoint.number), limit=10)
        for shown in (endpoint, gp, gp.client, gp.statistics(), gp.client.statistics(), page):
            assert "canary" not in repr(shown)
            assert NEW not in repr(shown)
