"""Applies what attempts came to, in one statement: delivered rows go, retries move, dead letters are copied out, the log is written.

Every row is named exactly as it was read, so repeating a batch changes nothing. Retries and dead letters lock the row of their
part FOR SHARE before they test its epoch: a takeover that runs at the same time either comes first, and they are left out, or
skips the part until they are stored. Without the lock a stale retry could move a row that the new owner is delivering. What was
delivered is not tested, and locks nothing, since it *was* delivered; renewing a lease does not touch these rows. Called by `queue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from gatepost.store.postgres.enqueue import columns
from gatepost.store.postgres.packing import pack_texts, unpacked, without_none
from gatepost.store.postgres.pool import TRANSACTION_MAX, Connection
from gatepost.store.postgres.time import DATABASE_NOW
from gatepost.store.rows import AttemptRow, SettleBatch, SettleResult

IDLE_WAIT: Final = round(3 * TRANSACTION_MAX * 1e6)
"""Microseconds between marking a lane idle and removing its marker. An enqueue that saw the marker unset had begun before it
was marked and ends within `TRANSACTION_MAX`, so by then its rows are seen, or never will be; three times as long, because a
commit that waits for a standby is under no time limit."""

# -- fragments; `{name}` stand for parameters

_EPOCHS_LOCKED: Final = """
locked AS MATERIALIZED (
 SELECT part, epoch FROM gp_part WHERE part = ANY({locked_parts}::integer[]) ORDER BY part FOR SHARE),
seen AS (
 SELECT part, epoch FROM locked UNION ALL SELECT part, epoch FROM gp_part WHERE part = ANY({free_parts}::integer[]))"""
_EPOCHS: Final = "seen AS (SELECT part, epoch FROM gp_part WHERE part = ANY({parts}::integer[]))"
_FENCED: Final = """
fenced AS MATERIALIZED (
 SELECT k.part FROM unnest({parts}::integer[], {epochs}::bigint[]) AS k(part, epoch)
  WHERE NOT EXISTS (SELECT 1 FROM seen WHERE seen.part = k.part AND seen.epoch = k.epoch))"""
_DONE: Final = """
done AS (
 DELETE FROM gp_delivery AS d USING unnest({done_lanes}::bigint[], {done_due}::bigint[], {done_ids}::bigint[]) AS k(lane, due_at, id)
  WHERE d.lane = k.lane AND d.due_at = k.due_at AND d.id = k.id)"""
_RETRY: Final = """
retry AS (
 UPDATE gp_delivery AS d SET due_at = k.new_due, attempt = k.next_attempt
  FROM unnest({retry_lanes}::bigint[], {retry_due}::bigint[], {retry_ids}::bigint[], {retry_parts}::integer[],
   {retry_attempts}::integer[], {retry_next}::integer[], {retry_new_due}::bigint[])
   AS k(lane, due_at, id, part, attempt, next_attempt, new_due)
  WHERE (k.part IN (SELECT part FROM fenced)) IS NOT TRUE
   AND d.lane = k.lane AND d.due_at = k.due_at AND d.id = k.id AND d.attempt = k.attempt
  RETURNING d.id, d.due_at),
moved AS (UPDATE gp_history AS h SET at = r.due_at FROM retry AS r WHERE h.id = r.id AND h.at <> r.due_at)"""
# An event is kept while a delivery waits; a row that has lost its event all the same must not wait for ever.
_DEAD: Final = """
dead AS (
 DELETE FROM gp_delivery AS d
  USING unnest({dead_lanes}::bigint[], {dead_due}::bigint[], {dead_ids}::bigint[], {dead_parts}::integer[],
   {dead_attempt}::integer[], {dead_attempts}::integer[], {dead_why}::text[], {dead_outcomes}::text[], {dead_status}::integer[],
   {dead_at}::bigint[]) AS k(lane, due_at, id, part, attempt, attempts, why, outcome, status, died_at)
  WHERE (k.part IN (SELECT part FROM fenced)) IS NOT TRUE
   AND d.lane = k.lane AND d.due_at = k.due_at AND d.id = k.id AND d.attempt = k.attempt
  RETURNING d.id, d.event_id, d.lane, k.attempts, k.why, k.outcome, k.status, k.died_at),
buried AS (
 INSERT INTO gp_dead (id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status, died_at, body)
  SELECT x.id, x.event_id, coalesce(e.tenant, h.tenant, ''), x.lane >> 8, coalesce(e.type, ''), coalesce(e.content_type, ''),
   x.attempts, x.why, x.outcome, x.status, x.died_at, coalesce(e.body, ''::bytea)
   FROM dead AS x LEFT JOIN gp_event AS e ON e.id = x.event_id LEFT JOIN gp_history AS h ON h.id = x.id),
ended AS (UPDATE gp_history AS h SET state = 1, at = x.died_at FROM dead AS x WHERE h.id = x.id)"""
_LOG_TYPES: Final = {"number": "integer", "status": "integer", "response": "bytea"} | dict.fromkeys(
    ("delivery_id", "event_id", "endpoint", "started_at", "elapsed_us"), "bigint"
)
"""Everything else is text."""
_LOG: Final = (
    "log AS (INSERT INTO gp_attempt ("  # noqa: S608 - our own words
    + ", ".join(AttemptRow._fields)
    + ") SELECT * FROM unnest("
    + ", ".join(
        f"{{log_{name}}}::{_LOG_TYPES[name]}[]"
        if name in _LOG_TYPES
        else unpacked(f"{{log_{name}}}", "{log_separator}", "{log_null}")
        for name in AttemptRow._fields
    )
    + ") ON CONFLICT DO NOTHING)"
)
_IDLE: Final = f"""
empty AS MATERIALIZED (
 SELECT k.part, k.lane FROM unnest({{idle_parts}}::integer[], {{idle_lanes}}::bigint[]) AS k(part, lane)
  WHERE (k.part IN (SELECT part FROM fenced)) IS NOT TRUE
   AND NOT EXISTS (SELECT 1 FROM gp_delivery AS d WHERE d.lane = k.lane)),
marked AS (
 UPDATE gp_active AS a SET idle_at = coalesce({{now}}::bigint, {DATABASE_NOW}) FROM empty AS k
  WHERE a.part = k.part AND a.lane = k.lane AND a.idle_at IS NULL),
unmarked AS (
 DELETE FROM gp_active AS a USING empty AS k
  WHERE a.part = k.part AND a.lane = k.lane AND a.idle_at <= coalesce({{now}}::bigint, {DATABASE_NOW}) - {IDLE_WAIT})"""  # noqa: S608 - our own words


async def settle(connection: Connection, batch: SettleBatch, now: int | None) -> SettleResult:
    """Apply one batch. `now` is for markers; None: the database's clock."""
    values: dict[str, Any] = {"parts": list(batch.epochs), "epochs": list(batch.epochs.values())}
    fenced_parts = {row.part for row in batch.retry} | {row.part for row in batch.dead}
    if fenced_parts:
        values["locked_parts"] = sorted(fenced_parts)
        values["free_parts"] = [part for part in batch.epochs if part not in fenced_parts]
    if batch.done:
        keys = sorted(row.key for row in batch.done)  # in the order of the index, so that two batches meet in one order
        _put(values, ("done_lanes", "done_due", "done_ids"), keys)
    if batch.retry:
        _put(
            values,
            ("retry_lanes", "retry_due", "retry_ids", "retry_parts", "retry_attempts", "retry_next", "retry_new_due"),
            sorted((*row.key, row.part, row.attempt, row.next_attempt, row.new_due) for row in batch.retry),
        )
    if batch.dead:
        _put(
            values,
            (
                "dead_lanes",
                "dead_due",
                "dead_ids",
                "dead_parts",
                "dead_attempt",
                "dead_attempts",
                "dead_why",
                "dead_outcomes",
                "dead_status",
                "dead_at",
            ),
            [
                (*row.key, row.part, row.attempt, row.attempts, row.why, row.outcome, row.status, row.died_at)
                for row in sorted(batch.dead, key=lambda row: row.key)
            ],
        )
    if batch.attempts:
        log = sorted(batch.attempts, key=lambda row: (row.delivery_id, row.started_at))
        _put_log(values, log)
    if batch.idle:
        _put(values, ("idle_parts", "idle_lanes"), sorted(batch.idle))
        values["now"] = now
    statement, names = _statement(
        bool(fenced_parts),
        bool(batch.done),
        bool(batch.retry),
        bool(batch.dead),
        bool(batch.attempts),
        bool(batch.idle),
    )
    rows = await connection.fetch(statement, *(values[name] for name in names))
    return SettleResult(frozenset(row[0] for row in rows))


def _put(values: dict[str, Any], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    values.update(zip(names, columns(rows, len(names)), strict=True))


def _put_log(values: dict[str, Any], log: Sequence[AttemptRow]) -> None:
    found: dict[str, Any] = dict(zip(AttemptRow._fields, zip(*log, strict=True), strict=True))
    null, address = without_none(found["address"])  # the only text that may be missing
    texts = [name for name in AttemptRow._fields if name not in _LOG_TYPES]
    separator, packed = pack_texts([address if name == "address" else found[name] for name in texts])
    found.update(zip(texts, packed, strict=True))
    values.update((f"log_{name}", column) for name, column in found.items())
    values["log_separator"], values["log_null"] = separator, null


@cache
def _statement(locked: bool, done: bool, retry: bool, dead: bool, log: bool, idle: bool) -> tuple[str, tuple[str, ...]]:
    """The statement for a batch that holds these, and its parameters' names in order. The server plans only what is used."""
    fragments = [_EPOCHS_LOCKED if locked else _EPOCHS, _FENCED]
    for wanted, fragment in ((done, _DONE), (retry, _RETRY), (dead, _DEAD), (log, _LOG), (idle, _IDLE)):
        if wanted:
            fragments.append(fragment)
    numbers = _Numbers()
    text = f"WITH {','.join(fragments)}\nSELECT part FROM fenced".format_map(numbers)
    return text, tuple(numbers)


class _Numbers(dict[str, str]):
    """Names to `$1`, `$2` …, in the order of their first use."""

    def __missing__(self, name: str) -> str:
        self[name] = f"${len(self) + 1}"
        return self[name]
