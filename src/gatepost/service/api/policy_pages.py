"""`/v1/policies/process`: what the process that answers really runs, which each one also tells on its own port. For admins."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gatepost.service.api.context import CallerDep, ServiceDep
from gatepost.service.api.policy_views import effective_view

router = APIRouter(prefix="/v1/policies", tags=["policies"])


@router.get("/process")
async def process_policy(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """The limits of this process, for an endpoint of no tier and outside of cohorts."""
    caller.check_admin()
    policies = service.dispatcher.policies
    return {
        "process": policies.process,
        "version": policies.version,
        "limits": effective_view(policies.of_process(), policies.breaker_of_process()),
        "doubts": policies.doubts(),
    }
