"""Builds the wheel and the source archive as users get them, and makes environments that hold nothing but the wheel.

Needs uv, which `make` puts beside the interpreter. What uv has in its cache is taken from there, so that nothing is asked of a
network once `make` has run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 240.0
"""Seconds for one step on a busy machine, downloads included; each takes one or two."""


def find_uv() -> str | None:
    """The uv that `make` installed, else one on the path."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def run_uv(*arguments: str | Path, directory: Path = ROOT) -> str:
    """Run uv from its cache, or with the network when the cache does not do; what it printed."""
    uv = find_uv()
    assert uv is not None
    for mode in (["--offline"], []):
        done = subprocess.run(
            [uv, *mode, *map(str, arguments)],
            cwd=directory,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(directory: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, in `directory`; the wheel is made of the archive, not of the tree."""
    run_uv("build", "--quiet", "--python", sys.executable, "--out-dir", directory, ROOT)
    [wheel] = directory.glob("*.whl")
    [archive] = directory.glob("*.tar.gz")
    return wheel, archive


def fresh_environment(directory: Path, wheel: Path, extras: Sequence[str] = ()) -> Path:
    """A virtual environment that holds the wheel with `extras`, at the versions of the lock file; its `bin`."""
    environment = directory / f"with-{'-'.join(extras) or 'nothing'}"
    versions = directory / "versions.txt"
    if not versions.exists():
        exported = run_uv(
            "export", "--frozen", "--all-extras", "--no-emit-project", "--no-hashes", "--no-default-groups"
        )
        versions.write_text(exported)
    run_uv("venv", "--quiet", "--python", sys.executable, environment)
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    run_uv("pip", "install", "--quiet", "--python", environment / "bin" / "python", "--constraint", versions, wanted)
    return environment / "bin"


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what would let a program find this repository, or this machine's Gatepost."""
    ours = ("GATEPOST_", "PYTHON", "VIRTUAL_ENV", "UV_PROJECT")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(ours)}, **more}
