"""What a tenant is told of Gatepost's own events: what happened to it, and nothing of where the operator keeps things."""

from __future__ import annotations

from gatepost.dispatch.notices import Notices
from gatepost.dispatch.operational import operational_event
from gatepost.telemetry import OperationalObservation


def test_a_tenant_is_not_told_where_the_producers_database_is() -> None:
    """Its operational endpoint may belong to a customer; the operator's own notice names the place."""
    heard: list[OperationalObservation] = []
    notices = Notices(None, lambda: 0)
    notices.tell_tenant = heard.append
    notices.outbox_set_aside("postgresql://db.internal:5432/orders", "acme", "evt_1", "invalid_event", "no type")
    [notice] = heard
    assert "db.internal" in notice.message
    draft = operational_event(notice, "2027-01-31T12:00:00Z")
    assert draft is not None
    assert draft.type == "gatepost.event.set_aside"
    assert b"db.internal" not in draft.body
    assert b'"reason":"invalid_event"' in draft.body
    assert b'"message":"event evt_1 of tenant acme was set aside' in draft.body
