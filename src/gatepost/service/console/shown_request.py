"""The request of an attempt as it went out, put together again from what is known, with everything secret masked.

The log of attempts keeps no headers, so this is what the endpoint's record of today makes of it: a page says so when the record
has changed since. Signatures and the values of the endpoint's own headers are never shown. Pure; called by the delivery page.
"""

from __future__ import annotations

from gatepost.delivery.records import Endpoint
from gatepost.net.client import USER_AGENT
from gatepost.service.api.views import MASK
from gatepost.wire.request import request_head, static_head

SIGNATURE_MASKED = f"v1,{MASK}"


def shown_request(
    endpoint: Endpoint, authority: str, target: str, webhook_id: str, sent_at: int, content_type: str, length: int
) -> str:
    """The head of the request, a header a line. `sent_at` is UTC microseconds, `length` the payload's bytes."""
    signatures = [secret for secret in endpoint.secrets if secret.expires_at is None or secret.expires_at > sent_at]
    headers = {
        **dict.fromkeys(endpoint.headers, MASK),
        "webhook-id": webhook_id,
        "webhook-timestamp": str(sent_at // 1_000_000),
        "webhook-signature": " ".join([SIGNATURE_MASKED] * max(1, len(signatures))),
    }
    head = request_head(static_head("POST", target, authority), USER_AGENT, content_type, length, headers)
    return head.decode("ascii").replace("\r\n", "\n").rstrip("\n")
