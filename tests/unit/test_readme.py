"""The first page's programs print what it says; `tests/docs` runs all its blocks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, read_page

LIMIT = 30.0
"""Seconds for a program to say what it should."""


def python_blocks() -> list[str]:
    """The Python programs of the page, in order."""
    return [block.text for block in read_page(ROOT / "README.md").blocks if block.language == "python"]


def test_the_first_program_prints_how_the_attempt_ended(tmp_path: Path) -> None:
    """`deliver` never raises for the network: here the destination is refused, whatever network the test has."""
    program = python_blocks()[0].replace("https://example.com/webhooks", "https://10.0.0.1/webhooks")
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert result.stderr == ""
    assert re.fullmatch(r"False egress_denied admission addr_private \d\.\d{3} s\n", result.stdout), result.stdout


def test_the_second_program_stores_an_event_and_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    """What `publish` acknowledged is in the file, and Ctrl-C drains."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", python_blocks()[1]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert re.fullmatch(r"evt_\w{13} goes to 1 endpoint\(s\)\n", line), line + errors
    assert (tmp_path / "gatepost.db").exists()
