"""The receiver of the chaos run sees what it is there to see: caps, order, doubles, and senders that die."""

from __future__ import annotations

import asyncio
import json

from bench.chaos_fleet import Plan
from bench.chaos_receiver import ChaosReceiver


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
