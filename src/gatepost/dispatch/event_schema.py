"""A JSON Schema (2020-12) of an event type: what is taken as one, and whether a payload fits, in bounded time.

Refused are references to other documents (nobody fetches a tenant's URL), patterns that could run without end, and schemas that
are large or deep. A check counts its steps and gives up, which refuses the payload. The only module that imports jsonschema;
called by `dispatch.event_types`. What a payload holds is never repeated in what is said of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gatepost.dispatch.schema_patterns import BoundedPattern, bounded
from gatepost.errors import ConfigurationError, Violation

SCHEMA_BYTES_MAX: Final = 65_536
SCHEMA_DEPTH_MAX: Final = 32
SCHEMA_NODES_MAX: Final = 2_000
"""Objects, lists and values in a schema."""
LOOK_DEPTH_MAX: Final = 64
"""Keywords inside one another while a payload is checked, its levels too: each takes half a dozen frames of the interpreter's
thousand, and what the library is built on does not survive their end."""
SAME_PLACE_MAX: Final = 32
"""Schemas that look one after another at the same place of a payload, over `$ref`, `allOf` and their like."""
STEPS_INLINE: Final = 5_000
"""Keywords checked on the event loop, some 20 ms at worst; a payload that takes more is checked in a thread."""
STEPS_MAX: Final = 100_000
"""Keywords checked for one payload; then it counts as one that does not fit."""
SMALL: Final = 50
"""Members of a list or an object that are compared, without a schema of their own, in the time of one step."""
CONTAINERS: Final = 200
"""Steps to compare a value with the lists and objects of a whole schema."""
ERROR_BYTES: Final = 240
"""Bytes of a payload that the library writes into an error's text, which nobody reads, in the time of one step."""
TEXT_CHARS: Final = 1_000
"""Characters that are hashed and compared in the time of one step."""
PATTERN_STEPS: Final = 1_000
"""Steps of a regular expression that weigh as much as one keyword."""
VIOLATIONS_MAX: Final = 10
"""Told of one payload."""
EXPECTED_CHARS_MAX: Final = 200
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NOT_TAKEN: Final[Mapping[str, str]] = {
    "patternProperties": "name the properties, or limit their names with propertyNames",
    "$dynamicRef": "write $ref",
    "$dynamicAnchor": "write $anchor",
}

_EACH_MEMBER: Final = frozenset(
    {"items", "contains", "propertyNames", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"}
)
"""Each member of the payload is a step, also where its schema says nothing."""
_EACH_SCHEMA: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "dependentSchemas"})

_UNDER_WAY: Final = 1 << 30
_IN_DEFS: Final = re.compile(r"#|#/\$defs/[^/]+")

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class StepsExceeded(Exception):
    """The budget of a check is used up."""


@dataclass(slots=True)
class _Budget:
    """Of one check, and the patterns of its schema."""

    left: int
    patterns: Mapping[str, BoundedPattern]
    error: int
    """Steps of an error."""
    depth: int = 0

    def take(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise StepsExceeded


_BUDGET: ContextVar[_Budget] = ContextVar("schema_budget")
"""Of the check that runs; keywords are plain functions that are given nothing of ours."""


class CompiledSchema:
    """A schema that was checked, ready to check payloads."""

    def __init__(self, schema: Any, patterns: Mapping[str, BoundedPattern]) -> None:
        self._validator = _validator()(schema)
        self._patterns = patterns

    def violations(self, body: bytes, steps: int = STEPS_MAX) -> tuple[Violation, ...]:
        """What does not fit, at most `VIOLATIONS_MAX`; empty: it fits. Raises `StepsExceeded` when nothing was found until then."""
        try:
            payload = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return (Violation("", "type", "JSON"),)
        found: list[Violation] = []
        mark = _BUDGET.set(_Budget(steps, self._patterns, 1 + len(body) // ERROR_BYTES))
        try:
            for error in self._validator.iter_errors(payload):
                for violation in _told(error):
                    if violation not in found:
                        found.append(violation)
                    if len(found) >= VIOLATIONS_MAX:
                        return tuple(found)
        except (StepsExceeded, RecursionError, OverflowError):
            if not found:
                raise StepsExceeded from None
        finally:
            _BUDGET.reset(mark)
        return tuple(found)


def compile_schema(document: str) -> CompiledSchema:
    """The schema in this JSON text. Raises `ConfigurationError` saying what to write instead."""
    try:
        import jsonschema
    except ImportError:
        raise ConfigurationError("event schemas need jsonschema: pip install 'gatepost[server]'") from None
    if len(document.encode()) > SCHEMA_BYTES_MAX:
        raise ConfigurationError(f"the schema has more than {SCHEMA_BYTES_MAX} bytes: describe less, or in fewer words")
    try:
        schema = json.loads(document, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ConfigurationError("the schema is not JSON") from None
    if not isinstance(schema, dict):
        raise ConfigurationError('a schema is a JSON object, such as {"type": "object"}')
    if str(schema.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        raise ConfigurationError(f"$schema is another dialect: write {DIALECT}, or leave it out")
    patterns: dict[str, BoundedPattern] = {}
    _check(schema, patterns)
    # Nothing refers to $id, and it would change what # is. By $schema the library would check with its own keywords instead of
    # ours, which count.
    schema = {key: value for key, value in schema.items() if key not in ("$id", "$schema")}
    validator = jsonschema.Draft202012Validator
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigurationError(
            f"the schema is wrong at {_pointer(error.absolute_path) or '/'}: {error.message[:300]}"
        ) from None
    compiled = CompiledSchema(schema, patterns)
    _check_references(validator, schema)
    for probe in (b"null", b"{}", b"[]", b'""', b"0"):  # what doubles at each of its references would never end
        try:
            compiled.violations(probe, STEPS_INLINE)
        except StepsExceeded:
            raise ConfigurationError(
                "the schema cannot be checked in bounded time: it looks at the same place too often"
            ) from None
    return compiled


# ---------------------------------------------------------------------------------------------- what is taken


def _check(schema: Any, patterns: dict[str, BoundedPattern]) -> None:
    """Size, depth, references and patterns, everywhere: more than needed inside `enum` and `const`, and never less."""
    todo: list[tuple[Any, int, bool]] = [(schema, 1, True)]
    nodes = 0
    while todo:
        value, depth, top = todo.pop()
        nodes += 1
        if nodes > SCHEMA_NODES_MAX or depth > SCHEMA_DEPTH_MAX:
            raise ConfigurationError(
                f"the schema is too large: at most {SCHEMA_NODES_MAX} values and {SCHEMA_DEPTH_MAX} levels are taken"
            )
        if isinstance(value, list):
            todo += [(one, depth + 1, False) for one in value]
        elif isinstance(value, dict):
            todo += [(one, depth + 1, False) for one in value.values()]
            _check_keywords(value, top, patterns)


def _check_keywords(value: Mapping[str, Any], top: bool, patterns: dict[str, BoundedPattern]) -> None:
    reference = value.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise ConfigurationError(
            f"$ref {reference[:80]!r} leads to another document, which is never fetched: copy it to $defs and write #/$defs/…"
        )
    if isinstance(value.get("$id"), str) and not top:
        raise ConfigurationError("$id inside a schema makes another document of it: leave it out")
    if isinstance(value.get("$schema"), str) and not top:
        raise ConfigurationError("$schema is taken at the beginning only: leave it out inside")
    for name, instead in _NOT_TAKEN.items():
        if name in value and isinstance(value[name], dict | str):
            raise ConfigurationError(f"{name} is not taken: {instead}")
    pattern = value.get("pattern")
    if isinstance(pattern, str) and pattern not in patterns:
        patterns[pattern] = bounded(pattern)


def _check_references(validator: type[Any], schema: Any) -> None:
    """Each one leads to a schema. What `$defs` holds was looked at with the whole; what stands elsewhere was not."""
    from jsonschema import SchemaError
    from referencing.exceptions import Unresolvable

    resolver = validator(schema)._resolver  # noqa: SLF001 - there is no public way to ask before a payload comes
    todo: list[Any] = [schema]
    objects: list[dict[str, Any]] = []
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            objects.append(value)
            reference = value.get("$ref")
            if isinstance(reference, str):
                try:
                    found = resolver.lookup(reference).contents
                    if not _IN_DEFS.fullmatch(reference) and id(found) not in seen:
                        seen.add(id(found))
                        validator.check_schema(found)
                except (
                    Unresolvable,
                    TypeError,
                    ValueError,
                ):  # the latter two: a pointer into what is no object or no list
                    raise ConfigurationError(f"$ref {reference[:80]!r} leads nowhere in this schema") from None
                except SchemaError:
                    raise ConfigurationError(f"$ref {reference[:80]!r} leads to what is no schema") from None
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    depths: dict[int, int] = {}
    for one in objects:
        _check_places(one, resolver, depths)


def _check_places(schema: Any, resolver: Any, depths: dict[int, int]) -> int:
    """How many schemas look at one place of a payload after one another; none may come back to itself."""
    if not isinstance(schema, dict):
        return 0
    known = depths.get(id(schema))
    if known is None:
        depths[id(schema)] = _UNDER_WAY
        inside = [schema.get(name) for name in ("not", "if", "then", "else")]
        for name in ("allOf", "anyOf", "oneOf"):
            inside += schema[name] if isinstance(schema.get(name), list) else ()
        inside += schema["dependentSchemas"].values() if isinstance(schema.get("dependentSchemas"), dict) else ()
        if isinstance(schema.get("$ref"), str):
            inside.append(resolver.lookup(schema["$ref"]).contents)
        known = depths[id(schema)] = 1 + max((_check_places(one, resolver, depths) for one in inside), default=0)
    if known > SAME_PLACE_MAX:
        raise ConfigurationError(
            "the schema cannot be checked in bounded time: does a $ref lead to itself, or over more than "
            f"{SAME_PLACE_MAX} others?"
        )
    return known


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are no JSON


# ---------------------------------------------------------------------------------------------------- checking


@cache
def _validator() -> Any:
    """Draft 2020-12 with keywords that count, and our own for those whose cost does not follow from their number."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def counting(name: str, keyword: Any) -> Keyword:
        weight = _weight_of(name)

        def counted(own: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            budget = _BUDGET.get()
            budget.take(weight(value, instance))
            if budget.depth >= LOOK_DEPTH_MAX:
                raise StepsExceeded
            budget.depth += 1
            try:
                for error in keyword(own, value, instance, schema) or ():
                    if error.validator.__class__ is not str:  # else it is from further inside, and counted there
                        budget.take(budget.error)
                    yield error
            finally:
                budget.depth -= 1

        return counted

    def pattern(own: Any, value: str, instance: Any, _: Any) -> Iterator[Any]:
        if not own.is_type(instance, "string"):
            return
        budget = _BUDGET.get()
        known = budget.patterns[value]
        limit = known.chars_max
        if limit is not None and len(instance) > limit:
            yield ValidationError(f"at most {limit} characters, as far as this pattern is tried")
            return
        budget.take(1 + known.steps(len(instance)) // PATTERN_STEPS)
        if known.expression.search(instance) is None:
            yield ValidationError("")

    def unique_items(own: Any, value: bool, instance: Any, _: Any) -> Iterator[Any]:
        if not value or not own.is_type(instance, "array"):
            return
        budget, seen = _BUDGET.get(), set()
        for item in instance:
            text = json.dumps(_canonical(item, budget), sort_keys=True)
            if text in seen:
                yield ValidationError("")
                return
            budget.take(len(text) // TEXT_CHARS)
            seen.add(text)

    keywords = {**Draft202012Validator.VALIDATORS, "pattern": pattern, "uniqueItems": unique_items}
    counted = {name: counting(name, keyword) for name, keyword in keywords.items()}
    return validators.extend(Draft202012Validator, counted)  # type: ignore[no-untyped-call]  # jsonschema leaves it without types


def _weight_of(name: str) -> Callable[[Any, Any], int]:
    """Steps of one keyword before what it finds inside is counted: by the schema's value and the payload's."""
    if name in _EACH_MEMBER:
        return lambda _, instance: 1 + _breadth(instance)
    if name in _EACH_SCHEMA:
        return lambda value, _: 1 + _breadth(value)
    if name in ("enum", "const"):
        return lambda value, _: 1 + (CONTAINERS if _holds_containers(value) else _breadth(value) // SMALL)
    if name == "dependentRequired":
        return lambda value, _: 1 + sum(map(len, value.values())) // SMALL
    return lambda value, instance: 1 + (_breadth(value) + _breadth(instance)) // SMALL


def _breadth(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _holds_containers(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value))


def _canonical(value: Any, budget: _Budget) -> Any:
    """1 and 1.0 are the same number."""
    budget.take()
    if isinstance(value, list):
        return [_canonical(one, budget) for one in value]
    if isinstance(value, dict):
        return {name: _canonical(one, budget) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _told(error: Any) -> Iterator[Violation]:
    """Where and what was expected, without anything of the payload."""
    keyword, value, instance = error.validator, error.validator_value, error.instance
    pointer = _pointer(error.absolute_path)
    match keyword:
        case "required":
            for name in value:
                if isinstance(instance, dict) and name not in instance:
                    yield Violation(pointer, keyword, f"a property {name!r}")
        case "additionalProperties" if value is False:
            known = error.schema.get("properties", {})
            yield Violation(pointer, keyword, _shown(f"no other properties than {', '.join(known) or 'none'}"))
        case "pattern" if error.message:
            yield Violation(pointer, keyword, error.message)
        case None:
            yield Violation(pointer, "false", "nothing here")
        case "anyOf" | "oneOf" | "allOf" | "not" | "if" | "contains" | "unevaluatedProperties" | "unevaluatedItems":
            yield Violation(pointer, keyword, f"what the schema's {keyword} says")
        case _:
            plain = keyword in ("type", "pattern") and isinstance(value, str)
            yield Violation(pointer, keyword, _shown(value if plain else json.dumps(value)))


def _shown(text: str) -> str:
    return text if len(text) <= EXPECTED_CHARS_MAX else text[: EXPECTED_CHARS_MAX - 1] + "…"


def _pointer(path: Any) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
