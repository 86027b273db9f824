"""The documentation is true: generated pages are fresh, links lead somewhere, the first page's commands exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_every_reason_has_a_sentence() -> None:
    """A code that nobody can look up is an incident at night."""
    assert set(REASON_HELP) == set(Reason)
    assert all(text.endswith(".") for text in REASON_HELP.values())


def test_generated_pages_are_fresh() -> None:
    """The reference comes from the code that decides, so that it cannot say something else."""
    result = subprocess.run(
        [sys.executable, "-m", "docs.build_reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    """A dead link on the first page costs a newcomer's trust."""
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in headings(target), f"{page.name}: {link}"


def headings(page: Path) -> set[str]:
    """Anchors of a page, as the usual renderers make them."""
    texts = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def test_the_makefile_targets_named_in_the_docs_exist() -> None:
    """`make demo` and `make test` are the first two things anyone runs."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"\bmake ([a-z]+)\b", page.read_text())}
    assert named & {"demo", "test"} == {"demo", "test"}
    words = {"it", "a", "an", "the", "sure", "them"}
    assert named - targets - words == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_docs_compiles_and_imports_what_exists(page: Path) -> None:
    """A reader copies the first block; it must at least be today's Gatepost."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gatepost"):
                module = import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_files_named_by_the_architecture_exist() -> None:
    """The page says where new code goes; a file that has moved sends people astray."""
    named = set(re.findall(r"`([\w/]+\.(?:py|toml))`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 10
    assert [
        name for name in named if not (ROOT / name).exists() and not (ROOT / "src" / "gatepost" / name).exists()
    ] == []
