"""What the doctor says of facts: above all where it must say nothing, and what only a comparison shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatepost.service.doctor import checks_client, checks_fleet, checks_machine
from gatepost.service.doctor.asking import ToAsk, limits_differ, others_to_ask, unreachable
from gatepost.service.doctor.certificates import chain_in
from gatepost.service.doctor.checks import examine
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.facts import (
    ClientFacts,
    FileFacts,
    FleetFacts,
    HostFacts,
    LimitFacts,
    NameFacts,
    NodeFacts,
    PartFacts,
    ProcessFacts,
    SocketFacts,
    StoreFacts,
)
from gatepost.service.doctor.finding import EVIDENCE_MAX, Finding, Severity, finding_from, merged, shortened
from gatepost.service.doctor.recent import HOSTS_MAX, SLOT, SLOTS, RecentHosts
from gatepost.service.doctor.sockets import count_sockets
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.virtual import VirtualClock

ROOT = Path(__file__).resolve().parents[2]
LIMITS = LimitFacts(
    phases={"connect": 3.0, "read": 10.0},
    attempt_budget=18.0,
    keepalive_expiry=30.0,
    max_connections=200,
    slots=200,
    follow_redirects=False,
    redirect_cross_origin=False,
    shared_store=True,
)
WELL = ProcessFacts(
    node="a.0-0001",
    machine="a",
    running=True,
    draining=False,
    lease_seconds_left=20.0,
    parts=8,
    clock_skew=0.1,
    limits=LIMITS,
    client=ClientFacts(1, 1, None, 0),
    hosts=(HostFacts("https://h:443", 1_000, 40, 960, 0, 0, open_peak=40),),
    names=(NameFacts("h", 0.02, None),),
    names_pending=0,
    store=StoreFacts((0.003, 0.9, 0.002), None, False, 0),
    files=FileFacts(4_096, 300, 400, False),
    disk=None,
    sockets=SocketFacts(30_000, {f"192.0.2.{number}:443": 100 for number in range(200)}, 28_232),
)
FLEET = FleetFacts(nodes=(NodeFacts("a.0-0001", "http://127.0.0.1:1", False, 7.9, 8),))


def one(found: Finding | None) -> Finding:
    """A finding that must be there."""
    assert found is not None
    return found


def test_a_long_tail_one_late_commit_and_a_burst_are_no_findings() -> None:
    """Many peers with a few closed connections each, and as many new connections as were ever open at once, are ordinary."""
    assert examine(WELL, FLEET) == []
    burst = HostFacts("https://h:443", 300, 64, 236, 2, 1, open_peak=64)
    assert checks_client.reuse([burst]) is None
    assert checks_client.pool_timeouts([burst]) is None
    assert checks_client.reuse([replace(burst, opened=19, reused=0, open_peak=1)]) is None, "too few to mean anything"


def test_churn_beyond_the_peak_is_found_the_worst_host_first() -> None:
    """What is opened again and again is what costs."""
    bad = HostFacts("https://bad:443", 100, 90, 10, 0, 0, open_peak=6)
    worse = HostFacts("https://worse:443", 100, 100, 0, 0, 0, open_peak=6)
    evidence = one(checks_client.reuse([bad, worse])).evidence
    assert [line.partition(": ")[0] for line in evidence] == ["https://worse:443", "https://bad:443"]


@pytest.mark.parametrize(
    ("ages", "found"),
    [
        ((5.0, 5.1, 5.05), True),
        ((0.3, 0.5), True),
        ((5.0,), False),
        ((0.4, 12.0, 25.0), False),  # a restart closes at all ages at once
        ((40.0, 41.0), False),  # longer than we keep them
    ],
)
def test_only_closes_at_one_age_are_a_timer(ages: tuple[float, ...], found: bool) -> None:
    """A deployment of a customer's must not look like an idle timeout for ten minutes."""
    host = HostFacts("https://h:443", 10, 2, 8, 0, 0, closed_after=ages)
    assert (checks_client.keepalive([host], LIMITS) is not None) is found
    if found:
        harmed = one(checks_client.keepalive([replace(host, stale_retries=3)], LIMITS))
        assert harmed.severity is Severity.WARNING
        assert "3 requests met a closed connection" in harmed.evidence[0]


def test_names_are_our_resolvers_fault_only_when_none_is_answered() -> None:
    """A customer's dead zone is a note; a name that does not exist is an answer."""
    well, hung = NameFacts("a.example", 0.01, None), NameFacts("b.example", 2.0, "no_answer")
    slow, missing = NameFacts("c.example", 0.9, None), NameFacts("d.example", 0.01, "dns_no_address")
    assert checks_machine.names([well, missing], 0) is None
    assert checks_machine.names([], 0) is None
    assert one(checks_machine.names([hung], 7)).code is Code.DNS_HUNG
    assert one(checks_machine.names([hung, well], 0)).code is Code.DNS_NAME_HUNG
    assert one(checks_machine.names([slow], 0)).code is Code.DNS_SLOW
    assert checks_machine.names([slow, well], 0) is None


def test_a_store_is_judged_by_its_best_write_and_by_what_could_not_be_stored() -> None:
    """One write that waited behind a commit of many rows is ordinary; none that is stored is the end of everything."""
    assert checks_machine.store(StoreFacts((0.9, 0.2), None, False, 0)) is None
    assert one(checks_machine.store(StoreFacts((0.1, 1.9), None, False, 0))).code is Code.STORE_SLOW, "given up"
    assert one(checks_machine.store(StoreFacts((0.9, 0.3), None, False, 4))).evidence[1] == "4 results wait"
    silent = one(checks_machine.store(StoreFacts((), "no answer within 2 s", False, 0)))
    assert (silent.code, silent.evidence) == (Code.STORE_FAILING, ("a small write: no answer within 2 s",))
    failing = one(checks_machine.store(StoreFacts((0.001,), None, True, 9)))
    assert (failing.severity, failing.evidence) == (Severity.CRITICAL, ("results cannot be stored: 9 wait",))


def test_what_stops_everything_is_critical() -> None:
    """The worst stands first, whatever the order of the checklist."""
    stopped = replace(WELL, running=False, clock_skew=-40.0, client=ClientFacts(1, 1, None, 0, ("64:ff9b:1::/96",)))
    lost = FleetFacts(
        nodes=(NodeFacts("b-0002", None, True, 1.0, 3),),
        owners_gone={"c-0003": 4},
        stuck=(PartFacts(1, None, 11.0, 2, 0.0), PartFacts(2, "c-0003", 4.0, 1, 3.0)),
    )
    found = examine(replace(stopped, limits=replace(LIMITS, slots=300), files=FileFacts(256, 250, 1_024, False)), lost)
    assert [one.code for one in found if one.severity is Severity.CRITICAL] == [
        "clock_skew",
        "file_limit_low",
        "dispatcher_stopped",
        "part_stuck",
    ]
    assert [one.code for one in found if one.severity is Severity.WARNING] == [
        "slots_above_connections",
        "nat64_undeclared",
        "process_dead",
    ]
    assert [one.code for one in found if one.severity is Severity.NOTICE] == ["process_draining"]
    (stuck,) = [one for one in found if one.code is Code.PART_STUCK]
    assert stuck.evidence == ("part 1: 2 deliveries, due for 11 s; nobody owns it",), "4 s may still be a take-over"
    assert stuck.processes == ()
    assert checks_fleet.stopped(replace(WELL, running=False, draining=True)) is None
    assert checks_fleet.stopped(replace(WELL, parts=0, lease_seconds_left=0.0)) is None, "its share is nothing"


def test_findings_of_several_processes_become_one_that_says_who_said_what() -> None:
    """Sixteen processes with one fault are one fault; what only one of them saw keeps its name."""
    first = Finding("code", Severity.NOTICE, "What.", ("same", "host a"), "Do.", ("p1",))
    second = replace(first, severity=Severity.WARNING, evidence=("same", "host b"), processes=("p2",))
    other = replace(first, code="other", severity=Severity.CRITICAL)
    assert merged([first, second, other]) == [
        other,
        Finding("code", Severity.WARNING, "What.", ("same", "p1: host a", "p2: host b"), "Do.", ("p1", "p2")),
    ]
    assert finding_from(first.as_json()) == first
    assert finding_from({**first.as_json(), "severity": "from a later version"}).severity is Severity.CRITICAL
    lines = [str(number) for number in range(EVIDENCE_MAX + 5)]
    assert len(shortened(lines)) == EVIDENCE_MAX
    assert shortened(lines)[-1] == "and 6 more"


def answer(*nodes: tuple[str, str | None]) -> dict[str, Any]:
    """A first answer, of `m.0-0a` on machine `m`, that names these."""
    return {
        "answered_by": "m.0-0a",
        "process": {"machine": "m"},
        "fleet": {"nodes": [{"name": name, "address": address} for name, address in nodes]},
    }


def test_only_addresses_that_mean_the_process_are_asked() -> None:
    """127.0.0.1 of another machine is this machine: whoever answers there must not be given the key."""
    document = answer(
        ("m.0-0a", "http://127.0.0.1:1"),
        ("m.1-0b", "http://127.0.0.1:2"),
        ("mm.1-0c", "http://127.0.0.1:3"),
        ("n-0d", "http://10.0.0.2:8080"),
        ("n-0e", "http://0.0.0.0:8080"),
        ("n-0f", None),
    )
    assert [(one.name, one.url) for one in others_to_ask(document, "http://127.0.0.1:8080")] == [
        ("m.1-0b", "http://127.0.0.1:2"),
        ("mm.1-0c", None),
        ("n-0d", "http://10.0.0.2:8080"),
        ("n-0e", None),
        ("n-0f", None),
    ]
    from_afar = others_to_ask(document, "https://gatepost.internal")
    assert from_afar[0] == ToAsk("m.1-0b", None, "its page is for its own machine: ask there")
    document["siblings"] = [{"answered_by": "m.1-0b"}]
    left = {one.name for one in others_to_ask(document, "https://gatepost.internal")}
    assert "m.1-0b" not in left, "it has answered"
    assert unreachable([]) is None
    assert one(unreachable([("n-0d", "refused")])).evidence == ("n-0d: refused",)


def test_processes_with_other_limits_are_told_apart_by_what_differs() -> None:
    """A rolling restart that stopped half-way runs two policies."""
    limits = {"phases": {"read": 10.0}, "attempt_budget": 18.0, "keepalive_expiry": 30.0, "follow_redirects": False}
    same = [{"node": "a", "limits": limits}, {"node": "b", "limits": {**limits, "slots": 3}}]
    assert limits_differ(same) is None
    other = {"node": "c", "limits": {**limits, "keepalive_expiry": 60.0}}
    assert one(limits_differ([*same, other])).evidence == ("a, b: keepalive_expiry=30.0", "c: keepalive_expiry=60.0")


def test_the_page_explains_every_finding_and_no_other() -> None:
    """Somebody looks the code up at night."""
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "how-to" / "diagnose.md").read_text(), re.MULTILINE)
    assert sorted(code for row in rows for code in re.findall(r"`(\w+)`", row)) == sorted(Code)


TABLE = """\
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1 0
   1: 0100007F:C000 0200000A:01BB 06 00000000:00000000 03:00000A1B 00000000 0 0 0 3 0
   2: 0100007F:C001 0200000A:01BB 06 00000000:00000000 03:00000A1B 00000000 0 0 0 3 0
   3: 0100007F:1F90 0300000A:01BB 06 00000000:00000000 03:00000A1B 00000000 0 0 0 3 0
   4: 0100007F:C002 0200000A:1538 06 00000000:00000000 03:00000A1B 00000000 0 0 0 3 0
   5: 0100007F:C003 0200000A:01BB 01 00000000:00000000 00:00000000 00000000 0 0 0 3 0
   6: 00000000000000000000000001000000:C004 B80D0120000000000000000001000000:01BB 06 00000000:00000000 03:0000 0 0 0 0 3 0
   7: 0000000000000000FFFF00000100007F:C005 0000000000000000FFFF00000200000A:01BB 06 00000000:00000000 03:0 0 0 0 0 3 0
nonsense""".splitlines()


def test_time_wait_is_counted_by_peer_and_only_where_we_closed_first() -> None:
    """Table lines as the kernel writes them: a listener's own, another port, an established one, IPv6 and IPv4 inside it."""
    facts = count_sockets(TABLE, {443}, 28_232)
    assert facts.total == 6
    assert facts.outgoing == {"10.0.0.2:443": 3, "[2001:db8::1]:443": 1}
    on_this_machine = count_sockets(TABLE, {8_080}, 28_232)
    assert on_this_machine.outgoing == {"10.0.0.3:8080": 1}, "the receiver closed first"
    many = SocketFacts(20_000, {"10.0.0.2:443": 15_000}, 28_232)
    assert one(checks_machine.time_wait(many)).severity is Severity.CRITICAL, "half of the ports"
    by_proxy = SocketFacts(9_000, {"10.0.0.9:3128": 9_000}, 28_232, proxied=True)
    assert checks_machine.time_wait(by_proxy) is None, "a connection per host, and all hosts behind one peer"
    assert one(checks_machine.time_wait(replace(many, proxied=True))).severity is Severity.CRITICAL


def test_a_chain_is_read_from_whole_handshakes_only() -> None:
    """The bytes come from whoever answers; what is cut short or no handshake gives nothing."""
    certificate = bytes.fromhex("000003") + b"abc"
    listed = len(certificate).to_bytes(3, "big") + certificate
    hello = b"\x02" + (4).to_bytes(3, "big") + b"1234"
    message = hello + b"\x0b" + len(listed).to_bytes(3, "big") + listed
    record = b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message
    halves = [message[:9], message[9:]]
    in_two = b"".join(b"\x16\x03\x03" + len(half).to_bytes(2, "big") + half for half in halves)
    assert chain_in(record) == chain_in(in_two) == (b"abc",)
    assert chain_in(record[:-2]) == chain_in(b"HTTP/1.1 400") == chain_in(b"") == ()


def attempt(host: str, **changes: Any) -> AttemptObservation:
    """One finished attempt."""
    values: dict[str, Any] = {
        "outcome": "response",
        "delivered": True,
        "phase": "read",
        "reason": "ok",
        "retry_safety": "safe",
        "blame": "endpoint",
        "status": 200,
        "host": host,
        "endpoint_id": None,
        "tenant": None,
        "address": None,
        "elapsed": 0.1,
        "phases": {"connect": 0.01, "write": 0.01},
        "reused": False,
        "stale_retry": False,
        "bytes_sent": 1,
        "body_fault": None,
        "lagged": False,
    }
    return AttemptObservation(**{**values, **changes})


def test_the_last_five_minutes_are_counted_in_bounded_memory() -> None:
    """What was mended is forgotten; a refused URL, which is whatever a user wrote, is never remembered."""
    clock = VirtualClock()
    recent = RecentHosts(clock)
    recent.attempt_finished(attempt("h"))
    recent.attempt_finished(attempt("h", reused=True, phases={"write": 0.01}))
    recent.attempt_finished(attempt("h", reused=True, stale_retry=True))
    recent.attempt_finished(attempt("h", outcome="pool_timeout", phases={"pool": 2.0}))
    recent.attempt_finished(attempt("h", outcome="transport_error", phases={"connect": 2.0}))
    recent.attempt_finished(attempt("<b>", outcome="egress_denied"))
    assert recent.hosts() == {"h": HostFacts("h", 5, opened=2, reused=1, pool_timeouts=1, stale_retries=1)}
    clock.advance(SLOT)
    recent.attempt_finished(attempt("h"))
    assert recent.hosts()["h"].opened == 3
    clock.advance(SLOT * (SLOTS - 1) + 1)
    assert recent.hosts()["h"].opened == 1
    for number in range(HOSTS_MAX + 10):
        recent.attempt_finished(attempt(f"h{number}"))
    assert len(recent.hosts()) == HOSTS_MAX + 1
    recent.operational(OperationalObservation("nat64_undeclared", "no"))
    recent.operational(OperationalObservation("second_client", "made here"))
    assert recent.second_client == "made here"
    recent.delivery_decided(DeliveryObservation("e", "d", "ep", "t", "a", 1, "complete", "ok", None, 0.0, None))
