"""Alert rules name metrics, labels and values that exist, say what to look at, and fire when they should: promtool, if installed, tries."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from gatepost.admission.breaker import BreakerState
from gatepost.delivery.outcome import Outcome
from gatepost.service.cli.root import app
from gatepost.service.gauges import SHOWN
from tests.packaging.building import ROOT
from tests.packaging.promql import OUTSIDE, Selector, labels_of, read

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CASES = RULES.with_name("rules_test.yml")
PAGE = ROOT / "docs" / "how-to" / "alert.md"
PROMTOOL = shutil.which("promtool")
KNOWN_VALUES = {
    "outcome": {outcome.value for outcome in Outcome},
    "kind": {"endpoint", "host"},
    "state": {SHOWN[state] for state in BreakerState},
    "job": {"gatepost"},
}
"""Of labels whose values are closed sets."""


def rules() -> list[dict[str, Any]]:
    """All rules."""
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"]: read(rule["expr"]) for rule in rules() if "record" in rule}


def labels(selector: Selector) -> frozenset[str]:
    """Labels of what it selects, a recorded series included."""
    if selector.metric in RECORDED:
        return frozenset(
            selector.metric.partition(":")[0].split("_")
        )  # level:metric:operation, by Prometheus' convention
    found = labels_of(selector.metric)
    assert found is not None, f"{selector.metric} is no metric of ours and is not recorded here"
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", rule.get("record")))
def test_every_metric_label_and_value_of_a_rule_exists(rule: dict[str, Any]) -> None:
    """An alert on a name that was changed never fires, and nobody notices until it should have."""
    found = read(rule["expr"])
    assert found.selectors
    every: set[str] = set()
    for selector in found.selectors:
        has = labels(selector)
        every |= has
        for label, _, value in selector.matchers:
            assert label in has, (selector, label)
            if label in KNOWN_VALUES:
                assert set(value.split("|")) <= KNOWN_VALUES[label], (selector, value)
    assert found.labels <= every
    if "record" in rule:
        level = set(rule["record"].partition(":")[0].split("_"))
        assert level <= found.labels | {"outcome"}, "the first part of the name says by which labels it is kept"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_every_alert_says_what_to_look_at_and_has_its_part_of_the_page(rule: dict[str, Any]) -> None:
    """Somebody reads it at three in the morning, and has not written it."""
    assert rule["labels"]["severity"] in ("page", "ticket")
    said = rule["annotations"]
    assert set(said) == {"summary", "look", "runbook"}
    path, _, anchor = said["runbook"].partition("#")
    assert (ROOT / path) == PAGE
    headings = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in headings
    by = read(rule["expr"]).labels
    for label in re.findall(r"\$labels\.(\w+)", said["summary"]):
        assert label in OUTSIDE | {"host", "outcome", "endpoint", "process", "why"} | by, label
    for command in re.findall(r"gatepost (\w+)", said["look"]):
        assert command in {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}, (
            command
        )


def test_every_alert_has_a_case_and_the_page_has_no_other_alerts() -> None:
    """A rule that was never seen to fire may be one that cannot."""
    names = {rule["alert"] for rule in ALERTS}
    tried = {
        case["alertname"]
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert tried == names
    assert set(re.findall(r"^### (Gatepost\w+)$", PAGE.read_text(), re.MULTILINE)) == names
    aggregated = [rule["alert"] for rule in ALERTS if "gatepost_host_" in rule["expr"] and "(host" not in rule["expr"]]
    assert set(aggregated) <= {"GatepostHostHeld"}, "receivers are looked at one by one"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)")
def test_promtool_agrees_and_every_case_holds() -> None:
    """Prometheus' own reader and evaluator: what ours understands is only names."""
    for command in (["check", "rules", RULES.name], ["test", "rules", CASES.name]):
        assert PROMTOOL is not None
        ended = subprocess.run(
            [PROMTOOL, *command], cwd=RULES.parent, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_reader_of_expressions_understands_what_it_must() -> None:
    """Names that it passes over are names that nobody checks."""
    found = read(
        'sum by (host) (rate(a_total{x="1", y!~"b|c"}[5m] offset 5m)) / on (host) group_left () (b > 0) or 2 * c'
    )
    assert found.selectors == (
        Selector("a_total", (("x", "=", "1"), ("y", "!~", "b|c"))),
        Selector("b", ()),
        Selector("c", ()),
    )
    assert found.labels == {"host"}
    with pytest.raises(ValueError, match="not understood"):
        read("a @ 5")
