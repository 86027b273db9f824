"""Stores a group of new events with their deliveries: tells repeated ones apart, writes the rest in a few statements.

Called by `work` inside a transaction; memory follows only after the commit. It checks no limits and fans nothing out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from gatepost.store.fingerprint import key_fingerprint
from gatepost.store.rows import EnqueueResult, FanOut, NewEvent, OutboxEvent, Target
from gatepost.store.sqlite import fan_out as fan_outs
from gatepost.store.sqlite.bulk import insert, where_in
from gatepost.store.sqlite.identity import FileIdentity
from gatepost.store.sqlite.keys import KeyIndex
from gatepost.store.sqlite.listing import EndpointListing
from gatepost.store.sqlite.space import SpaceGuard
from gatepost.store.sqlite.tally import Tally

_KNOWN_EVENTS = where_in("SELECT id FROM event WHERE id IN")
_INSERT_EVENTS = insert("event", "id, tenant, type, content_type, created_at, key, targets, body, trace")
_INSERT_DELIVERIES = insert("delivery", "lane, due_at, id, event_id, born_at")
_INSERT_HISTORY = insert("history", "id, lane, at, event_id")
_DROP_OUTBOX = where_in("DELETE FROM outbox WHERE event_id IN")
_PUT_OUTBOX = insert(
    "outbox",
    "event_id, tenant, key, type, content_type, ordering_key, priority, not_before, created_at, body, trace",
    or_ignore=True,
)


class Intake:
    """Writes new events. Lives in the writer thread."""

    __slots__ = ("_connection", "_keys", "_listing", "_newest", "_pending_newest", "_tally")

    def __init__(
        self, connection: sqlite3.Connection, keys: KeyIndex, listing: EndpointListing, tally: Tally, newest_event: int
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._listing = listing
        self._tally = tally
        self._newest = newest_event
        """No stored event has a higher id."""
        self._pending_newest = newest_event

    def enqueue(self, events: Sequence[NewEvent]) -> list[EnqueueResult]:
        """One result per event, in order."""
        fingerprints = [None if event.key is None else key_fingerprint(event.tenant, event.key) for event in events]
        results, fresh = self._sort_out(events, fingerprints)
        outbox = [
            event.outbox_id
            for event, result in zip(events, results, strict=True)
            if event.outbox_id is not None and not result.conflict
        ]
        if fresh:
            self._write([(events[at], fingerprints[at]) for at in fresh])
        if outbox:
            _DROP_OUTBOX.run(self._connection, outbox)
        return results

    def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        """Add deliveries to an event and move its cursor; False when the cursor is somewhere else."""
        connection = self._connection
        born_at = fan_outs.move(connection, fan_out, after)
        if born_at is None:
            return False
        deliveries: list[int] = []
        history: list[int] = []
        for lane, _, number, due_at in targets:
            deliveries += (lane, due_at, number, fan_out.event_id, born_at)
            history += (number, lane, due_at, fan_out.event_id)
            if lane >> 8 not in self._tally.owners:
                self._tally.own(connection, lane, fan_out.tenant)
        _INSERT_DELIVERIES.run(connection, deliveries)
        _INSERT_HISTORY.run(connection, history)
        fan_outs.list_targets(connection, fan_out.event_id, targets)
        lanes = [target.lane for target in targets]
        self._listing.add([target.delivery_id for target in targets], lanes)
        self._tally.wait(lanes)
        return True

    def committed(self) -> None:
        """The transaction is durable."""
        self._newest = self._pending_newest

    def rolled_back(self) -> None:
        """It never was."""
        self._pending_newest = self._newest

    def _sort_out(
        self, events: Sequence[NewEvent], fingerprints: Sequence[bytes | None]
    ) -> tuple[list[EnqueueResult], Sequence[int]]:
        """Results, and the places of the events to store."""
        keys = [fingerprint for fingerprint in fingerprints if fingerprint is not None]
        ids = [event.event_id for event in events]
        first_by_key = self._keys.find(keys) if keys else {}
        stored = self._stored(ids)
        if not first_by_key and not stored and len(set(keys)) == len(keys) and len(set(ids)) == len(ids):
            return list(map(EnqueueResult, ids, repeat(False), repeat(False))), range(len(ids))  # the usual answer
        accepted: dict[int, NewEvent] = {}
        first_here: dict[bytes, NewEvent] = {}
        results: list[EnqueueResult] = []
        fresh: list[int] = []
        for at, (event, fingerprint) in enumerate(zip(events, fingerprints, strict=True)):
            event_id = event.event_id
            if event_id in accepted or event_id in stored:
                results.append(_refused(event_id, self._differs(event, accepted.get(event_id))))
                continue
            if fingerprint is not None:
                first = first_by_key.get(fingerprint)
                if first is not None and first != event_id:
                    results.append(_refused(first, self._differs_from_stored(event, first)))
                    continue
                here = first_here.setdefault(fingerprint, event)
                if here is not event:
                    results.append(_refused(here.event_id, _content(event) != _content(here)))
                    continue
            accepted[event_id] = event
            fresh.append(at)
            results.append(EnqueueResult(event_id, duplicate=False, conflict=False))
        return results, fresh

    def _stored(self, ids: Sequence[int]) -> set[int]:
        """Which of these events exist. Ids rise, so that the usual answer costs nothing."""
        doubtful = [number for number in ids if number <= self._newest]
        return {row[0] for row in _KNOWN_EVENTS.fetch(self._connection, doubtful)} if doubtful else set()

    def _differs(self, event: NewEvent, accepted: NewEvent | None) -> bool:
        """Whether the event under this id is another one: publishers that draw ids without asking may meet."""
        if accepted is not None:
            return (accepted.tenant, _content(accepted)) != (event.tenant, _content(event))
        query = "SELECT tenant, type, content_type, body FROM event WHERE id = ?"
        row = self._connection.execute(query, (event.event_id,)).fetchone()
        return row is not None and row != (event.tenant, *_content(event))

    def _differs_from_stored(self, event: NewEvent, first: int) -> bool:
        row = self._connection.execute("SELECT type, content_type, body FROM event WHERE id = ?", (first,)).fetchone()
        # Once retention has taken the first event there is nothing to compare with: the key still means "had it".
        return row is not None and row != _content(event)

    def _write(self, fresh: Sequence[tuple[NewEvent, bytes | None]]) -> None:
        event_values: list[Any] = []
        delivery_values: list[int] = []
        history_values: list[int] = []
        ids: list[int] = []
        lanes: list[int] = []
        keys: list[tuple[bytes, int]] = []
        owners, newest = self._tally.owners, self._pending_newest
        for event, fingerprint in fresh:
            event_id, born_at = event.event_id, event.created_at
            own_ids = []
            for lane, _, number, due_at in event.targets:
                own_ids.append(number)
                lanes.append(lane)
                delivery_values += (lane, due_at, number, event_id, born_at)
                history_values += (number, lane, due_at, event_id)
                if lane >> 8 not in owners:
                    self._tally.own(self._connection, lane, event.tenant)
            ids += own_ids
            if event_id > newest:
                newest = event_id
            event_values += (
                event_id,
                event.tenant,
                event.type,
                event.content_type,
                born_at,
                fingerprint,
                f"[{','.join(map(str, own_ids))}]",
                event.body,
                event.trace,
            )
            if fingerprint is not None:
                keys.append((fingerprint, event_id))
        self._pending_newest = newest
        _INSERT_EVENTS.run(self._connection, event_values)
        _INSERT_DELIVERIES.run(self._connection, delivery_values)
        _INSERT_HISTORY.run(self._connection, history_values)
        fan_outs.begin(self._connection, [event.fan_out for event, _ in fresh if event.fan_out is not None])
        self._keys.add(keys)
        self._listing.add(ids, lanes)
        self._tally.count("events", len(fresh))
        self._tally.wait(lanes)


def put_outbox(
    connection: sqlite3.Connection, identity: FileIdentity, space: SpaceGuard, events: Sequence[OutboxEvent]
) -> None:
    """Store events for fan-out; those stored already are left as they are. Raises `StoreFull`, `StoreError`."""
    identity.check()
    space.check()
    values: list[Any] = []
    for e in events:
        values += (e.event_id, e.tenant, e.key, e.type, e.content_type, e.ordering_key)
        values += (e.priority, e.not_before, e.created_at, e.body, e.trace)
    _PUT_OUTBOX.run(connection, values)


def drop_outbox(connection: sqlite3.Connection, outbox_ids: Sequence[int]) -> None:
    """Remove outbox rows."""
    _DROP_OUTBOX.run(connection, outbox_ids)


def _content(event: NewEvent) -> tuple[str, str, bytes]:
    return event.type, event.content_type, event.body


def _refused(first: int, differs: bool) -> EnqueueResult:
    return EnqueueResult(first, duplicate=not differs, conflict=differs)
