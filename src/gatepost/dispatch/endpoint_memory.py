"""What the owner of a part remembers of its endpoints beyond its own life: small values by section, written behind.

A section is named by whoever uses it (`dispatch.streaks`, `dispatch.head_holds`); sections this version does not know are
carried along. It decides nothing, and holds nothing of an endpoint about which there is nothing to say. A crash loses what was
put within the last seconds, which must do no harm. Loaded when parts are won, saved by a loop and before parts are given back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Final

from gatepost.dispatch.notices import Notices
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore

SAVE_EVERY: Final = 2.0
"""Seconds that a crash may take back."""
SAVE_PATIENCE: Final = 5.0
"""Seconds to wait for a store: the end of a process must not hang on it."""
SAVED_AT_ONCE: Final = 500
"""Endpoints in one transaction."""
LOADED_AT_ONCE: Final = 1_000

Value = int | float | str | bool | list["Value"] | dict[str, "Value"]
"""What a section may hold: what JSON can, but null, which stands for nothing at all."""


class EndpointMemory:
    """Sections by endpoint number. Only numbers of parts that are held belong here. `exists`: whether there is such an endpoint."""

    __slots__ = ("_changed", "_exists", "_kept", "_lent", "_news", "_notices", "_store")

    def __init__(self, store: DeliveryStore, notices: Notices, exists: Callable[[int], bool]) -> None:
        self._store = store
        self._notices = notices
        self._exists = exists
        self._kept: dict[int, dict[str, Value]] = {}
        self._lent: dict[str, tuple[Callable[[int], Value | None], Callable[[int, Value], None]]] = {}
        self._changed: set[int] = set()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Endpoints about which something is remembered."""
        return len(self._kept)

    def get(self, number: int, section: str) -> Value | None:
        """What is remembered, None for nothing."""
        sections = self._kept.get(number)
        return None if sections is None else sections.get(section)

    def put(self, number: int, section: str, value: Value | None, *, save: bool = True) -> None:
        """Remember, or with None forget. `save` False: worth no write by itself."""
        sections = self._kept.get(number)
        if value is None:
            if sections is None or sections.pop(section, None) is None:
                return
            if not sections:
                del self._kept[number]
        elif sections is None:
            self._kept[number] = {section: value}
        else:
            sections[section] = value
        if save:
            self._changed.add(number)
            self._news.set()

    def lend(self, section: str, value_of: Callable[[int], Value | None], loaded: Callable[[int, Value], None]) -> None:
        """A section that somebody else holds in a form of its own: asked for when written (after `touch`), given when loaded."""
        self._lent[section] = (value_of, loaded)

    def touch(self, number: int) -> None:
        """Something in a section that was lent changed."""
        self._changed.add(number)
        self._news.set()

    def drop(self, number: int) -> None:
        """The endpoint belongs to somebody else: hold and write nothing more of it."""
        self._kept.pop(number, None)
        self._changed.discard(number)

    def forget(self, number: int) -> None:
        """The endpoint is gone: take away what was saved since, and by what still ends of it."""
        self._kept.pop(number, None)
        self.touch(number)

    async def load(self, numbers: Collection[int]) -> None:
        """Read what was saved of these endpoints. Raises `StoreError`."""
        wanted = list(numbers)
        for at in range(0, len(wanted), LOADED_AT_ONCE):
            found = await self._store.load_states(wanted[at : at + LOADED_AT_ONCE])
            for number, state in found.items():
                if number not in self._changed and (sections := sections_of(state)):
                    for section, (_, loaded) in self._lent.items():
                        if section in sections:
                            loaded(number, sections.pop(section))
                    if sections:
                        self._kept[number] = sections

    async def save(self) -> None:
        """Write what changed. Raises `StoreError`; what was not written is written by the next call."""
        while self._changed:
            chosen = [number for number, _ in zip(self._changed, range(SAVED_AT_ONCE), strict=False)]
            states = {number: self._state_of(number) for number in chosen}
            self._changed.difference_update(chosen)
            try:
                await self._store.save_states(states)
            except BaseException:
                self._changed.update(chosen)
                raise

    def _state_of(self, number: int) -> bytes:
        """Empty: nothing is to be kept."""
        if not self._exists(number):
            self._kept.pop(number, None)
            return b""
        sections = dict(self._kept.get(number, {}))
        for section, (value_of, _) in self._lent.items():
            value = value_of(number)
            if value is not None:
                sections[section] = value
        return json.dumps(sections, separators=(",", ":")).encode() if sections else b""

    async def run(self) -> None:
        """Save now and then, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(SAVE_EVERY)
            self._news.clear()
            await self.save_quietly()
            if self._changed:
                self._news.set()

    async def save_quietly(self) -> None:
        """`save`, for whom a store that fails or hangs is no reason to stop."""
        try:
            async with asyncio.timeout(SAVE_PATIENCE):
                await self.save()
        except (StoreError, TimeoutError) as error:
            self._notices.trouble("endpoint_memory_unsaved", error)


def sections_of(state: bytes) -> dict[str, Value]:
    """What a stored state holds, by section; for those who read states of endpoints that are not theirs."""
    try:
        sections = json.loads(state)
    except ValueError:
        return {}  # another version's: worth a warm start at most
    return sections if isinstance(sections, dict) else {}
