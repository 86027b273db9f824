"""What the doctor says: a finding with its code, how bad it is, what it rests on and what to do; and how many of them become one.

It finds nothing itself: the checks beside it do, and the command and the API show what they found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

EVIDENCE_MAX: Final = 8
"""Lines of evidence shown of one finding: the worst ones, and how many more there are."""


class Severity(StrEnum):
    """How bad it is, the worst first."""

    CRITICAL = "critical"
    """Deliveries or events stop, or will soon; or a protection is off."""
    WARNING = "warning"
    """Deliveries are slower, dearer or fewer than they should be."""
    NOTICE = "notice"
    """Nothing is lost by it now."""


RANK: Final[Mapping[Severity, int]] = {severity: place for place, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    """Stable, for programs."""
    severity: Severity
    what: str
    """A sentence."""
    evidence: tuple[str, ...]
    """What it rests on, a line each."""
    todo: str
    """What to do about it."""
    processes: tuple[str, ...] = ()
    """Who found it of itself; empty: it is about the fleet."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def finding_from(document: Mapping[str, Any]) -> Finding:
    """The finding that `as_json` wrote. A severity that we do not know counts as the worst: another version wrote it."""
    known = [severity for severity in Severity if severity == document["severity"]]
    return Finding(
        str(document["code"]),
        known[0] if known else Severity.CRITICAL,
        str(document["what"]),
        tuple(map(str, document["evidence"])),
        str(document["todo"]),
        tuple(map(str, document["processes"])),
    )


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each code and text, with everybody's evidence; the worst first, else in the order they came."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, one.what), []).append(one)
    found = [same[0] if len(same) == 1 else _together(same) for same in groups.values()]
    return sorted(found, key=lambda one: RANK[one.severity])


def _together(same: Sequence[Finding]) -> Finding:
    """What all say is said once; else each line names who says it."""
    seen = [set(one.evidence) for one in same]
    common = [line for line in same[0].evidence if all(line in lines for lines in seen)]
    own = [
        f"{', '.join(one.processes)}: {line}" if one.processes else line
        for one in same
        for line in one.evidence
        if line not in common
    ]
    return replace(
        same[0],
        severity=min((one.severity for one in same), key=RANK.__getitem__),
        evidence=shortened([*common, *dict.fromkeys(own)]),
        processes=tuple(dict.fromkeys(name for one in same for name in one.processes)),
    )


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and how many there are beside them."""
    if len(lines) <= EVIDENCE_MAX:
        return tuple(lines)
    return (*lines[: EVIDENCE_MAX - 1], f"and {len(lines) - EVIDENCE_MAX + 1} more")
