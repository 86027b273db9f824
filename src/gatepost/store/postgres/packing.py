"""Columns of texts as one parameter each: joined here, split by the server.

The driver takes 0.27 µs of this process for every text in an array, joining them takes 0.02 and the server hardly notices; an
attempt's log line has ten. Called by `enqueue` and `settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_UNIT: Final = "\x1f"
_RECORD: Final = "\x1e"
"""ASCII's own separators, which texts hardly ever hold; one that does only costs another try."""


def unpacked(column: str, separator: str, null: str) -> str:
    """SQL for the array again, of parameters with these names. The column begins with a separator, so that one empty text is told
    from none at all."""
    return f"(string_to_array({column}::text, {separator}::text, {null}::text))[2:]"


def pack_texts(columns: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """A separator that is in no text, and each column joined by it."""
    separator, tries = _UNIT, 0
    while True:
        packed = [separator + separator.join(column) if column else "" for column in columns]
        if all(map(_holds, packed, columns, [separator] * len(packed))):
            return separator, packed
        tries += 1
        # Its first character is in it once, so it cannot begin inside a text and end in the separator itself.
        separator = f"{_UNIT}{tries}{_RECORD}"


def _holds(packed: str, column: Sequence[str], separator: str) -> bool:
    return packed.count(separator) == len(column)


def without_none(column: Sequence[str | None]) -> tuple[str | None, list[str]]:
    """The column with a text in place of None that is no other's, and that text; it is None where there is nothing to replace."""
    if None not in column:
        return None, list(column)  # type: ignore[arg-type]  # it holds no None
    null = _RECORD
    while null in column:
        null += _RECORD
    return null, [null if text is None else text for text in column]
