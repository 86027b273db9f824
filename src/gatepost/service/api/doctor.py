"""`/v1/doctor`: what this process finds wrong with itself and with the fleet, and the facts it goes by. For admins."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from gatepost.service.api.context import CallerDep, ServiceDep
from gatepost.service.api.problems import not_found
from gatepost.service.doctor.checks import NO_FLEET, examine
from gatepost.service.doctor.collect import PATIENCE, Doctor, facts_json
from gatepost.service.siblings import Siblings

router = APIRouter(prefix="/v1/doctor", tags=["operation"])

QUESTION: Final = "doctor"
"""That siblings ask one another."""
SIBLINGS_PATIENCE: Final = PATIENCE + 1.0
"""Seconds for their answers: a look takes as long as a store and names that hang, and a moment."""

FleetQuery = Annotated[
    bool, Query(description="Look at the fleet and the other processes too. False: only at the process that answers.")
]


@router.get("")
async def examination(service: ServiceDep, caller: CallerDep, fleet: FleetQuery = True) -> dict[str, Any]:
    """What is wrong with the process that answers, with those beside it on its machine, and with the fleet; takes up to some seconds."""
    caller.check_admin()
    doctor = service.doctor
    if doctor is None:
        raise not_found()
    if not fleet:
        return await own_examination(doctor)
    process, of_fleet, heard = await asyncio.gather(
        doctor.process(), doctor.fleet(), service.siblings.ask(QUESTION, timeout=SIBLINGS_PATIENCE)
    )
    return {
        "answered_by": process.node,
        "findings": [finding.as_json() for finding in examine(process, of_fleet)],
        "process": facts_json(process),
        "fleet": facts_json(of_fleet),
        "siblings": [heard.answers[index] for index in sorted(heard.answers)],
    }


async def own_examination(doctor: Doctor) -> dict[str, Any]:
    """Of the process alone."""
    process = await doctor.process()
    return {
        "answered_by": process.node,
        "findings": [finding.as_json() for finding in examine(process, NO_FLEET)],
        "process": facts_json(process),
        "fleet": None,
        "siblings": [],
    }


def answer_siblings(siblings: Siblings, doctor: Doctor) -> None:
    """Let the other processes of this machine ask."""

    async def answer(_: Any) -> dict[str, Any]:
        return await own_examination(doctor)

    siblings.answer(QUESTION, answer)
