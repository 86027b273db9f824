"""Reads `GATEPOST` of a Django project's settings: the settings of `gatepost serve`, nested as in `gatepost.toml`.

    GATEPOST = {
        "database": "postgresql://gatepost@db/gatepost",  # Gatepost's own; never the project's
        "outboxes": ["default"],                          # aliases of DATABASES, or URLs; this is the default
        "listen": {"port": 8080},
    }

Only translates: checks are those of the service. Used by the command and by `publishing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS

from gatepost.errors import ConfigurationError


def configured() -> Mapping[str, Any]:
    """`settings.GATEPOST`, empty when there is none."""
    found = getattr(settings, "GATEPOST", {})
    if not isinstance(found, Mapping):
        raise ConfigurationError(
            "GATEPOST in the settings is not a dict: write GATEPOST = {'database': 'postgresql://…'}"
        )
    return found


def database_url() -> str:
    """Where Gatepost keeps its events. Raises `ConfigurationError` when it is not set."""
    url = configured().get("database")
    if not isinstance(url, str):
        raise ConfigurationError(
            "set GATEPOST['database'] to the URL of Gatepost's own database, such as postgresql://…"
        )
    return url


def environment() -> dict[str, str]:
    """The settings as `gatepost` reads them from its environment."""
    values = dict(_flat(configured()))
    given = values.get("outboxes", [DEFAULT_DB_ALIAS])
    if not isinstance(given, list | tuple):
        raise ConfigurationError("GATEPOST['outboxes'] is no list: write ['default'], aliases of DATABASES or URLs")
    urls = [one if "://" in str(one) else alias_url(str(one)) for one in given]
    values["outboxes"] = [url for url in urls if url is not None]
    return {f"GATEPOST_{path.replace('.', '_').upper()}": _text(value) for path, value in values.items() if value != []}


def alias_url(alias: str) -> str | None:
    """The URL of a database of `DATABASES`; None for one that cannot be followed (another server, or in memory)."""
    database = settings.DATABASES.get(alias)
    if database is None:
        raise ConfigurationError(f"GATEPOST['outboxes'] holds {alias!r}: write an alias of DATABASES, or a URL")
    engine, name = str(database.get("ENGINE", "")), str(database.get("NAME", ""))
    if engine.endswith((".postgresql", ".postgis")):
        return _postgres_url(database, name)
    if engine.endswith((".sqlite3", ".spatialite")) and name and ":memory:" not in name and "mode=memory" not in name:
        return f"sqlite:///{quote(name)}"
    return None


def _postgres_url(database: Mapping[str, Any], name: str) -> str:
    user, password = (
        quote(str(database.get("USER") or ""), safe=""),
        quote(str(database.get("PASSWORD") or ""), safe=""),
    )
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    given = database.get("OPTIONS") or {}
    # `options` is where projects set search_path: the follower must look into the schema that they write to.
    options = {key: value for key, value in given.items() if key.startswith("ssl") or key == "options"}
    if host.startswith("/"):  # a directory with the server's socket
        options["host"], host = host, ""
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return f"postgresql://{login}{place}/{quote(name, safe='')}" + (f"?{urlencode(options)}" if options else "")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    return str(value)
