"""The console's drawings: how attempts ended by the hour, where an attempt's time went, what a breaker did. Text in, SVG out.

Colours come from the style sheet, by class, so that they follow the page into the dark; each drawing has a label for those who
do not see it, and the page beside it has the numbers as a table. Pure; called by the endpoint's and the delivery's page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from gatepost import svg
from gatepost.admission.outcome_hours import HOURS_MAX, WORDS, Hour
from gatepost.dispatch.policy_watch import Turn
from gatepost.service.console.filters import duration
from gatepost.wire.phases import PHASES

HOUR_US: Final = 3_600_000_000
WIDTH: Final = 720
MIX_HEIGHT: Final = 120
LABELS_HEIGHT: Final = 16
STRIP_HEIGHT: Final = 22
BAR_UNITS: Final = 1_000
"""Width of a phase bar in its own units; the page stretches it."""
BAR_HEIGHT: Final = 12
SLIVER: Final = 3.0
"""Units that a phase which took any time gets at least, to be seen."""


def outcome_mix(hours: Sequence[Hour], now: int) -> Markup:
    """A column an hour over the last day, its parts by how attempts ended."""
    this = now // HOUR_US
    highest = max((sum(hour.counts) for hour in hours), default=0) or 1
    step = WIDTH / HOURS_MAX
    parts = []
    for hour in hours:
        column = hour.began_at // HOUR_US - this + HOURS_MAX - 1
        bottom = float(MIX_HEIGHT)
        for word, count in zip(WORDS, hour.counts, strict=True):
            if count:
                height = max(1.0, count / highest * (MIX_HEIGHT - 14))
                bottom -= height
                title = f"{_clock(hour.began_at)} {word}: {count:,}"
                parts.append(svg.block(column * step + 1, bottom, step - 2, height, f"o-{word}", title))
    parts.append(svg.words(WIDTH, 10, f"{highest:,} an hour at most", "axis", anchor="end"))
    for column in range(0, HOURS_MAX, 4):
        at = (this - HOURS_MAX + 1 + column) * HOUR_US
        parts.append(svg.words(column * step + 1, MIX_HEIGHT + 13, _clock(at), "axis"))
    label = f"Attempts by the hour over the last {HOURS_MAX} hours, at most {highest:,} an hour"
    return Markup(svg.inline(WIDTH, MIX_HEIGHT + LABELS_HEIGHT, label, "chart", parts))  # noqa: S704 - svg escapes


def phase_bar(phases: Mapping[str, float], longest: float) -> Markup:
    """Where an attempt's time went; `longest` is the time (seconds) that fills the bar."""
    parts = []
    left = 0.0
    for phase in PHASES:
        seconds = phases.get(phase.value, 0.0)
        if seconds > 0:
            width = min(max(SLIVER, seconds / longest * BAR_UNITS), BAR_UNITS - left) if longest > 0 else SLIVER
            parts.append(
                svg.block(left, 0, width, BAR_HEIGHT, f"p-{phase.value}", f"{phase.value} {duration(seconds)}")
            )
            left += width
    told = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in phases.items()) or "no phase was reached"
    return Markup(svg.inline(BAR_UNITS, BAR_HEIGHT, told, "bar", parts, stretch=True))  # noqa: S704 - svg escapes


def breaker_strip(turns: Sequence[Turn], now: int) -> Markup:
    """The breaker's states from the first turn that is known until now."""
    if not turns:
        return Markup()
    began = turns[0].at
    whole = max(1, now - began)
    parts = []
    for turn, ended in zip(turns, [*(later.at for later in turns[1:]), now], strict=True):
        left = (turn.at - began) / whole * WIDTH
        width = max(2.0, (ended - turn.at) / whole * WIDTH)
        title = f"{_clock(turn.at)} {turn.state} for {duration((ended - turn.at) / 1e6)}"
        parts.append(svg.block(min(left, WIDTH - 2), 0, width, STRIP_HEIGHT, f"b-{turn.state}", title))
    parts.append(svg.words(0, STRIP_HEIGHT + 13, _clock(began), "axis"))
    parts.append(svg.words(WIDTH, STRIP_HEIGHT + 13, "now", "axis", anchor="end"))
    label = f"The breaker over the last {duration(whole / 1e6)}, now {turns[-1].state}"
    return Markup(svg.inline(WIDTH, STRIP_HEIGHT + LABELS_HEIGHT, label, "chart", parts))  # noqa: S704 - svg escapes


def _clock(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%H:%M}"
