"""Records as the API shows them: public ids, RFC 3339 times, seconds, and no secret a second time.

Signing secrets appear in full only in the answer to the call that made them; header values never do, since they hold
credentials. Pure functions from records to JSON values.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gatepost.delivery.ids import DELIVERY, ENDPOINT, EVENT, encode_id
from gatepost.delivery.records import ApiKey, Endpoint, EndpointSecret, Tenant
from gatepost.dispatch.tenants import PurgeReceipt
from gatepost.store.port import AuditEntry
from gatepost.store.rows import AttemptRow, DeadLetter, DeliveryInfo

MASK = "***"
SECRET_TAIL_CHARS = 4
"""Enough to tell two secrets apart, and 24 bits of the 192 or more they have."""


def time_text(at_us: int | None) -> str | None:
    """UTC microseconds as RFC 3339, to the millisecond."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def exact_time(at_us: int) -> str:
    """UTC microseconds as RFC 3339, to the microsecond: for instants that a caller hands back."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def endpoint_view(endpoint: Endpoint, *, reveal: bool = False) -> dict[str, Any]:
    """An endpoint; with `reveal`, its newest secret in full as `secret`."""
    view = {
        "id": endpoint.id,
        "tenant": endpoint.tenant,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "description": endpoint.description,
        "status": endpoint.status.value,
        "status_reason": endpoint.status_reason,
        "generation": endpoint.generation,
        "created_at": time_text(endpoint.created_at),
        "updated_at": time_text(endpoint.updated_at),
        "secrets": [_secret_view(secret) for secret in endpoint.secrets],
        "headers": dict.fromkeys(endpoint.headers, MASK),
        "schedule": None if endpoint.schedule is None else list(endpoint.schedule),
        "window": endpoint.window,
        "status_rules": dict(endpoint.status_rules),
        "concurrency": endpoint.concurrency,
        "rate": endpoint.rate,
        "disable_after": endpoint.disable_after,
        "limits": dict(endpoint.limits),
        "tier": endpoint.tier,
        "deduplicates": endpoint.deduplicates,
        "send_deadline": endpoint.send_deadline,
        "send_trace": endpoint.send_trace,
        "ca_pem": endpoint.ca_pem,
        "client_cert_pem": endpoint.client_cert_pem,
        "client_key_pem": None if endpoint.client_key_pem is None else MASK,
        "x509_strict": endpoint.x509_strict,
        "unverified": endpoint.unverified,
    }
    if reveal and endpoint.secrets:
        view["secret"] = endpoint.secrets[0].secret.reveal()
    return view


def _secret_view(secret: EndpointSecret) -> dict[str, Any]:
    return {
        "hint": f"whsec_{MASK}{secret.secret.reveal()[-SECRET_TAIL_CHARS:]}",
        "created_at": time_text(secret.created_at),
        "expires_at": time_text(secret.expires_at),
    }


def purge_view(receipt: PurgeReceipt) -> dict[str, Any]:
    """The receipt of an erased tenant. Times are exact, since the digest is over them."""
    return {
        "state": "erased",
        "tenant": receipt.tenant,
        "started_at": exact_time(receipt.started_at),
        "finished_at": exact_time(receipt.finished_at),
        "erased": dict(receipt.erased),
        "resumed": receipt.resumed,
        "outboxes": dict(receipt.outboxes),
        "digest": receipt.digest,
    }


def tenant_view(tenant: Tenant) -> dict[str, Any]:
    """A tenant."""
    limits = tenant.limits
    return {
        "name": tenant.name,
        "created_at": time_text(tenant.created_at),
        "generation": tenant.generation,
        "stopped_at": time_text(tenant.stopped_at),
        "limits": {
            "events_per_second": limits.events_per_second,
            "bytes_per_second": limits.bytes_per_second,
            "backlog_rows": limits.backlog_rows,
            "endpoints": limits.endpoints,
        },
    }


def key_view(key: ApiKey) -> dict[str, Any]:
    """An API key without the key."""
    return {"id": key.id, "tenant": key.tenant, "name": key.name, "created_at": time_text(key.created_at)}


def delivery_view(info: DeliveryInfo) -> dict[str, Any]:
    """A delivery."""
    return {
        "id": encode_id(DELIVERY, info.delivery_id),
        "event_id": encode_id(EVENT, info.event_id),
        "endpoint_id": encode_id(ENDPOINT, info.endpoint),
        "tenant": info.tenant,
        "event_type": info.event_type,
        "state": info.state,
        "attempts": info.attempts,
        "due_at": time_text(info.due_at),
        "last_outcome": info.last_outcome,
        "last_status": info.last_status,
        "updated_at": time_text(info.updated_at),
    }


def attempt_view(row: AttemptRow) -> dict[str, Any]:
    """One line of the attempt log."""
    return {
        "number": row.number,
        "started_at": time_text(row.started_at),
        "outcome": row.outcome,
        "phase": row.phase,
        "reason": row.reason,
        "retry_safety": row.retry_safety,
        "blame": row.blame,
        "status": row.status,
        "elapsed": row.elapsed_us / 1e6,
        "phases": phases_of(row.phases_us),
        "address": row.address,
        "response": row.response.decode("utf-8", "replace"),
        "decision": row.decision,
        "worker": row.worker,
    }


def phases_of(text: str) -> dict[str, float]:
    """`phase:microseconds` pairs as seconds by phase."""
    pairs = (pair.partition(":") for pair in text.split())
    return {phase: int(micros) / 1e6 for phase, _, micros in pairs}


def dead_view(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter without its payload."""
    return {
        "delivery_id": encode_id(DELIVERY, letter.delivery_id),
        "event_id": encode_id(EVENT, letter.event_id),
        "endpoint_id": encode_id(ENDPOINT, letter.endpoint),
        "tenant": letter.tenant,
        "event_type": letter.event_type,
        "content_type": letter.content_type,
        "attempts": letter.attempts,
        "why": letter.why,
        "outcome": letter.outcome,
        "status": letter.status,
        "died_at": time_text(letter.died_at),
    }


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """Who changed what."""
    return {
        "at": time_text(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "tenant": entry.tenant,
        "detail": entry.detail,
    }
