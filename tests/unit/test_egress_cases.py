"""The corpus of destinations that fooled other webhook senders, and the table of addresses, against ours.

`tests/data/egress.json` holds URLs, resolver answers and policies with the verdict each must get; `egress_tables.json` the
deny tables. Host names and addresses are data: nothing is looked up or called.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest

from gatepost.wire.egress import Denied, EgressPolicy, Target, check_address, check_addresses, check_url
from gatepost.wire.egress_tables import (
    DENY_IPV4,
    DENY_IPV6,
    IPV6_ONLY_INSIDE,
    METADATA_ADDRESSES,
    METADATA_NAMES,
    SERVICE_PORTS,
    SPECIAL_USE_SUFFIXES,
)
from gatepost.wire.reasons import Reason

DATA = Path(__file__).parent.parent / "data"
CORPUS: dict[str, Any] = json.loads((DATA / "egress.json").read_text(encoding="utf-8"))
TABLES: dict[str, Any] = json.loads((DATA / "egress_tables.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = [case for case in CORPUS["cases"] if case["stage"] in ("url", "dns")]


def policy_of(case: dict[str, Any]) -> EgressPolicy:
    """The case's policy in our words."""
    fields = dict(case.get("policy", {}))
    if "allow_hosts" in fields:
        fields["internal_hosts"] = fields.pop("allow_hosts")
    return EgressPolicy(**fields)


def verdict(case: dict[str, Any]) -> Target | Denied:
    """URL first, then each answer the resolver gives in turn."""
    policy = policy_of(case)
    result = check_url(case.get("url") or f"https://{case['host']}/", policy)
    lookups = case.get("dns_sequence") or ([case["dns_answers"]] if "dns_answers" in case else [])
    for answers in lookups:
        if isinstance(result, Denied):
            break
        checked = check_addresses(answers, policy, case.get("cname_chain", ()))
        if isinstance(checked, Denied):
            return checked
    return result


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_corpus(case: dict[str, Any]) -> None:
    """Each case is a bypass or an over-block that happened somewhere."""
    result = verdict(case)
    assert (result.reason if isinstance(result, Denied) else "ok") == case["reason_code"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_refusal_tells_an_operator_what_to_do(case: dict[str, Any]) -> None:
    """A code alone sends people to the source."""
    result = verdict(case)
    if isinstance(result, Denied):
        assert result.rule
        assert result.remedy.endswith(".")
        assert result.subject in str(result)
        assert str(result).isascii()
        assert str(result).isprintable()
        assert len(str(result)) < 600


def test_the_table_is_complete() -> None:
    """A missing row is an open door, so the data is compared row by row."""
    for ours, name in ((DENY_IPV4, "deny_ipv4"), (DENY_IPV6, "deny_ipv6")):
        assert [(cidr, str(reason)) for cidr, reason, _ in ours] == [
            (row["cidr"], row["reason"]) for row in TABLES[name]
        ]
    assert TABLES["ipv6_only_inside"] == IPV6_ONLY_INSIDE
    assert set(TABLES["metadata_addresses"]) == METADATA_ADDRESSES
    assert set(TABLES["metadata_names"]) == METADATA_NAMES
    assert set(TABLES["special_use_suffixes"]) == SPECIAL_USE_SUFFIXES
    assert set(CORPUS["default_policy"]["bad_ports"]) == SERVICE_PORTS


@pytest.mark.parametrize(("cidr", "reason"), [(cidr, reason) for cidr, reason, _ in (*DENY_IPV4, *DENY_IPV6)])
def test_first_and_last_address_of_each_row_are_refused(cidr: str, reason: Reason) -> None:
    """Off-by-one at an edge opens a whole neighbour."""
    network = ipaddress.ip_network(cidr)
    for address in (network[0], network[-1]):
        denied = check_address(str(address), EgressPolicy())
        assert denied is not None
        # an earlier, more specific row or the metadata list may name it instead
        assert denied.reason is reason or any(
            address in ipaddress.ip_network(other) for other, _, _ in (*DENY_IPV4, *DENY_IPV6) if other != cidr
        )


@pytest.mark.parametrize("address", sorted(METADATA_ADDRESSES))
def test_no_list_opens_a_metadata_service(address: str) -> None:
    """An operator who allows a network does not mean the credentials service inside it."""
    network = f"{address}/{32 if '.' in address else 128}"
    policy = EgressPolicy(allow_cidrs=(network, "0.0.0.0/0", "::/0"))
    denied = check_address(address, policy)
    assert denied is not None
    assert denied.reason is Reason.ADDR_METADATA


@pytest.mark.parametrize("suffix", sorted(SPECIAL_USE_SUFFIXES))
def test_special_names_are_refused_with_everything_below_and_nothing_beside(suffix: str) -> None:
    """A suffix matches whole labels only: `notlocal.example.org` is not under `local`."""
    for host in (suffix, f"a.{suffix}", f"A.B.{suffix.upper()}."):
        denied = check_url(f"https://{host}/", EgressPolicy())
        assert isinstance(denied, Denied)
        assert denied.reason is Reason.HOST_SPECIAL_USE
    assert isinstance(check_url(f"https://not{suffix}.example.org/", EgressPolicy()), Target)
    assert isinstance(check_url(f"https://{suffix}.example.org/", EgressPolicy()), Target)


@pytest.mark.parametrize("name", sorted(METADATA_NAMES))
def test_metadata_names_are_refused(name: str) -> None:
    """In any case, with or without the final dot, as a URL and as an alias on the way."""
    for host in (name, name.upper(), name + "."):
        denied = check_url(f"https://{host}/", EgressPolicy())
        assert isinstance(denied, Denied)
        assert denied.reason is Reason.HOST_METADATA
    linked = check_addresses(["93.184.216.34"], EgressPolicy(), [name.upper() + "."])
    assert isinstance(linked, Denied)
    assert linked.reason is Reason.HOST_METADATA
