"""The pictures in the documentation: each is there, small, and shown somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from docs.screenshots import BYTES_MAX, IMAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+)\)")


def test_pictures_are_small_and_told_in_words() -> None:
    """A page must open over a bad line, and say what is on its pictures to who does not see them."""
    shown = set()
    for page in DOCS.glob("**/*.md"):
        for words, target in PICTURE.findall(page.read_text()):
            if target.startswith("http"):
                continue
            path = (page.parent / target).resolve()
            assert path.is_file(), f"{page.name}: {target}"
            assert len(words) > 10, f"{page.name}: {target} needs a sentence"
            shown.add(path.name)
    pictures = sorted(IMAGES.glob("*.png"))
    assert [path.name for path in pictures if path.stat().st_size > BYTES_MAX] == []
    assert [path.name for path in pictures if path.name not in shown] == []
