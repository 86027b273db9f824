"""A shop that tells its partners about orders: how a typed project uses Gatepost as a library.

Run it: `python orders.py https://partner.example/webhooks`. It type-checks under mypy strict as it stands.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from gatepost import Attempt, DispatchClient, Dispatcher, EgressPolicy, Endpoint, Outcome, Receipt, RetrySafety


@dataclass(frozen=True)
class Order:
    """What the shop sells."""

    number: int
    total: str


def explain(attempt: Attempt) -> str:
    """One line for a log. Outcomes may grow in minor versions, so the match has a default."""
    if attempt.delivered:
        return f"delivered in {attempt.elapsed:.3f} s"
    match attempt.outcome:
        case Outcome.RESPONSE:
            what = f"answered {attempt.status}"
        case Outcome.EGRESS_DENIED:
            what = f"not a public address ({attempt.reason})"
        case _:
            what = f"{attempt.outcome} in phase {attempt.phase} ({attempt.reason})"
    again = "it may have acted" if attempt.retry_safety is RetrySafety.AMBIGUOUS else "it has not acted"
    return f"{what}; {again}"


async def probe(url: str, egress: EgressPolicy | None = None) -> Attempt:
    """Send one test webhook, now, without storing anything."""
    async with DispatchClient(egress=egress) as client:
        return await client.deliver(url, {"type": "ping"})


async def announce(gp: Dispatcher, order: Order) -> Receipt:
    """Durable when this returns. The key makes a repeated call the same event."""
    return await gp.publish(
        "order.paid", {"number": order.number, "total": order.total}, idempotency_key=f"order-{order.number}-paid"
    )


async def run(url: str, database: str, egress: EgressPolicy | None = None) -> tuple[Endpoint, Receipt]:
    """Register the partner, announce one order, and give its delivery a moment."""
    async with Dispatcher.open(database, egress=egress, run=True) as gp:
        endpoint = await gp.endpoints.create(url, event_types=("order.*",))
        receipt = await announce(gp, Order(1001, "24.90"))
        await gp.drain(grace=5.0)
    return endpoint, receipt


async def main(url: str) -> int:
    """Probe, then publish."""
    print(explain(await probe(url)))
    endpoint, receipt = await run(url, "sqlite:///orders.db")
    print(f"{receipt.event_id} goes to {receipt.deliveries} endpoint(s), among them {endpoint.id}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
