"""The public names: what the root exports, where each lives, and that asking for one loads no other."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gatepost
import gatepost.deadline

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gatepost" / "__init__.py"

FIXED_NAMES = {
    "Attempt",
    "Blame",
    "ClientPolicy",
    "DispatchClient",
    "Dispatcher",
    "EgressPolicy",
    "Endpoint",
    "Outcome",
    "Phase",
    "Publisher",
    "Receipt",
    "Resolution",
    "ResolveError",
    "RetrySafety",
    "SignatureError",
    "TLSProfile",
    "sign",
    "verify",
}
"""Users rely on these; a name may be added to them, none may go."""


def homes() -> dict[str, str]:
    """Name to module, as the root's `__getattr__` looks them up."""
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return dict(ast.literal_eval(node.value))
    raise AssertionError(f"{SOURCE} has no _HOMES table")


def typed_homes() -> dict[str, str]:
    """Name to module, as type checkers see them."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("gatepost."):
            found.update({alias.asname or alias.name: node.module for alias in node.names})
    return found


def run_python(program: str, *, isolated: bool = False) -> str:
    """What a fresh interpreter prints; isolated means without any installed package."""
    flags = ["-I", "-S"] if isolated else ["-I"]
    prefix = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    result = subprocess.run(
        [sys.executable, *flags, "-c", prefix + program], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_fixed_names_are_exported() -> None:
    """Users' code and documentation rely on them."""
    assert set(gatepost.__all__) >= FIXED_NAMES


def test_the_three_lists_of_the_root_agree() -> None:
    """A name that only one of `__all__`, the homes table and the type checkers' imports knows fails for someone."""
    assert sorted(gatepost.__all__) == list(gatepost.__all__)
    assert set(gatepost.__all__) == set(homes())
    assert homes() == typed_homes()


@pytest.mark.parametrize("name", sorted(FIXED_NAMES))
def test_a_name_is_the_object_of_its_home(name: str) -> None:
    """The root re-exports; it never wraps."""
    assert getattr(gatepost, name) is getattr(import_module(homes()[name]), name)


def test_the_root_exports_no_function_called_deadline() -> None:
    """`gatepost.deadline` is always the module, whatever was imported before it."""
    assert "deadline" not in gatepost.__all__
    assert inspect.ismodule(gatepost.deadline)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typing error must not look like a missing dependency."""
    with pytest.raises(AttributeError, match="no attribute 'Dispatchr'"):
        gatepost.Dispatchr  # type: ignore[attr-defined]  # noqa: B018 - the missing attribute is the test


def test_dir_lists_the_public_names() -> None:
    """Interactive completion finds what was not yet imported."""
    assert set(gatepost.__all__) <= set(dir(gatepost))


def test_importing_the_root_imports_nothing_else_of_ours() -> None:
    """`import gatepost` costs nothing until a name is used."""
    printed = run_python(
        "import gatepost, json; print(json.dumps([m for m in sys.modules if m.startswith(('gatepost.', 'asyncio'))]))"
    )
    assert json.loads(printed) == []


@pytest.mark.parametrize(
    "program",
    [
        "import gatepost.deadline",
        "from gatepost import sign, verify, SignatureError",
        "from gatepost import Outcome, Phase, RetrySafety, Blame, ClientPolicy, Endpoint, Receipt, Attempt",
    ],
)
def test_what_needs_no_dependency_imports_without_any(program: str) -> None:
    """Deadlines and signature checks are for services that install nothing else of ours."""
    run_python(program, isolated=True)
