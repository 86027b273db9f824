"""Whether many unrelated hosts began to fail at once: then it is our network, our resolver or our machine, not theirs.

It watches hosts turn from well to failing and says yes or no; breakers are then held back by `admission.limits`, so that an outage
of ours does not close the doors of everybody. It cannot say what is broken, and it forgets.

Theory of operation. Three lists in order of time, each entry of a *family* (hosts of one provider fail together, so they
count once): *fresh* answered within a minute, *well* within ten minutes, *turned* were well and have failed since. It is
trouble when at least eight families have turned and they are as many as those that still answer. Hosts that were down before do
not count: somebody's staging system is always down.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FAMILIES_MIN: Final = 8
"""Unrelated failures at once that are no coincidence: at one outage per host and day, eight within two minutes never happen."""
SHARE: Final = 0.5
FRESH_US: Final = 60_000_000
TELL_US: Final = 15_000_000
WELL_US: Final = 600_000_000
TURNED_US: Final = 120_000_000
"""A family that failed and was not tried since is forgotten after two minutes, so that held breakers are not held for ever."""
REMEMBERED_MAX: Final = 2_000
"""Families in each list; beyond it the oldest goes, and the judgement is made on those tried last."""


class FleetTrouble:
    """Fed with each attempt that is evidence; `now` is UTC microseconds."""

    __slots__ = ("_fresh", "_turned", "_well")

    def __init__(self) -> None:
        self._fresh: OrderedDict[str, int] = OrderedDict()
        self._well: OrderedDict[str, int] = OrderedDict()
        self._turned: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<FleetTrouble fresh={len(self._fresh)} well={len(self._well)} turned={len(self._turned)}>"

    def answered(self, family: str, now: int) -> None:
        """A host of the family answered, whatever it said. Every `TELL_US` is often enough, and at once after a failure."""
        fresh = self._fresh
        fresh[family] = now
        fresh.move_to_end(family)
        self._well.pop(family, None)
        self._turned.pop(family, None)
        _bound(fresh)

    def failed(self, family: str, now: int) -> None:
        """A host of the family gave no answer: no connection, no reply."""
        turned = self._turned
        seen = self._fresh.pop(family, None) or self._well.pop(family, None)
        if family not in turned and (seen is None or now - seen > WELL_US):
            return
        turned[family] = now
        turned.move_to_end(family)
        _bound(turned)

    def suspected(self, now: int) -> bool:
        """Whether failures are ours now. O(1) amortised."""
        if len(self._turned) < FAMILIES_MIN:
            return False
        fresh, well, turned = self._fresh, self._well, self._turned
        while fresh and now - (oldest := next(iter(fresh.items())))[1] > FRESH_US:
            del fresh[oldest[0]]
            well[oldest[0]] = oldest[1]
        while well and now - (oldest := next(iter(well.items())))[1] > WELL_US:
            del well[oldest[0]]
        _bound(well)
        while turned and now - (oldest := next(iter(turned.items())))[1] > TURNED_US:
            del turned[oldest[0]]
        return len(turned) >= FAMILIES_MIN and len(turned) >= SHARE * (len(turned) + len(fresh))


def family_of(host: str) -> str:
    """Who probably operates `scheme://host:port`: the last two labels of a name (three under a short second level, as in
    `co.uk`), the first two or three groups of an address. A guess: a wrong one only makes two operators count as one."""
    name = host.partition("://")[2] or host
    if name.startswith("["):
        return ":".join(name[1:].partition("]")[0].split(":")[:3])
    labels = name.partition(":")[0].split(".")
    if labels[-1].isdigit():
        return ".".join(labels[:2])
    short = len(labels) > 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if short else -2 :])


def _bound(families: OrderedDict[str, int]) -> None:
    if len(families) > REMEMBERED_MAX:
        families.popitem(last=False)
