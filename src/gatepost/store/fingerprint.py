"""The fingerprint of an idempotency key, which engines on a disk store instead of the key: 16 bytes, whatever its length."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

KEY_BYTES: Final = 16
"""128 bits: among 10^12 keys two meet by chance with a probability of 10^-15."""


def key_fingerprint(tenant: str, key: str) -> bytes:
    """Names (tenant, key)."""
    # The length keeps ("a", "bc") apart from ("ab", "c").
    return blake2b(f"{len(tenant)}:{tenant}{key}".encode(), digest_size=KEY_BYTES).digest()
