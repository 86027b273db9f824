"""The `gatepost` command. Importing this needs no extra: without `gatepost[server]` it says what to install and exits 2."""

from __future__ import annotations

import sys

_SERVER_EXTRA = frozenset(
    {
        "typer",
        "click",
        "rich",
        "fastapi",
        "starlette",
        "uvicorn",
        "uvloop",
        "prometheus_client",
        "jinja2",
        "markupsafe",
        "itsdangerous",
    }
)
_DISPATCH_EXTRA = frozenset({"cryptography"})


def main() -> None:
    """The entry point of the console script."""
    try:
        from gatepost.service.cli.commands import run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _SERVER_EXTRA | _DISPATCH_EXTRA:
            raise
        sys.stderr.write(f"gatepost: {missing} is not installed; install the extra: pip install 'gatepost[server]'\n")
        sys.exit(2)
