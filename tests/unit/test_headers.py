"""Which headers an endpoint may add: one line break in a value would be a second request.

`tests/data/egress.json` holds the refusals of other webhook senders as cases; its header stage is tested here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.wire.headers import (
    CLIENT_NAMES,
    NAME_BYTES_MAX,
    VALUE_BYTES_MAX,
    HeaderRefused,
    check_header,
    check_headers,
    check_name,
    check_value,
)
from gatepost.wire.reasons import Reason

CASES: list[dict[str, Any]] = [
    case
    for case in json.loads((Path(__file__).parent.parent / "data" / "egress.json").read_text(encoding="utf-8"))["cases"]
    if case["stage"] == "header"
]


def refused(code: Reason, name: Any, value: Any = "x", **options: bool) -> str:
    """Demand a refusal with `code`, and return its text."""
    with pytest.raises(HeaderRefused) as caught:
        check_header(name, value, **options)
    assert caught.value.code is code
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_cases(case: dict[str, Any]) -> None:
    """Each was an injection or smuggling bug somewhere."""
    name, value = case["header"]
    if case["expect"] == "allow":
        assert check_header(name, value) == name.lower()
    else:
        refused(Reason(case["reason_code"]), name, value)


@pytest.mark.parametrize("name", [*sorted(CLIENT_NAMES), "Proxy-Authorization", "Sec-Fetch-Mode", "HOST"])
def test_fields_of_the_client_are_refused_in_any_case(name: str) -> None:
    """Two Content-Length fields, or an Expect that we would not honour."""
    refused(Reason.HEADER_FORBIDDEN, name)
    refused(Reason.HEADER_FORBIDDEN, name.title(), allow_webhook=True)


def test_signature_fields_are_reserved_unless_the_caller_signs() -> None:
    """An endpoint's header must not replace the signature; a caller of the client may bring his own."""
    assert "webhook-" in refused(Reason.HEADER_FORBIDDEN, "Webhook-Signature")
    assert check_header("Webhook-Signature", "v1,x", allow_webhook=True) == "webhook-signature"


@pytest.mark.parametrize("value", ["", "a", "a b\tc", "\u0021~", "x" * VALUE_BYTES_MAX])
def test_ordinary_values_pass(value: str) -> None:
    """Tokens, dates, lists and empty values are all in use."""
    check_value("x-tenant", value)


@pytest.mark.parametrize("value", [" ", "a ", "\ta", "a\x0bb", "\u010a", "\u2028", "a\x7f"])
def test_edges_and_look_alikes_of_line_breaks_are_refused(value: str) -> None:
    """U+010A is written as LF by anything that keeps the low byte."""
    assert "X-Tenant" in refused(Reason.HEADER_VALUE_INVALID, "X-Tenant", value)


def test_lengths_are_bounded() -> None:
    """A receiver refuses the whole request otherwise, for a reason nobody sees."""
    refused(Reason.HEADER_TOO_LONG, "x" * (NAME_BYTES_MAX + 1))
    refused(Reason.HEADER_TOO_LONG, "x", "x" * (VALUE_BYTES_MAX + 1))
    assert check_name("x" * NAME_BYTES_MAX) == "x" * NAME_BYTES_MAX


def test_refusals_never_show_the_value() -> None:
    """It is often a credential."""
    for value in ("Bearer s3cret\n", "s3cret" * 1000):
        with pytest.raises(HeaderRefused) as caught:
            check_header("Authorization", value)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(HeaderRefused, match="'Authorization' with a colon") as caught:
        check_header("Authorization: Bearer s3cret", "")  # a whole line, pasted where the name belongs
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [(b"x", "y"), ("x", b"y"), (1, "y"), ("x", None)])
def test_only_text_is_accepted(name: Any, value: Any) -> None:
    """bytes would need a charset that nobody named."""
    with pytest.raises(TypeError, match="str"):
        check_header(name, value)


def test_a_set_of_headers_is_checked_whole() -> None:
    """Names come back in lower case; one name in two spellings would be sent twice."""
    assert check_headers({"X-Tenant": "a", "Authorization": "b"}) == {"x-tenant": "a", "authorization": "b"}
    assert check_headers({"webhook-id": "a"}, allow_webhook=True) == {"webhook-id": "a"}
    with pytest.raises(HeaderRefused, match="twice"):
        check_headers({"X-Tenant": "a", "x-tenant": "b"})


@given(name=st.text(max_size=12), value=st.text(max_size=12))
def test_what_passes_is_one_line_of_ascii(name: str, value: str) -> None:
    """Whatever is thrown at it."""
    try:
        field = check_header(name, value)
    except HeaderRefused:
        return
    line = f"{field}: {value}".encode("ascii")
    assert len(line.splitlines()) == 1
    assert line.partition(b": ")[2].strip() == value.encode()
