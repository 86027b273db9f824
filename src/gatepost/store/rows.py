"""The values that cross the store's port. Times are UTC microseconds, ints; nothing here knows SQL, the network or policy.

A lane is `endpoint << 8 | sub`. Hot ones are named tuples, since tens of thousands a second are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, NamedTuple, TypeVar

Item = TypeVar("Item")

SUB_NORMAL: Final = 0
SUB_HIGH: Final = 1
SUB_BULK: Final = 2
SUB_FIFO_FIRST: Final = 16
"""Sub-lanes 16 to 255 are FIFO key buckets: 240 of them."""


def lane_of(endpoint: int, sub: int) -> int:
    """The lane of an endpoint's sub-queue."""
    return endpoint << 8 | sub


def endpoint_of(lane: int) -> int:
    """The endpoint a lane belongs to."""
    return lane >> 8


def part_of_tenant(tenant: str, parts: int) -> int:
    """The part whose owner expands a tenant's fan-outs, the same in every process (FNV-1a)."""
    digest = 0x811C9DC5
    for byte in tenant.encode():
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return digest % parts


# ------------------------------------------------------------------------------------------------- producing


class Target(NamedTuple):
    """One delivery to be made of an event."""

    lane: int
    part: int
    delivery_id: int
    due_at: int


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event with its deliveries, to be stored in one transaction."""

    event_id: int
    tenant: str
    key: str | None
    """Idempotency key of the producer."""
    type: str
    content_type: str
    body: bytes = field(repr=False)
    created_at: int
    targets: Sequence[Target]
    outbox_id: int | None = None
    """The outbox row this event came from; removed in the same transaction."""
    fan_out: FanOut | None = None
    """The rest of its targets, too many for one transaction; stored with the event and expanded by `extend`."""
    trace: str | None = None
    """Trace context of its publisher, as `wire.trace_context` writes it; no part of what makes two events the same."""


class FanOut(NamedTuple):
    """An event whose deliveries are still being made, and how far that has come: a cursor that survives a crash."""

    event_id: int
    part: int
    """Its owner expands it."""
    tenant: str
    type: str
    sub: int
    """Sub-lane of every delivery still to be made."""
    due_at: int
    after: int
    """Endpoints up to this number have their delivery."""


class EnqueueResult(NamedTuple):
    """What became of one `NewEvent`. With `duplicate` or `conflict` nothing was stored and `event_id` is the first event's.

    An event id that is stored already is a duplicate too, so that a call of unknown outcome can be repeated; with another tenant,
    type or body it is a conflict, and `event_id` its own: two publishers drew the same id. The outbox row of a duplicate is
    removed; that of a conflict stays until `outbox_drop`.
    """

    event_id: int
    duplicate: bool
    conflict: bool
    """The key, or the id, was used before with another type or body."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event written by a `Publisher`, before fan-out."""

    outbox_id: int
    """Names the row once stored, where it equals `event_id` (ids rise with time, so the lowest is the oldest); 0 before."""
    event_id: int
    tenant: str
    key: str | None
    type: str
    content_type: str
    body: bytes = field(repr=False)
    ordering_key: str | None
    priority: str
    not_before: int | None
    created_at: int
    trace: str | None = None
    """Trace context of its publisher."""


# ------------------------------------------------------------------------------------------------- owning


PART_LEASE: Final = 30.0
"""Seconds a part stays with its owner after a heartbeat: three missed beats of 8 s, and time to stop starting."""
STRICT_AFTER_EXPIRY: Final = 1.0
"""Seconds that FIFO lanes of a part wait after it was taken because its lease ran out: its owner stopped starting a margin
before, and what it had in flight on such lanes has ended by the end of the lease."""
SESSION_SETTLED: Final = 5.0
"""Seconds a session must have lasted before its node takes parts of nodes without one: after a restart of the database all
sessions are new, and their owners are on their way back."""


class Lease(NamedTuple):
    """A part owned by this process until `valid_for` seconds after the call was *sent*."""

    epoch: int
    valid_for: float
    strict_in: float = 0.0
    """Seconds after the call was sent before FIFO lanes may start: the last owner may still be at work until then. 0 when it
    gave the part back, or for a part that was renewed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A process that dispatches, as it introduces itself with each heartbeat."""

    name: str
    """Unique to one run of one process."""
    address: str | None = None
    """`http://host:port` of its API, for people and for status; None: it has none."""
    weight: float = 1.0
    """Its share of the parts, relative to the other nodes'."""
    draining: bool = False
    """It takes no more parts and gives back those it has."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as the store knows it."""

    node: Node
    seen_at: int
    """UTC microseconds of its last heartbeat."""
    parts: int
    """Parts it holds."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part as the store knows it."""

    part: int
    owner: str | None
    """Name of the node; None: nobody's."""
    epoch: int
    lease_left: float
    """Seconds until the lease ends; 0 when nobody holds it."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The parts this node holds after the beat, those it lost, the nodes alive, and the store's wall clock."""

    leases: Mapping[int, Lease]
    lost: frozenset[int]
    store_time: int
    nodes: Sequence[NodeInfo] = ()
    """As `DeliveryStore.nodes` tells them, this one included."""


class Poke(NamedTuple):
    """A lane got rows from a process that does not own its part; with one of the values below, something else happened."""

    part: int
    lane: int
    """`POKE_PART_FREE`: the part was given back, whoever wants it may take it."""
    due_at: int
    """`POKE_ROWS_GONE`: rows of this lane's endpoint were removed, so what is held of it must be read again."""


POKE_PART_FREE: Final = 0
"""No lane has this number: endpoints count from 1."""
POKE_ROWS_GONE: Final = -1
"""No row is due then."""


class LaneWant(NamedTuple):
    """Read at most `limit` due rows of a lane, from `low_water` on."""

    lane: int
    limit: int
    low_water: int


class Row(NamedTuple):
    """A waiting delivery. Ordered by (due_at, delivery_id)."""

    lane: int
    due_at: int
    delivery_id: int
    event_id: int
    attempt: int
    """Attempts used up so far."""
    born_at: int
    """Start of its delivery window; a replay restarts it."""
    part: int


class LaneRows(NamedTuple):
    """Rows due by the `now` of the peek, and when the next one after them is due (None: the lane is empty behind them)."""

    lane: int
    rows: Sequence[Row]
    next_due: int | None


class EventBody(NamedTuple):
    """What is sent."""

    event_id: int
    tenant: str
    type: str
    content_type: str
    body: bytes
    trace: str | None = None


# ------------------------------------------------------------------------------------------------- settling


class RowKey(NamedTuple):
    """Names one row exactly as it was read; a row that has moved on no longer matches."""

    lane: int
    due_at: int
    delivery_id: int


class DoneRow(NamedTuple):
    """Delivered: always valid, even from a stale owner, since it *was* delivered."""

    key: RowKey
    event_id: int


class RetryRow(NamedTuple):
    """Try again at `new_due`. Fenced by the part's epoch, and by `attempt` as read."""

    key: RowKey
    part: int
    attempt: int
    next_attempt: int
    new_due: int


class DeadRow(NamedTuple):
    """Give up: moves to the dead letters with its own copy of the body. Fenced like `RetryRow`."""

    key: RowKey
    part: int
    attempt: int
    attempts: int
    event_id: int
    why: str
    """The decision's reason, for example `attempts_exhausted`, `window_over`, `gone`."""
    outcome: str | None
    status: int | None
    died_at: int


class AttemptRow(NamedTuple):
    """One line of the attempt log, written in the settle transaction."""

    delivery_id: int
    number: int
    event_id: int
    endpoint: int
    tenant: str
    started_at: int
    outcome: str
    phase: str
    reason: str
    retry_safety: str
    blame: str
    status: int | None
    elapsed_us: int
    phases_us: str
    """`phase:microseconds` pairs joined by blanks, in wire order."""
    address: str | None
    response: bytes
    """First bytes of the body, at most `RESPONSE_SNIPPET_MAX`."""
    decision: str
    worker: str


PROMPT_US: Final = 10_000_000
"""Microseconds from a delivery's making to its attempt: a first one that began within them and delivered is *prompt*. Nearly all
are; they are found by their deliveries' ids, and only the others, which are few, have an order of their own by endpoint."""
RESPONSE_SNIPPET_MAX: Final = 1_024
"""Enough for an error page's first lines; more would make the log the largest table."""


@dataclass(frozen=True, slots=True)
class SettleBatch:
    """Results of attempts, applied in one transaction; repeating it changes nothing."""

    epochs: Mapping[int, int]
    """Part to the epoch under which its rows were read."""
    done: Sequence[DoneRow] = ()
    retry: Sequence[RetryRow] = ()
    dead: Sequence[DeadRow] = ()
    attempts: Sequence[AttemptRow] = ()
    idle: Sequence[tuple[int, int]] = ()
    """(part, lane) whose marker may go: the lane was empty. Ignored when rows have come since."""


class SettleResult(NamedTuple):
    """Parts whose epoch had moved on: their retries and dead letters were not applied, drop them at once."""

    fenced: frozenset[int]


# ------------------------------------------------------------------------------------------------- operating


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A delivery as an operator sees it, whatever its state."""

    delivery_id: int
    event_id: int
    tenant: str
    endpoint: int
    state: Literal["waiting", "delivered", "dead", "cancelled"]
    attempts: int
    due_at: int | None
    """When waiting."""
    event_type: str
    """Empty once retention has taken the event."""
    last_outcome: str | None
    last_status: int | None
    updated_at: int
    """The latest of acceptance, the end of the last attempt, cancellation and death."""


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """None: any. `event_id`, `endpoint` or `tenant` must be given; to list, a time will do."""

    tenant: str | None = None
    endpoint: int | None = None
    event_id: int | None = None
    state: Literal["waiting", "delivered", "dead", "cancelled"] | None = None
    event_type: str | None = None
    """Exactly this type. One that retention has taken with its event matches none."""
    accepted_from: int | None = None
    """UTC microseconds, to the millisecond: when the delivery was made."""
    accepted_before: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up, with its own copy of what would have been sent."""

    delivery_id: int
    event_id: int
    tenant: str
    endpoint: int
    event_type: str
    content_type: str
    attempts: int
    why: str
    outcome: str | None
    status: int | None
    died_at: int
    body: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """None: any."""

    tenant: str | None = None
    endpoint: int | None = None
    event_type: str | None = None
    why: str | None = None
    delivery_id: int | None = None
    died_from: int | None = None
    died_before: int | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Items and where to go on; `next` None: this was the last page."""

    items: Sequence[Item]
    next: str | None


class Backlog(NamedTuple):
    """What waits for an endpoint: rows counted up to a cap, and when the oldest of those counted is or was due."""

    depth: int
    oldest_due: int | None


class LaneStat(NamedTuple):
    """Depth (counted up to the cap), oldest and next due time of a lane."""

    lane: int
    depth: int
    oldest_due: int | None


@dataclass(frozen=True, slots=True)
class StoreTotals:
    """Rows by table, estimates allowed."""

    waiting: int
    dead: int
    events: int
    attempts: int
    outbox: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds."""

    events: float = 7 * 86_400.0
    attempts: float = 7 * 86_400.0
    dead_letters: float = 30 * 86_400.0
    idempotency: float = 86_400.0


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What one `maintain` call removed, and whether more is waiting."""

    events: int = 0
    attempts: int = 0
    dead_letters: int = 0
    idempotency_keys: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class TenantPurge:
    """What one `purge_tenant` call erased, and whether more is left."""

    deliveries: int = 0
    events: int = 0
    attempts: int = 0
    dead_letters: int = 0
    outbox: int = 0
    idempotency_keys: int = 0
    endpoints: int = 0
    api_keys: int = 0
    more: bool = False
