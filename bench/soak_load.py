"""A steady producer and the peers of a soak: good receivers in another process, hostile ones in a thread of this.

The producer posts a batch every tenth of a second, with idempotency keys, and repeats it until answered, through restarts and
kills. Used by `bench.soak`.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from gatepost.testing.hostile import HostileServer
from gatepost.testing.loop_thread import LoopThread

HOSTILE: Final[tuple[tuple[str, float | None], ...]] = (
    ("black-hole", None),
    ("silence", None),
    ("never-reads", None),
    ("close-at-accept", None),
    ("reset-before-response", None),
    ("close-mid-head", None),
    ("close-mid-body", None),
    ("stale-close", 0.2),
    ("stale-reset-on-request", 0.0),
    ("drip-head", 0.5),
    ("drip-body", 0.5),
    ("endless-headers", None),
    ("endless-body", None),
    ("garbage", None),
    ("slow-ok", 2.0),
    ("error", None),
    ("unavailable", None),
    ("keep-alive-timeout", 1.0),
)
"""One endpoint each: every phase in which a peer can hang, every way to break off, and endings without an end."""
TICK: Final = 0.1
"""Seconds between two batches."""
HOSTILE_SHARE: Final = 0.1
"""Of the events. Most of them wait behind breakers, which is what a backlog of dead customers looks like."""
CALL_TIMEOUT: Final = 10.0
RETRY_DELAY: Final = 0.1
GIVE_UP_AFTER: Final = 60.0
"""Seconds after `stop()` in which the last batches must be answered."""


class HostilePeers:
    """`with HostilePeers() as peers: … peers.urls …`, by behaviour."""

    def __init__(self) -> None:
        self._loop = LoopThread()
        self._stack = AsyncExitStack()
        self.urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._loop.__enter__()
        self._loop.call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(self._stack.aclose())
        self._loop.__exit__()

    async def _open(self) -> None:
        for behaviour, seconds in HOSTILE:
            server = await self._stack.enter_async_context(HostileServer(behaviour, seconds=seconds))
            self.urls[behaviour] = server.url.rstrip("/")


class SteadyProducer:
    """`with SteadyProducer(url, good_types, hostile_types, rate) as producer:` posts `rate` events a second until `stop()`."""

    def __init__(self, url: str, good: list[str], hostile: list[str], rate: float) -> None:
        self._address = urlsplit(url).netloc
        self._good = good
        self._hostile = hostile
        self._rate = rate
        self._dice = random.Random(20_261_201)
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self.accepted_good: set[str] = set()
        """Public ids of the events for good endpoints that the service answered for: none may be lost."""
        self.accepted_hostile = 0
        self.refused: list[Any] = []
        """Answers that were no receipt and would not become one."""
        self.repeats = 0
        """Batches posted again: during restarts, and when the service said not now."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the batch under way, which is repeated until answered."""
        self._give_up_at = time.monotonic() + GIVE_UP_AFTER
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        number = 0
        connection: http.client.HTTPConnection | None = None
        while not self._stopping.wait(max(0.0, started + number / self._rate + TICK - time.monotonic())):
            # What a restart delayed is not made up for: the load stays what it was said to be.
            count = max(1, round(self._rate * TICK))
            started = max(started, time.monotonic() - number / self._rate - 1.0)
            batch = [self._event(number + place) for place in range(count)]
            number += count
            body = json.dumps({"events": [event for event, _ in batch]}).encode()
            while time.monotonic() < self._give_up_at:
                try:
                    if connection is None:
                        connection = http.client.HTTPConnection(self._address, timeout=CALL_TIMEOUT)
                    if self._post(connection, body, [is_good for _, is_good in batch]):
                        break
                except (OSError, http.client.HTTPException):
                    connection = None
                self.repeats += 1
                time.sleep(RETRY_DELAY)

    def _post(self, connection: http.client.HTTPConnection, body: bytes, good: list[bool]) -> bool:
        connection.request("POST", "/v1/events:batch", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status in (429, 503):
            return False
        if response.status != 202:
            self.refused.append(answer)
            return True
        if not all("event_id" in one for one in answer["results"]):
            return False
        for one, is_good in zip(answer["results"], good, strict=True):
            if is_good:
                self.accepted_good.add(one["event_id"])
            else:
                self.accepted_hostile += 1
        return True

    def _event(self, number: int) -> tuple[dict[str, Any], bool]:
        is_good = self._dice.random() >= HOSTILE_SHARE
        types = self._good if is_good else self._hostile
        event = {
            "type": self._dice.choice(types),
            "payload": {"number": number, "pad": "x" * self._dice.choice((100, 900, 4_000))},
            "idempotency_key": f"soak-{number}",
        }
        return event, is_good
