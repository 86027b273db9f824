"""`kill -9` of a real `gatepost serve` under load, again and again: is an accepted event ever lost, and what comes twice?

Producers post batches with idempotency keys over HTTP and repeat what was not answered; a receiver in another process keeps a
ledger by `webhook-id` across all kills. After each kill the file is copied as it lies and looked at: it must be sound, and
only deliveries that had arrived but were not settled in it may arrive again. `python -m bench.crash`.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.crash_load import Producers
from bench.crash_service import ServeProcess
from bench.machine import raise_file_limit
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.delivery.ids import EVENT, encode_id
from gatepost.testing.receiver_process import ReceiverProcess

ENDPOINTS: Final = 100
TARGET_RATE: Final = 2_000.0
"""Deliveries a second at each kill."""
DEPTH: Final = 6_000
"""Accepted and not yet arrived, at most: producers wait beyond it."""
RATE_WINDOW: Final = 1.0
"""Seconds over which the rate before a kill is taken."""
KILL_AFTER: Final = (1.5, 1.9, 2.3, 1.7, 2.1)
"""Seconds of load before each kill, in turn: kills must not fall in step with commits or checkpoints."""
LAST_BYTES: Final = 0.5
"""Seconds after a kill in which what had left the process still reaches the receiver's ledger."""
DRAIN_LIMIT: Final = 90.0
"""Seconds until everything accepted must have arrived in the end."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what the file and the ledger said."""

    rate: float
    """Deliveries a second just before."""
    waiting: int
    """Deliveries still in the file's queue."""
    unsettled: int
    """Of those, how many had arrived at the receiver: these may come again."""
    duplicates: int
    """Arrivals until the next kill of ids that had arrived before this one."""
    unexplained: int
    """Of those, how many were not unsettled at this kill: must be 0."""
    integrity: str
    restart_seconds: float


def look(database: Path, directory: Path) -> tuple[set[str], str]:
    """The public ids of events that wait in a file as a crash left it, and what SQLite says of its integrity. Reads a copy."""
    copy = directory / "look"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for part in database.parent.glob(f"{database.name}*"):
        if not part.name.endswith(".lock"):
            shutil.copy(part, copy / part.name)
    with closing(sqlite3.connect(copy / database.name)) as connection:
        waiting = {encode_id(EVENT, number) for (number,) in connection.execute("SELECT event_id FROM delivery")}
        integrity = "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check"))
    return waiting, integrity


def run(kills: int, directory: Path, target: float) -> dict[str, Any]:
    """Load, kill, look, restart; then drain and compare ledgers."""
    raise_file_limit()
    database = directory / "crash.db"
    done: list[Kill] = []
    with (
        ReceiverProcess("--ports", str(ENDPOINTS)) as receiver,
        steps(kills + 1) as progress,
        ServeProcess(database, directory) as service,
    ):
        service.start()
        service.create_endpoints([f"{url}/hooks" for url in receiver.urls])
        with Producers(service.url, ENDPOINTS, lambda: receiver.stats()["unique_ids"], depth=DEPTH) as producers:
            before: dict[str, int] = {}
            unsettled: set[str] = set()
            pending: dict[str, Any] | None = None
            for number in range(kills):
                progress.begin(f"kill {number + 1} of {kills}")
                time.sleep(KILL_AFTER[number % len(KILL_AFTER)])
                rate = _rate(receiver)
                service.kill()
                time.sleep(LAST_BYTES)
                ledger = receiver.ledger()
                if pending is not None:
                    done.append(_finish(pending, before, ledger, unsettled))
                waiting, integrity = look(database, directory)
                unsettled = {event_id for event_id in waiting if event_id in ledger}
                before = ledger
                seconds = service.start()
                pending = {
                    "rate": round(rate, 1),
                    "waiting": len(waiting),
                    "unsettled": len(unsettled),
                    "integrity": integrity,
                    "restart_seconds": round(seconds, 2),
                }
                progress.done()
            progress.begin("drain")
            time.sleep(2.0)
            producers.stop()
            drained = _wait_drained(receiver, producers)
            ledger = receiver.ledger()
            if pending is not None:
                done.append(_finish(pending, before, ledger, unsettled))
            progress.done()
        exit_code = service.stop()
        waiting, integrity = look(database, directory)
        lost = [event_id for event_id in producers.accepted if event_id not in ledger]
    return {
        "kills": [asdict(kill) for kill in done],
        "accepted": len(producers.accepted),
        "arrived": len(ledger),
        "arrived_more_than_once": sum(count > 1 for count in ledger.values()),
        "lost": len(lost),
        "drained": drained,
        "waiting_at_the_end": len(waiting),
        "integrity_at_the_end": integrity,
        "exit_code_of_the_last": exit_code,
        "slowest_rate_at_a_kill": min((kill.rate for kill in done), default=0.0),
        "target_rate": target,
        "ok": not lost
        and drained
        and integrity == "ok"
        and exit_code == 0
        and all(kill.integrity == "ok" and kill.unexplained == 0 for kill in done),
    }


def _finish(pending: dict[str, Any], before: dict[str, int], ledger: dict[str, int], unsettled: set[str]) -> Kill:
    again = {event_id: ledger[event_id] - count for event_id, count in before.items() if ledger[event_id] > count}
    unexplained = sum(count if event_id not in unsettled else count - 1 for event_id, count in again.items())
    return Kill(duplicates=sum(again.values()), unexplained=unexplained, **pending)


def _rate(receiver: ReceiverProcess) -> float:
    count, started = receiver.stats()["requests"], time.perf_counter()
    time.sleep(RATE_WINDOW)
    return (receiver.stats()["requests"] - count) / (time.perf_counter() - started)


def _wait_drained(receiver: ReceiverProcess, producers: Producers) -> bool:
    limit = time.monotonic() + DRAIN_LIMIT
    while time.monotonic() < limit:
        if receiver.stats()["unique_ids"] >= len(producers.accepted):
            return True
        time.sleep(0.2)
    return False


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print_table(
        f"kill -9 under load, {len(result['kills'])} times",
        (
            "kill",
            "per s",
            "waiting",
            "unsettled",
            "again",
            "wrong",
            "file",
            "start s",
        ),
        [
            (
                str(number),
                f"{kill['rate']:,.0f}",
                kill["waiting"],
                kill["unsettled"],
                kill["duplicates"],
                kill["unexplained"],
                kill["integrity"],
                kill["restart_seconds"],
            )
            for number, kill in enumerate(result["kills"], 1)
        ],
    )
    print_line(
        "unsettled: arrived, and still in the file's queue. again: arrived a second time. wrong: of those, not unsettled."
    )
    print_line(
        f"{result['accepted']:,} events accepted, {result['arrived']:,} arrived, {result['lost']} lost, "
        f"{result['arrived_more_than_once']:,} more than once: {'good' if result['ok'] else 'NOT GOOD'}."
    )
    if result["slowest_rate_at_a_kill"] < result["target_rate"]:
        print_line(f"A kill came at {result['slowest_rate_at_a_kill']:,.0f}/s, below {result['target_rate']:,.0f}/s.")
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when anything was lost, unexplained or broken."""
    parser = argparse.ArgumentParser("bench.crash", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--kills", type=int, help="how often (default 10; 3 with --quick)")
    parser.add_argument("--directory", type=Path, help="where the SQLite file goes")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gatepost-crash-", dir=options.directory) as place:
        result = run(options.kills or (3 if options.quick else 10), Path(place), TARGET_RATE)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
