"""Decides whether a redirect may be followed, and where to: 307 and 308 only, since every other one turns the POST into a GET.

Off unless the policy says so. A hop is judged by the same egress rules as a registered URL, never leads from https to http,
and stays on its origin unless allowed. It connects to nothing; `net.flight` asks and carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from gatepost.wire.egress import Denied, Target
from gatepost.wire.reasons import Reason

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Statuses that ask for another request (RFC 9110 section 15.4). 300 and 304 do not."""
FOLLOWED: Final = frozenset({307, 308})
"""Those that keep method and body."""

_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def next_hop(
    status: int,
    locations: Sequence[str],
    base: Target,
    check_url: Callable[[str], Target | Denied],
    *,
    hops: int,
    limit: int,
    cross_origin: bool,
) -> Target | Denied | Reason:
    """Where to go from `base`; `Denied` when the rules refuse the place, a `Reason` when the redirect itself may not be followed.

    `locations` are the values of all Location fields, `hops` the redirects followed so far.
    """
    if len(set(locations)) != 1:
        return Reason.URL_MALFORMED
    location = locations[0]
    if not location.isascii():
        return Denied(Reason.URL_NON_ASCII, "a Location is ASCII (RFC 3986)", "Location", "Percent-encode it as UTF-8.")
    target = check_url(resolve(base, location))
    if isinstance(target, Denied):
        return target
    if base.scheme == "https" and target.scheme == "http":
        return Reason.REDIRECT_SCHEME_DOWNGRADE
    if target.origin != base.origin and not cross_origin:
        return Reason.REDIRECT_CROSS_ORIGIN
    if status not in FOLLOWED:
        return Reason.REDIRECT_METHOD_CHANGE
    if hops >= limit:
        return Reason.REDIRECT_LIMIT
    return target


def resolve(base: Target, location: str) -> str:
    """The absolute URL that `location` means, as text for `check_url` (RFC 3986 section 5.2). Forgives nothing."""
    if _ABSOLUTE.match(location):
        return location
    if location.startswith("//"):
        return f"{base.scheme}:{location}"
    origin = f"{base.scheme}://{base.authority}"
    if location.startswith("/"):
        return origin + _without_dots(location)
    path = base.target.partition("?")[0]
    if not location or location.startswith("?"):
        return origin + path + location
    return origin + _without_dots(path[: path.rindex("/") + 1] + location)


def _without_dots(target: str) -> str:
    """Path and query with `.` and `..` taken out of the path (RFC 3986 section 5.2.4)."""
    path, mark, rest = re.fullmatch(r"([^?#]*)([?#]?)(.*)", target, re.DOTALL).groups()  # type: ignore[union-attr]  # matches all
    kept: list[str] = []
    parts = path.split("/")[1:]
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    if parts[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept) + mark + rest
