"""Which limit is in force where several people had a say, and why: layers of settings, composed from the lowest to the highest.

Built-in < the process' configuration < tier profile < fleet < cohort < canary process < what was learned < the endpoint's own
override. A layer gives a value, and may give a floor and a ceiling for it: learning moves only `read_timeout`, inside the tightest
floor and ceiling of all layers below it. It composes and explains; `admission.policy_book` keeps the layers, and the catalogue
asks for what is in force.

A fleet, cohort or canary that writes a value says with it that nobody shall learn to wait longer: the value is the ceiling too,
unless one is given. A tighter default that endpoints learn away within an hour would be no default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from gatepost.delivery.policy import POOL_FIELDS, ClientPolicy
from gatepost.errors import ConfigurationError

Number = float | int | bool
Said = Number | str
"""What a layer may say: limits are numbers, a breaker's mode is a word."""


class LayerName(StrEnum):
    """Who may set a limit, from the lowest to the highest."""

    BUILT_IN = "built_in"
    PROCESS = "process"
    TIER = "tier"
    FLEET = "fleet"
    COHORT = "cohort"
    CANARY = "canary"
    LEARNED = "learned"
    ENDPOINT = "endpoint"


STORED: Final = (LayerName.TIER, LayerName.FLEET, LayerName.COHORT, LayerName.CANARY)
"""Layers that people change while everything runs."""
TIER_NAMES: Final = ("same_dc", "cross_region", "datastore", "third_party")
LEARNABLE: Final = "read_timeout"
"""The only limit that is learned."""
OF_THE_PROCESS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_connections": "it follows from the open files of the machine",
        "admission_timeout": "deliveries wait in their lane and not for a slot, it bounds callers of DispatchClient",
    }
)
"""Limits that no layer sets, and why: they belong to a process and its configuration."""
OF_THE_CLIENT: Final = (POOL_FIELDS - frozenset(OF_THE_PROCESS)) - {"per_endpoint_concurrency"}
"""Limits of connections that endpoints share: a whole process has them, so that a cohort of endpoints cannot."""
GRADUAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "keepalive_expiry": "connections that are idle now go by the old value; each follows the new one after its next use",
        "max_connection_age": "connections that are open now keep their age, and are replaced as they reach it",
        "dns_ttl": "addresses that are known now are kept as long as they were to be",
        "max_per_host": "a host above the new value gives its connections up as their attempts end",
    }
)
"""Limits that need new connections: what happens to those that are open."""
REASON_MAX: Final = 500
"""Characters of a reason: a sentence or two."""


@dataclass(frozen=True, slots=True)
class LayerValue:
    """What one layer says of one limit, who said so, when and why. None: it does not say."""

    value: Said | None = None
    floor: float | None = None
    ceiling: float | None = None
    by: str = ""
    at: int = 0
    """UTC microseconds."""
    why: str = ""


Values = Mapping[str, LayerValue]
"""By limit."""
NO_VALUES: Final[Values] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicyLayer:
    """One layer as far as it concerns an endpoint."""

    name: LayerName
    values: Values
    detail: str = ""
    """Which tier, cohort or process."""

    @property
    def label(self) -> str:
        """How it is named to people."""
        return f"{self.name} {self.detail}" if self.detail else str(self.name)


@dataclass(frozen=True, slots=True)
class Beaten:
    """A value that a higher layer replaced."""

    layer: str
    value: Said


@dataclass(frozen=True, slots=True)
class Effective:
    """One limit in force and its history: who set it, when, why, and what it beat (the nearest first)."""

    name: str
    value: Said
    layer: str
    by: str = ""
    at: int = 0
    why: str = ""
    beat: tuple[Beaten, ...] = ()
    floor: float | None = None
    """The tightest floor of the layers below, for what is learned; None: none."""
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """What was learned about an endpoint's read timeout; `seconds` None while nothing is in force."""

    seconds: float | None
    at: int | None
    why: str


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The limits in force for some endpoint."""

    policy: ClientPolicy
    """Complete and checked."""
    values: tuple[Effective, ...] = field(repr=False)

    def of(self, name: str) -> Effective:
        """One limit. Raises `KeyError` for an unknown one."""
        for value in self.values:
            if value.name == name:
                return value
        raise KeyError(name)

    @property
    def learning(self) -> tuple[float, float]:
        """Floor and ceiling of what may be learned, in seconds."""
        effective = self.of(LEARNABLE)
        if effective.floor is None or effective.ceiling is None:
            raise AssertionError("the built-in layer gives both")
        return effective.floor, effective.ceiling


def _tier(read: tuple[float, float, float], **limits: float) -> Values:
    """`read`: default, floor and ceiling."""
    value, floor, ceiling = read
    why = "tier profile"
    values = {name: LayerValue(seconds, why=why) for name, seconds in limits.items()}
    return MappingProxyType({**values, LEARNABLE: LayerValue(value, floor, ceiling, why=why)})


BOUNDS: Final = (3.0, 15.0)
"""Floor and ceiling of what is learned about endpoints of no tier: those of a third party."""
TIERS: Final[Mapping[str, Values]] = MappingProxyType(
    {
        # A receiver in the same data centre: a round trip under a millisecond, so that 50 ms of set-up is a lost SYN or a dead host.
        "same_dc": _tier((1.0, 0.05, 5.0), connect_timeout=0.05, write_timeout=0.1, pool_timeout=0.05),
        # Up to 150 ms a round trip.
        "cross_region": _tier((2.0, 0.2, 10.0), connect_timeout=0.2, write_timeout=0.5, pool_timeout=0.1),
        # As near as the same data centre, and slower to answer.
        "datastore": _tier((1.0, 0.05, 5.0), connect_timeout=0.05, write_timeout=0.1, pool_timeout=0.05),
        # 3.1 s outlives the first two repetitions of a lost SYN (1 + 2 s).
        "third_party": _tier((10.0, 3.0, 15.0), connect_timeout=3.1, write_timeout=5.0, pool_timeout=1.0),
    }
)


def tier_values(tier: str, said: Values) -> Values:
    """The profile of a tier with what people have set over it. Floor and ceiling of the profile stay unless others are given, and
    make room for a value outside. Raises `KeyError` for an unknown tier."""
    profile = TIERS[tier]
    merged = {**profile, **said}
    given, was = said.get(LEARNABLE), profile[LEARNABLE]
    if given is not None:
        value = number_of(was.value if given.value is None else given.value)
        floor = was.floor if given.floor is None else given.floor
        ceiling = was.ceiling if given.ceiling is None else given.ceiling
        if value is not None and given.floor is None and floor is not None:
            floor = min(floor, value)
        if value is not None and given.ceiling is None and ceiling is not None:
            ceiling = max(ceiling, value)
        merged[LEARNABLE] = replace(given, value=value, floor=floor, ceiling=ceiling)
    return MappingProxyType(merged)


def number_of(value: Said | None) -> float | None:
    """Seconds of a limit that is some; None for none."""
    if isinstance(value, str):
        raise ConfigurationError(f"{value!r}: write a number")
    return value


def compose(base: ClientPolicy, layers: Sequence[PolicyLayer], bounds: tuple[float, float] = BOUNDS) -> EffectivePolicy:
    """What the layers below the endpoint come to. `base` is the process' configuration; `layers` from the lowest to the highest.

    `bounds`: floor and ceiling for learning where no tier profile gives them.

    `dns_timeout` and `tls_timeout` that a lower layer gave are cut to a tighter `connect_timeout`. Raises `ConfigurationError`
    for values that cannot be together.
    """
    built_in = ClientPolicy()
    changes: dict[str, Any] = {}
    tiered = any(layer.name is LayerName.TIER for layer in layers)
    rows = []
    for one in fields(ClientPolicy):
        start = bounds if one.name == LEARNABLE and not tiered else (None, None)
        row = Effective(one.name, getattr(built_in, one.name), LayerName.BUILT_IN, floor=start[0], ceiling=start[1])
        rows.append(_resolve(row, getattr(base, one.name), layers, changes))
    connect = changes.get("connect_timeout", base.connect_timeout)
    for name in ("dns_timeout", "tls_timeout"):
        given = changes.get(name, getattr(base, name))
        if given is not None and given > connect:
            changes[name] = connect
    policy = base.with_values(changes)
    return EffectivePolicy(policy, tuple(_shown(row, policy) for row in rows))


def for_endpoint(
    effective: EffectivePolicy, overrides: Mapping[str, float], learned: LearnedLimit | None = None, at: int = 0
) -> EffectivePolicy:
    """The same with what is the endpoint's own: learned, then overridden. `at`: when its record was written.

    Raises `ConfigurationError` for overrides that are no limits or cannot be together.
    """
    policy = effective.policy
    if learned is not None and learned.seconds is not None and LEARNABLE not in overrides:
        policy = policy.with_values({LEARNABLE: learned.seconds})
    if overrides:
        policy = policy.with_values(dict(overrides))
    rows = []
    for row in effective.values:
        value = getattr(policy, row.name)
        name = row.name
        if name == LEARNABLE and learned is not None and learned.seconds is not None:
            row = _above(row, learned.seconds, LayerName.LEARNED, "", learned.at or 0, learned.why)
        if name in overrides:
            row = _above(row, value, LayerName.ENDPOINT, "", at, "the endpoint's own setting")
        rows.append(_shown(row, policy))
    return EffectivePolicy(policy, tuple(rows))


def check_change(layer: LayerName, name: str, given: LayerValue) -> None:
    """Refuse what a layer cannot say. Raises `ConfigurationError` saying where it belongs instead, or what to write."""
    if layer not in STORED:
        raise ConfigurationError(f"layer={layer}: write tier, fleet, cohort or canary")
    known = {one.name: one for one in fields(ClientPolicy)}
    if name in OF_THE_PROCESS:
        raise ConfigurationError(
            f"{name} belongs to each process ({OF_THE_PROCESS[name]}): write policy.{name} in its configuration and restart it"
        )
    if name not in known:
        raise ConfigurationError(f"{name!r} is no limit: write one of {', '.join(settable())}")
    if layer in (LayerName.TIER, LayerName.COHORT) and name in OF_THE_CLIENT:
        raise ConfigurationError(
            f"{name} shapes connections that endpoints share, and a {layer} is a part of the endpoints: set it for the fleet, or "
            "for one process (canary)"
        )
    if given.value is None and given.floor is None and given.ceiling is None:
        raise ConfigurationError(f"{name}: write a value, a floor or a ceiling")
    if not given.why.strip() or len(given.why) > REASON_MAX:
        raise ConfigurationError(
            f"why: say why in 1 to {REASON_MAX} characters; whoever reads it will not have been there"
        )
    if given.value is not None:
        expected = known[name].default
        switch = isinstance(expected, bool)
        if isinstance(given.value, bool) is not switch:
            raise ConfigurationError(f"{name}={given.value!r}: write {'true or false' if switch else 'a number'}")
        ClientPolicy().with_values({name: given.value}, alone=True)  # is it a limit at all
    _check_bounds(name, given)


def settable() -> list[str]:
    """Limits that a layer may set."""
    return [one.name for one in fields(ClientPolicy) if one.name not in OF_THE_PROCESS]


def consequence_of(name: str, value: Number | None, now: EffectivePolicy) -> list[str]:
    """What a new value does that its writer may not expect, a sentence each. `now`: what is in force before it."""
    said = []
    below = now.of(name)
    connect = now.policy.connect_timeout
    if name in ("dns_timeout", "tls_timeout") and value is not None and value > connect:
        said.append(f"{name}={value:g} is cut to connect_timeout={connect:g}, which covers it")
    if name in GRADUAL:
        said.append(f"{name}: {GRADUAL[name]}")
    if name == LEARNABLE and value is not None and below.ceiling is not None and value > below.ceiling:
        said.append(
            f"{name}={value:g} is above the ceiling of {below.ceiling:g} s: endpoints that have learned stay at or below it; "
            "an endpoint's own override may be above"
        )
    return said


# ----------------------------------------------------------------------------------------------------- helpers


def _check_bounds(name: str, given: LayerValue) -> None:
    bounds = [bound for bound in (given.floor, given.ceiling) if bound is not None]
    if bounds and name != LEARNABLE:
        raise ConfigurationError(
            f"{name} is not learned, so a floor or ceiling has no meaning: give both to {LEARNABLE} only"
        )
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
            raise ConfigurationError(f"{name}: a bound of {bound!r}; write seconds, more than 0")
    if given.floor is not None and given.ceiling is not None and given.floor > given.ceiling:
        raise ConfigurationError(
            f"{name}: floor {given.floor:g} is above ceiling {given.ceiling:g}; write them the other way round"
        )
    value = number_of(given.value)
    if value is not None and given.ceiling is not None and value > given.ceiling:
        raise ConfigurationError(
            f"{name}={value:g} is above its own ceiling {given.ceiling:g}: raise the ceiling with it"
        )


def _resolve(row: Effective, configured: Any, layers: Sequence[PolicyLayer], changes: dict[str, Any]) -> Effective:
    """One limit over the layers; what beats `configured` goes to `changes`."""
    name, floor, ceiling = row.name, row.floor, row.ceiling
    if configured != row.value:
        row = _above(row, configured, LayerName.PROCESS, "", 0, "configuration of the process")
    for layer in layers:
        said = layer.values.get(name)
        if said is None:
            continue
        floor, ceiling = _bounds(said, floor, ceiling)
        if said.value is not None:
            changes[name] = said.value
            row = _above(row, said.value, layer.label, said.by, said.at, said.why)
            if layer.name in STORED and said.ceiling is None and name == LEARNABLE:
                most = number_of(said.value)
                ceiling = most if ceiling is None or most is None else min(ceiling, most)
    if floor is not None and ceiling is not None and floor > ceiling:
        floor = ceiling  # whoever says "no longer than" means it
    return replace(row, floor=floor, ceiling=ceiling)


def _bounds(said: LayerValue, floor: float | None, ceiling: float | None) -> tuple[float | None, float | None]:
    if said.floor is not None:
        floor = said.floor if floor is None else max(floor, said.floor)
    if said.ceiling is not None:
        ceiling = said.ceiling if ceiling is None else min(ceiling, said.ceiling)
    return floor, ceiling


def _above(row: Effective, value: Any, layer: str, by: str, at: int, why: str) -> Effective:
    beaten = row.beat if row.value is None else (Beaten(row.layer, row.value), *row.beat)
    return Effective(row.name, value, str(layer), by, at, why, beaten, row.floor, row.ceiling)


def _shown(row: Effective, policy: ClientPolicy) -> Effective:
    """The row with the value that counts: an optional limit that nobody gave, or that another one cut."""
    value = getattr(policy, row.name)
    if value is None:
        value = policy.attempt_budget if row.name == "total_timeout" else policy.connect_timeout
        why = "derived: connect + write + read" if row.name == "total_timeout" else "derived: connect_timeout"
        return replace(row, value=value, why=why, beat=())
    if value != row.value and row.name in ("dns_timeout", "tls_timeout") and row.value is not None:
        why = f"cut to connect_timeout; {row.why}" if row.why else "cut to connect_timeout"
        return replace(row, value=value, why=why)
    return row if value == row.value else replace(row, value=value)
