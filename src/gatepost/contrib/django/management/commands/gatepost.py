"""`manage.py gatepost …`: the command `gatepost` with this project's settings.

`manage.py gatepost serve` runs the service, following the project's own outbox; everything else works as on the command line. What
the environment says beats the project's settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gatepost.contrib.django.conf import environment
from gatepost.errors import ConfigurationError


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Passes its arguments on."""

    help = "Run gatepost with this project's settings, for example: manage.py gatepost serve"
    requires_system_checks = ()

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """From the command line: all arguments are gatepost's, `--help` too."""
        try:
            self.handle(*argv[2:])
        except CommandError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(2)

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("gatepost", …)`."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *arguments: str, **options: Any) -> None:
        """Ends the process with gatepost's exit code."""
        from gatepost.service.cli.commands import run

        try:
            given = environment()
        except ConfigurationError as error:
            raise CommandError(str(error)) from None
        for name, value in given.items():
            os.environ.setdefault(name, value)
        run(list(arguments or options.get("arguments") or ["--help"]))
