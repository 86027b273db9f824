"""Producers as they should be: batches with idempotency keys, repeated until answered, whatever happens to the service.

Threads in the benchmark's own process; they only post and remember what was accepted. Used by `bench.crash`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

THREADS: Final = 3
BATCH: Final = 100
PAD: Final = "x" * 900
"""Makes the payload about 1 KiB."""
CALL_TIMEOUT: Final = 10.0
RETRY_DELAY: Final = 0.05
"""Seconds before a batch is posted again."""
GIVE_UP_AFTER: Final = 30.0
"""Seconds after `stop()` in which the last batches must be answered."""
ARRIVALS_EVERY: Final = 0.1
"""Seconds between questions to the receiver how much has arrived."""


class Producers:
    """`with Producers(url, endpoints, arrived, depth=…) as producers:` posts until `stop()`.

    `arrived` says how many events have reached the receiver; producers wait while more than `depth` are under way.
    """

    def __init__(self, url: str, endpoints: int, arrived: Callable[[], int], *, depth: int) -> None:
        self._address = urlsplit(url).netloc
        self._endpoints = endpoints
        self._arrived = arrived
        self._depth = depth
        self._seen = 0
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.accepted: set[str] = set()
        """Public ids of the events that the service answered for: none of them may be lost."""
        self.refused: list[Any] = []
        """Answers that were no receipt and would not become one."""
        self._threads = [threading.Thread(target=self._produce, daemon=True) for _ in range(THREADS)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the batches under way, which are repeated until answered."""
        self._give_up_at = time.monotonic() + GIVE_UP_AFTER
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.refused:
            raise RuntimeError(f"refused: {self.refused[:3]}")

    def _watch(self) -> None:
        while not self._stopping.wait(ARRIVALS_EVERY):
            self._seen = self._arrived()

    def _produce(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._stopping.is_set():
            if len(self.accepted) - self._seen > self._depth:
                time.sleep(ARRIVALS_EVERY / 4)
                continue
            body = json.dumps({"events": [self._event(next(self._numbers)) for _ in range(BATCH)]}).encode()
            while time.monotonic() < self._give_up_at:
                try:
                    if connection is None:
                        connection = http.client.HTTPConnection(self._address, timeout=CALL_TIMEOUT)
                    if self._post(connection, body):
                        break
                except (OSError, http.client.HTTPException):
                    connection = None
                time.sleep(RETRY_DELAY)

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> bool:
        """True when every event of the batch has its receipt; the whole batch is repeated otherwise, under the same keys."""
        connection.request("POST", "/v1/events:batch", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status in (429, 503):
            return False
        if response.status != 202:
            self.refused.append(answer)
            return True
        receipts = [one for one in answer["results"] if "event_id" in one]
        with self._lock:
            self.accepted.update(one["event_id"] for one in receipts)
        return len(receipts) == BATCH

    def _event(self, number: int) -> dict[str, Any]:
        return {
            "type": f"crash.{number % self._endpoints}",
            "payload": {"number": number, "pad": PAD},
            "idempotency_key": f"crash-{number}",
        }
