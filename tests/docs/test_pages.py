"""Every code block of every page runs, in order, as a reader would paste it, or says why it cannot.

`tests.docs.blocks` has the comments by which a page says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.around import AROUND
from tests.docs.blocks import ROOT, Block, Page, all_pages
from tests.docs.quick_cli import quick_commands
from tests.docs.reader import Reader

NOT_RUN = "not run: "
PAGES = [page for page in all_pages() if page.blocks]
OURS = [page for page in PAGES if page.tested_by is None]
LEFT_OUT = [block for page in OURS for block in page.blocks if block.mark.startswith(NOT_RUN)]


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    """A `gatepost` that needs no second to start."""
    with quick_commands() as directory:
        yield directory


def runs(block: Block) -> bool:
    """It does not say that nothing can run it."""
    return not block.mark.startswith(NOT_RUN)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "page",
    [page for page in OURS if any(runs(block) and block.language != "text" for block in page.blocks)],
    ids=lambda page: page.name,
)
def test_a_page_does_what_it_says(page: Page, tmp_path: Path, commands: Path) -> None:
    """The first block that fails is the last one that a newcomer reads."""
    with Reader(tmp_path, commands) as reader:
        for name in page.around:
            AROUND[name](reader)
        for block in page.blocks:
            if runs(block):
                for name in block.around:
                    AROUND[name](reader)
                reader.run(block)


@pytest.mark.parametrize("block", LEFT_OUT, ids=lambda block: block.name)
def test_a_block_that_nothing_can_run_says_why(block: Block) -> None:
    """So that the list of them is read with every run of the tests."""
    reason = block.mark.removeprefix(NOT_RUN)
    assert len(reason) > 10
    pytest.skip(reason)


@pytest.mark.parametrize("page", [page for page in PAGES if page.tested_by is not None], ids=lambda page: page.name)
def test_a_page_that_another_test_runs_is_run_whole(page: Page) -> None:
    """Its number of blocks stands in the page: who adds one is told to have it run, and to count it."""
    assert page.tested_by is not None
    module, count = page.tested_by
    name = page.path.parent.name if page.path.name == "README.md" else page.path.name
    assert name in (ROOT / module).read_text()
    assert len(page.blocks) == count


def test_no_comment_to_the_tests_is_misspelt() -> None:
    """One that nothing reads would let a block go untested, or show up in no list."""
    known = ("not run: ", "leaves running", "soon", "types ", "until Ctrl-C", "numbers vary", "exits ", "given ")
    marks = {block.mark for page in PAGES for block in page.blocks if block.mark}
    assert {mark for mark in marks if not mark.startswith(known)} == set()
    assert {name for page in PAGES for name in page.around} <= set(AROUND)
    assert {name for page in PAGES for block in page.blocks for name in block.around} <= set(AROUND)
    for page in PAGES:
        comments = page.path.read_text("utf-8").count("<!-- ")
        ours = (
            sum(bool(block.mark) + bool(block.around) for block in page.blocks)
            + bool(page.around)
            + (page.tested_by is not None)
        )
        assert comments == ours, page.name


def test_every_fence_is_read_as_a_block() -> None:
    """A fence that the tests cannot read is one that they cannot run."""
    for page in all_pages():
        fences = [line for line in page.path.read_text("utf-8").splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(page.blocks), page.name
