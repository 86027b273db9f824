"""Draws an endpoint's limits over time: the breaker as a band, read timeout, cap and attempts in flight, deliveries and backlog.

Pure: samples in, SVG out. Called by `bench.timeline`; the shapes are `gatepost.svg`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gatepost.svg import document, line, rectangle, text

WIDTH: Final = 820
LEFT: Final = 150
RIGHT: Final = WIDTH - 24
TOP: Final = 96
ROOM: Final = 84
"""Height of one plot."""
GAP: Final = 26
SMOOTHED: Final = 4
"""Samples over which deliveries per second are taken: one alone holds a handful."""
_STATES: Final = {"closed": "#7fb069", "open": "#b3001e", "probing": "#e6b31e", "ramping": "#1e6fb3"}
_CURVE, _OTHER, _GRID, _MARK = "#1e6fb3", "#b3541e", "#dddddd", "#777777"


@dataclass(frozen=True, slots=True)
class Spell:
    """From `at` seconds on the endpoint answers after `seconds`."""

    name: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One look; counts are since the start."""

    at: float
    breaker: str
    cause: str | None
    read_timeout: float
    """Seconds, for the next ordinary attempt."""
    cap: int
    in_flight: int
    attempts: int
    delivered: int
    waiting: int


def draw(samples: Sequence[Sample], spells: Sequence[Spell]) -> str:
    """The picture as text. There must be two samples at least."""
    ends = samples[-1].at
    rates = _rates(samples)

    def across(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * at / ends

    height = TOP + 22 + 3 * (GAP + ROOM) + 44
    parts = [_legend()]
    for spell, until in zip(spells, [*(one.at for one in spells[1:]), ends], strict=True):
        if spell.at >= ends:
            break
        parts.append(line([(across(spell.at), TOP - 18), (across(spell.at), height - 36)], _MARK, dashed=True))
        words = f"{spell.name}" + (f", {spell.seconds:g} s" if spell.seconds < 60 else "")
        parts.append(text(across((spell.at + min(until, ends)) / 2), TOP - 8, words, anchor="middle", colour=_MARK))
    parts.append(text(12, TOP + 16, "breaker", bold=True))
    parts += _band(samples, across)
    top = TOP + 22 + GAP
    for title, curves in (
        ("read timeout", [(_CURVE, [one.read_timeout for one in samples])]),
        (
            "in flight",
            [(_CURVE, [float(one.cap) for one in samples]), (_OTHER, [float(one.in_flight) for one in samples])],
        ),
        ("events", [(_CURVE, rates), (_OTHER, [float(one.waiting) for one in samples])]),
    ):
        parts += _plot(top, title, curves, [one.at for one in samples], across)
        top += ROOM + GAP
    parts += [
        text(12, TOP + 22 + GAP + 36, "seconds", colour=_CURVE),
        text(12, TOP + 22 + 2 * GAP + ROOM + 36, "allowed", colour=_CURVE),
        text(12, TOP + 22 + 2 * GAP + ROOM + 54, "now", colour=_OTHER),
        text(12, TOP + 22 + 3 * GAP + 2 * ROOM + 36, "delivered per s", colour=_CURVE),
        text(
            12,
            TOP + 22 + 3 * GAP + 2 * ROOM + 54,
            f"waiting, of {max(one.waiting for one in samples):,}",
            colour=_OTHER,
        ),
    ]
    for at in range(0, int(ends) + 1, 10):
        parts.append(text(across(at), height - 16, f"{at} s", anchor="middle"))
    return document(
        WIDTH, height, "One endpoint turns slow, then dead, then well again (all limits at a quarter)", parts
    )


def _rates(samples: Sequence[Sample]) -> list[float]:
    rates = [0.0]
    for place in range(1, len(samples)):
        before = samples[max(0, place - SMOOTHED)]
        rates.append((samples[place].delivered - before.delivered) / max(1e-9, samples[place].at - before.at))
    return rates


def _legend() -> str:
    return "".join(
        rectangle(LEFT + 110 * place, 40, 14, 14, colour) + text(LEFT + 20 + 110 * place, 52, name)
        for place, (name, colour) in enumerate(_STATES.items())
    )


def _band(samples: Sequence[Sample], across: Callable[[float], float]) -> list[str]:
    parts, start = [], samples[0]
    for sample in [*samples[1:], None]:
        if sample is not None and sample.breaker == start.breaker:
            continue
        end = samples[-1].at if sample is None else sample.at
        parts.append(
            rectangle(
                round(across(start.at), 1), TOP, round(across(end) - across(start.at), 1), 22, _STATES[start.breaker]
            )
        )
        if start.breaker == "open" and start.cause is not None and across(end) - across(start.at) > 72:
            parts.append(text(across(start.at) + 4, TOP + 16, start.cause, colour="#ffffff"))
        if sample is not None:
            start = sample
    return parts


def _plot(
    top: int,
    title: str,
    curves: Sequence[tuple[str, Sequence[float]]],
    times: Sequence[float],
    across: Callable[[float], float],
) -> list[str]:
    """The first curve has the scale at the left; each goes up to its own most."""
    parts = [text(12, top + 16, title, bold=True)]
    most = max(*curves[0][1], 1e-9)
    for share in (0.0, 0.5, 1.0):
        y = top + ROOM * (1 - share)
        parts.append(line([(LEFT, y), (RIGHT, y)], _GRID))
        parts.append(text(LEFT - 8, y + 5, f"{most * share:.3g}", anchor="end"))
    shared = title == "in flight"
    for colour, values in reversed(curves):
        scale = most if shared else max(*values, 1e-9)
        points = [
            (across(at), top + ROOM * (1 - min(1.0, value / scale))) for at, value in zip(times, values, strict=True)
        ]
        parts.append(line(_stepped(points), colour, width=1.5))
    return parts


def _stepped(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Level from sample to sample, without the points in the middle of a level stretch."""
    kept = [points[0]]
    for earlier, later in pairwise(points):
        if later[1] != earlier[1]:
            kept += [(round(later[0], 1), earlier[1]), (round(later[0], 1), round(later[1], 1))]
    kept.append(points[-1])
    return kept
