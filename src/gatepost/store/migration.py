"""Numbered `.sql` steps of a store's schema, and which of them a database still needs.

A step is `NNNN_pre_name.sql` (additions, run before the code that needs them starts) or `NNNN_post_name.sql` (removals, run
when the code before it is gone). Steps run in the order of their numbers, so a `post` step holds back whatever follows it.
Pure but for reading the package's own files; the engines' `schema` modules apply what is planned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal, NamedTuple

from gatepost.errors import SchemaMismatch, StoreError

Engine = Literal["sqlite", "postgres"]

POST: Final = "post"
_DIGITS: Final = 4


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    """Its file's name."""
    sql: str

    @property
    def post(self) -> bool:
        """Runs only when no process of the version before is left."""
        return self.name[_DIGITS + 1 :].startswith(f"{POST}_")


def migrations_of(engine: Engine) -> tuple[Migration, ...]:
    """All steps of an engine, in order."""
    folder = files("gatepost.store") / "migrations" / engine
    found = [
        Migration(int(file.name[:_DIGITS]), file.name, file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found))


def needed_by(known: Sequence[Migration]) -> int:
    """The schema that code with these steps cannot run without: its last `pre` step."""
    return max((step.number for step in known if not step.post), default=0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a database needs. `schema` 0: it is empty."""

    schema: int
    """The number of its last step."""
    code: int
    """The number of the last step that this code knows."""
    steps: tuple[Migration, ...]
    """To be applied, in order."""
    held: tuple[Migration, ...]
    """A `post` step that was not asked for, and what comes after it."""

    @property
    def blocked(self) -> bool:
        """A step that this code cannot run without is held back by a `post` step."""
        return any(not step.post for step in self.held)


def plan(schema: int, known: Sequence[Migration], *, post: bool) -> Plan:
    """The steps from `schema` on. An empty database gets all of them: no older code can be using it."""
    pending = tuple(step for step in known if step.number > schema)
    stop = len(pending)
    if schema and not post:
        stop = next((at for at, step in enumerate(pending) if step.post), stop)
    return Plan(schema, known[-1].number, pending[:stop], pending[stop:])


def check_usable(name: str, schema: int, oldest_code: int, known: Sequence[Migration]) -> None:
    """Whether this code may use a database of this schema; `name` is the database's, without its password.

    Raises `StoreError` for a schema that is too old, `SchemaMismatch` for one that is newer than this code allows: a newer one
    is used when it says (`oldest_code`) that this code still may, so that schema N runs code N and N - 1.
    """
    needed, latest = needed_by(known), known[-1].number
    if schema < needed:
        raise StoreError(
            f"{name} has schema {schema}, this code needs {needed}: run gatepost migrate --database {name} "
            "(the version that runs now keeps working on it), then start this one"
        )
    if schema > latest and oldest_code > latest:
        raise SchemaMismatch(
            f"{name} has schema {schema}, which needs the code of schema {oldest_code} or newer; "
            f"this code knows {latest}: run the newer Gatepost"
        )
