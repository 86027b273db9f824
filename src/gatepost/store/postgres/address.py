"""What a `postgresql://` URL says: where to connect, how the server's connections are pooled, and what may be shown of it.

Read once, when a store opens. `pooling=transaction` is ours and is taken out of the URL; everything else is the driver's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gatepost.errors import ConfigurationError

Pooling = Literal["session", "transaction"]
SCHEMES: Final = ("postgresql", "postgres")
_OPTION: Final = "pooling"
_HELP: Final = (
    "write postgresql://user:password@host:5432/database; behind a PgBouncer that pools by transaction add "
    "?pooling=transaction"
)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database, as a URL names it."""

    url: str = field(repr=False)
    """For the driver; holds the password."""
    place: str
    """For messages: without user, password and options."""
    pooling: Pooling
    """`transaction`: connections are shared by statement, so there are no prepared statements, no session lock and no LISTEN."""


def postgres_address(url: str) -> PostgresAddress:
    """The address of a URL. Raises `ConfigurationError` saying what to write."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(f"this URL does not name a PostgreSQL database: {_HELP}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    chosen = [value for name, value in options if name == _OPTION]
    pooling: Pooling
    if chosen in ([], ["session"]):
        pooling = "session"
    elif chosen == ["transaction"]:
        pooling = "transaction"
    else:
        raise ConfigurationError(f"{_OPTION}={chosen[-1]}: write {_OPTION}=transaction or {_OPTION}=session")
    if not parts.path.strip("/") and "dbname" not in dict(options) and "database" not in dict(options):
        raise ConfigurationError(f"this URL names no database: {_HELP}")
    if "@" in parts.path:  # else a part of the password is taken for the database's name, and shown
        raise ConfigurationError(f"this URL has a / before its @: write %2F for it in user or password, {_HELP}")
    rest = [option for option in options if option[0] != _OPTION]
    try:
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise ConfigurationError(f"the port of this URL is not a number up to 65535: {_HELP}") from None
    host = parts.hostname or dict(options).get("host", "localhost")
    return PostgresAddress(_with_options(url, rest), f"{parts.scheme}://{host}{port}{parts.path}", pooling)


def libpq_url(url: str, known: Collection[str]) -> str:
    """The URL for a driver made of libpq, whose options are `known`: what asyncpg takes as a setting of the session, such as
    `search_path`, becomes one."""
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if "database" in options:
        options["dbname"] = options.pop("database")
    settings = [f"-c {name}={_escaped(options.pop(name))}" for name in list(options) if name not in known]
    if settings:
        options["options"] = " ".join([options["options"], *settings] if "options" in options else settings)
    return _with_options(url, list(options.items()))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _with_options(url: str, options: list[tuple[str, str]]) -> str:
    # A blank as %20: libpq does not read a plus sign as one.
    return urlunsplit(urlsplit(url)._replace(query=urlencode(options, quote_via=quote)))
