"""Fault cases of class retry: when the next attempt is due, which answers are final, and that each attempt is one request."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.decide import DeadLetter, Decision, DeliveryRules, RetryAt, StatusAction, decide
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.records import DEFAULT_WINDOW
from gatepost.store.rows import DeadFilter
from gatepost.testing.fake_client import OK, refused, responds, silent
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.simulation.harness import Simulation, gaps, simulate

URL = "https://receiver.receivers.net/hook"
NOW = round(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()) * 1_000_000
FLOOR = 5.0
"""Seconds of our own first delay; the die is set to its middle."""


def answered(status: int, *headers: tuple[str, str]) -> Decision:
    """What becomes of a first attempt that got this answer."""
    attempt = Attempt(
        Outcome.RESPONSE, False, Phase.READ, Reason.OK, RetrySafety.SAFE, Blame.ENDPOINT, status, "https://r:443", None,
        0.1, {}, False, False, 10, headers, b"", None, 0.0,
    )  # fmt: skip
    return decide(attempt, DeliveryRules(), used=0, born_at=NOW, now=NOW, u=0.5)


def delay_of(*headers: tuple[str, str], status: int = 503) -> float:
    """Seconds until the next attempt."""
    decision = answered(status, *headers)
    assert isinstance(decision, RetryAt)
    return (decision.due - NOW) / 1e6


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("value", ["9999999999", "1" + "0" * 30, "2147483648", "9" * 400])
def test_retry_01_centuries_end_with_the_deliverys_window(status: int, value: str) -> None:
    """No overflow and no sleeping worker: a due time in the queue, at most where the window ends."""
    assert FLOOR <= delay_of(("retry-after", value), status=status) <= DEFAULT_WINDOW


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("60", 60.0), (" 60 ", 60.0), ("0", FLOOR), ("1", FLOOR), ("-1", FLOOR), ("-5", FLOOR), ("", FLOOR), ("60.5", FLOOR),
        ("+60", FLOOR), ("60, 100", FLOOR), ("٦٠", FLOOR), ("soon", FLOOR), ("0x40", FLOOR), ("6e1", FLOOR), ("1_0", FLOOR),
    ],
)  # fmt: skip
def test_retry_02_only_whole_seconds_postpone_and_nothing_hurries(value: str, seconds: float) -> None:
    """Our own delay is the floor, whatever was sent; two headers count as the first."""
    assert delay_of(("retry-after", value)) == seconds
    assert delay_of(("retry-after", value), ("retry-after", "1")) == seconds


def test_retry_03_dates_in_all_three_forms_postpone() -> None:
    """A fault in the date is nonsense and ignored; an hour ago is no reason to hurry; the year 9999 ends with the window."""
    at = datetime(2026, 11, 30, 12, 2, tzinfo=UTC)
    for text in (
        format_datetime(at, usegmt=True),
        at.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
        at.strftime("%a %b %d %H:%M:%S %Y"),
    ):
        assert delay_of(("retry-after", text)) == 120.0, text
    assert delay_of(("retry-after", at.strftime("%a, %d %b %Y %H:%M:%S -0000"))) == FLOOR
    assert delay_of(("retry-after", format_datetime(at - timedelta(hours=1), usegmt=True))) == FLOOR
    assert delay_of(("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")) == DEFAULT_WINDOW


def test_retry_03_a_server_whose_clock_is_wrong_gets_the_pause_it_asked_for() -> None:
    """Its own Date tells how it counts: an hour ahead, an hour behind, or nonsense."""
    for skew in (timedelta(hours=1), timedelta(hours=-1), timedelta()):
        date = datetime(2026, 11, 30, 12, tzinfo=UTC) + skew
        headers = (
            ("date", format_datetime(date, usegmt=True)),
            ("retry-after", format_datetime(date + timedelta(minutes=3), usegmt=True)),
        )
        assert delay_of(*headers) == 180.0
    assert delay_of(("date", "yesterday"), ("retry-after", "Mon, 30 Nov 2026 12:03:00 GMT")) == 180.0


@pytest.mark.parametrize(
    "value", ["\x00\xff", "ü" * 4_096, "1" * 8_192, "Mon, 30 Nov 2026 12:03:00 GMT" * 200, "," * 8_192]
)
def test_retry_04_a_broken_header_leaves_a_clean_503(value: str) -> None:
    """Normal back-off, no exception."""
    assert delay_of(("retry-after", value)) == FLOOR


def test_retry_06_no_retry_is_forgotten_over_restarts() -> None:
    """Four failures, a restart after each; delivered by the fifth attempt, and at no time is anything overdue."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, *[responds(500)] * 4, OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, 10, 10, 10, 10])
            await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
        for attempt in range(2, 6):
            async with sim.dispatcher():
                while len(sim.sent_to(endpoint)) < attempt:
                    await asyncio.sleep(0.5)
                    for info in await sim.deliveries(endpoint):
                        assert info.due_at is None or info.due_at > sim.clock.wall_us() - 2_000_000
                await asyncio.sleep(1)
        [info] = await sim.deliveries(endpoint)
        assert (info.state, info.attempts) == ("delivered", 5)

    simulate(main)


def test_retry_07_one_process_does_it_all_or_says_that_nobody_does() -> None:
    """No separate scheduler can be forgotten; a dispatcher that holds work and does not run says so within ten seconds."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500), OK)
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(11)
            assert "not_running" in sim.heard.kinds()
            assert sim.client.sent == []
            gp.run_in_background()
            await asyncio.sleep(30)
            assert [info.state for info in await sim.deliveries(endpoint)] == ["delivered"]
            assert gp.lag_seconds() == 0.0

    simulate(main)


def test_retry_08_a_replay_by_hand_delivers_once_with_its_history() -> None:
    """The same event id, the attempts before it kept, and a new budget of attempts."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500), responds(500), responds(500), OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, 5])
            receipt = await gp.publish("a.b", b"x")
            await asyncio.sleep(20)
            [letter] = await sim.dead(endpoint)
            [info] = await sim.deliveries(endpoint)
            public = sim.heard.decisions[-1].delivery_id
            await gp.deliveries.replay(public)
            await asyncio.sleep(20)
            [after] = await sim.deliveries(endpoint)
            assert (after.delivery_id, after.state) == (info.delivery_id, "delivered")
            assert {sent.webhook_id for sent in sim.client.sent} == {receipt.event_id}
            log = await gp.deliveries.attempts(public)
            assert [row.status for row in log] == [500, 500, 500, 200], "two before it was given up, two after"
            assert letter.attempts == 2

    simulate(main)


def test_retry_09_a_repeated_attempt_is_the_same_message() -> None:
    """Body and id are identical; only the time of signing and the signature differ, in headers."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500), OK)
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(URL, probe=False)
            await gp.publish("a.b", {"b": 1, "a": [1.5, "ü"]})
            await asyncio.sleep(30)
            first, second = sim.client.sent
            assert first.body == second.body
            differing = {name for name in first.headers if first.headers[name] != second.headers[name]}
            assert differing == {"webhook-timestamp", "webhook-signature"}
            assert first.headers.keys() == second.headers.keys()

    simulate(main)


FINAL_OR_NOT = {
    **dict.fromkeys((408, 425, 429, 500, 501, 502, 503, 504, 507, 599), StatusAction.RETRY),
    **dict.fromkeys(
        (400, 401, 403, 404, 405, 409, 414, 415, 421, 422, 423, 426, 428, 431, 451, 301, 302, 304, 307, 308),
        StatusAction.SLOW,
    ),
    410: StatusAction.DISABLE,
    413: StatusAction.FINAL,
}


@pytest.mark.parametrize(("status", "action"), FINAL_OR_NOT.items())
def test_retry_11_each_status_means_what_the_table_says(status: int, action: StatusAction) -> None:
    """Final for the endpoint, final for the event, soon again, or seldom again until its owner acts; editable per endpoint.

    409 and 421 are seldom rather than soon: a receiver that means "try again" has 425, 429 and 503 for it.
    """
    decision = answered(status)
    match action:
        case StatusAction.RETRY:
            assert isinstance(decision, RetryAt)
            assert (decision.due - NOW) / 1e6 == FLOOR
        case StatusAction.SLOW:
            assert isinstance(decision, RetryAt)
            assert (decision.due - NOW) / 1e6 == 60.0
            assert decision.notice == f"status_{status}"
        case StatusAction.FINAL:
            assert isinstance(decision, DeadLetter)
            assert decision.disable is None
        case _:
            assert isinstance(decision, DeadLetter)
            assert decision.disable == f"status_{status}"
    edited = DeliveryRules(exact={status: StatusAction.RETRY})
    assert edited.action(status) is StatusAction.RETRY


def test_retry_12_each_recorded_attempt_is_one_request_and_the_next_waits_its_turn() -> None:
    """A receiver that did the work and answered too late must not get the event at once again behind our back."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, silent(10), OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(60)
            first, second = await gp.deliveries.attempts(sim.heard.decisions[0].delivery_id)
            assert (first.outcome, first.retry_safety) == ("read_timeout", "ambiguous")
            assert second.outcome == "response"
            assert len(sim.sent_to(endpoint)) == 2
            assert gaps(sim.sent_to(endpoint))[0] >= 10 + 0.8 * FLOOR

    simulate(main)


def test_retry_12_a_refused_connection_is_tried_again_soon_and_recorded() -> None:
    """The one quick repetition there is: nothing was sent, and it counts as an attempt of its own."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, refused(), OK)
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(URL, probe=False)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(5)
            log = await gp.deliveries.attempts(sim.heard.decisions[0].delivery_id)
            assert [row.number for row in log] == [1, 2]
            assert len(sim.client.sent) == 2
            assert await sim.store.purge_dead(DeadFilter(), 10) == 0

    simulate(main)
