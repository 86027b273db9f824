"""A flight that asks instead of delivering: `OPTIONS` without a body, by which a receiver may say how it is but takes nothing in.

Same pool, dialler, limits and egress rules as an attempt, so that what it meets is what an attempt would meet. Run by
`DispatchClient.inquire` for whoever looks for a fault; observers are not told, since nothing was delivered.
"""

from __future__ import annotations

from gatepost.delivery.attempt import Attempt
from gatepost.net.flight import Flight
from gatepost.wire.egress import Target
from gatepost.wire.request import static_head


def inquiry_head(target: Target, user_agent: str) -> bytes:
    """The head of the request. OPTIONS is safe (RFC 9110 section 9.2.1), and its answer may have a body like any other, which that
    of HEAD may not."""
    head = static_head("OPTIONS", target.target, target.authority)
    return f"{head}user-agent: {user_agent}\r\ncontent-length: 0\r\n\r\n".encode("ascii")


class Inquiry(Flight):
    """Ends as an attempt does."""

    __slots__ = ()

    def _tell(self, attempt: Attempt) -> None:
        """Nobody."""
