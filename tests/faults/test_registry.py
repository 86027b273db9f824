"""Every case of tests/data/faults.json but those about HTTP/2 has a test with its id in the name, or a reason why not."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = json.loads((HERE.parent / "data" / "faults.json").read_text(encoding="utf-8"))
CLASSES = frozenset(
    {
        "connect", "dns", "tls", "keepalive", "framing", "parsing", "limits", "early-response", "timeouts", "pool",
        "cancellation", "proxy", "redirect", "ssrf", "memory", "secrets", "payload", "headers", "url",
        "queue", "retry", "clock", "breaker",
    }
)  # fmt: skip
"""Classes of the client, the queue, the schedule and the breaker. The others belong to HTTP/2, which is not offered."""
OURS = [case["id"] for case in CASES if case["class"] in CLASSES]

EXEMPT: Mapping[str, str] = {}
"""Cases without a test, each with its reason: `not applicable: …` or `needs feature: …`."""

_NAME = re.compile(r"test_([a-z]+\d*)_(\d\d)_")


@cache
def covered() -> frozenset[str]:
    """The case ids in the names of tests in this folder."""
    found = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := _NAME.match(node.name)):
                found.add(f"{match[1]}-{match[2]}")
    return frozenset(found)


@pytest.mark.parametrize("case", OURS)
def test_each_case_has_a_test_or_a_reason(case: str) -> None:
    """A case nobody reproduces is a fault that comes back."""
    assert (case in covered()) != (case in EXEMPT), case


def test_no_test_and_no_exemption_names_a_case_that_does_not_exist() -> None:
    """A slip in a name would count as covered."""
    known = {case["id"] for case in CASES}
    assert covered() <= known
    assert set(EXEMPT) <= known
    assert all(reason.startswith(("not applicable: ", "needs feature: ")) for reason in EXEMPT.values())
    assert len(OURS) == 120
