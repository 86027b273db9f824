"""The checklist in order: every check over the facts of one process and of the fleet. Pure; called by the API and the command."""

from __future__ import annotations

from dataclasses import replace

from gatepost.service.doctor import checks_client as client
from gatepost.service.doctor import checks_fleet as fleet
from gatepost.service.doctor import checks_machine as machine
from gatepost.service.doctor.facts import FleetFacts, ProcessFacts
from gatepost.service.doctor.finding import Finding, merged

NO_FLEET = FleetFacts()


def examine(process: ProcessFacts, of_fleet: FleetFacts = NO_FLEET) -> list[Finding]:
    """What is wrong, the worst first; findings of the process itself name it."""
    own = (
        client.second_client(process.client),
        client.phase_limits(process.limits),
        client.reuse(process.hosts),
        client.keepalive(process.hosts, process.limits),
        client.budget(process.limits, of_fleet.over_lease),
        client.pool_timeouts(process.hosts),
        client.slots(process.limits),
        machine.time_wait(process.sockets),
        client.redirects(process.limits, of_fleet.redirecting),
        client.verification(process.client),
        client.nat64(process.client),
        machine.clock(process.clock_skew),
        machine.names(process.names, process.names_pending),
        machine.files(process.files),
        machine.disk(process.disk),
        machine.store(process.store),
        fleet.stopped(process),
    )
    together = (fleet.processes(of_fleet), fleet.draining(of_fleet), fleet.stuck(of_fleet), fleet.unverified(of_fleet))
    found = [replace(one, processes=(process.node,)) for one in own if one is not None]
    return merged([*found, *(one for one in together if one is not None)])
