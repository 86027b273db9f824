"""A house that has been lived in, for `bench.console`: endpoints, and as many deliveries as one likes over six days, loaded in a minute.

Rows are made by the server from a number each, spread as real ones are: a few endpoints get most, one in fifteen fails first, one
endpoint is dead and has a backlog. It uses the tables as the store does, and would break with them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gatepost.admission.attempt_counts import count, new_counts
from gatepost.admission.endpoint_limits import EndpointLimits, LimitRules
from gatepost.admission.evidence import Facts, Sign
from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.attempt import attempt_record
from gatepost.delivery.ids import ENDPOINT, encode_id, first_id_at, new_endpoint_number
from gatepost.delivery.outcome import End, Evidence, classify
from gatepost.delivery.records import Endpoint, EndpointSecret, Secret
from gatepost.dispatch.limits import SECTION as LIMITS
from gatepost.dispatch.policy_watch import SECTION as POLICY
from gatepost.dispatch.policy_watch import Passing, Turn
from gatepost.store.codec import endpoint_to_document
from gatepost.store.postgres.partitions import DAY_US, make_ahead
from gatepost.store.secretbox import SecretBox
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from gatepost.wire.signing import new_secret

SPAN_US: Final = 6 * DAY_US
TENANTS: Final = 100
"""Half of the endpoints belong to one tenant, the others to so many."""
DEAD_PLACE: Final = 3
"""The endpoint that takes nothing: its last fifth of deliveries waits."""

_ROWS: Final = """
CREATE TABLE bench_row AS
SELECT n, base AS event_id, base + 1 AS id, e.number AS endpoint, e.tenant, at,
  CASE WHEN e.place = {dead} AND n > {rows} * 0.8 THEN 3 WHEN n % 20 = 0 AND n > {rows} * 0.5 THEN 3
    WHEN n % 50 = 7 THEN 1 WHEN n % 331 = 5 THEN 2 ELSE 0 END AS fate, n % 13 = 0 AS stumbled
 FROM (SELECT n, {begin}::bigint + n * ({span}::bigint / {rows}) AS at,
   (('x' || substr(md5(n::text), 1, 8))::bit(32)::bigint / 4294967296.0) AS u FROM generate_series(1, {rows}) AS n) AS r
 CROSS JOIN LATERAL (SELECT ((at / 1000 - 1735689600000) << 22) | ((n * 2) & 4194303) AS base) AS b
 JOIN bench_endpoint AS e ON e.place = floor({endpoints} * u * u * u)::int"""
# Fates: 0 delivered, 1 dead, 2 cancelled, 3 waits.
_FILL: Final = (
    """
INSERT INTO gp_event (id, created_at, tenant, type, content_type, body)
 SELECT event_id, at, tenant, CASE WHEN n % 1000 = 0 THEN 'audit.rare' ELSE 'order.' || n % 7 END, 'application/json',
  convert_to('{{"order": ' || n || ', "text": "' || repeat(md5(n::text), 12) || '"}}', 'UTF8') FROM bench_row""",
    """
INSERT INTO gp_history (id, lane, at, event_id, state, tenant)
 SELECT id, endpoint << 8, CASE fate WHEN 3 THEN {later}::bigint + n WHEN 0 THEN at ELSE at + 60000000 END, event_id,
  CASE fate WHEN 3 THEN 0 ELSE fate END, tenant FROM bench_row""",
    """
INSERT INTO gp_delivery (lane, due_at, id, event_id, born_at, part, attempt)
 SELECT endpoint << 8, {later}::bigint + n, id, event_id, at, endpoint % 1024, n % 4 FROM bench_row WHERE fate = 3""",
    """
INSERT INTO gp_active (part, lane, tenant) SELECT DISTINCT endpoint % 1024, endpoint << 8, tenant FROM bench_row WHERE fate = 3""",
    """
INSERT INTO gp_attempt SELECT id, k, event_id, endpoint, tenant, at + 3000 + (k - 1) * 30000000,
  CASE WHEN k < last OR fate <> 0 THEN 'read_timeout' ELSE 'response' END, CASE WHEN k < last OR fate <> 0 THEN 'wait' ELSE 'read' END,
  CASE WHEN k < last OR fate <> 0 THEN 'wait_timeout' ELSE 'ok' END, 'ambiguous', 'endpoint',
  CASE WHEN k < last OR fate <> 0 THEN NULL ELSE 200 END, 45000 + n % 30000,
  'dns:900 connect:11000 tls:21000 write:120 wait:' || 9000 + n % 30000 || ' read:240', '203.0.113.9:443', 'thanks'::bytea,
  CASE WHEN k < last OR fate IN (2, 3) THEN 'retry_at' WHEN fate = 1 THEN 'dead_letter' ELSE 'complete' END, 'node-a'
 FROM (SELECT *, CASE fate WHEN 0 THEN CASE WHEN stumbled THEN 2 ELSE 1 END WHEN 1 THEN 5 WHEN 2 THEN 1 ELSE n % 4 END AS last
  FROM bench_row) AS r CROSS JOIN LATERAL generate_series(1, last) AS k""",
    """
INSERT INTO gp_dead (id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status,
  died_at, body)
 SELECT r.id, r.event_id, r.tenant, r.endpoint, e.type, e.content_type, 5, 'attempts_exhausted', 'read_timeout', NULL,
  r.at + 60000000, e.body
  FROM bench_row AS r JOIN gp_event AS e ON e.id = r.event_id WHERE r.fate = 1""",
    "DROP TABLE bench_endpoint",
    "VACUUM ANALYZE",
)
STEPS: Final = len(_FILL) + 2


@dataclass(frozen=True, slots=True)
class House:
    """What was loaded, and some of it by name."""

    endpoints: Sequence[Endpoint]
    """The busiest first."""
    deliveries: Sequence[tuple[int, int]]
    """A sample: delivery and event."""
    dead: Sequence[int]
    """A sample of deliveries that are dead letters."""


async def furnish(url: str, keys: Sequence[str], endpoints: int, deliveries: int, done: Callable[[str], None]) -> House:
    """Load it into an empty database with Gatepost's schema; `done` hears of each step."""
    connection = await asyncpg.connect(url, timeout=60.0)
    try:
        now = SYSTEM_CLOCK.wall_us()
        for days in (6, 3):
            await make_ahead(connection, now - days * DAY_US)
        made = _endpoints(endpoints, now)
        await _put_endpoints(connection, made, SecretBox(keys), now)
        done("endpoints")
        numbers: dict[str, Any] = {
            "begin": now - SPAN_US - 60_000_000,
            "span": SPAN_US,
            "later": now + DAY_US,
            "rows": deliveries,
            "endpoints": endpoints,
            "dead": DEAD_PLACE,
        }
        for statement in (_ROWS, *_FILL):
            await connection.execute(statement.format(**numbers), timeout=900.0)
            done(statement.split("(")[0].strip()[:60])
        sample = await connection.fetch(
            "SELECT id, event_id, fate FROM bench_row WHERE n % $1 = 0", max(1, deliveries // 2_000)
        )
        await connection.execute("DROP TABLE bench_row")
        dead = await connection.fetch("SELECT id FROM gp_dead ORDER BY died_at DESC LIMIT 200")
        assert first_id_at(now) > sample[-1]["id"], "ids of the past"
        return House(made, [(row["id"], row["event_id"]) for row in sample], [row["id"] for row in dead])
    finally:
        await connection.close()


def _endpoints(count: int, now: int) -> list[Endpoint]:
    made = []
    for place in range(count):
        number = new_endpoint_number(SYSTEM_ENTROPY)
        made.append(
            Endpoint(
                id=encode_id(ENDPOINT, number),
                tenant="large" if place % 2 else f"tenant-{place % (2 * TENANTS) // 2}",
                url=f"https://hooks-{place}.customers.example/webhooks/{place:06d}",
                description=f"customer {place}",
                created_at=now,
                updated_at=now,
                secrets=(EndpointSecret(Secret(new_secret(SYSTEM_ENTROPY.token(24))), now),),
            )
        )
    return made


async def _put_endpoints(connection: Any, made: Sequence[Endpoint], box: SecretBox, now: int) -> None:
    await connection.execute("CREATE TABLE bench_endpoint (place int PRIMARY KEY, number bigint, tenant text)")
    await connection.copy_records_to_table(
        "bench_endpoint", records=[(place, one.number, one.tenant) for place, one in enumerate(made)]
    )
    await connection.copy_records_to_table(
        "gp_endpoint", records=[(one.id, one.tenant, one.generation, endpoint_to_document(one, box)) for one in made]
    )
    await connection.copy_records_to_table(
        "gp_change", records=[("endpoint", one.id, place) for place, one in enumerate(made, 1)]
    )
    await connection.execute("UPDATE gp_meta SET value = $1 WHERE name = 'last_change'", len(made))
    state = _state(now)
    await connection.copy_records_to_table("gp_endpoint_state", records=[(one.number, state) for one in made])


def _state(now: int) -> bytes:
    """What an owner keeps of an endpoint that has been busy for a day and had trouble."""
    limits, counts, passing = EndpointLimits(LimitRules()), new_counts(), Passing()
    for sample in range(300):
        flight = limits.started(now - DAY_US // 100 + sample)
        limits.finished(
            flight, Facts(Sign.OK, 0.05 + sample % 40 / 1_000, True, False), now - DAY_US // 100 + sample, 0.5
        )
    silent = Evidence(End.LIMIT, Phase.WAIT, Reason.WAIT_TIMEOUT, None, True)
    for hour in range(24):
        for evidence in (
            Evidence(End.RESPONSE, Phase.READ, Reason.OK, 200, True),
            Evidence(End.RESPONSE, Phase.READ, Reason.OK, 500, True),
            silent,
        ):
            made = attempt_record(
                classify(evidence),
                evidence.status,
                "https://hooks.example:443",
                None,
                0.1,
                {Phase.POOL: 0.0001, Phase.WRITE: 0.001, Phase.WAIT: 0.09, Phase.READ: 0.001},
                True,
                False,
                600,
                (),
                b"",
                None,
                0.0,
                False,
            )
            count(counts, made, now - (23 - hour) * 3_600_000_000)
    turns = ("open", "probing", "ramping", "closed") * 5
    passing.turns = tuple(Turn(now - (20 - at) * 600_000_000, state, "", 0, 0) for at, state in enumerate(turns))
    policy = {**passing.to_value(), "c": base64.b85encode(counts).decode(), "p99": 0.08}
    sections = {LIMITS: base64.b85encode(limits.to_bytes()).decode(), POLICY: policy}
    return json.dumps(sections, separators=(",", ":")).encode()
