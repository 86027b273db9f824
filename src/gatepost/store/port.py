"""What a store must do, in the domain's words; every engine passes the suite in `gatepost.testing.store_contract`.

The queue is owned, not claimed: parts are leased to one process each and fenced by an epoch; the owner *reads* due rows
(`peek`), keeps what is in flight in memory, and writes only results (`settle`). Methods are batch calls and safe to repeat;
a write is durable when its call returns; one that is cancelled may or may not have been stored. The store's failures are
`StoreError` and its subclasses; impossible arguments (a filter that names nothing, a foreign cursor) are `ValueError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gatepost.delivery.records import ApiKey, Endpoint, Tenant
from gatepost.store.rows import (
    AttemptRow,
    Backlog,
    DeadFilter,
    DeadLetter,
    DeliveryFilter,
    DeliveryInfo,
    EnqueueResult,
    EventBody,
    FanOut,
    Heartbeat,
    LaneRows,
    LaneStat,
    LaneWant,
    MaintenanceReport,
    NewEvent,
    Node,
    NodeInfo,
    OutboxEvent,
    Page,
    PartInfo,
    Poke,
    Retention,
    SettleBatch,
    SettleResult,
    StoreTotals,
    Target,
    TenantPurge,
)


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """What an engine promises."""

    durability: Literal["memory", "fsync", "replicated"]
    parts: int
    """Parts the queue is cut into, fixed at install: 1 where only one process can own the store."""
    shared: bool
    """Several dispatcher processes may own parts of it at once."""


class DeliveryStore(Protocol):
    """The queue."""

    @property
    def capabilities(self) -> StoreCapabilities: ...

    # -- producers
    async def new_node(self) -> int:
        """A node number for an `IdSource`, different for each call until 4,096 calls later."""
        ...

    async def enqueue(self, batch: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        """Store events with their deliveries and lane markers, all or nothing; drops the outbox rows they came from.

        On shared engines rows of FIFO lanes are due from when they are stored, by the store's clock, whatever their targets say:
        their order is that of the acknowledgements, though publishers in other processes know that clock only nearly.
        Raises `StoreFull` when the disk has no room.
        """
        ...

    async def outbox_put(self, events: Sequence[OutboxEvent]) -> None:
        """Store events for the dispatcher to fan out; from any process."""
        ...

    async def outbox_peek(self, limit: int) -> Sequence[OutboxEvent]:
        """The oldest outbox rows; `enqueue` removes them."""
        ...

    async def outbox_drop(self, outbox_ids: Collection[int]) -> None:
        """Remove outbox rows that cannot be enqueued (their idempotency key conflicts)."""
        ...

    async def wait_outbox(self) -> None:
        """Return when the outbox may hold rows that no earlier return announced, put by whatever process; within
        50 ms where the engine can tell (SQLite), else within 250 ms.

        The first call returns at once, and a needless return is allowed: peek, and wait again. For one waiter.
        """
        ...

    # -- ownership
    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        """Make this node known, renew `held` (part to epoch) and acquire up to `want` more parts."""
        ...

    async def parts(self) -> Sequence[PartInfo]:
        """Who owns what, in order of part."""
        ...

    async def nodes(self) -> Sequence[NodeInfo]:
        """The nodes alive, by name: heard of within a part lease and, where the engine has sessions, with their session held.

        Cheap, since every node asks twice a second: a node that is gone, or parts that add up to less than all of them, is
        how the others learn that there is something to take.
        """
        ...

    async def poke(self, pokes: Collection[Poke]) -> None:
        """Tell all other processes, in one message, that lanes got rows; best effort, polling heals what is lost."""
        ...

    async def wait_pokes(self) -> Sequence[Poke]:
        """Pokes by other processes since the last call, for whatever part; waits for the first. For one waiter.

        Raises `StoreError` as soon as the connection that hears them is lost, which on an engine with sessions is the session
        that tells the others that this process lives: its parts may be taken from then on.
        """
        ...

    async def release(self, parts: Mapping[int, int]) -> None:
        """Give parts back at once; only with nothing in flight."""
        ...

    # -- owner reads
    async def discover(self, parts: Collection[int]) -> Sequence[tuple[int, int]]:
        """(part, lane) of every lane of these parts that may hold rows."""
        ...

    async def peek(self, wants: Sequence[LaneWant], now: int) -> Sequence[LaneRows]:
        """Due rows of the wanted lanes, in order, one `LaneRows` per want."""
        ...

    async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
        """Bodies by event id; absent ids are left out."""
        ...

    # -- fan-outs too large for one transaction
    async def fan_outs(self, parts: Collection[int], limit: int) -> Sequence[FanOut]:
        """Unfinished fan-outs of these parts, oldest event first."""
        ...

    async def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        """Add `targets` to the event and move its cursor to `after` (None: the fan-out is done), in one transaction.

        False, and nothing stored, when the stored cursor is not `fan_out`'s: somebody else was first.
        """
        ...

    # -- what is learned about endpoints
    async def save_states(self, states: Mapping[int, bytes]) -> None:
        """Keep what the owner learned about endpoints (by number), replacing what was kept; small, opaque, and not fenced:
        an older one does no harm. An empty value keeps nothing."""
        ...

    async def load_states(self, endpoints: Collection[int]) -> Mapping[int, bytes]:
        """What was kept about these endpoints; absent ones are left out."""
        ...

    # -- owner writes
    async def settle(self, batch: SettleBatch) -> SettleResult:
        """Apply results and write the attempt log in one transaction."""
        ...

    # -- operators
    async def deliveries(self, where: DeliveryFilter, after: str | None, limit: int) -> Page[DeliveryInfo]:
        """Deliveries, newest first.

        A page may hold fewer items than `limit`, even none, while `next` says there are more: each call looks at a bounded
        number of rows. `ValueError` when the filter names neither event, endpoint, tenant nor time, or the cursor is foreign.
        """
        ...

    async def delivery(self, delivery_id: int) -> DeliveryInfo | None:
        """One delivery, or None."""
        ...

    async def attempts_of(self, delivery_id: int) -> Sequence[AttemptRow]:
        """The attempt log of one delivery, oldest first."""
        ...

    async def newest_attempts(self, endpoint: int, limit: int) -> Sequence[AttemptRow]:
        """The newest attempts at an endpoint that the log still holds, newest first.

        What failed, what came late and what was retried is all there. First attempts that delivered at once are looked for among
        a bounded number of its newest deliveries: behind thousands that wait untried, older ones are left out.
        """
        ...

    async def backlogs(self, endpoints: Collection[int], depth_cap: int = 1_000) -> Mapping[int, Backlog]:
        """What waits for each of these endpoints, over all of its lanes; those for which nothing waits are left out."""
        ...

    async def cancel(self, where: DeliveryFilter, delivery_id: int | None, limit: int) -> Sequence[int]:
        """Remove up to `limit` waiting deliveries; returns their ids. The owner must hold them back first.

        They are found as `cancelled` until retention ends. Give `delivery_id` or a filter that `deliveries` takes.
        """
        ...

    async def dead_letters(self, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
        """Dead letters without bodies, newest first; pages may be short as those of `deliveries`."""
        ...

    async def dead_letter(self, delivery_id: int) -> DeadLetter | None:
        """One dead letter with its body, or None."""
        ...

    async def replay(
        self, where: DeadFilter, first_due: int, spacing_us: int, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        """Move up to `limit` dead letters back to their endpoint's bulk lane with a new window, `spacing_us` apart.

        Event and delivery ids stay. Returns (part, lane, due_at) of each; the caller loops until it returns none.
        """
        ...

    async def purge_dead(self, where: DeadFilter, limit: int) -> int:
        """Delete up to `limit` dead letters; returns how many."""
        ...

    async def purge_tenant(self, tenant: str, limit: int) -> TenantPurge:
        """Erase up to `limit` rows of what a tenant ever sent: waiting deliveries, payloads, attempts, dead letters, outbox rows,
        fan-outs, idempotency keys, learned states; then, when no row is left, its endpoints with their secrets, API keys and
        the tenant's record. The caller stops the tenant first, and loops while `more`."""
        ...

    async def lane_stats(self, lanes: Collection[int], depth_cap: int = 10_000) -> Sequence[LaneStat]:
        """Depth and oldest due time; counting stops at the cap."""
        ...

    async def backlog_of(self, tenant: str) -> int:
        """Waiting deliveries of a tenant, an estimate that is exact after a restart."""
        ...

    async def totals(self) -> StoreTotals:
        """Sizes for metrics."""
        ...

    async def maintain(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        """Delete at most `budget` rows that are past retention; call again while `more`."""
        ...

    async def store_time(self) -> int:
        """UTC microseconds by the store's clock, as a heartbeat tells it: for a process that makes none."""
        ...

    async def ping(self) -> None:
        """Prove that the store answers; raises `StoreError` when not."""
        ...

    async def aclose(self) -> None:
        """Finish what was accepted, then close. Idempotent."""
        ...


Change = tuple[Literal["tenant", "endpoint", "api_key", "policy", "event_type"], str]
"""What changed and its id; the policy is one record, `POLICY_ID`; of an event type it is `event_type_id`."""
POLICY_ID: Final = "policy"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who changed what."""

    at: int
    actor: str
    action: str
    subject: str
    tenant: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of the policy: who changed it, when and why, and what it came to."""

    version: int
    at: int
    """UTC microseconds."""
    actor: str
    action: str
    """What was done, in words of ours: `set fleet read_timeout=8`."""
    why: str
    document: str = field(repr=False)
    """JSON, opaque to the store (`admission.policy_book`)."""


POLICY_VERSIONS_MAX: Final = 1_000
"""Years of changes; a rollout makes ten."""


@dataclass(frozen=True, slots=True)
class EventSchema:
    """One version of the JSON Schema of a tenant's event type: who set it, and when."""

    tenant: str
    type: str
    version: int
    """From 1, counted for each type."""
    at: int
    """UTC microseconds."""
    actor: str
    document: str | None = field(repr=False)
    """JSON, opaque to the store; None: from this version on the type has no schema."""


EVENT_TYPE_VERSIONS_MAX: Final = 100
"""Of each type; a schema changes a few times a year."""


def event_type_id(tenant: str, event_type: str) -> str:
    """The id of an event type's record in `changes_since`; a type holds no space."""
    return f"{tenant} {event_type}"


class Registry(Protocol):
    """What users configure. Secrets are sealed before they reach the disk."""

    async def changes_since(self, cursor: int) -> tuple[Sequence[Change], int]:
        """Changes after `cursor` (0: from the beginning), oldest first and each record at most once, and the new cursor."""
        ...

    async def tenant(self, name: str) -> Tenant | None: ...

    async def tenants(self, after: str | None, limit: int) -> Page[Tenant]: ...

    async def put_tenant(self, tenant: Tenant) -> None:
        """Create or replace."""
        ...

    async def endpoint(self, endpoint_id: str) -> Endpoint | None: ...

    async def endpoints(self, tenant: str | None, after: str | None, limit: int) -> Page[Endpoint]:
        """In order of id."""
        ...

    async def create_endpoint(self, endpoint: Endpoint) -> None:
        """Raises `Conflict` when the id is taken."""
        ...

    async def update_endpoint(self, endpoint: Endpoint, expected_generation: int) -> None:
        """Replace; raises `Conflict` when the stored generation is another, `NotFound` when it is gone."""
        ...

    async def delete_endpoint(self, endpoint_id: str) -> bool:
        """Remove the record and what was learned about it (its deliveries are cancelled apart); False when there was none."""
        ...

    async def api_key_by_hash(self, digest: bytes) -> ApiKey | None: ...

    async def api_keys(self) -> Sequence[ApiKey]: ...

    async def put_api_key(self, key: ApiKey) -> None: ...

    async def delete_api_key(self, key_id: str) -> bool: ...

    async def policy(self, version: int | None = None) -> PolicyVersion | None:
        """A version of the policy, None: the newest. None when there is no such version, or nobody has changed the policy yet."""
        ...

    async def put_policy(self, policy: PolicyVersion) -> None:
        """Store the version after the newest (the first is 1). Raises `Conflict` when it is not that: somebody else was first.

        The newest `POLICY_VERSIONS_MAX` are kept.
        """
        ...

    async def policies(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        """Versions below `before` (None: all), newest first."""
        ...

    async def event_type(self, tenant: str, event_type: str, version: int | None = None) -> EventSchema | None:
        """A version of a type's schema, None: the newest. None when there is no such version, or the type never had a schema."""
        ...

    async def put_event_type(self, schema: EventSchema) -> None:
        """Store the version after the newest of its type. Raises `Conflict` when it is not that.

        The newest `EVENT_TYPE_VERSIONS_MAX` of a type are kept. `purge_tenant` takes them all.
        """
        ...

    async def event_types(self, tenant: str | None, after: str | None, limit: int) -> Page[EventSchema]:
        """The newest version of each type that ever had a schema, in order of tenant and type."""
        ...

    async def event_type_versions(
        self, tenant: str, event_type: str, before: int | None, limit: int
    ) -> Sequence[EventSchema]:
        """Versions below `before` (None: all), newest first."""
        ...

    async def audit(self, entry: AuditEntry) -> None: ...

    async def audit_log(self, tenant: str | None, after: str | None, limit: int) -> Page[AuditEntry]: ...


class Store(DeliveryStore, Registry, Protocol):
    """Both ports on one engine."""
