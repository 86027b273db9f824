"""What a command costs before it does anything: scripts publish by the thousand, and health checks run each minute."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gatepost.service.cli.commands import PLACES
from gatepost.service.cli.root import app


@pytest.mark.parametrize("command", ["status", "deliveries", "endpoint"])
def test_a_command_for_the_api_imports_no_service_and_no_store(command: str) -> None:
    """It speaks HTTP; the dispatcher and all it needs would take three times as long to import as the rest."""
    program = (
        "import sys\n"
        "from gatepost.service.cli.commands import run\n"
        f"try:\n    run([{command!r}, '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith(('gatepost.dispatch', 'gatepost.net', 'fastapi', 'asyncpg'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_all_commands_are_in_the_whole() -> None:
    """The table is where a command is added."""
    named = {info.name for info in app.registered_commands} | {info.name for info in app.registered_groups}
    assert named == set(PLACES)
