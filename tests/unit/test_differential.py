"""Our reader against others: every difference over mutated responses has a name, a row in the documentation, and a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.differential import DIFFERENT, aiohttp_reader, by_h11, compare, difference, ours
from tests.faults.kit import head

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "engine.md"
COUNT = 4_000


@pytest.mark.parametrize("seed", [11, 12])
def test_every_difference_from_h11_is_one_we_chose(seed: int) -> None:
    """An unexplained one is a bug of ours or of theirs; either way somebody must look."""
    found, examples = compare(COUNT, seed, by_h11)
    assert set(found) <= set(DIFFERENT), {name: examples[name] for name in set(found) - set(DIFFERENT)}
    assert found.total() < COUNT / 10, "most responses mean the same to both"


def test_every_difference_from_aiohttp_is_one_we_chose() -> None:
    """It uses llhttp as we do for chunks, with its own settings around it."""
    pytest.importorskip("aiohttp", reason="aiohttp is in the dependency group bench")
    with aiohttp_reader() as read:
        found, examples = compare(COUNT, 13, read)
    assert set(found) <= set(DIFFERENT), {name: examples[name] for name in set(found) - set(DIFFERENT)}


CHOSEN = [
    ("accepts doubtful-framing", head("Content-Length: +5") + b"hello"),
    ("accepts empty-lines", b"\r\n" + head("Content-Length: 0")),
    ("accepts blanks", b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("accepts length-beside-coding", head("Content-Length: x", "Transfer-Encoding: chunked") + b"0\r\n\r\n"),
    ("refuses version", b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("refuses control", head("X-A: \x12", "Content-Length: 0")),
    ("reuses 1.0-keep-alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"),
]


@pytest.mark.parametrize(("name", "raw"), CHOSEN, ids=[case[0] for case in CHOSEN])
def test_the_named_differences_are_real(name: str, raw: bytes) -> None:
    """A row of the page that no longer holds would mislead."""
    assert difference(raw, ours(raw), by_h11(raw)) == name


SAME = [
    head("Content-Length: 2") + b"ok",
    head("Content-Length: 0"),
    head("Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\n\r\n",
    head("Transfer-Encoding: chunked") + b"2;a=b\r\nok\r\n0\r\nX: 1\r\n\r\n",
    head(status="204 No Content"),
    head() + b"until the end",
    head("Content-Length: 5") + b"cut",
    b"HTTP/1.1 100 Continue\r\n\r\n" + head("Content-Length: 0"),
    b"SSH-2.0-x\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("raw", SAME, ids=ascii)
def test_plain_responses_mean_the_same_to_both(raw: bytes) -> None:
    """Status, body, end and reuse."""
    assert ours(raw) == by_h11(raw)


def test_the_page_has_a_row_for_each_difference() -> None:
    """With what we do; the reason stands behind it."""
    rows = re.findall(
        r"^\| `((?:accepts|refuses|cuts|reuses) [^`]+)` \| ([^|]+?) \| [^|]+ \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert dict(rows) == DIFFERENT


def test_the_page_names_only_tests_that_exist() -> None:
    """A row per rule of RFC 9112 with its test: a renamed test must not leave a dead name."""
    root = PAGE.parents[2]
    named = re.findall(r"`(tests/[a-z_/0-9]+\.py)::(test_[a-z_0-9]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 25
    for path, name in named:
        assert re.search(rf"def {name}\b", (root / path).read_text()), (path, name)
