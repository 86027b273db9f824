"""The tutorial and the how-to run as they stand, each block as a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (DOCS / "tutorial" / "deadlines.md", DOCS / "how-to" / "when-not-to-use-a-deadline.md")


def blocks() -> list[tuple[str, str]]:
    """Every Python block, with a name for the report."""
    return [
        (f"{page.stem}-{number}", block)
        for page in PAGES
        for number, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), start=1
        )
    ]


@pytest.mark.parametrize(("name", "block"), blocks(), ids=[name for name, _ in blocks()])
def test_a_block_runs_as_it_stands(name: str, block: str, tmp_path: Path) -> None:
    """A newcomer pastes it; warnings count as errors, since they would be the first thing seen."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_tutorial_names_the_static_side() -> None:
    """What ruff finds without running anything is not done again here, only pointed to."""
    text = PAGES[0].read_text()
    assert "`S113`" in text
    assert "`ASYNC`" in text
