"""Puts the answers of several processes together: who can be asked from here, who could not, and what only a comparison shows.

Pure; the command does the asking. An address that means "this machine" is only followed when that machine is this one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.finding import Finding, Severity, shortened


@dataclass(frozen=True, slots=True)
class ToAsk:
    """A process of the fleet that did not answer yet. `url` None: it cannot be asked from here, and `why`."""

    name: str
    url: str | None
    why: str = ""


def others_to_ask(document: Mapping[str, Any], asked_at: str) -> list[ToAsk]:
    """The other processes that a first answer (`GET /v1/doctor` at `asked_at`) names, and where each can be asked."""
    known = {document["answered_by"], *(one["answered_by"] for one in document.get("siblings", ()))}
    machine = document["process"]["machine"]
    on_this_machine = _is_local(asked_at)
    found = []
    for node in (document.get("fleet") or {}).get("nodes", ()):
        name, address = str(node["name"]), node["address"]
        if name in known:
            continue
        if address is None or _is_unspecified(address):
            found.append(ToAsk(name, None, "it tells no address that others can use"))
        elif _is_local(address) and not (on_this_machine and _is_of(name, machine)):
            found.append(ToAsk(name, None, "its page is for its own machine: ask there"))
        else:
            found.append(ToAsk(name, str(address)))
    return found


def _is_of(name: str, machine: str) -> bool:
    """A process' name is its machine's, its number where there are several, and a random end (`service.child.Place`)."""
    return re.fullmatch(rf"{re.escape(machine)}(\.[0-9]+)?-[0-9a-f]+", name) is not None


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_local(url: str) -> bool:
    host = _host(url)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_unspecified(url: str) -> bool:
    try:
        return ipaddress.ip_address(_host(url)).is_unspecified
    except ValueError:
        return False


def unreachable(failed: Sequence[tuple[str, str]]) -> Finding | None:
    """Processes that are alive by the store and did not answer."""
    if not failed:
        return None
    return Finding(
        Code.PROCESS_UNREACHABLE,
        Severity.WARNING,
        "A process that is alive by its heartbeats did not answer: what is wrong with it is not known.",
        shortened([f"{name}: {why}" for name, why in failed]),
        "Ask it on its own machine; if it does not answer there either, its event loop hangs: take a stack of it and restart it.",
    )


COMPARED: Final = ("phases", "attempt_budget", "keepalive_expiry", "follow_redirects")
"""Limits that all processes have alike; slots and connections follow each machine's open files."""


def limits_differ(processes: Sequence[Mapping[str, Any]]) -> Finding | None:
    """A fleet that was restarted in part runs two policies, and none may be that of a file which is several deployments ahead.

    `processes` may hold a file's limits under its name.
    """
    limits = {str(process["node"]): _flat(process["limits"]) for process in processes}
    different = [name for name in _flat_names(limits) if len({str(one.get(name)) for one in limits.values()}) > 1]
    if not different:
        return None
    by_text: dict[str, list[str]] = {}
    for node, one in limits.items():
        by_text.setdefault(", ".join(f"{name}={one.get(name)}" for name in different), []).append(node)
    return Finding(
        Code.LIMITS_DIFFER,
        Severity.NOTICE,
        "Processes run with different limits, or not with those of the file.",
        shortened([f"{', '.join(nodes)}: {text}" for text, nodes in by_text.items()]),
        "Restart what runs older limits, or finish the rollout of the policy (`gatepost rollout status`). A canary, and what "
        "`gatepost policy` set, differ on purpose.",
    )


def _flat(limits: Mapping[str, Any]) -> dict[str, Any]:
    phases = {f"phase {name}": seconds for name, seconds in limits[COMPARED[0]].items()}
    return {**phases, **{name: limits[name] for name in COMPARED[1:]}}


def _flat_names(limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in limits.values() for name in one))
