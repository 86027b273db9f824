"""The closed list of reason codes: why an attempt ended as it did, or a destination was refused.

Codes are for programs and never derive from error text. `REASON_HELP` says in one sentence what each means to a person;
the reference page is generated from it. May grow in minor versions.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One code per cause. Egress codes come from `wire.egress`, the rest from the engine."""

    OK = "ok"
    # limits and admission
    ADMISSION_TIMEOUT = "admission_timeout"
    BREAKER_OPEN = "breaker_open"
    POOL_HOST_FULL = "pool_host_full"
    POOL_FULL = "pool_full"
    DNS_TIMEOUT = "dns_timeout"
    DNS_OVERLOAD = "dns_overload"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_TIMEOUT = "tls_timeout"
    WRITE_TIMEOUT = "write_timeout"
    WAIT_TIMEOUT = "wait_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    DEADLINE_EXPIRED = "deadline_expired"
    CANCELLED = "cancelled"
    CLIENT_CLOSED = "client_closed"
    # names
    DNS_NO_ADDRESS = "dns_no_address"
    DNS_TEMPORARY_FAILURE = "dns_temporary_failure"
    DNS_TOO_MANY_ANSWERS = "dns_too_many_answers"
    DNS_MIXED_ANSWERS = "dns_mixed_answers"
    # connections
    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_RESET = "connection_reset"
    CONNECTION_CLOSED = "connection_closed"
    HOST_UNREACHABLE = "host_unreachable"
    NETWORK_UNREACHABLE = "network_unreachable"
    CONNECT_FAILED = "connect_failed"
    CONNECTION_TIMED_OUT = "connection_timed_out"
    LOCAL_RESOURCES = "local_resources"
    PEER_MISMATCH = "peer_mismatch"
    # TLS
    TLS_CERT_EXPIRED = "tls_cert_expired"
    TLS_CERT_NOT_YET_VALID = "tls_cert_not_yet_valid"
    TLS_CERT_SELF_SIGNED = "tls_cert_self_signed"
    TLS_CERT_UNKNOWN_CA = "tls_cert_unknown_ca"
    TLS_CERT_INVALID_PURPOSE = "tls_cert_invalid_purpose"
    TLS_CERT_MALFORMED = "tls_cert_malformed"
    TLS_CERT_WEAK = "tls_cert_weak"
    TLS_CERT_REVOKED = "tls_cert_revoked"
    TLS_CERT_INVALID = "tls_cert_invalid"
    TLS_HOSTNAME_MISMATCH = "tls_hostname_mismatch"
    TLS_PROTOCOL_VERSION = "tls_protocol_version"
    TLS_HANDSHAKE_FAILURE = "tls_handshake_failure"
    TLS_NOT_TLS = "tls_not_tls"
    TLS_NO_HTTP1 = "tls_no_http1"
    TLS_CLIENT_CERT_REQUIRED = "tls_client_cert_required"
    TLS_CLIENT_CERT_REJECTED = "tls_client_cert_rejected"
    TLS_CONNECTION_CLOSED = "tls_connection_closed"
    # responses
    RESPONSE_PROTOCOL_ERROR = "response_protocol_error"
    RESPONSE_HEADERS_TOO_LARGE = "response_headers_too_large"
    RESPONSE_TOO_LARGE = "response_too_large"
    RESPONSE_INCOMPLETE = "response_incomplete"
    RESPONSE_UNSOLICITED = "response_unsolicited"
    RESPONSE_TOO_MANY_INTERIM = "response_too_many_interim"
    RESPONSE_UPGRADE = "response_upgrade"
    # redirects
    REDIRECT_DISABLED = "redirect_disabled"
    REDIRECT_LIMIT = "redirect_limit"
    REDIRECT_METHOD_CHANGE = "redirect_method_change"
    REDIRECT_CROSS_ORIGIN = "redirect_cross_origin"
    REDIRECT_SCHEME_DOWNGRADE = "redirect_scheme_downgrade"
    # our own proxy
    PROXY_DNS_FAILED = "proxy_dns_failed"
    PROXY_CONNECT_FAILED = "proxy_connect_failed"
    PROXY_TIMEOUT = "proxy_timeout"
    PROXY_TLS_FAILED = "proxy_tls_failed"
    PROXY_CLOSED = "proxy_closed"
    PROXY_AUTH_REQUIRED = "proxy_auth_required"
    PROXY_REFUSED = "proxy_refused"
    PROXY_UPSTREAM_FAILED = "proxy_upstream_failed"
    PROXY_PROTOCOL_ERROR = "proxy_protocol_error"
    PROXY_FAILED = "proxy_failed"
    # URL rules
    URL_CONTROL_CHAR = "url_control_char"
    URL_WHITESPACE = "url_whitespace"
    URL_BACKSLASH = "url_backslash"
    URL_MALFORMED = "url_malformed"
    URL_NON_ASCII = "url_non_ascii"
    URL_TOO_LONG = "url_too_long"
    FRAGMENT_PRESENT = "fragment_present"
    SCHEME_NOT_ALLOWED = "scheme_not_allowed"
    USERINFO_PRESENT = "userinfo_present"
    HOST_EMPTY = "host_empty"
    HOST_INVALID = "host_invalid"
    HOST_BRACKET_INVALID = "host_bracket_invalid"
    HOST_PERCENT_ENCODED = "host_percent_encoded"
    HOST_METADATA = "host_metadata"
    HOST_SINGLE_LABEL = "host_single_label"
    HOST_SPECIAL_USE = "host_special_use"
    IPV4_NONCANONICAL = "ipv4_noncanonical"
    IPV6_ZONE_ID = "ipv6_zone_id"
    IDN_INVALID = "idn_invalid"
    IDN_MAPS_TO_ASCII = "idn_maps_to_ascii"
    IP_LITERAL_FORBIDDEN = "ip_literal_forbidden"
    PORT_INVALID = "port_invalid"
    PORT_NOT_ALLOWED = "port_not_allowed"
    # header rules
    HEADER_FORBIDDEN = "header_forbidden"
    HEADER_NAME_INVALID = "header_name_invalid"
    HEADER_VALUE_INVALID = "header_value_invalid"
    HEADER_TOO_LONG = "header_too_long"
    # address rules
    ADDR_6TO4 = "addr_6to4"
    ADDR_6TO4_RELAY = "addr_6to4_relay"
    ADDR_AMT = "addr_amt"
    ADDR_AS112 = "addr_as112"
    ADDR_BENCHMARKING = "addr_benchmarking"
    ADDR_BROADCAST = "addr_broadcast"
    ADDR_DISCARD = "addr_discard"
    ADDR_DOCUMENTATION = "addr_documentation"
    ADDR_DUMMY = "addr_dummy"
    ADDR_IETF_PROTOCOL = "addr_ietf_protocol"
    ADDR_IPV4_COMPATIBLE = "addr_ipv4_compatible"
    ADDR_IPV4_MAPPED = "addr_ipv4_mapped"
    ADDR_IPV4_TRANSLATED = "addr_ipv4_translated"
    ADDR_LINK_LOCAL = "addr_link_local"
    ADDR_LOCAL_INTERFACE = "addr_local_interface"
    ADDR_LOOPBACK = "addr_loopback"
    ADDR_METADATA = "addr_metadata"
    ADDR_MULTICAST = "addr_multicast"
    ADDR_NAT64 = "addr_nat64"
    ADDR_NOT_GLOBAL_UNICAST = "addr_not_global_unicast"
    ADDR_OPERATOR_DENIED = "addr_operator_denied"
    ADDR_ORCHID = "addr_orchid"
    ADDR_PRIVATE = "addr_private"
    ADDR_RESERVED = "addr_reserved"
    ADDR_SHARED = "addr_shared"
    ADDR_SITE_LOCAL = "addr_site_local"
    ADDR_SRV6 = "addr_srv6"
    ADDR_TEREDO = "addr_teredo"
    ADDR_ULA = "addr_ula"
    ADDR_UNSPECIFIED = "addr_unspecified"


class BodyFault(StrEnum):
    """What was wrong with a body whose head had arrived whole."""

    INCOMPLETE = "incomplete"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"


PROXY_REASONS = frozenset(
    {
        Reason.PROXY_DNS_FAILED,
        Reason.PROXY_CONNECT_FAILED,
        Reason.PROXY_TIMEOUT,
        Reason.PROXY_TLS_FAILED,
        Reason.PROXY_CLOSED,
        Reason.PROXY_AUTH_REQUIRED,
        Reason.PROXY_REFUSED,
        Reason.PROXY_UPSTREAM_FAILED,
        Reason.PROXY_PROTOCOL_ERROR,
        Reason.PROXY_FAILED,
    }
)
"""The tunnel through our own egress proxy was not opened: nothing was sent to the receiver."""

US_REASONS = frozenset({Reason.LOCAL_RESOURCES, Reason.DNS_OVERLOAD}) | PROXY_REASONS
"""Faults that are ours whatever phase they end: the endpoint is not charged."""

PERMANENT_TLS_REASONS = frozenset(
    {
        Reason.TLS_CERT_EXPIRED,
        Reason.TLS_CERT_NOT_YET_VALID,
        Reason.TLS_CERT_SELF_SIGNED,
        Reason.TLS_CERT_UNKNOWN_CA,
        Reason.TLS_CERT_INVALID_PURPOSE,
        Reason.TLS_CERT_MALFORMED,
        Reason.TLS_CERT_WEAK,
        Reason.TLS_CERT_REVOKED,
        Reason.TLS_CERT_INVALID,
        Reason.TLS_HOSTNAME_MISMATCH,
        Reason.TLS_PROTOCOL_VERSION,
        Reason.TLS_NO_HTTP1,
        Reason.TLS_CLIENT_CERT_REQUIRED,
        Reason.TLS_CLIENT_CERT_REJECTED,
    }
)
"""The owner must change something: slow schedule and a notice."""
