"""One client per process and event loop: who is in use where, and whether the process was forked since.

It counts and finds; `net.client` warns of a second one on its loop and refuses to work in a forked child.
"""

from __future__ import annotations

import os
import traceback
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatepost.net.client import DispatchClient

_in_use: weakref.WeakSet[DispatchClient] = weakref.WeakSet()
_used_count = 0
_newest_made_at: list[traceback.FrameSummary] = []
forks = 0
"""How often this process was the child of a fork; read as `one_per_loop.forks`."""


def open_client_count() -> int:
    """Clients in use in this process: the gauge `dispatch_clients_open`."""
    return len(_in_use)


def used_client_count() -> int:
    """Clients that came into use in this process so far: one made per request is closed before anybody can count it."""
    return _used_count


def newest_client_made_at() -> str:
    """Where the client that came into use last was made: lines of its stack."""
    return "".join(traceback.format_list(_newest_made_at))


def register(client: DispatchClient) -> None:
    """`client` is in use on its loop from now on."""
    global _used_count, _newest_made_at
    _used_count += 1
    _newest_made_at = client.made_at
    other = next((other for other in _in_use if other.loop is client.loop), None)
    _in_use.add(client)
    if other is not None:
        client.warn_of_second(
            "a second DispatchClient is in use on this event loop: each has its own pool and limits, so neither holds for "
            "both. Construct one per process and share it.\n"
            f"The first was made here:\n{''.join(traceback.format_list(other.made_at))}"
            f"The second here:\n{''.join(traceback.format_list(client.made_at))}"
        )


def discard(client: DispatchClient) -> None:
    """`client` is closed."""
    _in_use.discard(client)


def _after_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_after_fork)
