"""Checks of the fleet as the store knows it: who is alive, what nobody delivers, which endpoints were never verified.

Facts in, a finding or None out. Called by `checks`; `gatepost doctor` itself adds which processes it could not ask.
"""

from __future__ import annotations

from typing import Final

from gatepost.dispatch.leases import BEAT
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.facts import FleetFacts, ProcessFacts
from gatepost.service.doctor.finding import Finding, Severity, shortened

SILENT_AFTER: Final = 1.5 * BEAT
"""Seconds without a heartbeat: one is missing, and its lease has as much again before others may take its parts."""
STUCK_AFTER: Final = 5.0
"""Seconds for which work must have been due: parts that nobody holds are taken within two."""


def stopped(facts: ProcessFacts) -> Finding | None:
    """The process delivers."""
    if facts.draining or (facts.running and (facts.lease_seconds_left > 0 or not facts.parts)):
        return None
    return Finding(
        Code.DISPATCHER_STOPPED,
        Severity.CRITICAL,
        "A process takes events and delivers none: its dispatcher does not run, or may not start anything.",
        (
            f"running: {'yes' if facts.running else 'no'}, {facts.parts} parts, "
            f"{facts.lease_seconds_left:.1f} s of the part leases left",
        ),
        "Read its log from `dispatcher_stopped` or the last heartbeat on, and restart it.",
    )


def processes(facts: FleetFacts) -> Finding | None:
    """Every owner of parts is alive."""
    silent = [node for node in facts.nodes if node.seen_ago > SILENT_AFTER]
    gone = [f"{name}: gone, and holds {count} parts" for name, count in facts.owners_gone.items()]
    if not silent and not gone:
        return None
    return Finding(
        Code.PROCESS_DEAD,
        Severity.WARNING,
        "A process died or hangs: its parts are taken over when their leases end.",
        shortened(
            [*gone, *(f"{node.name}: no heartbeat for {node.seen_ago:.0f} s, {node.parts} parts" for node in silent)]
        ),
        "Look at its machine and its log. Do the others take its parts over? Else see part_stuck.",
    )


def draining(facts: FleetFacts) -> Finding | None:
    """Nobody is on its way out."""
    leaving = [node for node in facts.nodes if node.draining]
    if not leaving:
        return None
    return Finding(
        Code.PROCESS_DRAINING,
        Severity.NOTICE,
        "A process gives its parts back and will end.",
        shortened([f"{node.name}: {node.parts} parts left" for node in leaving]),
        "Nothing, if somebody restarts it just now. A process also drains while its clock is not trusted: see clock_skew.",
    )


def stuck(facts: FleetFacts) -> Finding | None:
    """What is due in every part is delivered by somebody."""
    late = [part for part in facts.stuck if part.due_for > STUCK_AFTER]
    if not late:
        return None
    late.sort(key=lambda part: -part.due_for)
    return Finding(
        Code.PART_STUCK,
        Severity.CRITICAL,
        "Work is due in a part that nobody delivers.",
        shortened(
            [
                f"part {part.part}: {part.waiting} deliveries, due for {part.due_for:.0f} s; "
                + (
                    "nobody owns it"
                    if part.owner is None
                    else f"owner {part.owner} is not at work, its lease has {part.lease_left:.0f} s left"
                )
                for part in late
            ]
        ),
        "End the process that owns it (its parts are then taken over within seconds); if nobody owns it, start a process.",
    )


def unverified(facts: FleetFacts) -> Finding | None:
    """Somebody has seen every endpoint's certificate."""
    if not facts.unverified:
        return None
    return Finding(
        Code.ENDPOINT_UNVERIFIED,
        Severity.WARNING,
        "Endpoints are registered whose certificate nobody has seen: their first delivery may be the one that fails.",
        shortened([f"{endpoint}: {why}" for endpoint, why in facts.unverified]),
        "`gatepost endpoint test ID` sends one signed test event, and `gatepost doctor URL` takes the way there apart.",
    )
