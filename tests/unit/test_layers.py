"""The import contracts hold, and each of them catches the violation it is there for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PLANTED = {
    "layers": ("wire/phases.py", "import gatepost.net.client"),
    "purity": ("delivery/outcome.py", "import os"),
    "clock": ("net/__init__.py", "import time"),
    "parser": ("net/__init__.py", "import httptools"),
    "testing": ("net/__init__.py", "import gatepost.testing"),
    "deadline": ("deadline/__init__.py", "import gatepost.wire.phases"),
    "receive": ("receive/inbox.py", "import gatepost.delivery.records"),
    "deadline-users": ("store/port.py", "import gatepost.deadline"),
}
"""Contract id: the file that breaks it, and the line that does."""


def contract_names() -> dict[str, str]:
    """Contract id to name, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {entry["id"]: entry["name"] for entry in settings["tool"]["importlinter"]["contracts"]}


def lint_imports(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the tree at `source` with the contracts of this repository; it looks in its working directory first."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo", *arguments, str(ROOT / "pyproject.toml")],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_module_keeps_the_contracts() -> None:
    """The layers and the purity are what keeps the decisions testable; they must not erode one import at a time."""
    result = lint_imports(ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(contract_names())} kept, 0 broken" in result.stdout


def test_every_contract_has_a_planted_violation() -> None:
    """A contract that nothing has ever broken may be one that cannot break."""
    assert set(PLANTED) == set(contract_names())


@pytest.mark.parametrize("contract", sorted(PLANTED))
def test_a_contract_catches_its_violation(contract: str, tmp_path: Path) -> None:
    """Each contract is proven by one forbidden import in a copy of the tree."""
    shutil.copytree(ROOT / "src" / "gatepost", tmp_path / "gatepost", ignore=shutil.ignore_patterns("__pycache__"))
    name, line = PLANTED[contract]
    victim = tmp_path / "gatepost" / name
    victim.write_text(f"{victim.read_text()}\n\n{line}\n")

    result = lint_imports(tmp_path, "--contract", contract)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract_names()[contract]} BROKEN" in result.stdout
