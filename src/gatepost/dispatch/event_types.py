"""`dispatcher.event_types`: JSON Schemas that a tenant's events must fit, by type, in versions.

A type without a schema takes anything, as before. Checked when an event is published, here or by the follower of an outbox; events
that are stored already are not looked at again. It follows the registry's changes as endpoints do, so that a new schema holds in
every process within two seconds, and in this one when the call returns.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from gatepost.delivery.records import RESERVED_TYPES
from gatepost.dispatch.endpoint_rules import check_tenant_name
from gatepost.dispatch.event_schema import STEPS_INLINE, STEPS_MAX, CompiledSchema, StepsExceeded, compile_schema
from gatepost.dispatch.new_event import check_type
from gatepost.errors import ConfigurationError, Conflict, LimitExceeded, NotFound, PayloadInvalid, Violation
from gatepost.store.port import AuditEntry, EventSchema, Store
from gatepost.store.rows import Page

TYPES_MAX: Final = 1_000
"""Types of one tenant that have a schema."""
COMPILED_MAX: Final = 1_024
"""Schemas ready for use, over all tenants; the one used longest ago goes and is made again when needed."""
INLINE_BYTES_MAX: Final = 16_384
"""Payloads that are parsed on the event loop."""
PAGE: Final = 500
TRIES: Final = 3
"""A change that met another writer's is made again on the newer version."""

_log = logging.getLogger("gatepost.dispatch")


class EventTypes:
    """`store_time` is UTC microseconds."""

    def __init__(self, store: Store, store_time: Callable[[], int]) -> None:
        self._store = store
        self._now = store_time
        self._documents: dict[tuple[str, str], str] = {}
        """In force, by tenant and type."""
        self._compiled: OrderedDict[tuple[str, str], CompiledSchema] = OrderedDict()
        self._turn = asyncio.Lock()
        """From reading or writing a version until it is in force here: an older one must not come after a newer one."""

    @property
    def any(self) -> bool:
        """Some type of some tenant has a schema."""
        return bool(self._documents)

    # ---------------------------------------------------------------------------------------------- changing

    async def set(self, name: str, schema: object, *, tenant: str = "default", by: str = "") -> EventSchema:
        """Give events of this type a JSON Schema (2020-12), in force when this returns. `schema`: what JSON can hold, or its text.

        Setting the same one again changes nothing. Raises `ConfigurationError` for a schema or a type that is not taken,
        `LimitExceeded` for a tenant with `TYPES_MAX` types, `StoreError`.
        """
        check_type(name)
        check_tenant_name(tenant)
        if name.startswith(RESERVED_TYPES):
            raise ConfigurationError(f"type={name!r}: types that begin with {RESERVED_TYPES!r} are Gatepost's own")
        document = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        await asyncio.to_thread(compile_schema, document)  # up to some 0.3 s
        count = sum(key[0] == tenant for key in self._documents)
        if count >= TYPES_MAX and (tenant, name) not in self._documents:
            raise LimitExceeded(
                f"tenant {tenant} has schemas for {count} types, as many as it may", retry_after=3_600.0
            )
        async with self._turn:
            return await self._write(tenant, name, document, by)

    async def remove(self, name: str, *, tenant: str = "default", by: str = "") -> None:
        """Events of this type may be anything again; versions stay. Raises `NotFound` when it has no schema."""
        newest = await self._store.event_type(tenant, name)
        if newest is None or newest.document is None:
            raise NotFound(f"type {name!r} of tenant {tenant} has no schema")
        async with self._turn:
            await self._write(tenant, name, None, by)

    async def get(self, name: str, *, tenant: str = "default", version: int | None = None) -> EventSchema:
        """A version, None: the newest, which may say that there is none (`document` None). Raises `NotFound`."""
        found = await self._store.event_type(tenant, name, version)
        if found is None:
            which = "no schema" if version is None else f"no version {version}"
            raise NotFound(f"type {name!r} of tenant {tenant} has {which}")
        return found

    async def list(self, *, tenant: str | None = None, after: str | None = None, limit: int = 100) -> Page[EventSchema]:
        """The newest version of each type, removed ones too."""
        return await self._store.event_types(tenant, after, limit)

    async def versions(self, name: str, *, tenant: str = "default", limit: int = 20) -> Sequence[EventSchema]:
        """Newest first."""
        return await self._store.event_type_versions(tenant, name, None, limit)

    async def _write(self, tenant: str, name: str, document: str | None, by: str) -> EventSchema:
        for tries_left in reversed(range(TRIES)):
            newest = await self._store.event_type(tenant, name)
            if newest is not None and newest.document == document:
                self._put(newest)
                return newest
            made = EventSchema(tenant, name, 1 if newest is None else newest.version + 1, self._now(), by, document)
            try:
                await self._store.put_event_type(made)
            except Conflict:
                if not tries_left:
                    raise
                continue
            self._put(made)
            action = "event_type.remove" if document is None else "event_type.set"
            await self._store.audit(AuditEntry(made.at, by, action, name, tenant, f"version {made.version}"))
            return made
        raise AssertionError("the last try returns or raises")

    # --------------------------------------------------------------------------------------------- following

    async def load(self) -> None:
        """All schemas in force. Changes made meanwhile are heard of by whoever follows."""
        after: str | None = None
        while True:
            page = await self._store.event_types(None, after, PAGE)
            for one in page.items:
                self._put(one)
            after = page.next
            if after is None:
                return

    async def refresh(self, record_id: str) -> None:
        """A type changed; the id is that of `store.port.event_type_id`."""
        tenant, _, name = record_id.rpartition(" ")
        async with self._turn:
            newest = await self._store.event_type(tenant, name)
            self._put(EventSchema(tenant, name, 0, 0, "", None) if newest is None else newest)

    def _put(self, schema: EventSchema) -> None:
        key = (schema.tenant, schema.type)
        if schema.document is None:
            self._documents.pop(key, None)
            self._compiled.pop(key, None)
        elif self._documents.get(key) != schema.document:
            self._documents[key] = schema.document
            self._compiled.pop(key, None)

    # ---------------------------------------------------------------------------------------------- checking

    async def check(self, tenant: str, name: str, content_type: str, body: bytes) -> None:
        """Raises `PayloadInvalid` for a payload that does not fit the schema of its type; what takes long is done in a thread."""
        key = (tenant, name)
        document = self._documents.get(key)
        if document is None:
            return
        schema = self._known(key)
        if schema is None:
            schema = await asyncio.to_thread(_compiled, key, document)
            if self._documents.get(key) == document:
                self._keep(key, schema)
        if len(body) <= INLINE_BYTES_MAX:
            try:
                _judge(name, content_type, schema, body, STEPS_INLINE)
            except StepsExceeded:
                pass
            else:
                return
        await asyncio.to_thread(_judge_whole, name, content_type, schema, body)

    def check_now(self, tenant: str, name: str, content_type: str, body: bytes) -> None:
        """The same for synchronous code."""
        schema = self._schema_of(tenant, name)
        if schema is not None:
            _judge_whole(name, content_type, schema, body)

    def _schema_of(self, tenant: str, name: str) -> CompiledSchema | None:
        key = (tenant, name)
        document = self._documents.get(key)
        if document is None:
            return None
        schema = self._known(key)
        if schema is None:
            schema = _compiled(key, document)
            self._keep(key, schema)
        return schema

    def _known(self, key: tuple[str, str]) -> CompiledSchema | None:
        schema = self._compiled.get(key)
        if schema is not None:
            self._compiled.move_to_end(key)
        return schema

    def _keep(self, key: tuple[str, str], schema: CompiledSchema) -> None:
        self._compiled[key] = schema
        if len(self._compiled) > COMPILED_MAX:
            self._compiled.popitem(last=False)


def _compiled(key: tuple[str, str], document: str) -> CompiledSchema:
    try:
        return compile_schema(document)
    except ConfigurationError as error:
        # Taken by another version's rules. To refuse every event would be worse than to take what was always taken.
        _log.error("the schema of %s of tenant %s is not applied: %s", key[1], key[0], error)
        return compile_schema("{}")


def _judge_whole(name: str, content_type: str, schema: CompiledSchema, body: bytes) -> None:
    try:
        _judge(name, content_type, schema, body, STEPS_MAX)
    except StepsExceeded:
        too_much = Violation(
            "", "steps", f"a payload that is checked in {STEPS_MAX} steps: send less, or simplify the schema"
        )
        raise PayloadInvalid(name, (too_much,)) from None


def _judge(name: str, content_type: str, schema: CompiledSchema, body: bytes, steps: int) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise PayloadInvalid(name, (Violation("", "content_type", "application/json, since this type has a schema"),))
    violations = schema.violations(body, steps)
    if violations:
        raise PayloadInvalid(name, violations)
