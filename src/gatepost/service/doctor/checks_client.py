"""Checks of the client layer of one process: its limits, its connections, its certificates. Facts in, a finding or None out.

Each function is one line of the checklist, with its threshold beside it. Called by `checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatepost.dispatch.leases import STRICT_BUDGET_MAX
from gatepost.dispatch.strict import ARITHMETIC
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.facts import ClientFacts, HostFacts, LimitFacts
from gatepost.service.doctor.finding import Finding, Severity, shortened

REUSE_MIN: Final = 0.9
"""A busy host whose connections are kept stays above it."""
REUSE_REQUESTS_MIN: Final = 20
"""Requests in five minutes, one every fifteen seconds: below, connections expire between them, and a low ratio means nothing."""
CLOSES_MIN: Final = 2
CLOSES_ALIKE: Final = 0.2
CLOSES_ALIKE_SECONDS: Final = 0.25
"""Closes at ages within a fifth, or a quarter of a second, of one another are a timer; a restart closes at all ages at once."""
POOL_TIMEOUTS_MIN: Final = 3
"""In five minutes: one may be a burst, some are a cap that is too tight."""


def second_client(facts: ClientFacts) -> Finding | None:
    """One client per process: each has its own pool and limits, so that neither holds for both."""
    if facts.clients_open <= 1 and facts.clients_made <= 1:
        return None
    made = () if facts.made_at is None else tuple(facts.made_at.rstrip().splitlines())
    return Finding(
        Code.SECOND_CLIENT,
        Severity.WARNING,
        "More than one dispatch client is used in a process: connections are shared by neither, and no limit holds for both.",
        (f"{facts.clients_open} clients are open, {facts.clients_made} came into use since the start", *made),
        "Construct one DispatchClient per process and share it; never one per delivery.",
    )


def phase_limits(facts: LimitFacts) -> Finding | None:
    """Every phase has a limit in force."""
    missing = [phase for phase, seconds in facts.phases.items() if seconds is None]
    if not missing:
        return None
    return Finding(
        Code.PHASE_LIMIT_MISSING,
        Severity.CRITICAL,
        "A phase of an attempt has no limit: one peer that hangs in it holds a slot for ever.",
        tuple(f"phase {phase}: no limit" for phase in missing),
        "Find who changed the policy in the running process, give the phase its limit in seconds and restart the process.",
    )


def reuse(hosts: Sequence[HostFacts]) -> Finding | None:
    """Connections to busy hosts are reused. As many as were ever open at once may be new; the others were opened again."""
    low = []
    for host in hosts:
        requests = host.opened + host.reused
        if requests < REUSE_REQUESTS_MIN or host.reused >= REUSE_MIN * requests:
            continue
        if host.opened - host.open_peak > (1.0 - REUSE_MIN) * requests:
            low.append((host.reused / requests, requests, host))
    if not low:
        return None
    low.sort(key=lambda one: one[:2])
    return Finding(
        Code.REUSE_LOW,
        Severity.WARNING,
        f"Connections are opened anew instead of reused: below {REUSE_MIN:g} at a busy host every delivery pays for a handshake.",
        shortened(
            [
                f"{host.host}: reuse {ratio:.2f}, {host.opened} connections for {requests} requests in five minutes"
                for ratio, requests, host in low
            ]
        ),
        "Look whether the peer answers `Connection: close` or closes early (`gatepost doctor URL`), whether its DNS answer keeps "
        "changing, and whether some code makes a client per delivery.",
    )


def keepalive(hosts: Sequence[HostFacts], limits: LimitFacts) -> Finding | None:
    """Idle connections are kept no longer than the peer keeps them. What a peer announces is honoured, so that it only costs."""
    above, harmed = [], False
    for host in hosts:
        if host.announced is not None and limits.keepalive_expiry > host.announced:
            above.append(f"{host.host}: announces Keep-Alive: timeout={host.announced}{_harm(host)}")
        elif (closed := _timer(host.closed_after)) is not None and limits.keepalive_expiry > closed:
            above.append(
                f"{host.host}: closes idle connections after {closed:.1f} s without announcing it{_harm(host)}"
            )
        else:
            continue
        harmed = harmed or host.stale_retries > 0
    if not above:
        return None
    return Finding(
        Code.KEEPALIVE_ABOVE_PEER,
        Severity.WARNING if harmed else Severity.NOTICE,
        f"keepalive_expiry={limits.keepalive_expiry:g} is longer than peers keep idle connections. The client follows each peer, so "
        "few requests meet a closed connection, but more connections are opened than the setting suggests.",
        shortened(above),
        "Ask the peer to keep connections for a minute or longer, or lower policy.keepalive_expiry below the shortest.",
    )


def _harm(host: HostFacts) -> str:
    return f"; {host.stale_retries} requests met a closed connection" if host.stale_retries else ""


def _timer(ages: Sequence[float]) -> float | None:
    """The idle age at which a peer's timer closes; None when no timer can be told from the closes."""
    if len(ages) < CLOSES_MIN:
        return None
    shortest, longest = min(ages), max(ages)
    return shortest if longest - shortest <= max(CLOSES_ALIKE_SECONDS, CLOSES_ALIKE * longest) else None


def budget(limits: LimitFacts, over_lease: Sequence[tuple[str, float]]) -> Finding | None:
    """An attempt ends within the part lease it began under."""
    evidence = []
    if limits.attempt_budget is not None and limits.attempt_budget >= STRICT_BUDGET_MAX:
        evidence.append(f"an attempt may take {limits.attempt_budget:g} s")
    evidence += [f"an attempt at {endpoint} may take {seconds:g} s" for endpoint, seconds in over_lease]
    if not evidence:
        return None
    return Finding(
        Code.BUDGET_ABOVE_LEASE,
        Severity.WARNING if limits.shared_store else Severity.NOTICE,
        "An attempt may outlast the part lease it began under: after a process froze, its attempts run beside its successor's, and "
        "events with an ordering key are refused."
        if limits.shared_store
        else "An attempt may outlast a part lease: harmless while one process owns the store, refused for events with an ordering "
        "key once several do.",
        (ARITHMETIC, *shortened(evidence)),
        f"Lower connect, write or read timeout until they add up to less than {STRICT_BUDGET_MAX:g} s.",
    )


def pool_timeouts(hosts: Sequence[HostFacts]) -> Finding | None:
    """Attempts get their connection in time."""
    waited = sorted((host for host in hosts if host.pool_timeouts), key=lambda host: -host.pool_timeouts)
    if sum(host.pool_timeouts for host in waited) < POOL_TIMEOUTS_MIN:
        return None
    return Finding(
        Code.POOL_TIMEOUTS,
        Severity.WARNING,
        "Attempts waited for a connection until their limit: the cap of a host is too tight for its traffic, or its endpoints are "
        "too slow.",
        shortened(
            [
                f"{host.host}: {host.pool_timeouts} of {host.attempts} attempts in five minutes, {host.open_peak} connections at most"
                for host in waited
            ]
        ),
        "Compare the endpoint's read phase with its usual one; then raise policy.max_per_host (or max_connections), or lower what is "
        "sent there at once.",
    )


def slots(limits: LimitFacts) -> Finding | None:
    """Every slot finds a socket."""
    if limits.slots <= limits.max_connections:
        return None
    return Finding(
        Code.SLOTS_ABOVE_CONNECTIONS,
        Severity.WARNING,
        "There are more slots for attempts than connections: attempts wait for sockets instead of in the queue.",
        (f"dispatch.slots={limits.slots}, policy.max_connections={limits.max_connections}",),
        f"Write dispatch.slots={limits.max_connections} or less, or raise policy.max_connections.",
    )


def redirects(limits: LimitFacts, redirecting: Sequence[str]) -> Finding | None:
    """Redirects are not followed, by the process or for single endpoints."""
    if not limits.follow_redirects and not redirecting:
        return None
    evidence = [f"{endpoint}: its own limits follow redirects" for endpoint in redirecting]
    if limits.follow_redirects:
        evidence.insert(0, "follow_redirects is true in the running process")
    if limits.redirect_cross_origin:
        evidence.insert(1, "redirect_cross_origin is true: signed payloads go wherever an endpoint points")
    return Finding(
        Code.REDIRECTS_ON,
        Severity.CRITICAL if limits.redirect_cross_origin else Severity.WARNING,
        "Redirects are followed: a receiver can send the signed payload on to another place.",
        shortened(evidence),
        "Set policy.follow_redirects=false and restart, or take the change back (`gatepost policy`); let owners register the final "
        "URL instead.",
    )


def verification(facts: ClientFacts) -> Finding | None:
    """Certificates are verified in the running process."""
    if not facts.contexts_unverifying:
        return None
    return Finding(
        Code.VERIFICATION_OFF,
        Severity.CRITICAL,
        "Certificates are not verified: payloads go to whoever answers.",
        (f"{facts.contexts_unverifying} TLS contexts of the running process check no certificate or no name",),
        "There is no setting for that: find the code or extension in this process that changes its TLS contexts, and restart it "
        "without.",
    )


def nat64(facts: ClientFacts) -> Finding | None:
    """The network's NAT64 is declared."""
    if not facts.nat64_undeclared:
        return None
    return Finding(
        Code.NAT64_UNDECLARED,
        Severity.WARNING,
        "This network reaches IPv4 through NAT64, and the prefix is not declared: destinations behind it are refused.",
        tuple(f"prefix {prefix}" for prefix in facts.nat64_undeclared),
        "Add it to egress.nat64_prefixes if your platform translates with it.",
    )
