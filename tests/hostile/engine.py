"""What every fault test needs: a client with short limits on loopback, an expectation, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trustme

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.net.tls import TLSProfile
from gatepost.testing.hostile import Behaviour, HostileServer
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason

LOOPBACK = EgressPolicy(schemes=("http", "https"), allow_cidrs=("127.0.0.0/8", "::1/128"))
"""The only destinations of these tests."""
LIMIT = 0.3
"""Seconds of every phase limit unless a test says otherwise."""
SLACK = 1.0
"""Seconds a limit may be late on a busy machine; what is caught is a limit of another phase, or none."""
SMALL = b'{"hello":"world"}'
BIG = bytes(12_000_000)
"""More than all buffers between two sockets of one machine."""
IDENTITY = {"webhook-id": "evt_test"}
"""What every delivery carries, so that a receiver can tell a repetition."""


def limits(**changes: float) -> ClientPolicy:
    """A policy whose limits are all `LIMIT`, with `changes`. The advice on their proportion is not for tests."""
    values: dict[str, float] = {
        "connect_timeout": LIMIT,
        "write_timeout": LIMIT,
        "read_timeout": LIMIT,
        "pool_timeout": LIMIT,
        "admission_timeout": LIMIT,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ClientPolicy(**{**values, **changes})  # type: ignore[arg-type]  # fields are floats and whole numbers


@dataclass(frozen=True)
class FixedResolver:
    """Answers from a table; addresses in the order given."""

    addresses: Mapping[str, tuple[str, ...]]

    async def resolve(self, host: str) -> Resolution:
        """The addresses of `host`."""
        return Resolution(self.addresses[host])


@dataclass(frozen=True)
class Expected:
    """What an attempt must come to. Where two phases or reasons are equally right, both are given."""

    outcome: Outcome
    phase: tuple[Phase, ...]
    reason: tuple[Reason, ...]
    safety: RetrySafety
    blame: Blame
    status: int | None = None
    body_fault: BodyFault | None = None
    at_least: float = 0.0
    """Seconds; the attempt must end within `SLACK` after that."""
    kept: bool = False
    """The connection is idle in the pool afterwards."""

    @property
    def delivered(self) -> bool:
        """A response with a 2xx status."""
        return self.outcome is Outcome.RESPONSE and self.status is not None and 200 <= self.status < 300

    def check(self, attempt: Attempt) -> None:
        """Compare field by field, so that a failure names what differs."""
        assert attempt.outcome is self.outcome, attempt
        assert attempt.phase in self.phase, attempt
        assert attempt.reason in self.reason, attempt
        assert attempt.retry_safety is self.safety, attempt
        assert attempt.blame is self.blame, attempt
        assert attempt.status == self.status, attempt
        assert attempt.delivered is self.delivered, attempt
        assert attempt.body_fault is self.body_fault, attempt
        assert self.at_least - 0.005 <= attempt.elapsed < self.at_least + SLACK, attempt
        assert abs(sum(attempt.phases.values()) - attempt.elapsed) < 0.01, attempt
        assert min(attempt.phases.values()) >= 0, attempt
        assert attempt.phase in attempt.phases, attempt


def timed_out(outcome: Outcome, phase: Phase, reason: Reason, *, after: float = LIMIT) -> Expected:
    """A limit fired in `phase` after `after` seconds."""
    sent = phase in (Phase.WRITE, Phase.WAIT, Phase.READ)
    us = phase in (Phase.ADMISSION, Phase.POOL)
    return Expected(
        outcome,
        (phase,),
        (reason,),
        RetrySafety.AMBIGUOUS if sent else RetrySafety.SAFE,
        Blame.US if us else Blame.ENDPOINT if sent else Blame.PATH,
        at_least=after,
    )


def fault(phase: Phase | tuple[Phase, ...], reason: Reason | tuple[Reason, ...]) -> Expected:
    """A transport error."""
    phases = (phase,) if isinstance(phase, Phase) else phase
    sent = phases[0] in (Phase.WRITE, Phase.WAIT, Phase.READ)
    return Expected(
        Outcome.TRANSPORT_ERROR,
        phases,
        (reason,) if isinstance(reason, Reason) else reason,
        RetrySafety.AMBIGUOUS if sent else RetrySafety.SAFE,
        Blame.ENDPOINT if sent else Blame.PATH,
    )


def answered(
    status: int = 200,
    *,
    kept: bool = False,
    body_fault: BodyFault | None = None,
    reason: Reason = Reason.OK,
    safety: RetrySafety = RetrySafety.POINTLESS,
    at_least: float = 0.0,
    phase: tuple[Phase, ...] = (Phase.READ,),
) -> Expected:
    """A complete head arrived."""
    return Expected(
        Outcome.RESPONSE, phase, (reason,), safety, Blame.ENDPOINT, status, body_fault, at_least=at_least, kept=kept
    )


@contextmanager
def same_descriptors() -> Iterator[None]:
    """The process has as many descriptors open afterwards as before."""
    gc.collect()  # what earlier tests left to the collector must not be collected in between
    before = len(os.listdir("/proc/self/fd"))
    yield
    after = len(os.listdir("/proc/self/fd"))
    assert after == before, f"{after - before} descriptors left open"


def assert_nothing_held(client: DispatchClient, *, idle: int = 0) -> None:
    """No slot, lease or connection is left with anybody; `idle` connections wait in the pool."""
    statistics = client.statistics()
    assert statistics.in_flight == 0
    assert statistics.connections_in_use == 0
    assert statistics.connections_idle == idle
    assert statistics.connections_open == idle
    assert statistics.admitted == 0
    assert statistics.waiting_for_admission == 0
    assert statistics.waiting_for_connection == 0
    for origin, host in statistics.hosts.items():
        assert (host.in_use, host.waiting) == (0, 0), origin


async def wait_idle(client: DispatchClient, idle: int, patience: float = 5.0) -> None:
    """Wait until `idle` connections are in the pool; raises `TimeoutError` otherwise."""
    async with asyncio.timeout(patience):
        while client.statistics().connections_idle != idle:  # noqa: ASYNC110  # a counter of another part
            await asyncio.sleep(0.001)


async def meet(
    behaviour: str | Behaviour,
    expected: Expected,
    *,
    or_else: Expected | None = None,
    seconds: float | None = None,
    payload: bytes = SMALL,
    policy: ClientPolicy | None = None,
    path: str = "",
    tls_context: ssl.SSLContext | None = None,
    tls: TLSProfile | None = None,
    name: str | None = None,
) -> Attempt:
    """One delivery against one behaviour: outcome, limits, and nothing left behind.

    `or_else` is a second lawful end, where the kernel decides which. `name` is a host name to resolve to 127.0.0.1.
    """
    with same_descriptors():
        async with HostileServer(behaviour, seconds=seconds, tls_context=tls_context) as server:
            url = server.url + path
            if name is not None:
                url = url.replace("127.0.0.1", name)
            resolver = FixedResolver({name or "unused": ("127.0.0.1",)})
            async with DispatchClient(policy or limits(), egress=LOOPBACK, resolver=resolver) as client:
                began = SYSTEM_CLOCK.monotonic()
                attempt = await client.deliver(url, payload, IDENTITY, tls=tls)
                took = SYSTEM_CLOCK.monotonic() - began
                if or_else is not None and attempt.outcome is or_else.outcome:
                    expected = or_else
                expected.check(attempt)
                assert took < attempt.elapsed + 0.1
                assert not attempt.reused
                assert not attempt.stale_retry
                assert attempt.host == url.rstrip("/").removesuffix("/" + path.strip("/"))
                assert_nothing_held(client, idle=int(expected.kept))
                if not expected.kept and server.behaviour.accepts:
                    # The engine must have closed its side: the server sees it go.
                    await server.wait_disconnected()
            assert server.connections <= 1
    return attempt


@dataclass(frozen=True)
class Certificates:
    """A certificate authority of the test's own, and who trusts it."""

    authority: trustme.CA

    @classmethod
    def make(cls) -> Certificates:
        """A fresh one."""
        return cls(trustme.CA())

    @property
    def profile(self) -> TLSProfile:
        """A client that trusts it."""
        return TLSProfile(ca_pem=self.authority.cert_pem.bytes())

    def server(self, *names: str, authority: trustme.CA | None = None) -> ssl.SSLContext:
        """A server's context with a certificate for `names`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (authority or self.authority).issue_cert(*names).configure_cert(context)
        return context
