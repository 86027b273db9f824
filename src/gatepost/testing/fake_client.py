"""A `DispatchClient` that touches no network: it answers by script, in virtual or real time, and keeps what was sent.

For tests of anything above the client: give URLs their answers with `on`, let the dispatcher run, look at `sent`. Attempts are
classified by the same table as real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from gatepost.deadline import Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import End, Evidence, classify
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.payload import payload_bytes
from gatepost.wire.phases import SETUP_PHASES, Phase
from gatepost.wire.reasons import Reason

DELAY: Final = 0.05
"""Seconds an answer takes unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one attempt comes to, after `delay` seconds."""

    end: End = End.RESPONSE
    status: int | None = 200
    phase: Phase = Phase.READ
    reason: Reason = Reason.OK
    delay: float = DELAY
    headers: tuple[tuple[str, str], ...] = ()
    limited: bool = False
    """Cut off at the attempt's own read timeout, if that comes first."""

    def within(self, read_timeout: float) -> Answer:
        """What becomes of it under this limit."""
        return silent(read_timeout) if self.limited and self.delay > read_timeout else self


OK: Final = Answer()


def responds(status: int, *, delay: float = DELAY, retry_after: str | None = None) -> Answer:
    """A complete response."""
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Answer(status=status, delay=delay, headers=headers)


def silent(seconds: float = 10.0) -> Answer:
    """Takes the request and never answers: a read timeout after `seconds`."""
    return Answer(End.LIMIT, None, Phase.WAIT, Reason.WAIT_TIMEOUT, seconds)


def answers_after(seconds: float, status: int = 200) -> Answer:
    """A complete response, unless the attempt's read timeout comes first; infinite `seconds`: never."""
    return Answer(status=status, delay=seconds, limited=True)


def refused(delay: float = 0.001) -> Answer:
    """Nobody listens there."""
    return Answer(End.FAULT, None, Phase.CONNECT, Reason.CONNECTION_REFUSED, delay)


def faulty(reason: Reason, phase: Phase, delay: float = DELAY) -> Answer:
    """Any other fault of the network, or of ours."""
    return Answer(End.FAULT, None, phase, reason, delay)


def denied(reason: Reason) -> Answer:
    """The destination is not allowed."""
    return Answer(End.DENIED, None, Phase.DNS, reason, 0.001)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request."""

    url: str
    at: float
    """Monotonic seconds at its start."""
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    endpoint_id: str | None
    tenant: str | None
    content_type: str
    tls: TLSProfile | None = field(default=None, repr=False)

    @property
    def webhook_id(self) -> str:
        """The event's id."""
        return self.headers["webhook-id"]


class _NoNames:
    async def resolve(self, host: str) -> Resolution:
        raise AssertionError(f"a FakeClient resolves no names, not even {host}")


class FakeClient(DispatchClient):
    """Answers by URL: `on(url, first, second, …)`, the last answer for ever. A URL without answers responds 200."""

    def __init__(
        self,
        policy: ClientPolicy | None = None,
        *,
        egress: EgressPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        super().__init__(policy, egress=egress, resolver=_NoNames(), clock=clock, entropy=entropy)
        self.sent: list[Sent] = []
        """In order of start."""
        self.keep = True
        """False: count only, for long runs."""
        self.count = 0
        self.in_flight: dict[str, int] = {}
        self.most_in_flight: dict[str, int] = {}
        """By URL."""
        self.cancelled = 0
        self._answers: dict[str, list[Answer]] = {}
        self._laws: dict[str, Callable[[float], Answer]] = {}
        self.probe_delay = 0.0
        self._probes: dict[str, Answer | None] = {}

    def on(self, url: str, *answers: Answer) -> None:
        """Script a URL anew."""
        self._answers[url] = list(answers)
        self._laws.pop(url, None)

    def follow(self, url: str, law: Callable[[float], Answer]) -> None:
        """Answer a URL by the time: `law` gets monotonic seconds at the start of an attempt."""
        self._laws[url] = law

    async def deliver(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
    ) -> Attempt:
        """As `DispatchClient.deliver`, without the gate."""
        return await self.deliver_admitted(
            url,
            payload,
            headers,
            endpoint_id=endpoint_id,
            tenant=tenant,
            content_type=content_type,
            policy=policy,
            tls=tls,
        )

    async def deliver_admitted(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
        deduplicates: bool = True,
    ) -> Attempt:
        """Keep the request and answer by script."""
        started = self.clock.monotonic()
        started_wall = self.clock.wall_us() / 1e6
        self.count += 1
        if self.keep:
            body = payload_bytes(payload)
            self.sent.append(Sent(url, started, body, dict(headers or {}), endpoint_id, tenant, content_type, tls))
        answer = self._next_answer(url).within((policy or self.policy).read_timeout)
        self.in_flight[url] = self.in_flight.get(url, 0) + 1
        self.most_in_flight[url] = max(self.most_in_flight.get(url, 0), self.in_flight[url])
        try:
            await asyncio.sleep(answer.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight[url] -= 1
        attempt = _attempt(answer, url, self.clock.monotonic() - started, started_wall)
        self.finished(attempt, endpoint_id, tenant)
        return attempt

    async def probe(
        self, url: str, *, endpoint_id: str | None = None, tenant: str | None = None, tls: TLSProfile | None = None
    ) -> Attempt | None:
        """How the probe of `url` ends: by `on_probe`, else well; after `probe_delay` seconds."""
        if self.probe_delay:
            await asyncio.sleep(self.probe_delay)
        answer = self._probes.get(url)
        return None if answer is None else _attempt(answer, url, 0.0, self.clock.wall_us() / 1e6)

    def on_probe(self, url: str, answer: Answer | None) -> None:
        """Script how a probe ends; None: the certificate is right."""
        self._probes[url] = answer

    def _next_answer(self, url: str) -> Answer:
        law = self._laws.get(url)
        if law is not None:
            return law(self.clock.monotonic())
        answers = self._answers.get(url)
        if not answers:
            return OK
        return answers.pop(0) if len(answers) > 1 else answers[0]


def _attempt(answer: Answer, url: str, elapsed: float, started_at: float) -> Attempt:
    began = answer.phase not in SETUP_PHASES
    verdict = classify(Evidence(answer.end, answer.phase, answer.reason, answer.status, request_started=began))
    scheme, _, rest = url.partition("://")
    return Attempt(
        outcome=verdict.outcome,
        delivered=verdict.delivered,
        phase=verdict.phase,
        reason=verdict.reason,
        retry_safety=verdict.retry_safety,
        blame=verdict.blame,
        status=answer.status,
        host=f"{scheme}://{rest.partition('/')[0]}",
        address=None,
        elapsed=elapsed,
        phases={answer.phase: elapsed},
        reused=False,
        stale_retry=False,
        bytes_sent=1 if began else 0,
        response_headers=answer.headers,
        body=b"",
        body_fault=None,
        started_at=started_at,
    )
