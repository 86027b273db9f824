"""The page of Python names: what users import, with signatures and what the docstrings say. Used by `docs.build_reference`.

Which methods are for users is written here: classes that other parts of Gatepost work with have more of them.
"""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from typing import Any, Final

import gatepost
import gatepost.contrib.django.publishing
import gatepost.contrib.fastapi
import gatepost.errors
import gatepost.receive
import gatepost.receive.django
import gatepost.receive.fastapi
import gatepost.testing.pytest_plugin
from docs.tables import generated_note, table
from gatepost.dispatch.endpoints import Endpoints
from gatepost.dispatch.operations import DeadLetters, Deliveries
from gatepost.dispatch.policies import Policies
from gatepost.dispatch.tenants import Tenants

SENDING: Final = ("DispatchClient", "ClientPolicy", "Attempt", "EgressPolicy", "TLSProfile", "Resolution")
STORING: Final = ("Dispatcher", "Publisher", "Receipt", "Endpoint")
WORDS: Final = ("Outcome", "Phase", "RetrySafety", "Blame")
SIGNING: Final = ("sign", "verify")
ERRORS: Final = ("SignatureError", "ResolveError")
"""The root has two of them; the page lists all."""
FIXTURES: Final = ("gatepost_receiver", "published", "hostile")

USED: Final[Mapping[type[Any], Sequence[str]]] = {
    gatepost.DispatchClient: ("deliver", "check_url", "statistics", "aclose"),
    gatepost.Dispatcher: ("open", "publish", "publish_sync", "publish_batch", "run", "drain", "statistics", "aclose"),
    gatepost.ClientPolicy: ("attempt_budget", "evolve", "explain"),
    Endpoints: ("create", "get", "list", "update", "delete", "pause", "resume", "rotate_secret", "test"),
    Deliveries: ("get", "list", "attempts", "cancel", "replay"),
    DeadLetters: ("get", "list", "replay", "purge"),
    Policies: ("set", "clear", "roll_back", "explain", "history"),
    Tenants: ("purge",),
}
"""Of the other classes every public method is."""
PARTS: Final = (
    ("endpoints", Endpoints, "Register, change, pause and test destinations."),
    ("deliveries", Deliveries, "Look into deliveries of any state; cancel and replay them."),
    ("dead_letters", DeadLetters, "Deliveries that were given up: look, replay, purge."),
    ("policies", Policies, "Limits in force, changed while everything runs."),
    ("tenants", Tenants, "Erase a tenant."),
)
"""Attributes of an open `Dispatcher`."""


def render_python() -> str:
    """`python.md`."""
    listed = {*SENDING, *STORING, *WORDS, *SIGNING, *ERRORS}
    assert listed == set(gatepost.__all__), listed ^ set(gatepost.__all__)
    parts = [
        "# Python",
        generated_note(),
        "What `from gatepost import …` has. Durations are float seconds, instants are seconds since 1970; all of it is typed. Time "
        "budgets have [a page of their own](deadline.md).",
        "## Store events and deliver them",
        *_named(gatepost, STORING),
    ]
    for attribute, part, text in PARTS:
        parts += [f"### `Dispatcher.{attribute}`", text, *_methods(part, attribute)]
    parts += ["## Send one request", *_named(gatepost, SENDING)]
    parts += ["## Words", *_named(gatepost, WORDS)]
    parts += ["## Sign and verify", *_named(gatepost, SIGNING)]
    parts += ["## Receive", "`from gatepost.receive import …`", *_named(gatepost.receive, gatepost.receive.__all__)]
    for module in (gatepost.receive.fastapi, gatepost.receive.django):
        parts += [f"### `{module.__name__}`", _paragraphs(inspect.getdoc(module) or "")]
        parts += [part for name in ("webhook",) for part in _function(getattr(module, name), name)]
    parts += [
        "## In FastAPI and Django applications",
        "`from gatepost.contrib.fastapi import …`",
        *_functions(gatepost.contrib.fastapi, ("dispatcher_lifespan", "publisher_lifespan")),
        "As dependencies of routes: `DispatcherDep`, `PublisherDep`; to be replaced in tests: `get_dispatcher`, `get_publisher`.",
        "`from gatepost.contrib.django import …`",
        *_functions(gatepost.contrib.django.publishing, ("publish", "publish_on_commit")),
        "## Test",
        '`pytest_plugins = ["gatepost.testing.pytest_plugin"]` brings these fixtures; [how to use them](../how-to/test-your-receiver.md).',
        table(
            ("fixture", "what it is"),
            [(f"`{name}`", " ".join(_fixture(name).split("\n\n")[0].split())) for name in FIXTURES],
        ),
        "## Errors",
        "`from gatepost.errors import …`; all are `GatepostError`s. What the network did is never raised: it is an `Attempt`.",
        table(
            ("error", "is also", "when"),
            [(f"`{error.__name__}`", _bases(error), " ".join(_text(error).split())) for error in _errors()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _functions(module: Any, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from _function(getattr(module, name), name, bold=True)


def _fixture(name: str) -> str:
    """What its docstring says."""
    [text] = [
        ast.get_docstring(node) or ""
        for node in ast.parse(inspect.getsource(gatepost.testing.pytest_plugin)).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return text


def _errors() -> Iterator[type[Exception]]:
    for found in vars(gatepost.errors).values():
        if inspect.isclass(found) and issubclass(found, Exception) and found.__module__ == "gatepost.errors":
            yield found


def _bases(error: type[Exception]) -> str:
    return ", ".join(
        f"`{base.__name__}`" for base in error.__bases__ if base not in (Exception, gatepost.errors.GatepostError)
    )


def _named(module: Any, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        found = getattr(module, name)
        if not inspect.isclass(found):
            yield f"### `{name}`"
            yield from _function(found, name)
            continue
        yield f"### `{name}`"
        yield _text(found)
        if issubclass(found, enum.Enum):
            yield ", ".join(f"`{member.value}`" for member in found)
        elif is_dataclass(found):
            yield table(("field", "default", "what for"), list(_fields(found)))
        elif not issubclass(found, Exception) and "__init__" in vars(found) and "open" not in vars(found):
            yield f"`{name}{_signature(found)}`"
        yield from _methods(found, name)


def _methods(owner: type[Any], name: str) -> Iterator[str]:
    public = [method for method in vars(owner) if not method.startswith("_")]
    for method in USED.get(owner, public):
        found = inspect.getattr_static(owner, method)
        if isinstance(found, property):
            yield f"**`{name}.{method}`** · {_paragraphs(inspect.getdoc(found) or '')}"
        elif isinstance(found, classmethod | staticmethod):
            yield from _function(getattr(owner, method), f"{name}.{method}", bold=True)
        elif inspect.isfunction(found):
            yield from _function(found, f"{name}.{method}", bold=True)


def _function(function: Any, name: str, *, bold: bool = False) -> Iterator[str]:
    wait = "await " if inspect.iscoroutinefunction(function) else ""
    line = f"`{wait}{name}{_signature(function)}`"
    yield f"**{line}**" if bold else line
    yield _text(function)


def _signature(function: Any) -> str:
    """Without `self` and the quotes of annotations."""
    signature = inspect.signature(function)
    kept = [
        one.replace(default=_Shown(one.default)) if one.default is not one.empty else one
        for one in signature.parameters.values()
        if one.name not in ("self", "clock")
    ]
    text = str(signature.replace(parameters=kept)).replace("'", "")
    return text.replace("collections.abc.", "").replace(" -> None", "").replace("§", "'").replace("`", "")


class _Shown:
    """A default, as it is read: enum members by their value, everything long as `…`."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        if isinstance(self._value, enum.Enum):
            return f"§{self._value.value}§"
        text = repr(self._value).replace("'", "§")
        return "…" if len(text) > 30 or text.startswith("<") else text


def _fields(found: type[Any]) -> Iterator[tuple[str, str, str]]:
    texts = _field_texts(found)
    for one in fields(found):
        if one.init and not one.name.startswith("_"):
            if one.default is MISSING:
                default = "" if one.default_factory is MISSING else "empty"
            else:
                shown = one.default.value if isinstance(one.default, enum.Enum) else one.default
                default = f"`{shown!r}`"
            yield f"`{one.name}`", default, texts.get(one.name, "").replace("|", "\\|")


def _field_texts(found: type[Any]) -> dict[str, str]:
    """The text under each field."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(node, ast.ClassDef)
    return {
        before.target.id: " ".join(after.value.value.split())
        for before, after in pairwise(node.body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _text(found: Any) -> str:
    return _paragraphs(inspect.getdoc(found) or "")


def _paragraphs(text: str) -> str:
    """Each paragraph on one line; what is set in stays as code."""
    shown = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            shown.append("```text\n" + textwrap.dedent(paragraph) + "\n```")
        elif any(line.lstrip().startswith(("- ", "* ", "|")) for line in lines):
            shown.append(paragraph)
        else:
            shown.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(shown)
