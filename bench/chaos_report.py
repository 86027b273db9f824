"""What to read when a chaos run went wrong: the rows of what was lost or doubled, and the last words of the workers.

It judges nothing; `bench.chaos` and its test do. Every list is cut, since a broken run may have thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import asyncpg

from gatepost.delivery.ids import EVENT, decode_id

EXAMPLES: Final = 5
"""Of each kind."""
LAST_LINES: Final = 15
"""Of each worker's log."""

_WAITING: Final = "SELECT lane, due_at, attempt, part FROM gp_delivery WHERE event_id = $1"
_ATTEMPTS: Final = (
    "SELECT number, outcome, reason, status, worker FROM gp_attempt WHERE event_id = $1 ORDER BY started_at"
)


async def examples(url: str, names: Iterable[str]) -> list[str]:
    """What the database knows about some of these (written `event id/endpoint`), a line each."""
    lines = []
    connection = await asyncpg.connect(url)
    try:
        for name in sorted(names)[:EXAMPLES]:
            number = decode_id(EVENT, name.partition("/")[0])
            waiting = [dict(row) for row in await connection.fetch(_WAITING, number)]
            attempts = [tuple(row) for row in await connection.fetch(_ATTEMPTS, number)]
            lines.append(f"{name}: waits as {waiting or 'nothing'}; attempts {attempts}")
    finally:
        await connection.close()
    return lines


def last_words(directory: Path) -> str:
    """The end of each log in a directory."""
    parts = []
    for path in sorted(directory.glob("*.log")):
        lines = path.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        parts.append("\n".join([f"--- {path.name}", *lines]))
    return "\n".join(parts)


def report(result: dict[str, Any], directory: Path) -> str:
    """All of it, as the message of a failed assertion."""
    figures = "\n".join(f"{name}: {value}" for name, value in result.items())
    return f"the chaos run went wrong\n{figures}\n{last_words(directory)}"
