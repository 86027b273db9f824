"""Sessions of the console: a signed cookie that says who signed in, the tokens of its forms, and portal links.

The cookie holds a random session id, the *id* of the API key (never the key) and when it ends; it is signed with a key derived
from the keys that seal secrets, so that every process of a fleet accepts it, also the next one. Nothing is stored: a session ends
at its time, by signing out in the browser, or when its API key is revoked. Called by `view` and `signin`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from itsdangerous import BadData, URLSafeSerializer

from gatepost.clock import Clock, Entropy

COOKIE: Final = "gatepost_console"
NOTE_COOKIE: Final = "gatepost_console_said"
PATH: Final = "/console"
KEY_SESSION: Final = 12 * 3_600.0
"""Seconds until one signs in again: a shift."""
ANONYMOUS_SESSION: Final = 86_400.0
"""Seconds that a form for signing in works."""
NOTE_SECONDS: Final = 60
"""A message about what was done is shown on the next page, if that comes soon."""
LINK_SECONDS: Final = 3_600.0
LINK_SECONDS_MAX: Final = 7 * 86_400.0
"""A portal link is for looking at something now; whoever needs longer gets an API key, which can be revoked by itself."""
ID_BYTES: Final = 16
COOKIE_CHARS_MAX: Final = 4_096
"""What browsers send at most; longer ones are not verified."""


class Kind(StrEnum):
    """What a session stands on."""

    ANONYMOUS = "a"
    """Nobody signed in; its forms have tokens all the same."""
    KEY = "k"
    """An API key."""
    PORTAL = "p"
    """A portal link: one tenant, read only."""


@dataclass(frozen=True, slots=True)
class Session:
    """One visitor's session."""

    id: str
    """Random; a new one for each sign-in, so that nobody can prepare it."""
    kind: Kind
    expires_at: int
    """UTC microseconds."""
    key_id: str | None = None
    """The API key it stands on; of a portal session the one that made the link. It ends when that key is revoked."""
    tenant: str | None = None
    """Of a portal session."""


class Sessions:
    """Seals and opens cookies, form tokens and portal links.

    `keys`: the newest first, which signs; all are accepted.
    """

    def __init__(self, keys: Sequence[bytes], clock: Clock, entropy: Entropy) -> None:
        self._keys = tuple(keys)
        self._wall_us = clock.wall_us
        self._token = entropy.token
        self._session = self._serializer("session")
        self._link = self._serializer("portal link")
        self._note = self._serializer("note")

    def anonymous(self) -> Session:
        """A session of nobody."""
        return Session(self._new_id(), Kind.ANONYMOUS, self._in(ANONYMOUS_SESSION))

    def signed_in(self, key_id: str) -> Session:
        """A session for whoever showed this key."""
        return Session(self._new_id(), Kind.KEY, self._in(KEY_SESSION), key_id)

    def visiting(self, link: Session) -> Session:
        """A session for whoever followed a portal link."""
        return Session(self._new_id(), Kind.PORTAL, link.expires_at, link.key_id, link.tenant)

    def seal(self, session: Session) -> str:
        """The cookie's value."""
        return _text(self._session.dumps(_values(session)))

    def open(self, cookie: str | None) -> Session | None:
        """The session of a cookie; None when it is not ours, was altered, or has ended."""
        return self._read(self._session, cookie)

    def portal_link(self, tenant: str, key_id: str, seconds: float) -> tuple[str, int]:
        """A link's token, and when it ends in UTC microseconds. It opens `tenant`'s pages while the key `key_id` exists."""
        link = Session(self._new_id(), Kind.PORTAL, self._in(seconds), key_id, tenant)
        return _text(self._link.dumps(_values(link))), link.expires_at

    def open_link(self, token: str) -> Session | None:
        """What a portal link stands for; None when it is not ours, was altered, or has ended."""
        return self._read(self._link, token)

    def seal_note(self, text: str) -> str:
        """A message for the next page."""
        return _text(self._note.dumps(text))

    def open_note(self, cookie: str | None) -> str | None:
        """That message; None when there is none of ours."""
        note = _load(self._note, cookie)
        return note if isinstance(note, str) else None

    def form_token(self, session: Session) -> str:
        """What a form of this session carries (a cross-site request cannot know it)."""
        return self._form_token(self._keys[0], session)

    def is_form_token(self, session: Session, token: str) -> bool:
        """Whether a form is of this session."""
        given = token.encode("utf-8", "surrogatepass")
        known = [self._form_token(key, session).encode() for key in self._keys]
        return any([hmac.compare_digest(one, given) for one in known])  # noqa: C419 - no early end

    def _read(self, serializer: URLSafeSerializer, text: str | None) -> Session | None:
        values = _load(serializer, text)
        if not isinstance(values, dict):
            return None
        session = _session(values)
        return session if session is not None and session.expires_at > self._wall_us() else None

    def _new_id(self) -> str:
        return self._token(ID_BYTES).hex()

    def _in(self, seconds: float) -> int:
        return self._wall_us() + round(seconds * 1e6)

    def _serializer(self, purpose: str) -> URLSafeSerializer:
        return URLSafeSerializer(
            list(reversed(self._keys)),  # the library wants the newest last
            salt=f"gatepost console {purpose}",
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    @staticmethod
    def _form_token(key: bytes, session: Session) -> str:
        return hmac.new(key, b"gatepost console form\0" + session.id.encode(), hashlib.sha256).hexdigest()


def _values(session: Session) -> dict[str, Any]:
    return {
        "i": session.id,
        "t": session.kind.value,
        "x": session.expires_at,
        "k": session.key_id,
        "n": session.tenant,
    }


def _session(values: Mapping[str, Any]) -> Session | None:
    """The signature says that we wrote it; another version of us may have."""
    try:
        return Session(values["i"], Kind(values["t"]), int(values["x"]), values["k"], values["n"])
    except (KeyError, ValueError, TypeError):
        return None


def _load(serializer: URLSafeSerializer, text: str | None) -> object:
    if not text or len(text) > COOKIE_CHARS_MAX:
        return None
    try:
        return serializer.loads(text)
    except BadData:
        return None


def _text(sealed: str | bytes) -> str:
    return sealed if isinstance(sealed, str) else sealed.decode()
