"""Break a fleet on PostgreSQL in every way we know, count what that did, and check the queue's invariants one by one.

Workers in processes of their own deliver while they are killed (`kill -9`), frozen beyond their lease (SIGSTOP), cut from the
database (a proxy that loses the answers to commits, or goes silent), and while the database restarts without warning. Events are
published with idempotency keys, some of them twice at once, a tenth of the attempts fails. `python -m bench.chaos`;
`--scenario rolling` restarts workers one by one, `--scenario takeover` times how long an orphaned endpoint waits.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.chaos_fleet import DOOMED, DOOMED_EVENTS, ORDERED, SCHEDULE, Field, Fleet, Plan, Worker, prepared
from bench.chaos_invariants import Evidence, as_dicts, judge, overlaps
from bench.chaos_overlaps import AFTERMATH, ALL, Fault
from bench.chaos_report import examples
from bench.chaos_rows import Watch, count_events, read_attempts, read_states
from bench.machine import raise_file_limit
from bench.postgres import MeasuredServer, measured_server
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.delivery.ids import EVENT, encode_id
from gatepost.store.rows import PART_LEASE, DeadFilter
from gatepost.testing.cut_proxy import CutProxy

FROZEN: Final = PART_LEASE + 4.0
"""Seconds of SIGSTOP or of a silent network: the lease is over, and the part has another owner."""
DRAIN_LIMIT: Final = 120.0
"""Seconds until everything must have arrived after the last fault."""
BREAKER_HOLDS: Final = 108.0
"""Seconds that an endpoint may wait for its breaker: it opens, and one probe fails (30 s and 60 s, a fifth more by lot)."""
OVERLAPS_SHOWN: Final = 20
TARGET_DOUBLED: Final = 0.005


async def waiting_rows(server: MeasuredServer) -> int:
    """Deliveries still in the queue, counted exactly."""
    connection = await asyncpg.connect(server.url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM gp_delivery"))
    finally:
        await connection.close()


async def drained(server: MeasuredServer) -> bool:
    """Wait until nothing waits any more."""
    limit = time.monotonic() + DRAIN_LIMIT
    while time.monotonic() < limit:
        if await waiting_rows(server) == 0:
            return True
        await asyncio.sleep(0.25)
    return False


async def dead_ids(server: MeasuredServer) -> set[str]:
    """Events given up, after the attempts of their schedule."""
    connection = await asyncpg.connect(server.url)
    try:
        return {encode_id(EVENT, row[0]) for row in await connection.fetch("SELECT event_id FROM gp_dead")}
    finally:
        await connection.close()


async def replayed(field_: Field) -> tuple[int, int]:
    """Let events die, replay them, and wait: when that was (UTC microseconds), and how many dead letters of theirs are left."""
    where = DeadFilter(endpoint=field_.numbers[DOOMED])
    await field_.load.doom(DOOMED_EVENTS)
    if not await drained(field_.server):
        return time.time_ns() // 1_000, DOOMED_EVENTS
    field_.receiver.broken.discard(DOOMED)
    at = time.time_ns() // 1_000
    await field_.load.replay(where)
    await drained(field_.server)
    names = [f"{field_.load.published.ids[seq]}" for seq, at in field_.load.published.endpoints.items() if at == DOOMED]
    return at, len((await dead_ids(field_.server)).intersection(names))


# -------------------------------------------------------------------------------------------------- scenarios


async def chaos(plan: Plan, server: MeasuredServer, progress: Steps) -> dict[str, Any]:
    """All faults, spread over the time that the events take; then drain and compare."""
    async with prepared(plan, server) as field_:
        watch = Watch(server.url, field_.numbers)
        watching = asyncio.ensure_future(watch.run())
        faults = plan.faults()
        gap = plan.gap or plan.events / plan.rate / (len(faults) + 1)
        began = time.monotonic()
        loading = asyncio.ensure_future(field_.load.run(plan.events))
        ending: list[asyncio.Task[Any]] = []
        done: list[Fault] = []
        try:
            for number, fault in enumerate(faults):
                await asyncio.sleep(max(0.0, began + gap * (number + 1) - time.monotonic()))
                progress.begin(f"{fault}, {number + 1} of {len(faults)}")
                done.append(await _apply(fault, field_, ending, number))
                progress.done()
            await loading
            await asyncio.gather(*ending)  # what was killed runs again, what was frozen goes on
        finally:
            loading.cancel()
            for task in ending:
                task.cancel()
        progress.begin("drain")
        field_.proxy.restore()
        empty = await drained(field_.server)
        again = await replayed(field_)
        watching.cancel()
        progress.done()
        result = await _verdict(field_, plan, empty)
        evidence = await gather_evidence(field_, done, watch, again)
        findings = judge(evidence)
        result["faults"] = [{"fault": one.kind, "at": round(one.at - began, 1), "pid": one.pid} for one in done]
        result["invariants"] = as_dicts(findings)
        met = overlaps(evidence)
        result["overlaps"] = dict(Counter(one.kind for one in met))
        result["overlap_examples"] = [f"at {one.at - began:.1f} s, {one}" for one in met[:OVERLAPS_SHOWN]]
        result["ok"] = result["ok"] and all(one.held for one in findings)
        return result


async def gather_evidence(field_: Field, faults: list[Fault], watch: Watch, again: tuple[int, int]) -> Evidence:
    """What there is to see after a run."""
    published, arrivals = field_.load.published, field_.receiver.arrivals
    connection = await asyncpg.connect(field_.server.url)
    try:
        ours = {stored: number for number, stored in field_.numbers.items()}
        states = await read_states(connection, ours)
        lines = await read_attempts(connection, ours)
        stored_events = await count_events(connection)
        left = int(await connection.fetchval("SELECT count(*) FROM gp_delivery"))
    finally:
        await connection.close()
    names = {seq: f"{event}/{published.endpoints[seq]}" for seq, event in published.ids.items()}
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for seq, ready in published.ready.items():
        ahead = published.ahead.get(seq)
        free = ready if ahead is None else max(ready, arrivals.done.get(ahead, ready))
        if seq in arrivals.begun:
            waits[published.endpoints[seq]].append((free, arrivals.begun[seq]))
    doomed = [name for seq, name in names.items() if published.endpoints[seq] == DOOMED]
    return Evidence(
        expected=set(names.values()),
        states=states,
        successes=arrivals.successes,
        overlaps=arrivals.overlaps,
        starts=arrivals.log,
        holds=watch.all_holds,
        wall_minus_monotonic=time.time() - time.monotonic(),
        ordered=frozenset(range(ORDERED)),
        out_of_order=arrivals.out_of_order,
        chains={
            place: [arrivals.successes[names[seq]][0][0] for seq in chain if arrivals.successes.get(names[seq])]
            for place, chain in published.chains.items()
        },
        waits=waits,
        early=arrivals.early,
        timed=published.timed,
        accepted=len(published.ids),
        stored_events=stored_events,
        keys_with_two_ids=published.split,
        attempts=lines,
        attempts_max=len(SCHEDULE),
        held=BREAKER_HOLDS if field_.breakers else 0.0,
        replayed_at=again[0],
        unmarked=watch.unmarked,
        looks=watch.looks,
        left_waiting=left,
        replayed=DOOMED_EVENTS,
        replay_arrived=sum(name in arrivals.successes for name in doomed),
        replay_dead=again[1],
        faults=faults,
    )


async def _apply(kind: str, field_: Field, ending: list[asyncio.Task[Any]], number: int) -> Fault:
    """Do it, and say when and to whom."""
    at = time.monotonic()
    pid = await _strike(kind, field_, ending, number)
    lasts = FROZEN if kind in ("freeze", "silence") else AFTERMATH if kind in ("restart", "cut") else 0.0
    until = time.monotonic() if kind == "kill" else at + lasts
    return Fault(kind, at, until, pid)


async def _strike(fault: str, field_: Field, ending: list[asyncio.Task[Any]], number: int) -> int:
    fleet = field_.fleet
    if fault == "kill":
        while not fleet.living:  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.1)
        victim = fleet.living[number % len(fleet.living)]
        await fleet.kill(victim)
        ending.append(asyncio.ensure_future(fleet.start(victim.number)))
        return victim.process.pid
    if fault == "restart":
        await asyncio.to_thread(field_.server.server.restart, "immediate")
        return ALL
    if fault == "freeze":
        # Not the first, which is the one behind the proxy, unless it is the only one; and none twice at a time.
        while not (able := [one for one in fleet.running if one.number or len(fleet.workers) == 1]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        victim = able[0]
        fleet.frozen.add(victim.process.pid)
        victim.process.send_signal(signal.SIGSTOP)
        ending.append(asyncio.ensure_future(_thaw(fleet, victim)))
        return victim.process.pid
    if fault == "cut":
        field_.proxy.cut_answer(b"COMMIT" if number % 2 else b"gp_delivery")
    else:
        field_.proxy.black_hole()
        ending.append(asyncio.ensure_future(_hear(field_.proxy)))
    return next(one.process.pid for one in fleet.workers if one.number == 0)


async def _thaw(fleet: Fleet, worker: Worker) -> None:
    await asyncio.sleep(FROZEN)
    fleet.frozen.discard(worker.process.pid)
    if worker.process.returncode is None:
        worker.process.send_signal(signal.SIGCONT)


async def _hear(proxy: CutProxy) -> None:
    await asyncio.sleep(FROZEN)
    proxy.restore()


async def _verdict(field_: Field, plan: Plan, empty: bool) -> dict[str, Any]:
    published, arrivals = field_.load.published, field_.receiver.arrivals
    dead = await dead_ids(field_.server)
    names = {f"{event}/{published.endpoints[seq]}" for seq, event in published.ids.items()}
    lost = [name for name in names if name not in arrivals.counts and name.partition("/")[0] not in dead]
    doubled = sum(count - 1 for count in arrivals.counts.values())
    strangers = [name for name in arrivals.counts if name not in names]
    share = doubled / max(1, len(names))
    return {
        "workers": plan.workers,
        "accepted": len(published.ids),
        "published_twice": published.repeated,
        "keys_with_two_ids": published.split,
        "publishes_repeated": published.retried,
        "starts": arrivals.starts,
        "arrived": len(arrivals.counts),
        "dead": len(dead),
        "lost": len(lost),
        "unknown": len(strangers),
        "doubled": doubled,
        "doubled_share": round(share, 5),
        "over_cap": arrivals.over_cap,
        "out_of_order": arrivals.out_of_order,
        "drained": empty,
        "faults": [],
        "lost_examples": await examples(field_.server.url, lost),
        "doubled_examples": await examples(
            field_.server.url, [name for name, count in arrivals.counts.items() if count > 1]
        ),
        # A frozen process cannot see that its time is over: what it had begun may overlap its successor (invariant I2).
        "ok": not lost
        and not strangers
        and empty
        and published.split == 0
        and arrivals.out_of_order == 0
        and (plan.freezes > 0 or (arrivals.over_cap == 0 and share <= TARGET_DOUBLED)),
    }


async def rolling(plan: Plan, server: MeasuredServer, progress: Steps) -> dict[str, Any]:
    """Restart every worker in turn, drained, under load: nothing lost, nothing twice."""
    async with prepared(plan, server) as field_:
        stop = asyncio.Event()
        loading = asyncio.ensure_future(field_.load.run(None, stop))
        seconds = []
        try:
            await asyncio.sleep(3.0)
            for number in range(plan.workers):
                progress.begin(f"restart worker {number + 1} of {plan.workers}")
                began = time.monotonic()
                worker = next(one for one in field_.fleet.workers if one.number == number)
                await field_.fleet.drain(worker)
                await field_.fleet.start(number)
                seconds.append(round(time.monotonic() - began, 2))
                await asyncio.sleep(3.0)
                progress.done()
            stop.set()
            await loading
        finally:
            loading.cancel()
        progress.begin("drain")
        empty = await drained(field_.server)
        progress.done()
        result = await _verdict(field_, plan, empty)
        result["restart_seconds"] = seconds
        result["ok"] = result["ok"] and result["doubled"] == 0
        return result


async def takeover(plan: Plan, server: MeasuredServer, progress: Steps) -> dict[str, Any]:
    """Kill a worker, then drain one: how long until its endpoints get something again, unordered and ordered ones."""
    async with prepared(plan, server) as field_:
        stop = asyncio.Event()
        loading = asyncio.ensure_future(field_.load.run(None, stop))
        try:
            await asyncio.sleep(5.0)
            progress.begin("kill")
            killed = await _gap(field_, how="kill")
            progress.done()
            progress.begin("drained stop")
            stopped = await _gap(field_, how="drain")
            progress.done()
            stop.set()
            await loading
        finally:
            loading.cancel()
        empty = await drained(field_.server)
        result = await _verdict(field_, plan, empty)
        return {**result, "after_kill": killed, "after_drained_stop": stopped}


async def _gap(field_: Field, how: str) -> dict[str, Any]:
    """Seconds from the end of a worker to the first start at each endpoint it owned; endpoints get an event all the time."""
    victim = field_.fleet.workers[-1]
    owners = await _owners(field_)
    arrivals = field_.receiver.arrivals
    if how == "kill":
        await field_.fleet.kill(victim)
    else:
        await field_.fleet.drain(victim)
    ended = time.monotonic()
    owned = {number for number, owner in owners.items() if owner == victim.process.pid}
    limit = ended + PART_LEASE + 15.0
    first: dict[int, float] = {}
    before = {number: arrivals.last_at.get(number, 0.0) for number in owned}
    while len(first) < len(owned) and time.monotonic() < limit:
        for number in owned - first.keys():
            at = arrivals.last_at.get(number, 0.0)
            if at > max(ended, before[number]):
                first[number] = at - ended
        await asyncio.sleep(0.01)
    await field_.fleet.start(victim.number)
    result: dict[str, Any] = {"endpoints": len(owned), "without_an_end": len(owned) - len(first)}
    for name, group in (
        ("ordered", [seconds for number, seconds in first.items() if number < ORDERED]),
        ("unordered", [seconds for number, seconds in first.items() if number >= ORDERED]),
    ):
        if group:
            result[f"{name}_median_s"] = round(statistics.median(group), 2)
            result[f"{name}_max_s"] = round(max(group), 2)
    return result


async def _owners(field_: Field) -> dict[int, int]:
    """The process that owns each endpoint's part, by our number; nodes are named after their process."""
    connection = await asyncpg.connect(field_.server.url)
    try:
        rows = await connection.fetch("SELECT part, owner FROM gp_part WHERE owner IS NOT NULL")
        parts = int(await connection.fetchval("SELECT count(*) FROM gp_part"))
    finally:
        await connection.close()
    owner = {row["part"]: int(str(row["owner"]).partition("-")[0]) for row in rows}
    return {number: owner.get(stored % parts, 0) for number, stored in field_.numbers.items()}


# ------------------------------------------------------------------------------------------------- reporting


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    names = (
        "workers",
        "accepted",
        "published_twice",
        "keys_with_two_ids",
        "publishes_repeated",
        "starts",
        "arrived",
        "dead",
        "lost",
        "unknown",
        "doubled",
        "doubled_share",
        "over_cap",
        "out_of_order",
    )
    print_table("What came of it", ("", "count"), [(name.replace("_", " "), result[name]) for name in names])
    for name in ("restart_seconds", "after_kill", "after_drained_stop"):
        if name in result:
            print_line(f"{name.replace('_', ' ')}: {result[name]}")
    if result["faults"]:
        print_line("Faults: " + ", ".join(f"{one['fault']} at {one['at']} s" for one in result["faults"]))
    for line in result["lost_examples"]:
        print_line(f"lost: {line}")
    show_invariants(result.get("invariants", ()))
    if "overlaps" in result:
        counts = ", ".join(f"{count} {kind}" for kind, count in result["overlaps"].items())
        print_line(f"Overlaps of processes: {counts or 'none'}")
    for line in result.get("overlap_examples", ()):
        print_line(f"overlap {line}")
    print_line("good" if result["ok"] else "[red]NOT GOOD[/red]")
    print_machine()


def show_invariants(findings: Sequence[dict[str, Any]]) -> None:
    """A line each, and examples of what broke one."""
    if not findings:
        return
    print_table(
        "Invariants",
        ("", "promise", "", "looked at", "broken"),
        [
            (one["invariant"], one["promise"], _word(one), one["looked_at"] or "-", one["broken"] or "-")
            for one in findings
        ],
    )
    for one in findings:
        if one["note"]:
            print_line(f"{one['invariant']}: {one['note']}")
        if one["elsewhere"]:
            print_line(f"{one['invariant']} is shown by {one['elsewhere']}")
        for example in one["examples"]:
            print_line(f"[red]{one['invariant']} broken:[/red] {example}")


def _word(finding: dict[str, Any]) -> str:
    if not finding["held"]:
        return "[red]broken[/red]"
    return "held" if finding["looked_at"] else "elsewhere"


SCENARIOS: Final = {"chaos": chaos, "rolling": rolling, "takeover": takeover}


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when anything was lost, doubled beyond the target, above a cap or out of order."""
    parser = argparse.ArgumentParser("bench.chaos", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), default="chaos")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--events", type=int, help="default 30,000; 2,000 with --quick")
    parser.add_argument("--rate", type=float, default=500.0, help="events a second")
    parser.add_argument("--kills", type=int, help="default 8; 2 with --quick")
    parser.add_argument("--restarts", type=int, help="of the database; default 1; 1 with --quick")
    parser.add_argument("--freezes", type=int, default=0, help="SIGSTOP beyond the lease")
    parser.add_argument("--cuts", type=int, default=4, help="answers of commits lost")
    parser.add_argument("--silences", type=int, default=0, help="networks that go silent beyond the lease")
    parser.add_argument("--breakers", action="store_true", help="let the workers' breakers hold failing endpoints")
    parser.add_argument("--directory", help="where the database goes")
    parser.add_argument("--logs", type=Path, help="an existing directory for what the workers say")
    options = parser.parse_args(argv)
    raise_file_limit()
    scenario = options.scenario
    plan = Plan(
        workers=options.workers,
        events=options.events or (2_000 if options.quick else 30_000),
        rate=options.rate,
        kills=_or(options.kills, 2 if options.quick else 8),
        restarts=_or(options.restarts, 1),
        freezes=options.freezes,
        cuts=options.cuts,
        silences=options.silences,
        failing=0.1 if scenario == "chaos" else 0.0,
        breakers=options.breakers,
        logs=options.logs,
    )
    total = {
        "chaos": plan.kills + plan.restarts + plan.freezes + plan.cuts + plan.silences + 1,
        "rolling": plan.workers + 1,
        "takeover": 2,
    }[scenario]
    with measured_server(options.directory) as server, steps(total) as progress:
        result = asyncio.run(SCENARIOS[scenario](plan, server, progress))
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["ok"] else 1


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


if __name__ == "__main__":
    sys.exit(main())
