"""Scenarios 15 and 18 to 21 of the egress page and the redirect cases of the corpus: following, when it is switched on."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from gatepost import Dispatcher, verify
from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.outcome import Outcome
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.client import DispatchClient
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering
from gatepost.wire.egress import Denied, EgressPolicy, Target, check_addresses, check_url
from gatepost.wire.reasons import Reason
from gatepost.wire.redirects import next_hop
from gatepost.wire.signing import sign
from tests.egress.kit import IDENTITY, NAME, PUBLIC, canary
from tests.faults.kit import PATIENT, ScriptedResolver, head
from tests.hostile.engine import SMALL, Certificates, FixedResolver, assert_nothing_held, limits, same_descriptors

CORPUS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "egress.json").read_text(encoding="utf-8"))
CASES = [case for case in CORPUS["cases"] if case["stage"] == "redirect"]
SECRET = "whsec_" + "QUJD" * 8


def following(**changes: Any) -> ClientPolicy:
    """A policy that follows."""
    return limits(**{**PATIENT, "follow_redirects": True, **changes})


def redirect(location: str, status: int = 307) -> Behaviour:
    """Answers every request with a redirect."""
    return answering(head(f"Location: {location}", "Content-Length: 0", status=f"{status} Elsewhere"))


def walk(case: dict[str, Any], *, as_written: bool) -> str:
    """Where the chain of a case ends: `ok`, or the code of what stops it."""
    fields = dict(case.get("policy") or {})
    limit = fields.pop("redirects", 0)
    cross_origin = fields.pop("redirect_cross_origin", False)
    egress = EgressPolicy(**fields)
    place = check_url(case["url"], egress)
    assert isinstance(place, Target)
    if not limit:
        return str(Reason.REDIRECT_DISABLED)
    for hops, step in enumerate(case["redirect"]):
        status = step["status"] if as_written else 307
        hop = next_hop(
            status,
            [step["location"]],
            place,
            lambda url: check_url(url, egress),
            hops=hops,
            limit=limit,
            cross_origin=cross_origin,
        )
        if isinstance(hop, Denied):
            return str(hop.reason)
        if isinstance(hop, Reason):
            return str(hop)
        answers = step.get("dns_answers")
        if answers is not None:
            checked = check_addresses(answers, egress)
            if isinstance(checked, Denied):
                return str(checked.reason)
        place = hop
    return "ok"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_redirect_cases_of_the_corpus(case: dict[str, Any]) -> None:
    """Each place is refused for its reason. Where a case lets a 302 pass to its next hop, it is walked as a 307: a 302 would
    turn the POST into a GET, and is never followed here (`redirect_method_change`).
    """
    assert walk(case, as_written=False) == case["reason_code"]
    written = walk(case, as_written=True)
    assert written in (case["reason_code"], "redirect_method_change")
    assert (written == "redirect_method_change") is (case["id"] in ("redir-limit", "redir-second-hop"))


async def test_scenario_15_a_record_that_moves_leaves_its_connections() -> None:
    """An endpoint edited while its connection is idle: the old one is closed, the next request has a new one."""
    async with (
        HostileServer("ok") as old,
        HostileServer("ok") as new,
        Dispatcher.open("memory://", egress=PUBLIC) as gp,
    ):
        endpoint = await gp.endpoints.create(old.url)
        assert (await gp.endpoints.test(endpoint.id)).delivered
        await gp.endpoints.update(endpoint.id, url=new.url)
        await old.wait_disconnected()
        assert (await gp.endpoints.test(endpoint.id)).delivered
        assert (old.request_count, new.request_count) == (1, 1)


async def test_scenario_18_a_307_on_the_same_origin_is_the_same_message_once_more() -> None:
    """Followed once: same method, same bytes, and a signature that still holds, since it covers id, time and body and no URL."""
    headers = {**sign("evt_1", int(SYSTEM_CLOCK.wall_us() // 1_000_000), SMALL, [SECRET]), "X-Team": "billing"}
    for behaviour, count in (("redirect-307", 2), (redirect("/x", 308), 4)):
        async with HostileServer(behaviour) as server, DispatchClient(following(), egress=PUBLIC) as client:
            attempt = await client.deliver(server.url, SMALL, headers)
            assert attempt.delivered is (count == 2)
            assert server.request_count == count
            for request in server.requests:
                assert request.head.startswith(b"POST /")
                assert request.body == SMALL
                assert b"X-Team: billing" in request.head or b"x-team: billing" in request.head
                lines = [line.split(": ", 1) for line in request.head.decode().split("\r\n")[1:] if ": " in line]
                assert verify(request.body, dict(map(tuple, lines)), [SECRET]).id == "evt_1"  # type: ignore[arg-type]  # pairs
            assert server.connections == 1, "hops use the pool like everybody"


BAD_HOPS = [
    ("http://127.0.0.66:{port}/", Reason.ADDR_OPERATOR_DENIED),
    ("//127.0.0.66:{port}/x", Reason.ADDR_OPERATOR_DENIED),
    ("http://10.0.0.1/", Reason.ADDR_PRIVATE),
    ("http://169.254.169.254/latest/", Reason.ADDR_METADATA),
    ("http://[::ffff:127.0.0.1]/", Reason.ADDR_IPV4_MAPPED),
    ("http://0177.0.0.1/", Reason.IPV4_NONCANONICAL),
    ("http://user@127.0.0.1/", Reason.USERINFO_PRESENT),
    ("file:///etc/passwd", Reason.SCHEME_NOT_ALLOWED),
    ("gopher://127.0.0.66:{port}/_x", Reason.SCHEME_NOT_ALLOWED),
    ("http://localhost:{port}/", Reason.HOST_SPECIAL_USE),
    ("http://inside.example.com:{port}/", Reason.ADDR_OPERATOR_DENIED),
    ("http://127.0.0.1:6379/", Reason.PORT_NOT_ALLOWED),
]


@pytest.mark.parametrize(("location", "reason"), BAD_HOPS, ids=lambda value: str(value)[:40])
async def test_scenario_19_a_second_hop_to_the_inside_is_denied_for_its_reason(location: str, reason: Reason) -> None:
    """The first hop is harmless, the second is not; nobody inside is connected to."""
    async with canary() as inside:
        target = location.format(port=inside.port)

        async def run(peer: Peer, seconds: float) -> None:
            while True:
                request = await peer.read_request()
                place = "/second" if request.head.startswith(b"POST / ") else target
                await peer.send(head(f"Location: {place}", "Content-Length: 0", status="307 X"))

        resolver = FixedResolver({"inside.example.com": ("127.0.0.66",)})
        policy = following(redirect_cross_origin=True)
        async with (
            HostileServer(Behaviour("two-hops", "harmless, then not", "", run)) as server,
            DispatchClient(policy, egress=PUBLIC, resolver=resolver) as client,
        ):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.outcome is Outcome.EGRESS_DENIED, attempt
            assert attempt.reason is reason
            assert server.request_count == 2
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.connections_in_use, statistics.admitted) == (0, 0, 0)


async def test_scenario_19_https_never_becomes_http() -> None:
    """Even where plain http is allowed."""
    certificates = Certificates.make()
    async with (
        HostileServer("ok") as plain,
        HostileServer(redirect(plain.url), tls_context=certificates.server("127.0.0.1")) as server,
        DispatchClient(following(redirect_cross_origin=True), egress=PUBLIC) as client,
    ):
        attempt = await client.deliver(server.url, SMALL, IDENTITY, tls=certificates.profile)
        assert (attempt.outcome, attempt.reason, attempt.status) == (
            Outcome.RESPONSE,
            Reason.REDIRECT_SCHEME_DOWNGRADE,
            307,
        )
        assert plain.connections == 0


async def test_scenario_20_another_origin_gets_neither_headers_nor_certificate() -> None:
    """Cross-origin is allowed here: the second host sees the signed message and nothing of the endpoint's own."""
    certificates = Certificates.make()
    leaf = certificates.authority.issue_cert("client@hook.example.com")
    profile = TLSProfile(
        ca_pem=certificates.profile.ca_pem,
        client_cert_pem=leaf.cert_chain_pems[0].bytes(),
        client_key_pem=leaf.private_key_pem.bytes(),
    )
    shown: list[object] = []
    asking = certificates.server("other.example.com")
    asking.verify_mode = ssl.CERT_OPTIONAL
    certificates.authority.configure_trust(asking)

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            await peer.read_request()
            assert peer._tls is not None
            shown.append(peer._tls.getpeercert())
            await peer.send(head("Content-Length: 0"))

    headers = {**sign("evt_1", 1_700_000_000, SMALL, [SECRET]), "Authorization": "Bearer endpoint", "X-Team": "billing"}
    resolver = ScriptedResolver(("127.0.0.1",))
    async with HostileServer(Behaviour("asking", "asks for a certificate", "", run), tls_context=asking) as other:
        location = f"https://other.example.com:{other.port}/x"
        async with (
            HostileServer(redirect(location), tls_context=certificates.server(NAME)) as server,
            DispatchClient(following(redirect_cross_origin=True), egress=PUBLIC, resolver=resolver) as client,
        ):
            attempt = await client.deliver(f"https://{NAME}:{server.port}/", SMALL, headers, tls=profile)
            assert attempt.delivered, attempt
            seen = other.requests[0].head.lower()
            assert b"authorization" not in seen
            assert b"x-team" not in seen
            assert b"webhook-signature" in seen
            assert shown in ([None], [{}])
            assert b"authorization: bearer endpoint" in server.requests[0].head.lower()


async def test_scenario_21_a_loop_ends_at_its_limit() -> None:
    """After `redirect_limit` hops, in one attempt; ten hops are no different from four."""
    with same_descriptors():
        async with HostileServer("redirect-loop", seconds=0.0) as server:
            for limit in (1, 3, 5):
                before = server.request_count
                async with DispatchClient(following(redirect_limit=limit), egress=PUBLIC) as client:
                    attempt = await client.deliver(server.url, SMALL, IDENTITY)
                    assert (attempt.outcome, attempt.reason) == (Outcome.RESPONSE, Reason.REDIRECT_LIMIT), attempt
                    assert not attempt.delivered
                    assert server.request_count - before == limit + 1
                    assert_nothing_held(client, idle=1)
