"""A payload as the bytes that are stored, signed and sent: bytes stay as they are, anything else becomes JSON once."""

from __future__ import annotations

import json


def payload_bytes(payload: object) -> bytes:
    """The exact bytes. Raises `TypeError` or `ValueError` that says what to write instead.

    Objects become compact JSON in UTF-8 (RFC 8259), without escapes for characters beyond ASCII.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        raise TypeError(
            "payload is a str, which could be text to send as it is or a JSON string: "
            "write payload.encode() to send its characters, or json.dumps(payload).encode() to send a JSON string"
        )
    try:
        return json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise ValueError(f"payload cannot be written as JSON (RFC 8259 has no NaN and no Infinity): {error}") from error
    except TypeError as error:
        raise TypeError(
            f"payload cannot be written as JSON: {error}; write bytes, or dicts, lists, numbers and text"
        ) from error
