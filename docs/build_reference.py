"""Writes the reference pages that come from code, so that they cannot drift: `python -m docs.build_reference`.

`--check` writes nothing and fails when a page is stale; the tests call it. Only facts the code knows are written here;
prose that argues belongs in the other pages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from docs.page_api import render_api
from docs.page_cli import render_cli
from docs.page_deadline import render_deadline
from docs.page_decisions import render_decisions
from docs.page_outcomes import render_outcomes
from docs.page_python import render_python
from docs.page_settings import render_settings
from docs.page_states import render_states
from docs.page_telemetry import render_telemetry
from docs.tables import COMMAND

REFERENCE = Path(__file__).parent / "reference"
PAGES = {
    REFERENCE / "outcomes.md": render_outcomes,
    REFERENCE / "deadline.md": render_deadline,
    REFERENCE / "decisions.md": render_decisions,
    REFERENCE / "settings.md": render_settings,
    REFERENCE / "states.md": render_states,
    REFERENCE / "api.md": render_api,
    REFERENCE / "cli.md": render_cli,
    REFERENCE / "python.md": render_python,
    REFERENCE / "telemetry.md": render_telemetry,
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` only compare."""
    stale = [path for path, render in PAGES.items() if not path.exists() or path.read_text() != render()]
    for path in stale:
        if "--check" in arguments:
            print(f"{path.name} is stale: run {COMMAND}", file=sys.stderr)
        else:
            path.write_text(PAGES[path]())
            print(f"wrote {path.name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
