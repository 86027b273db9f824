"""Reads `gatepost.toml` and the environment into one flat mapping of checked values, with where each came from.

The environment beats the file. An unknown key, a second spelling or a value of the wrong kind is refused, all problems at
once, each saying what to write. It builds no objects; `service.config` does.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from gatepost.errors import ConfigurationError
from gatepost.service.settings_table import BY_ENV, BY_PATH, CLIENT_ENV, PREFIX, Kind, Setting

DEFAULT_FILE: Final = "gatepost.toml"
_SERVICE_LINKS: Final = re.compile(r"GATEPOST_(SERVICE_(HOST|PORT)(_\w+)?=.*|PORT_\d+_\w+=.*|PORT=\w+://.*)")
"""What Kubernetes puts into every container beside a Service named `gatepost`: not ours, and not a spelling error."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who gave it, for example `GATEPOST_LISTEN_PORT (beats gatepost.toml)`."""

    value: object
    source: str


def read_sources(path: Path | None, environ: Mapping[str, str]) -> dict[str, Given]:
    """Checked values by setting path. `path` None: `gatepost.toml` in the working directory if it is there.

    Raises `ConfigurationError` that lists every problem.
    """
    problems: list[str] = []
    given = _from_file(path, problems)
    for setting, value, name in _from_environment(environ, problems):
        before = given.get(setting.path)
        given[setting.path] = Given(value, name if before is None else f"{name} (beats {before.source})")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return given


def _from_file(path: Path | None, problems: list[str]) -> dict[str, Given]:
    file = path or Path(DEFAULT_FILE)
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        if path is None:
            return {}
        raise ConfigurationError(f"{path}: no such file; write it, or leave --config and GATEPOST_CONFIG out") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: not valid TOML: {error}") from None
    given = {}
    for key, value in _flatten(tables):
        setting = BY_PATH.get(key)
        if setting is None:
            problems.append(f"{file}: {_unknown(key, BY_PATH)}")
            continue
        try:
            given[key] = Given(_checked(setting, value), str(file))
        except ValueError as error:
            problems.append(f"{file}: {key}: {error}")
    return given


def _flatten(tables: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Iterable[tuple[Setting, object, str]]:
    for name, text in sorted(environ.items()):
        if not name.upper().startswith(PREFIX) or name in CLIENT_ENV or _SERVICE_LINKS.fullmatch(f"{name}={text}"):
            continue
        setting = BY_ENV.get(name)
        if setting is None:
            problems.append(f"environment: {_unknown(name, BY_ENV)}")
            continue
        try:
            yield setting, _checked(setting, _parse(setting, text)), name
        except ValueError as error:
            problems.append(f"{name}: {error}")


def _unknown(name: str, known: Mapping[str, Setting]) -> str:
    # Hyphens and other cases are the usual second spellings: compare without them, answer with the one that is right.
    plain = {_plain(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    if close:
        return f"{name} is not a setting; write {plain[close[0]]}"
    leaf = {_plain(candidate).rpartition(".")[2]: candidate for candidate in known}
    close = difflib.get_close_matches(_plain(name).rpartition(".")[2], leaf, n=1, cutoff=0.6)
    if close:
        return f"{name} is not a setting; write {leaf[close[0]]}"
    return f"{name} is not a setting; the reference page on configuration lists all"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _parse(setting: Setting, text: str) -> object:
    """Text from the environment as what TOML would have given."""
    kind = setting.kind
    match kind:
        case Kind.TEXT | Kind.SECRET:
            return text
        case Kind.LIST | Kind.SECRETS:
            return [part.strip() for part in text.split(",") if part.strip()]
        case Kind.PORTS:
            if text == "default":
                return text
            return [_number(part.strip()) for part in text.split(",")]
        case Kind.FLAG:
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is not a flag; write true or false")
            return text == "true"
        case Kind.SECONDS | Kind.COUNT | Kind.NUMBER:
            return _number(text)
        case never:
            assert_never(never)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; write for example 3") from None


def _checked(setting: Setting, value: object) -> object:
    """The value in the kind's own type. Raises `ValueError` saying what to write; secrets are not repeated in it."""
    kind = setting.kind
    match kind:
        case Kind.TEXT:
            if not isinstance(value, str) or not value:
                raise ValueError(f"{value!r} is not a text; write it in quotes, for example {_example(setting)}")
            if setting.choices and value not in setting.choices:
                raise ValueError(f"{value!r} is not one of {', '.join(setting.choices)}")
            return value
        case Kind.SECRET:
            if not isinstance(value, str) or not value:
                raise ValueError("write a text that is not empty")
            return value
        case Kind.SECONDS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{value!r} is not seconds; write a number, for example {_example(setting)}")
            return float(value)
        case Kind.NUMBER:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{value!r} is not a number; write for example {_example(setting)}")
            return float(value)
        case Kind.COUNT:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{value!r} is not a whole number; write for example {_example(setting)}")
            return value
        case Kind.FLAG:
            if not isinstance(value, bool):
                raise ValueError(f"{value!r} is not a flag; write true or false")
            return value
        case Kind.LIST | Kind.SECRETS:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ValueError('write a list of texts, for example ["a", "b"]')
            return tuple(value)
        case Kind.PORTS:
            if value == "default":
                return value
            if not isinstance(value, list) or not all(type(item) is int for item in value):
                raise ValueError('write "default" or a list of ports, for example [443, 8443]')
            return tuple(value)
        case never:
            assert_never(never)


def _example(setting: Setting) -> str:
    if setting.default is not None:
        return f'"{setting.default}"' if isinstance(setting.default, str) else f"{setting.default}"
    return '"…"' if setting.kind is Kind.TEXT else "8"
