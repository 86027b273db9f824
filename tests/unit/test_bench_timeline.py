"""The picture of one endpoint's limits, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.timeline import SPELLS, story_of
from bench.timeline_svg import Sample, draw
from gatepost.admission.adapt import AdaptRules
from gatepost.admission.alerts import RISE
from gatepost.admission.breaker import BreakerRules
from gatepost.admission.concurrency import CAP_MAX, CUT

DOCS = Path(__file__).parents[2] / "docs" / "explanation"


def sample(at: float, breaker: str, *, timeout: float = 2.5, cap: int = 6, attempts: int = 0) -> Sample:
    """A look at an endpoint with nothing in flight."""
    cause = None if breaker == "closed" else "timeouts"
    return Sample(at, breaker, cause, timeout, cap, 0, attempts, attempts, 3)


RUN = [
    sample(0.25, "closed"),
    sample(12.0, "closed", timeout=0.75, attempts=200),
    sample(16.0, "open", timeout=0.75, cap=0, attempts=290),
    sample(24.0, "probing", timeout=0.75, cap=1, attempts=291),
    sample(28.0, "ramping", cap=1, attempts=295),
    sample(30.0, "closed", cap=4, attempts=299),
    sample(41.0, "closed", cap=5, attempts=320),
    sample(43.0, "open", cap=0, attempts=326),
    sample(57.0, "open", cap=0, attempts=327),
    sample(62.0, "closed", attempts=400),
    sample(85.0, "closed", attempts=900),
]


def test_a_run_is_told_by_its_samples() -> None:
    """The command fails when a breaker did not open or an endpoint was not served again."""
    story = story_of(RUN)
    assert (story.learned_at, story.slow_opened_at, story.slow_served_at) == (12.0, 16.0, 30.0)
    assert (story.dead_opened_at, story.well_served_at, story.attempts_while_dead) == (43.0, 62.0, 80)
    assert story_of([RUN[0], RUN[1]]).slow_opened_at is None


def test_the_picture_is_well_formed_and_holds_every_state() -> None:
    """A broken file shows as nothing at all on the page."""
    root = ElementTree.fromstring(draw(RUN, SPELLS))
    words = {element.text for element in root.iter() if element.text}
    assert {"closed", "open", "probing", "ramping", "well, 0.05 s", "dead", "timeouts"} <= words
    band = [one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("height") == "22"]
    assert len(band) == 7, "neighbours in one state are one piece"


def test_the_committed_picture_is_of_a_whole_run() -> None:
    """All four spells, to the end."""
    root = ElementTree.fromstring((DOCS / "timeline.svg").read_text(encoding="utf-8"))
    words = {element.text for element in root.iter() if element.text}
    assert {f"{at} s" for at in range(0, 90, 10)} <= words
    assert {"dead", "well again, 0.05 s"} <= words


def test_the_page_names_the_numbers_of_the_code() -> None:
    """A page about limits that others have changed since would mislead at 3 a.m."""
    page = " ".join((DOCS / "limits.md").read_text(encoding="utf-8").split())
    adapt, breaker = AdaptRules(), BreakerRules()
    for words in (
        f"{adapt.factor:g} times the 99th percentile",
        f"between {adapt.floor:g} and {adapt.ceiling:g} s",
        f"from {adapt.record_from} responses on and in force from {adapt.force_from}",
        f"between 1 and {CAP_MAX}",
        f"rises by {RISE * 100:g} points",
        f"slow ({breaker.slow_after:g} s, or half of its read timeout)",
        f"first pause is {breaker.open_first:g} s",
        f"up to {breaker.open_max / 60:g} minutes",
        f"at least {breaker.probe_limit:g} s to answer",
    ):
        assert words in page, words
    assert (breaker.calls_min, breaker.consecutive, breaker.probes, breaker.slow_window) == (10, 5, 3, 20)
    assert (breaker.failure_share, breaker.slow_share, breaker.held_share, breaker.jitter) == (0.5, 0.5, 0.8, 0.2)
    assert (breaker.slow_of_timeout, breaker.steady_after, CUT) == (0.5, 600.0, 0.7)
