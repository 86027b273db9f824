"""Signs and verifies webhooks after Standard Webhooks 1.0.0: HMAC-SHA256 (`v1`) over `id.timestamp.body`, exactly as sent.

It never parses or re-serialises a body, and keeps no clock: senders give the time, and receivers may. `Signer` serves the
delivery path, `sign` and `verify` everybody else; all of it is standard library only.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import math
import re
from collections.abc import ItemsView, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import SignatureError

SIGNATURE_CODES: Final = frozenset(
    {
        "missing_header",
        "duplicate_header",
        "malformed_id",
        "malformed_timestamp",
        "timestamp_too_old",
        "timestamp_too_new",
        "malformed_signature",
        "no_match",
        "malformed_secret",
    }
)
"""Every `SignatureError.code`. `malformed_signature` means that no `v1` signature is there at all."""

TOLERANCE: Final = 300.0
"""Seconds between the timestamp and now that receivers accept either way: the specification's five minutes."""
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - no secret, but how all of them begin
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
"""The specification's bounds, before base64."""
SECRETS_MAX: Final = 5
"""Secrets used at once, current first. Rotation needs two; every further one costs all receivers a comparison."""

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RECEIVED_ID: Final = re.compile(
    r"[!-\-/-~]{1,255}"
)  # visible ASCII but the full stop, which separates the signed parts
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_WRITE_SECRET: Final = (
    f"a secret is {SECRET_PREFIX!r} and then {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in standard base64 with padding; "
    "new_secret() writes one"
)


class HeaderItems(Protocol):
    """Headers as every framework offers them: a mapping, or an object with `items()`."""

    def items(self) -> ItemsView[str, str] | Iterable[tuple[str, str]]:
        """Name and value pairs."""
        ...


Headers = HeaderItems | Iterable[tuple[str, str] | tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Message:
    """A webhook whose signature holds. `id` is the same in each repetition: use it to drop duplicates."""

    id: str
    timestamp: int
    """Seconds since 1970 when this attempt was signed, by the sender's clock."""
    body: bytes = field(repr=False)


def sign(id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:  # noqa: A002 - the field's own name
    """The three `webhook-…` headers for `body`, with one signature for each secret, in order.

    `timestamp` is seconds since 1970. Raises `SignatureError` ("malformed_secret") for a bad secret, `TypeError` and
    `ValueError` for an id, timestamp or body that cannot be signed.
    """
    return Signer(secrets).headers(id, timestamp, body)


def verify(
    body: bytes, headers: Headers, secrets: Sequence[str], *, tolerance: float = TOLERANCE, now: float | None = None
) -> Message:
    """Check a received webhook and return it, or raise `SignatureError` with one of `SIGNATURE_CODES`.

    `body` is the raw request body. `headers` is any mapping or list of pairs, in any letter case. It is enough that one
    signature matches one secret. `tolerance` and `now` are seconds (since 1970); without `now` the system clock is asked.
    """
    _check_body(body)
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance={tolerance!r}: write seconds, for example {TOLERANCE}")
    if now is None:
        now = SYSTEM_CLOCK.wall_us() / 1e6
    if not math.isfinite(now):  # every comparison with NaN is false, so every age would pass
        raise ValueError(f"now={now!r}: write seconds since 1970, or leave it out")
    signer = Signer(secrets)
    found = _find_headers(headers)
    message_id, timestamp_text, signatures = found[ID_HEADER], found[TIMESTAMP_HEADER], found[SIGNATURE_HEADER]
    if _RECEIVED_ID.fullmatch(message_id) is None:
        _refuse("malformed_id", f"{ID_HEADER} is not 1 to 255 visible ASCII characters without a full stop")
    if _TIMESTAMP.fullmatch(timestamp_text) is None:
        _refuse("malformed_timestamp", f"{TIMESTAMP_HEADER} is not a whole number of seconds since 1970")
    timestamp = int(timestamp_text)
    # The age says nothing that the sender of the header does not know, so it may be checked before the signature.
    if timestamp < now - tolerance:
        _refuse("timestamp_too_old", f"signed {now - timestamp:.0f} s ago, more than the tolerance of {tolerance:g} s")
    if timestamp > now + tolerance:
        _refuse("timestamp_too_new", f"signed {timestamp - now:.0f} s in the future: check this machine's clock")
    given = [text[3:].encode() for text in signatures.split(" ") if text.startswith("v1,") and text.isascii()]
    if not given:
        _refuse("malformed_signature", f"{SIGNATURE_HEADER} holds no signature of version v1")
    matched = False
    # As text: a signature with other padding or unused bits is none of ours, though it may decode to the same bytes.
    for expected in signer.digests(f"{message_id}.{timestamp_text}.".encode(), body):
        for candidate in given:
            matched |= hmac.compare_digest(expected, candidate)
    if not matched:
        _refuse("no_match", "no signature matches: the secret is another one, or the body was changed on its way")
    return Message(message_id, timestamp, bytes(body))


def new_secret(token: bytes) -> str:
    """A secret from 24 to 64 random bytes, for example `new_secret(os.urandom(32))`."""
    if not SECRET_BYTES_MIN <= len(token) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"{len(token)} bytes: give {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random ones, for example 32"
        )
    return SECRET_PREFIX + _base64(token)


def parse_secret(secret: str) -> bytes:
    """The key in a secret. Raises `SignatureError` ("malformed_secret") that does not repeat the secret."""
    if not isinstance(secret, str):
        _refuse("malformed_secret", f"{type(secret).__name__} given: {_WRITE_SECRET}")
    if not secret.startswith(SECRET_PREFIX):
        _refuse("malformed_secret", f"the prefix is missing: {_WRITE_SECRET}")
    text = secret[len(SECRET_PREFIX) :]
    try:
        key = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also for text that is not ASCII
        _refuse("malformed_secret", f"what follows the prefix is no base64: {_WRITE_SECRET}")
    # Unused bits set in the last character decode all the same; two spellings of one secret would not compare equal.
    if _base64(key) != text:
        _refuse("malformed_secret", f"the base64 is not in its one usual spelling: {_WRITE_SECRET}")
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        _refuse("malformed_secret", f"the secret holds {len(key)} bytes: {_WRITE_SECRET}")
    return key


class Signer:
    """One endpoint's secrets, decoded once and ready to sign: about 3 µs for each KiB body. Shows and pickles no secret."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[str]) -> None:
        if isinstance(secrets, str | bytes):
            raise TypeError("secrets is a list: write [secret]")
        keys = [parse_secret(secret) for secret in secrets]
        if not 1 <= len(keys) <= SECRETS_MAX:
            _refuse("malformed_secret", f"{len(keys)} secrets given: write 1 to {SECRETS_MAX}, the current one first")
        self._keys = tuple(_prepare(key) for key in keys)

    def headers(self, id: str, timestamp: int, body: bytes) -> dict[str, str]:  # noqa: A002 - the field's own name
        """As `sign`. Call it for each attempt, just before writing: the timestamp is part of what is signed."""
        _check_body(body)
        if _ID.fullmatch(id) is None:
            raise ValueError(f"{id[:40]!r} is no webhook id: write 1 to 255 letters, digits, hyphens or underscores")
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise TypeError(f"timestamp={timestamp!r}: give whole seconds since 1970")
        text = str(timestamp)
        if _TIMESTAMP.fullmatch(text) is None:
            raise ValueError(f"timestamp={timestamp}: give seconds since 1970, neither negative nor in milliseconds")
        signatures = self.digests(f"{id}.{text}.".encode(), body)
        return {
            ID_HEADER: id,
            TIMESTAMP_HEADER: text,
            SIGNATURE_HEADER: " ".join("v1," + signature.decode() for signature in signatures),
        }

    def digests(self, prefix: bytes, body: bytes) -> list[bytes]:
        """The base64 signatures of `prefix` + `body`, one for each secret."""
        signatures = []
        for prepared_inner, prepared_outer in self._keys:
            inner = prepared_inner.copy()
            inner.update(prefix)
            inner.update(body)
            outer = prepared_outer.copy()
            outer.update(inner.digest())
            signatures.append(binascii.b2a_base64(outer.digest(), newline=False))
        return signatures

    def __repr__(self) -> str:
        return f"<Signer secrets={len(self._keys)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Signer holds secrets and is not pickled; pass the secrets through a SecretBox")


class _Hash(Protocol):
    """What is used of a `hashlib` object."""

    def copy(self) -> _Hash: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


def _prepare(key: bytes) -> tuple[_Hash, _Hash]:
    """The two half-done SHA-256 states of HMAC (RFC 2104 section 4). Copying them halves the cost of `hmac.digest`."""
    padded = key.ljust(_BLOCK_BYTES, b"\0")  # a key is never longer than a block, so it need not be hashed first
    return hashlib.sha256(padded.translate(_INNER)), hashlib.sha256(padded.translate(_OUTER))


def _find_headers(headers: Headers) -> dict[str, str]:
    """The three headers. Each must be there once: of two, nobody knows which one the signature was made for."""
    pairs = headers.items() if hasattr(headers, "items") else headers
    found: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name = (raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name).lower()
        if name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
            if name in found:
                _refuse("duplicate_header", f"{name} is there twice")
            found[name] = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
    for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
        if not found.get(name):
            _refuse("missing_header", f"{name} is missing")
    return found


def _check_body(body: object) -> None:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(
            f"body must be the raw bytes as sent, not {type(body).__name__}: parsing and writing again changes them. Pass "
            "`await request.body()` (Starlette, FastAPI), `request.get_data()` (Flask) or `request.body` (Django)"
        )


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _refuse(code: str, message: str) -> NoReturn:
    raise SignatureError(code, message)
