"""`gatepost publish`: one event or many, through a running service or straight into its database."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption
from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_json, print_line
from gatepost.service.cli.send import read_data

BATCH_EVENTS_MAX: Final = 500
"""As the API's own limit, which this module must not import: it would load the whole server."""
BATCH_CHARS: Final = 4 * 1_048_576


def publish(
    event_type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="For example invoice.paid.")] = None,
    data: Annotated[str, typer.Option(help="The payload; @FILE reads a file, @- standard input.")] = "{}",
    idempotency_key: Annotated[str | None, typer.Option(help="Publishing twice under one key stores once.")] = None,
    ordering_key: Annotated[str | None, typer.Option(help="Deliver events of one key in order.")] = None,
    priority: Annotated[str, typer.Option(help="high, normal or bulk.")] = "normal",
    content_type: Annotated[str, typer.Option(help="Content-Type of the payload.")] = "application/json",
    database: Annotated[
        str | None, typer.Option("--db", help="Write to this database instead, for example sqlite:///gatepost.db.")
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Read an event a line, as the API takes them, from standard input.")
    ] = False,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Exit 0 once the event is durable. The payload's bytes are delivered exactly as given."""
    if jsonl:
        if event_type is not None or database is not None:
            fail("--jsonl takes type, payload and all else from its lines, over HTTP; leave TYPE and --db out")
        raise typer.Exit(_publish_lines(ApiClient(url, api_key, keep_alive=True)))
    if event_type is None:
        fail("write a TYPE, or --jsonl")
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
    fan_out = "" if deliveries is None else f", {deliveries} {'delivery' if deliveries == 1 else 'deliveries'}"
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


def _publish_lines(client: ApiClient) -> int:
    """Batches of the lines as they stand; a receipt or problem a line, in order. 1 when any event was refused."""
    code = DONE
    try:
        for lines in _batches(sys.stdin):
            body = '{"events": [' + ",".join(lines) + "]}"
            for result in client.call("POST", "/v1/events:batch", body.encode())["results"]:
                code = NOT if "code" in result else code
                print_json(result)
    finally:
        client.close()
    return code


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines that are not blank, as many together as a batch may have or about 4 MiB hold."""
    batch: list[str] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        batch.append(line)
        size += len(line)
        if len(batch) == BATCH_EVENTS_MAX or size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
    import asyncio

    from gatepost.delivery.records import Receipt
    from gatepost.dispatch.publisher import Publisher

    if priority not in ("high", "normal", "bulk"):
        fail(f"--priority {priority!r}: write high, normal or bulk")

    async def store() -> Receipt:
        async with Publisher.open(database) as publisher:
            return await publisher.publish(
                event_type,
                payload,
                tenant=tenant or "default",
                idempotency_key=idempotency_key,
                ordering_key=ordering_key,
                priority=priority,
                content_type=content_type,
            )

    receipt = asyncio.run(store())
    return {"event_id": receipt.event_id, "duplicate": receipt.duplicate, "deliveries": receipt.deliveries}
