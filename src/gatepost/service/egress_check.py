"""Answers "may this destination be called?" for one case of `gatepost egress check`: the rules of `wire.egress`, no network.

A case has a URL or a host, and perhaps what a resolver said; without answers only the URL is judged. Called by the command
line, and by anyone who wants the corpus run.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gatepost.errors import ConfigurationError
from gatepost.wire.egress import Denied, EgressPolicy
from gatepost.wire.egress_rules import EgressRules

CASE_FIELDS: Final = ("url", "host", "dns_answers", "dns_sequence", "cname_chain", "policy")
_POLICY_NAMES: Final = {"allow_hosts": "internal_hosts"}
_NOT_HERE: Final = frozenset({"redirects", "redirect_cross_origin", "idn"})
"""Part of the cases' policy, but not of this decision: redirects are the client's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allowed or not, and why."""

    allowed: bool
    reason: str
    detail: str
    """For people: the rule and the remedy, or the host and addresses that passed."""

    def as_json(self) -> dict[str, str]:
        """The fixed form: verdict and reason."""
        return {"verdict": "allow" if self.allowed else "deny", "reason": self.reason}


def check_case(
    case: Mapping[str, Any],
    base: EgressPolicy,
    *,
    own_addresses: frozenset[str] = frozenset(),
    nat64_seen: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on one case; its `policy` replaces fields of `base`. Raises `ConfigurationError` for a malformed case.

    `own_addresses` and `nat64_seen` are what is known of this machine and its network; a case by itself knows neither.
    """
    rules = EgressRules(_policy(case.get("policy") or {}, base), own_addresses, nat64_seen)
    url = case.get("url")
    host = case.get("host")
    if (url is None) == (host is None):
        raise ConfigurationError('a case has either "url" or "host"')
    if host is not None:
        url = f"https://{_bracketed(_text('host', host))}/"
    target = rules.check_url(_text("url", url))
    if isinstance(target, Denied):
        return _denied(target)
    chain = _texts("cname_chain", case.get("cname_chain") or [])
    lookups = [_texts("dns_answers", case["dns_answers"])] if case.get("dns_answers") is not None else []
    lookups += [_texts("dns_sequence", answers) for answers in case.get("dns_sequence") or []]
    if target.address is not None:
        return Verdict(True, "ok", f"{target.origin} names an address, which is allowed")
    if not lookups:
        return Verdict(True, "ok", f"{target.origin} passes the URL rules; its addresses were not checked")
    passed: tuple[str, ...] = ()
    for answers in lookups:
        # Each connection looks up and checks again, so one bad answer in the sequence is one refused connection.
        checked = rules.check_addresses(answers, chain)
        if isinstance(checked, Denied):
            return _denied(checked)
        passed = checked
    return Verdict(True, "ok", f"{target.origin} at {', '.join(passed)}")


def _policy(changes: object, base: EgressPolicy) -> EgressPolicy:
    if not isinstance(changes, Mapping):
        raise ConfigurationError('"policy" is an object of EgressPolicy fields')
    values: dict[str, Any] = {
        "schemes": base.schemes,
        "allow_cidrs": base.allow_cidrs,
        "deny_cidrs": base.deny_cidrs,
        "nat64_prefixes": base.nat64_prefixes,
        "ports": base.ports,
        "allow_ip_literals": base.allow_ip_literals,
        "max_answers": base.max_answers,
        "internal_hosts": base.internal_hosts,
    }
    for name, value in changes.items():
        if name in _NOT_HERE:
            continue
        known = _POLICY_NAMES.get(name, name)
        if known not in values:
            raise ConfigurationError(f'"policy" has no field {name!r}; write one of {", ".join(values)}')
        values[known] = value
    return EgressPolicy(**values)


def _denied(denied: Denied) -> Verdict:
    return Verdict(False, denied.reason.value, str(denied))


def _bracketed(host: str) -> str:
    """An IPv6 address as a host needs brackets in a URL."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f'"{name}" is a text')
    return value


def _texts(name: str, value: object) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f'"{name}" is a list of texts')
    return value
