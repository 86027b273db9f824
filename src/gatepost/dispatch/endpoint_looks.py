"""What is known about how endpoints do, by whoever owns them: limits, phase times, outcomes by hour, the breaker's last turns.

From this process' memory where it attempts the endpoint, else from what its owner stored last; it reads and changes nothing.
Asked by the console for one endpoint's page and for the badges of a list. O(endpoints asked for), one read of the store at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gatepost.admission.outcome_hours import OutcomeHours
from gatepost.admission.phase_times import PhaseTimes
from gatepost.dispatch.endpoint_memory import Value, sections_of
from gatepost.dispatch.learned import KnownLimits, LearnedLimits
from gatepost.dispatch.policy_watch import SECTION, PolicyWatch, Turn, watched_of
from gatepost.store.port import DeliveryStore


@dataclass(frozen=True, slots=True)
class EndpointLook:
    """One endpoint as its owner sees it, or saw it up to five minutes ago."""

    limits: KnownLimits | None
    """None: nobody has learned anything about it."""
    times: PhaseTimes
    hours: OutcomeHours
    turns: tuple[Turn, ...]
    """The breaker's last, oldest first."""


class EndpointLooks:
    """`owns` says whether an endpoint is ours, so that what is in memory is newer than what is stored."""

    def __init__(
        self, store: DeliveryStore, learned: LearnedLimits, watch: PolicyWatch, owns: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._learned = learned
        self._watch = watch
        self._owns = owns

    async def of(self, numbers: Collection[int]) -> Mapping[int, EndpointLook]:
        """All that are asked for, by number. Raises `StoreError`."""
        others = [number for number in numbers if not self._owns(number)]
        states = await self._store.load_states(others) if others else {}
        looks = {}
        for number in numbers:
            state = states.get(number)
            sections = None if state is None else sections_of(state)
            value = self._watch.value_of(number) if sections is None else sections.get(SECTION)
            looks[number] = _look(self._learned.known(number, sections), value)
        return looks


def _look(limits: KnownLimits | None, value: Value | None) -> EndpointLook:
    watched = watched_of(value)
    return EndpointLook(limits, watched.times, watched.hours, watched.turns)
