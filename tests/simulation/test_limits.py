"""What a tenant may use, whichever way its events come, and what a producer hears when something cannot keep up."""

from __future__ import annotations

import asyncio

import pytest

from gatepost.delivery.records import Tenant, TenantLimits
from gatepost.errors import LimitExceeded, Overloaded, StoreError
from gatepost.store.rows import OutboxEvent
from tests.simulation.harness import Line, Simulation, simulate

GOOD = "https://good.receivers.net/hook"
OPS = "https://ops.receivers.net/hook"


def outbox(sim: Simulation, number: int, tenant: str, size: int = 1, ordering_key: str | None = None) -> OutboxEvent:
    """An event as a publisher of another process stores it."""
    now = sim.clock.wall_us()
    event_id = ((now // 1_000 - 1_735_689_600_000) << 22) + number
    body = b"%d" % number + b"x" * (size - len(b"%d" % number))
    return OutboxEvent(0, event_id, tenant, None, "a.b", "text/plain", body, ordering_key, "normal", None, now)


@pytest.mark.parametrize(
    ("limits", "size", "most"),
    [
        (TenantLimits(events_per_second=10.0), 10, 10),
        (TenantLimits(bytes_per_second=10_000.0), 1_000, 10),
        (TenantLimits(events_per_second=100.0, bytes_per_second=10_000.0), 1_000, 10),
    ],
)
def test_a_burst_of_a_tenants_outbox_is_spread_to_its_rate_and_nothing_is_lost(
    limits: TenantLimits, size: int, most: int
) -> None:
    """It was committed with the producer's transaction: it can wait, and must not be refused. Others do not wait for it."""

    async def main(sim: Simulation) -> None:
        await sim.store.put_tenant(Tenant("busy", limits=limits))
        async with sim.dispatcher() as gp:
            busy = await gp.endpoints.create(GOOD, tenant="busy", probe=False)
            other = await gp.endpoints.create(GOOD + "2", tenant="other", probe=False)
            await gp.endpoints.create(OPS, tenant="busy", event_types=["gatepost.*"], probe=False)
            await sim.store.outbox_put([outbox(sim, number, "busy", size, "k") for number in range(300)])
            await sim.store.outbox_put([outbox(sim, 1_000, "other")])
            began = sim.clock.monotonic()
            await asyncio.sleep(1)
            assert len(sim.sent_to(other)) == 1
            assert len(sim.sent_to(busy)) <= 2 * most + 2, "a burst of one second's worth, and what has come since"
            await asyncio.sleep(40)
            sent = sim.sent_to(busy)
            assert [int(one.body.rstrip(b"x")) for one in sent] == list(range(300)), "in order"
            assert sent[-1].at - began > (300 - most) / most - 1
            assert [sent.body.count(b"over_limit") for sent in sim.client.sent if sent.url == OPS] == [1]
            assert (await sim.store.totals()).outbox == 0

    simulate(main)


def test_a_tenant_with_a_full_backlog_is_refused_until_it_has_drained() -> None:
    """Whoever lets a million deliveries pile up must not fill everybody's store."""

    async def main(sim: Simulation) -> None:
        await sim.store.put_tenant(Tenant("t", limits=TenantLimits(backlog_rows=5)))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, tenant="t", probe=False)
            await gp.endpoints.pause(endpoint.id)
            for _ in range(5):
                await gp.publish("a.b", b"", tenant="t")
                await asyncio.sleep(1.1)
            for _ in range(3):
                with pytest.raises(LimitExceeded) as refused:
                    await gp.publish("a.b", b"", tenant="t")
                assert refused.value.retry_after > 0
                await asyncio.sleep(1.1)
            await gp.publish("a.b", b"", tenant="other")
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(5)
            await gp.publish("a.b", b"", tenant="t")

    simulate(main)


def test_while_the_store_takes_nothing_new_deliveries_go_on() -> None:
    """A full disk refuses events; what is stored already is delivered and settled."""

    async def main(sim: Simulation) -> None:
        line = Line(sim.store)
        async with sim.dispatcher(store=line.as_store) as gp:
            endpoint = await gp.endpoints.create(GOOD, probe=False, rate=1.0)
            for number in range(10):
                await gp.publish("a.b", b"%d" % number)
            line.cut_calls = {"enqueue"}
            with pytest.raises(StoreError):
                await gp.publish("a.b", b"lost")
            await asyncio.sleep(20)
            assert len(sim.sent_to(endpoint)) == 10
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}
            line.cut_calls = set()
            await gp.publish("a.b", b"again")

    simulate(main)


def test_a_store_that_is_slow_is_said_as_overload_with_a_time_to_come_back() -> None:
    """`Overloaded` is the producer's signal to slow down, and says whether anything was stored."""

    async def main(sim: Simulation) -> None:
        class Slow(Line):
            async def enqueue(self, batch: object) -> object:
                await asyncio.sleep(60)
                raise StoreError("too late")

        async with sim.dispatcher(store=Slow(sim.store).as_store, run=False) as gp:
            with pytest.raises(Overloaded, match="same idempotency_key") as refused:
                await gp.publish("a.b", b"")
            assert refused.value.retry_after > 0

    simulate(main)
