"""The settings of breakers as layers of the policy: `breaker.open_first=20` beside `read_timeout=8`, with the same precedence.

It checks what a layer says of a breaker and composes what is in force, with who set it and what it beat; `delivery.policy_layers` does
so for limits. Nothing is learned here and no endpoint has one of its own: configuration < tier < fleet < cohort < canary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from gatepost.admission.breaker import BreakerMode, BreakerRules, Judge
from gatepost.delivery.policy_layers import (
    REASON_MAX,
    STORED,
    Beaten,
    Effective,
    LayerName,
    LayerValue,
    PolicyLayer,
    Said,
    check_change,
)
from gatepost.errors import ConfigurationError

PREFIX: Final = "breaker."
"""In front of a field of `BreakerRules`."""
SETTABLE: Final = tuple(PREFIX + one.name for one in fields(BreakerRules))
_CHOICES: Final[dict[str, type[BreakerMode | Judge]]] = {"mode": BreakerMode, "judge": Judge}
_DEFAULTS: Final = BreakerRules()
_LONGEST: Final = 86_400.0
"""No pause is longer than a day: beyond it a typing error is likelier than a wish."""


def of_breaker(name: str) -> bool:
    """It is a setting of breakers, by its name."""
    return name.startswith(PREFIX)


def check_said(layer: LayerName, name: str, given: LayerValue) -> None:
    """Refuse what a layer cannot say, of a limit or of a breaker. Raises `ConfigurationError` saying what to write instead."""
    if not of_breaker(name):
        check_change(layer, name, given)
        return
    if layer not in STORED:
        raise ConfigurationError(f"layer={layer}: write tier, fleet, cohort or canary")
    if name not in SETTABLE:
        raise ConfigurationError(f"{name!r} is no setting of a breaker: write one of {', '.join(SETTABLE)}")
    if given.floor is not None or given.ceiling is not None:
        raise ConfigurationError(f"{name} is not learned, so a floor or ceiling has no meaning")
    if not given.why.strip() or len(given.why) > REASON_MAX:
        raise ConfigurationError(
            f"why: say why in 1 to {REASON_MAX} characters; whoever reads it will not have been there"
        )
    _parsed(name, given.value)


def breaker_under(
    configured: BreakerRules, layers: Sequence[PolicyLayer]
) -> tuple[BreakerRules, tuple[Effective, ...]]:
    """What the layers come to, from the lowest to the highest, and each setting with who said it. `configured` is the process'.

    Raises `ConfigurationError` for settings that cannot be together.
    """
    changes: dict[str, Any] = {}
    rows = []
    for one in fields(BreakerRules):
        name, value = PREFIX + one.name, getattr(configured, one.name)
        row = Effective(name, getattr(_DEFAULTS, one.name), LayerName.BUILT_IN)
        if value != row.value:
            row = _above(row, value, LayerName.PROCESS, LayerValue(why="configuration of the process"))
        for layer in layers:
            said = layer.values.get(name)
            if said is not None:
                changes[one.name] = value = _parsed(name, said.value)
                row = _above(row, value, layer.label, said)
        rows.append(row)
    return replace(configured, **changes) if changes else configured, tuple(rows)


def _parsed(name: str, value: Said | None) -> Any:
    field = name.removeprefix(PREFIX)
    choices = _CHOICES.get(field)
    if choices is not None:
        try:
            return choices(str(value))
        except ValueError:
            raise ConfigurationError(f"{name}={value!r}: write one of {', '.join(choices)}") from None
    default = getattr(_DEFAULTS, field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name}={value!r}: write a number, for example {name}={default:g}")
    if isinstance(default, int):
        if value != int(value):
            raise ConfigurationError(f"{name}={value!r}: write a whole number, for example {name}={default}")
        value = int(value)
    share = field.endswith("_share") or field in ("slow_of_timeout", "jitter")
    if not 0 < value <= (1.0 if share else _LONGEST):
        raise ConfigurationError(
            f"{name}={value}: write {'a share up to 1' if share else 'more than 0'}, for example {default:g}"
        )
    alone: dict[str, Any] = {field: value}
    if field == "open_first":
        alone["open_max"] = _LONGEST  # whether the two go together shows when they are composed
    elif field == "open_max":
        alone["open_first"] = value
    replace(_DEFAULTS, **alone)
    return value


def _above(row: Effective, value: Any, layer: str, said: LayerValue) -> Effective:
    return Effective(row.name, value, str(layer), said.by, said.at, said.why, (Beaten(row.layer, row.value), *row.beat))
