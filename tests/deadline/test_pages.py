"""The tutorial on deadlines leads to what finds calls without a limit; `tests/docs` runs its blocks."""

from __future__ import annotations

from tests.docs.blocks import ROOT


def test_the_tutorial_names_the_static_side() -> None:
    """What ruff finds without running anything is not done again here, only pointed to."""
    text = (ROOT / "docs" / "tutorial" / "deadlines.md").read_text()
    assert "`S113`" in text
    assert "`ASYNC`" in text
