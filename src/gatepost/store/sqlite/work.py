"""What the store's writer does between BEGIN and COMMIT: new events first, then results, then everything else.

All operations of a group are still unanswered, so any order among them is a true one; merging their like makes a few
statements of hundreds. Owns all memory that must agree with the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gatepost.errors import StoreError
from gatepost.store.rows import EnqueueResult, FanOut, NewEvent, SettleBatch, Target
from gatepost.store.sqlite.identity import FileIdentity
from gatepost.store.sqlite.intake import Intake
from gatepost.store.sqlite.keys import KeyIndex
from gatepost.store.sqlite.listing import EndpointListing
from gatepost.store.sqlite.settle import settle
from gatepost.store.sqlite.space import SpaceGuard
from gatepost.store.sqlite.tally import Tally
from gatepost.store.sqlite.writer import CallWork, Kind, Operation, Reply


class QueueWork(CallWork):
    """The owner's writes."""

    def __init__(
        self, connection: sqlite3.Connection, identity: FileIdentity, space: SpaceGuard, index_lag_max: int
    ) -> None:
        super().__init__(connection)
        newest_event = connection.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()[0]
        self.identity = identity
        self.space = space
        self.tally = Tally(connection)
        self.keys = KeyIndex(connection, newest_event, index_lag_max)
        self.listing = EndpointListing(connection, index_lag_max)
        self.intake = Intake(connection, self.keys, self.listing, self.tally, newest_event)

    def apply(self, group: Sequence[Operation]) -> Sequence[Reply]:
        replies = self._enqueue([operation for operation in group if operation.kind is Kind.ENQUEUE])
        replies += self._settle([operation for operation in group if operation.kind is Kind.SETTLE])
        replies += [self.call(operation) for operation in group if operation.kind is Kind.CALL]
        self.keys.write_strips()
        self.listing.write_strips()
        self.tally.write(self._connection)
        return replies

    def committed(self) -> None:
        self.tally.committed()
        self.keys.committed()
        self.listing.committed()
        self.intake.committed()

    def rolled_back(self) -> None:
        self.tally.rolled_back()
        self.keys.rolled_back()
        self.listing.rolled_back()
        self.intake.rolled_back()

    def extend(self, _: sqlite3.Connection, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        """Add deliveries to an event (see `Intake.extend`). Raises `StoreFull`, `StoreError`."""
        self.identity.check()
        self.space.check()
        return self.intake.extend(fan_out, targets, after)

    def _enqueue(self, operations: Sequence[Operation]) -> list[Reply]:
        if not operations:
            return []
        try:
            self.identity.check()
            self.space.check()
        except StoreError as refusal:
            return [Reply(operation, None, type(refusal)(*refusal.args)) for operation in operations]
        events: list[NewEvent] = []
        for operation in operations:
            events += operation.argument
        results = self.intake.enqueue(events)
        replies, at = [], 0
        for operation in operations:
            own: list[EnqueueResult] = results[at : at + len(operation.argument)]
            at += len(own)
            replies.append(Reply(operation, own, None))
        return replies

    def _settle(self, operations: Sequence[Operation]) -> list[Reply]:
        if not operations:
            return []
        batches: list[SettleBatch] = [operation.argument for operation in operations]
        results = settle(self._connection, self.tally, batches)
        return [Reply(operation, result, None) for operation, result in zip(operations, results, strict=True)]
