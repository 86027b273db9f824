"""Which regular expressions a schema may hold, and how long a text each may be tried on: a tenant's pattern must not stop us.

Python's `re` backtracks and holds the interpreter while it does. So what can take exponential time is refused (a repetition or a
choice inside a repetition, references back, look-around), and of the rest the steps are bounded by the length of the text:
with k unbounded repetitions they grow like its k-th power, times what bounded ones and choices can try and how long each is.
Pure; called by `dispatch.event_schema`.
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
ATOMS_PER_STEP: Final = 8
"""Characters and classes that are compared in the time of one step."""

_QUANTIFIER: Final = re.compile(r"\*|\+|\?|\{(?:(\d+)(,(\d*))?|,(\d*))\}")
"""`{,3}` and `{,}` are repetitions to Python."""
_PLACES: Final = frozenset({"^", "$", r"\b", r"\B", r"\A", r"\Z"})
"""They match a place, not a character."""
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
    """One group while it is read, or one atom: a character, a class, or a group that was read."""

    choices: int = 1
    varies: bool = False
    paths: int = 1
    """Ways through its branch that is read, with bounded repetitions and choices."""
    atoms: int = 0
    """Atoms compared at most to try them all."""
    width: int = 0
    """Characters that it takes at least; a repetition of none could go on without one."""
    paths_before: int = 0
    """Of its branches before."""
    atoms_before: int = 0

    def then(self, atom: _Level) -> None:
        """What follows is tried after each way until there."""
        self.atoms += self.paths * atom.atoms
        self.paths *= atom.paths
        self.width += atom.width

    def end_branch(self) -> None:
        """Another branch begins, or the group ends."""
        self.paths_before, self.atoms_before = self.paths_before + self.paths, self.atoms_before + self.atoms
        self.paths, self.atoms = 1, 0

    def closed(self) -> _Level:
        """The group as an atom; an empty one takes its time too."""
        self.end_branch()
        varies = self.varies or self.choices > 1
        return _Level(self.choices, varies, self.paths_before, max(1, self.atoms_before), self.width)


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
        while at < len(pattern):
            if pattern[at] == "(":
                at = self._open(at)
                levels.append(_Level())
                continue
            if pattern[at] == "|":
                levels[-1].choices += 1
                levels[-1].end_branch()
                at += 1
                continue
            if pattern[at] == ")":
                if len(levels) == 1:
                    raise self._refused("a ) closes nothing")
                atom = levels.pop().closed()
                at += 1
            else:
                end = self._one(at)
                atom = _Level(atoms=1, width=pattern[at:end] not in _PLACES)
                at = end
            levels[-1].varies |= atom.varies
            quantifier = _QUANTIFIER.match(pattern, at)
            if quantifier is not None:
                at = self._repeat(quantifier, atom, levels[-1])
            levels[-1].then(atom)
        top = levels[0].closed()
        self.top_choices = top.choices
        self.factor = max(top.paths, top.atoms // ATOMS_PER_STEP)

    def _repeat(self, quantifier: re.Match[str], atom: _Level, level: _Level) -> int:
        word = quantifier[0]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(word, (0, None))
        if word.startswith("{"):
            low = int(quantifier[1] or 0)
            most = quantifier[3] or quantifier[4]
            high = int(most) if most else low if word[1:-1].isdigit() else None
        if (atom.varies or atom.choices > 1) and high != 1:
            raise self._refused(
                f"{word} repeats a group that holds a repetition or a choice: it can take time without end"
            )
        if atom.width == 0:
            raise self._refused(f"{word} repeats what takes no character")
        if high is None or high >= UNBOUNDED_FROM:
            self.unbounded += 1
        else:
            atom.paths += max(0, high - low)
            atom.atoms *= max(1, high)
        atom.width *= low
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
        if pattern[at] in "*+?":
            raise self._refused(f"{pattern[at]} repeats nothing")
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
