"""The chaos run sees what it is there to see: caps, order, doubles, senders that die, and each broken invariant."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bench.chaos_fleet import Plan
from bench.chaos_invariants import ENOUGH, STARTABLE, Evidence, judge, overlaps
from bench.chaos_overlaps import AttemptLine, Fault, Hold, Overlap, Start
from bench.chaos_receiver import ChaosReceiver
from bench.peer_process import process_at


async def send(receiver: ChaosReceiver, event: str, endpoint: int, seq: int, ahead: int | None = None) -> bytes:
    """Deliver one event over a connection of its own; the status line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
    body = json.dumps({"seq": seq, "ahead": ahead}).encode()
    head = f"POST /e/{endpoint} HTTP/1.1\r\nhost: x\r\nwebhook-id: {event}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


async def test_what_arrives_twice_is_counted_twice() -> None:
    """A double that nobody counts would make every figure of the run worthless."""
    async with ChaosReceiver(cap=2, failing=0.0) as receiver:
        for _ in range(2):
            assert b"200" in await send(receiver, "evt_a", 1, 1)
        assert b"200" in await send(receiver, "evt_a", 2, 1)
    assert dict(receiver.arrivals.counts) == {"evt_a/1": 2, "evt_a/2": 1}
    assert receiver.arrivals.over_cap == 0


async def test_more_at_once_than_the_cap_is_seen_per_endpoint() -> None:
    """Two owners of one part would each stay below the cap by themselves."""
    async with ChaosReceiver(cap=2, failing=0.0) as receiver:
        await asyncio.gather(*(send(receiver, f"evt_{number}", 1, number) for number in range(3)))
        await asyncio.gather(*(send(receiver, f"evt_{number}", number, number) for number in range(2, 5)))
    assert receiver.arrivals.over_cap == 1


async def test_an_event_before_the_one_ahead_of_it_is_out_of_order() -> None:
    """Also when the one ahead was tried and failed: only success lets the next one go."""
    async with ChaosReceiver(cap=2, failing=0.0) as receiver:
        await send(receiver, "evt_2", 1, 2, ahead=1)
        assert receiver.arrivals.out_of_order == 1
        await send(receiver, "evt_1", 1, 1)
        await send(receiver, "evt_2", 1, 2, ahead=1)
    assert receiver.arrivals.out_of_order == 1


async def test_a_failing_share_is_answered_500_and_is_no_arrival() -> None:
    """What fails must come again."""
    async with ChaosReceiver(cap=2, failing=1.0) as receiver:
        assert b"500" in await send(receiver, "evt_a", 1, 1)
    assert (receiver.arrivals.starts, dict(receiver.arrivals.counts)) == (1, {})


async def test_a_sender_that_dies_gives_its_place_back() -> None:
    """A killed worker must not look like one that is above the cap."""
    async with ChaosReceiver(cap=1, failing=0.0) as receiver:
        _, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(b'POST /e/1 HTTP/1.1\r\nwebhook-id: evt_a\r\ncontent-length: 22\r\n\r\n{"seq": 1, "ahead": 0}')
        async with asyncio.timeout(10):
            while not receiver.arrivals.starts:  # noqa: ASYNC110 - the receiver's own count
                await asyncio.sleep(0.001)
        writer.transport.abort()
        await asyncio.sleep(0.1)
        await send(receiver, "evt_b", 1, 2)
    assert receiver.arrivals.over_cap == 0


def test_faults_come_as_often_as_asked() -> None:
    """In an order that is the same each time, or in the one that is given."""
    plan = Plan(workers=1, events=1, rate=1.0, kills=2, restarts=1, freezes=1, cuts=3, silences=1)
    assert sorted(plan.faults()) == ["cut"] * 3 + ["freeze", "kill", "kill", "restart", "silence"]
    assert plan.faults() == plan.faults()
    assert Plan(workers=1, events=1, rate=1.0, kills=9, order=("cut", "kill")).faults() == ["cut", "kill"]


FROZEN = [Fault("freeze", 9.0, 43.0, 7), Fault("kill", 10.1, 10.1, 7)]
FIRST = [AttemptLine(1, 1, 8_900_000, "7-a", True, 34_200_000, 0)]


def whole() -> Evidence:
    """A small run in which all invariants hold, with one fault and one double that it explains."""
    return Evidence(
        expected={"evt_a/0", "evt_b/1"},
        states={"evt_a/0": Counter(delivered=1), "evt_b/1": Counter(delivered=1)},
        successes={"evt_a/0": [(10.0, 7), (13.0, 8)], "evt_b/1": [(11.0, 8)]},
        ordered=frozenset({0}),
        chains={(0, 1): [10.0]},
        waits={0: [(9.9, 10.0)], 1: [(10.0, 10.1)] * ENOUGH, 2: [(10.0, 10.2)] * ENOUGH},
        accepted=2,
        stored_events=2,
        attempts=[
            AttemptLine(1, 1, 100, "w7", True),
            AttemptLine(1, 2, 200, "w7", True),
            AttemptLine(1, 2, 300, "w8", True),
            AttemptLine(2, 1, 100, "w8", True),
            AttemptLine(2, 1, 900, "w8", True),
        ],
        attempts_max=3,
        replayed_at=500,
        looks=10,
        replayed=1,
        replay_arrived=1,
        faults=[Fault("kill", 10.1, 10.1, 7)],
        starts=[Start(0, 10.0, 7), Start(0, 13.0, 8), Start(1, 11.0, 8)],
        holds=[Hold(0, 4, 7, 9.0, 10.5), Hold(1, 2, 8, 9.0, 20.0), Hold(0, 5, 8, 12.0, 20.0)],
    )


def test_a_run_in_which_everything_held_breaks_no_invariant() -> None:
    """Or a red run would say nothing."""
    findings = judge(whole())
    assert [one.invariant for one in findings] == [f"I{number}" for number in range(1, 13)]
    assert [one for one in findings if not one.held] == []
    assert all(one.looked_at or one.elsewhere for one in findings)


@pytest.mark.parametrize(
    ("invariant", "changes"),
    [
        ("I1", {"states": {"evt_a/0": Counter(delivered=1)}}),
        ("I1", {"states": {"evt_a/0": Counter(delivered=1), "evt_b/1": Counter(dead=1, waiting=1)}}),
        ("I1", {"states": {"evt_a/0": Counter(waiting=1), "evt_b/1": Counter(delivered=1)}}),
        ("I1", {"successes": {"evt_a/0": [(10.0, 7)]}}),
        ("I1", {"expected": {"evt_a/0"}}),
        ("I2", {"overlaps": [Overlap(1, 10.0, 7, (7, 7))]}),
        ("I2", {"overlaps": [Overlap(1, 10.0, 8, (7, 7))]}),
        ("I2", {"overlaps": [Overlap(0, 10.0, 8, (7,))], "faults": [Fault("freeze", 9.0, 43.0, 7)]}),
        ("I2", {"overlaps": [Overlap(1, 10.0, 7, (8,), over_cap=False)]}),
        ("I2", {"attempts": [AttemptLine(1, 1, 100, "7-a", True, 900), AttemptLine(1, 1, 500, "8-a", True, 9)]}),
        ("I2", {"overlaps": [Overlap(0, 9.5, 8, (7,), over_cap=False)], "faults": FROZEN}),
        ("I2", {"attempts": [*FIRST, AttemptLine(1, 1, 20_000_000, "8-a", True, 9, 0)], "faults": FROZEN}),
        ("I3", {"out_of_order": 1}),
        ("I3", {"chains": {(0, 1): [12.0, 10.0]}}),
        ("I4", {"waits": {1: [(0.0, 0.1)] * ENOUGH, 2: [(0.0, 0.1)] * ENOUGH, 3: [(0.0, 9.0)] * ENOUGH}}),
        ("I6", {"waits": {1: [(10.2, 10.2 + STARTABLE + 1)]}}),
        ("I6", {"faults": []}),
        ("I6", {"faults": [Fault("kill", 10.1, 10.1, 8)]}),
        ("I6", {"successes": {"evt_a/0": [(30.0, 7), (31.0, 8)], "evt_b/1": [(11.0, 8)]}}),
        ("I7", {"keys_with_two_ids": 1}),
        ("I7", {"stored_events": 3}),
        ("I8", {"states": {"evt_a/0": Counter(delivered=1, waiting=1), "evt_b/1": Counter(delivered=1)}}),
        ("I8", {"starts": [Start(1, 15.5, 7)]}),
        ("I8", {"starts": [Start(1, 9.9, 7)]}),
        ("I8", {"holds": [Hold(0, 4, 7, 9.0, 9.5), Hold(0, 4, 8, 9.6, 9.7)]}),
        ("I8", {"holds": [Hold(0, 4, 7, 9.0, 9.5), Hold(0, 3, 7, 9.6, 9.7)]}),
        ("I9", {"early": 1}),
        ("I9", {"attempts": [AttemptLine(1, 2, 100, "w7", True), AttemptLine(1, 1, 200, "w7", True)]}),
        ("I9", {"attempts": [AttemptLine(1, number, number, "w7", True) for number in range(1, 6)], "attempts_max": 3}),
        ("I10", {"unmarked": [256]}),
        ("I10", {"left_waiting": 1}),
        ("I11", {"replay_arrived": 0}),
        ("I11", {"replay_dead": 1}),
    ],
)
def test_each_invariant_can_be_broken(invariant: str, changes: dict[str, Any]) -> None:
    """A check that cannot fail is none."""
    broken = {one.invariant for one in judge(replace(whole(), **changes)) if not one.held}
    assert invariant in broken
    assert broken <= {invariant, "I1"}, "one violation, one line; what is in two states shows as both"


def test_overlaps_of_a_frozen_process_with_its_successor_are_counted_and_explained() -> None:
    """A process that does not run cannot see that its time is over: that is allowed, and said with its epoch."""
    run = replace(
        whole(),
        overlaps=[Overlap(1, 44.0, 7, (8,)), Overlap(1, 44.1, 8, (7,), over_cap=False)],
        starts=[Start(1, 44.0, 7), Start(1, 44.2, 8)],
        holds=[Hold(1, 2, 7, 1.0, 40.0), Hold(1, 3, 8, 41.0, 60.0)],
        attempts=[
            AttemptLine(1, 1, 8_900_000, "7-a", True, 34_200_000, 1),
            AttemptLine(1, 1, 41_500_000, "8-a", True, 9_000, 1),
        ],
        replayed_at=None,
        faults=[Fault("freeze", 9.0, 43.0, 7), Fault("kill", 10.1, 10.1, 7)],
    )
    findings = {one.invariant: one for one in judge(run)}
    assert [one for one in findings.values() if not one.held] == []
    assert findings["I2"].note.endswith("1 above the cap, 1 beside another process, 1 same delivery twice")
    assert findings["I8"].note == "endpoints changed hands 1 times; starts after the part was lost: 1 by freeze"
    assert [str(one) for one in overlaps(run)] == [
        "endpoint 1, same delivery twice: process 7 had attempt 1 in flight for 34.2 s, process 8 began attempt 1 after 32.6 s "
        "(freeze of process 7)",
        "endpoint 1, above the cap: process 7 (epoch 2) started beside 1 of process 8 (epoch 3) (freeze of process 7)",
        "endpoint 1, without the part: process 7 (epoch 2) started while process 8 held epoch 3 (freeze of process 7)",
        "endpoint 1, beside another process: process 8 (epoch 3) started beside 1 of process 7 (epoch 2) (freeze of process 7)",
    ]


def test_at_an_ordered_endpoint_the_successor_waits_until_nobody_can_be_at_work() -> None:
    """The receiver may get the delivery again, but never while it still has the first one in its hands."""
    later = AttemptLine(1, 1, 41_500_000, "8-a", True, 9_000, 0)
    run = replace(whole(), attempts=[*FIRST, later], faults=FROZEN, replayed_at=None)
    assert [one for one in judge(run) if not one.held] == []


def test_a_part_that_nobody_looked_at_accuses_nobody() -> None:
    """Between two looks a part may have changed hands twice; a sender that had ended when it was looked up is not known."""
    run = replace(
        whole(),
        starts=[Start(1, 8.0, 7), Start(0, 11.0, 8), Start(1, 15.0, 0), Start(0, 12.2, 7), Start(5, 10.0, 7)],
    )
    assert overlaps(run) == []


@pytest.mark.skipif(sys.platform != "linux", reason="which process has a socket is read from /proc, which is Linux's")
def test_the_process_at_the_other_end_of_a_connection_is_found() -> None:
    """Who overlapped with whom is known by process, not by guess."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        ports: tuple[int, int] = (client.getsockname()[1], server.getsockname()[1])
        assert process_at(*ports, [os.getpid()]) == os.getpid()
        assert process_at(*ports, []) == 0
        assert process_at(*ports, [2**22 + 1]) == 0
