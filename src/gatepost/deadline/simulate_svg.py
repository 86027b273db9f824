"""Draws a simulated comparison as one SVG: time held, dead work and load on the last hop, static beside propagated. Pure.

Plain rectangles and text, no script and no font of its own, so that it shows in a README and in a mail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from gatepost.deadline.simulate import Comparison, Mode

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
        parts.append(f'<text x="12" y="{y + ROW}" font-weight="bold">{escape(label)}</text>')
        for mode, value, text in bars:
            width = max(1, round(BAR_MAX * value / longest))
            parts.append(
                f'<rect x="{LABEL}" y="{y + 4}" width="{width}" height="{ROW - 8}" fill="{_COLOURS[mode]}"/>'
                f'<text x="{LABEL + width + 8}" y="{y + ROW - 8}">{escape(text)}</text>'
            )
            y += ROW
        y += 14
    title = (
        f"{chain.hops} services, budget {chain.budget:g} s, static timeout {chain.timeout:g} s, "
        f"last hop {chain.slow:g} times slower, {chain.rate:g} requests/s"
    )
    legend = "".join(
        f'<rect x="{12 + 200 * index}" y="38" width="14" height="14" fill="{_COLOURS[mode]}"/>'
        f'<text x="{32 + 200 * index}" y="50">{text}</text>'
        for index, (mode, text) in enumerate(
            ((Mode.STATIC, "static timeouts"), (Mode.PROPAGATED, "propagated deadline"))
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        'font-family="sans-serif" font-size="14">'
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>{legend}{"".join(parts)}</svg>\n'
    )
