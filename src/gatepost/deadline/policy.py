"""What is the same for all deadlines of a service: defaults, bounds, and which headers are believed.

Frozen, complete and checked when made; it decides nothing by itself. Read by `wire`, `value` and the servers' middleware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gatepost.errors import ConfigurationError

Format = Literal["request-timeout", "grpc-timeout", "x-envoy-expected-rq-timeout-ms"]
"""Headers that carry a budget."""
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
OnInvalid = Literal["ignore", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    """All durations in seconds. Raises `ConfigurationError` for values that cannot work, saying what to write."""

    min_useful: float = 0.001
    """Below this no call is started: a timeout that short only fails after work was done on both sides."""
    default: float = 10.0
    """Budget of a request that brings none. There is no "unlimited": whoever forgets the header gets this."""
    max: float = 60.0
    """Longest budget a caller may ask for; more is cut to it, since only a shorter one costs us nothing."""
    min_budget: float = 0.005
    """A request with less left is not begun: no handler answers over a network in that time."""
    formats: tuple[Format, ...] = ("request-timeout", "grpc-timeout")
    """Headers read, the least of them wins. Envoy's is for services behind a mesh that sets it: clients could send it too."""
    on_invalid: OnInvalid = "ignore"
    """A value that cannot be read is counted and left out; `reject` answers 400."""
    allowance: float = 0.0
    """Taken off each received budget for the way back to the caller: one-way network time across regions."""
    queue_header: str | None = "x-request-start"
    """Header in which the proxy in front says when it took the request in (wall clock); None: not read."""

    def __post_init__(self) -> None:
        _check("min_useful", self.min_useful, "0.001; 0 would let through timeouts that most libraries read as 'none'")
        _check("default", self.default, "10.0; there is no unlimited default: shield work that must take longer")
        _check("max", self.max, "60.0")
        _check("min_budget", self.min_budget, "0.005")
        if self.allowance != 0:
            _check("allowance", self.allowance, "0.02, or 0")
        if self.default > self.max:
            raise ConfigurationError(f"default={self.default:g} is over max={self.max:g}: write a default up to max")
        if self.min_budget + self.allowance > self.default:
            raise ConfigurationError(
                f"min_budget={self.min_budget:g} and allowance={self.allowance:g} leave nothing of default="
                f"{self.default:g}: every request without a header would be refused; write smaller ones"
            )
        if not self.formats or any(
            name not in FORMATS for name in self.formats
        ):  # a bare text is refused by its letters
            raise ConfigurationError(f"formats={self.formats!r}: write a tuple of some of {', '.join(FORMATS)}")
        if self.on_invalid not in get_args(OnInvalid):
            raise ConfigurationError(f"on_invalid={self.on_invalid!r}: write 'ignore' or 'reject'")
        if self.queue_header is not None and self.queue_header != self.queue_header.lower():
            raise ConfigurationError(f"queue_header={self.queue_header!r}: write it in lower case")


def _check(name: str, value: object, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name}={value!r}: write seconds above 0, for example {example}")


DEFAULT_POLICY: Final = DeadlinePolicy()
