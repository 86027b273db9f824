"""Reads the code blocks of a Markdown page, and what the page says of them to the tests, in comments that no reader sees.

Above a block, one of

    <!-- not run: REASON -->        nothing here can run it
    <!-- leaves running -->         each line is a program that may go on, as in a terminal of its own
    <!-- leaves running instead --> the same, after ending what ran before: on another machine
    <!-- until Ctrl-C -->           a program that says something and goes on until it is interrupted
    <!-- exits N -->                the shell's exit code, else 0
    <!-- soon -->                  it is said again until it prints the text below it
    <!-- types WORD -->             to the question that is asked
    <!-- with NAME, NAME -->        what runs from here on, as below
    <!-- numbers vary -->           what is printed has other numbers each time
    <!-- given FILE -->             the block is the content of FILE, written for the blocks after it
    <!-- given a signed request --> `body`, `headers` and `SECRET` are those of one

and once in a page

    <!-- tested with: NAME, NAME -->        what runs when the reader comes here: see `tests.docs.around`
    <!-- tested by PATH: N blocks -->       another test runs all its N blocks

A block of `text` is what the block before it prints; `…` in it stands for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FENCE: Final = re.compile(
    r"^(?:<!-- with (?P<around>[^\n]*?) -->\n)?"
    r"(?:<!-- (?P<mark>(?!tested )[^\n]*?) -->\n)?"
    r"(?P<ticks>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=ticks)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
WITH: Final = re.compile(r"^<!-- tested with: (?P<names>[^\n]*?) -->$", re.MULTILINE)
BY: Final = re.compile(r"^<!-- tested by (?P<path>\S+): (?P<count>\d+) blocks? -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    mark: str
    """What the comment above it says; empty when there is none."""
    text: str
    around: tuple[str, ...] = ()
    """What runs from here on."""

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its blocks, in order."""

    path: Path
    blocks: tuple[Block, ...]
    around: tuple[str, ...]
    """What runs when the reader comes here."""
    tested_by: tuple[str, int] | None

    @property
    def name(self) -> str:
        """Its path from the root."""
        return str(self.path.relative_to(ROOT))


def read_page(path: Path) -> Page:
    """The blocks of a page."""
    text = path.read_text("utf-8")
    blocks = tuple(
        Block(
            path,
            text.count("\n", 0, found.start("ticks")) + 1,
            found["language"].strip(),
            (found["mark"] or "").strip(),
            found["text"],
            _names(found["around"]),
        )
        for found in FENCE.finditer(text)
    )
    around, other = WITH.search(text), BY.search(text)
    names = None if around is None else around["names"]
    return Page(path, blocks, _names(names), None if other is None else (other["path"], int(other["count"])))


def _names(listed: str | None) -> tuple[str, ...]:
    return () if listed is None else tuple(name.strip() for name in listed.split(","))


def all_pages() -> list[Page]:
    """Every page that a reader finds."""
    paths = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("deploy/**/*.md"),
    ]
    return [read_page(path) for path in sorted(paths) if "_build" not in path.parts]
