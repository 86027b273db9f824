"""What a service has learned about an endpoint, in lines for people. Used by `endpoint show` and `policy explain`."""

from __future__ import annotations

from typing import Any


def learned_lines(learned: dict[str, Any] | None) -> list[str]:
    """From the API's `learned`; a single line when there is nothing."""
    if learned is None:
        return ["learned: nothing yet"]
    samples, p99 = learned["samples"], learned["p99"]
    since = f" since {learned['learned_at']}" if learned["learned_at"] else ""
    lines = [
        f"learned: {learned['state']}, {samples} samples{'' if p99 is None else f', p99 {p99:.3g} s'}: {learned['text']}",
        f"read timeout now: {learned['read_timeout_in_force']:g} s"
        + (f", learned{since}" if learned["in_force"] else ", as configured"),
        f"breaker: {_breaker(learned['breaker'])}",
        f"cap: {learned['cap']} in flight ({learned['learned_cap']} without its breaker)"
        + ("" if learned["in_flight"] is None else f", {learned['in_flight']} now"),
    ]
    if learned["alarm"] is not None:
        lines.append(f"alarm: far more attempts than usual end in {learned['alarm']}")
    if not learned["live"]:
        lines.append("as its owner stored it, up to five minutes ago: another process attempts this endpoint")
    return lines


def _breaker(breaker: dict[str, Any]) -> str:
    words = [breaker["state"]]
    if breaker["state"] != "closed" and breaker["cause"] is not None:
        words.append(f"for {breaker['cause']}")
    if breaker["state"] == "open":
        words.append(f"until {breaker['open_until']}")
    if breaker["level"]:
        words.append(f"(pause number {breaker['level'] + 1} in a row)")
    if breaker["recovered_at"] is not None:
        words.append(f", recovered at {breaker['recovered_at']}")
    return " ".join(words).replace(" ,", ",")
