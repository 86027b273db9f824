"""Options several commands share for limits and destinations, and how they become a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gatepost.delivery.policy import ClientPolicy, parse_field
from gatepost.wire.egress import EgressPolicy

AllowCidr = Annotated[
    list[str] | None, typer.Option("--allow-cidr", help="A network to open, for example 127.0.0.0/8; repeat for more.")
]
AllowHttp = Annotated[bool, typer.Option("--allow-http", help="Allow http:// beside https://.")]
PolicyFields = Annotated[
    list[str] | None, typer.Option("--policy", metavar="FIELD=VALUE", help="A limit, for example read_timeout=3.")
]


def egress_policy(allow_cidr: Sequence[str] | None, allow_http: bool) -> EgressPolicy:
    """The built-in rules, opened as far as the options say."""
    return EgressPolicy(
        schemes=("https", "http") if allow_http else ("https",),
        allow_cidrs=tuple(allow_cidr or ()),
    )


def client_policy(fields: Sequence[str] | None) -> ClientPolicy:
    """The built-in limits with the given fields changed."""
    changes: dict[str, Any] = dict(parse_field(text) for text in fields or ())
    return ClientPolicy(**changes)
