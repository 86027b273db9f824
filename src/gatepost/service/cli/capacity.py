"""`gatepost capacity`: how many slots and processes a load needs, what a timeout costs, how long a backlog lasts.

It computes, or simulates, or reads the figures of a running service first; it changes nothing anywhere. Exit 1 when a check
that was asked for (`--visibility`, `--window`) does not hold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gatepost.admission import capacity as sizing
from gatepost.admission.capacity import Fit, Load, Plan
from gatepost.admission.capacity_sim import Progress as OnProgress
from gatepost.admission.capacity_sim import Trial, TrialResult, try_out
from gatepost.delivery.retry import describe_seconds
from gatepost.errors import ConfigurationError
from gatepost.service.capacity_metrics import Reading, read_metrics
from gatepost.service.cli.api_client import ApiClient, KeyOption
from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_json, print_line, print_table

SHOW_FROM: Final = 200_000
"""Arrivals from which a simulation takes long enough, about a second, to show a bar."""
OVER_MAX: Final = 3_600.0


def capacity(
    rate: Annotated[float | None, typer.Option(help="Deliveries per second, bad ones included.")] = None,
    mean: Annotated[float | None, typer.Option(help="Mean seconds that a healthy attempt takes.")] = None,
    cv2: Annotated[
        float, typer.Option(help="Squared coefficient of variation of that: 1 exponential, 4-10 with a long tail.")
    ] = 1.0,
    bad_share: Annotated[
        float | None, typer.Option(help="Share of deliveries for endpoints that hang: 0.02 is 2 %.")
    ] = None,
    bad_timeout: Annotated[
        float | None, typer.Option(help="Seconds that such an attempt takes: the read timeout, mostly.")
    ] = None,
    bad_endpoints: Annotated[int, typer.Option(help="How many endpoints hang: a cap holds for each.")] = 1,
    attempts: Annotated[int, typer.Option(help="Attempts that each bad delivery makes.")] = 1,
    cap: Annotated[int | None, typer.Option(help="Attempts in flight per endpoint; not given: no cap.")] = None,
    slots: Annotated[int | None, typer.Option(help="Attempts in flight over all processes.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes, of which one may be lost.")] = None,
    process_rate: Annotated[
        float, typer.Option(help="Deliveries per second that one process manages; measure: gatepost bench pipeline.")
    ] = sizing.PROCESS_RATE,
    compare_timeout: Annotated[
        float | None, typer.Option(help="Show what it costs when bad attempts take this long instead.")
    ] = None,
    backlog: Annotated[int | None, typer.Option(help="Deliveries that wait: how long until they are done?")] = None,
    hosts: Annotated[int | None, typer.Option(help="Hosts in flight at once, for the size of the pool.")] = None,
    max_per_host: Annotated[int, typer.Option(help="Connections per host.")] = 8,
    max_connections: Annotated[int, typer.Option(help="Connections of one process.")] = 200,
    attempt_budget: Annotated[
        float, typer.Option(help="Seconds of connect, write and read timeout together, for the checks.")
    ] = 18.0,
    visibility: Annotated[
        float | None, typer.Option(help="Check that an attempt ends before the queue gives its work away.")
    ] = None,
    window: Annotated[
        float | None, typer.Option(help="Check that --attempts at their longest fit this many seconds.")
    ] = None,
    from_metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="Take what is not given from the /metrics of this URL (read twice), a saved page, or two of them in order."
        ),
    ] = None,
    over: Annotated[float, typer.Option(help="Seconds between the two readings.")] = 10.0,
    api_key: KeyOption = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Also try it, delivery by delivery.")] = False,
    duration: Annotated[float, typer.Option(help="Seconds to simulate, from an empty system.")] = 60.0,
    warm_up: Annotated[float, typer.Option(help="Seconds at its beginning that do not count.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 1,
    svg: Annotated[Path | None, typer.Option(help="Also draw who waits by the number of slots into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """How many slots and processes a load needs, what hanging endpoints take from it, how long a backlog lasts."""
    if from_metrics:
        found = _read(from_metrics, rate, over, api_key)
        rate, mean = found.rate if rate is None else rate, found.mean if mean is None else mean
        bad_share = found.bad_share if bad_share is None else bad_share
        bad_timeout = found.bad_timeout if bad_timeout is None else bad_timeout
        cap, slots = cap if cap is not None else found.cap, slots if slots is not None else found.slots
    if rate is None or mean is None:
        fail("write --rate (deliveries per second) and --mean (seconds of a healthy attempt), or --from-metrics URL")
    load = Load(
        rate=rate,
        mean=mean,
        cv2=cv2,
        bad_share=bad_share or 0.0,
        bad_timeout=bad_timeout or 0.0,
        bad_endpoints=bad_endpoints,
        bad_attempts=sizing.attempts_each(1.0, attempts),
    )
    planned = sizing.plan(load, cap=cap, slots=slots, processes=processes, process_rate=process_rate)
    document = _document(planned) | {"processes": processes, "cap": cap, "load": asdict(load)}
    other = None
    if compare_timeout is not None:
        if not load.bad_share:
            fail("--compare-timeout needs --bad-share: a longer timeout costs nothing while nobody runs into it")
        other = sizing.plan(
            replace(load, bad_timeout=compare_timeout),
            cap=cap,
            slots=slots,
            processes=processes,
            process_rate=process_rate,
        )
        document["compare"] = {"bad_timeout": compare_timeout} | _document(other)
    drain = None
    if backlog is not None:
        drain = sizing.drain_seconds(load, planned, backlog, processes=processes, process_rate=process_rate)
        document["drain_seconds"] = _finite(drain)
    if hosts is not None:
        each = math.ceil(planned.slots / (processes or 1))
        pool = sizing.fit_pool(each, hosts, max_per_host=max_per_host, max_connections=max_connections)
        document["pool"] = {"workers": each, "hosts": hosts} | asdict(pool)
    checks: dict[str, Fit] = {}
    if visibility is not None:
        checks["visibility"] = sizing.fit_visibility(attempt_budget, visibility)
    if window is not None:
        checks["window"] = sizing.fit_window(attempt_budget, attempts, window)
    document["checks"] = {name: asdict(check) for name, check in checks.items()}
    tried = None
    if simulate:
        trial = Trial(load=load, slots=planned.slots, cap=cap, duration=duration, warm_up=warm_up, seed=seed)
        with _bar(trial.arrivals >= SHOW_FROM) as show:
            tried = try_out(trial, show)
        document["simulation"] = asdict(tried) | {"duration": duration, "warm_up": warm_up, "seed": seed}
    if svg is not None:
        _draw(svg, load, planned, cap, tried)
    if as_json:
        print_json(document)
    else:
        _print(load, planned, processes, tried)
        if other is not None and compare_timeout is not None:
            _print_comparison(load, planned, compare_timeout, other)
        _print_answers(load, planned, slots, processes)
        if drain is not None and backlog is not None:
            _print_drain(backlog, drain)
        if hosts is not None:
            print_line(
                f"pool: of {each} attempts of a process, hosts in flight {hosts}: {pool.busy} have a connection, {pool.waiting} wait"
            )
        _print_checks(checks)
        if svg is not None:
            print_line(f"drawn in {svg}")
    raise typer.Exit(DONE if all(check.fits for check in checks.values()) else NOT)


class _Found:
    """What the metrics said."""

    __slots__ = ("bad_share", "bad_timeout", "cap", "mean", "rate", "slots")

    def __init__(self, rate: float, reading: Reading) -> None:
        self.rate = rate
        self.mean: float | None = reading.mean
        self.bad_share: float = reading.bad_share
        self.bad_timeout: float = reading.bad_timeout
        self.slots: int | None = reading.slots
        self.cap: int | None = reading.cap


def _read(sources: list[str], rate: float | None, over: float, api_key: str | None) -> _Found:
    if len(sources) > 2 or (len(sources) == 2 and any(_is_url(source) for source in sources)):
        fail("--from-metrics: write one URL, one file, or two files, the earlier one first")
    if not 0.0 < over <= OVER_MAX:
        fail(f"--over {over:g}: write seconds, at most {OVER_MAX:g}")
    source = sources[0]
    first = read_metrics(_page(source, api_key))
    if rate is not None and len(sources) == 1:
        reading = first  # shares and means since the start are enough
    elif _is_url(source):
        sys.stderr.write(f"gatepost: reading again in {over:g} s\n")
        Event().wait(over)
        reading = read_metrics(_page(source, api_key)).since(first)
    elif len(sources) == 2:
        reading = read_metrics(_page(sources[1], api_key)).since(first)
    else:
        fail("one saved page has no rate: write --rate too, or two pages and --over SECONDS between them")
    if not reading.attempts or reading.mean is None:
        fail("no healthy attempt was counted: read a service that delivers, or a longer time (--over)", NOT)
    return _Found(rate if rate is not None else reading.attempts / over, reading)


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _page(source: str, api_key: str | None) -> str:
    if not _is_url(source):
        try:
            return Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--from-metrics {source}: {error}")
    parts = urlsplit(source)
    path = parts.path if parts.path.strip("/") else "/metrics"
    return ApiClient(f"{parts.scheme}://{parts.netloc}", api_key).text(path)


def _document(planned: Plan) -> dict[str, Any]:
    """The plan for programs; null stands for a time without end."""
    return {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(planned).items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(load: Load, planned: Plan, processes: int | None, tried: TrialResult | None) -> None:
    low, high = planned.headroom
    rows: list[tuple[str, str, str | None]] = [
        ("busy slots", f"{planned.offered_erlangs:,.1f}", None if tried is None else f"{tried.busy:,.1f}"),
        ("  of healthy deliveries", f"{planned.healthy_slots:,.1f}", None),
        ("  of bad ones" + (" (at their cap)" if planned.cap_binds else ""), f"{planned.bad_slots:,.1f}", None),
        ("slots looked at", f"{planned.slots:,}", None),
        ("deliveries that wait", f"{planned.p_wait:.2%}", None if tried is None else f"{tried.p_wait:.2%}"),
        ("wait, mean", _time(planned.mean_wait), None if tried is None else _time(tried.mean_wait)),
        ("wait, p99", _time(planned.p99_wait), None if tried is None else _time(tried.p99_wait)),
        (
            "healthy throughput",
            f"{planned.throughput_healthy:,.1f}/s of {load.healthy_rate:,.1f}/s",
            None if tried is None else f"{tried.throughput_healthy:,.1f}/s",
        ),
        ("recommended, one shared pool", f"{planned.slots_recommended:,}" + _spare(processes), None),
        ("  rule of 30-50 % headroom", f"{low:,} to {high:,}", None),
    ]
    if tried is not None:
        rows += [("waiting at the end", "-", f"{tried.backlog:,}"), ("shed at the cap", "-", f"{tried.shed:,}")]
        print_table(("", "formula", "simulated"), rows)
    else:
        print_table(("", ""), [row[:2] for row in rows])


def _spare(processes: int | None) -> str:
    return f" (one of {processes} processes may be lost)" if processes is not None and processes > 1 else ""


def _print_comparison(load: Load, planned: Plan, timeout: float, other: Plan) -> None:
    print_line("")
    print_table(
        ("bad attempts take", f"{load.bad_timeout:g} s", f"{timeout:g} s"),
        [
            ("busy slots", f"{planned.offered_erlangs:,.1f}", f"{other.offered_erlangs:,.1f}"),
            ("  of bad ones", f"{planned.bad_slots:,.1f}", f"{other.bad_slots:,.1f}"),
            ("wait, p99", _time(planned.p99_wait), _time(other.p99_wait)),
            ("healthy throughput", f"{planned.throughput_healthy:,.1f}/s", f"{other.throughput_healthy:,.1f}/s"),
            ("recommended", f"{planned.slots_recommended:,}", f"{other.slots_recommended:,}"),
        ],
    )
    more = other.slots_recommended - planned.slots_recommended
    if other.cap_binds and planned.cap_binds:
        print_line(
            "the cap makes the timeout cost nothing in slots; such an endpoint still gets fewer attempts through"
        )
    else:
        print_line(f"{timeout:g} s instead of {load.bad_timeout:g} s costs {more:+,} slots")


def _print_answers(load: Load, planned: Plan, slots: int | None, processes: int | None) -> None:
    own = planned.own_queues
    print_line("")
    if not planned.stable:
        print_line(
            f"{planned.slots:,} slots are not enough: the queue grows without end, and "
            f"{planned.throughput_healthy / load.healthy_rate if load.healthy_rate else 0.0:.0%} of healthy deliveries get through"
        )
        if not planned.cap_binds and load.bad_share:
            fits = sizing.timeout_that_fits(load, planned.slots)
            print_line(
                f"without a cap bad attempts may take {fits:.2f} s at most; with --cap 6 they hold 6 slots an endpoint"
            )
    elif slots is not None:
        print_line(f"{slots:,} slots are enough")
    if planned.bad_slots and not planned.cap_binds and load.bad_endpoints < own.processes:
        print_line(
            f"an endpoint belongs to one process: without a cap {planned.bad_slots / load.bad_endpoints:,.0f} slots of that one "
            "hang, whatever the others have free"
        )
    chosen = f"{own.processes} processes"
    if processes is None:
        chosen += f" (by CPU: {planned.processes_recommended}, one of them to spare)"
    print_line(
        f"{chosen}, each with its own part of the queue: {own.slots_each_one_lost:,} slots each, {own.slots:,} in all, "
        f"keep {1 - sizing.WAIT_GOAL:.0%} from waiting with one lost; {own.slots_each:,} each with none lost"
    )


def _print_drain(backlog: int, drain: float) -> None:
    if math.isfinite(drain):
        print_line(f"{backlog:,} waiting deliveries are done after {describe_seconds(drain)}, while the load goes on")
    else:
        print_line(f"{backlog:,} waiting deliveries are never done: the load leaves nothing for them")


def _print_checks(checks: dict[str, Fit]) -> None:
    words = {
        "visibility": "an attempt's longest time against the visibility timeout",
        "window": "all attempts against the window",
    }
    for name, check in checks.items():
        verdict = "fits" if check.fits else "DOES NOT FIT"
        print_line(f"{words[name]}: {check.needed:g} s, {check.allowed:g} s allowed: {verdict}")


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "without end"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1.0 else f"{seconds:,.1f} s"


def _draw(svg: Path, load: Load, planned: Plan, cap: int | None, tried: TrialResult | None) -> None:
    from gatepost.service.cli.capacity_svg import draw

    picture = draw(load, planned, cap, None if tried is None else tried.p_wait)
    try:
        svg.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--svg {svg}: {error.strerror}; write a file in a directory that exists") from error


@contextmanager
def _bar(long: bool) -> Iterator[OnProgress | None]:
    """A bar on standard error; none for a short run, and none where nobody looks."""
    if not long or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("simulating"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
