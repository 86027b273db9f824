"""The page of states: of deliveries, endpoints, breakers, learned limits and rollouts, from the tables that move them. Used by
`docs.build_reference`."""

from __future__ import annotations

from typing import get_args

from docs.tables import generated_note, table
from gatepost.admission.adapt import LearningState
from gatepost.admission.breaker import TRANSITIONS, BreakerInput, BreakerState, TripCause
from gatepost.admission.rollout import ENDS, Stage
from gatepost.delivery.records import EndpointStatus
from gatepost.service.api.deliveries import State

DELIVERY_HELP = {
    "waiting": "Not over: due now or later, in flight, or held with its endpoint.",
    "delivered": "A complete 2xx head arrived, or a status that a rule counts as one.",
    "dead": "Given up, with a reason; kept as a dead letter that can be replayed.",
    "cancelled": "Given up by a person, or with its endpoint.",
}
ENDPOINT_HELP = {
    EndpointStatus.ACTIVE: "Deliveries are attempted.",
    EndpointStatus.PAUSED: "A person stopped it. Deliveries wait, within their window.",
    EndpointStatus.DISABLED: "Gatepost stopped it: 410, a URL that may not be called, or nothing but failures for days. Deliveries wait.",
}
BREAKER_HELP = {
    BreakerState.CLOSED: "All is well.",
    BreakerState.OPEN: "Nothing is sent; deliveries wait and use up no attempt.",
    BreakerState.PROBING: "One delivery at a time is sent, and waited for longer than usual.",
    BreakerState.RAMPING: "One in flight, then two, four and so on, up to the cap.",
}
INPUT_HELP = {
    BreakerInput.TRIP: "it fails, hangs or is slow",
    BreakerInput.COOLED: "the pause is over",
    BreakerInput.PROBE_FAILED: "a probe failed: the next pause is twice as long",
    BreakerInput.PROBES_PASSED: "enough probes in a row passed",
    BreakerInput.RAMPED: "the cap is reached again",
    BreakerInput.RESET: "a resume by a person",
}
CAUSE_HELP = {
    TripCause.FAILURES: "The failed share of its last attempts.",
    TripCause.SLOW: "The slow share of its last attempts, while it held most of its cap.",
    TripCause.TIMEOUTS: "Timeouts in a row, or soon after a recovery failures of any kind.",
    TripCause.PROBE: "A probe failed.",
    TripCause.RAMP: "Failures in a row while ramping.",
}
LEARNING_HELP = {
    LearningState.COLD: "Too few responses yet: the configured read timeout holds.",
    LearningState.LEARNING: "The read timeout follows the 99th percentile.",
    LearningState.FROZEN: "The endpoint is failing: nothing is learned until it is well.",
}
STAGE_HELP = {
    Stage.SHADOW: "Nobody has the new value; it is recorded what it would have done.",
    Stage.CANARY: "One process has it.",
    Stage.COHORT: "A share of the endpoints has it.",
    Stage.ALL: "Everybody has it.",
    Stage.ABORTED: "Nobody has it: the old value is in force.",
}


def render_states() -> str:
    """`states.md`."""
    assert set(DELIVERY_HELP) == set(get_args(State))
    parts = [
        "# States",
        generated_note(),
        "As the API, the command line, the console and the metrics name them. These lists may grow in minor versions.",
        "## Delivery",
        table(("state", "meaning"), [(f"`{state}`", DELIVERY_HELP[state]) for state in get_args(State)]),
        "A dead one that is replayed waits again. What moves a delivery is in [Decisions](decisions.md).",
        "## Endpoint",
        table(("status", "meaning"), [(f"`{status}`", ENDPOINT_HELP[status]) for status in EndpointStatus]),
        "`resume` makes it active again, slowly at first. `status_reason` says why it is not.",
        "## Breaker",
        table(("state", "meaning"), [(f"`{state}`", BREAKER_HELP[state]) for state in BreakerState]),
        table(
            ("from", "when", "to"),
            [(f"`{state}`", INPUT_HELP[what], f"`{after}`") for (state, what), after in TRANSITIONS.items()],
        ),
        "What is not in the table cannot happen. Why it opened:",
        table(("cause", "meaning"), [(f"`{cause}`", CAUSE_HELP[cause]) for cause in TripCause]),
        "The numbers are in [Limits that learn](../explanation/limits.md#what-a-breaker-does).",
        "## Learned read timeout",
        table(("state", "meaning"), [(f"`{state}`", LEARNING_HELP[state]) for state in LearningState]),
        "## Rollout",
        table(
            ("stage", "meaning", ""),
            [(f"`{stage}`", STAGE_HELP[stage], "an end" if stage in ENDS else "") for stage in Stage],
        ),
    ]
    return "\n\n".join(parts) + "\n"
