"""Does everything still fit: an attempt into the right to start of an ordered lane, all attempts and pauses into the window?

Arithmetic on limits, with the sum in each message; it refuses nothing itself. Asked when a dispatcher starts and before a policy
is stored (`dispatch.policies`), where a wrong limit would otherwise be found by the deliveries of the next days.
"""

from __future__ import annotations

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import DEFAULT_SCHEDULE, DEFAULT_WINDOW, Endpoint
from gatepost.delivery.retry import check_schedule
from gatepost.errors import ConfigurationError


def longest_attempt(policy: ClientPolicy, learned_most: float | None) -> float:
    """Seconds an attempt may last once everything has been learned that may be. `learned_most` None: nothing is."""
    if policy.total_timeout is not None:
        return policy.total_timeout
    read = policy.read_timeout if learned_most is None else max(policy.read_timeout, learned_most)
    return policy.connect_timeout + policy.write_timeout + read


def strict_fault(policy: ClientPolicy, learned_most: float | None, strict_max: float, why: str) -> str | None:
    """What is wrong for ordered lanes, which must have ended within `strict_max` seconds; None: nothing. `why`: whence that is."""
    longest = longest_attempt(policy, learned_most)
    if longest < strict_max:
        return None
    return (
        f"an attempt may take {_sum(policy, learned_most)}, and on an ordered lane it must end before another process may take "
        f"over: {why}"
    )


def window_fault(policy: ClientPolicy, learned_most: float | None, endpoint: Endpoint | None) -> str | None:
    """What is wrong with schedule and window of an endpoint (None: one with the defaults); None: they fit."""
    schedule = DEFAULT_SCHEDULE if endpoint is None or endpoint.schedule is None else endpoint.schedule
    window = DEFAULT_WINDOW if endpoint is None or endpoint.window is None else endpoint.window
    try:
        check_schedule(schedule, window, longest_attempt(policy, learned_most))
    except ConfigurationError as error:
        return f"{error}; an attempt may take {_sum(policy, learned_most)}"
    return None


def _sum(policy: ClientPolicy, learned_most: float | None) -> str:
    longest = longest_attempt(policy, learned_most)
    if policy.total_timeout is not None:
        return f"total_timeout = {longest:g} s"
    read = longest - policy.connect_timeout - policy.write_timeout
    name = "read_timeout" if read <= policy.read_timeout else "read_timeout at its ceiling"
    return f"connect {policy.connect_timeout:g} + write {policy.write_timeout:g} + {name} {read:g} = {longest:g} s"
