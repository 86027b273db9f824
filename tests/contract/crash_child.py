"""The process that the crash tests kill: `crash_child.py PATH`; reports on its output what became durable, a line each.

`stored EVENT DELIVERY` after an enqueue, `settled DELIVERY` after a settle. It goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.store.rows import DoneRow, LaneWant, NewEvent, Node, RowKey, SettleBatch, Target, lane_of
from gatepost.store.sqlite.store import SqliteStore

LANE = lane_of(1, 0)


async def main() -> None:
    """Enqueue in batches and settle what is due, both at once."""
    store = SqliteStore.open(sys.argv[1], index_lag_max=50)
    beat = await store.heartbeat(Node("child"), {}, 1)
    epoch = beat.leases[0].epoch
    ids = IdSource(await store.new_node(), SYSTEM_CLOCK)

    async def produce() -> None:
        number = 0
        while True:
            events = []
            for _ in range(7):
                number += 1
                target = Target(LANE, 0, ids.next(), SYSTEM_CLOCK.wall_us())
                event_id = ids.next()
                events.append(
                    NewEvent(event_id, "acme", f"{event_id}", "t", "text/plain", b"x" * 300, target.due_at, (target,))
                )
            await store.enqueue(events)
            for event in events:
                print("stored", event.event_id, event.targets[0].delivery_id)
            sys.stdout.flush()

    async def consume() -> None:
        while True:
            [found] = await store.peek([LaneWant(LANE, 5, 0)], SYSTEM_CLOCK.wall_us())
            done = [DoneRow(RowKey(row.lane, row.due_at, row.delivery_id), row.event_id) for row in found.rows]
            await store.settle(SettleBatch({0: epoch}, done=done))
            for row in found.rows:
                print("settled", row.delivery_id)
            sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())


if __name__ == "__main__":
    asyncio.run(main())
