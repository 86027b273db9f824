"""A shop that tells its partners about orders: how a typed project uses Gatepost as a library.

Run it: `python orders.py https://partner.example/webhooks`. It type-checks under mypy strict as it stands.
"""

from __future__ import annotations

import asyncio
import signal
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


async def register(gp: Dispatcher, url: str) -> Endpoint:
    """The partner's endpoint, made once: a program that starts again finds it."""
    for endpoint in (await gp.endpoints.list("default")).items:
        if endpoint.url == url:
            return endpoint
    return await gp.endpoints.create(url, event_types=("order.*",))


async def announce(gp: Dispatcher, order: Order) -> Receipt:
    """Durable when this returns. The key makes a repeated call the same event."""
    return await gp.publish(
        "order.paid", {"number": order.number, "total": order.total}, idempotency_key=f"order-{order.number}-paid"
    )


async def run(url: str, database: str, stop: asyncio.Event, egress: EgressPolicy | None = None) -> Receipt:
    """Register the partner, announce one order, and deliver in the background until `stop`; drains on the way out."""
    async with Dispatcher.open(database, egress=egress, run=True) as gp:
        endpoint = await register(gp, url)
        receipt = await announce(gp, Order(1001, "24.90"))
        print(f"{receipt.event_id} goes to {receipt.deliveries} endpoint(s), among them {endpoint.id}; Ctrl-C ends")
        await stop.wait()
    return receipt


async def main(url: str) -> None:
    """Probe, then publish."""
    print(explain(await probe(url)))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(url, "sqlite:///orders.db", stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
