"""`dispatcher.tenants`: erase a tenant with everything it ever sent, while the service runs, and hand out a receipt.

The tenant is stopped first (no events in, no attempts out), in every process; then its rows go in portions, those in followed
outboxes of producers too, its secrets and its record last. A run that was cut is repeated: the tenant stays stopped until then.
What receivers got stays with them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Final

from gatepost.delivery.records import Tenant
from gatepost.dispatch.catalogue import Catalogue
from gatepost.dispatch.keeper import Keeper
from gatepost.errors import NotFound
from gatepost.store.outbox.source import OutboxSource, OutboxUnavailable
from gatepost.store.port import AuditEntry, Store
from gatepost.store.rows import DeliveryFilter, TenantPurge

PORTION: Final = 1_000
"""Rows per call of the store."""
FOLLOWED_WITHIN: Final = 2.0
"""Seconds within which every process has heard of a change of the registry."""
RECEIPTS_KEPT: Final = 100
"""Receipts of finished runs, for whoever asks again after a lost answer."""
OUTBOX_PAUSES: Final = (0.0, 1.0, 2.0)
"""Seconds before each try to erase a tenant in a producer's database."""
COUNTED: Final = tuple(field.name for field in fields(TenantPurge) if field.name != "more")

_log = logging.getLogger("gatepost.dispatch")


@dataclass(frozen=True, slots=True)
class PurgeReceipt:
    """Proof of an erasure: what was erased by this run, and when."""

    tenant: str
    started_at: int
    """UTC microseconds; from here on nothing was accepted or started for the tenant."""
    finished_at: int
    erased: Mapping[str, int]
    """Rows by kind. A run that goes on with one that was cut counts its own."""
    resumed: bool
    """An earlier run had begun."""
    outboxes: Mapping[str, int | None]
    """Rows erased in each producer's database that is followed here, waiting ones and those set aside; None: it did not answer,
    erase them by hand. Databases that nobody follows are not known, and not in the list."""
    digest: str
    """SHA-256 over the other fields as JSON with sorted keys; also in the audit log."""


class Tenants:
    """Erasing tenants. One run per tenant at a time; who asks meanwhile waits for the same one."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        keeper: Keeper,
        store_time: Callable[[], int],
        attempt_budget: float,
        outboxes: Sequence[OutboxSource] = (),
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._keeper = keeper
        self._store_time = store_time
        self._attempt_budget = attempt_budget
        self._outboxes = outboxes
        self._runs: dict[str, asyncio.Task[PurgeReceipt]] = {}
        self._erased: dict[str, dict[str, int]] = {}
        self._receipts: OrderedDict[str, PurgeReceipt] = OrderedDict()

    async def purge(self, name: str, *, actor: str = "library") -> PurgeReceipt:
        """Erase a tenant; returns when nothing of it is left.

        A caller that is cancelled leaves the run alone. In a fleet it first waits until every process has stopped the tenant and
        its attempts have ended: two seconds and an attempt's budget. Raises `NotFound` for a tenant that nothing is known of,
        `StoreError`; then repeat it.
        """
        run = self._runs.get(name)
        if run is None:
            known = self._receipts.get(name)
            if known is not None and not await self._exists(name):
                return known
            run = self._runs[name] = asyncio.get_running_loop().create_task(
                self._run(name, actor), name=f"gatepost purge of {name}"
            )
            run.add_done_callback(lambda _: self._runs.pop(name, None))
        return await asyncio.shield(run)

    def progress(self, name: str) -> Mapping[str, int]:
        """What the run under way has erased so far."""
        return dict(self._erased.get(name, {}))

    async def aclose(self) -> None:
        """End the runs under way; they are repeated by whoever asks again."""
        runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    async def _run(self, name: str, actor: str) -> PurgeReceipt:
        if not await self._exists(name):
            raise NotFound(f"there is no tenant {name[:100]}")
        record = await self._store.tenant(name)
        resumed = record is not None and record.stopped_at is not None
        started_at = self._store_time()
        await self._stop(record or Tenant(name, started_at), started_at)
        held = list(self._catalogue.endpoints_of(name))
        ids = [listed.endpoint.id for listed in self._catalogue.endpoints_of(name).values()]
        try:
            for number in held:
                self._keeper.hold_back(number)
            for number in held:
                await self._keeper.wait_quiet(number)
            if self._store.capabilities.shared:
                await asyncio.sleep(FOLLOWED_WITHIN + self._attempt_budget)
            outboxes = {source.place: await _erase_outbox(source, name) for source in self._outboxes}
            erased = await self._erase(name)
            for endpoint_id in ids:
                await self._catalogue.refresh(endpoint_id)
            await self._catalogue.refresh_tenant(name)
        finally:
            self._erased.pop(name, None)
            for number in held:
                self._keeper.let_go(number)
        receipt = _receipt(name, started_at, self._store_time(), erased, resumed, outboxes)
        await self._store.audit(AuditEntry(receipt.finished_at, actor, "tenant.purge", name, name, receipt.digest))
        self._receipts[name] = receipt
        while len(self._receipts) > RECEIPTS_KEPT:
            self._receipts.popitem(last=False)
        return receipt

    async def _exists(self, name: str) -> bool:
        """Whether the tenant has a record, an endpoint, or a delivery: tenants without a record are not unusual."""
        if await self._store.tenant(name) is not None or self._catalogue.endpoints_of(name):
            return True
        return bool((await self._store.deliveries(DeliveryFilter(tenant=name), None, 1)).items)

    async def _stop(self, record: Tenant, now: int) -> None:
        if record.stopped_at is None:
            record = replace(record, stopped_at=now, generation=record.generation + 1)
            await self._store.put_tenant(record)
        await self._catalogue.refresh_tenant(record.name)

    async def _erase(self, name: str) -> dict[str, int]:
        erased = self._erased[name] = dict.fromkeys(COUNTED, 0)
        while True:
            portion = await self._store.purge_tenant(name, PORTION)
            for kind in COUNTED:
                erased[kind] += getattr(portion, kind)
            if not portion.more:
                return dict(erased)
            await asyncio.sleep(0)


async def _erase_outbox(source: OutboxSource, name: str) -> int | None:
    """A producer's database that is down holds up no erasure: the receipt says so."""
    for pause in OUTBOX_PAUSES:
        await asyncio.sleep(pause)
        try:
            return await source.erase(name)
        except OutboxUnavailable as error:
            _log.warning("tenant %s is not erased in %s: %s", name, source.place, error)
    return None


def _receipt(
    name: str,
    started_at: int,
    finished_at: int,
    erased: Mapping[str, int],
    resumed: bool,
    outboxes: Mapping[str, int | None],
) -> PurgeReceipt:
    content = {
        "tenant": name,
        "started_at": started_at,
        "finished_at": finished_at,
        "erased": dict(erased),
        "resumed": resumed,
        "outboxes": dict(outboxes),
    }
    digest = sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return PurgeReceipt(name, started_at, finished_at, erased, resumed, outboxes, digest)
