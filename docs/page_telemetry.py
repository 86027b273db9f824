"""The page of telemetry: every metric from its table, the observations, and what else tells of a running service.

Used by `docs.build_reference`. A test compares the table with what a running service exposes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields

from docs.tables import generated_note, table
from gatepost import telemetry
from gatepost.service.metric_table import GROUPS, PROCESS, Described, Kind, Merge
from gatepost.service.metrics import DEFAULT_HOSTS

_OBSERVATIONS = (telemetry.AttemptObservation, telemetry.DeliveryObservation, telemetry.OperationalObservation)


def render_telemetry() -> str:
    """`telemetry.md`."""
    return "\n\n".join([*_metrics(), *_observations()]) + "\n"


def _metrics() -> Iterator[str]:
    yield "# Telemetry"
    yield generated_note()
    yield (
        "What a running service tells: [metrics](#metrics), and [observations](#observations) to observers of your own. "
        "[Trace and log](../how-to/trace-and-log.md) has spans and the log line; "
        "[the alert rules and the dashboard](../how-to/alert.md) read these metrics."
    )
    yield "## Metrics"
    yield (
        f"`GET /metrics`, in Prometheus or OpenMetrics text. Names of the field stand as they are known; all others begin with "
        f"`gatepost_`. At most {DEFAULT_HOSTS} hosts and as many endpoints (setting `metrics.hosts`) have a label of their "
        f"own, the busiest ones, for at least an hour at a time; the rest is `other`, which never falls. With several processes "
        f"there may be twice as many. One without an attempt for an hour loses its series. Beside every family by host there "
        f"is one without."
    )
    yield (
        f"With `gatepost serve --processes N` whichever process answers asks the others and merges: by the *sum*, by the *max*, as "
        f"a *ratio* of sums, or not at all: *each* has a label `{PROCESS}`, its number, since a sum of it would lie. "
        f"A process that does not answer within 250 ms has `gatepost_process_up` 0 and no gauges. Counters never fall while the "
        f"parent lives: those of a process that hangs are told as it last told them, and a successor goes on from "
        f"where its predecessor was. On its own port (settings `fleet.host`, `fleet.port`) a process tells its own figures; "
        f"`gatepost worker` has no other. Do not scrape both: they would be counted twice."
    )
    for title, group in GROUPS.items():
        yield f"### {title}"
        yield table(("metric", "type", "labels", "processes", "what it says"), [_row(one) for one in group])


def _row(one: Described) -> tuple[str, str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in one.all_labels)
    merge = "" if one.kind is Kind.INFO else "each" if one.merge is Merge.EACH else one.merge.value
    return f"`{one.name}`", one.kind.value, labels, merge, one.help


def _observations() -> Iterator[str]:
    yield "## Observations"
    yield (
        "What an `Observer` hears, given to `Dispatcher.open` or `DispatchClient`. They are frozen dataclasses of "
        "`gatepost.telemetry` and carry no secrets, header values or payloads. Observers are called on the event loop: they must be "
        "quick; one that raises is logged once. New fields may come at the end in minor versions."
    )
    for kind in _OBSERVATIONS:
        yield f"### {kind.__name__}"
        yield str(inspect.getdoc(kind))
        said = _field_docs(kind)
        rows = [(f"`{field.name}`", f"`{field.type}`", said.get(field.name, "")) for field in fields(kind)]
        yield table(("field", "type", ""), [tuple(_cell(value) for value in row) for row in rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _field_docs(kind: type) -> dict[str, str]:
    """The string under each field, as the source has it."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[before.target.id] = " ".join(str(after.value.value).split())
    return found
