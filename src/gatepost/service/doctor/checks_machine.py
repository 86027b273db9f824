"""Checks of what a process stands on: store, clock, names, open files, disk and the kernel's sockets.

Facts in, a finding or None out; thresholds stand beside their reasons. Called by `checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatepost.dispatch.store_time import SKEW_LIMIT_US, SKEW_WARNING_US
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.facts import DiskFacts, FileFacts, NameFacts, SocketFacts, StoreFacts
from gatepost.service.doctor.finding import Finding, Severity, shortened

STORE_SLOW: Final = 0.25
"""Seconds for a small write, what readiness allows the store: each delivery waits for several."""
STORE_STALLS: Final = 1.5
"""Seconds after which also a single write is worth a word: publishing waits five in all."""
NAME_SLOW: Final = 0.5
"""Seconds for an answer: a warm resolver takes 20 ms, and connect_timeout has to hold TCP and TLS as well."""
NO_ANSWER: Final = "no_answer"
"""`NameFacts.reason` of a name that was not answered within the patience."""
TIME_WAIT_MIN: Final = 500
"""Towards one peer: TIME_WAIT lasts a minute, so that is eight connections closed by us every second that could have been kept."""
PORTS_SHARE: Final = 0.5
"""Of the local ports for one peer: at all of them no connection to it can be made."""
FILES_SHARE: Final = 0.8
DISK_AHEAD: Final = 2.0
"""Times the reserve at which a disk is worth a word."""


def store(facts: StoreFacts | None) -> Finding | None:
    """The store answers, and soon."""
    if facts is None:
        return None
    took = ", ".join(f"{seconds * 1e3:.0f} ms" for seconds in facts.seconds)
    if facts.error is not None or facts.failing:
        evidence = [] if facts.error is None else [f"a small write: {facts.error}"]
        if facts.failing:
            evidence.append(f"results cannot be stored: {facts.results_waiting} wait")
        return Finding(
            Code.STORE_FAILING,
            Severity.CRITICAL,
            "The store does not take writes: no event is accepted, and what was delivered may be delivered again.",
            tuple(evidence),
            "Look at the database itself: is it up, does it have room, can this machine reach it?",
        )
    # The best of them: one that waited for somebody's commit is no finding, unless it waited for very long.
    if not facts.seconds or (min(facts.seconds) <= STORE_SLOW and max(facts.seconds) < STORE_STALLS):
        return None
    return Finding(
        Code.STORE_SLOW,
        Severity.WARNING,
        "The store is slow: publishing and every result wait for it.",
        (f"small writes took {took}", f"{facts.results_waiting} results wait"),
        "Look for long transactions, a full or slow disk, and the way to the database; measure with `gatepost bench queue`.",
    )


def clock(skew: float) -> Finding | None:
    """This machine's clock agrees with the store's."""
    if abs(skew) <= SKEW_WARNING_US / 1e6:
        return None
    stopped = abs(skew) > SKEW_LIMIT_US / 1e6
    return Finding(
        Code.CLOCK_SKEW,
        Severity.CRITICAL if stopped else Severity.WARNING,
        "The machine's clock and the store's differ: signatures carry the one, due times the other."
        + (" The process signs nothing and starts nothing." if stopped else ""),
        (f"the store's clock is {skew:+.1f} s from this machine's",),
        "Let both follow the same time server (`chronyc tracking`, `timedatectl`).",
    )


def names(found: Sequence[NameFacts], pending: int) -> Finding | None:
    """Names are answered, and soon. One that exists nowhere is its owner's."""
    hung = [one for one in found if one.reason == NO_ANSWER]
    answered = [one for one in found if one.reason != NO_ANSWER]
    if hung and not answered:
        return Finding(
            Code.DNS_HUNG,
            Severity.CRITICAL,
            "The resolver does not answer: nobody whose address is not known already is delivered to.",
            (*(f"{one.name}: no answer in {one.seconds:.1f} s" for one in hung), f"{pending} names wait for an answer"),
            "Try the resolvers of /etc/resolv.conf one by one (`dig @ADDRESS NAME`); a dead first one costs each look-up its timeout.",
        )
    slow = [one for one in answered if one.seconds > NAME_SLOW]
    if not slow and not hung:
        return None
    if slow and len(slow) == len(answered):
        return Finding(
            Code.DNS_SLOW,
            Severity.WARNING,
            "Looking names up is slow: it takes its time out of connect_timeout.",
            tuple(f"{one.name}: {one.seconds * 1e3:.0f} ms" for one in slow),
            "Put a caching resolver on this machine, and look whether the first one of /etc/resolv.conf answers at all.",
        )
    if hung:
        return Finding(
            Code.DNS_NAME_HUNG,
            Severity.NOTICE,
            "A name is not answered while others are: its zone has a fault, our resolver has none.",
            tuple(f"{one.name}: no answer in {one.seconds:.1f} s" for one in hung),
            "Tell its owner; `gatepost doctor URL` has the details.",
        )
    return None


def files(facts: FileFacts | None) -> Finding | None:
    """There are enough file descriptors for the connections that may be opened."""
    if facts is None:
        return None
    full = facts.open is not None and facts.open > FILES_SHARE * facts.limit
    if not full and facts.limit >= facts.needed and not facts.narrows:
        return None
    used = "" if facts.open is None else f", {facts.open} are open"
    return Finding(
        Code.FILE_LIMIT_LOW,
        Severity.CRITICAL if full else Severity.WARNING,
        "The limit on open files is low: it holds connections and slots down, or lets connects and accepts fail.",
        (f"RLIMIT_NOFILE is {facts.limit}, {facts.needed} are needed{used}",),
        f"Raise it to at least {facts.needed} (LimitNOFILE= of the unit, `ulimit -n`), and restart.",
    )


def disk(facts: DiskFacts | None) -> Finding | None:
    """The store's disk has room."""
    if facts is None or facts.free >= DISK_AHEAD * facts.reserve:
        return None
    full = facts.free < facts.reserve
    return Finding(
        Code.DISK_FULL if full else Code.DISK_LOW,
        Severity.CRITICAL if full else Severity.WARNING,
        "The store's disk is full: new events are refused, deliveries go on."
        if full
        else "The store's disk is nearly full: new events will be refused soon.",
        (
            f"{facts.path}: {facts.free / 2**20:,.0f} MiB of {facts.total / 2**20:,.0f} free, "
            f"{facts.reserve / 2**20:,.0f} MiB are kept for finishing deliveries",
        ),
        "Free disk space, enlarge the disk, or shorten retention.attempts and retention.events.",
    )


def time_wait(facts: SocketFacts | None) -> Finding | None:
    """Connections are not closed by us by the hundred towards one peer. Many peers with a few each are ordinary traffic."""
    if facts is None:
        return None
    least = PORTS_SHARE * facts.ports if facts.proxied else TIME_WAIT_MIN
    many = {peer: count for peer, count in facts.outgoing.items() if count >= least}
    if not many:
        return None
    worst = max(many.values())
    return Finding(
        Code.TIME_WAIT_PILE_UP,
        Severity.CRITICAL if worst >= PORTS_SHARE * facts.ports else Severity.WARNING,
        "Connections to one peer are closed by us as fast as they are opened: they are not reused, and their local ports are taken "
        "for a minute each.",
        (
            *shortened([f"{peer}: {count} in TIME_WAIT, of {facts.ports} local ports" for peer, count in many.items()]),
            f"{facts.total} in TIME_WAIT on this machine",
        ),
        "Look for what makes a client or a connection per request on this machine (`ss -tanp`), and at the reuse of this host.",
    )
