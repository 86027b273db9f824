"""How Sphinx makes the site of these pages: `make docs`. The pages are plain Markdown, and read as well without it.

The navigation is that of `index.md`: what it links to, under its headings. A page that it leaves out fails the build.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Gatepost"
author = "The Gatepost authors"
project_copyright = "The Gatepost authors, Apache-2.0"
version = release = version_of("gatepost")

extensions = ["myst_parser"]
myst_heading_anchors = 4
"""Links such as `settings.md#policy`, with the anchors that other readers of Markdown make."""
exclude_patterns = ["_build"]
nitpicky = True
suppress_warnings: list[str] = []

html_theme = "furo"
html_title = f"Gatepost {release}"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

LINK = re.compile(r"\]\(([\w/-]+)\.md\)")


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Give the first page a table of contents for each of its sections, in place of directives that others cannot read."""
    if name != "index":
        return
    seen: dict[str, None] = {}
    trees = []
    for section in source[0].split("\n## ")[1:]:
        caption, _, text = section.partition("\n")
        names = [found for found in dict.fromkeys(LINK.findall(text)) if found not in seen]
        seen |= dict.fromkeys(names)
        if names:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"]))
    source[0] += "\n\n" + "\n\n".join(trees) + "\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
