"""Puts together what an operator sees of a delivery, from its history, its row, its last attempt and its dead letter.

Shared by the engines on a disk, whose queries return these columns in this order.
"""

from __future__ import annotations

from typing import Final, Literal

from gatepost.delivery.ids import id_time_us
from gatepost.store.rows import DeliveryInfo

State = Literal["waiting", "delivered", "dead", "cancelled"]
STATES: Final[dict[int, State]] = {0: "delivered", 1: "dead", 2: "cancelled"}
"""`history.state`; 0 is "waiting" where the delivery's row exists."""


def delivery_info(
    number: int,
    event_id: int,
    tenant: str,
    endpoint: int,
    state: int,
    at: int,
    waiting_attempt: int | None,
    event_type: str,
    last_number: int | None,
    last_outcome: str | None,
    last_status: int | None,
    last_end: int | None,
    dead_attempts: int | None,
    dead_outcome: str | None,
    dead_status: int | None,
) -> DeliveryInfo:
    """The delivery. `waiting_attempt` is None unless its row exists; `at` is when it is due, or since when it is dead or cancelled."""
    waiting = waiting_attempt is not None
    tried = last_number is not None
    attempts = waiting_attempt if waiting else dead_attempts if state == 1 else last_number
    return DeliveryInfo(
        number,
        event_id,
        tenant,
        endpoint,
        "waiting" if waiting else STATES[state],
        attempts or 0,
        at if waiting else None,
        event_type,
        last_outcome if tried else dead_outcome,
        last_status if tried else dead_status,
        max(id_time_us(number), last_end or 0, at if state else 0),
    )
