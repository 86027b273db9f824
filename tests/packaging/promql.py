"""Reads as much PromQL as a check of names needs: every selector with its matchers, and every label that is grouped or joined by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gatepost.service.metric_table import METRICS, Kind

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<range>\[[^\]]*\])|(?P<number>[0-9][0-9.]*[smhdwy]?)"""
    r"""|(?P<name>[$a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<symbol>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},]))"""
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan"}
OUTSIDE = {"job", "instance"}
"""Labels that Prometheus adds."""
SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Selector:
    """One series selector."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""


@dataclass(frozen=True, slots=True)
class Read:
    """What an expression names."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]
    """Grouped or joined by."""


def read(expression: str) -> Read:
    """Raises `ValueError` for what is not understood."""
    tokens = list(_tokens(expression))
    selectors: list[Selector] = []
    labels: set[str] = set()
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        place += 1
        if kind != "name" or text.lower() in _WORDS or text.startswith("$"):
            continue
        if text in _GROUPING:
            if following == "(":
                end = tokens.index(("symbol", ")"), place)
                labels |= {word for sort, word in tokens[place:end] if sort == "name"}
                place = end + 1
        elif following == "(" or following in ("by", "without"):
            continue  # a function or an aggregation
        elif following == "{":
            end = tokens.index(("symbol", "}"), place)
            selectors.append(Selector(text, tuple(_matchers(tokens[place + 1 : end]))))
            place = end + 1
        else:
            selectors.append(Selector(text, ()))
    return Read(tuple(selectors), frozenset(labels))


def labels_of(metric: str) -> frozenset[str] | None:
    """Labels of a metric as Prometheus has it; None when there is no such metric."""
    for described in METRICS.values():
        names = [described.name + suffix for suffix in SUFFIXES.get(described.kind, ("",))]
        if metric in names:
            bucket = {"le"} if metric.endswith("_bucket") else set()
            return frozenset({*described.all_labels, *OUTSIDE, *bucket})
    return frozenset(OUTSIDE) if metric == "up" else None


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    expression = expression.strip()
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"not understood: {expression[at : at + 40]!r}")
        at = found.end()
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]


def _matchers(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    words = [text for _, text in tokens if text != ","]
    for label, operator, value in zip(words[::3], words[1::3], words[2::3], strict=True):
        yield label, operator, value[1:-1]
