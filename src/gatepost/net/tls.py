"""TLS contexts by profile, and handshake failures by code. There is no way to turn certificate checks off.

A self-signed receiver is served by pinning: give its certificate as `ca_pem`. One context serves all endpoints without a
profile; others are kept in a bounded cache, since building one costs up to 30 ms (public bundle) and 0.9 MiB.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import tempfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gatepost.errors import ConfigurationError
from gatepost.wire.egress import Target
from gatepost.wire.reasons import Reason

CONTEXTS_MAX: Final = 512
"""Contexts of profiles kept at once, 0.1 MiB each with a private CA; the one unused for longest goes first."""
BUILDERS: Final = 2
"""Threads that build contexts: 1 ms each with a private CA, 30 ms with the public bundle. The loop would stand still so long."""


@dataclass(frozen=True, slots=True)
class TLSProfile:
    """How to speak TLS to one endpoint. Key material is never shown by `repr`.

    Raises `ConfigurationError` when a part is missing. What cannot be read is refused by `TLSContexts.get`, before anything
    is sent.
    """

    ca_pem: str | bytes | None = field(default=None, repr=False)
    """Certificates that replace the public store for this endpoint."""
    client_cert_pem: str | bytes | None = field(default=None, repr=False)
    client_key_pem: str | bytes | None = field(default=None, repr=False)
    x509_strict: bool = True
    """RFC 5280 checks of `VERIFY_X509_STRICT`; a private CA with old certificates may need False."""

    def __post_init__(self) -> None:
        if (self.client_cert_pem is None) != (self.client_key_pem is None):
            raise ConfigurationError("a client certificate needs both client_cert_pem and client_key_pem")


def check_profile(target: Target, profile: TLSProfile) -> None:
    """Raises `ConfigurationError` (a `ValueError`) for a client certificate that a plain request would never show."""
    if target.scheme == "http" and profile.client_cert_pem is not None:
        raise ConfigurationError(
            f"{target.origin} is plain http, where no client certificate is shown: write https://, or leave the certificate out"
        )


@dataclass(frozen=True, slots=True)
class SystemStore:
    """Where the system keeps the certificates it trusts: a file, a directory of hashed names, or both."""

    file: str
    directory: str

    @classmethod
    def of_openssl(cls) -> SystemStore:
        """As OpenSSL was built. By explicit path: SSL_CERT_FILE and SSL_CERT_DIR must not change whom we trust."""
        paths = ssl.get_default_verify_paths()
        return cls(paths.openssl_cafile, paths.openssl_capath)


class TLSContexts:
    """One context per profile, built on first use in a thread."""

    def __init__(self, store: SystemStore | None = None) -> None:
        self._store = SystemStore.of_openssl() if store is None else store
        self._shared: ssl.SSLContext | None = None
        self._by_profile: OrderedDict[TLSProfile, ssl.SSLContext] = OrderedDict()
        self._building: dict[TLSProfile | None, asyncio.Future[ssl.SSLContext]] = {}
        self._executor: ThreadPoolExecutor | None = None

    def cached(self, profile: TLSProfile | None) -> ssl.SSLContext | None:
        """The context of a profile if it is here already."""
        if profile is None:
            return self._shared
        context = self._by_profile.get(profile)
        if context is not None:
            self._by_profile.move_to_end(profile)
        return context

    def get(self, profile: TLSProfile | None) -> ssl.SSLContext:
        """The context of a profile, built here and now if need be. Raises as `build`."""
        return self.cached(profile) or self._keep(profile, _build(profile or TLSProfile(), self._store))

    async def build(self, profile: TLSProfile | None) -> ssl.SSLContext:
        """The context of a profile, built in a thread if need be, once for all who wait.

        Raises `ConfigurationError` for certificates or keys that cannot be read, and when the system has no certificates.
        """
        context = self.cached(profile)
        if context is not None:
            return context
        future = self._building.get(profile)
        if future is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(BUILDERS, thread_name_prefix="gatepost-tls")
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._executor, _build, profile or TLSProfile(), self._store)
            self._building[profile] = future
            future.add_done_callback(lambda done: self._built(profile, done))
        # Shielded: whoever is cancelled only stops waiting.
        return await asyncio.shield(future)

    def unverifying(self) -> int:
        """Contexts that do not check certificate or name. There is no way to ask for one, so anything but 0 is somebody's tampering."""
        known = [*self._by_profile.values(), *(() if self._shared is None else (self._shared,))]
        return sum(not one.check_hostname or one.verify_mode is not ssl.CERT_REQUIRED for one in known)

    def close(self) -> None:
        """Let the threads end."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def _built(self, profile: TLSProfile | None, done: asyncio.Future[ssl.SSLContext]) -> None:
        self._building.pop(profile, None)
        if not done.cancelled() and done.exception() is None:
            self._keep(profile, done.result())

    def _keep(self, profile: TLSProfile | None, context: ssl.SSLContext) -> ssl.SSLContext:
        if profile is None:
            self._shared = context
        else:
            self._by_profile[profile] = context
            if len(self._by_profile) > CONTEXTS_MAX:
                self._by_profile.popitem(last=False)
        return context


_NO_PASSWORD: Final = ""
"""Without one, OpenSSL asks the terminal for the password of an encrypted key, and the event loop waits for the answer."""


def _build(profile: TLSProfile, store: SystemStore) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["http/1.1"])
    if profile.client_cert_pem is None:
        # In TLS 1.2 a peer could make us begin handshake after handshake. Some ask for the client certificate that way.
        context.options |= ssl.OP_NO_RENEGOTIATION
    # Explicit on every Python, so that an upgrade changes nothing: 3.13 sets both by default.
    strict = ssl.VERIFY_X509_STRICT if profile.x509_strict else ssl.VerifyFlags(0)
    context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST | strict
    if profile.ca_pem is None:
        _load_system_store(context, store)
    else:
        _load_private_authority(context, profile.ca_pem)
    if profile.client_cert_pem is not None and profile.client_key_pem is not None:
        _load_client_certificate(context, profile.client_cert_pem, profile.client_key_pem)
    return context


_HASHED_NAME: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""A certificate in a directory that OpenSSL looks into (openssl-rehash)."""


def _load_system_store(context: ssl.SSLContext, store: SystemStore) -> None:
    """Without any certificate every receiver would seem to have an unknown authority, and its owner would be told to mend it."""
    try:
        hashed = any(map(_HASHED_NAME.fullmatch, os.listdir(store.directory)))
    except OSError:
        hashed = False
    file = store.file if os.path.isfile(store.file) else None
    try:
        if file is not None or hashed:
            context.load_verify_locations(cafile=file, capath=store.directory if hashed else None)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"the system's certificates in {store.file} cannot be read: mend the file (often the package ca-certificates), "
            "or give the endpoint its own authority as ca_pem"
        ) from error
    if not hashed and not context.cert_store_stats()["x509_ca"]:
        raise ConfigurationError(
            f"the system has no certificates in {store.file} or {store.directory}: install the package ca-certificates, "
            "or give the endpoint its own authority as ca_pem"
        )


def _load_private_authority(context: ssl.SSLContext, ca_pem: str | bytes) -> None:
    pem = ca_pem if isinstance(ca_pem, bytes) else ca_pem.encode("ascii", "replace")
    try:
        # Python takes ASCII only, but comments between certificates may be anything.
        context.load_verify_locations(cadata=pem.decode("ascii", "replace").replace("\ufffd", "?"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            "ca_pem holds no readable certificate: write PEM, from -----BEGIN CERTIFICATE-----"
        ) from error


def _load_client_certificate(context: ssl.SSLContext, certificate: str | bytes, key: str | bytes) -> None:
    """`load_cert_chain` reads files only: an anonymous one where the system has it, else one that is gone at once."""
    # Never a UnicodeEncodeError, which would carry the whole key: what is not ASCII is no PEM, and OpenSSL says so.
    pem = b"\n".join(
        part if isinstance(part, bytes) else part.encode("ascii", "replace") for part in (key, certificate)
    )
    try:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("gatepost-client-cert", os.MFD_CLOEXEC)
            try:
                os.write(handle, pem)
                context.load_cert_chain(f"/proc/self/fd/{handle}", password=_NO_PASSWORD)
            finally:
                os.close(handle)
        else:
            with tempfile.NamedTemporaryFile() as file:  # mode 0600
                file.write(pem)
                file.flush()
                context.load_cert_chain(file.name, password=_NO_PASSWORD)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            "client_cert_pem and client_key_pem are no matching pair of PEM certificate and key: write a key without password"
        ) from error


_BY_VERIFY_CODE: Final = {
    2: Reason.TLS_CERT_UNKNOWN_CA,
    3: Reason.TLS_CERT_REVOKED,
    9: Reason.TLS_CERT_NOT_YET_VALID,
    10: Reason.TLS_CERT_EXPIRED,
    11: Reason.TLS_CERT_REVOKED,
    12: Reason.TLS_CERT_REVOKED,
    18: Reason.TLS_CERT_SELF_SIGNED,
    19: Reason.TLS_CERT_UNKNOWN_CA,
    20: Reason.TLS_CERT_UNKNOWN_CA,
    21: Reason.TLS_CERT_UNKNOWN_CA,
    23: Reason.TLS_CERT_REVOKED,
    26: Reason.TLS_CERT_INVALID_PURPOSE,
    33: Reason.TLS_CERT_REVOKED,
    62: Reason.TLS_HOSTNAME_MISMATCH,
    64: Reason.TLS_HOSTNAME_MISMATCH,
    66: Reason.TLS_CERT_WEAK,
    67: Reason.TLS_CERT_WEAK,
    68: Reason.TLS_CERT_WEAK,
    **dict.fromkeys((22, 25, 32, 34, 37, 41, 47, 48, *range(79, 95)), Reason.TLS_CERT_MALFORMED),
}
"""OpenSSL's X509_V_ERR codes (x509_vfy.h)."""

_BY_OPENSSL_REASON: Final = {
    "TLSV1_ALERT_PROTOCOL_VERSION": Reason.TLS_PROTOCOL_VERSION,
    "UNSUPPORTED_PROTOCOL": Reason.TLS_PROTOCOL_VERSION,
    "WRONG_SSL_VERSION": Reason.TLS_PROTOCOL_VERSION,
    "WRONG_VERSION_NUMBER": Reason.TLS_NOT_TLS,
    "HTTP_REQUEST": Reason.TLS_NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": Reason.TLS_NOT_TLS,
    "RECORD_LAYER_FAILURE": Reason.TLS_NOT_TLS,
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": Reason.TLS_NO_HTTP1,
    "NO_APPLICATION_PROTOCOL": Reason.TLS_NO_HTTP1,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": Reason.TLS_CLIENT_CERT_REQUIRED,
    "TLSV1_ALERT_UNKNOWN_CA": Reason.TLS_CLIENT_CERT_REJECTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": Reason.TLS_CLIENT_CERT_REJECTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": Reason.TLS_CLIENT_CERT_REJECTED,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": Reason.TLS_CLIENT_CERT_REJECTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": Reason.TLS_CLIENT_CERT_REJECTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": Reason.TLS_CLIENT_CERT_REJECTED,
    "TLSV1_ALERT_ACCESS_DENIED": Reason.TLS_CLIENT_CERT_REJECTED,
    "TOO_MANY_KEY_UPDATES": Reason.RESPONSE_PROTOCOL_ERROR,
}


_ALERT_RECORD: Final = b"\x15\x03"
_NO_APPLICATION_PROTOCOL: Final = 120
"""RFC 7301 section 3.2. Python has no name for this alert, so it is read from the record."""


def tls_reason(error: ssl.SSLError, received: bytes = b"") -> Reason:
    """The class of a TLS failure, by code and never by text. `received` is what the peer sent last."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_VERIFY_CODE.get(error.verify_code, Reason.TLS_CERT_INVALID)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Reason.TLS_CONNECTION_CLOSED
    if not error.reason and received[-7:-5] == _ALERT_RECORD and received[-1] == _NO_APPLICATION_PROTOCOL:
        return Reason.TLS_NO_HTTP1
    return _BY_OPENSSL_REASON.get(error.reason, Reason.TLS_HANDSHAKE_FAILURE)
