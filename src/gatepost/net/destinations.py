"""URLs that were checked, with what is the same in every request to them; a URL costs its check once, not at every attempt.

It decides nothing: the rules are `wire.egress`, asked again after every change of them (`clear`). Used by `net.client`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gatepost.net.pool import Host, Pool
from gatepost.wire.egress import Denied, Target
from gatepost.wire.request import static_head

URLS_MAX: Final = 16_384
"""Checked URLs remembered, with the first lines of their requests; about 1 KiB each. The oldest goes first."""


@dataclass(slots=True)
class Destination:
    """A URL that passed."""

    target: Target
    static: str
    """The first lines of every request to it."""
    host: Host
    """The pool's record for it without a TLS profile."""


class Destinations:
    """The verdicts by URL. `known.get(url)` is the hot path; `check` asks the rules and remembers."""

    __slots__ = ("_check_url", "_pool", "known")

    def __init__(self, check_url: Callable[[str], Target | Denied], pool: Pool) -> None:
        self._check_url = check_url
        self._pool = pool
        self.known: OrderedDict[str, Destination | Denied] = OrderedDict()

    def check(self, url: str) -> Destination | Denied:
        """What the rules say of `url` now. Raises `TypeError` when it is not text."""
        checked = self._check_url(url)
        destination: Destination | Denied
        if isinstance(checked, Denied):
            destination = checked
        else:
            static = static_head("POST", checked.target, checked.authority)
            destination = Destination(checked, static, self._pool.host(checked, None))
        self.known[url] = destination
        if len(self.known) > URLS_MAX:
            self.known.popitem(last=False)
        return destination

    def clear(self) -> None:
        """Forget verdicts of rules that no longer hold."""
        self.known.clear()
