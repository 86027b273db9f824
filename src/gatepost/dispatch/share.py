"""How many parts each process should hold, by weight, and what one that holds too many or too few should do about it.

Pure arithmetic over the nodes alive: every process computes the same from the same list, so nobody has to be asked. It moves
nothing and knows no part by number. Called by `dispatch.leases`.

A node's share lies between the floor and the ceiling of `parts * weight / sum of weights`. Whoever is below its floor is needy;
others take only up to their floor while somebody is, and the fullest give one part back for each that is missing. So all floors
are met whatever the order of events, and once they are, nobody moves: a node at floor and one at ceiling are both content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from gatepost.store.rows import NodeInfo

WEIGHT_MAX: Final = 1_000.0
"""The largest weight of a process: beyond a thousandth of the parts, a lighter one would hold none."""


@dataclass(frozen=True, slots=True)
class Share:
    """Parts a node should hold: at least `floor`, at most `ceiling`."""

    floor: int
    ceiling: int


NOTHING: Final = Share(0, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one node should do now. At most one of `take` and `give` is above 0."""

    share: Share
    take: int = 0
    """Free parts it may take."""
    give: int = 0
    """Parts it should give back, each drained first."""


def share_of(name: str, nodes: Sequence[NodeInfo], parts: int) -> Share:
    """The share of node `name` among the nodes alive; nothing for one that drains, is unknown or weighs nothing."""
    return _shares(nodes, parts).get(name, NOTHING)


def plan_for(name: str, held: int, nodes: Sequence[NodeInfo], parts: int) -> Plan:
    """What node `name`, which holds `held` parts, should do.

    `nodes` may be seconds old; `held` beats what they say of this node. O(nodes log nodes).
    """
    holding = {info.node.name: held if info.node.name == name else info.parts for info in nodes}
    shares = dict.fromkeys(holding, NOTHING) | _shares(nodes, parts)
    mine = shares.get(name, NOTHING)
    missing = sum(max(0, shares[other].floor - count) for other, count in holding.items() if other != name)
    if held > mine.ceiling:
        return Plan(mine, give=held - mine.ceiling)
    if missing and held > mine.floor:
        # Those furthest above their floor give first, one each; every node sees the same order.
        above = sorted(
            (shares[other].floor - count, other) for other, count in holding.items() if count > shares[other].floor
        )
        if name in [other for _, other in above[:missing]]:
            return Plan(mine, give=1)
        return Plan(mine)
    return Plan(mine, take=max(0, (mine.floor if missing else mine.ceiling) - held))


def _shares(nodes: Sequence[NodeInfo], parts: int) -> dict[str, Share]:
    """Of those that have one."""
    weights = {info.node.name: info.node.weight for info in nodes if not info.node.draining and info.node.weight > 0}
    total = sum(weights.values())
    shares = {}
    for name, weight in weights.items():
        quota = parts * weight / total
        # A quota that is whole but for rounding (three thirds of nine) is that number, not the one above.
        near = round(quota)
        whole = abs(quota - near) < 1e-9 * parts
        shares[name] = Share(near, near) if whole else Share(int(quota), min(parts, ceil(quota)))
    return shares
