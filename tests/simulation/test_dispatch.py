"""Whole dispatchers on virtual time: what users are promised about every delivery, whatever receivers, stores and clocks do."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from gatepost.delivery.ids import DELIVERY, encode_id
from gatepost.delivery.records import DEFAULT_SCHEDULE, SLOW_SCHEDULE, EndpointStatus, Tenant, TenantLimits
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.errors import ConfigurationError, IdempotencyConflict, LimitExceeded, NotFound, PayloadTooLarge
from gatepost.store.rows import DeadFilter, OutboxEvent
from gatepost.testing.fake_client import denied, faulty, refused, responds, silent
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from gatepost.wire.signing import verify
from tests.simulation.harness import UNGUARDED, Line, Simulation, gaps, simulate

GOOD = "https://good.receivers.net/hook"
BAD = "https://bad.receivers.net/hook"
HOUR = 3_600.0
DAY = 24 * HOUR
LEASE = 30.0


# ---------------------------------------------------------------------------------------------- one delivery


def test_an_event_is_delivered_at_once_signed_and_logged() -> None:
    """The main job: published, sent, settled, with a signature that an independent receiver would take."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, headers={"x-team": "billing"})
            receipt = await gp.publish("invoice.paid", {"amount": 7})
            assert (receipt.duplicate, receipt.deliveries) == (False, 1)
            await asyncio.sleep(1.0)
            (sent,) = sim.sent_to(endpoint)
            assert sent.body == b'{"amount":7}'
            assert sent.headers["x-team"] == "billing"
            message = verify(
                sent.body, sent.headers, [endpoint.secrets[0].secret.reveal()], now=sim.clock.wall_us() / 1e6
            )
            assert message.id == receipt.event_id
            (info,) = await sim.deliveries(endpoint)
            assert (info.state, info.attempts, info.last_status) == ("delivered", 1, 200)
            (row,) = await gp.deliveries.attempts(encode_id(DELIVERY, info.delivery_id))
            assert (row.number, row.outcome, row.decision, row.worker) == (1, "response", "complete", "node-1")
            assert row.phases_us == "read:50000"
            (decided,) = sim.heard.decisions
            assert (decided.decision, decided.event_id, decided.attempt_number) == ("complete", receipt.event_id, 1)
            assert decided.waited < 0.001
            assert decided.attempt is not None

    simulate(main)


def test_events_go_to_the_endpoints_of_the_tenant_that_take_their_type() -> None:
    """Fan-out by filter; another tenant sees nothing."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            await gp.endpoints.create("https://a.receivers.net/", event_types=("invoice.*",))
            await gp.endpoints.create("https://b.receivers.net/", event_types=("invoice.paid", "user.*"))
            await gp.endpoints.create("https://c.receivers.net/", tenant="other")
            assert (await gp.publish("invoice.paid", b"1")).deliveries == 2
            assert (await gp.publish("invoice.sent", b"2")).deliveries == 1
            assert (await gp.publish("user.left", b"3")).deliveries == 1
            assert (await gp.publish("nobody.cares", b"4")).deliveries == 0
            await asyncio.sleep(1.0)
            assert Counter(sent.url for sent in sim.client.sent) == {
                "https://a.receivers.net/": 2,
                "https://b.receivers.net/": 2,
            }

    simulate(main)


def test_a_dead_endpoint_is_tried_by_the_schedule_and_then_given_up() -> None:
    """Twelve attempts over four days, each delay within ±20 %, one dead letter with its body, and nothing left in the queue."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(500))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD)
            receipt = await gp.publish("a.b", b"body")
            await asyncio.sleep(4 * DAY)
            sent = sim.sent_to(endpoint)
            assert len(sent) == 12
            for gap, delay in zip(gaps(sent), DEFAULT_SCHEDULE[1:], strict=True):
                assert delay * 0.8 <= gap <= delay * 1.2 + 0.1
            assert {one.webhook_id for one in sent} == {receipt.event_id}
            stamps = [int(one.headers["webhook-timestamp"]) for one in sent]
            assert stamps == sorted(set(stamps)), "each attempt is signed afresh"
            (letter,) = await sim.dead(endpoint)
            assert (letter.attempts, letter.why, letter.status) == (12, "attempts_exhausted", 500)
            assert (await gp.dead_letters.get(encode_id(DELIVERY, letter.delivery_id))).body == b"body"
            assert (await gp.store.totals()).waiting == 0

    simulate(main)


def test_a_404_goes_slow_and_its_owner_hears_of_it_once() -> None:
    """Hammering a wrong URL helps nobody; one notice for a thousand events is enough."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(404))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD)
            await gp.publish("a.b", b"1")
            for _ in range(20):
                await gp.publish("a.c", b"2")
            await asyncio.sleep(50.0)
            assert sim.heard.kinds() == ["endpoint_needs_owner"]
            await asyncio.sleep(8 * HOUR)
            first = [one for one in sim.sent_to(endpoint) if one.body == b"1"]
            assert len(first) == 5
            for gap, delay in zip(gaps(first), SLOW_SCHEDULE, strict=False):
                assert delay * 0.8 <= gap <= delay * 1.2 + 0.1

    simulate(main)


def test_a_refused_connection_is_tried_again_within_a_second() -> None:
    """The seed: a clean set-up failure may be retried at once."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, refused(), responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await gp.publish("a.b", b"")
            await asyncio.sleep(1.1)
            assert len(sim.sent_to(endpoint)) == 2
            assert (await sim.deliveries(endpoint))[0].state == "delivered"

    simulate(main)


def test_retry_after_postpones_the_next_attempt() -> None:
    """Asked to wait two minutes, we do not come back in five seconds."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, responds(503, retry_after="120"), responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await gp.publish("a.b", b"")
            await asyncio.sleep(200)
            assert gaps(sim.sent_to(endpoint)) == [pytest.approx(120.05, abs=0.1)]

    simulate(main)


def test_a_410_disables_the_endpoint_and_the_rest_of_its_events_wait() -> None:
    """The receiver said that it is gone: its event is dead, others are kept for whoever mends the endpoint."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(410), responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD, concurrency=1)
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(5)))
            await asyncio.sleep(1.0)
            await gp.publish("a.b", b"later")
            await asyncio.sleep(HOUR)
            stored = await gp.endpoints.get(endpoint.id)
            assert (stored.status, stored.status_reason) == (EndpointStatus.DISABLED, "status_410")
            assert sim.heard.kinds() == ["endpoint_disabled"]
            (letter,) = await sim.dead(endpoint)
            assert letter.why == "gone"
            tried = len(sim.sent_to(endpoint))
            assert tried <= 2, "one more may have started before the record was changed"
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(10)
            assert len(sim.sent_to(endpoint)) == 6

    simulate(main)


def test_a_denied_url_is_dead_and_a_denied_address_goes_slow() -> None:
    """A rule that the URL itself breaks will not change; DNS may."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, denied(Reason.PORT_NOT_ALLOWED))
        sim.client.on(GOOD, denied(Reason.ADDR_PRIVATE), responds(200))
        async with sim.dispatcher() as gp:
            broken = await gp.endpoints.create(BAD)
            moved = await gp.endpoints.create(GOOD)
            await gp.publish("a.b", b"")
            await asyncio.sleep(100)
            assert (await gp.endpoints.get(broken.id)).status is EndpointStatus.DISABLED
            assert [letter.why for letter in await sim.dead(broken)] == ["url_denied"]
            assert (await sim.deliveries(moved))[0].state == "delivered"

    simulate(main)


def test_our_own_faults_use_up_nothing() -> None:
    """Out of descriptors for ten minutes: a delivery with two attempts still has both."""

    async def main(sim: Simulation) -> None:
        ours = faulty(Reason.LOCAL_RESOURCES, Phase.CONNECT)
        sim.client.on(GOOD, *[ours] * 20, responds(500), responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, schedule=(0.0, 5.0))
            await gp.publish("a.b", b"")
            await asyncio.sleep(HOUR)
            (info,) = await sim.deliveries(endpoint)
            assert (info.state, len(sim.sent_to(endpoint))) == ("delivered", 22)

    simulate(main)


def test_status_rules_schedule_and_window_of_an_endpoint_hold() -> None:
    """Owners who know their receiver better may say so."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(404))
        sim.client.on(GOOD, responds(500))
        async with sim.dispatcher() as gp:
            final = await gp.endpoints.create(BAD, status_rules={"404": "final"})
            short = await gp.endpoints.create(GOOD, schedule=(0.0, 10.0, 10.0), window=120.0)
            await gp.publish("a.b", b"")
            await asyncio.sleep(60)
            assert [letter.why for letter in await sim.dead(final)] == ["refused"]
            assert [letter.attempts for letter in await sim.dead(short)] == [3]

    simulate(main)


def test_nothing_starts_before_not_before() -> None:
    """I9."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            begin = sim.clock.monotonic()
            await gp.publish("a.b", b"", not_before=sim.clock.wall_us() / 1e6 + 5 * HOUR)
            await asyncio.sleep(6 * HOUR)
            (sent,) = sim.sent_to(endpoint)
            assert sent.at - begin == pytest.approx(5 * HOUR, abs=1.0)

    simulate(main)


# --------------------------------------------------------------------------------------------------- many


def test_every_delivery_ends_delivered_or_dead_whatever_its_receiver_does() -> None:
    """I1: nothing is lost, nothing is left, over two thousand deliveries to receivers of every kind."""

    async def main(sim: Simulation) -> None:
        sim.client.keep = False
        kinds = {
            "ok": [responds(200)],
            "flaky": [responds(500), responds(429), refused(), responds(200)],
            "dead": [responds(500)],
            "gone": [responds(404)],
            "silent": [silent(10.0)],
            "late": [responds(200, delay=9.0)],
            "tls": [faulty(Reason.TLS_CERT_EXPIRED, Phase.TLS)],
        }
        async with sim.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            endpoints = {}
            for kind, answers in kinds.items():
                url = f"https://{kind}.receivers.net/"
                sim.client.on(url, *answers)
                endpoints[kind] = await gp.endpoints.create(
                    url, tenant="t", schedule=(0.0, 5.0, 30.0, 300.0), window=2 * DAY
                )
            for chunk in range(10):
                await asyncio.gather(
                    *(gp.publish("a.b", b"%d" % n, tenant="t") for n in range(chunk * 30, chunk * 30 + 30))
                )
                await asyncio.sleep(1.0)
            await asyncio.sleep(4 * HOUR)
            totals = await gp.store.totals()
            assert (totals.waiting, totals.events) == (0, 300)
            for kind, endpoint in endpoints.items():
                states = Counter(info.state for info in await sim.deliveries(endpoint))
                alive = kind in ("ok", "flaky", "late")
                assert states == {"delivered" if alive else "dead": 300}, kind
                assert sim.client.most_in_flight[endpoint.url] <= 6
            statistics = gp.statistics().scheduler
            assert (statistics.in_flight, statistics.unsettled, statistics.buffered) == (0, 0, 0)

    simulate(main)


def test_a_silent_endpoint_with_a_huge_backlog_delays_nobody() -> None:
    """The seed's bulkhead: its cap is all it ever holds."""

    def worst_wait(with_silent: bool) -> float:
        waits: list[float] = []

        async def main(sim: Simulation) -> None:
            sim.client.keep = False
            sim.client.on(BAD, silent(10.0))
            async with sim.dispatcher(settings=DispatcherSettings(slots=20)) as gp:
                if with_silent:
                    await gp.endpoints.create(BAD, tenant="noisy")
                    for _ in range(20):
                        await asyncio.gather(*(gp.publish("a.b", b"x", tenant="noisy") for _ in range(250)))
                for number in range(30):
                    await gp.endpoints.create(f"https://e{number}.receivers.net/", tenant=f"t{number % 5}")
                for turn in range(200):
                    await gp.publish("a.b", b"y", tenant=f"t{turn % 5}")
                    await asyncio.sleep(0.05)
                await asyncio.sleep(5.0)
                if with_silent:
                    assert sim.client.most_in_flight[BAD] == 6
                    assert gp.statistics().scheduler.buffered <= 24
            waits.extend(one.waited for one in sim.heard.decisions if one.tenant != "noisy")
            assert len(waits) == 200 * 6

        simulate(main)
        return sorted(waits)[int(len(waits) * 0.99)]

    assert worst_wait(True) <= worst_wait(False) + 0.06


def test_ordered_events_arrive_in_order_through_failures() -> None:
    """I3: the first success of each event of a key follows that of the one before it; other keys do not wait."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, *[responds(200), responds(500), refused(), responds(200), silent(10.0)] * 4, responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            for number in range(10):
                await gp.publish("a.b", b"%d" % number, ordering_key="order-1")
            await asyncio.sleep(2 * HOUR)
            done = [d for d in sim.heard.decisions if d.decision == "complete"]
            order = {info.event_id: info for info in await sim.deliveries(endpoint)}
            assert len(order) == len(done) == 10
            ids = [decision.event_id for decision in done]
            assert ids == sorted(ids)
            assert sim.client.most_in_flight[GOOD] == 1

    simulate(main)


def test_a_rate_limits_the_starts_per_second() -> None:
    """An endpoint that can take five a second gets five a second."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, rate=5.0)
            await asyncio.gather(*(gp.publish("a.b", b"") for _ in range(60)))
            await asyncio.sleep(30)
            starts = [sent.at for sent in sim.sent_to(endpoint)]
            assert len(starts) == 60
            assert starts[-1] - starts[0] == pytest.approx(11.0, abs=0.5)

    simulate(main)


# ------------------------------------------------------------------------------------------------- publishing


def test_a_repeated_key_is_the_same_event_and_a_different_one_is_refused() -> None:
    """I7."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            first, second = await asyncio.gather(
                gp.publish("a.b", b"1", idempotency_key="k"), gp.publish("a.b", b"1", idempotency_key="k")
            )
            assert first.event_id == second.event_id
            assert {first.duplicate, second.duplicate} == {False, True}
            with pytest.raises(IdempotencyConflict) as refused_:
                await gp.publish("a.b", b"2", idempotency_key="k")
            assert refused_.value.event_id == first.event_id
            assert not (await gp.publish("a.b", b"2", tenant="other", idempotency_key="k")).duplicate
            await asyncio.sleep(1)
            assert len(sim.sent_to(endpoint)) == 1

    simulate(main)


def test_a_batch_reports_each_event_by_itself() -> None:
    """One bad event must not sink the others."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(settings=DispatcherSettings(max_payload=10)) as gp:
            await gp.endpoints.create(GOOD)
            good, large, unknown, also_good = await gp.publish_batch(
                [
                    {"type": "a.b", "payload": b"1"},
                    {"type": "a.b", "payload": b"x" * 11},
                    {"type": "a.b", "payload": b"1", "colour": "red"},
                    {"type": "a.b", "payload": b"2"},
                ]
            )
            assert isinstance(large, PayloadTooLarge)
            assert isinstance(unknown, TypeError)
            assert not isinstance(good, Exception)
            assert not isinstance(also_good, Exception)

    simulate(main)


def test_a_tenant_over_its_limits_is_told_when_to_come_back() -> None:
    """Its fault, not ours."""

    async def main(sim: Simulation) -> None:
        await sim.store.put_tenant(Tenant("t", limits=TenantLimits(events_per_second=2.0, endpoints=1)))
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(GOOD, tenant="t")
            with pytest.raises(LimitExceeded):
                await gp.endpoints.create(BAD, tenant="t")
            await gp.publish("a.b", b"", tenant="t")
            await gp.publish("a.b", b"", tenant="t")
            with pytest.raises(LimitExceeded) as refused_:
                await gp.publish("a.b", b"", tenant="t")
            assert 0 < refused_.value.retry_after <= 0.6
            await asyncio.sleep(refused_.value.retry_after + 0.01)
            await gp.publish("a.b", b"", tenant="t")

    simulate(main)


def test_events_of_publishers_are_fanned_out_and_conflicts_dropped() -> None:
    """What other processes wrote to the outbox becomes deliveries; a key conflict becomes an operational event."""

    def outbox(number: int, key: str, body: bytes, sim: Simulation) -> OutboxEvent:
        return OutboxEvent(
            0, number, "default", key, "a.b", "text/plain", body, None, "normal", None, sim.clock.wall_us()
        )

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await sim.store.outbox_put([outbox(11, "k", b"1", sim), outbox(12, "k", b"1", sim)])
            await sim.store.outbox_put([outbox(13, "k", b"other", sim), outbox(14, "l", b"2", sim)])
            await asyncio.sleep(1)
            assert sorted(sent.body for sent in sim.sent_to(endpoint)) == [b"1", b"2"]
            assert sim.client.sent[0].content_type == "text/plain"
            assert sim.heard.kinds() == ["idempotency_conflict"]
            assert (await sim.store.totals()).outbox == 0

    simulate(main)


def test_an_ordered_event_keeps_its_place() -> None:
    """Neither a priority nor a time of its own goes with an ordering key."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            with pytest.raises(ConfigurationError, match="leave not_before out"):
                await gp.publish("a.b", b"", ordering_key="k", not_before=sim.clock.wall_us() / 1e6 + 60)
            with pytest.raises(ConfigurationError, match="leave priority out"):
                await gp.publish("a.b", b"", ordering_key="k", priority="high")

    simulate(main)


def test_what_is_no_connection_is_refused_and_not_published_beside_the_transaction() -> None:
    """Clearly, not by silently publishing outside of it."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            with pytest.raises(TypeError, match="pass the connection that your transaction runs on"):
                await gp.publish("a.b", b"", connection=object())
            assert gp.statistics().intake.published == 0

    simulate(main)


# ------------------------------------------------------------------------------------------------- operating


def test_a_paused_endpoint_gets_nothing_and_costs_no_reads_until_resumed() -> None:
    """I5, seen from the store."""

    async def main(sim: Simulation) -> None:
        line = Line(sim.store)
        async with sim.dispatcher(store=line.as_store) as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await gp.endpoints.pause(endpoint.id, "on holiday")
            for number in range(100):
                await gp.publish("a.b", b"%d" % number)
            reads = line.calls.get("peek", 0)
            await asyncio.sleep(HOUR)
            assert sim.client.sent == []
            assert line.calls.get("peek", 0) - reads <= 7, "only the chore that looks for closed windows"
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(5)
            assert len(sim.sent_to(endpoint)) == 100

    simulate(main)


def test_what_waits_for_a_paused_endpoint_ends_with_its_window() -> None:
    """Otherwise it would wait for ever, and its event with it."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, window=HOUR, schedule=(0.0, 60.0))
            await gp.endpoints.pause(endpoint.id)
            await gp.publish("a.b", b"")
            await asyncio.sleep(0.9 * HOUR)
            assert await sim.dead(endpoint) == []
            await asyncio.sleep(0.4 * HOUR)
            (letter,) = await sim.dead(endpoint)
            assert (letter.why, letter.attempts) == ("window_over", 0)
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(10)
            assert sim.client.sent == []

    simulate(main)


def test_a_delivery_whose_window_closed_unseen_is_not_sent() -> None:
    """Nobody expects last week's event after a long outage of ours."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(GOOD, window=HOUR, schedule=(0.0, 60.0))
            await gp.publish("a.b", b"")
            await asyncio.sleep(2 * HOUR)
            gp.run_in_background()
            await asyncio.sleep(10)
            assert sim.client.sent == []
            assert [letter.why for letter in await sim.dead(endpoint)] == ["window_over"]

    simulate(main)


def test_a_dead_letter_is_replayed_with_its_id_and_a_new_window() -> None:
    """Receivers can drop what they had after all."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(500), responds(500), responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD, schedule=(0.0, 5.0), window=60.0)
            receipt = await gp.publish("a.b", b"body")
            await asyncio.sleep(HOUR)
            (letter,) = await sim.dead(endpoint)
            await gp.deliveries.replay(encode_id(DELIVERY, letter.delivery_id))
            await asyncio.sleep(1)
            sent = sim.sent_to(endpoint)
            assert [(one.webhook_id, one.body) for one in sent] == [(receipt.event_id, b"body")] * 3
            assert (await sim.deliveries(endpoint))[0].state == "delivered"
            with pytest.raises(NotFound):
                await gp.deliveries.replay(encode_id(DELIVERY, letter.delivery_id))

    simulate(main)


def test_a_replay_by_filter_keeps_to_its_rate() -> None:
    """Beside live traffic, not instead of it."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, *[responds(400)] * 40, responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD, schedule=(0.0,))
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(40)))
            await asyncio.sleep(10)
            assert len(await sim.dead(endpoint)) == 40
            begin = len(sim.client.sent)
            assert await gp.dead_letters.replay(DeadFilter(endpoint=endpoint.number), rate=4.0) == 40
            await asyncio.sleep(60)
            again = sim.client.sent[begin:]
            assert len(again) == 40
            assert again[-1].at - again[0].at == pytest.approx(39 / 4.0, abs=0.5)

    simulate(main)


def test_cancelled_deliveries_and_those_of_deleted_endpoints_are_not_sent() -> None:
    """What an operator took out must not come back from memory."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, silent(10.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD)
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(50)))
            await asyncio.sleep(1)
            one = next(info for info in await sim.deliveries(endpoint) if info.attempts == 0)
            await gp.deliveries.cancel(delivery_id=encode_id(DELIVERY, one.delivery_id))
            assert (await gp.deliveries.get(encode_id(DELIVERY, one.delivery_id))).state == "cancelled"
            cancelled = await gp.endpoints.delete(endpoint.id)
            assert 40 <= cancelled <= 49
            sent = len(sim.client.sent)
            await asyncio.sleep(HOUR)
            assert len(sim.client.sent) == sent
            assert (await gp.store.totals()).waiting == 0

    simulate(main)


def test_a_changed_endpoint_holds_for_the_next_attempt() -> None:
    """A mended URL is used by the retry that is due, and an old secret signs beside the new one."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(404))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(BAD)
            old = endpoint.secrets[0].secret.reveal()
            await gp.publish("a.b", b"x")
            await asyncio.sleep(5)
            await gp.endpoints.update(endpoint.id, url=GOOD, headers={"x-new": "1"})
            rotated = await gp.endpoints.rotate_secret(endpoint.id, overlap=HOUR)
            await asyncio.sleep(100)
            (sent,) = [one for one in sim.client.sent if one.url == GOOD]
            assert sent.headers["x-new"] == "1"
            for secret in (old, rotated.secrets[0].secret.reveal()):
                verify(sent.body, sent.headers, [secret], now=sim.clock.wall_us() / 1e6)
            await asyncio.sleep(HOUR)
            await gp.publish("a.b", b"y")
            await asyncio.sleep(1)
            assert sim.client.sent[-1].headers["webhook-signature"].count("v1,") == 1

    simulate(main)


def test_the_test_attempt_is_signed_and_leaves_no_trace() -> None:
    """An owner tries an endpoint before trusting it."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            attempt = await gp.endpoints.test(endpoint.id)
            assert attempt.delivered
            (sent,) = sim.client.sent
            verify(sent.body, sent.headers, [endpoint.secrets[0].secret.reveal()], now=sim.clock.wall_us() / 1e6)
            assert await sim.deliveries(endpoint) == []

    simulate(main)


# ------------------------------------------------------------------------------- ending, crashing, failing


def test_a_drain_starts_nothing_more_and_lets_attempts_end() -> None:
    """SIGTERM costs no delivery and no duplicate."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, responds(200, delay=8.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(20)))
            await asyncio.sleep(1)
            begin = sim.clock.monotonic()
            await gp.drain()
            assert sim.clock.monotonic() - begin == pytest.approx(7.0, abs=0.2)
            assert not gp.statistics().running
            states = Counter(info.state for info in await sim.deliveries(endpoint))
            assert states == {"delivered": 6, "waiting": 14}
            assert sim.client.cancelled == 0
        async with sim.dispatcher() as gp:
            await asyncio.sleep(200)  # six at once that take 8 s look slow: they are probed first
            states = Counter(info.state for info in await sim.deliveries(endpoint))
            assert states == {"delivered": 20}
            assert len(sim.client.sent) == 20

    simulate(main)


def test_a_short_grace_cuts_attempts_which_are_then_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """Said beforehand, and no attempt is used up."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, responds(200, delay=8.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD)
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(6)))
            await asyncio.sleep(1)
            await gp.drain(grace=2.0)
            statistics = gp.statistics()
            assert (statistics.scheduler.in_flight, statistics.scheduler.unsettled) == (0, 0)
            assert sim.client.cancelled == 6
            assert {info.attempts for info in await sim.deliveries(endpoint)} == {0}
            gp.run_in_background()
            await asyncio.sleep(20)
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"delivered": 6}

    with caplog.at_level(logging.WARNING, "gatepost"):
        simulate(main)
    assert "shorter than the attempt budget" in caplog.text
    assert "6 attempts are cut short" in caplog.text


def test_cancelling_run_drains_and_cancelling_again_ends_at_once() -> None:
    """`await gp.run()` under a TaskGroup or a signal handler."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, responds(200, delay=8.0))
        async with sim.dispatcher(run=False) as gp:
            await gp.endpoints.create(GOOD)
            running = asyncio.ensure_future(gp.run())
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="running already"):
                await gp.run()
            await gp.publish("a.b", b"1")
            await asyncio.sleep(1)
            running.cancel()
            begin = sim.clock.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert sim.clock.monotonic() - begin == pytest.approx(7.0, abs=0.2)
            assert gp.statistics().attempts.delivered == 1
            running = asyncio.ensure_future(gp.run())
            await gp.publish("a.b", b"2")
            await asyncio.sleep(1)
            running.cancel()
            await asyncio.sleep(1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            statistics = gp.statistics()
            assert (statistics.running, statistics.scheduler.in_flight) == (False, 0)
            assert sim.client.cancelled == 1

    simulate(main)


def test_after_a_kill_everything_unsettled_starts_again_within_the_lease() -> None:
    """I6: the next owner finds it all, and what was settled is not sent twice."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, responds(200, delay=0.5))
        line = Line(sim.store)
        victim = sim.make(store=line.as_store)
        await victim.prepare()
        victim.run_in_background()
        endpoint = await victim.endpoints.create(GOOD)
        await asyncio.gather(*(victim.publish("a.b", b"%d" % n) for n in range(200)))
        await asyncio.sleep(5.2)
        line.cut = True
        killed_at = sim.clock.monotonic()
        settled = Counter(info.state for info in await sim.deliveries(endpoint))["delivered"]
        assert 40 < settled < 100
        await asyncio.sleep(1.0)  # attempts of the dying process still end, and cannot be stored
        async with sim.dispatcher():
            while Counter(info.state for info in await sim.deliveries(endpoint))["waiting"]:
                await asyncio.sleep(0.5)
                assert sim.clock.monotonic() - killed_at < LEASE + 60.0
        sends = Counter(sent.webhook_id for sent in sim.client.sent)
        assert len(sends) == 200
        again = sum(count - 1 for count in sends.values())
        # What was in flight or unsettled at the kill, and what the cut-off process went on starting until it fenced itself.
        assert again <= 200 - settled
        await victim.aclose()

    simulate(main)


def test_an_owner_cut_off_from_its_store_stops_starting_before_its_lease_ends() -> None:
    """The fence: nobody else may take over while we still start."""

    async def main(sim: Simulation) -> None:
        line = Line(sim.store)
        sim.client.on(GOOD, responds(200, delay=0.5))
        async with sim.dispatcher(store=line.as_store) as gp:
            endpoint = await gp.endpoints.create(GOOD, concurrency=1)
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(300)))
            await asyncio.sleep(8.5)
            line.cut_calls = {"heartbeat"}
            await asyncio.sleep(LEASE - 8.0)
            cut = len(sim.client.sent)
            await asyncio.sleep(1.0)
            assert len(sim.client.sent) > cut, "the lease still holds"
            await asyncio.sleep(8.0)
            stopped = len(sim.client.sent)
            await asyncio.sleep(60)
            assert len(sim.client.sent) == stopped
            line.cut_calls = set()
            await asyncio.sleep(120)
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"delivered": 300}
            assert len(sim.client.sent) == 300

    simulate(main)


def test_a_store_that_fails_to_settle_loses_and_repeats_nothing() -> None:
    """Results wait, and are stored when the store is back."""

    async def main(sim: Simulation) -> None:
        line = Line(sim.store)
        async with sim.dispatcher(store=line.as_store) as gp:
            endpoint = await gp.endpoints.create(GOOD)
            line.cut_calls = {"settle"}
            await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(100)))
            await asyncio.sleep(20)
            assert gp.statistics().store_failing
            assert gp.statistics().results_waiting == 100
            assert "settle_failed" in sim.heard.kinds()
            line.cut_calls = set()
            await asyncio.sleep(10)
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"delivered": 100}
            assert len(sim.client.sent) == 100
            assert not gp.statistics().store_failing

    simulate(main)


def test_a_store_that_fails_to_read_delays_and_loses_nothing() -> None:
    """Peeks, bodies and discovery are asked again."""

    async def main(sim: Simulation) -> None:
        line = Line(sim.store)
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(GOOD)
            for number in range(50):
                await gp.publish("a.b", b"%d" % number)
        line.cut_calls = {"discover", "peek", "load_events"}
        async with sim.dispatcher(store=line.as_store) as gp:
            await asyncio.sleep(5)
            line.cut_calls = {"peek", "load_events"}
            await asyncio.sleep(5)
            line.cut_calls = {"load_events"}
            await asyncio.sleep(5)
            assert sim.client.sent == []
            line.cut_calls = set()
            await asyncio.sleep(20)
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"delivered": 50}
            assert len(sim.client.sent) == 50

    simulate(main)


def test_a_forgotten_run_is_said_after_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """It looks like lost events, and is the first thing that goes wrong with a new user."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            await gp.endpoints.create(GOOD)
            await asyncio.sleep(60)
            assert "nothing delivers them" not in caplog.text
            await gp.publish("a.b", b"")
            await asyncio.sleep(9.9)
            assert "nothing delivers them" not in caplog.text
            await asyncio.sleep(0.2)
            assert "1 deliveries wait and nothing delivers them" in caplog.text
            assert sim.heard.kinds() == ["not_running"]

    with caplog.at_level(logging.WARNING, "gatepost"):
        simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_anywhere_the_counts_agree_and_every_row_is_still_there(seed: int) -> None:
    """Crash safety by brute force: cut the dispatcher at odd moments, again and again, until all is delivered."""

    async def main(sim: Simulation) -> None:
        sim.client.on(GOOD, *[responds(200, delay=0.3), responds(500, delay=0.1), refused()] * 30, responds(200))
        endpoint_id = ""
        for turn in range(12):
            gp = sim.make(settings=DispatcherSettings(limits=UNGUARDED))
            await gp.prepare()
            if turn == 0:
                endpoint = await gp.endpoints.create(GOOD)
                endpoint_id = endpoint.id
                await asyncio.gather(*(gp.publish("a.b", b"%d" % n) for n in range(150)))
            running = asyncio.ensure_future(gp.run())
            await asyncio.sleep(0.001 + ((turn * 7 + seed * 13) % 40) / 29)
            running.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            statistics = gp.statistics()
            assert (statistics.running, statistics.scheduler.in_flight) == (False, 0)
            await gp.aclose()
            await asyncio.sleep(LEASE)
        async with sim.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as last:
            await asyncio.sleep(4 * HOUR)
            endpoint = await last.endpoints.get(endpoint_id)
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"delivered": 150}

    simulate(main)


def test_nothing_in_memory_grows_with_the_number_of_events() -> None:
    """After ten thousand deliveries every table of the dispatcher is as empty as before the first."""

    async def main(sim: Simulation) -> None:
        sim.client.keep = False
        async with sim.dispatcher() as gp:
            for number in range(20):
                await gp.endpoints.create(f"https://e{number}.receivers.net/", event_types=(f"t.{number}",))
            for turn in range(40):
                await asyncio.gather(
                    *(
                        gp.publish(f"t.{n % 20}", b"x", ordering_key=f"k{turn}" if n % 7 == 0 else None)
                        for n in range(250)
                    )
                )
                await asyncio.sleep(3)
            assert gp.statistics().attempts.delivered == 10_000
            await asyncio.sleep(200)
            statistics = gp.statistics().scheduler
            assert (statistics.lanes, statistics.endpoints, statistics.hosts, statistics.tenants) == (0, 0, 0, 0)
            assert (statistics.buffered, statistics.unsettled, statistics.timers) == (0, 0, 0)
            worker = gp._worker
            assert (len(worker._flying), len(worker._tasks), worker._quiet_waiters) == (0, 0, [])
            assert gp.statistics().body_bytes == 0, "bodies of delivered events are not kept"

    simulate(main)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "write 1 to"),
        ({"max_payload": 0}, "at least 1"),
        ({"body_bytes_max": 10}, "room for one payload"),
        ({"publish_timeout": 0.0}, "more than 0"),
        ({"grace": -1.0}, "0 or more"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, float], message: str) -> None:
    """At start, with what to write instead."""
    with pytest.raises(ConfigurationError, match=message):
        DispatcherSettings(**changes)  # type: ignore[arg-type]  # wrong on purpose


def test_it_must_be_opened_before_use() -> None:
    """The message names the way in."""

    async def main(sim: Simulation) -> None:
        gp = sim.make()
        with pytest.raises(RuntimeError, match=r"Dispatcher\.open"):
            await gp.publish("a.b", b"")

    simulate(main)


def test_publishers_in_a_closed_loop_never_stall() -> None:
    """A storing task that has looked at the queue for the last time must not be counted on by the next publisher."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:

            async def publisher() -> None:
                for _ in range(20):
                    await gp.publish("a.b", b"")

            begin = sim.clock.monotonic()
            await asyncio.gather(*(publisher() for _ in range(128)))
            assert sim.clock.monotonic() - begin < 1.0

    simulate(main)
