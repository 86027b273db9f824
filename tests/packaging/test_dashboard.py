"""The dashboard loads without edits, and every query of it names metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.building import ROOT
from tests.packaging.promql import labels_of, read
from tests.packaging.test_alerts import KNOWN_VALUES

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
PROMTOOL = shutil.which("promtool")
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TYPES = {"row", "stat", "timeseries", "heatmap", "table"}
"""Panels that every Grafana has since version 9."""


def document() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


PANELS: list[dict[str, Any]] = document()["panels"]


def queries() -> Iterator[tuple[str, str, str]]:
    """Panel, expression and legend of each query."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def test_it_loads_into_any_grafana_without_edits() -> None:
    """The data source is a variable; ids are unique; nothing lies on top of something else."""
    whole = document()
    assert (whole["uid"], whole["schemaVersion"]) == ("gatepost", 39)
    assert "__inputs" not in whole, "an export for sharing asks whoever imports it"
    assert whole.get("id") is None, "an id is of one Grafana"
    variables = {one["name"]: one for one in whole["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["type"] in TYPES
        assert panel["title"]
        where = panel["gridPos"]
        assert where["x"] >= 0
        assert where["w"] > 0
        assert where["x"] + where["w"] <= COLUMNS, panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"] == SOURCE
            assert panel["description"], panel["title"]
            assert panel["targets"]
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs)
            assert all(target["datasource"] == SOURCE for target in panel["targets"])
    for one, other in combinations(PANELS, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    used = set(re.findall(r"\$\{?([a-z]\w*)", DASHBOARD.read_text()))
    assert used == set(variables)
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Deliveries", "Phases", "Hosts", "Breakers and shedding", "Queue", "Policy", "Processes"]
    assert sum(panel["type"] == "heatmap" for panel in PANELS) == 2


@pytest.mark.parametrize(("title", "expression", "legend"), list(queries()))
def test_every_query_names_what_exists(title: str, expression: str, legend: str) -> None:
    """An empty panel in an incident looks like a service that does nothing."""
    found = read(expression)
    assert found.selectors
    every: set[str] = set()
    for selector in found.selectors:
        has = labels_of(selector.metric)
        assert has is not None, f"{selector.metric} does not exist"
        every |= has
        assert ("instance", "=~", "$instance") in selector.matchers, "one machine can be looked at alone"
        for label, _, value in selector.matchers:
            assert label in has, (selector.metric, label)
            if label in KNOWN_VALUES:
                assert set(value.split("|")) <= KNOWN_VALUES[label], value
    assert found.labels <= every
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    grouped = found.labels if re.search(r"\bby\b", expression) else frozenset(every)
    assert shown <= grouped, (title, legend)


def test_what_its_variables_choose_from_exists() -> None:
    """A list without a choice hides all panels."""
    for variable in document()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert found[2] in (labels_of(found[1]) or ()), variable["name"]
    provisioned = (DASHBOARD.parent / "provisioning" / "dashboards" / "gatepost.yaml").read_text()
    assert yaml.safe_load(provisioned)["providers"][0]["type"] == "file"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)")
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    """Our reader looks at names only."""
    assert PROMTOOL is not None
    rules = [
        {"record": f"panel:query{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression, _) in enumerate(queries())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    ended = subprocess.run(
        [PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    apart = (
        one["x"] + one["w"] <= other["x"]
        or other["x"] + other["w"] <= one["x"]
        or one["y"] + one["h"] <= other["y"]
        or other["y"] + other["h"] <= one["y"]
    )
    return not apart
