"""`/v1/doctor`: what this process finds wrong with itself and with the fleet, and the facts it goes by. For admins."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatepost.service.api.context import CallerDep, ServiceDep
from gatepost.service.api.problems import not_found
from gatepost.service.doctor.checks import NO_FLEET, examine
from gatepost.service.doctor.collect import facts_json

router = APIRouter(prefix="/v1/doctor", tags=["operation"])

FleetQuery = Annotated[
    bool, Query(description="Look at the fleet and all endpoints too. False: only at the process that answers.")
]


@router.get("")
async def examination(service: ServiceDep, caller: CallerDep, fleet: FleetQuery = True) -> dict[str, Any]:
    """What is wrong with the process that answers and with its fleet, the worst first; takes up to some seconds."""
    caller.check_admin()
    doctor = service.doctor
    if doctor is None:
        raise not_found()
    if fleet:
        process, of_fleet = await asyncio.gather(doctor.process(), doctor.fleet())
    else:
        process, of_fleet = await doctor.process(), NO_FLEET
    return {
        "answered_by": process.node,
        "findings": [finding.as_json() for finding in examine(process, of_fleet)],
        "process": facts_json(process),
        "fleet": facts_json(of_fleet) if fleet else None,
    }
