"""What the console makes of other people's bytes: payloads as text, requests with their secrets masked, drawings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatepost.admission.outcome_hours import Hour
from gatepost.delivery.records import Endpoint, EndpointSecret, Secret
from gatepost.dispatch.policy_watch import Turn
from gatepost.service.console.charts import breaker_strip, outcome_mix, phase_bar
from gatepost.service.console.payload_text import LAID_OUT_BYTES_MAX, payload_text
from gatepost.service.console.shown_request import shown_request
from gatepost.store.postgres import views as postgres_views
from gatepost.store.rows import PROMPT_US
from gatepost.store.sqlite import views as sqlite_views

HOUR = 3_600_000_000
MIGRATIONS = Path(postgres_views.__file__).parents[1] / "migrations"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [1, 2.50, {"b": "x, {y} : [z] \\" \\\\"}, [], {}], "a": 1e400, "c": null}',
        b"[]",
        b"{}",
        b'[["deep"], {"k": {"l": [true]}}]',
        b'  {"not": "at the start"}',
    ],
)
def test_laid_out_json_has_the_tokens_that_were_sent(body: bytes) -> None:
    """Whoever compares a payload with their own log must find each number, escape and doubled key as it was sent."""
    shown = payload_text(body)
    assert "".join(shown.text.split()) == "".join(body.decode().split())
    assert (shown.size, shown.complete) == (len(body), True)
    assert shown.kind == ("text" if body.startswith(b" ") else "JSON")


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "empty", ""),
        (b"a=1&b=<script>", "text", "a=1&b=<script>"),
        (b"{broken", "text", "{broken"),
        (b"\xff\x00\n", "bytes", "\\xff\\u0000\n"),
        ("\u202eevil\u2066\u200b".encode(), "text", "\\u202eevil\\u2066\\u200b"),
        ("grün 木".encode(), "text", "grün 木"),
        (b"[" * 20_000 + b"]" * 20_000, "text", "[" * 20_000 + "]" * 20_000),
    ],
)
def test_whatever_came_is_text(body: bytes, kind: str, text: str) -> None:
    """Forms, broken JSON, bytes, and characters that would hide or turn round what is beside them."""
    shown = payload_text(body)
    assert (shown.kind, shown.text, shown.complete) == (kind, text, True)


def test_what_is_shown_is_bounded() -> None:
    """A page of a megabyte helps nobody, and laying one out would hold up everybody."""
    for body, limit in (
        (b"x" * 1_048_576, 65_536),
        (json.dumps(["x"] * 300_000).encode(), 65_536),
        (json.dumps({"a": list(range(15_000))}).encode(), 1_000),
        (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", 65_536),
        ("é".encode() * 100, 33),
    ):
        shown = payload_text(body, limit)
        assert len(shown.text) <= limit
        assert (shown.complete, shown.size) == (False, len(body))
    assert payload_text(b"[" + b"1," * LAID_OUT_BYTES_MAX + b"1]").kind == "text"


def test_a_request_shows_no_secret() -> None:
    """Signatures, one for each secret that signs, and values of own headers; everything else as it is sent."""
    secrets = (
        EndpointSecret(Secret("whsec_bmV3"), 5),
        EndpointSecret(Secret("whsec_b2xk"), 1, expires_at=2_000_000),
        EndpointSecret(Secret("whsec_Z29uZQ"), 1, expires_at=1),
    )
    endpoint = Endpoint(id="ep_0", tenant="t", url="https://a.example/", secrets=secrets, headers={"X-Token": "hush"})
    shown = shown_request(endpoint, "a.example", "/x?y=1", "evt_1", 1_500_000, "text/plain", 7)
    assert shown.split("\n")[0] == "POST /x?y=1 HTTP/1.1"
    assert "webhook-signature: v1,*** v1,***\n" in shown
    assert "x-token: ***\n" in shown
    assert "webhook-timestamp: 1\n" in shown
    assert not [secret for secret in ("hush", "bmV3", "b2xk") if secret in shown]


def test_drawings_say_in_words_what_they_show() -> None:
    """Each has a label for those who do not see it, escaped; nothing is drawn outside of its frame."""
    now = 500_000 * HOUR + 5
    mix = outcome_mix(
        [Hour((500_000 - 23) * HOUR, (1, 0, 0, 2, 0, 0, 0)), Hour(500_000 * HOUR, (1_000, 0, 0, 0, 0, 0, 1))], now
    )
    assert 'aria-label="Attempts by the hour over the last 24 hours, at most 1,001 an hour"' in mix
    assert mix.count("<rect") == 4
    bar = phase_bar({"connect": 0.1, "wait": 0.9, "read": 0.0}, 1.0)
    assert 'aria-label="connect 100 ms, wait 900 ms, read 0 s"' in bar
    assert bar.count("<rect") == 2
    assert "no phase was reached" in phase_bar({}, 0.0)
    strip = breaker_strip([Turn(now - HOUR, "open", "slow", 0, now), Turn(now - 1_000, '"><script>', "", 0, 0)], now)
    assert "<script>" not in strip
    assert strip.count("<rect") == 2
    assert breaker_strip([], now) == ""


def test_prompt_attempts_are_told_apart_in_one_way() -> None:
    """The queries repeat the condition of their index word for word: another one would read the whole log."""
    for engine, condition in (("postgres", postgres_views.REMARKABLE), ("sqlite", sqlite_views.REMARKABLE)):
        [step] = (MIGRATIONS / engine).glob("*_pre_console.sql")
        assert f"WHERE {condition};" in step.read_text()
        assert condition.endswith(f"+ {PROMPT_US // 1_000}")
