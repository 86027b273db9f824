"""`gatepost doctor URL` against every way an endpoint can be unwell: where it ends, whose fault it is, and that nothing is delivered."""

from __future__ import annotations

import datetime
import json
import shlex
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.service.doctor.curl import curl_line
from gatepost.service.doctor.endpoint import EventToSend, look_at
from gatepost.service.doctor.endpoint_facts import EndpointFacts
from gatepost.service.doctor.endpoint_verdict import Fault, Trouble, fault_of, judge
from gatepost.testing.hostile import Behaviour, HostileServer, Peer
from gatepost.testing.hostile_peer import TLSUse
from gatepost.wire.phases import Phase
from gatepost.wire.signing import verify
from tests.hostile.engine import LOOPBACK, Certificates, FixedResolver, limits, same_descriptors
from tests.service.doctored import gatepost

LIMITS = limits(connect_timeout=1.0, read_timeout=0.5)
NAME = "hook.example.com"
FLAGS = ("--allow-http", "--allow-cidr", "127.0.0.0/8")


@dataclass(frozen=True)
class Seen:
    """What one look came to."""

    facts: EndpointFacts
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def codes(self) -> list[str]:
        """Of the findings, in the order of the wire."""
        return [trouble.finding.code for trouble in self.troubles]

    @property
    def fault(self) -> Fault:
        """Whose."""
        return fault_of(self.troubles)

    @property
    def text(self) -> str:
        """All evidence and advice."""
        return "\n".join(
            "\n".join((trouble.finding.what, *trouble.finding.evidence, trouble.finding.todo))
            for trouble in self.troubles
        )


async def look(url: str, resolver: Any = None, *, policy: ClientPolicy = LIMITS, **how: Any) -> Seen:
    """Look at `url` by the rules of these tests."""
    async with DispatchClient(policy, egress=LOOPBACK, resolver=resolver or FixedResolver({})) as client:
        facts = await look_at(client, url, **how)
        return Seen(facts, judge(facts))


async def test_a_well_endpoint_is_asked_twice_and_nothing_is_delivered() -> None:
    """OPTIONS, not POST: a doctor that delivers test events to a customer at night is a second incident."""
    certificates = Certificates.make()
    with same_descriptors():
        async with HostileServer("ok", tls_context=certificates.server(NAME)) as server:
            url = server.url.replace("127.0.0.1", NAME)
            seen = await look(url, FixedResolver({NAME: ("127.0.0.1",)}), tls=certificates.profile)
            await server.wait_disconnected(10.0)
    assert (seen.codes, seen.fault) == ([], Fault.NOBODY)
    facts = seen.facts
    assert [request.head.split()[0] for request in server.requests] == [b"OPTIONS", b"OPTIONS"]
    assert facts.sent == "OPTIONS without a body"
    assert [one.reused for one in facts.exchanges] == [False, True]
    assert facts.exchanges[0].status == 200
    assert {Phase.CONNECT, Phase.TLS, Phase.WAIT} <= set(facts.exchanges[0].phases)
    assert facts.name is not None
    assert facts.name.again_seconds is not None
    (address,) = facts.addresses
    assert (address.address, address.denied, address.connect) == ("127.0.0.1", None, "ok")
    assert facts.tls is not None
    assert facts.tls.version == "TLSv1.3"
    assert facts.tls.cipher
    assert facts.tls.chain[0].names == (NAME,)
    assert facts.tls.chain[0].days_left > 14


CASES: list[tuple[str, str, str]] = [
    ("silence", "no_answer", "read_timeout in wait"),
    ("drip-head", "no_answer", "read_timeout in read"),
    ("close-before-response", "no_answer", "transport_error in wait"),
    ("garbage", "no_answer", "response_protocol_error"),
    ("error", "status_unwell", "answered with 500"),
    ("redirect-302", "status_unwell", "location: /elsewhere"),
    ("http-1.0", "not_kept", "Connections are not kept"),
    ("keep-alive-timeout", "not_kept", "timeout=1"),
    ("tls-no-http1", "tls_failed", "tls_no_http1"),
    ("tls-stall", "tls_failed", "tls_timeout"),
    ("tls-not-tls", "tls_failed", "tls_not_tls"),
]


@pytest.mark.parametrize(("behaviour", "code", "says"), CASES, ids=[case[0] for case in CASES])
async def test_what_fails_behind_the_connect_is_theirs(behaviour: str, code: str, says: str) -> None:
    """We got there: neither our resolver nor our way out can be at fault."""
    async with HostileServer(behaviour) as server:
        seen = await look(server.url)
    assert seen.codes[0] == code, seen.troubles
    assert seen.fault is Fault.THEIRS
    assert says in seen.text


async def test_an_answer_that_is_slow_although_the_way_is_short_is_theirs() -> None:
    """The question of the checklist: consumer latency, or our egress path?"""
    async with HostileServer("slow-ok", seconds=1.05) as server:
        seen = await look(server.url, policy=limits(connect_timeout=1.0, read_timeout=5.0))
    assert (seen.codes, seen.fault) == (["answer_slow"], Fault.THEIRS)
    assert "round trip" in seen.text


def outdated(authority: trustme.CA) -> ssl.SSLContext:
    """A server whose certificate ended yesterday."""
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(
        "127.0.0.1", not_before=yesterday - datetime.timedelta(days=9), not_after=yesterday
    ).configure_cert(context)
    return context


async def test_a_refused_certificate_is_shown_although_nothing_is_sent_to_it() -> None:
    """Its owner needs to see which one we got; and still there is no context that trusts everybody."""
    certificates = Certificates.make()
    stranger = trustme.CA()
    cases = [
        (certificates.server("other.example"), "tls_hostname_mismatch", "for other.example"),
        (outdated(certificates.authority), "tls_cert_expired", "(-1 days)"),
        (certificates.server("127.0.0.1", authority=stranger), "tls_cert_unknown_ca", "own certificate only"),
    ]
    for context, reason, says in cases:
        async with HostileServer("tls-bad-certificate", tls_context=context) as server:
            seen = await look(server.url, tls=certificates.profile)
            assert server.request_count == 0
        assert (seen.codes, seen.fault) == (["tls_failed"], Fault.THEIRS)
        assert reason in seen.text
        assert says in seen.text, seen.text
        assert "timedatectl" in seen.text or reason != "tls_cert_expired"


async def test_a_certificate_that_is_wrong_on_one_server_of_several_is_named() -> None:
    """The renewal that missed one machine: deliveries fail by chance, and every single look finds it well."""
    certificates = Certificates.make()
    async with HostileServer("ok", tls_context=certificates.server(NAME)) as well:
        wrong = certificates.server("other.example")
        async with HostileServer("ok", tls_context=wrong, host="127.0.0.2", port=well.port):
            resolver = FixedResolver({NAME: ("127.0.0.1", "127.0.0.2")})
            seen = await look(well.url.replace("127.0.0.1", NAME), resolver, tls=certificates.profile)
    assert (seen.codes, seen.fault) == (["tls_differs"], Fault.THEIRS)
    assert "127.0.0.2: tls_hostname_mismatch" in seen.text


async def test_a_peer_with_http2_only_is_told_so_after_its_certificate() -> None:
    """It shakes hands with whoever offers h2, and not with us: without saying why, that looks like a broken server."""
    certificates = Certificates.make()
    context = certificates.server("127.0.0.1")
    context.set_alpn_protocols(["h2"])

    async def speak_h2(peer: Peer, _: float) -> None:
        await peer.read_request()
        await peer.send(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00")

    behaviour = Behaviour("h2-only", "speaks HTTP/2 only", "", speak_h2, tls=TLSUse.REQUIRED)
    async with HostileServer(behaviour, tls_context=context) as server:
        seen = await look(server.url, tls=certificates.profile)
    assert seen.facts.tls is not None
    assert seen.facts.tls.alpn == "h2"
    assert seen.fault is Fault.THEIRS
    assert "they speak h2" in seen.text


async def test_a_certificate_that_ends_soon_is_a_warning() -> None:
    """Two weeks before the incident, not after it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=5)
    authority.issue_cert("127.0.0.1", not_after=soon).configure_cert(context)
    certificates = Certificates(authority)
    async with HostileServer("ok", tls_context=context) as server:
        seen = await look(server.url, tls=certificates.profile)
    assert (seen.codes, seen.fault) == (["certificate_expires"], Fault.THEIRS)


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_a_refused_connect_is_theirs_and_a_dead_address_among_others_is_named() -> None:
    """Somebody at that address answers, so our way there is fine."""
    seen = await look(f"http://127.0.0.1:{closed_port()}/")
    assert (seen.codes, seen.fault) == (["connect_refused"], Fault.THEIRS)
    async with HostileServer("ok") as server:
        resolver = FixedResolver({NAME: ("127.0.0.1", "127.0.0.2")})
        seen = await look(server.url.replace("127.0.0.1", NAME), resolver)
    assert (seen.codes, seen.fault) == (["address_dead"], Fault.THEIRS)
    assert "127.0.0.2: connection_refused" in seen.text


async def test_an_address_in_an_unusual_spelling_is_connected_to_and_shown() -> None:
    """Resolvers of users write IPv6 as they like; what is shown is what was dialled."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
    seen = await look(f"http://{NAME}:{port}/", FixedResolver({NAME: ("0:0:0:0:0:0:0:1",)}))
    assert (seen.codes, seen.fault) == (["connect_refused"], Fault.THEIRS)
    assert seen.facts.addresses[0].address == "::1"


async def test_a_black_hole_is_theirs_ours_or_open_by_what_the_reference_does() -> None:
    """Silence has no sender: only a comparison tells whether it is our way out."""
    policy = limits(connect_timeout=0.3)
    async with HostileServer("black-hole") as hole, HostileServer("black-hole") as other, HostileServer("ok") as well:
        alone = await look(hole.url, policy=policy)
        compared = await look(hole.url, policy=policy, reference=well.url)
        together = await look(hole.url, policy=policy, reference=other.url)
    assert [(one.codes, one.fault) for one in (alone, compared, together)] == [
        (["connect_timeout"], Fault.UNKNOWN),
        (["connect_timeout"], Fault.THEIRS),
        (["connect_timeout"], Fault.OURS),
    ]
    assert "give --reference" in alone.text


@dataclass(frozen=True)
class FailingResolver:
    """Answers some names, fails for the others with one error."""

    error: ResolveError
    known: dict[str, tuple[str, ...]]

    async def resolve(self, host: str) -> Resolution:
        """The addresses of `host`."""
        if host in self.known:
            return Resolution(self.known[host])
        raise self.error


async def test_a_name_that_does_not_exist_is_theirs_and_one_unanswered_is_compared() -> None:
    """No such name is an answer; no answer may be our resolver."""
    missing = FailingResolver(ResolveError("dns_no_address", temporary=False), {})
    seen = await look(f"https://{NAME}/", missing)
    assert (seen.codes, seen.fault) == (["name_unknown"], Fault.THEIRS)
    failing = ResolveError("dns_temporary_failure", temporary=True)
    async with HostileServer("ok") as server:
        reference = server.url.replace("127.0.0.1", "well.example.com")
        well = FailingResolver(failing, {"well.example.com": ("127.0.0.1",)})
        seen = await look(f"https://{NAME}/", well, reference=reference)
        assert (seen.codes, seen.fault) == (["name_unanswered"], Fault.THEIRS)
        seen = await look(f"https://{NAME}/", FailingResolver(failing, {}), reference=reference)
        assert (seen.codes, seen.fault) == (["name_unanswered"], Fault.OURS)


async def test_our_rules_are_never_passed_by() -> None:
    """Also the doctor's own connects, handshakes and references go only where an attempt may go; each answer shows its verdict."""
    seen = await look("https://10.0.0.1/")
    assert (seen.codes, seen.fault) == (["url_denied"], Fault.OURS)
    async with HostileServer("ok") as server:
        resolver = FixedResolver({NAME: ("127.0.0.1", "10.0.0.1")})
        seen = await look(server.url.replace("127.0.0.1", NAME), resolver, reference="http://10.0.0.2/")
        assert server.connections == 0
    assert (seen.codes, seen.fault) == (["address_denied"], Fault.OURS)
    assert [(one.address, one.denied, one.connect) for one in seen.facts.addresses] == [
        ("127.0.0.1", None, None),
        ("10.0.0.1", "addr_private", None),
    ]
    assert seen.facts.reference is not None
    assert seen.facts.reference.connect is None


def headers_of(head: bytes) -> dict[str, str]:
    """Of a request as it came."""
    lines = head.decode().split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


async def test_the_command_prints_for_people_and_programs_and_sends_only_when_told(tmp_path: Path) -> None:
    """Exit 0 well, 1 not; the test event is signed, and the curl line goes to the address that was used."""
    certificates = Certificates.make()
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(certificates.authority.cert_pem.bytes())
    async with HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as server:
        flags = (*FLAGS, "--ca-file", str(ca_file), "--policy", "connect_timeout=2")
        ended = await gatepost("doctor", server.url, *flags)
        assert ended.exit_code == 0, ended.output
        assert "fault    nothing found" in ended.stdout
        assert "tls      ok in" in ended.stdout
        ended = await gatepost("doctor", server.url, *flags, "--json")
        document = json.loads(ended.stdout)
        assert ended.stdout.isascii()
        assert (document["healthy"], document["fault"], document["sent"]) == (True, "nobody", "OPTIONS without a body")
        assert {request.head.split()[0] for request in server.requests} == {b"OPTIONS"}
        secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        ended = await gatepost("doctor", server.url, *flags, "--json", "--send", "--secret", secret)
        document = json.loads(ended.stdout)
        assert document["sent"] == "POST of a test event"
        request = server.requests[-1]
        assert request.head.startswith(b"POST ")
        message = verify(request.body, headers_of(request.head), [secret])
        assert json.loads(message.body)["type"] == "gatepost.test"
        words = shlex.split(document["curl"])
        assert words[:4] == ["curl", "-v", "--max-time", "30"]
        assert words[-1] == server.url
    ended = await gatepost("doctor", "--send")
    assert ended.exit_code == 2
    assert "are for `gatepost doctor URL`" in ended.stderr


def test_the_curl_line_survives_a_shell() -> None:
    """It is pasted at night, with whatever the URL holds."""
    url = "https://hook.example.com/a?b=c&d='e'"
    words = shlex.split(curl_line(url, "2001:db8::1", ca_file="/my ca.pem"))
    assert words[-1] == url
    assert words[words.index("--resolve") + 1] == "hook.example.com:443:[2001:db8::1]"
    assert words[words.index("--cacert") + 1] == "/my ca.pem"
    sent = shlex.split(curl_line("http://127.0.0.1:1/", "127.0.0.1", payload=b"{}"))
    assert "--resolve" not in sent
    assert sent[sent.index("--data-binary") + 1] == "{}"


async def test_a_sent_event_that_is_refused_is_theirs() -> None:
    """A 404 means nothing for OPTIONS, and everything for a POST."""
    async with HostileServer("gone") as server:
        seen = await look(server.url, event=EventToSend(b"{}", {"webhook-id": "evt_1"}))
    assert (seen.codes, seen.fault) == (["status_unwell"], Fault.THEIRS)
