"""The JSON bodies the API takes, for checking and for the OpenAPI document. Unknown fields are refused.

Events are not here: their route keeps the payload's exact bytes and reads them itself (`api.event_body`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gatepost.service.api.context import VERSION_MAX

NO_NUL = r"^[^\x00]*$"
"""PostgreSQL cannot store the character U+0000."""
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=NO_NUL)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Pem = Annotated[str, Field(min_length=1, max_length=65_536)]
StatusRule = Literal["delivered", "final", "disable", "retry", "slow"]


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(extra="forbid")


class EndpointFields(Body):
    """Fields of an endpoint that may change. Absent: as it is, or the default."""

    url: Annotated[str, Field(min_length=1, max_length=2_048)] | None = None
    event_types: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    description: Annotated[str, Field(max_length=1_000)] | None = None
    headers: dict[str, str] | None = Field(None, description="Extra request headers; replaces all of them.")
    schedule: Annotated[list[Delay], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Seconds before each attempt, counted from the end of the previous one."
    )
    window: Seconds | None = Field(None, description="Seconds within which a delivery is tried.")
    status_rules: dict[str, StatusRule] | None = Field(None, description='Status or class, such as "404" or "4xx".')
    concurrency: Annotated[int, Field(ge=1, le=64)] | None = Field(None, description="Attempts in flight at once.")
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Attempts started per second."
    )
    disable_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds of nothing but failed attempts after which it is disabled; 0: never."
    )
    limits: dict[str, float] | None = Field(None, description="Limits of an attempt, such as read_timeout, in seconds.")
    tier: Literal["same_dc", "cross_region", "datastore", "third_party"] | None = Field(
        None, description="A profile of limits; none: those of the fleet apply."
    )
    deduplicates: bool | None = Field(None, description="The receiver drops repeated webhook-ids.")
    send_deadline: bool | None = Field(
        None, description="Send Request-Timeout with each attempt: the seconds for which its answer is waited for."
    )
    send_trace: bool | None = Field(
        None,
        description="Send traceparent and tracestate with each attempt, so that the receiver's trace goes on from ours.",
    )
    ca_pem: Pem | None = Field(None, description="Certificates trusted instead of the public authorities.")
    client_cert_pem: Pem | None = Field(None, description="Shown to the receiver; needs client_key_pem.")
    client_key_pem: Pem | None = Field(None, description="Its key, without password; sealed, and never shown again.")
    x509_strict: bool | None = Field(None, description="False: accept old certificates of a private authority.")
    probe: bool | None = Field(
        None, description="Connect and look at the certificate first (default). False: store as unverified."
    )


class NewEndpoint(EndpointFields):
    """A new endpoint."""

    url: Annotated[str, Field(min_length=1, max_length=2_048)]
    tenant: Text | None = None
    secret: str | None = Field(None, description="whsec_…; made when absent, and shown once in the answer.")


class Pause(Body):
    """Why."""

    reason: Annotated[str, Field(max_length=500, pattern=NO_NUL)] = "paused by its owner"


class Rotation(Body):
    """How long the old secret signs beside the new one, in seconds."""

    overlap: Annotated[float, Field(ge=0, le=7 * 86_400.0, allow_inf_nan=False)] = 86_400.0


class LimitsBody(Body):
    """What a tenant may use. Null: unlimited."""

    events_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    bytes_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    backlog_rows: Annotated[int, Field(ge=0)] | None = None
    endpoints: Annotated[int, Field(ge=0)] | None = None


class NewTenant(Body):
    """A tenant to create."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    limits: LimitsBody = LimitsBody()


class TenantChange(Body):
    """New limits of a tenant, all of them."""

    limits: LimitsBody


class NewKey(Body):
    """An API key to make."""

    name: Text
    tenant: Text | None = Field(None, description="Null: an admin key.")


class DeliverySelection(Body):
    """Which deliveries. At least an event, an endpoint, or (for an admin) a tenant."""

    tenant: Text | None = None
    endpoint_id: Text | None = None
    event_id: Text | None = None


class DeadSelection(Body):
    """Which dead letters. All given conditions hold."""

    tenant: Text | None = None
    endpoint_id: Text | None = None
    event_type: Text | None = None
    why: Text | None = None
    delivery_id: Text | None = None
    died_from: datetime | None = None
    died_before: datetime | None = None


PortionSize = Annotated[int, Field(ge=1, le=100_000)]


class DeadReplay(DeadSelection):
    """Dead letters to deliver again, at most `rate` a second."""

    rate: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] = 50.0
    limit: PortionSize | None = Field(
        None,
        description="At most so many in this call; go on with next_at as not_before, and died_before, of the answer.",
    )
    not_before: datetime | None = Field(None, description="When the first of them is due; absent: now.")


class DeadPurge(DeadSelection):
    """Dead letters to delete."""

    limit: PortionSize | None = Field(None, description="At most so many in this call.")


Why = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$", description="Kept in the history.")]
Layer = Literal["tier", "fleet", "cohort", "canary"]


class PolicyValue(Body):
    """What a layer says of one limit."""

    value: bool | int | float | Literal["on", "off", "dry_run", "share", "wilson"] | None = Field(
        None, description="A number, or true or false; a word for `breaker.mode` and `breaker.judge`."
    )
    floor: Seconds | None = Field(None, description="Learning does not go below it; read_timeout only.")
    ceiling: Seconds | None = Field(None, description="Learning does not go above it; read_timeout only.")


class PolicySet(Body):
    """Limits to set in one layer."""

    layer: Layer = "fleet"
    limits: dict[str, PolicyValue]
    why: Why
    tier: Text | None = Field(None, description="Which tier, for its profile.")
    share: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="Of the endpoints, for a cohort.")
    process: Text | None = Field(None, description="Name of the process, for a canary.")
    force: bool = Field(False, description="Store what makes budgets too long for ordered lanes or windows.")


class PolicyClear(Body):
    """Limits to take out of one layer."""

    layer: Layer = "fleet"
    limits: list[Text] | None = Field(None, description="Absent: all of them.")
    tier: Text | None = Field(None, description="Which tier, where that is the layer.")
    why: Why
    force: bool = False


class PolicyRollback(Body):
    """What to take back."""

    version: Annotated[int, Field(ge=0, le=VERSION_MAX)] | None = Field(
        None, description="Absent: the version before the newest."
    )
    endpoint_id: Text | None = Field(None, description="Take back for this endpoint only what the rollout changed.")
    why: Why


class PolicyShadow(Body):
    """Limits to try in shadow, by name; none: try nothing."""

    limits: dict[str, PolicyValue]
    why: Why


class PolicyReason(Body):
    """Why."""

    why: Why


class RolloutAdvance(PolicyReason):
    """Why, and from where."""

    step: int | None = Field(
        None, description="`step` of the rollout as it was seen; refused when it is another one by now."
    )


class RolloutStart(Body):
    """What to roll out, and how. Durations in seconds."""

    limits: dict[str, PolicyValue]
    why: Why
    canary: Text | None = Field(None, description="Name of the process that goes first; absent: one is chosen.")
    shadow_hold: Delay = 86_400.0
    canary_hold: Delay = 86_400.0
    cohort_hold: Delay = 86_400.0
    shares: list[float] = Field([0.01, 0.1, 0.5], description="Cohorts: rising shares of the endpoints.")
    night: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        [0.0, 6.0], description="Hours of a day that every stage must have lived through; null: none."
    )
    utc_offset: float = Field(0.0, description="Hours, of the zone that these are hours of.")
    tolerance: float = Field(0.005, description="Rise of the failed share that is accepted.")
    force: bool = Field(False, description="Start although budgets would be too long for ordered lanes or windows.")
