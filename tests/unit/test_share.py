"""Shares of parts: fair by weight, reached from any state, and then left alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.dispatch.share import Plan, Share, plan_for, share_of
from gatepost.store.rows import Node, NodeInfo


def fleet(**parts: int) -> list[NodeInfo]:
    """Nodes of equal weight with so many parts each."""
    return [NodeInfo(Node(name), 0, count) for name, count in parts.items()]


def test_a_share_follows_the_weight() -> None:
    """A machine twice as large does twice as much."""
    nodes = [NodeInfo(Node("a", weight=2.0), 0, 0), NodeInfo(Node("b"), 0, 0), NodeInfo(Node("c"), 0, 0)]
    assert share_of("a", nodes, 1_024) == Share(512, 512)
    assert share_of("b", nodes, 1_024) == Share(256, 256)


def test_a_share_that_is_whole_but_for_rounding_is_whole() -> None:
    """Three nodes of a third: nobody waits for a part that does not exist."""
    nodes = [NodeInfo(Node(name, weight=0.1), 0, 0) for name in "abc"]
    assert share_of("a", nodes, 9) == Share(3, 3)


def test_a_draining_node_has_no_share_and_counts_for_nobody_elses() -> None:
    """Its parts go to the others from the moment it says so."""
    nodes = [NodeInfo(Node("a", draining=True), 0, 4), NodeInfo(Node("b"), 0, 4)]
    assert share_of("a", nodes, 8) == Share(0, 0)
    assert plan_for("b", 4, nodes, 8) == Plan(Share(8, 8), take=4)
    assert plan_for("a", 4, nodes, 8) == Plan(Share(0, 0), give=4)


def test_a_newcomer_is_made_room_for_and_no_more() -> None:
    """Seven for two becomes three, two, two: one gives one, the other gives one, and both stop."""
    assert plan_for("a", 4, fleet(a=4, b=3, c=0), 7).give == 1
    assert plan_for("a", 3, fleet(a=3, b=3, c=1), 7).give == 1
    assert plan_for("b", 3, fleet(a=3, b=3, c=1), 7).give == 0
    assert plan_for("a", 2, fleet(a=2, b=3, c=2), 7) == Plan(Share(2, 3), take=1)
    assert plan_for("b", 3, fleet(a=2, b=3, c=2), 7) == Plan(Share(2, 3))


def test_a_hundred_nodes_all_get_some() -> None:
    """With the ceiling alone, seven of a hundred would hold nothing."""
    nodes = [NodeInfo(Node(f"n{number:03}"), 0, 11 if number < 93 else 0) for number in range(100)]
    nodes[93] = NodeInfo(nodes[93].node, 0, 1)
    giving = [info.node.name for info in nodes if plan_for(info.node.name, info.parts, nodes, 1_024).give]
    assert len(giving) == 69, "as many as are missing: six lack ten parts, one lacks nine"


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), min_size=1, max_size=9),
    parts=st.integers(1, 64),
    order=st.randoms(use_true_random=False),
    draining=st.integers(0, 3),
)
def test_from_any_state_every_floor_is_met_and_then_nobody_moves(
    weights: list[float], parts: int, order: object, draining: int
) -> None:
    """Stability: however parts lie at first and in whatever order nodes act, it ends, balanced, and stays."""
    assert hasattr(order, "randrange")
    names = [f"n{at}" for at in range(len(weights))]
    drains = set(names[1 : 1 + draining])
    held = dict.fromkeys(names, 0)
    for _ in range(parts):
        held[names[order.randrange(len(names))]] += 1
    free = 0

    def seen() -> list[NodeInfo]:
        return [
            NodeInfo(Node(name, weight=weight, draining=name in drains), 0, held[name])
            for name, weight in zip(names, weights, strict=True)
        ]

    for _ in range(20 * parts * len(names) + 100):
        plans = {name: plan_for(name, held[name], seen(), parts) for name in names}
        movers = [name for name, plan in plans.items() if plan.give or (plan.take and free)]
        if not movers:
            break
        name = movers[order.randrange(len(movers))]
        plan = plans[name]
        if plan.give:
            held[name] -= 1
            free += 1
        else:
            taken = min(plan.take, free)
            held[name] += taken
            free -= taken
    else:
        raise AssertionError(f"no rest: {held} {free}")
    assert free == 0
    for name in names:
        share = share_of(name, seen(), parts)
        assert share.floor <= held[name] <= share.ceiling
