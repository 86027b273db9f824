"""One endpoint that turns slow, then dead, then well again: what a real dispatcher's limits do about it, in a picture.

Publishes to a receiver on loopback through a dispatcher on SQLite, looks at the endpoint's limits four times a second, and draws
them (`--svg FILE`). The limits are the defaults with every time a quarter as long, so that a run takes 85 s.
`python -m bench.timeline`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from bench.rig import LOOPBACK
from bench.timeline_svg import Sample, Spell, draw
from gatepost.admission.adapt import AdaptRules
from gatepost.admission.breaker import BreakerRules
from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.dispatch.limits import LimitSettings
from gatepost.testing.receiver import Receiver

SCALE: Final = 0.25
"""Of every default that is a time."""
EVERY: Final = 0.25
RATE: Final = 20.0
"""Events per second: 200 responses, which put a learned timeout in force, come in ten seconds."""
WELL: Final = 0.05
SLOW: Final = 4.4 * SCALE
"""Longer than the timeout learned while it was well, which is 3 s at full scale."""
DEAD: Final = 3_600.0
SPELLS: Final = (
    Spell("well", 0.0, WELL),
    Spell("slow", 15.0, SLOW),
    Spell("dead", 40.0, DEAD),
    Spell("well again", 58.0, WELL),
)
SECONDS: Final = 85.0
PATH: Final = "/hook"


@dataclass(frozen=True, slots=True)
class Story:
    """What a run must show, read from its samples. Seconds from the start; None: it did not happen."""

    learned_at: float | None
    slow_opened_at: float | None
    slow_served_at: float | None
    dead_opened_at: float | None
    well_served_at: float | None
    attempts_while_dead: int
    in_flight_most: int


def quarter_limits() -> LimitSettings:
    """The defaults, four times as fast."""
    adapt, breaker = AdaptRules(), BreakerRules()
    return LimitSettings(
        AdaptRules(floor=adapt.floor * SCALE, ceiling=adapt.ceiling * SCALE),
        BreakerRules(
            slow_after=breaker.slow_after * SCALE,
            open_first=breaker.open_first * SCALE,
            open_max=breaker.open_max * SCALE,
            probe_limit=breaker.probe_limit * SCALE,
            steady_after=breaker.steady_after * SCALE,
        ),
    )


async def record(seconds: float, spells: Sequence[Spell], progress: Steps) -> list[Sample]:
    """Run it and look."""
    usual = ClientPolicy()
    policy = usual.evolve(connect_timeout=usual.connect_timeout * SCALE, read_timeout=usual.read_timeout * SCALE)
    settings = DispatcherSettings(limits=quarter_limits())
    with tempfile.TemporaryDirectory() as place:
        async with (
            Receiver() as receiver,
            Dispatcher.open(
                f"sqlite:///{Path(place) / 'timeline.db'}", policy=policy, egress=LOOPBACK, settings=settings, run=True
            ) as gp,
            asyncio.TaskGroup() as group,
        ):
            endpoint = await gp.endpoints.create(f"{receiver.url}{PATH}", probe=False, schedule=[0.0] + [30.0] * 20)
            started = SYSTEM_CLOCK.monotonic()
            published: list[str] = []
            load = group.create_task(_publish(gp, published))
            samples: list[Sample] = []
            left = list(spells)
            while (now := SYSTEM_CLOCK.monotonic() - started) < seconds:
                while left and now >= left[0].at:
                    spell = left.pop(0)
                    progress.begin(spell.name)
                    receiver.answer(PATH, delay=spell.seconds)
                known, counts = gp.limits.endpoint(endpoint.number), gp.statistics().attempts
                if known is not None:
                    samples.append(
                        Sample(
                            at=round(now, 3),
                            breaker=known.state.value,
                            cause=None if known.cause is None else known.cause.value,
                            read_timeout=known.read_timeout,
                            cap=known.cap,
                            in_flight=known.in_flight,
                            attempts=receiver.requests,
                            delivered=counts.delivered,
                            waiting=len(published) - counts.delivered,
                        )
                    )
                progress.done(EVERY)
                await asyncio.sleep(max(0.0, started + EVERY * (len(samples) + 1) - SYSTEM_CLOCK.monotonic()))
            load.cancel()
    return samples


async def _publish(gp: Dispatcher, published: list[str]) -> None:
    while True:
        published.append((await gp.publish("timeline.event", b"{}")).event_id)
        await asyncio.sleep(1.0 / RATE)


def story_of(samples: Sequence[Sample], spells: Sequence[Spell] = SPELLS) -> Story:
    """What happened when."""
    _, slow, dead, well = spells
    first = samples[0].read_timeout

    def when(after: float, until: float, state: str, *, moved: bool = False) -> float | None:
        for earlier, sample in pairwise(samples):
            if after <= sample.at < until and sample.breaker == state and (not moved or earlier.breaker != state):
                return sample.at
        return None

    return Story(
        learned_at=next((one.at for one in samples if one.read_timeout != first), None),
        slow_opened_at=when(slow.at, dead.at, "open"),
        slow_served_at=when(slow.at, dead.at, "closed", moved=True),
        dead_opened_at=when(dead.at, well.at, "open"),
        well_served_at=when(well.at, samples[-1].at + 1, "closed", moved=True),
        attempts_while_dead=sum(
            max(0, later.attempts - earlier.attempts)
            for earlier, later in pairwise(samples)
            if dead.at <= earlier.at < well.at
        ),
        in_flight_most=max(one.in_flight for one in samples),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when the run shows what it is there to show."""
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the run into this file")
    chosen = parser.parse_args(arguments)
    with steps(SECONDS) as progress:
        samples = asyncio.run(record(SECONDS, SPELLS, progress))
    story = story_of(samples)
    if chosen.svg is not None:
        chosen.svg.write_text(draw(samples, SPELLS), encoding="utf-8")
    if chosen.json:
        print_json({"story": asdict(story), "samples": [asdict(sample) for sample in samples]})
    else:
        print_table(
            "One endpoint, seconds from the start",
            ("what", "at"),
            [(name, value) for name, value in asdict(story).items()],
        )
        print_line("every limit that is a time is a quarter of its default")
        print_machine()
    return 0 if None not in asdict(story).values() else 1


if __name__ == "__main__":
    sys.exit(main())
