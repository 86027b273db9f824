"""The page of deadlines: headers, limits, defaults and metrics, from the code that holds them. Used by `docs.build_reference`."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from types import ModuleType
from typing import Any

import gatepost.deadline
from docs.tables import generated_note, table
from gatepost.deadline import estimate, gate, policy, value, wire
from gatepost.deadline.metrics import FAMILIES, LABELS_MAX, OTHER

HEADERS = (
    (
        wire.REQUEST_TIMEOUT,
        "in, out",
        '`1*8DIGIT [ "." 1*9DIGIT ]` seconds',
        "expired",
        "Read by default; sent floored to the millisecond, as the shortest decimal.",
    ),
    (
        wire.GRPC_TIMEOUT,
        "in, out",
        "`1*8DIGIT` and one of `H M S m u n`",
        "expired",
        "Read by default; sent when asked for (`grpc`, `both`), never beside gRPC itself.",
    ),
    (
        wire.ENVOY_TIMEOUT,
        "in",
        "`1*10DIGIT` milliseconds",
        "says nothing",
        "Read when `formats` names it.",
    ),
    (
        policy.DEFAULT_POLICY.queue_header or "",
        "in",
        '`[ "t=" ]` time since 1970 in s, ms, µs or ns',
        "—",
        f"The age by the wall clock is taken off when it is between 0 and {wire.QUEUE_AGE_MAX:.0f} s, else counted as skew.",
    ),
    (
        wire.DEADLINE_EXCEEDED_HEADER,
        "answer",
        "`arrival`, `admission` or `handler`",
        "—",
        "Says where a server found that the time was over. The answer is a 504 in problem+json, without Retry-After.",
    ),
)
MODULES: tuple[ModuleType, ...] = (policy, value, wire, gate, estimate)


def render_deadline() -> str:
    """`deadline.md`."""
    default = policy.DEFAULT_POLICY
    parts = [
        "# `gatepost.deadline`",
        generated_note(),
        "A time budget that a caller sets once, and that every call, query and message below it gets the rest of. Needs the "
        "standard library only; servers, clients and exporters import what they need when they are imported themselves.",
        "## Names",
        table(("name", "what it is"), [(f"`{name}`", _first_sentence(name)) for name in gatepost.deadline.__all__]),
        "## Policy",
        "Fields of `DeadlinePolicy`; durations are seconds. There is no unlimited: a request without a budget gets `default`.",
        table(
            ("field", "default", "what for"),
            [
                (f"`{field.name}`", f"`{getattr(default, field.name)!r}`", _doc(policy, "DeadlinePolicy", field.name))
                for field in fields(default)
            ],
        ),
        "## Operations",
        'How one route is treated: `operations={"POST /render": Operation(need=0.12)}` of the ASGI and WSGI middleware, '
        '`"/package.Service/Method"` for gRPC.',
        table(
            ("field", "default", "what for"),
            [
                (f"`{field.name}`", f"`{field.default!r}`", _doc(gate, "Operation", field.name))
                for field in fields(gate.Operation)
            ],
        ),
        "## Headers",
        "Values are ASCII and must match whole; repeated and comma-joined ones count each, and the least of all readable ones "
        'in all headers holds. What cannot be read is counted and left out, or answered 400 with `on_invalid="reject"`.',
        table(("header", "direction", "form", "0 is", "notes"), [(f"`{row[0]}`", *row[1:]) for row in HEADERS]),
        "## Order on a server",
        "1. Read the headers; take the least readable value, else `default`.\n"
        "2. Take off the time in the proxy's queue and `allowance`; cut to `max`.\n"
        "3. Nothing left: 504, `arrival`.\n"
        "4. Less than `min_budget`, than the operation's `need`, or than the learned median: 504, `admission`. Only the last "
        f"is limited to {estimate.REFUSED_SHARE_MAX:.0%} of the requests of {estimate.WINDOW} s, and lets one through when "
        f"none was begun for {estimate.PROBE_EVERY:g} s; it needs {estimate.SAMPLES_MIN} samples.\n"
        "5. Run under the deadline. Over before the first byte: 504, `handler`, and the work is cut (on WSGI and sync gRPC it "
        "is asked, not cut). After the first byte the request has no deadline any more, unless the operation is `stream=True`: "
        "then it is cut and the connection closed. On gRPC a deadline that the caller gave covers the whole call.",
        "## Messages",
        '`Deadline.to_message()` gives `{"rt": seconds left, "at": wall time}`. On receipt the age is taken off; a message '
        f"from the future has age 0, and counts as skew from {wire.SKEW_TOLERANCE:g} s ahead.",
        "## Limits",
        table(("name", "value", "why"), _constants()),
        "## Metrics",
        f"Kept in plain objects (`COUNTERS`); `metrics.prometheus_collector()` exposes them, `Counters.observer` hears each. A "
        f"label has at most {LABELS_MAX} values, the rest is `{OTHER}`. `gatepost serve` shows them with `gatepost_` before "
        "each name.",
        table(
            ("metric", "type", "label", "what it says"),
            [
                (
                    f"`{metric}`",
                    "histogram" if family.histogram else "counter",
                    "" if family.label is None else f"`{family.label}`",
                    family.help,
                )
                for metric, family in FAMILIES.items()
            ],
        ),
        "Span attributes, through a hook such as `metrics.opentelemetry_span()`: `deadline.received_ms` on arrival; "
        "`deadline.remaining_ms` and `deadline.exceeded` at the end.",
    ]
    return "\n\n".join(parts) + "\n"


def _first_sentence(name: str) -> str:
    found: Any = getattr(gatepost.deadline, name)
    if name == "COUNTERS":
        return "The process's own counters."
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def _doc(module: ModuleType, owner: str, name: str) -> str:
    """The text under a field."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            return _text_after(node.body, name)
    raise AssertionError(f"{owner} is not in {module.__name__}")


def _constants() -> list[tuple[str, str, str]]:
    """Numbers of the modules that decide, with the reasoning that stands under each."""
    rows = []
    for module in MODULES:
        body = ast.parse(inspect.getsource(module)).body
        for node in body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.isupper():
                number = getattr(module, node.target.id)
                text = _text_after(body, node.target.id)
                if isinstance(number, int | float) and text and not node.target.id.startswith("_"):
                    rows.append((f"`{node.target.id}`", f"`{number!r}`", text))
    return rows


def _text_after(body: list[ast.stmt], name: str) -> str:
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    return " ".join(text.split())
    return ""
