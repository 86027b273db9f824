"""The limits that learn, at work in a dispatcher: they shape what the scheduler may start and how long an attempt may take.

It carries observations to `admission.limits` and its answers to the scheduler, the next attempt's policy, the observer and the
memory of endpoints; it decides nothing. `dispatch.attempt` brackets each attempt by `begin` and `end`; `run` is a loop of the
supervisor for what only time brings.

Theory of operation. The scheduler asks for an endpoint's settings (`settings`) and a host's room (`host_limit`); the learned cap
and a hold are part of both, so a change is told as any change of settings is. An open breaker is a hold: the endpoint leaves the
round, its rows are not read, and when the hold ends its cap is 1 and the one that starts is the probe.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol, assert_never

from gatepost.admission.adapt import AdaptRules
from gatepost.admission.alerts import AlertChange, MixAlert
from gatepost.admission.breaker import BreakerRules, BreakerState
from gatepost.admission.concurrency import ConcurrencyRules, concurrency_rules
from gatepost.admission.endpoint_limits import BreakerChange, EndpointStatistics, LimitRules, TimeoutChange
from gatepost.admission.evidence import NOTHING, facts_of
from gatepost.admission.limits import Change, EndpointChange, FleetChange, HostChange, Limits, LimitsStatistics, Tracked
from gatepost.clock import Entropy
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.retry import parse_retry_after
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoint_memory import EndpointMemory, Value
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.seats import EndpointSettings
from gatepost.net.sweeper import LAG_BLAMES_US

SECTION: Final = "limits"
"""In the memory of endpoints."""
AGE_EVERY: Final = 0.5
"""Seconds between looks at attempts in flight that may have become slow; limits are seconds."""
SAVE_EVERY: Final = 10.0
SAVE_SHARE: Final = 30
"""One of so many changed endpoints is written in each round, so that all are within five minutes; breakers go at once."""
SAVE_LEAST: Final = 50
REST_EVERY: Final = 300.0
"""Seconds after which an endpoint without an attempt is packed."""
PACKED_AT_ONCE: Final = 200
"""Endpoints packed in a row: 10 ms."""
POLICIES_MAX: Final = 4_096
"""Policies with a learned read timeout that are kept; they are equal for most endpoints."""
RULES_MAX: Final = 4_096
TENTH: Final = 10
"""Learned timeouts are put in force in tenths of a second, rounded up, so that policies can be shared."""
WAKE_LEAST: Final = 0.001
"""Seconds: the store's time may run at half our speed, which without a least would halve what is left for ever."""

_SECOND_US: Final = 1_000_000
_CLOSED: Final = BreakerState.CLOSED


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What the limits of a dispatcher may do."""

    adapt: AdaptRules = field(default_factory=AdaptRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    adaptive_concurrency: bool = True
    """False: every endpoint keeps the cap of its record or of the policy."""


@dataclass(frozen=True, slots=True)
class BreakersNow:
    """A snapshot of breakers."""

    endpoints: Mapping[BreakerState, int]
    """Of endpoints in memory; one of which nothing is known counts as closed."""
    hosts: Mapping[BreakerState, int]
    """Of hosts that had trouble lately."""
    endpoint_states: Sequence[tuple[str, BreakerState]]
    """By endpoint id, those longest in trouble first; no closed ones."""
    host_states: Sequence[tuple[str, BreakerState]]


class Steered(Protocol):
    """What is told that a limit moved: the worker."""

    def endpoint_changed(self, number: int) -> None:
        """Ask for the endpoint's settings again."""
        ...

    def host_changed(self, host: str) -> None:
        """Ask for the host's room again."""
        ...


class Flying:
    """One attempt that has begun."""

    __slots__ = ("policy", "tracked")

    def __init__(self, tracked: Tracked, policy: ClientPolicy) -> None:
        self.tracked = tracked
        self.policy = policy
        """Limits of this attempt."""


class DispatchLimits:
    """`store_time` is UTC microseconds. `steered` must be set before the first attempt."""

    def __init__(
        self,
        settings: LimitSettings,
        catalogue: Catalogue,
        memory: EndpointMemory,
        notices: Notices,
        store_time: Callable[[], int],
        entropy: Entropy,
        slots: int,
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._memory = memory
        self._notices = notices
        self._store_time = store_time
        self._entropy = entropy
        self._slots = slots
        self._limits = Limits(settings.breaker)
        self._rules: dict[tuple[object, ...], LimitRules] = {}
        self._policies: dict[tuple[int, int], tuple[ClientPolicy, ClientPolicy]] = {}
        self._in_flight: dict[int, int] = {}
        """Attempts by endpoint: those whose age is looked at."""
        self._flying = asyncio.Event()
        self.steered: Steered | None = None
        self.turned: Callable[[int, BreakerChange], None] | None = None
        """Told of every change of an endpoint's breaker, before it is saved."""
        self.refused = 0
        """Attempts that were about to start when their breaker opened, since the start."""
        memory.lend(SECTION, self._packed, self._unpack)

    # ----------------------------------------------------------------------------------- the scheduler asks

    def settings(self, number: int) -> EndpointSettings | None:
        """The directory of the scheduler: the catalogue's settings with the learned cap and the hold."""
        listed = self._catalogue.get(number)
        if listed is None:
            return None
        if not self._limits.knows(number):
            return listed.settings
        limits, now = self._limits.endpoint(number, listed.settings.host, self.rules_of(listed)), self._store_time()
        limits.bound_hold(now)
        cap, hold_until = limits.cap, limits.hold_until
        if hold_until <= now:
            hold_until = 0
        if cap == listed.settings.cap and not hold_until:
            return listed.settings
        return listed.settings._replace(cap=cap, hold_until=hold_until)

    def host_limit(self, host: str) -> int | None:
        """Attempts in flight that a host's breaker allows now; None: it has no say."""
        gate = self._limits.host_gate(host)
        return 0 if gate.held_until and gate.held_until > self._store_time() else gate.cap

    # --------------------------------------------------------------------------------------- an attempt asks

    def held_until(self, listed: Listed) -> int:
        """When an attempt that is about to start may do so: now (0), or later, because a breaker opened meanwhile."""
        number, host = listed.number, listed.settings.host
        limits = self._limits.peek(number)
        if limits is None and self._limits.knows(number):
            limits = self._limits.endpoint(number, host, self.rules_of(listed))
        until = self._limits.host_gate(host).held_until
        if limits is not None:
            until = max(until, limits.hold_until)
        if not until or until <= self._store_time():
            return 0
        self.refused += 1
        return until

    def begin(self, listed: Listed) -> Flying:
        """An attempt starts. Exactly one `end` or `abandon` must follow."""
        number = listed.number
        tracked = self._limits.started(number, listed.settings.host, self.rules_of(listed), self._store_time())
        self._in_flight[number] = self._in_flight.get(number, 0) + 1
        if not self._flying.is_set():
            self._flying.set()
        seconds = tracked.limits.attempt_timeout(tracked.flight)
        policy = listed.policy
        return Flying(tracked, policy if seconds == policy.read_timeout else self._policy(policy, seconds))

    def end(self, flying: Flying, listed: Listed, attempt: Attempt) -> bool:
        """It ended. Returns whether the endpoint's breaker is closed."""
        now, tracked = self._store_time(), flying.tracked
        limits, number = tracked.limits, tracked.number
        before = limits.standing
        host = tracked.host
        gate = self._limits.host_gate(host)
        changes = self._limits.finished(
            tracked, facts_of(attempt, own_tls=listed.tls is not None), now, self._entropy.uniform()
        )
        if attempt.status in (429, 503):
            asked = parse_retry_after(attempt.header("retry-after"), now)
            if asked is not None:
                limits.hold(asked, now)
        self._landed(number)
        if changes:
            self._tell(changes)
        if self._limits.host_gate(host) != gate:
            self._host_changed(host, now)
        if limits.standing != before:
            self._changed(number)
        return limits.closed

    def abandon(self, flying: Flying) -> None:
        """It was cut short by us, or never sent."""
        tracked = flying.tracked
        self._limits.finished(tracked, NOTHING, self._store_time(), 0.5)
        self._landed(tracked.number)

    # ------------------------------------------------------------------------------------------- from outside

    def endpoint_changed(self, number: int) -> None:
        """The endpoint's record changed or is gone. One that is open again after a stop starts with a closed breaker."""
        listed = self._catalogue.get(number)
        if listed is None:
            self._limits.forget([number])
        elif not listed.settings.open and self._limits.knows(number):
            # An idle one is woken, since it must be saved closed too.
            self._limits.endpoint(number, listed.settings.host, self.rules_of(listed))
            self._limits.reset(number)

    def use_host_rules(self, rules: BreakerRules) -> None:
        """Other rules for breakers of hosts."""
        self._limits.host_rules = rules

    def drop(self, numbers: Iterable[int]) -> None:
        """Endpoints of parts that were lost."""
        self._limits.forget(numbers)

    def rules_of(self, listed: Listed) -> LimitRules:
        """The rules of an endpoint; one object for all that are set alike."""
        known = listed.limit_rules
        if known is None:
            known = listed.limit_rules = self._rules_of(listed)
        return known

    def _rules_of(self, listed: Listed) -> LimitRules:
        endpoint = listed.endpoint
        pinned = "read_timeout" in endpoint.limits
        cap = listed.settings.cap
        adapt = listed.shared.adapt
        key = (
            endpoint.concurrency,
            cap,
            listed.policy.read_timeout,
            pinned,
            adapt.factor,
            adapt.floor,
            adapt.ceiling,
            adapt.record_from,
            listed.shared.breaker,
        )
        rules = self._rules.get(key)
        if rules is None:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            concurrency = (
                concurrency_rules(cap, self._slots, endpoint.concurrency)
                if self._settings.adaptive_concurrency
                else ConcurrencyRules(cap, cap, cap, fixed=True)
            )
            rules = self._rules[key] = LimitRules(
                adapt, listed.shared.breaker, concurrency, listed.policy.read_timeout, pinned
            )
        return rules

    def endpoint(self, number: int) -> EndpointStatistics | None:
        """What is known about an endpoint; None when it is unknown, or nothing is."""
        listed = self._catalogue.get(number)
        if listed is None or not self._limits.knows(number):
            return None
        return self._limits.endpoint(number, listed.settings.host, self.rules_of(listed)).statistics()

    def p99(self, number: int) -> float | None:
        """The p99 of an endpoint's responses in seconds; None when it is unknown, or the endpoint rests."""
        limits = self._limits.peek(number)
        return None if limits is None else limits.learned().p99

    def in_force(self, number: int) -> tuple[float, int] | None:
        """Read timeout in seconds and cap of an endpoint that is active; None when it rests or is unknown."""
        limits = self._limits.peek(number)
        return None if limits is None else (limits.read_timeout, limits.cap)

    def breakers(self, most: int) -> BreakersNow:
        """Breakers by state, and up to `most` endpoints and hosts whose is not closed. O(those in trouble)."""
        troubled, hosts = self._limits.troubled(), self._limits.troubled_hosts()
        statistics = self._limits.statistics()
        endpoint_states = Counter(troubled.values())
        endpoint_states[BreakerState.CLOSED] = max(0, statistics.active + statistics.idle - len(troubled))
        host_states = Counter(breaker.state for breaker in hosts.values())
        not_closed = ((host, breaker.state) for host, breaker in hosts.items() if breaker.state is not _CLOSED)
        return BreakersNow(
            endpoint_states,
            host_states,
            [(encode_id(ENDPOINT, number), state) for number, state in islice(troubled.items(), most)],
            list(islice(not_closed, most)),
        )

    def statistics(self) -> LimitsStatistics:
        """A snapshot."""
        return self._limits.statistics()

    # --------------------------------------------------------------------------------------------- over time

    async def run(self) -> None:
        """Look at what is in flight, save what changed, pack what is idle; until cancelled."""
        saved_at = rested_at = self._store_time()
        while True:
            if not self._in_flight:
                self._flying.clear()
                self._save(SAVE_LEAST)
                try:
                    async with asyncio.timeout(REST_EVERY):
                        await self._flying.wait()
                except TimeoutError:
                    pass
            asleep_at = self._store_time()
            await asyncio.sleep(AGE_EVERY)
            now = self._store_time()
            if now - asleep_at > (AGE_EVERY + LAG_BLAMES_US) * _SECOND_US:
                self._limits.excuse(self._in_flight)  # our loop stood still, or the store's clock went forward
            for number in list(self._in_flight):
                changes = self._limits.age(number, now, self._entropy.uniform())
                if changes:
                    self._tell(changes)
                    self._changed(number)
            if now - saved_at >= SAVE_EVERY * _SECOND_US:
                saved_at = now
                self._save(max(SAVE_LEAST, self._limits.statistics().unsaved // SAVE_SHARE))
            if now - rested_at >= REST_EVERY * _SECOND_US and not self._limits.pack(PACKED_AT_ONCE):
                rested_at = now
                self._limits.rest()

    def save_all(self) -> None:
        """Have everything written that changed: parts are about to be given back."""
        self._save(self._limits.statistics().unsaved)

    def _save(self, limit: int) -> None:
        for number in self._limits.take_unsaved(limit):
            self._memory.touch(number)

    # ------------------------------------------------------------------------------------------------ helpers

    def _packed(self, number: int) -> Value | None:
        state = self._limits.state_of(number)
        return None if state is None else base64.b85encode(state).decode()

    def _unpack(self, number: int, value: Value) -> None:
        if isinstance(value, str):
            try:
                self._limits.load({number: base64.b85decode(value)})
            except (ValueError, binascii.Error):
                return  # another version's: it starts cold
            self._changed(number)  # a row that came first has had it loaded already, as one of which nothing is known

    def _policy(self, policy: ClientPolicy, seconds: float) -> ClientPolicy:
        tenths = -int(-seconds * TENTH // 1)
        key = (id(policy), tenths)
        known = self._policies.get(key)
        if known is not None and known[0] is policy:
            return known[1]
        if len(self._policies) >= POLICIES_MAX:
            self._policies.clear()
        made = policy.with_read_timeout(tenths / TENTH)
        self._policies[key] = (policy, made)
        return made

    def _landed(self, number: int) -> None:
        left = self._in_flight[number] - 1
        if left:
            self._in_flight[number] = left
        else:
            del self._in_flight[number]

    def _changed(self, number: int) -> None:
        assert self.steered is not None, "wired before the first attempt"
        self.steered.endpoint_changed(number)

    def _host_changed(self, host: str, now: int) -> None:
        assert self.steered is not None, "wired before the first attempt"
        self.steered.host_changed(host)
        held_until = self._limits.host_gate(host).held_until
        if held_until > now:
            delay = max(WAKE_LEAST, (held_until - now) / _SECOND_US)
            asyncio.get_running_loop().call_later(delay, self._host_waited, host)

    def _host_waited(self, host: str) -> None:
        """The pause should be over; when the store's clock was set back meanwhile it is not, and is waited for again."""
        self._host_changed(host, self._store_time())

    def _tell(self, changes: Collection[Change]) -> None:
        for change in changes:
            match change:
                case EndpointChange():
                    self._tell_endpoint(change)
                case HostChange():
                    if change.state is BreakerState.OPEN:
                        self._notices.host_held(change.host)
                case FleetChange():
                    if change.suspected:
                        self._notices.trouble(
                            "fleet_trouble",
                            "many unrelated hosts began to fail at once: look at our network and resolver",
                        )
                case _ as never:
                    assert_never(never)

    def _tell_endpoint(self, changed: EndpointChange) -> None:
        listed = self._catalogue.get(changed.number)
        if listed is None:
            return
        tenant, endpoint_id = listed.endpoint.tenant, listed.endpoint.id
        change = changed.change
        match change:
            case BreakerChange():
                if self.turned is not None:
                    self.turned(changed.number, change)
                self._memory.touch(changed.number)
                if change.state is BreakerState.OPEN and change.cause is not None:
                    self._notices.circuit_opened(tenant, endpoint_id, change.cause, dry_run=change.dry_run)
            case MixAlert():
                if change.change is AlertChange.RAISED:
                    self._notices.outcomes_changed(
                        tenant, endpoint_id, change.sign.name.lower(), change.usual, change.share
                    )
            case TimeoutChange():
                pass  # shown on the endpoint's record; no news
            case _ as never:
                assert_never(never)
