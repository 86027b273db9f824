"""Draws how many deliveries wait by the number of slots, with the load and each way to size it marked. Pure.

Called by `gatepost capacity --svg`; the figures are `admission.capacity`'s.
"""

from __future__ import annotations

import math
from typing import Final

from gatepost.admission.capacity import Load, Plan, plan
from gatepost.svg import document, line, rectangle, text

WIDTH: Final = 760
HEIGHT: Final = 420
LEFT: Final = 64
TOP: Final = 120
BOTTOM: Final = HEIGHT - 56
RIGHT: Final = WIDTH - 24
POINTS: Final = 80
"""Points of the curve: smooth at this width, and each is a walk through all slots."""
_CURVE, _GRID, _BAND = "#1e6fb3", "#dddddd", "#eef4e6"


def draw(load: Load, planned: Plan, cap: int | None, simulated: float | None = None) -> str:
    """The picture as text; `simulated` is the share that waited in a simulation with the plan's slots."""
    marks = [
        (planned.offered_erlangs, "load", "#b3541e"),
        (float(planned.slots_recommended), "recommended", "#1e6fb3"),
        (float(planned.slots), "slots looked at", "#000000"),
    ]
    first = 0.9 * planned.offered_erlangs
    last = max(1.1 * max(place for place, _, _ in marks), 1.05 * planned.headroom[1])

    def across(slots: float) -> float:
        return LEFT + (RIGHT - LEFT) * (slots - first) / (last - first)

    def up(share: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * share

    low, high = (across(slots) for slots in planned.headroom)
    parts = [
        rectangle(low, TOP, high - low, BOTTOM - TOP, _BAND),
        text((low + high) / 2, BOTTOM - 8, "30-50 % headroom", anchor="middle", colour="#5a7a2e"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line([(LEFT, up(share)), (RIGHT, up(share))], _GRID))
        parts.append(text(LEFT - 8, up(share) + 5, f"{share:.0%}", anchor="end"))
    places = sorted({max(1, math.ceil(first + (last - first) * step / POINTS)) for step in range(POINTS)})
    curve = [(across(slots), up(plan(load, cap=cap, slots=slots).p_wait)) for slots in places]
    parts.append(line(curve, _CURVE, width=2.0))
    for row, (place, words, colour) in enumerate(marks):
        parts.append(line([(across(place), TOP), (across(place), BOTTOM)], colour, dashed=True))
        parts.append(rectangle(12, 40 + 22 * row, 14, 14, colour))
        parts.append(text(32, 52 + 22 * row, f"{words}: {place:,.0f}"))
    if simulated is not None:
        parts.append(rectangle(across(planned.slots) - 4, up(simulated) - 4, 8, 8, "#b3001e"))
        parts.append(rectangle(260, 40, 14, 14, "#b3001e") + text(280, 52, f"simulated: {simulated:.1%} wait"))
    for place in (places[0], (places[0] + places[-1]) // 2, places[-1]):
        parts.append(text(across(place), BOTTOM + 20, f"{place:,}", anchor="middle"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "slots over all processes", anchor="middle"))
    title = f"Share of deliveries that wait for a slot: {load.rate:g}/s, {load.mean:g} s each"
    if load.bad_share:
        title += f", {load.bad_share:.1%} hang for {load.bad_timeout:g} s" + (f", cap {cap}" if cap is not None else "")
    return document(WIDTH, HEIGHT, title, parts)
