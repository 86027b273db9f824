"""Seals endpoint secrets before they reach a disk: AES-256-GCM, the key's id in the value, its place as associated data.

A sealed value opens only for the tenant, endpoint and field it was sealed for, so that rows cannot be swapped. Several keys
may be given: the first writes, all read. Called by the engines; the only importer of `cryptography`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gatepost.clock import SYSTEM_ENTROPY, Entropy
from gatepost.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
"""AES-256."""
NONCE_BYTES: Final = 12
"""NIST SP 800-38D section 8.2.2: random nonces of 96 bits allow 2^32 values per key."""
_FORMAT: Final = "gp1"
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_HOW: Final = "write ID:BASE64 with 32 random bytes in base64, for example what SecretBox.new_key() returns"


class Place(NamedTuple):
    """Where a sealed value lives; it opens nowhere else."""

    tenant: str
    endpoint: str
    field: str


class SecretBox:
    """Seals and opens short texts.

    `keys` are texts `id:base64` (32 bytes); the first seals. Raises `ConfigurationError` for a malformed or repeated key, for
    none at all, and when the package `cryptography` is missing.
    """

    __slots__ = ("_ciphers", "_entropy", "_origin", "_roots", "_writer")

    def __init__(
        self, keys: Sequence[str], *, entropy: Entropy = SYSTEM_ENTROPY, origin: str = "the setting `keys`"
    ) -> None:
        _check_installed()
        raw = _raw_keys(keys, origin)
        self._ciphers: Mapping[str, AESGCM] = _ciphers(raw)
        self._roots = tuple(_derived(key, "root") for key in raw.values())
        self._writer = next(iter(self._ciphers))
        self._entropy = entropy
        self._origin = origin

    def __repr__(self) -> str:
        return f"SecretBox(key ids {', '.join(self._ciphers)}; {self._writer} seals)"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys held, the sealing one first."""
        return tuple(self._ciphers)

    @property
    def origin(self) -> str:
        """Where the keys came from, for messages."""
        return self._origin

    def seal(self, text: str, place: Place) -> str:
        """The sealed form of `text`: ASCII, three fields joined by colons."""
        nonce = self._entropy.token(NONCE_BYTES)
        sealed = self._ciphers[self._writer].encrypt(nonce, text.encode(), _associated(place))
        return f"{_FORMAT}:{self._writer}:{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: Place) -> str:
        """The text again.

        Raises `ConfigurationError` when its key is not among the keys, `StoreError` when it was sealed for another place, by
        another key of that id, or was altered.
        """
        from cryptography.exceptions import InvalidTag

        form, key_id, data = _split(sealed)
        if form != _FORMAT:
            raise StoreError(f"a secret of endpoint {place.endpoint} is not in the sealed form {_FORMAT}:ID:DATA")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise ConfigurationError(
                f"a secret of endpoint {place.endpoint} is sealed with key {key_id!r}, which is not in {self._origin} "
                f"(it has {', '.join(self._ciphers)}): add that key after the first, or restore the key file"
            )
        try:
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _associated(place)).decode()
        except (InvalidTag, ValueError):
            raise StoreError(
                f"a secret of endpoint {place.endpoint} ({place.field}) does not open with key {key_id!r}: the key of that id "
                f"in {self._origin} is not the one that sealed it, or the value was altered or moved"
            ) from None

    def derive(self, purpose: str) -> tuple[bytes, ...]:
        """A key for another use from each key held, the sealing one's first: 32 bytes that tell nothing of it or of other uses.

        Every process with the same keys derives the same (HMAC-SHA256 of a uniformly random key, as the expansion of RFC 5869).
        """
        return tuple(_derived(root, purpose) for root in self._roots)

    @staticmethod
    def new_key(entropy: Entropy = SYSTEM_ENTROPY) -> str:
        """A fresh key in the form that `keys` takes."""
        return f"k{entropy.token(4).hex()}:{base64.b64encode(entropy.token(KEY_BYTES)).decode()}"

    @classmethod
    def for_sqlite(cls, path: str | os.PathLike[str], *, entropy: Entropy = SYSTEM_ENTROPY) -> SecretBox:
        """The keys in `<path>.key`, a file that only its owner may read; created with one fresh key when missing.

        Raises `ConfigurationError` when others may read the file, since then the secrets are not secret.
        """
        file = Path(f"{os.fspath(path)}.key")
        if not file.exists():
            _create_private(file, cls.new_key(entropy) + "\n", entropy)
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise ConfigurationError(f"{file} may be read by others (mode {mode:o}): run chmod 600 {file}")
        lines = (line.strip() for line in file.read_text().splitlines())
        return cls([line for line in lines if line and not line.startswith("#")], entropy=entropy, origin=str(file))


def _check_installed() -> None:
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "sealing endpoint secrets needs the package cryptography: pip install 'gatepost[dispatch]'"
        ) from None


def _ciphers(keys: Mapping[str, bytes]) -> dict[str, AESGCM]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return {key_id: AESGCM(raw) for key_id, raw in keys.items()}


def _raw_keys(keys: Iterable[str], origin: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for place, key in enumerate(keys, 1):
        key_id, separator, encoded = key.strip().partition(":")
        raw = _decode(encoded)
        # The key itself is never shown, only which one it is.
        if not separator or not _KEY_ID.fullmatch(key_id) or raw is None or len(raw) != KEY_BYTES:
            raise ConfigurationError(f"key {place} of {origin} is malformed: {_HOW}")
        if key_id in found:
            raise ConfigurationError(f"{origin} holds two keys with the id {key_id!r}: give each its own")
        found[key_id] = raw
    if not found:
        raise ConfigurationError(f"{origin} holds no key: {_HOW}")
    return found


def _derived(key: bytes, purpose: str) -> bytes:
    return hmac.new(key, b"gatepost derived key\0" + purpose.encode(), hashlib.sha256).digest()


def _associated(place: Place) -> bytes:
    # Lengths keep ("a", "bc", …) apart from ("ab", "c", …).
    return b"".join(b"%d:%b" % (len(part), part) for part in (text.encode() for text in place))


def _split(sealed: str) -> tuple[str, str, bytes]:
    form, _, rest = sealed.partition(":")
    key_id, _, encoded = rest.partition(":")
    return form, key_id, _decode(encoded) or b""


def _decode(encoded: str) -> bytes | None:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None


def _create_private(file: Path, text: str, entropy: Entropy) -> None:
    """Create a file of mode 0600 whole or not at all; when another process was first, its file stays."""
    draft = file.with_name(f"{file.name}.{entropy.token(4).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            pass
        # The name too must outlive a power failure: without the key no secret in the database opens again.
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigurationError(f"cannot create the key file {file}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
