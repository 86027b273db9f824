"""Fingerprints of idempotency keys and of what was published under them.

Every engine stores these 16 bytes instead of the key and the payload, so that a repeated publish is told from a different
one under the same key. Called by the stores; it knows no engine.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
"""128 bits: two different ones meet by chance after about 10^19, and both are only compared within one tenant."""


def key_fingerprint(tenant: str, key: str) -> bytes:
    """Names (tenant, key)."""
    # The length keeps ("a", "bc") apart from ("ab", "c").
    owner = tenant.encode()
    return blake2b(b"%d:%b%b" % (len(owner), owner, key.encode()), digest_size=DIGEST_BYTES).digest()


def content_fingerprint(event_type: str, content_type: str, body: bytes) -> bytes:
    """Names what is published: its type, content type and exact bytes."""
    digest = blake2b(
        f"{len(event_type)}:{event_type}{len(content_type)}:{content_type}".encode(), digest_size=DIGEST_BYTES
    )
    digest.update(body)
    return digest.digest()
