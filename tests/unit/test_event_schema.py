"""Schemas of event types: what is taken as one, what is said of a payload, and that no check runs without end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gatepost.dispatch.event_schema import (
    DIALECT,
    SCHEMA_BYTES_MAX,
    STEPS_INLINE,
    VIOLATIONS_MAX,
    StepsExceeded,
    compile_schema,
)
from gatepost.dispatch.schema_patterns import STEPS_MAX, bounded
from gatepost.errors import ConfigurationError, Violation

ORDER = {
    "type": "object",
    "required": ["number", "lines"],
    "additionalProperties": False,
    "properties": {
        "number": {"type": "integer", "minimum": 1},
        "a/b~c": {"const": "x"},
        "lines": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}}}},
}
DOUBLING = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(15)} | {"a15": {"type": "null"}}
SECRET = "secret-value"


def told(schema: Any, payload: Any) -> list[tuple[str, str, str]]:
    """What is said of a payload."""
    found = compile_schema(json.dumps(schema)).violations(json.dumps(payload).encode())
    return [(one.pointer, one.keyword, one.expected) for one in found]


def test_each_violation_says_where_and_what_was_expected_and_repeats_nothing() -> None:
    """A producer mends its program by it; the payload may be somebody's address."""
    payload = {"number": 0, "a/b~c": SECRET, SECRET: SECRET, "lines": [{"sku": SECRET}, {"sku": SECRET}, 7]}
    found = told(ORDER, payload)
    assert set(found) == {
        ("", "additionalProperties", "no other properties than number, a/b~c, lines"),
        ("/number", "minimum", "1"),
        ("/a~1b~0c", "const", '"x"'),
        ("/lines", "uniqueItems", "true"),
        ("/lines/0/sku", "pattern", "^[A-Z]{2}-[0-9]+$"),
        ("/lines/1/sku", "pattern", "^[A-Z]{2}-[0-9]+$"),
        ("/lines/2", "type", "object"),
    }
    assert told(ORDER, {}) == [("", "required", "a property 'number'"), ("", "required", "a property 'lines'")]
    assert told(ORDER, {"number": 1, "lines": [{"sku": "AB-1"}]}) == []
    assert SECRET not in str(found)
    assert len(told({"items": {"type": "null"}}, list(range(50)))) == VIOLATIONS_MAX


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"$ref": "https://example.com/a.json"}', "never fetched"),
        ('{"properties": {"a": {"$ref": "file:///etc/passwd"}}}', "never fetched"),
        ('{"$ref": "other.json"}', "never fetched"),
        ('{"$ref": "#/$defs/none"}', "leads nowhere"),
        ('{"$ref": "#"}', "bounded time"),
        ('{"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}', "bounded time"),
        ('{"properties": {"a": {"$id": "https://example.com/b"}}}', "another document"),
        ('{"$schema": "http://json-schema.org/draft-07/schema#"}', "another dialect"),
        ('{"patternProperties": {"^a": {}}}', "not taken"),
        ('{"$dynamicRef": "#a"}', "not taken"),
        ('{"type": "objekt"}', "wrong at /type"),
        ('{"pattern": "(a+)+$"}', "without end"),
        ('{"$schema": 5}', "another dialect"),
        ('{"properties": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}}', "at the beginning only"),
        ('{"properties": {"a": {"$ref": "#/foo"}}, "foo": {"minLength": "x"}}', "no schema"),
        ('{"foo": [], "$ref": "#/foo/a"}', "leads nowhere"),
        ('{"title": "t", "$ref": "#/title/a"}', "leads nowhere"),
        ('{"items": {"unevaluatedItems": false, "if": {"minItems": 1}, "then": {"$ref": "#/items"}}}', "bounded time"),
        (
            json.dumps({"$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(99)} | {"a99": {}}}),
            "bounded time",
        ),
        (json.dumps({"$defs": DOUBLING, "$ref": "#/$defs/a0"}), "too often"),
        ("[]", "JSON object"),
        ('{"a": NaN}', "not JSON"),
        ("[" * 5_000, "not JSON"),
        ('{"not":' * 40 + "{}" + "}" * 40, "too large"),
        (json.dumps({"enum": list(range(3_000))}), "too large"),
        (json.dumps({"description": "x" * SCHEMA_BYTES_MAX}), "bytes"),
    ],
)
def test_what_is_no_safe_schema_is_refused_with_what_to_write(schema: str, said: str) -> None:
    """Nobody fetches a tenant's URL, and nobody's pattern holds up the others."""
    with pytest.raises(ConfigurationError, match=said):
        compile_schema(schema)


@pytest.mark.parametrize(
    ("pattern", "chars_max"),
    [
        ("^[a-z]+$", STEPS_MAX),
        ("[a-z]+", 1_000),
        ("^[^@]+@[^@]+$", 1_000),
        (r"^[^@]+@[^@]+\.[^@]+$", 100),
        ("^evt_[0-9a-f]{32}$", None),
        ("^(?:red|green)$", None),
        ("^(a|b)(c|d)x{1,5}$", None),
        (r"^[\]\[|()+*]?\(\|$", None),
        ("^a|b", STEPS_MAX // 2),
        (r"^[a-z]{2,63}@[a-z]{2,63}(?:\.[a-z]{2,63})?$", None),
        ("^a{,5}$", None),
        ("[ab]{400}c", STEPS_MAX // 50),
    ],
)
def test_a_pattern_is_tried_on_as_much_text_as_takes_a_million_steps(pattern: str, chars_max: int | None) -> None:
    """Said at registration by the limit, and to a producer by the violation."""
    found = bounded(pattern)
    assert found.chars_max == chars_max
    if chars_max is not None:
        assert found.steps(chars_max) <= STEPS_MAX * 1.01


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a*)*",
        "(?:a|aa)+",
        "((ab)?c)*",
        "(a+){2,9}",
        "(a|a){,}b",
        "(a*){,50}b",
        r"(?:\b){9}",
        "(?:(?:){99}){99}",
        "^(?:(?:a{999}){999}){999}",
        "a{,900}b{,900}c{,900}",
        "(a|b){3}",
        "(?=a)",
        r"(a)\1",
        "(?i)a",
        "(?>a)",
        "a)",
        "(",
        "[",
        "^" + "(a|b)" * 30,
        "a{1,900}b{1,900}c{1,900}",
        "x" * 501,
    ],
)
def test_a_pattern_that_may_run_without_end_is_refused(pattern: str) -> None:
    """Also some that would not, since nobody can tell cheaply."""
    with pytest.raises(ConfigurationError):
        bounded(pattern)


def test_no_check_takes_long_whatever_schema_and_payload_say() -> None:
    """The worst that one can write within the bounds ends within the budget."""
    worst = {
        "type": "array",
        "contains": {"anyOf": [{"type": "string", "pattern": "[a-z]+b$", "minLength": n} for n in range(300)]},
    }
    schema = compile_schema(json.dumps(worst))
    body = json.dumps(["a" * 31] * 400).encode()
    began = time.monotonic()
    with pytest.raises(StepsExceeded):
        schema.violations(body, STEPS_INLINE)
    with pytest.raises(StepsExceeded):
        schema.violations(body)
    assert time.monotonic() - began < 10
    deep = compile_schema('{"items": {"$ref": "#"}}')
    with pytest.raises(StepsExceeded):
        deep.violations(b"[" * 900 + b"]" * 900)
    assert deep.violations(b"[" * 100_000)[0].expected == "JSON"


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"allOf": [{"items": {}}] * 600}, [0] * 5_000),
        ({"items": {"enum": [f"p{n}" for n in range(1_900)]}}, ["p1899"] * 3_000),
        ({"items": {"const": [[0] * 100] * 10}}, [[[0] * 100] * 10] * 15),
        ({"anyOf": [{"type": "string"}] * 600}, [[0] * 5_000]),
        (
            {"$schema": DIALECT, "properties": {"a": {"$ref": "#"}, "b": {"allOf": [{"items": {}}] * 300}}},
            {"a": {"b": [0] * 5_000}},
        ),
        ({"required": [f"p{n}" for n in range(1_900)]}, {}),
    ],
)
def test_steps_count_what_a_keyword_costs_on_the_event_loop(schema: dict[str, Any], payload: Any) -> None:
    """Long lists, values compared one by one, errors that hold the payload: seconds in which nobody else was served."""
    compiled = compile_schema(json.dumps(schema))
    body = json.dumps(payload).encode()
    began = time.monotonic()
    try:
        compiled.violations(body, STEPS_INLINE)
    except StepsExceeded:
        pass
    assert time.monotonic() - began < 0.5, "some 20 ms when nothing else runs"


def test_a_deep_payload_ends_a_check_long_before_the_interpreters_stack() -> None:
    """At its end a library below panics, which is no `Exception`, and writes thousands of lines."""
    deep = compile_schema('{"not": {"items": {"$ref": "#"}}}')
    for depth in (30, 300, 900):
        with pytest.raises(StepsExceeded):
            deep.violations(b"[" * depth + b"]" * depth)


def test_what_was_found_is_told_when_the_steps_are_used_up() -> None:
    """A large payload with a mistake at its beginning is told the mistake."""
    schema = compile_schema('{"items": {"type": "integer"}}')
    assert schema.violations(json.dumps(["x", *range(30_000)]).encode(), 32_000) == (
        Violation("/0", "type", "integer"),
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "a", "ab"])
    | st.sampled_from([0.0, 1.0, 1.5]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    payload=JSON,
    schema=st.fixed_dictionaries(
        {},
        optional={
            "uniqueItems": st.booleans(),
            "type": st.sampled_from(["object", "array", "number", "integer", "string"]),
            "items": st.sampled_from([{"type": "integer"}, {"pattern": "^a"}]),
            "required": st.just(["a"]),
            "not": st.sampled_from([{"type": "array"}, {"const": 1}]),
        },
    ),
)
def test_it_agrees_with_the_library_on_what_fits(payload: Any, schema: dict[str, Any]) -> None:
    """Our own `pattern` and `uniqueItems` are cheaper, not different."""
    fits = Draft202012Validator(schema).is_valid(payload)
    assert (told(schema, payload) == []) is fits
