"""How long the console's pages take over a large house: `python -m bench.console` and `gatepost bench console`.

5,000 endpoints and a million deliveries on PostgreSQL, a service as `gatepost serve` runs it, and each page asked for again and
again, another endpoint, delivery or filter each time. The target is 150 ms for 95 of 100 of each page.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from bench.console_rows import DEAD_PLACE, STEPS, House, furnish
from bench.postgres import measured_server
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.delivery.ids import DELIVERY, EVENT, encode_id
from gatepost.delivery.policy_layers import LayerValue
from gatepost.delivery.records import Secret
from gatepost.service.app import open_service
from gatepost.service.config import ListenSettings, Settings
from gatepost.service.heap import set_aside

ENDPOINTS: Final = 5_000
DELIVERIES: Final = 1_000_000
TARGET_MS: Final = 150.0
ROUNDS: Final = 60
"""Times that each page is asked for."""
PARTS: Final = 1_024
CALM_SECONDS: Final = 3
CALM_LAG: Final = 0.02
"""Seconds that the loop may be late, so long, before we begin: a service that starts is not what is measured."""
KEY: Final = "admin-key-of-the-benchmark-0123456789"
TIME: Final = "%Y-%m-%dT%H:%M"


@dataclass(frozen=True, slots=True)
class Timing:
    """One page."""

    page: str
    rounds: int
    p50_ms: float
    p95_ms: float
    worst_ms: float
    kib: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when each page kept its target."""
    parser = argparse.ArgumentParser(prog="gatepost bench console", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--endpoints", type=int, default=ENDPOINTS)
    parser.add_argument("--deliveries", type=int, default=DELIVERIES)
    parser.add_argument("--pages", default="", metavar="REGEX", help="only pages whose name matches from its beginning")
    options = parser.parse_args(arguments)
    deliveries = min(options.deliveries, 100_000) if options.quick else options.deliveries
    rounds = 20 if options.quick else ROUNDS
    with steps(STEPS + 1) as progress, measured_server(durable=False) as server:
        began = time.monotonic()
        house = asyncio.run(furnish(server.url, server.keys, options.endpoints, deliveries, _said(progress)))
        loaded = time.monotonic() - began
        progress.begin("pages")
        timings = asyncio.run(_measure(server.url, server.keys, house, rounds, options.pages))
        progress.done()
    slow = [one.page for one in timings if one.p95_ms > TARGET_MS]
    if options.json:
        print_json(
            {
                "endpoints": options.endpoints,
                "deliveries": deliveries,
                "loaded_s": round(loaded, 1),
                "target_ms": TARGET_MS,
                "pages": [
                    {
                        "page": one.page, "rounds": one.rounds, "p50_ms": round(one.p50_ms, 1), "p95_ms": round(one.p95_ms, 1),
                        "worst_ms": round(one.worst_ms, 1), "kib": round(one.kib, 1),
                    }
                    for one in timings
                ],
                "slow": slow,
            }
        )  # fmt: skip
    else:
        print_table(
            f"{options.endpoints:,} endpoints, {deliveries:,} deliveries, loaded in {loaded:.0f} s",
            ("page", "p50 ms", "p95 ms", "worst ms", "KiB"),
            [
                (one.page, f"{one.p50_ms:.1f}", f"{one.p95_ms:.1f}", f"{one.worst_ms:.1f}", f"{one.kib:.0f}")
                for one in timings
            ],
        )
        print_line(f"Slower than {TARGET_MS:.0f} ms: {', '.join(slow) or 'none'}")
        print_machine()
    return 1 if slow else 0


def _said(progress: Steps) -> Callable[[str], None]:
    def said(step: str) -> None:
        progress.begin(step)
        progress.done()

    return said


async def _measure(url: str, keys: Sequence[str], house: House, rounds: int, wanted: str) -> list[Timing]:
    settings = Settings(
        database=url,
        keys=tuple(Secret(key) for key in keys),
        listen=ListenSettings("127.0.0.1", 0),
        admin_key=Secret(KEY),
        max_loop_lag=60.0,
    )
    async with open_service(settings) as running:
        async with asyncio.timeout(120.0):
            calm = 0
            while calm < CALM_SECONDS:  # it wins its parts, and reads what is known of their endpoints
                await asyncio.sleep(1.0)
                found = running.dispatcher.statistics()
                calm = calm + 1 if found.parts == PARTS and found.loop_lag_p99 < CALM_LAG else 0
        tried = {"read_timeout": LayerValue(5.0)}  # so that the shadow's page has all endpoints to report on
        await running.dispatcher.policies.try_in_shadow(tried, by="bench", why="bench")
        set_aside()  # as `serve` does
        return await asyncio.to_thread(_ask, running.url, house, rounds, wanted)


def _ask(url: str, house: House, rounds: int, wanted: str) -> list[Timing]:
    browser = Browser(url)
    browser.sign_in(KEY)
    timings = []
    for page, paths in pages(house):
        if not re.match(wanted, page):
            continue
        taken, size = [], 0
        for path in itertools.islice(paths, rounds + 1):
            began = time.perf_counter()
            status, body = browser.get(path)
            taken.append((time.perf_counter() - began) * 1e3)
            size = max(size, len(body))
            if status != 200:
                raise SystemExit(f"{path} answered {status}: {body[:2_000].decode(errors='replace')}")
        taken = sorted(taken[1:])  # the first one compiles the template
        timings.append(
            Timing(page, len(taken), taken[len(taken) // 2], taken[int(len(taken) * 0.95)], taken[-1], size / 1_024)
        )
    browser.close()
    return timings


def pages(house: House) -> Iterator[tuple[str, Iterator[str]]]:
    """Every page by name, and endless paths to it."""
    endpoints, deliveries = house.endpoints, house.deliveries
    spread = [endpoints[place] for place in range(0, len(endpoints), max(1, len(endpoints) // 97))]
    busiest, dead = endpoints[0], endpoints[DEAD_PLACE]
    yield "overview", itertools.repeat("/")
    yield "endpoints", (_at("/endpoints", after=one.id) for one in itertools.cycle(spread))
    yield "endpoints by URL", (_at("/endpoints", q=one.url[-12:]) for one in itertools.cycle(spread))
    yield "endpoints of a tenant", itertools.repeat(_at("/endpoints", tenant="large"))
    yield "endpoint", (f"/endpoints/{one.id}" for one in itertools.cycle(spread))
    yield "endpoint, the busiest", itertools.repeat(f"/endpoints/{busiest.id}")
    yield "endpoint, a dead one", itertools.repeat(f"/endpoints/{dead.id}")
    yield "deliveries", itertools.repeat("/deliveries")
    for state in ("waiting", "delivered", "dead", "cancelled"):
        yield f"deliveries {state}", itertools.repeat(_at("/deliveries", state=state))
        yield f"deliveries {state} of a tenant", itertools.repeat(_at("/deliveries", state=state, tenant="large"))
        yield (
            f"deliveries {state} of an endpoint",
            (_at("/deliveries", state=state, endpoint=one.id) for one in itertools.cycle(spread)),
        )
    yield (
        "deliveries waiting of the dead endpoint",
        itertools.repeat(_at("/deliveries", state="waiting", endpoint=dead.id)),
    )
    yield (
        "deliveries delivered of the dead endpoint",
        itertools.repeat(_at("/deliveries", state="delivered", endpoint=dead.id)),
    )
    yield "deliveries of a rare type", itertools.repeat(_at("/deliveries", type="audit.rare", tenant="large"))
    yield "deliveries of no type", itertools.repeat(_at("/deliveries", type="never.seen", tenant="large"))
    hour = time.strftime(TIME, time.gmtime(time.time() - 3 * 86_400))
    yield "deliveries before a time", itertools.repeat(_at("/deliveries", until=hour, tenant="tenant-1"))
    yield "delivery", (f"/deliveries/{encode_id(DELIVERY, one)}" for one, _ in itertools.cycle(deliveries))
    yield "delivery, dead", (f"/deliveries/{encode_id(DELIVERY, one)}" for one in itertools.cycle(house.dead))
    yield "event", (f"/events/{encode_id(EVENT, one)}" for _, one in itertools.cycle(deliveries))
    yield "dead letters", itertools.repeat("/dead-letters")
    yield "dead letters of an endpoint", (_at("/dead-letters", endpoint=one.id) for one in itertools.cycle(spread))
    yield "replay of dead letters", (_at("/dead-letters/replay", endpoint=one.id) for one in itertools.cycle(spread))
    yield "policy", itertools.repeat("/policy")
    for part in ("history", "shadow", "rollout"):
        yield f"policy, {part}", itertools.repeat(f"/policy/{part}")
    yield "fleet", itertools.repeat("/fleet")


def _at(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


class Browser:
    """One visitor with one connection, as a browser keeps it."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60.0)
        self._cookies: dict[str, str] = {}

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def sign_in(self, key: str) -> None:
        """With a key, over the form."""
        _, page = self.get("/login")
        found = re.search(rb'name="csrf" value="([^"]+)"', page)
        assert found is not None
        status, _ = self._send("POST", "/login", urlencode({"csrf": found[1].decode(), "key": key}))
        assert status == 303, status

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        return self._send("GET", path)

    def _send(self, method: str, path: str, form: str | None = None) -> tuple[int, bytes]:
        headers: dict[str, Any] = {"cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if form is not None:
            headers["content-type"] = "application/x-www-form-urlencoded"
        self._connection.request(method, f"/console{path}", form, headers)
        answer = self._connection.getresponse()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                cookie, _, content = value.partition(";")[0].partition("=")
                self._cookies[cookie] = content
        return answer.status, answer.read()


if __name__ == "__main__":
    sys.exit(main())
