"""Writes small SVG pictures: text, rectangles and lines in one frame, with no script, font or style sheet of their own. Pure.

They show in a README and in a mail as they are. It knows no data and lays nothing out: `deadline.simulate_svg` and the plot of
`gatepost capacity` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr


def document(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """The whole file: a white page with `title` as its first line and for screen readers, and `parts` on it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14">'
        f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#ffffff"/>'
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, words: str, *, bold: bool = False, anchor: str = "start", colour: str = "#000000") -> str:
    """One line of text; `anchor` is start, middle or end."""
    more = ' font-weight="bold"' if bold else ""
    more += "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += "" if colour == "#000000" else f' fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>'


def line(points: Sequence[tuple[float, float]], colour: str, *, width: float = 1.0, dashed: bool = False) -> str:
    """A line through `points`."""
    path = " ".join(f"{x:.6g},{y:.6g}" for x, y in points)
    more = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{more}/>'


def inline(width: int, height: int, label: str, css: str, parts: Iterable[str], *, stretch: bool = False) -> str:
    """A drawing inside a page, coloured by the page's style sheet; `label` is for screen readers. `stretch`: it fills its place in
    width, whatever that is."""
    ratio = ' preserveAspectRatio="none"' if stretch else ""
    return (
        f'<svg class="{escape(css)}" viewBox="0 0 {width} {height}"{ratio} role="img" '
        f"aria-label={quoteattr(label)}>{''.join(parts)}</svg>"
    )


def block(x: float, y: float, width: float, height: float, css: str, title: str) -> str:
    """A rectangle with a class of the page's style sheet, and a title that shows when pointed at."""
    return (
        f'<rect class="{escape(css)}" x="{x:.5g}" y="{y:.5g}" width="{width:.5g}" height="{height:.5g}">'
        f"<title>{escape(title)}</title></rect>"
    )


def words(x: float, y: float, text: str, css: str, *, anchor: str = "start") -> str:
    """A line of text with a class of the page's style sheet."""
    more = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{escape(css)}" x="{x:.5g}" y="{y:.5g}"{more}>{escape(text)}</text>'
