"""The page of commands, from the command line itself. Used by `docs.build_reference`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import typer.main

from docs.tables import generated_note, table
from gatepost.service.cli.root import app

COMMON_FROM: Final = 8
"""An option that so many commands have, in the same words, is shown once for all."""


def render_cli() -> str:
    """`cli.md`."""
    root: Any = typer.main.get_command(app)
    commands = list(_commands(root, "gatepost"))
    seen = Counter(row for _, command in commands for row in _rows(command))
    common = [option for option, count in seen.items() if count >= COMMON_FROM]
    parts = [
        "# Commands",
        generated_note(),
        "`gatepost COMMAND --help` says the same. Exit codes: 0 done; 1 not done, not delivered, or not found; 2 the command or the "
        "configuration is wrong, and the message says what to write.",
        "## Common options",
        table(("option", "what for"), common),
    ]
    for name, command in commands:
        parts += [f"## `{name}`", " ".join((command.help or "").split())]
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = [f"[{_name(one)}]" if not one.required else _name(one) for one in arguments]
        if usage:
            parts.append(f"`{' '.join([name, *usage])}`")
        rows = [(f"`{_name(one)}`", one.help or "") for one in arguments]
        rows += [row for row in _rows(command) if row not in common]
        if rows:
            parts.append(table(("", "what for"), rows))
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _rows(command: Any) -> list[tuple[str, str]]:
    """Its options."""
    # The types are the function's own: what the library keeps of them changes with its versions.
    hints = get_type_hints(inspect.unwrap(command.callback))
    shown = [one for one in command.params if one.param_type_name == "option" and not one.hidden and one.name != "help"]
    return [_option(one, hints) for one in shown]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _kind(hint: Any) -> str:
    """What to write for a value of this type."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and issubclass(part, Enum):
            return "|".join(str(one.value) for one in part)
        if get_origin(part) is Literal:
            return "|".join(map(str, get_args(part)))
    named = str(hint)
    if "Path" in named:
        return "FILE"
    return "NUMBER" if "int" in named or "float" in named else "TEXT"


def _option(option: Any, hints: Mapping[str, Any]) -> tuple[str, str]:
    """How it is written, and what it is for."""
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    kind = "" if option.is_flag else f" `{option.metavar or _kind(hints.get(option.name))}`".replace("|", "\\|")
    text = (option.help or "").rstrip(".").replace("|", "\\|")
    more = []
    if option.multiple and "repeat" not in text:
        more.append("may be repeated")
    if isinstance(option.default, str | int | float) and not option.is_flag and option.default is not None:
        more.append(f"default `{option.default}`")
    if option.envvar:
        more.append(f"environment `{option.envvar}`")
    return names + kind, "; ".join(part for part in [text, *more] if part).rstrip(" …") + "."
