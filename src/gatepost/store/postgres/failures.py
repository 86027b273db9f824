"""What the driver's errors mean to a store: whether to try again, and what its callers are told.

Errors are told apart by class and SQLSTATE (PostgreSQL manual, appendix A), never by their text. Called by everything in this
package that talks to the server.
"""

from __future__ import annotations

from typing import Final

from gatepost.errors import ConfigurationError, GatepostError, SchemaMismatch, StoreError, StoreFull

TRANSIENT: Final = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # lock not available in time
        "57P01",  # the server is being stopped
        "57P02",  # another session crashed, all were ended
        "57P03",  # it is starting, or stopping
        "57P05",  # idle session ended
        "25P03",  # idle transaction ended
        "25P04",  # transaction took too long
        "25006",  # read only: a failover has left us at the old primary; the next connection finds the new one
        "53300",  # too many connections
        "26000",  # a prepared statement that this server does not know: connections were swapped behind a pooler
        "0A000",  # a cached plan must not change its result type: the schema was migrated under it
    }
)
"""Trying again may help, on another connection where this one is gone."""
_IMPOSSIBLE: Final = "22"
"""Class of data exceptions: a number out of range, a text with a zero byte. The driver's own checks say so too."""
_FULL: Final = frozenset({"53100"})
_NO_TABLE: Final = frozenset({"42P01", "42703", "42883", "3F000"})
_REFUSED: Final = frozenset({"28000", "28P01", "3D000", "42501"})
_NUL: Final = "22021"
"""Of these the one that a caller's text can bring about."""
_HINTS: Final = {
    "25006": "this server only reads (a standby?): point the URL at the primary, or add target_session_attrs=read-write",
    "53300": "the server has no connection left: raise max_connections, or run fewer processes (each takes up to 9)",
    "53200": "the server is out of memory",
    "57014": "it took longer than statement_timeout",
    "26000": "behind a PgBouncer that pools by transaction write ?pooling=transaction in the URL",
    "42P05": "behind a PgBouncer that pools by transaction write ?pooling=transaction in the URL",
    "08P01": "behind a PgBouncer that pools by transaction write ?pooling=transaction in the URL",
}


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error; None for what never reached a server."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def connection_is_lost(error: BaseException) -> bool:
    """The connection cannot be used again, and what it was doing may or may not have been done."""
    state = sqlstate_of(error)
    if state is None:
        return not isinstance(error, GatepostError)
    return state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P05", "25P03", "26000", "25006")


def may_be_repeated(error: BaseException) -> bool:
    """Whether the same call may succeed when it is made again."""
    state = sqlstate_of(error)
    if state is None:
        return is_drivers(error)
    return state in TRANSIENT or state[:2] == "08"


def is_drivers(error: BaseException) -> bool:
    """Whether the server, the network or the driver failed, and not the work itself."""
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    # The driver's own come from a connection that was closed under a call, or between the server's last word and its close.
    return isinstance(error, PostgresError | InterfaceError | InternalClientError | OSError | TimeoutError | EOFError)


def translated(error: BaseException, place: str) -> GatepostError | ValueError:
    """What is raised instead of a driver's error: `ValueError` for what no database can hold, however often it is asked to."""
    if isinstance(error, GatepostError):
        return error
    state = sqlstate_of(error)
    if state == _NUL:
        return ConfigurationError("a text holds the character U+0000, which PostgreSQL cannot store: leave it out")
    if state is not None and state[:2] == _IMPOSSIBLE:
        return ValueError(f"{place} cannot hold this: {error}")
    if state in _FULL:
        return StoreFull(f"{place} has no room: free disk space, new events are refused until then")
    if state in _NO_TABLE:
        return SchemaMismatch(f"{place} lacks what this code needs ({error}): run gatepost migrate")
    if state in _REFUSED:
        return ConfigurationError(f"{place} refused us ({state}): {error}")
    if isinstance(error, TimeoutError):
        return StoreError(f"{place} did not answer in time")
    what = type(error).__name__ if state is None else f"{type(error).__name__} {state}"
    hint = _HINTS.get(state or "")
    return StoreError(f"{place}: {what}: {error}" + (f"; {hint}" if hint else ""))
