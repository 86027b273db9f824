"""Draws a simulated comparison as one SVG: time held, dead work and load on the last hop, static beside propagated. Pure.

Plain rectangles and text, no script and no font of its own, so that it shows in a README and in a mail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatepost.deadline.simulate import Comparison, Mode
from gatepost.svg import document, rectangle, text

WIDTH: Final = 760
ROW: Final = 26
LABEL: Final = 250
BAR_MAX: Final = WIDTH - LABEL - 120
_COLOURS: Final = {Mode.STATIC: "#b3541e", Mode.PROPAGATED: "#1e6fb3"}


def draw(comparison: Comparison) -> str:
    """The picture as text."""
    chain, both = comparison.chain, (comparison.static, comparison.propagated)
    groups: list[tuple[str, Sequence[tuple[Mode, float, str]]]] = [
        ("users answered in time", [(one.mode, one.answered, f"{one.answered:.1%}") for one in both]),
        ("request held, p50", [(one.mode, one.held_p50, f"{one.held_p50:.2f} s") for one in both]),
        ("request held, p99", [(one.mode, one.held_p99, f"{one.held_p99:.2f} s") for one in both]),
        ("longest allowed by configuration", [(one.mode, one.worst_case, f"{one.worst_case:.2f} s") for one in both]),
        ("work done for nobody", [(one.mode, one.dead_share, f"{one.dead_share:.1%}") for one in both]),
        ("in progress in the last hop", [(one.mode, one.last_load, f"{one.last_load:.1f}") for one in both]),
    ]
    y = 62
    parts: list[str] = []
    for label, bars in groups:
        longest = max(max(value for _, value, _ in bars), 1e-9)
        parts.append(text(12, y + ROW, label, bold=True))
        for mode, value, words in bars:
            width = max(1, round(BAR_MAX * value / longest))
            parts.append(rectangle(LABEL, y + 4, width, ROW - 8, _COLOURS[mode]))
            parts.append(text(LABEL + width + 8, y + ROW - 8, words))
            y += ROW
        y += 14
    title = (
        f"{chain.hops} services, budget {chain.budget:g} s, static timeout {chain.timeout:g} s, "
        f"last hop {chain.slow:g} times slower, {chain.rate:g} requests/s"
    )
    legend = [
        rectangle(12 + 200 * index, 38, 14, 14, _COLOURS[mode]) + text(32 + 200 * index, 50, words)
        for index, (mode, words) in enumerate(
            ((Mode.STATIC, "static timeouts"), (Mode.PROPAGATED, "propagated deadline"))
        )
    ]
    return document(WIDTH, y, title, [*legend, *parts])
