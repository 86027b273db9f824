"""Which name is asked for next: a synchronous queue of look-ups, fair between tenants, so that one cannot hold all threads.

It starts nothing and knows no time: `take` names a look-up that may start now, `net.names` runs it and says when it has
ended. A tenant has at most `TENANT_RUNNING_MAX` look-ups running; those that wait go round by tenant, each in order.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

RUNNING_MAX: Final = 256
"""Look-ups running at once, over all tenants: one thread each with the system's resolver."""
TENANT_RUNNING_MAX: Final = 32
"""Look-ups of one tenant running at once. A name whose server hangs holds a thread for 20 to 30 s, longer than anybody waits
for it: without this bound, 256 such names of one tenant would stop every other tenant's new connections."""


class NameQueue:
    """The look-ups that wait, and how many run. Every operation is O(1) in names and tenants.

    Look-ups without a tenant (None) are not limited among themselves, only by `RUNNING_MAX`.
    """

    __slots__ = ("_charged", "_queues", "_ready", "_running")

    def __init__(self) -> None:
        self._queues: dict[str | None, OrderedDict[str, None]] = {}
        """Waiting names by tenant; a name that several tenants wait for stands in the queue of each."""
        self._ready: OrderedDict[str | None, None] = OrderedDict()
        """Tenants that have a name waiting and may start one, the next to be served first."""
        self._running: dict[str | None, int] = {}
        self._charged: dict[str, str | None] = {}
        """Names that run, and the tenant at whose turn they started."""

    @property
    def running_count(self) -> int:
        """Look-ups started and not ended."""
        return len(self._charged)

    def is_running(self, host: str) -> bool:
        """The look-up has started."""
        return host in self._charged

    def put(self, host: str, tenant: str | None) -> None:
        """`tenant` waits for `host`, which does not run. Repeating it changes nothing."""
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = OrderedDict()
            if self._may_start(tenant):
                self._ready[tenant] = None
        queue[host] = None

    def leave(self, host: str, tenant: str | None) -> None:
        """`tenant` no longer waits for `host`; nothing happens when it did not."""
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.pop(host, None)
            if not queue:
                del self._queues[tenant]
                self._ready.pop(tenant, None)

    def take(self) -> str | None:
        """The next name to ask for, which now runs; None when nothing may start. Leave the queues of other tenants by `leave`."""
        if not self._ready or len(self._charged) >= RUNNING_MAX:
            return None
        tenant, _ = self._ready.popitem(last=False)
        queue = self._queues[tenant]
        host, _ = queue.popitem(last=False)
        self._charged[host] = tenant
        self._running[tenant] = self._running.get(tenant, 0) + 1
        if not queue:
            del self._queues[tenant]
        elif self._may_start(tenant):
            self._ready[tenant] = None
        return host

    def ended(self, host: str) -> None:
        """The look-up has ended: its place is free."""
        tenant = self._charged.pop(host)
        left = self._running[tenant] - 1
        if left:
            self._running[tenant] = left
        else:
            del self._running[tenant]
        if tenant in self._queues:
            self._ready.setdefault(tenant)

    def clear(self) -> None:
        """Forget all that waits; what runs is ended one by one."""
        self._queues.clear()
        self._ready.clear()

    def _may_start(self, tenant: str | None) -> bool:
        return tenant is None or self._running.get(tenant, 0) < TENANT_RUNNING_MAX
