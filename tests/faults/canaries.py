"""Secrets that can be recognised wherever they turn up: one canary per kind, and the search for them in any text or bytes."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

import trustme

from gatepost.net.tls import TLSProfile

WORD = "canary7391"
"""In every canary; some carry it in another form, see `FORMS`."""
SIGNING_KEY = (WORD + "signing").encode() * 2
SIGNING_SECRET = "whsec_" + base64.b64encode(SIGNING_KEY).decode()
HEADERS = {"Authorization": f"Bearer {WORD}header", "X-Token": f"{WORD}value"}
PATH = f"hook/{WORD}path?token={WORD}query&x=1"
USERINFO = f"{WORD}user:{WORD}password@"
API_KEY = f"{WORD}-api-key-0123456789abcdef"
STORE_KEY_BYTES = (WORD + "storekey").encode().ljust(32, b"k")
STORE_KEY = "k1:" + base64.b64encode(STORE_KEY_BYTES).decode()


def client_certificate() -> tuple[TLSProfile, str]:
    """A profile with a client key, and a line from the middle of the key."""
    authority = trustme.CA()
    leaf = authority.issue_cert("client@hook.example.com")
    key = leaf.private_key_pem.bytes()
    lines = [line for line in key.decode().splitlines() if line and not line.startswith("-----")]
    profile = TLSProfile(
        ca_pem=authority.cert_pem.bytes(), client_cert_pem=leaf.cert_chain_pems[0].bytes(), client_key_pem=key
    )
    return profile, lines[len(lines) // 2]


FORMS: tuple[str, ...] = (
    WORD,
    base64.b64encode(SIGNING_KEY).decode(),
    base64.b64encode(SIGNING_KEY).decode()[:24],
    SIGNING_KEY.hex(),
    base64.b64encode(STORE_KEY_BYTES).decode()[:24],
)
"""How a secret may be disguised: as it is, as the text a signing secret has, as its bytes in hex."""


@dataclass
class Haystack:
    """Everything that was said, with where."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, what: object) -> None:
        """Keep a text, bytes or the ways in which an object shows itself."""
        if isinstance(what, bytes):
            self.said.append((where, what.decode("latin-1")))
        elif type(what) is str:  # not a `Secret`, which is one too: it must show itself as a mask
            self.said.append((where, what))
        else:
            self.said.append((where, f"{what!r}\n{what!s}\n{what:}"))

    def add_error(self, where: str, error: BaseException) -> None:
        """Keep an exception with its chain and traceback."""
        self.said.append((where, "".join(traceback.format_exception(error))))
        self.add(where, repr(error))
        self.add(where, repr(error.args))

    def add_records(self, where: str, records: Iterable[logging.LogRecord]) -> None:
        """Keep log records with their tracebacks."""
        formatter = logging.Formatter()
        for record in records:
            self.said.append((where, formatter.format(record)))

    def found(self, *more: str) -> list[tuple[str, str]]:
        """Where a canary was found, with some text around it."""
        hits = []
        for where, text in self.said:
            for form in (*FORMS, *more):
                at = text.find(form)
                if at >= 0:
                    hits.append((where, text[max(0, at - 60) : at + 60]))
        return hits
