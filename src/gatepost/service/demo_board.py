"""What the demo knows about each endpoint, and how it is shown: a live table on a terminal, plain lines elsewhere.

Facts come from the service's own log (one line per attempt) and metrics, and from the receiver's ledger. Used by
`service.demo`; it starts and sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

PLAIN_INTERVAL = 2.0
"""Seconds between two plain lines where there is no terminal."""
ENDS_SHOWN = 2


@dataclass(slots=True)
class Lane:
    """One endpoint of the demo."""

    name: str
    does: str
    host: str
    """`scheme://host:port`, its label in the metrics."""
    endpoint_id: str = ""
    published: int = 0
    attempts: int = 0
    delivered: int = 0
    retries: int = 0
    """Attempts after which a later one was arranged."""
    dead: int = 0
    shed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """How attempts ended, in the words of the classification."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Count one attempt line of the log."""
        self.attempts += 1
        if line["delivered"]:
            self.delivered += 1
        self.retries += line.get("decision") == "retry_at"
        self.dead += line.get("decision") == "dead_letter"
        self.ends[_end(line)] += 1

    @property
    def waiting(self) -> int:
        """Deliveries that are neither delivered nor given up."""
        return max(0, self.published - self.delivered - self.dead)

    @property
    def classified(self) -> str:
        """The commonest ends, in full."""
        return ", ".join(f"{end} x{count}" for end, count in self.ends.most_common(ENDS_SHOWN)) or "nothing yet"

    @property
    def commonest(self) -> str:
        """The commonest end in few characters: outcome and phase, or the status."""
        (end, _), *_ = self.ends.most_common(1) or [("-", 0)]
        outcome, _, rest = end.partition(" in ")
        return f"{outcome}/{rest.partition(' ')[0]}" if rest else end


def _end(line: Mapping[str, Any]) -> str:
    if line["outcome"] == "response":
        return f"status {line['status']}"
    return f"{line['outcome']} in {line['phase']} ({line['reason']}, {line['retry_safety']})"


@dataclass(frozen=True, slots=True)
class Latency:
    """From publishing to the first byte at the receiver, in milliseconds."""

    count: int
    p50: float
    p99: float


def latency(seconds: list[float]) -> Latency | None:
    """Percentiles of some delays; None when there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return Latency(len(ordered), ordered[last // 2] * 1e3, ordered[round(last * 0.99)] * 1e3)


class Board:
    """Shows the lanes while the demo runs."""

    def __init__(self, lanes: list[Lane], console: Console | None = None) -> None:
        self._lanes = lanes
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._said_at = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)

    def refresh(self, now: float, headline: str) -> None:
        """Show how things stand; `now` in monotonic seconds."""
        if self._live is not None:
            self._live.update(self._render(headline))
        elif now - self._said_at >= PLAIN_INTERVAL:
            self._said_at = now
            states = "  ".join(f"{lane.name}: {lane.delivered}/{lane.published}" for lane in self._lanes)
            self.say(f"{headline}  delivered  {states}")

    def introduce(self) -> None:
        """Who takes part."""
        for lane in self._lanes:
            self.say(f"{lane.name:<9} {lane.does}  ({lane.host})")

    def summary(self) -> None:
        """The table that stays, and how attempts were classified."""
        self._console.print(self._render("Summary"))
        for lane in self._lanes:
            self.say(f"{lane.name:<9} {lane.classified}")

    def _render(self, headline: str) -> RenderableType:
        # Fits into 80 columns; what each endpoint does was said before.
        table = Table(title=headline, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("endpoint")
        for name in ("delivered", "tries", "retries", "shed", "waiting", "dead"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("mostly", overflow="fold")
        for lane in self._lanes:
            good = lane.delivered == lane.published and lane.published > 0
            table.add_row(
                Text(lane.name, style="bold green" if good else "yellow"),
                f"{lane.delivered}/{lane.published}",
                str(lane.attempts),
                str(lane.retries),
                str(lane.shed),
                str(lane.waiting),
                str(lane.dead),
                lane.commonest,
            )
        return table
