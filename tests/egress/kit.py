"""What the scenarios share: a policy under which 127.0.0.1 is "public" and 127.0.0.66 is not, and receivers for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.reasons import Reason
from tests.hostile.engine import SMALL

INSIDE = "127.0.0.66"
"""Where canaries listen."""
PUBLIC = EgressPolicy(schemes=("http", "https"), allow_cidrs=("127.0.0.0/8", "::1/128"), deny_cidrs=(f"{INSIDE}/32",))
"""127.0.0.1 stands for a public address, `INSIDE` for one that must never be reached."""
DEFAULT = EgressPolicy(schemes=("http", "https"))
"""The default rules on addresses; plain http only so that a canary needs no certificate."""
IDENTITY = {"webhook-id": "evt_scenario"}
NAME = "hook.example.com"


@asynccontextmanager
async def canary(port: int = 0) -> AsyncIterator[HostileServer]:
    """A listener on the inner address that must see no connection, whatever happens in the block."""
    async with HostileServer("ok", host=INSIDE, port=port) as server:
        yield server
        assert server.connections == 0, "the canary was reached"


@asynccontextmanager
async def receiver(behaviour: str | Behaviour = "ok") -> AsyncIterator[tuple[HostileServer, HostileServer]]:
    """A receiver on the "public" address and a canary on the same port of the inner one."""
    async with HostileServer(behaviour) as server, canary(server.port) as inside:
        yield server, inside


async def assert_denied(client: DispatchClient, url: str, reason: Reason) -> Attempt:
    """The attempt is refused with this reason, costs no byte and holds nothing."""
    attempt = await client.deliver(url, SMALL, IDENTITY)
    assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, reason), attempt
    assert (attempt.retry_safety, attempt.blame, attempt.bytes_sent) == (RetrySafety.POINTLESS, Blame.ENDPOINT, 0)
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.connections_in_use) == (0, 0)
    return attempt
