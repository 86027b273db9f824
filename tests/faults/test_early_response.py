"""Fault cases of class early-response: an answer that comes while we still write is read, and wins over the write error."""

from __future__ import annotations

from gatepost.delivery.outcome import Outcome, RetrySafety
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.faults.kit import PATIENT, Case, delivering, meet_all
from tests.hostile.engine import BIG, IDENTITY, answered, assert_nothing_held, limits, wait_idle

TOO_BIG = answered(413, safety=RetrySafety.SAFE, phase=(Phase.READ, Phase.WRITE))
EARLY = ("early-413-close", "early-413-drain", "early-413-open")
BODY = BIG[:4_000_000]


async def test_early_01_a_413_counts_however_the_receiver_goes_on() -> None:
    """It closes (and so resets), half-closes and reads on, or stays open and reads no more: the head ends the upload."""
    attempts = await meet_all([Case(name, TOO_BIG, payload=BODY) for name in EARLY], limits(**PATIENT))
    for attempt in attempts:
        assert attempt.elapsed < 2.0, "at the head, not at the write limit"
        assert attempt.body in (b"too large", b"")


async def test_early_02_the_answer_wins_over_the_write_error() -> None:
    """There is no writer whose exception could surface later: the body is bytes, and one machine ends once."""
    async with delivering("early-413-drain", limits(**PATIENT)) as (server, client):
        for _ in range(5):
            attempt = await client.deliver(server.url, BODY, IDENTITY)
            TOO_BIG.check(attempt)
            assert_nothing_held(client)
        assert server.connections == 5


async def test_early_03_a_reset_that_overtakes_the_answer_is_ambiguous_and_never_safe() -> None:
    """Fifty rounds: the kernel decides which of the two we see."""
    seen = set()
    async with delivering("early-200-reset", limits(**PATIENT)) as (server, client):
        for _ in range(50):
            attempt = await client.deliver(server.url, BIG[:1_000_000], IDENTITY)
            assert attempt.outcome in (Outcome.RESPONSE, Outcome.TRANSPORT_ERROR)
            if attempt.outcome is Outcome.TRANSPORT_ERROR:
                assert attempt.reason in (Reason.CONNECTION_RESET, Reason.CONNECTION_CLOSED), attempt
                assert attempt.retry_safety is RetrySafety.AMBIGUOUS
            else:
                assert attempt.status == 200
            seen.add(attempt.outcome)
            await wait_idle(client, 0)  # its end is seen, whether in the attempt or right behind it
            assert_nothing_held(client)
    assert seen


async def test_early_04_the_size_of_the_body_does_not_change_the_class() -> None:
    """Small bodies fit the kernel's buffers and hide the race; one here is above all of them."""
    sizes = (1_024, 65_536, 262_144, 4_000_000, len(BIG))
    await meet_all([Case("early-413-close", TOO_BIG, payload=BIG[:size]) for size in sizes], limits(**PATIENT))
