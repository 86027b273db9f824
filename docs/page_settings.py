"""The page of settings of `gatepost serve`, from the one table that lists them. Used by `docs.build_reference`."""

from __future__ import annotations

from itertools import groupby

from docs.tables import generated_note, table
from gatepost.service.settings_table import SETTINGS, Kind, Setting

KIND_HELP = {
    Kind.TEXT: "text",
    Kind.SECONDS: "seconds",
    Kind.COUNT: "whole number",
    Kind.NUMBER: "number",
    Kind.FLAG: "true or false",
    Kind.LIST: "list of texts",
    Kind.PORTS: '"default" or a list of numbers',
    Kind.SECRET: "text, never shown",
    Kind.SECRETS: "list of texts, never shown",
}


def render_settings() -> str:
    """`settings.md`."""
    assert KIND_HELP.keys() == set(Kind)
    parts = [
        "# Settings of `gatepost serve`",
        generated_note(),
        "Read once at the start from `gatepost.toml` in the working directory (or the file named by `--config`) and from the "
        "environment, which wins. An unknown key, or values that cannot work together, refuse to start and say what to write. "
        "In the environment a list is separated by commas. A default of — is worked out at the start, and the table printed "
        "then says from what.",
    ]
    for section, settings in groupby(SETTINGS, key=_section):
        parts.append(f"## {section}")
        parts.append(table(("setting", "environment", "value", "default", "what for"), [_row(one) for one in settings]))
    return "\n\n".join(parts) + "\n"


def _section(setting: Setting) -> str:
    section, dot, _ = setting.path.rpartition(".")
    return f"[{section}]" if dot else "Top level"


def _row(setting: Setting) -> tuple[str, str, str, str, str]:
    kind = " or ".join(f"`{choice}`" for choice in setting.choices) or KIND_HELP[setting.kind]
    return f"`{setting.path}`", f"`{setting.env}`", kind, _default(setting.default), setting.help


def _default(value: object) -> str:
    match value:
        case None:
            return "—"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple() | list():
            return f"`[{', '.join(repr(item) for item in value)}]`".replace("'", '"')
        case str():
            return f'`"{value}"`'
        case _:
            return f"`{value}`"
