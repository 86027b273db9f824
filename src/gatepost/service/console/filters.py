"""Values as people read them: times, durations, sizes, counts, ids and badges. Pure functions from values to safe markup or text.

Everything here escapes what it is given; `Markup` marks what is markup. Installed into the templates by `render`.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

NOTHING: Final = Markup('<span class="nothing">-</span>')
GIVEN_CHARS: Final = 200
"""Of what users wrote, in a cell; the whole is on the thing's own page."""

_GOOD: Final = frozenset({"delivered", "active", "closed", "complete", "ok", "alive", "harmless", "done", "2xx"})
_BAD: Final = frozenset({"dead", "disabled", "open", "dead_letter", "gone", "failed", "harmful", "aborted"})
_WARN: Final = frozenset(
    {
        "paused", "waiting", "probing", "ramping", "draining", "unverified", "retry_at", "defer", "shed", "circuit_open",
        "pool_timeout", "connect_timeout", "write_timeout", "read_timeout", "transport_error", "deadline_exceeded",
        "egress_denied", "cancelled", "ambiguous", "running", "shadow", "canary", "cohorts",
    }
)  # fmt: skip


def when(at_us: int | None) -> Markup:
    """UTC microseconds as a `<time>`, to the second; hovering and programs get the milliseconds."""
    if at_us is None:
        return NOTHING
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1} UTC</time>').format(exact, f"{at:%Y-%m-%d %H:%M:%S}")


def ago(at_us: int | None, now_us: int) -> Markup:
    """How long ago, or in how long, with the instant behind it."""
    if at_us is None:
        return NOTHING
    seconds = (now_us - at_us) / 1e6
    exact = datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    words = "now" if abs(seconds) < 1 else f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, words)


def duration(seconds: float | None) -> str:
    """Seconds in two figures that matter: `34 ms`, `1.25 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.0005:
        return f"{seconds * 1e6:.0f} µs" if seconds else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    for size, unit, rest, rest_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            more = whole % size // rest
            return f"{whole // size} {unit}" + (f" {more} {rest_unit}" if more else "")
    raise AssertionError("a minute is a minute")


def size(count: int | None) -> str:
    """Bytes: `512 B`, `12.4 KiB`, `3.0 MiB`."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1_024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1_024
    return f"{value:.1f} TiB"


def number(value: float | None) -> str:
    """A count with its thousands apart."""
    return "-" if value is None else f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """Events per second, in as many figures as say something."""
    if per_second is None:
        return "-"
    places = 0 if per_second >= 100 or per_second == 0 else 1 if per_second >= 10 else 2
    return f"{per_second:,.{places}f}/s"


def percent(share: float | None) -> str:
    """A share of 1; what is not all is never shown as 100 %."""
    if share is None:
        return "-"
    if 0.9995 <= share < 1:
        return "99.9 %"
    return f"{share * 100:.0f} %" if share in (0, 1) else f"{share * 100:.1f} %"


def given(text: object, chars: int = GIVEN_CHARS) -> Markup:
    """What somebody wrote: bounded, its invisible and direction-changing characters shown as such, and kept from turning round
    the text beside it."""
    whole = "" if text is None else str(text)
    if not whole:
        return NOTHING
    shown = visible(whole[:chars])
    if len(whole) <= chars:
        return Markup('<bdi class="given">{}</bdi>').format(shown)
    return Markup('<bdi class="given">{}</bdi><span class="cut" title="{} characters">…</span>').format(
        shown, len(whole)
    )


def visible(text: str) -> str:
    """The text with control and format characters written out (`\\u202e`), but for line ends and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def ident(text: str | None) -> Markup:
    """An id."""
    return NOTHING if not text else Markup('<code class="id">{}</code>').format(text)


def badge(word: object) -> Markup:
    """A state, an outcome or a status as a badge: the word says it, the colour only helps."""
    if word is None or word == "":
        return NOTHING
    text = str(word)
    tone = _tone(text)
    return Markup('<span class="badge {}">{}</span>').format(tone, escape(text.replace("_", " ")))


def _tone(word: str) -> str:
    if word in _GOOD or (len(word) == 3 and word[0] == "2"):
        return "good"
    if word in _BAD or (len(word) == 3 and word[0] in "45"):
        return "bad"
    return "warn" if word in _WARN else "plain"


def _shown(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
