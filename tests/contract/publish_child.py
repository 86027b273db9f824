"""A publisher process of the multi-process tests: `publish_child.py PATH COUNT`; prints the ids it stored as JSON."""

from __future__ import annotations

import json
import sys

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.store.rows import OutboxEvent
from gatepost.store.sqlite.outbox import SqliteOutbox


def main() -> None:
    """Put events one by one, as a web application would."""
    outbox = SqliteOutbox(sys.argv[1])
    ids = IdSource(outbox.new_node(), SYSTEM_CLOCK)
    stored = []
    for number in range(int(sys.argv[2])):
        event = OutboxEvent(
            0, ids.next(), "acme", None, "t", "text/plain", b"%d" % number, None, "normal", None, SYSTEM_CLOCK.wall_us()
        )
        outbox.put([event])
        stored.append(event.event_id)
    outbox.close()
    print(json.dumps(stored))


if __name__ == "__main__":
    main()
