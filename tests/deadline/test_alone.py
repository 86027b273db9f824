"""What needs no package works with none installed, and what does says which one."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("gatepost"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
ALONE = (
    "tiers",
    "queues",
    "retry",
    "guard",
    "simulate",
    "simulate_svg",
    "clients",
    "clients.call",
    "clients.urllib",
    "clients.bounded_socket",
    "db",
    "db.budget",
)
NEEDS = {
    "clients.httpx": "httpx",
    "clients.httpx2": "httpx2",
    "clients.requests": "requests",
    "clients.urllib3": "urllib3",
    "clients.aiohttp": "aiohttp",
    "db.sqlalchemy": "sqlalchemy",
    "db.asyncpg": "asyncpg",
    "db.psycopg": "psycopg",
    "celery": "celery",
}


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_standard_library_is_enough() -> None:
    """`gatepost.deadline` is for programs that want nothing else of ours, nor of anybody's."""
    run("".join(f"import gatepost.deadline.{name}\n" for name in ALONE))


@pytest.mark.parametrize("name", NEEDS)
def test_an_adapter_says_what_to_install(name: str) -> None:
    """An ImportError deep inside a traceback helps nobody."""
    run(
        f"try:\n    import gatepost.deadline.{name}\n"
        f"except ImportError as error:\n    assert 'pip install' in str(error) and {NEEDS[name]!r} in str(error), error\n"
        "else:\n    raise SystemExit('imported')\n"
    )


def test_timeouts_for_a_library_that_is_not_there_say_so() -> None:
    """The object is made by the library itself."""
    run(
        "from gatepost.deadline.tiers import SAME_DC, timeouts_for\n"
        "assert timeouts_for(SAME_DC).requests() == (0.05, 1.0)\n"
        "try:\n    timeouts_for(SAME_DC).httpx()\n"
        "except ValueError as error:\n    assert 'install httpx' in str(error)\n"
        "else:\n    raise SystemExit('made')\n"
    )
