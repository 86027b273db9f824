"""Gatepost delivers webhooks to endpoints you do not control, and turns every open socket into a bounded, classified outcome.

Public names are imported on first use (PEP 562), so that `import gatepost.deadline` needs nothing but the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatepost.delivery.attempt import Attempt as Attempt
    from gatepost.delivery.outcome import Blame as Blame
    from gatepost.delivery.outcome import Outcome as Outcome
    from gatepost.delivery.outcome import RetrySafety as RetrySafety
    from gatepost.delivery.policy import ClientPolicy as ClientPolicy
    from gatepost.delivery.records import Endpoint as Endpoint
    from gatepost.delivery.records import Receipt as Receipt
    from gatepost.dispatch.dispatcher import Dispatcher as Dispatcher
    from gatepost.dispatch.publisher import Publisher as Publisher
    from gatepost.errors import ResolveError as ResolveError
    from gatepost.errors import SignatureError as SignatureError
    from gatepost.net.client import DispatchClient as DispatchClient
    from gatepost.net.resolver import Resolution as Resolution
    from gatepost.net.tls import TLSProfile as TLSProfile
    from gatepost.wire.egress import EgressPolicy as EgressPolicy
    from gatepost.wire.phases import Phase as Phase
    from gatepost.wire.signing import sign as sign
    from gatepost.wire.signing import verify as verify

_HOMES = {
    "Attempt": "gatepost.delivery.attempt",
    "Blame": "gatepost.delivery.outcome",
    "ClientPolicy": "gatepost.delivery.policy",
    "DispatchClient": "gatepost.net.client",
    "Dispatcher": "gatepost.dispatch.dispatcher",
    "EgressPolicy": "gatepost.wire.egress",
    "Endpoint": "gatepost.delivery.records",
    "Outcome": "gatepost.delivery.outcome",
    "Phase": "gatepost.wire.phases",
    "Publisher": "gatepost.dispatch.publisher",
    "Receipt": "gatepost.delivery.records",
    "Resolution": "gatepost.net.resolver",
    "ResolveError": "gatepost.errors",
    "RetrySafety": "gatepost.delivery.outcome",
    "SignatureError": "gatepost.errors",
    "TLSProfile": "gatepost.net.tls",
    "sign": "gatepost.wire.signing",
    "verify": "gatepost.wire.signing",
}

__all__ = [
    "Attempt",
    "Blame",
    "ClientPolicy",
    "DispatchClient",
    "Dispatcher",
    "EgressPolicy",
    "Endpoint",
    "Outcome",
    "Phase",
    "Publisher",
    "Receipt",
    "Resolution",
    "ResolveError",
    "RetrySafety",
    "SignatureError",
    "TLSProfile",
    "sign",
    "verify",
]


if not TYPE_CHECKING:  # a type checker that sees this would accept every misspelt name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'gatepost' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
