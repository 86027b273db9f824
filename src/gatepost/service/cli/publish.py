"""`gatepost publish`: one event, through a running service or straight into its database."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gatepost.service.cli.api_client import ApiClient, KeyOption, TenantOption, UrlOption
from gatepost.service.cli.output import JsonFlag, fail, print_json, print_line
from gatepost.service.cli.send import read_data


def publish(
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="For example invoice.paid.")],
    data: Annotated[str, typer.Option(help="The payload; @FILE reads a file, @- standard input.")] = "{}",
    idempotency_key: Annotated[str | None, typer.Option(help="Publishing twice under one key stores once.")] = None,
    ordering_key: Annotated[str | None, typer.Option(help="Deliver events of one key in order.")] = None,
    priority: Annotated[str, typer.Option(help="high, normal or bulk.")] = "normal",
    content_type: Annotated[str, typer.Option(help="Content-Type of the payload.")] = "application/json",
    database: Annotated[
        str | None, typer.Option("--db", help="Write to this database instead, for example sqlite:///gatepost.db.")
    ] = None,
    tenant: TenantOption = None,
    url: UrlOption = "http://127.0.0.1:8080",
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Exit 0 once the event is durable. The payload's bytes are delivered exactly as given."""
    payload = read_data(data)
    if database is not None:
        answer = _publish_to_store(
            database, event_type, payload, tenant, idempotency_key, ordering_key, priority, content_type
        )
    else:
        body: dict[str, Any] = {
            "type": event_type,
            "tenant": tenant,
            "idempotency_key": idempotency_key,
            "ordering_key": ordering_key,
            "priority": priority,
            "content_type": content_type,
        }
        kept = {name: value for name, value in body.items() if value is not None}
        answer = ApiClient(url, api_key).call("POST", "/v1/events", _body(kept, payload))
    if as_json:
        print_json(answer)
        return
    deliveries = answer["deliveries"]
    fan_out = "" if deliveries is None else f", {deliveries} deliveries"
    print_line(f"{answer['event_id']}{fan_out}{' (published before under this key)' if answer['duplicate'] else ''}")


def _body(fields: dict[str, Any], payload: bytes) -> bytes:
    """The request's body with the payload's own bytes in it: JSON as it stands, anything else as base64."""
    import base64

    try:
        json.loads(payload)
        text = payload.decode()
    except ValueError:
        return json.dumps({**fields, "payload_base64": base64.b64encode(payload).decode()}).encode()
    return f'{json.dumps(fields)[:-1]}, "payload": {text.strip()}}}'.encode()


def _publish_to_store(
    database: str,
    event_type: str,
    payload: bytes,
    tenant: str | None,
    idempotency_key: str | None,
    ordering_key: str | None,
    priority: str,
    content_type: str,
) -> dict[str, Any]:
    from gatepost.dispatch.publisher import Publisher

    if priority not in ("high", "normal", "bulk"):
        fail(f"--priority {priority!r}: write high, normal or bulk")
    with Publisher.open_sync(database) as publisher:
        receipt = publisher.publish_sync(
            event_type,
            payload,
            tenant=tenant or "default",
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
            priority=priority,
            content_type=content_type,
        )
    return {"event_id": receipt.event_id, "duplicate": receipt.duplicate, "deliveries": receipt.deliveries}
