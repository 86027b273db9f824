"""Publishing from a Django project: in its transaction (`publish`), or after it (`publish_on_commit`).

`publish` writes one row to the project's own database and is the one to use: the event exists if and only if the transaction
commits. `publish_on_commit` needs no table in it, and loses the event when the process dies right after the commit.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from gatepost.contrib.django.conf import configured, database_url
from gatepost.delivery.records import Receipt
from gatepost.dispatch.new_event import MAX_PAYLOAD
from gatepost.dispatch.publisher import Publisher
from gatepost.wire.payload import payload_bytes

_LOCK: Final = threading.Lock()
_opened: dict[int, Publisher] = {}
"""By process: a publisher must not cross a fork, and web servers fork."""
_transactional: Publisher | None = None


def publish(
    type: str,  # noqa: A002 - the field's own name
    payload: object,
    *,
    using: str = DEFAULT_DB_ALIAS,
    tenant: str = "default",
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
    priority: str = "normal",
    not_before: datetime | float | None = None,
    content_type: str = "application/json",
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> Receipt:
    """Publish in the current transaction of the database `using`, with one INSERT; see `Publisher.publish_sync`.

    Raises `ConfigurationError` when the table is missing (`manage.py migrate gatepost`). Warns outside `transaction.atomic()`.
    """
    return _in_transaction().publish_sync(
        type,
        payload,
        tenant=tenant,
        idempotency_key=idempotency_key,
        ordering_key=ordering_key,
        priority=priority,
        not_before=not_before,
        content_type=content_type,
        traceparent=traceparent,
        tracestate=tracestate,
        connection=connections[using],
    )


def publish_on_commit(
    type: str,  # noqa: A002 - the field's own name
    payload: object,
    *,
    using: str = DEFAULT_DB_ALIAS,
    tenant: str = "default",
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
    priority: str = "normal",
    not_before: datetime | float | None = None,
    content_type: str = "application/json",
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> None:
    """Publish straight into `GATEPOST["database"]` once the current transaction has committed; at once when there is none.

    The payload is written down now. Raises `TypeError` or `ValueError` for what is no payload and `ConfigurationError` without
    that setting now; anything else, such as `StoreError`, out of the commit.
    """
    database_url()
    after = partial(
        _publish_now,
        type,
        payload_bytes(payload),
        {
            "tenant": tenant,
            "idempotency_key": idempotency_key,
            "ordering_key": ordering_key,
            "priority": priority,
            "not_before": not_before,
            "content_type": content_type,
            "traceparent": traceparent,
            "tracestate": tracestate,
        },
    )
    transaction.on_commit(after, using=using)


def _publish_now(event_type: str, payload: bytes, options: Mapping[str, Any]) -> None:
    _publisher().publish_sync(event_type, payload, **options)


def _in_transaction() -> Publisher:
    global _transactional
    if _transactional is None:
        _transactional = Publisher(max_payload=_max_payload())
    return _transactional


def _publisher() -> Publisher:
    """The publisher of this process, open until the process ends."""
    with _LOCK:
        publisher = _opened.get(os.getpid())
        if publisher is None:
            stack = ExitStack()
            publisher = stack.enter_context(Publisher.open_sync(database_url(), max_payload=_max_payload()))
            atexit.register(stack.close)
            _opened.clear()  # what a fork has brought along is its parent's
            _opened[os.getpid()] = publisher
        return publisher


def _max_payload() -> int:
    ingest = configured().get("ingest", {})
    return int(ingest.get("max_payload", MAX_PAYLOAD))
