"""`/v1/fleet`: who is alive, who owns what and for how long, and how late deliveries are. For admins."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatepost.delivery.ids import ENDPOINT
from gatepost.dispatch.share import share_of
from gatepost.service.api.context import CallerDep, Service, ServiceDep, read_filter_id
from gatepost.service.api.problems import not_found
from gatepost.store.rows import SUB_BULK, SUB_FIFO_FIRST, SUB_HIGH, SUB_NORMAL, NodeInfo, PartInfo, lane_of

LANES: tuple[int, ...] = (SUB_NORMAL, SUB_HIGH, SUB_BULK, *range(SUB_FIFO_FIRST, 256))
"""All lanes an endpoint may have."""

router = APIRouter(prefix="/v1/fleet", tags=["operation"])

EndpointQuery = Annotated[
    str | None, Query(description="Tell who owns this endpoint, and how late its deliveries are.")
]


@router.get("")
async def fleet(service: ServiceDep, caller: CallerDep, endpoint_id: EndpointQuery = None) -> dict[str, Any]:
    """The processes alive with what they hold, the parts nobody holds, and this process' own lag."""
    caller.check_admin()
    nodes, parts = await service.store.nodes(), await service.store.parts()
    statistics = service.dispatcher.statistics()
    document = {
        "answered_by": statistics.node,
        "nodes": _nodes(service, nodes, parts),
        "parts": {
            "all": len(parts),
            "free": sum(info.owner is None for info in parts),
            "shortest_lease": round(min((info.lease_left for info in parts if info.owner is not None), default=0.0), 3),
        },
        "here": {
            "draining": statistics.draining or service.draining or service.leaving,
            "balanced": statistics.balanced,
            "seconds_until_fenced": round(statistics.lease_seconds_left, 3),
            "lag": round(service.dispatcher.lag_seconds(), 3),
            "clock_skew": round(statistics.clock_skew, 3),
            # Only the owner of part 0 follows; elsewhere they are idle.
            "outboxes": [asdict(status) for status in statistics.outboxes],
        },
    }
    number = read_filter_id("endpoint_id", ENDPOINT, endpoint_id)
    if number is not None and endpoint_id is not None:
        document["endpoint"] = await _endpoint(service, endpoint_id, number, parts)
    return document


def _nodes(service: Service, nodes: Any, parts: Any) -> list[dict[str, Any]]:
    leases: dict[str, float] = {}
    held: Counter[str] = Counter()
    for info in parts:
        if info.owner is not None:
            held[info.owner] += 1
            leases[info.owner] = min(info.lease_left, leases.get(info.owner, info.lease_left))
    now = service.clock.wall_us()
    known = {info.node.name for info in nodes}
    found = [_node(info, held[info.node.name], leases, nodes, len(parts), now) for info in nodes]
    # An owner that is not alive: its parts are about to be taken over.
    found += [_gone(name, held[name], leases[name]) for name in sorted(held) if name not in known]
    return found


def _node(
    info: NodeInfo, held: int, leases: dict[str, float], nodes: list[NodeInfo], count: int, now: int
) -> dict[str, Any]:
    node = info.node
    left = leases.get(node.name)
    return {
        "name": node.name,
        "alive": True,
        "address": node.address,
        "weight": node.weight,
        "draining": node.draining,
        "parts": held,
        "share": share_of(node.name, nodes, count).ceiling,
        "shortest_lease": None if left is None else round(left, 3),
        "seen_ago": round(max(0.0, (now - info.seen_at) / 1e6), 3),
    }


def _gone(name: str, held: int, left: float) -> dict[str, Any]:
    return {
        "name": name,
        "alive": False,
        "address": None,
        "weight": None,
        "draining": None,
        "parts": held,
        "share": 0,
        "shortest_lease": round(left, 3),
        "seen_ago": None,
    }


async def _endpoint(service: Service, endpoint_id: str, number: int, parts: Any) -> dict[str, Any]:
    if await service.store.endpoint(endpoint_id) is None:
        raise not_found()
    owned: PartInfo = parts[number % len(parts)]
    stats = await service.store.lane_stats([lane_of(number, sub) for sub in LANES])
    oldest = min((stat.oldest_due for stat in stats if stat.oldest_due is not None), default=None)
    now = service.clock.wall_us() + round(service.dispatcher.statistics().clock_skew * 1e6)
    return {
        "endpoint_id": endpoint_id,
        "part": owned.part,
        "owner": owned.owner,
        "epoch": owned.epoch,
        "lease_left": round(owned.lease_left, 3),
        "waiting": sum(stat.depth for stat in stats),
        "lag": 0.0 if oldest is None else round(max(0.0, (now - oldest) / 1e6), 3),
    }
