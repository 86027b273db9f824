"""What can be told from a configuration alone, on this machine, while no service runs: limits, open files, disk.

It reads no store and asks nobody; what only a running process knows stays out. Called by `gatepost doctor`.
"""

from __future__ import annotations

from typing import Final

from gatepost.service.config import Settings
from gatepost.service.doctor.checks import examine
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.collect import limit_facts
from gatepost.service.doctor.facts import ClientFacts, ProcessFacts
from gatepost.service.doctor.finding import Finding, Severity, merged
from gatepost.service.doctor.machine import disk_directory, disk_facts, file_facts
from gatepost.service.effective import doubts

NODE: Final = "configuration"
"""What stands in the place of a process' name."""


def facts_of(settings: Settings) -> ProcessFacts:
    """As if a process with these settings had just started, as far as that can be known."""
    directory = disk_directory(settings.database)
    return ProcessFacts(
        node=NODE,
        machine="",
        running=True,
        draining=False,
        lease_seconds_left=0.0,
        parts=0,
        clock_skew=0.0,
        limits=limit_facts(settings.policy, slots=settings.slots, shared=directory is None),
        client=ClientFacts(0, 0, None, 0),
        hosts=(),
        names=(),
        names_pending=0,
        store=None,
        files=file_facts(settings.policy.max_connections, settings.slots, open_now=False),
        disk=None if directory is None else disk_facts(directory),
        sockets=None,
    )


def examine_settings(settings: Settings) -> list[Finding]:
    """What is wrong, and what is possible and was probably not meant."""
    found = examine(facts_of(settings))
    questionable = doubts(settings)
    if questionable:
        found.append(
            Finding(
                Code.CONFIGURATION_DOUBTFUL,
                Severity.NOTICE,
                "The configuration is possible, and probably not meant so.",
                tuple(questionable),
                "Write what each line says, or leave it as it is.",
                (NODE,),
            )
        )
    return merged(found)
