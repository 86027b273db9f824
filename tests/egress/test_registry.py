"""Every one of the 54 scenarios has a test with its number in the name."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def test_all_54_scenarios_are_played() -> None:
    """A number without a test is a promise nobody checks."""
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                match = re.match(r"test_scenario_(\d\d)_", node.name)
                if match:
                    found.add(int(match[1]))
    assert found == set(range(1, 55))
