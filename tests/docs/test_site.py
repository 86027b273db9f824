"""The site is built as `make docs` does, without a warning, and what pages name in passing exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gatepost.service.cli.root import app
from gatepost.service.settings_table import SETTINGS
from tests.docs.blocks import ROOT, all_pages

DOCS = ROOT / "docs"
INLINE = re.compile(r"`([^`\n]+)`")
GROUP: Any = typer.main.get_command(app)


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the dependency group docs is not installed")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """A page that the index forgets, a link or a heading that is gone: each is a warning, and a dead end for a reader."""
    [line] = re.findall(
        r"^\t\$\(BIN\)/sphinx-build (.+) docs docs/_build$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    command = [sys.executable, "-m", "sphinx", *line.split(), str(DOCS), str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert (built.returncode, built.stderr) == (0, ""), f"{built.stderr}\na page belongs into docs/index.md, too"
    index = (tmp_path / "site" / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        assert f'href="{name}/"' in index or str(name) == "index", f"docs/index.md does not link {name}.md"
    elsewhere = re.compile(r'(?:src|href)="https?://(?!127\.0\.0\.1)[^"]*\.(?:js|css|woff2?)"')
    assert not any(elsewhere.search(page.read_text()) for page in (tmp_path / "site").rglob("*.html"))


def spoken() -> Iterator[tuple[str, str]]:
    """Inline code of every page that people wrote, with the page."""
    for page in all_pages():
        if page.path.name != "CHANGELOG.md":
            text = re.sub(r"^```.*?^```", "", page.path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
            yield from ((page.name, found) for found in INLINE.findall(text))


def test_every_setting_that_a_page_names_is_one() -> None:
    """It is copied into a configuration, which then refuses to start."""
    known = {setting.path for setting in SETTINGS} | {setting.env for setting in SETTINGS}
    sections = {path.partition(".")[0] for path in known if "." in path} - {"log"}
    others = {
        found
        for name, text in spoken()
        if not name.startswith(("docs/reference/", "ARCHITECTURE.md", "SECURITY.md", "docs/explanation/engine.md"))
        for found in re.findall(r"^(?:\w+\.\w+(?= = |$)|GATEPOST_[A-Z_]+(?==|$))", text)
        if found.partition(".")[0] in sections or found.startswith("GATEPOST_")
    }
    clients = {"GATEPOST_URL", "GATEPOST_API_KEY", "GATEPOST_PID"}
    assert len(others) > 10
    assert others - known - clients == set()


def test_every_metric_that_a_page_names_is_in_the_reference() -> None:
    """An alert on a series that does not exist never rings."""
    reference = " ".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = {found for _, text in spoken() for found in re.findall(r"^gatepost_[a-z_]+$", text)}
    tables = {"gatepost_outbox", "gatepost_receiver"}  # a table in producers' databases; a fixture
    assert len(named) > 5
    assert {name for name in named - tables if f"`{name}" not in reference} == set()


def test_every_command_that_a_page_names_in_passing_is_one() -> None:
    """Those in blocks are run; these are typed from memory."""
    wrong = []
    for name, text in spoken():
        words = text.split()
        if words[:1] != ["gatepost"] or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        command, path = GROUP, words[1:]
        while path and hasattr(command, "commands"):
            command = command.commands.get(path.pop(0))
        options = {option for one in getattr(command, "params", []) for option in [*one.opts, *one.secondary_opts]}
        if words[1] == "bench":
            continue  # the benchmarks' options are the benchmarks'
        given = {word.partition("=")[0] for word in path if word.startswith("--")}
        if command is None or (not hasattr(command, "commands") and not given <= options | {"--help"}):
            wrong.append(f"{name}: {text}")
    assert wrong == []
