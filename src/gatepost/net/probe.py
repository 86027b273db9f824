"""A flight that ends when the connection is secure: is there somebody whose certificate is right? Sends no request.

Same pool, dialler, limits and egress rules as an attempt, so that it cannot pass what an attempt would not. Run by
`DispatchClient.probe` when an endpoint is registered; observers are not told, since nothing was delivered.
"""

from __future__ import annotations

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import End
from gatepost.net.connection import Connection
from gatepost.net.flight import Flight
from gatepost.wire.reasons import Reason


class Probe(Flight):
    """Ends with reason `ok` when the peer's certificate was accepted, else as an attempt would have."""

    __slots__ = ()

    def _use(self, connection: Connection, now: float) -> None:
        """A connection of the same host and TLS profile was proven when it was opened; it stays in the pool."""
        self.address = connection.address
        self._holds_slot = False
        self._client.pool.give_back(self._host, self._endpoint_id, connection, keep=not connection.closed)
        self._end(End.CANCELLED, Reason.OK)

    def _write(self, connection: Connection, now: float) -> None:
        self._end(End.CANCELLED, Reason.OK)

    def _tell(self, attempt: Attempt) -> None:
        """Nobody."""
