"""A rollout as a machine: holds, nights, verdicts and ends; and the comparison that its verdicts come from, on made-up fleets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatepost.admission.compare import CONFIDENT, SURE, Case, Ending, Finding, Verdict, compare, student
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import (
    Abort,
    Evidence,
    Go,
    Rollout,
    RolloutPlan,
    Stage,
    Stay,
    Step,
    abort,
    cohort_of,
    following,
    step,
)
from gatepost.delivery.policy_layers import LayerName, LayerValue
from gatepost.errors import ConfigurationError, Conflict
from gatepost.testing.virtual import SeededEntropy

HOUR = 3_600_000_000
DAY = 24 * HOUR
NOON = 20_000 * DAY + 12 * HOUR
VALUES = {"read_timeout": LayerValue(8.0, by="alice", at=1, why="w")}
PROCESSES = ("a-1", "b-1")


def verdict(finding: Finding, *, effect: float = 0.0, sure_low: float = -1.0) -> Verdict:
    """What a comparison may say."""
    return Verdict(finding, effect, -0.01, 0.01, sure_low, 10, 10, 1_000)


def rollout(stage: Stage = Stage.SHADOW, *, share: float = 0.0, plan: RolloutPlan | None = None) -> Rollout:
    """One that reached this stage at noon."""
    canary = "a-1" if stage is Stage.CANARY else None
    return Rollout(1, VALUES, plan or RolloutPlan(), stage, 1, NOON, NOON, "alice", "w", share=share, canary=canary)


def evidence(
    found: Verdict | None = None, *, shadowed: int = 100, losses: int = 0, processes: tuple[str, ...] = PROCESSES
) -> Evidence:
    """What a look found."""
    return Evidence(found, shadowed, losses, processes)


def stayed(found: Step) -> str:
    """Why nothing changes."""
    assert isinstance(found, Stay)
    return found.why


def gone(found: Step) -> Rollout:
    """The next stage."""
    assert isinstance(found, Go)
    return found.rollout


GOOD = verdict(Finding.GOOD)
UNSURE = verdict(Finding.INCONCLUSIVE)
BAD = verdict(Finding.BAD, effect=0.02)


@pytest.mark.parametrize(
    ("since", "hold", "until"),
    [
        (NOON, 86_400.0, NOON + DAY),
        (NOON, 3_600.0, NOON + 18 * HOUR),  # the night of that day ends at six
        (NOON - 12 * HOUR, 3_600.0, NOON - 6 * HOUR),  # it began at midnight sharp: that night is whole
        (NOON - 11 * HOUR, 3_600.0, NOON + 18 * HOUR),  # one that had begun does not count
    ],
)
def test_a_stage_lasts_its_hold_and_a_whole_night(since: int, hold: float, until: int) -> None:
    """Batches run at night: a stage that saw none of them proved nothing about them."""
    assert RolloutPlan(cohort_hold=hold).held_until(Stage.COHORT, since) == until


def test_the_night_is_that_of_the_zone_that_was_named() -> None:
    """A night in Auckland is a day in London."""
    plan = RolloutPlan(cohort_hold=0.0, utc_offset=12.0)
    assert plan.held_until(Stage.COHORT, NOON) == NOON + 6 * HOUR  # noon in UTC is midnight there
    assert RolloutPlan(cohort_hold=5.0, night=None).held_until(Stage.COHORT, NOON) == NOON + 5_000_000


def test_a_night_may_cross_midnight_and_is_whole_where_clocks_change() -> None:
    """Batches often begin at ten in the evening. An hour more on each side covers a zone in summer and in winter."""
    plan = RolloutPlan(cohort_hold=0.0, night=(22.0, 5.0))
    assert plan.held_until(Stage.COHORT, NOON) == NOON + 17 * HOUR
    assert plan.held_until(Stage.COHORT, NOON + 10 * HOUR) == NOON + 17 * HOUR
    assert plan.held_until(Stage.COHORT, NOON + 11 * HOUR) == NOON + 41 * HOUR
    assert replace(plan, utc_offset=-5.0).held_until(Stage.COHORT, NOON) == NOON + 22 * HOUR
    assert RolloutPlan(cohort_hold=0.0, night=(20.0, 24.0)).held_until(Stage.COHORT, NOON) == NOON + 12 * HOUR
    assert RolloutPlan(cohort_hold=0.0, night=(0.0, 24.0)).held_until(Stage.COHORT, NOON) == NOON + 36 * HOUR
    for night in ((6.0, 6.0), (0.0, 25.0), (-1.0, 5.0)):
        with pytest.raises(ConfigurationError, match="two hours of the day"):
            RolloutPlan(night=night)


def test_a_canary_is_one_process_where_several_have_one_name() -> None:
    """Replicas of a container have one configuration, and so one name: a stage on all of them would be no canary."""
    same = ("m-1", "m-2", "m-3")
    after = following(rollout(), same, NOON, "")
    assert (after.stage, after.canary, after.canary_exact) == (Stage.CANARY, "m-1", True)
    book = PolicyBook(rollout=rollout()).at(after)
    assert [book.is_canary(one) for one in (*same, "m-9")] == [True, False, False, False]
    assert PolicyBook.from_text(book.to_text()) == book
    assert "abort" in stayed(step(after, evidence(GOOD, processes=same[1:]), NOON + 2 * DAY))
    named = following(replace(rollout(), canary="m-2"), same, NOON, "")
    assert (named.canary, named.canary_exact) == ("m-2", True)
    alone = following(rollout(), PROCESSES, NOON, "")
    assert (alone.canary, alone.canary_exact) == ("a-1", False)
    assert not PolicyBook(rollout=after).at(abort(after, "w", NOON)).is_canary("m-1")


def test_every_stage_waits_for_its_hold_and_a_good_verdict() -> None:
    """Shadow, canary, three cohorts, all: nothing goes on by time alone, and an inconclusive verdict never does."""
    now = NOON
    current = rollout()
    stages = [(current.stage, current.share)]
    assert "no delivery was judged" in stayed(step(current, evidence(shadowed=0), now + 2 * DAY))
    assert "3 endpoints would lose" in stayed(step(current, evidence(losses=3), now + 2 * DAY))
    while current.running:
        found = None if current.stage is Stage.SHADOW else GOOD
        assert isinstance(step(current, evidence(found), now + DAY - 1), Stay)
        if found is not None:
            assert stayed(step(current, evidence(UNSURE), now + 30 * DAY)) == str(UNSURE)
        now += DAY
        current = gone(step(current, evidence(found), now))
        assert current.stage_at == now
        stages.append((current.stage, current.share))
    assert stages == [
        (Stage.SHADOW, 0.0),
        (Stage.CANARY, 0.0),
        (Stage.COHORT, 0.01),
        (Stage.COHORT, 0.1),
        (Stage.COHORT, 0.5),
        (Stage.ALL, 1.0),
    ]
    with pytest.raises(ValueError, match="has ended"):
        step(current, evidence(GOOD), now)


def test_what_no_shadow_can_judge_is_left_to_the_canary() -> None:
    """A size of bodies or an age of connections shows in no attempt without it; the stage lasts its hold and says so."""
    sizes = {"max_response_body": LayerValue(100, by="alice", at=1, why="w"), **VALUES}
    assert PolicyBook().begin(sizes, RolloutPlan(), "a", "w", NOON, None).shadow == VALUES
    current = replace(rollout(), values={"max_response_body": sizes["max_response_body"]})
    assert "cannot judge max_response_body" in stayed(step(current, evidence(shadowed=0), NOON))
    assert gone(step(current, evidence(shadowed=0), NOON + DAY)).stage is Stage.CANARY


def test_harm_ends_it_at_once_when_it_is_certain_and_at_the_end_of_the_hold_when_it_is_likely() -> None:
    """The old values come back without anybody being woken first."""
    certain = verdict(Finding.BAD, effect=0.02, sure_low=0.01)
    current = rollout(Stage.COHORT, share=0.1)
    at_once = step(current, evidence(certain), NOON + HOUR)
    assert isinstance(at_once, Abort)
    assert at_once.rollout.stage is Stage.ABORTED
    assert isinstance(step(current, evidence(BAD), NOON + HOUR), Stay)
    assert isinstance(step(current, evidence(BAD), NOON + DAY), Abort)


def test_a_canary_that_died_is_waited_for_and_may_come_back_under_its_new_name() -> None:
    """What is drawn at each start is no part of who it is."""
    current = rollout(Stage.CANARY)
    assert "not alive" in stayed(step(current, evidence(GOOD, processes=("b-1",)), NOON + 2 * DAY))
    assert gone(step(current, evidence(GOOD, processes=("a-77", "b-1")), NOON + 2 * DAY)).stage is Stage.COHORT


def test_a_single_process_has_no_peers_and_skips_the_canary() -> None:
    """And says so."""
    after = following(rollout(), ("a-1",), NOON, "")
    assert (after.stage, after.share) == (Stage.COHORT, 0.01)
    assert "one process only" in after.skipped


def test_an_end_is_an_end_except_that_all_may_still_be_aborted() -> None:
    """The change that turned out wrong a week later is taken back by the same command."""
    done = rollout(Stage.ALL)
    with pytest.raises(Conflict, match="has ended"):
        following(done, PROCESSES, NOON, "")
    aborted = abort(done, "why", NOON)
    assert aborted.stage is Stage.ABORTED
    with pytest.raises(Conflict, match="aborted before: why"):
        abort(aborted, "again", NOON)


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ({"shares": (0.5, 0.1)}, "rising"),
        ({"shares": ()}, "rising"),
        ({"shares": (0.5, 1.0)}, "rising"),
        ({"night": (6.0, 6.0)}, "two hours"),
        ({"utc_offset": 15.0}, "hours from"),
        ({"tolerance": 0.0}, "above 0"),
        ({"canary_hold": -1.0}, "write seconds"),
    ],
)
def test_an_impossible_plan_is_refused(fault: dict[str, object], match: str) -> None:
    """Before anything is tried."""
    with pytest.raises(ConfigurationError, match=match):
        RolloutPlan(**fault)  # type: ignore[arg-type]  # wrong on purpose


def test_cohorts_grow_and_keep_who_was_in_them() -> None:
    """An endpoint of the first cohort is in every later one, and the shares are kept, whatever the numbers look like."""
    for numbers in (range(10_000), range(0, 10_240_000, 1_024)):
        places = [cohort_of(number) for number in numbers]
        for share in (0.01, 0.1, 0.5):
            assert sum(place < share for place in places) / len(places) == pytest.approx(share, rel=0.15)
    assert cohort_of(12345) == cohort_of(12345)


def test_the_book_holds_the_layers_of_each_stage_and_survives_its_text() -> None:
    """What is stored is what is in force, in this version and the next."""
    book = PolicyBook(fleet={"read_timeout": LayerValue(12.0, by="bob", at=5, why="x")})
    book = book.begin(VALUES, RolloutPlan(), "alice", "w", NOON, "a-1")
    assert PolicyBook.from_text(book.to_text()) == book
    current = book.rollout
    assert current is not None
    assert (book.shadow, book.treats(0.0, "a-1"), PolicyBook().treats(0.0, "a-1")) == (VALUES, False, False)
    with pytest.raises(Conflict, match="tries its values in shadow now"):
        book.with_shadow(VALUES)
    assert "write_timeout" in book.set(LayerName.FLEET, {"write_timeout": LayerValue(2.0, why="w")}).fleet
    assert book.set(LayerName.FLEET, {"write_timeout": LayerValue(2.0, why="w")}).clear(
        LayerName.FLEET, ["write_timeout"]
    )
    with pytest.raises(Conflict, match="is changing read_timeout"):
        book.set(LayerName.FLEET, VALUES)
    with pytest.raises(Conflict, match="owns the canary layer"):
        book.set(LayerName.CANARY, VALUES)
    with pytest.raises(Conflict, match="in its shadow stage"):
        book.begin(VALUES, RolloutPlan(), "alice", "w", NOON, None)
    canary = book.at(following(current, PROCESSES, NOON, ""))
    assert (canary.treats(0.0, "a-9"), canary.treats(0.0, "b-1"), canary.shadow) == (True, False, {})
    assert canary.rollout is not None
    cohort = canary.at(following(canary.rollout, PROCESSES, NOON, ""))
    assert (cohort.treats(0.005, "b-1"), cohort.treats(0.02, "b-1")) == (True, False)
    everyone = cohort
    while everyone.rollout is not None and everyone.rollout.running:
        everyone = everyone.at(following(everyone.rollout, PROCESSES, NOON, ""))
    assert everyone.fleet["read_timeout"].value == 8.0
    assert PolicyBook.from_text(everyone.to_text()) == everyone
    back = everyone.aborted("wrong", NOON)
    assert back.fleet["read_timeout"].value == 12.0
    half = cohort.aborted("wrong", NOON)
    assert (half.fleet["read_timeout"].value, half.cohort) == (12.0, {})


def test_an_abort_after_the_end_leaves_what_people_set_since() -> None:
    """Cohort and canary are free again once a rollout has reached all: a late abort of it takes back its own values only."""
    everyone = PolicyBook().at(replace(rollout(Stage.ALL), share=1.0))
    since = everyone.set(LayerName.CANARY, {"write_timeout": LayerValue(4.0, by="bob", at=2, why="w")})
    since = replace(since, canary_process="b-1", canary_exact=True)
    since = replace(since.set(LayerName.COHORT, {"pool_timeout": LayerValue(1.0, why="w")}), cohort_share=0.05)
    back = since.aborted("wrong", NOON)
    assert back.rollout is not None
    assert back.rollout.stage is Stage.ABORTED
    assert back.fleet == {}
    assert (back.canary, back.canary_process, back.canary_exact) == (since.canary, "b-1", True)
    assert (back.cohort, back.cohort_share) == (since.cohort, 0.05)


def test_a_rollout_needs_values_and_both_layers_for_itself() -> None:
    """Before anything is tried, and a shadow needs values too."""
    only_bound = {"read_timeout": LayerValue(None, 3.0, why="w")}
    for values, match in (({}, "write what to roll out"), (only_bound, "write a value to roll out")):
        with pytest.raises(ConfigurationError, match=match):
            PolicyBook().begin(values, RolloutPlan(), "a", "w", NOON, None)
    taken = PolicyBook().set(LayerName.CANARY, VALUES)
    with pytest.raises(Conflict, match="clear them first"):
        taken.begin(VALUES, RolloutPlan(), "a", "w", NOON, None)
    assert not taken.clear(LayerName.CANARY, None).canary
    assert not PolicyBook().set(LayerName.COHORT, VALUES).clear(LayerName.COHORT, None).cohort
    with pytest.raises(ConfigurationError, match="a shadow has no bounds"):
        PolicyBook().with_shadow(only_bound)
    with pytest.raises(ConfigurationError, match="it has no values"):
        PolicyBook().clear(LayerName.FLEET, ["read_timeout"])
    with pytest.raises(Conflict, match="no rollout to abort"):
        PolicyBook().aborted("w", NOON)
    assert RolloutPlan().hold_of(Stage.ALL) == 0.0


def test_an_older_version_comes_back_without_its_rollout() -> None:
    """Whoever goes back to last week means last week's limits, not an experiment that ended since."""
    before = PolicyBook(fleet=VALUES)
    during = before.begin({"write_timeout": LayerValue(2.0, why="w")}, RolloutPlan(), "a", "w", NOON, None)
    running = during.rollout
    assert running is not None
    cohort = during.at(replace(running, stage=Stage.COHORT, share=0.1, step=2))
    back = PolicyBook().back_to(cohort, NOON, "w")
    assert (back.fleet, back.cohort, back.rollout) == (VALUES, {}, None)
    stopped = cohort.back_to(before, NOON, "w")
    assert stopped.rollout is not None
    assert (stopped.rollout.stage, stopped.cohort) == (Stage.ABORTED, {})


# ---------------------------------------------------------------------------------------------------- comparing


def fleet(
    seed: int, harm: float, *, treated: int = 30, control: int = 60, day: float = 0.0, calls: int = 400
) -> list[Case]:
    """Endpoints with failure rates of their own that all change by `day`; those treated by `harm` more."""
    die = SeededEntropy(seed)

    def ending(rate: float, attempts: int) -> Ending:
        return Ending(attempts, sum(die.uniform() < rate for _ in range(attempts)))

    cases = []
    for number in range(treated + control):
        own = 0.2 * die.uniform() ** 4
        attempts = round(calls * (0.25 + die.uniform()))
        is_treated = number < treated
        cases.append(Case(is_treated, ending(own, attempts), ending(own + day + harm * is_treated, attempts)))
    return cases


@pytest.mark.parametrize("day", [0.0, 0.05])
def test_a_harmless_change_is_seldom_called_harmful_and_harm_is_seen(day: float) -> None:
    """Also on a day on which all fail more: that is what the others are for. Twenty made-up fleets each."""
    harmless = [compare(fleet(seed, 0.0, day=day)) for seed in range(20)]
    assert sum(one.finding is Finding.BAD for one in harmless) <= 2  # one in forty is expected
    assert sum(one.sure_low > 0 for one in harmless) == 0
    harmful = [compare(fleet(seed, 0.05, day=day)) for seed in range(20)]
    assert all(one.finding is Finding.BAD for one in harmful)
    assert sum(one.sure_low > 0 for one in harmful) >= 15
    text = str(harmful[0])
    assert "n = 30 endpoints" in text
    assert "95 % between" in text


def test_a_harmless_change_is_called_good_when_there_is_enough_to_see() -> None:
    """With thousands of attempts at each endpoint, half a point can be told from none."""
    found = [compare(fleet(seed, 0.0, treated=100, control=200, calls=2_000)).finding for seed in range(3)]
    assert found.count(Finding.GOOD) >= 2
    assert Finding.BAD not in found


def test_too_little_is_inconclusive_and_says_what_is_missing() -> None:
    """Five endpoints that took one delivery each prove nothing, and four endpoints never do."""
    few = [Case(True, Ending(1, 0), Ending(1, 0))] * 5 + [Case(False, Ending(1, 0), Ending(1, 0))] * 5
    assert compare(few).finding is Finding.INCONCLUSIVE
    four = fleet(1, 0.0, treated=4)
    assert compare(four).finding is Finding.INCONCLUSIVE
    assert "5 of each are needed" in str(compare(four))
    alone = [case for case in fleet(1, 0.5) if case.treated]
    assert compare(alone).finding is Finding.INCONCLUSIVE
    assert compare([]).finding is Finding.INCONCLUSIVE


def test_volumes_are_compared_with_their_like() -> None:
    """A new busy class of endpoints that has a bad day is not compared with quiet ones that had a good one."""
    quiet = [Case(treated, Ending(20, 0), Ending(20, 0)) for treated in (True, False) for _ in range(20)]
    busy = [Case(True, Ending(5_000, 50), Ending(5_000, 50))] + [
        Case(False, Ending(5_000, 50), Ending(5_000, 500))
    ] * 20
    found = compare(quiet + busy)
    assert [stratum.least for stratum in found.strata] == [10]
    assert found.control == 20


def test_a_verdict_of_few_endpoints_allows_for_knowing_their_spread_badly_too() -> None:
    """By the normal distribution ten endpoints that differ by nothing would be called harmful in one comparison of twelve."""
    for freedom, at_95, at_999 in ((4.0, 2.776, 8.610), (8.0, 2.306, 5.041), (30.0, 2.042, 3.646)):
        assert student(CONFIDENT, freedom) == pytest.approx(at_95, rel=0.02)
        assert student(SURE, freedom) == pytest.approx(at_999, rel=0.02)
    false_alarms = 0
    for seed in range(600):
        dice = SeededEntropy(seed)
        cases = []
        for number in range(10):
            share = 0.25 * dice.uniform()  # each has a bad hour of its own, or has not
            cases.append(Case(number % 2 == 0, Ending(10_000, 0), Ending(10_000, round(10_000 * share))))
        found = compare(cases, 0.000_001)
        assert min(found.treated, found.control) == 5
        false_alarms += found.finding is Finding.BAD
    assert false_alarms <= 600 * 0.04, "one-sided, 2.5 % are expected"
