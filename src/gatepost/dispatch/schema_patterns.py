"""Which regular expressions a schema may hold, and how long a text each may be tried on: a tenant's pattern must not stop us.

Python's `re` backtracks and holds the interpreter while it does. So what can take exponential time is refused (a repetition or a
choice inside a repetition, references back, look-around), and of the rest the steps are bounded by the length of the text:
with k unbounded repetitions they grow like its k-th power. Pure; called by `dispatch.event_schema`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gatepost.errors import ConfigurationError

PATTERN_CHARS_MAX: Final = 500
STEPS_MAX: Final = 1_000_000
"""Steps of one match at worst: some 10 ms."""
UNBOUNDED_FROM: Final = 1_000
"""`{2,1000}` counts as unbounded."""

_QUANTIFIER: Final = re.compile(r"\*|\+|\?|\{(\d+)(,(\d*))?\}")
_GROUP: Final = re.compile(r"\(\?(:|P?<[A-Za-z_]\w*>)")


@dataclass(frozen=True, slots=True)
class BoundedPattern:
    """A pattern that may be tried."""

    expression: re.Pattern[str]
    power: int
    """Steps grow like this power of the text's length."""
    factor: int

    @property
    def chars_max(self) -> int | None:
        """Characters of a text that it is tried on; None: any."""
        return None if not self.power else max(1, int((STEPS_MAX / self.factor) ** (1 / self.power) + 1e-6))

    def steps(self, chars: int) -> int:
        """An upper bound for a text that is short enough."""
        return int(self.factor * max(1, chars) ** self.power)


@dataclass(slots=True)
class _Level:
    """One group while it is read."""

    choices: int = 1
    varies: bool = False


class _Scanner:
    """Walks the pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.unbounded = 0
        self.factor = 1
        self.top_choices = 1

    def run(self) -> None:
        """Counts, or raises `ConfigurationError`."""
        pattern, at, levels = self._pattern, 0, [_Level()]
        atom = _Level()
        """What a quantifier that comes now would repeat."""
        while at < len(pattern):
            char = pattern[at]
            quantifier = _QUANTIFIER.match(pattern, at) if char in "*+?{" else None
            if quantifier is not None:
                at = self._repeat(quantifier, atom, levels[-1])
                atom = _Level()
            elif char == "(":
                at = self._open(at)
                levels.append(_Level())
            elif char == ")":
                if len(levels) == 1:
                    raise self._refused("a ) closes nothing")
                atom = levels.pop()
                self.factor *= atom.choices
                levels[-1].varies |= atom.varies or atom.choices > 1
                at += 1
            elif char == "|":
                levels[-1].choices += 1
                at, atom = at + 1, _Level()
            else:
                at, atom = self._one(at), _Level()
        self.top_choices = levels[0].choices

    def _repeat(self, quantifier: re.Match[str], atom: _Level, level: _Level) -> int:
        word = quantifier[0]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(word, (0, None))
        if word.startswith("{"):
            low = int(quantifier[1])
            high = low if quantifier[2] is None else int(quantifier[3]) if quantifier[3] else None
        if (atom.varies or atom.choices > 1) and high != 1:
            raise self._refused(
                f"{word} repeats a group that holds a repetition or a choice: it can take time without end"
            )
        if high is None or high >= UNBOUNDED_FROM:
            self.unbounded += 1
        else:
            self.factor *= max(1, high - low + 1)
        if high != low:
            level.varies = True
        end = quantifier.end()
        return end + 1 if self._pattern[end : end + 1] in ("?", "+") else end  # lazy or possessive

    def _open(self, at: int) -> int:
        if not self._pattern.startswith("(?", at):
            return at + 1
        match = _GROUP.match(self._pattern, at)
        if match is None:
            raise self._refused(
                "look-around, references, flags and conditions are not taken; (?:…) and (?P<name>…) are"
            )
        return match.end()

    def _one(self, at: int) -> int:
        """The end of one character, class or escape."""
        pattern = self._pattern
        if pattern[at] == "\\":
            if pattern[at + 1 : at + 2].isdigit() and pattern[at + 1] != "0":
                raise self._refused("references back are not taken")
            return at + 2
        if pattern[at] != "[":
            return at + 1
        at += 2 if pattern.startswith("[^", at) else 1
        if pattern.startswith("]", at):
            at += 1
        while at < len(pattern) and pattern[at] != "]":
            at += 2 if pattern[at] == "\\" else 1
        return at + 1

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"pattern {self._pattern[:80]!r}: {why}")


def bounded(pattern: str) -> BoundedPattern:
    """The pattern, searched for anywhere in a text as JSON Schema says. Raises `ConfigurationError` saying what is not taken."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ConfigurationError(f"a pattern has {len(pattern)} characters: write at most {PATTERN_CHARS_MAX}")
    scanner = _Scanner(pattern)
    scanner.run()
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"pattern {pattern[:80]!r}: {error}") from None
    if scanner.factor > STEPS_MAX:
        raise ConfigurationError(
            f"pattern {pattern[:80]!r}: too many bounded repetitions and choices after one another"
        )
    # A pattern that need not begin at the beginning is tried from each character.
    anchored = pattern.startswith("^") and scanner.top_choices == 1
    return BoundedPattern(expression, scanner.unbounded + (not anchored), scanner.factor)
