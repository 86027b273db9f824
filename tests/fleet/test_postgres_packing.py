"""Texts that are joined for the server come back as they were, whatever is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.store.postgres.packing import pack_texts, without_none
from gatepost.store.rows import AttemptRow, NewEvent, SettleBatch
from gatepost.testing.postgres_store import new_postgres

ODD = ["", "\x1f", "\x1e", "\x1f1\x1e", "\x1f1", "1\x1e", "a\x1fb", "ü€𐍈", "'\"\\{},NULL", " "]

texts = st.text(alphabet=st.sampled_from("a1\x1f\x1e2"), max_size=6)


def split(column: str, separator: str) -> list[str]:
    """What the server makes of it: no text at all for nothing, and no first one."""
    return column.split(separator)[1:] if column else []


@given(st.lists(st.lists(texts, max_size=5), min_size=1, max_size=3))
def test_a_separator_is_found_for_any_texts(columns: list[list[str]]) -> None:
    """It is in none of them, also where a text ends as it begins."""
    separator, packed = pack_texts(columns)
    assert [split(column, separator) for column in packed] == columns


@given(st.lists(st.one_of(st.none(), texts), max_size=6))
def test_a_text_for_none_is_no_other_text(column: list[str | None]) -> None:
    """What comes back as missing was missing."""
    null, full = without_none(column)
    assert [None if text == null else text for text in full] == column


async def test_odd_texts_survive_the_way_through_the_server() -> None:
    """Tenant, types and every word of the attempt log, all at once and alone."""
    store = await new_postgres(parts=8)
    try:
        ids = IdSource(await store.new_node(), SYSTEM_CLOCK)
        for batch in (ODD, *([text] for text in ODD)):
            events = [NewEvent(ids.next(), text, text, text, text, b"x", 1, ()) for text in batch]
            results = await store.enqueue(events)
            first = batch is ODD
            assert [result.duplicate for result in results] == [not first] * len(batch)
            if first:
                bodies = await store.load_events([event.event_id for event in events])
                for event in events:
                    body = bodies[event.event_id]
                    assert (body.tenant, body.type, body.content_type) == (event.tenant, event.type, event.content_type)
            addresses = [None, *batch]
            log = [
                AttemptRow(
                    ids.next(),
                    1,
                    2,
                    3,
                    text or "",
                    4,
                    text or "",
                    "p",
                    "r",
                    "s",
                    "b",
                    None,
                    5,
                    "",
                    text,
                    b"\x00",
                    "d",
                    "w",
                )
                for text in addresses
            ]
            await store.settle(SettleBatch({}, attempts=log))
            for row in log:
                assert list(await store.attempts_of(row.delivery_id)) == [row]
    finally:
        await store.aclose()
