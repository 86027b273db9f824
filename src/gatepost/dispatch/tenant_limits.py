"""What a tenant may use: events and bytes a second, rows in its backlog. Refuses one event at a time and changes nothing else.

Asked by intake before an event is stored. A tenant without a record or limits costs one dict lookup.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gatepost.admission.rate import TokenBucket
from gatepost.clock import Clock
from gatepost.delivery.records import TenantLimits
from gatepost.dispatch.catalogue import Catalogue
from gatepost.errors import LimitExceeded, NotFound
from gatepost.store.port import DeliveryStore

BACKLOG_RELIED_ON_US: Final = 1_000_000
"""A backlog once counted is relied on for a second, so that a busy tenant does not count rows at every event."""
BACKLOG_RETRY: Final = 5.0
"""Seconds a producer is asked to wait when its backlog is full."""
TENANTS_MAX: Final = 10_000
"""Limited tenants remembered; one that was away for so long starts with full buckets."""


class _Use:
    __slots__ = ("backlog", "bytes", "counted_at", "events")

    def __init__(self) -> None:
        self.events: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        self.backlog = 0
        self.counted_at: int | None = None


class TenantLimiter:
    """Checks events against their tenant's limits."""

    def __init__(self, store: DeliveryStore, catalogue: Catalogue, clock: Clock) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock
        self._uses: OrderedDict[str, _Use] = OrderedDict()

    async def check(self, tenant: str, size: int) -> None:
        """Count an event of `size` bytes.

        Raises `LimitExceeded` saying which limit, and when to come back; `NotFound` for a tenant that is being erased.
        """
        record = self._catalogue.tenant(tenant)
        if record is not None and record.stopped_at is not None:
            raise NotFound(f"tenant {tenant} is being erased: it takes no events")
        if record is None or record.limits == _UNLIMITED:
            return
        limits = record.limits
        use = self._use_of(tenant)
        now = self._clock.monotonic_ns() // 1_000
        if limits.backlog_rows is not None:
            await self._check_backlog(tenant, use, limits.backlog_rows, now)
        use.events = _bucket(use.events, limits.events_per_second, now)
        use.bytes = _bucket(use.bytes, limits.bytes_per_second, now)
        # Both are asked before either is spent: a refused event uses up nothing.
        for bucket, cost, what in ((use.events, 1.0, "events"), (use.bytes, float(size), "bytes")):
            if bucket is not None and (ready := bucket.ready_at(now, cost)) > now:
                raise LimitExceeded(
                    f"tenant {tenant} publishes more than its {bucket.rate:g} {what} a second",
                    (ready - now) / 1_000_000,
                )
        if use.events is not None:
            use.events.try_take(now)
        if use.bytes is not None:
            use.bytes.try_take(now, float(size))

    def delay(self, tenant: str, size: int) -> int:
        """Count an event that cannot be refused any more; microseconds that it must wait for the tenant's rates to hold.

        Its backlog is not looked at: what is committed in an outbox is accepted, and counts against what comes after it.
        """
        record = self._catalogue.tenant(tenant)
        if record is None or record.limits == _UNLIMITED:
            return 0
        use = self._use_of(tenant)
        now = self._clock.monotonic_ns() // 1_000
        use.events = _bucket(use.events, record.limits.events_per_second, now)
        use.bytes = _bucket(use.bytes, record.limits.bytes_per_second, now)
        ready = now
        if use.events is not None:
            ready = max(ready, use.events.reserve(now))
        if use.bytes is not None:
            ready = max(ready, use.bytes.reserve(now, float(size)))
        return ready - now

    async def _check_backlog(self, tenant: str, use: _Use, most: int, now: int) -> None:
        if use.counted_at is None or now - use.counted_at > BACKLOG_RELIED_ON_US:
            use.counted_at = now
            use.backlog = await self._store.backlog_of(tenant)
        if use.backlog >= most:
            raise LimitExceeded(
                f"tenant {tenant} has {use.backlog} deliveries waiting, its limit is {most}", BACKLOG_RETRY
            )

    def _use_of(self, tenant: str) -> _Use:
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use()
            if len(self._uses) > TENANTS_MAX:
                self._uses.popitem(last=False)
        else:
            self._uses.move_to_end(tenant)
        return use


_UNLIMITED: Final = TenantLimits()


def _bucket(bucket: TokenBucket | None, rate: float | None, now: int) -> TokenBucket | None:
    """The bucket for a rate: a changed limit holds at once, with a fresh bucket."""
    if rate is None:
        return None
    return bucket if bucket is not None and bucket.rate == rate else TokenBucket(rate, now)
