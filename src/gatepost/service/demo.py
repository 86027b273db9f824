"""`gatepost demo`: one good and four hostile endpoints side by side, to see that the good one does not notice the others.

A real `gatepost serve` process on a fresh SQLite file, fed over its HTTP API; receivers on loopback. Ends by itself with a
table, and says with its exit code whether the promises held: every good delivery arrived, and every signature was good.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.errors import GatepostError
from gatepost.service.cli.api_client import ApiClient
from gatepost.service.demo_board import Board, Lane, Latency, latency
from gatepost.wire.signing import new_secret

SETTINGS: Final = {
    "GATEPOST_LISTEN_PORT": "0",
    "GATEPOST_EGRESS_SCHEMES": "https,http",
    "GATEPOST_EGRESS_ALLOW_CIDRS": "127.0.0.0/8",
    "GATEPOST_POLICY_CONNECT_TIMEOUT": "0.6",
    "GATEPOST_POLICY_WRITE_TIMEOUT": "1.0",
    "GATEPOST_POLICY_READ_TIMEOUT": "2.0",
    "GATEPOST_LOG_FORMAT": "json",
    "GATEPOST_INGEST_MAX_LOOP_LAG": "10.0",
}
"""Limits short enough to see them act within seconds; loopback over http, which is refused unless asked for. On a machine busy
with other things the demo goes on late instead of refusing its own events."""
SCHEDULE: Final = (0.0, 0.5, 1.0, 2.0)
"""Delays before each attempt at the hostile endpoints: days are too long for a demo, and four attempts show a dead letter."""
BASELINE_SHARE: Final = 0.25
"""Part of the events that goes to the good endpoint alone, to compare with."""
RATE: Final = 50.0
"""Events published per second: 250 deliveries a second, so that the hostile endpoints fall behind at once."""
SETTLE: Final = 4.0
"""Seconds watched after the last event, so that retries and dead letters show."""
GOOD_DEADLINE: Final = 10.0
"""Seconds after the last event by which every good delivery has arrived."""
START_LIMIT: Final = 15.0
STOP_LIMIT: Final = 10.0
REFRESH: Final = 0.15


class DemoFailed(GatepostError):
    """The demo could not run at all."""


def run_demo(*, events: int = 300, keep: bool = False) -> int:
    """Run it; 0 when every promise held, 1 when not."""
    try:
        return asyncio.run(_Demo(events, keep).run())
    except KeyboardInterrupt:
        return 1


class _Demo:
    def __init__(self, events: int, keep: bool) -> None:
        self._events = events
        self._keep = keep
        self._secret = new_secret(SYSTEM_ENTROPY.token(32))
        self._published_ns: dict[str, int] = {}
        self._by_endpoint: dict[str, Lane] = {}

    async def run(self) -> int:
        # Imported here: only this command and `gatepost hostile` need the test servers.
        from gatepost.testing.hostile import HostileServer
        from gatepost.testing.receiver import Receiver

        async with AsyncExitStack() as stack:
            receiver = await stack.enter_async_context(Receiver(secrets=[self._secret], stamps=True))
            silent = await stack.enter_async_context(HostileServer("silence"))
            slow = await stack.enter_async_context(HostileServer("slow-ok", seconds=1.0))
            dripping = await stack.enter_async_context(HostileServer("drip-head", seconds=0.5))
            dead = stack.enter_context(_refusing_port())
            good = Lane("good", "verifies signatures, answers 200", receiver.url)
            lanes = [
                good,
                Lane("silent", "accepts, never answers", silent.url.rstrip("/")),
                Lane("slow", "answers 200 after 1 s", slow.url.rstrip("/")),
                Lane("dripping", "a header byte every 0.5 s", dripping.url.rstrip("/")),
                Lane("dead", "refuses connections", f"http://127.0.0.1:{dead}"),
            ]
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatepost-demo-")))
            service = await stack.enter_async_context(_service(directory, self._take_line))
            board = Board(lanes)
            board.say(f"service   {service.url}  (SQLite in {directory})")
            board.introduce()
            with board:
                await self._register(service.api, good)
                alone = await self._publish(service.api, board, [good], round(self._events * BASELINE_SHARE))
                for lane in lanes[1:]:
                    await self._register(service.api, lane)
                rest = self._events - len(alone)
                beside = await self._publish(service.api, board, lanes, rest)
                ended = SYSTEM_CLOCK.monotonic()
                while True:
                    await self._look(service.api, lanes)
                    now = SYSTEM_CLOCK.monotonic()
                    board.refresh(now, "All published: retries go on")
                    arrived = receiver.statistics().unique_ids >= self._events
                    if now - ended >= SETTLE and (arrived or now - ended >= GOOD_DEADLINE):
                        break
                    await asyncio.sleep(REFRESH)
            good.delivered = receiver.statistics().unique_ids
            board.summary()
            before = self._latency(receiver.stamps, alone)
            during = self._latency(receiver.stamps, beside)
            kept = _report(board, good, receiver.statistics().bad_signatures, before, during)
            if self._keep:
                board.say(f"still running: {service.url}/readyz, {service.url}/metrics; Ctrl-C ends it")
                await _interrupted()
            code = await service.stop()
            if code != 0:
                board.say(f"NOT kept: the service ended with exit code {code} instead of 0")
            return 0 if kept and code == 0 else 1

    async def _register(self, api: ApiClient, lane: Lane) -> None:
        body: dict[str, Any] = {"url": f"{lane.host}/{lane.name}", "secret": self._secret, "description": lane.does}
        if lane.name != "good":
            body["schedule"] = list(SCHEDULE)
        endpoint = await asyncio.to_thread(api.call, "POST", "/v1/endpoints", body)
        lane.endpoint_id = endpoint["id"]
        self._by_endpoint[lane.endpoint_id] = lane

    async def _publish(self, api: ApiClient, board: Board, lanes: list[Lane], count: int) -> list[str]:
        """Publish `count` events at a steady rate; returns their ids."""
        ids = []
        started = SYSTEM_CLOCK.monotonic()
        alone = len(lanes) == 1
        headline = "Baseline: the good endpoint alone" if alone else "Good and hostile endpoints, side by side"
        looked_at = started
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / RATE - SYSTEM_CLOCK.monotonic()))
            body = {"type": "demo.order", "payload": {"order": number, "alone": alone}}
            sent_ns = SYSTEM_CLOCK.monotonic_ns()
            receipt = await asyncio.to_thread(api.call, "POST", "/v1/events", body)
            self._published_ns[receipt["event_id"]] = sent_ns
            ids.append(receipt["event_id"])
            for lane in lanes:
                lane.published += 1
            now = SYSTEM_CLOCK.monotonic()
            if now - looked_at >= REFRESH:
                looked_at = now
                await self._look(api, lanes)
                board.refresh(now, headline)
        return ids

    async def _look(self, api: ApiClient, lanes: list[Lane]) -> None:
        """Read the shed counts from the metrics."""
        text = await asyncio.to_thread(api.text, "/metrics")
        shed = {
            sample.labels["host"]: round(sample.value)
            for family in text_string_to_metric_families(text)
            if family.name == "deliveries_shed"
            for sample in family.samples
        }
        for lane in lanes:
            lane.shed = shed.get(lane.host, 0)

    def _take_line(self, line: Mapping[str, Any]) -> None:
        """One line of the service's log."""
        lane = self._by_endpoint.get(str(line.get("endpoint_id")))
        if line.get("event") == "attempt" and lane is not None:
            lane.take(line)

    def _latency(self, stamps: Mapping[str, int], ids: list[str]) -> Latency | None:
        return latency([(stamps[one] - self._published_ns[one]) / 1e9 for one in ids if one in stamps])


def _report(board: Board, good: Lane, bad_signatures: int, before: Latency | None, during: Latency | None) -> bool:
    """Say of each promise whether it held, and how long the good endpoint waited.

    The delay is shown and not judged: on a machine that is busy with other things it says more about them.
    """
    promises = [
        (good.delivered == good.published, f"{good.delivered} of {good.published} good deliveries arrived"),
        (bad_signatures == 0, f"{bad_signatures} bad signatures"),
    ]
    for held, text in promises:
        board.say(f"{'kept    ' if held else 'NOT kept'}  {text}")
    if before is not None and during is not None:
        board.say("from publish to first byte at the good endpoint, in ms:")
        board.say(f"  alone                     p50 {before.p50:6.1f}   p99 {before.p99:6.1f}")
        board.say(f"  beside the hostile ones   p50 {during.p50:6.1f}   p99 {during.p99:6.1f}")
    return all(held for held, _ in promises)


async def _interrupted() -> None:
    """Until Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


class _Service:
    """A `gatepost serve` process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url
        self.api = ApiClient(url, None, keep_alive=True)

    async def stop(self) -> int:
        """Drain it and return its exit code."""
        self.api.close()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_LIMIT):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        code = self._process.returncode
        assert code is not None
        return code


@asynccontextmanager
async def _service(directory: Path, take_line: Callable[[Mapping[str, Any]], None]) -> AsyncIterator[_Service]:
    """The service on a fresh database; each JSON line it logs goes to `take_line`."""
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("GATEPOST_")}
    environ |= {**SETTINGS, "GATEPOST_DATABASE": f"sqlite:///{directory / 'demo.db'}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gatepost.service.cli",
        "serve",
        env=environ,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches us only, and we drain it
    )
    log = process.stderr
    assert log is not None
    said: list[str] = []
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async for raw in log:
            try:
                line = json.loads(raw)
            except ValueError:
                said.append(raw.decode("utf-8", "replace").rstrip())
                continue
            if line.get("event") == "listening" and not listening.done():
                listening.set_result(line["url"])
            if line.get("level") == "error":
                said.append(str(line.get("message")))
            take_line(line)
        if not listening.done():
            listening.set_exception(DemoFailed("the service did not start: " + " / ".join(said[-5:])))

    reading = asyncio.create_task(read(), name="demo-log")  # noqa: TID251 - ended below; a group would wrap every error
    try:
        try:
            async with asyncio.timeout(START_LIMIT):
                url = await listening
        except TimeoutError:
            raise DemoFailed(f"the service did not listen within {START_LIMIT:.0f} s") from None
        service = _Service(process, url)
        try:
            yield service
        finally:
            await service.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading  # ends with the process's output


@contextmanager
def _refusing_port() -> Iterator[int]:
    """A port that refuses connections and is nobody else's: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
