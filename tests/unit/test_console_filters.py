"""Values as the console shows them: figures that say enough, and text of strangers that stays text."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from markupsafe import Markup

from gatepost.service.console.filters import ago, badge, duration, given, ident, number, percent, rate, size, when
from gatepost.service.console.render import url

NOW = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0, "0 s"), (0.000_04, "40 µs"), (0.034, "34 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"),
        (1.25, "1.25 s"), (9.996, "10.0 s"), (59.4, "59.4 s"), (59.7, "1 min"), (200, "3 min 20 s"), (3_599.6, "1 h"),
        (7_500, "2 h 5 min"), (86_400, "1 d"), (99 * 86_400 + 7_200, "99 d 2 h"), (-3, "-3.00 s"),
    ],
)  # fmt: skip
def test_durations_have_the_figures_that_matter(seconds: float | None, text: str) -> None:
    """Nobody compares 34.127 ms with 2 h 5 min 3.2 s at night; and no rounding makes 60 s of a minute."""
    assert duration(seconds) == text


@for_all(st.floats(0, 1e9))
def test_every_duration_is_short_and_of_one_kind(seconds: float) -> None:
    """Whatever the number, there is a text for it."""
    assert 1 <= len(duration(seconds)) <= 16


def test_counts_sizes_and_shares_say_no_more_than_they_know() -> None:
    """What is nearly all is not all: 100 % of two million means that none failed."""
    assert [number(value) for value in (None, 0, 12_345)] == ["-", "0", "12,345"]
    assert [size(value) for value in (0, 1_023, 12_700, 3 << 20, 5 << 40)] == [
        "0 B", "1023 B", "12.4 KiB", "3.0 MiB", "5.0 TiB",
    ]  # fmt: skip
    assert [percent(value) for value in (None, 0, 0.135, 0.99999, 1)] == ["-", "0 %", "13.5 %", "99.9 %", "100 %"]
    assert [rate(value) for value in (None, 0, 0.0166, 3.8, 34.56, 12_345.6)] == [
        "-", "0/s", "0.02/s", "3.80/s", "34.6/s", "12,346/s",
    ]  # fmt: skip


def test_times_name_the_zone_and_carry_the_instant() -> None:
    """People in two time zones read the same page in one incident."""
    assert "2027-01-15 08:00:00 UTC" in when(NOW)
    assert 'datetime="2027-01-15T08:00:00.000Z"' in when(NOW)
    assert ">1 min 30 s ago<" in ago(NOW - 90_000_000, NOW)
    assert ">in 5.00 s<" in ago(NOW + 5_000_000, NOW)
    assert ">now<" in ago(NOW, NOW)
    assert when(None) == ago(None, NOW) == Markup('<span class="nothing">-</span>')


@for_all(st.text(min_size=1, max_size=300))
def test_text_of_strangers_stays_text_and_bounded(text: str) -> None:
    """Markup is escaped, nothing invisible or direction-changing is left, and a cell holds what a cell can."""
    for shown in (given(text), badge(text), ident(text), given(text, 10)):
        inside = str(shown)
        for ours in ('<bdi class="given">', "</bdi>", "</span>", "</code>", '<code class="id">'):
            inside = inside.replace(ours, "")
        for tone in ("good", "bad", "warn", "plain"):
            inside = inside.replace(f'<span class="badge {tone}">', "")
        inside = inside.replace(f'<span class="cut" title="{len(text)} characters">', "")
        assert "<" not in inside
        assert '"' not in inside
    for hidden in "\u202e\u200b\x00\x1b\u2066\ufeff":
        assert hidden not in given(text + hidden)
    assert "…" in given("x" * 11, 10)


def test_links_quote_what_they_are_given() -> None:
    """An id from a query must not become a path or another parameter."""
    assert url("/endpoints", "../x?y#z") == "/console/endpoints/..%2Fx%3Fy%23z"
    assert url("/deliveries", tenant='a&b="', after=None, type="") == "/console/deliveries?tenant=a%26b%3D%22"
    assert url("/") == "/console/"
