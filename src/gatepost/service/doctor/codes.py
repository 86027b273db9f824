"""The closed list of what the doctor can find, by code: programs act on codes, and the page of findings has one row for each.

A code is never taken back or given another meaning. May grow in minor versions.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Of the fleet, in the order of the checklist; then on the way to an endpoint, in the order of the wire."""

    SECOND_CLIENT = "second_client"
    PHASE_LIMIT_MISSING = "phase_limit_missing"
    REUSE_LOW = "reuse_low"
    KEEPALIVE_ABOVE_PEER = "keepalive_above_peer"
    BUDGET_ABOVE_LEASE = "budget_above_lease"
    POOL_TIMEOUTS = "pool_timeouts"
    SLOTS_ABOVE_CONNECTIONS = "slots_above_connections"
    TIME_WAIT_PILE_UP = "time_wait_pile_up"
    REDIRECTS_ON = "redirects_on"
    VERIFICATION_OFF = "verification_off"
    NAT64_UNDECLARED = "nat64_undeclared"
    CLOCK_SKEW = "clock_skew"
    DNS_HUNG = "dns_hung"
    DNS_SLOW = "dns_slow"
    DNS_NAME_HUNG = "dns_name_hung"
    FILE_LIMIT_LOW = "file_limit_low"
    DISK_FULL = "disk_full"
    DISK_LOW = "disk_low"
    STORE_FAILING = "store_failing"
    STORE_SLOW = "store_slow"
    DISPATCHER_STOPPED = "dispatcher_stopped"
    PROCESS_DEAD = "process_dead"
    PROCESS_DRAINING = "process_draining"
    PROCESS_UNREACHABLE = "process_unreachable"
    PART_STUCK = "part_stuck"
    ENDPOINT_UNVERIFIED = "endpoint_unverified"
    LIMITS_DIFFER = "limits_differ"
    CONFIGURATION_DOUBTFUL = "configuration_doubtful"
    # gatepost doctor URL
    URL_DENIED = "url_denied"
    NAME_UNKNOWN = "name_unknown"
    NAME_UNANSWERED = "name_unanswered"
    NAME_SLOW = "name_slow"
    ADDRESS_DENIED = "address_denied"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_IMPOSSIBLE = "connect_impossible"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_SLOW = "connect_slow"
    ADDRESS_DEAD = "address_dead"
    TLS_FAILED = "tls_failed"
    TLS_DIFFERS = "tls_differs"
    CERTIFICATE_EXPIRES = "certificate_expires"
    NO_ANSWER = "no_answer"
    REQUEST_FAILED = "request_failed"
    ANSWER_SLOW = "answer_slow"
    STATUS_UNWELL = "status_unwell"
    BODY_FAULTY = "body_faulty"
    NOT_KEPT = "not_kept"
