"""`/healthz`, `/readyz` and `/metrics`: what the platform around the service asks.

`/healthz` says the process runs and touches nothing, so that a store's outage does not restart every process. `/readyz`
asks each dependency, 250 ms each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry
from starlette.responses import Response

from gatepost.errors import GatepostError
from gatepost.service.api.context import Service, ServiceDep, caller_of
from gatepost.service.metric_rows import exposed

READY_TIMEOUT: Final = 0.25
"""Seconds for each dependency."""

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "At least one check failed."}})
async def readyz(service: ServiceDep) -> JSONResponse:
    """Whether to send work here, and what each check found."""
    checks: dict[str, dict[str, Any]] = {
        "store": await _timed(service, service.store.ping),
        "dispatcher": _dispatcher(service),
        "event_loop": _event_loop(service),
        **_outboxes(service),
        "accepting": {"ok": not (service.draining or service.leaving)},
    }
    ready = all(check["ok"] for check in checks.values())
    return JSONResponse({"ready": ready, "checks": checks}, 200 if ready else 503)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, service: ServiceDep) -> Response:
    """Prometheus or OpenMetrics text, for all processes of `gatepost serve`; on a process' own port for that one. With API keys,
    an admin's route unless `metrics.public` is set."""
    if not service.metrics_public:
        (await caller_of(request)).check_admin()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    # Read on the loop, where the counters change; written in a thread, since a thousand series are milliseconds of text.
    shared = service.shared_metrics
    if shared is None:
        families: Iterable[Metric] = list(service.metrics.registry.collect())
    else:
        families = exposed(await (shared.here() if request.app.state.own_pages else shared.everywhere()))
    body = await asyncio.to_thread(encode, _Read(families))
    return Response(body, media_type=content_type)


def _dispatcher(service: Service) -> dict[str, Any]:
    statistics = service.dispatcher.statistics()
    # Without a lease in force it accepts and starts nothing: events would pile up behind an answer of 202. In a fleet a
    # process whose share is nothing accepts for the others.
    works = statistics.lease_seconds_left > 0 or (statistics.share == 0 and statistics.balanced)
    ok = statistics.running and not statistics.store_failing and works and statistics.clock_trusted
    return {
        "ok": ok,
        "running": statistics.running,
        "lease_seconds_left": round(statistics.lease_seconds_left, 3),
        "parts": statistics.parts,
        "clock_skew": round(statistics.clock_skew, 3),
        "store_failing": statistics.store_failing,
        "results_waiting": statistics.results_waiting,
    }


def _outboxes(service: Service) -> dict[str, dict[str, Any]]:
    """Told, and no reason to send work elsewhere: a producer's database that is down is down for every process."""
    return {
        f"outbox {status.place}": {"ok": True, "state": status.state}
        | ({} if status.error is None else {"error": status.error})
        for status in service.dispatcher.statistics().outboxes
    }


def _event_loop(service: Service) -> dict[str, Any]:
    lag = service.dispatcher.lag
    return {"ok": not lag.late, "p99_lag": round(lag.window.p99, 6)}


class _Read(CollectorRegistry):
    """Families that were collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _timed(service: Service, check: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    started = service.clock.monotonic()
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            await check()
    except TimeoutError:
        return {"ok": False, "error": f"no answer within {READY_TIMEOUT} s"}
    except GatepostError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, "seconds": round(service.clock.monotonic() - started, 6)}
