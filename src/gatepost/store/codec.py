"""Tenants and endpoints as JSON documents, with secrets and header values sealed; every engine on a disk stores these.

Unknown fields are ignored when reading, so that a document written by the next version can be read. Pure but for the box.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gatepost.delivery.records import Endpoint, EndpointSecret, EndpointStatus, Secret, Tenant, TenantLimits
from gatepost.store.secretbox import Place, SecretBox


def endpoint_to_document(endpoint: Endpoint, box: SecretBox) -> str:
    """The document of an endpoint. Header values are sealed like secrets, since they often are some."""
    document: dict[str, Any] = {
        field.name: getattr(endpoint, field.name)
        for field in dataclasses.fields(endpoint)
        if field.name not in ("secrets", "headers", "client_key_pem")
    }
    document["status"] = endpoint.status.value
    for name in ("status_rules", "limits"):
        document[name] = dict(document[name])
    document["headers"] = box.seal(json.dumps(dict(endpoint.headers)), _place(endpoint.tenant, endpoint.id, "headers"))
    if endpoint.client_key_pem is not None:
        place = _place(endpoint.tenant, endpoint.id, "client_key_pem")
        document["client_key_pem"] = box.seal(endpoint.client_key_pem.reveal(), place)
    document["secrets"] = [
        {
            "secret": box.seal(secret.secret.reveal(), _place(endpoint.tenant, endpoint.id, "secret")),
            "created_at": secret.created_at,
            "expires_at": secret.expires_at,
        }
        for secret in endpoint.secrets
    ]
    return json.dumps(document, separators=(",", ":"))


def endpoint_from_document(text: str, box: SecretBox) -> Endpoint:
    """The endpoint again. Raises what `SecretBox.open` raises."""
    document = _known(json.loads(text), Endpoint)
    tenant, endpoint_id = document["tenant"], document["id"]
    document["status"] = EndpointStatus(document["status"])
    document["event_types"] = tuple(document["event_types"])
    if document.get("schedule") is not None:
        document["schedule"] = tuple(document["schedule"])
    document["headers"] = json.loads(box.open(document["headers"], _place(tenant, endpoint_id, "headers")))
    if document.get("client_key_pem") is not None:
        place = _place(tenant, endpoint_id, "client_key_pem")
        document["client_key_pem"] = Secret(box.open(document["client_key_pem"], place))
    document["secrets"] = tuple(
        EndpointSecret(
            Secret(box.open(secret["secret"], _place(tenant, endpoint_id, "secret"))),
            secret["created_at"],
            secret["expires_at"],
        )
        for secret in document["secrets"]
    )
    return Endpoint(**document)


def tenant_to_document(tenant: Tenant) -> str:
    """The document of a tenant."""
    return json.dumps(dataclasses.asdict(tenant), separators=(",", ":"))


def tenant_from_document(text: str) -> Tenant:
    """The tenant again."""
    document = _known(json.loads(text), Tenant)
    document["limits"] = TenantLimits(**_known(document["limits"], TenantLimits))
    return Tenant(**document)


def _known(document: dict[str, Any], record: type[Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(record)}
    return {name: value for name, value in document.items() if name in names}


def _place(tenant: str, endpoint_id: str, field: str) -> Place:
    return Place(tenant, endpoint_id, field)
