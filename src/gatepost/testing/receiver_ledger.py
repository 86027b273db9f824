"""What a test receiver remembers: one count per `webhook-id`, arrival stamps, totals, and a file a crash test can read.

It records and counts; it decides no answer (`receiver_http` does) and opens no socket. Built by `receiver.Receiver`, which
also flushes the file, so that the request path never waits for the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

FLUSH_INTERVAL: Final = 0.05
"""Seconds between flushes of the ledger file: a reader lags by this much, and a request costs no system call."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it arrived. Header names are in lower case; of a repeated name the last one counts."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    arrived_ns: int
    """Monotonic nanoseconds of the first byte; comparable between processes of one machine."""


@dataclass(frozen=True, slots=True)
class ReceiverStatistics:
    """Totals since the start. `duplicates` are requests whose `webhook-id` had been seen before."""

    requests: int
    unique_ids: int
    duplicates: int
    unidentified: int
    """Requests without a `webhook-id`."""
    bad_signatures: int
    connections: int
    """Accepted since the start."""
    open_connections: int
    malformed: int
    """Requests that could not be parsed or were too large."""


class Ledger:
    """Counts requests. `by_id` grows by one entry for each id: pass `keep_ids=False` where memory is measured."""

    def __init__(self, *, keep_ids: bool = True, stamps: bool = False, keep: int = 0, path: Path | None = None) -> None:
        self.by_id: dict[str, int] = {}
        self.first_ns: dict[str, int] = {}
        """Monotonic nanoseconds of the first byte of the first request, by id; filled with `stamps=True`."""
        self.received: deque[ReceivedRequest] = deque(maxlen=keep)
        self.requests = 0
        self.identified = 0
        self.bad_signatures = 0
        self.malformed = 0
        self.connections = 0
        self.open_connections = 0
        self.wants_requests = keep > 0
        self._keep_ids = keep_ids
        self._stamps = stamps
        self._lines: list[bytes] = []
        # Appended to, never truncated: a restarted receiver goes on with the same ledger.
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path is not None else None

    def record(self, webhook_id: bytes | None, arrived_ns: int, status: int) -> int:
        """Count one complete request; returns how often its id has now been seen (0 without an id, or without ids kept)."""
        self.requests += 1
        if webhook_id is None:
            return 0
        self.identified += 1
        if self._file is not None:
            self._lines.append(b"%b %d %d\n" % (webhook_id, arrived_ns, status))
        if not self._keep_ids:
            return 0
        key = webhook_id.decode("latin-1")
        seen = self.by_id.get(key, 0) + 1
        self.by_id[key] = seen
        if self._stamps and seen == 1:
            self.first_ns[key] = arrived_ns
        return seen

    @property
    def has_file(self) -> bool:
        """Whether there is a file to flush."""
        return self._file is not None

    def flush(self) -> None:
        """Write what has gathered to the file: `webhook-id`, arrival in monotonic ns and the status answered, a line each."""
        if self._file is not None and self._lines:
            self._file.write(b"".join(self._lines))
            self._lines.clear()

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def statistics(self) -> ReceiverStatistics:
        """A snapshot of the totals."""
        unique = len(self.by_id)
        return ReceiverStatistics(
            requests=self.requests,
            unique_ids=unique,
            duplicates=self.identified - unique if self._keep_ids else 0,
            unidentified=self.requests - self.identified,
            bad_signatures=self.bad_signatures,
            connections=self.connections,
            open_connections=self.open_connections,
            malformed=self.malformed,
        )
