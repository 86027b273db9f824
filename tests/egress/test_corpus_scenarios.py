"""Each case of the corpus that is a scenario, and the test that plays it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CORPUS: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "egress.json").read_text(encoding="utf-8"))
CASES = [case["id"] for case in CORPUS["cases"] if case["stage"] == "scenario"]

PLACES = "tests/egress/test_scenarios_destinations.py"
TLS = "tests/egress/test_scenarios_tls.py"
HTTP = "tests/egress/test_scenarios_http.py"
CERTIFICATE = (TLS, "test_scenario_29_each_certificate_has_its_class")
ENVIRONMENT = (PLACES, "test_scenario_22_proxies_of_the_environment")
BODIES = (HTTP, "test_scenario_36_bodies_are_bounded_in_memory_and_framing_doubts_drop_the_connection")
HEADS = (HTTP, "test_scenario_37_heads_are_bounded_and_what_is_no_head_is_refused")
RESOLVER = (PLACES, "test_scenario_48_whatever_a_resolver_does_is_classified")
SECRETS = ("tests/faults/test_secrets.py", "test_secrets_01_no_way_to_fail_shows_a_secret")
HANDSHAKES = (TLS, "test_scenario_30_each_spoiled_handshake_has_its_class_and_ends_in_time")
CLIENT_CERTIFICATES = (TLS, "test_scenario_31_client_certificates_none_right_and_wrong")

PLAYED: dict[str, tuple[str, str]] = {
    "dns-own-interface": ("tests/unit/test_egress_rules.py", "test_a_name_that_leads_to_our_own_address_is_refused"),
    "dns-nxdomain": RESOLVER,
    "dns-servfail": RESOLVER,
    "dns-resolver-timeout": ("tests/faults/test_timeouts.py", "test_timeout_06_the_limits_on_names_and_on_waiting_fire_as_configured"),
    "dns-slow-flood": (PLACES, "test_scenario_47_two_hundred_hanging_names_beside_twenty_good_ones"),
    "env-all-proxy": ENVIRONMENT,
    "env-http-proxy": ENVIRONMENT,
    "env-https-proxy": ENVIRONMENT,
    "env-netrc": (PLACES, "test_scenario_23_netrc"),
    "env-ssl-cert-file": (TLS, "test_scenario_24_the_environment_changes_no_trust"),
    "aia-fetch": (TLS, "test_scenario_33_nothing_that_a_certificate_names_is_fetched"),
    "alt-svc": (HTTP, "test_scenario_35_an_alternative_service_is_ignored"),
    "cookie-same-endpoint": (HTTP, "test_scenario_25_no_cookie_is_ever_sent"),
    "expect-100": ("tests/faults/test_framing.py", "test_framing_14_interim_responses_are_skipped_counted_and_extend_nothing"),
    "h2c-upgrade": (TLS, "test_scenario_34_only_http_1_1_is_spoken"),
    "pool-cross-hostname-same-ip": (TLS, "test_scenario_27_two_names_on_one_address"),
    "pool-h2-coalescing": (TLS, "test_scenario_34_only_http_1_1_is_spoken"),
    "sni-hostname": ("tests/faults/test_tls.py", "test_tls_07_a_name_with_its_final_dot_is_the_same_name"),
    "tls-session-after-ca-change": (TLS, "test_scenario_26_two_profiles_of_one_host_share_nothing"),
    "tls-session-cross-hostname": (TLS, "test_scenario_28_no_session_is_resumed"),
    "peer-address-mismatch": (PLACES, "test_scenario_12_a_peer_that_is_not_who_was_dialled"),
    "rebind-endpoint-record-edited": (
        "tests/egress/test_redirects.py",
        "test_scenario_15_a_record_that_moves_leaves_its_connections",
    ),
    "rebind-one-lookup-per-connection": (PLACES, "test_scenario_07_rebinding_inside_one_attempt"),
    "rebind-search-domain": ("tests/egress/test_corpus_scenarios.py", "test_names_are_asked_for_as_absolute_ones"),
    "redir-body-not-read": (HTTP, "test_scenario_17_an_endless_redirect_body_is_bounded_like_any_other"),
    "redir-refresh-header": (HTTP, "test_scenario_17_a_redirect_to_the_inside_is_a_failure_and_not_followed"),
    "resp-bad-status-line": HEADS,
    "resp-cl-huge": BODIES,
    "resp-cl-negative": BODIES,
    "resp-cl-twice": BODIES,
    "resp-endless-body": BODIES,
    "resp-gzip-bomb": (HTTP, "test_scenario_39_compressed_bodies_stay_compressed"),
    "resp-header-log": ("tests/faults/test_redirect.py", "test_redirect_04_recording_an_attempt_never_changes_it"),
    "resp-huge-body": BODIES,
    "resp-huge-header": HEADS,
    "resp-many-headers": HEADS,
    "secret-in-exception": SECRETS,
    "tls-11-only": HANDSHAKES,
    "tls-cn-only": (TLS, "test_scenario_29_a_name_in_the_subject_only_is_no_name"),
    "tls-eof": HANDSHAKES,
    "tls-expired": ("tests/hostile/test_faults_tls.py", "test_a_bad_certificate_is_named_and_gets_no_request"),
    "tls-hostname": CERTIFICATE,
    "tls-mtls-missing": CLIENT_CERTIFICATES,
    "tls-mtls-wrong": CLIENT_CERTIFICATES,
    "tls-not-yet-valid": ("tests/hostile/test_faults_tls.py", "test_a_bad_certificate_is_named_and_gets_no_request"),
    "tls-plain-http": HANDSHAKES,
    "tls-private-ca-without-aki": CERTIFICATE,
    "tls-purpose": CERTIFICATE,
    "tls-timeout": HANDSHAKES,
    "tls-unknown-ca": (TLS, "test_scenario_29_an_intermediate_that_is_not_sent_is_an_unknown_authority"),
}  # fmt: skip
"""Where a case calls a 2xx with a faulty body a denial (`resp-cl-huge` and its like), the design wins: a complete 2xx head is
delivered, the fault is in `body_fault` with the case's reason, and the connection is dropped."""


@pytest.mark.parametrize("case", CASES)
def test_each_scenario_of_the_corpus_is_played(case: str) -> None:
    """By a test that exists."""
    path, name = PLAYED[case]
    assert re.search(rf"def {name}\b", (ROOT / path).read_text(encoding="utf-8")), (path, name)


def test_the_list_names_no_case_that_does_not_exist() -> None:
    """A slip would count as covered."""
    assert set(PLAYED) == set(CASES)


def test_names_are_asked_for_as_absolute_ones() -> None:
    """`redis.cache` must not become `redis.cache.svc.cluster.local` by a search list: it is asked for with its final dot.

    Read from the source, since the question is put by the C library in a thread.
    """
    source = (ROOT / "src" / "gatepost" / "net" / "resolver.py").read_text(encoding="utf-8")
    assert 'host + "." if "." in host else host' in source
