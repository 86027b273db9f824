"""What the fault cases share: several receivers at once, raw answers, resolvers that can be told what to say."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.hostile import Behaviour, HostileServer
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, Expected, assert_nothing_held, limits, same_descriptors

PATIENT: dict[str, float] = {
    "connect_timeout": 5.0,
    "write_timeout": 5.0,
    "read_timeout": 15.0,
    "pool_timeout": 5.0,
    "admission_timeout": 5.0,
}
"""Limits that must not fire in a test about something else."""
STATE_FREE = 0.5
"""Seconds within which everything must be given back."""


@dataclass(frozen=True)
class Case:
    """One receiver, one delivery, and what it must come to."""

    behaviour: str | Behaviour
    expected: Expected
    seconds: float | None = None
    payload: bytes = SMALL


async def meet_all(cases: Sequence[Case], policy: ClientPolicy | None = None) -> list[Attempt]:
    """Every case at once, each against a receiver of its own, with one client: outcome, time bound, and nothing left behind."""
    with same_descriptors():
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(HostileServer(case.behaviour, seconds=case.seconds)) for case in cases
            ]
            async with DispatchClient(policy or limits(), egress=LOOPBACK) as client:
                attempts = await asyncio.gather(
                    *(
                        client.deliver(server.url, case.payload, IDENTITY)
                        for server, case in zip(servers, cases, strict=True)
                    )
                )
                for case, server, attempt in zip(cases, servers, attempts, strict=True):
                    case.expected.check(attempt)
                    idle = client.statistics().hosts[server.url.rstrip("/")].idle
                    assert idle == int(case.expected.kept), (case.behaviour, attempt)
                    if not case.expected.kept and server.behaviour.accepts:
                        await server.wait_disconnected()
                assert_nothing_held(client, idle=sum(case.expected.kept for case in cases))
    return attempts


@asynccontextmanager
async def delivering(
    behaviour: str | Behaviour, policy: ClientPolicy | None = None, *, seconds: float | None = None
) -> AsyncIterator[tuple[HostileServer, DispatchClient]]:
    """A receiver and a client; no descriptor is left at the end."""
    with same_descriptors():
        async with (
            HostileServer(behaviour, seconds=seconds) as server,
            DispatchClient(policy or limits(), egress=LOOPBACK) as client,
        ):
            yield server, client


class ScriptedResolver:
    """Answers each question with the next entry of the script, the last one for ever; keeps who was asked for."""

    def __init__(self, *script: Sequence[str] | Exception, seconds: float = 0.0) -> None:
        self._script = list(script)
        self._seconds = seconds
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Resolution:
        """The next answer."""
        self.asked.append(host)
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        await asyncio.sleep(self._seconds)
        if isinstance(answer, Exception):
            raise answer
        return Resolution(tuple(answer))


@dataclass
class Heard:
    """An observer that keeps what it hears."""

    attempts: list[AttemptObservation] = field(default_factory=list)

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """One finished attempt."""
        self.attempts.append(observation)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not of interest here."""

    def operational(self, observation: OperationalObservation) -> None:
        """Not of interest here."""


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def not_found(code: str, *, temporary: bool) -> ResolveError:
    """What a resolver raises."""
    return ResolveError(code, temporary=temporary)


def head(*lines: str, status: str = "200 OK") -> bytes:
    """A response head of these header lines."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")
