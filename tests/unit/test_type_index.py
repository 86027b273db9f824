"""The index of filters answers as asking every endpoint would, whatever came and went."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.records import RESERVED_TYPES, Endpoint
from gatepost.dispatch.type_index import TypeIndex

TYPES = ["a", "a.b", "a.c", "b.b", f"{RESERVED_TYPES}endpoint.disabled"]
FILTERS = [*TYPES, "*", "a.*", "*.b", f"{RESERVED_TYPES}*"]
STEPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.sampled_from(FILTERS), max_size=3, unique=True)), max_size=30)


def endpoint(number: int, filters: list[str]) -> Endpoint:
    """One that takes these."""
    return Endpoint(id=encode_id(ENDPOINT, number), tenant="t", url="", event_types=tuple(filters))


@given(steps=STEPS)
def test_looking_up_is_asking_everyone(steps: list[tuple[int, list[str]]]) -> None:
    """A filter that the index forgets is an event that an endpoint never gets."""
    index = TypeIndex()
    known: dict[int, Endpoint] = {}
    for number, filters in steps:
        old = known.pop(number, None)
        if old is not None:
            index.drop(old)
        if filters:  # else it is deleted
            known[number] = endpoint(number, filters)
            index.put(known[number])
        for event_type in TYPES:
            asked = sorted(number for number, one in known.items() if one.accepts(event_type))
            assert index.takers(event_type) == asked


class Counted(Endpoint):
    """Counts how often its filters are tried."""

    __slots__ = ()
    tried = 0

    def accepts(self, event_type: str) -> bool:
        """As an endpoint does."""
        Counted.tried += 1
        return super().accepts(event_type)


def test_endpoints_that_name_their_types_are_not_asked() -> None:
    """With a thousand of them, asking all for each type after each change is what CPU goes to."""
    index = TypeIndex()
    for number in range(1, 1_001):
        index.put(Counted(id=encode_id(ENDPOINT, number), tenant="t", url="", event_types=(f"type.{number}",)))
    index.put(replace(Counted(id=encode_id(ENDPOINT, 5_000), tenant="t", url=""), event_types=("type.*",)))
    Counted.tried = 0
    assert index.takers("type.7") == [7, 5_000]
    assert Counted.tried == 1
