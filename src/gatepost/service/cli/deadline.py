"""`gatepost deadline`: shows what deadlines are for. Runs no service and sends nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from gatepost.deadline.simulate import Chain, Comparison, simulate
from gatepost.deadline.simulate_svg import draw
from gatepost.errors import ConfigurationError
from gatepost.service.cli.output import JsonFlag, print_json, print_line, print_table

app = typer.Typer(help="Time budgets: what they save.", no_args_is_help=True)

_DEFAULTS = Chain()


@app.callback()
def _group() -> None:
    """Keeps `simulate` a word of its own although it is the only one."""


@app.command("simulate")
def simulate_chain(
    hops: Annotated[int, typer.Option(help="Services in the chain.")] = _DEFAULTS.hops,
    budget: Annotated[float, typer.Option(help="Seconds the user waits; the deadline handed down.")] = _DEFAULTS.budget,
    timeout: Annotated[float, typer.Option(help="Seconds of each hop's static timeout.")] = _DEFAULTS.timeout,
    work: Annotated[float, typer.Option(help="Median seconds of a hop's own work.")] = _DEFAULTS.work,
    spread: Annotated[float, typer.Option(help="Sigma of the logarithm of the work.")] = _DEFAULTS.spread,
    slow: Annotated[float, typer.Option(help="How many times slower the last hop is.")] = _DEFAULTS.slow,
    retries: Annotated[int, typer.Option(help="Further attempts of each hop.")] = _DEFAULTS.retries,
    rate: Annotated[float, typer.Option(help="Users' requests per second.")] = _DEFAULTS.rate,
    requests: Annotated[int, typer.Option(help="Requests to simulate.")] = _DEFAULTS.requests,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = _DEFAULTS.seed,
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """A chain of services with static timeouts at each hop, against one deadline that is handed down."""
    chain = Chain(
        hops=hops,
        budget=budget,
        timeout=timeout,
        work=work,
        spread=spread,
        slow=slow,
        retries=retries,
        rate=rate,
        requests=requests,
        seed=seed,
    )
    comparison = simulate(chain)
    if svg is not None:
        try:
            svg.write_text(draw(comparison), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"--svg {svg}: {error.strerror}; write a file in a directory that exists"
            ) from error
    if as_json:
        print_json(dataclasses.asdict(comparison))
        return
    _print(comparison)
    if svg is not None:
        print_line(f"drawn in {svg}")


def _print(comparison: Comparison) -> None:
    static, told = comparison.static, comparison.propagated
    print_table(
        ("", "static timeouts", "propagated deadline"),
        (
            ("users answered in time", f"{static.answered:.1%}", f"{told.answered:.1%}"),
            ("request held, p50", f"{static.held_p50:.3f} s", f"{told.held_p50:.3f} s"),
            ("request held, p99", f"{static.held_p99:.3f} s", f"{told.held_p99:.3f} s"),
            ("longest allowed", f"{static.worst_case:.2f} s", f"{told.worst_case:.2f} s"),
            ("work done for nobody", f"{static.dead_share:.1%}", f"{told.dead_share:.1%}"),
            ("in progress in the last hop", f"{static.last_load:.1f}", f"{told.last_load:.1f}"),
        ),
    )
    print_line("")
    print_table(
        ("hop", "calls", "work s", "for nobody s", "calls", "work s", "for nobody s", "refused"),
        (
            (
                number,
                f"{one.calls:.2f}",
                f"{one.busy:.3f}",
                f"{one.dead:.3f}",
                f"{other.calls:.2f}",
                f"{other.busy:.3f}",
                f"{other.dead:.3f}",
                f"{other.refused:.2f}",
            )
            for number, (one, other) in enumerate(zip(static.hops, told.hops, strict=True), start=1)
        ),
        title="per user's request: static, then propagated",
    )
