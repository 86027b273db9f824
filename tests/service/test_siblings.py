"""The channel between processes of one machine: answers, and who is missing, within the time whatever a sibling does."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.service import siblings as channel
from gatepost.service.siblings import ANSWER_BYTES_MAX, ASK_TIMEOUT, Seat, Siblings, make_directory, remove_directory

PATIENCE = 20.0
"""Seconds that an answer may take on a busy machine, where a test needs it."""


@pytest.fixture
def directory() -> Any:
    """As the parent makes it, removed at the end."""
    made = make_directory()
    yield made
    remove_directory(made)


@asynccontextmanager
async def family(directory: Path, count: int) -> AsyncIterator[list[Siblings]]:
    """So many ends, each of which says its number and what it was given."""
    async with AsyncExitStack() as stack:
        made = [Siblings(Seat(directory, index, count), timeout=PATIENCE) for index in range(count)]
        for one in made:

            async def say(argument: Any, index: int = one.index) -> Any:
                return {"index": index, "argument": argument}

            one.answer("say", say)
            await stack.enter_async_context(one)
        yield made


async def test_everybody_but_oneself_is_asked_with_the_argument(directory: Path) -> None:
    """What a page or a scrape shows is its own figures and these."""
    async with family(directory, 3) as (first, _, _):
        heard = await first.ask("say", {"tenant": "acme"})
    assert heard.answers == {
        1: {"index": 1, "argument": {"tenant": "acme"}},
        2: {"index": 2, "argument": {"tenant": "acme"}},
    }
    assert heard.missing == ()


async def test_whoever_hangs_died_or_does_not_know_is_missing_and_nobody_waits_long(directory: Path) -> None:
    """A process that is stopped accepts connections in the kernel and says nothing: the page about it must still come."""
    asker = Siblings(Seat(directory, 0, 6))
    hangs, knows_nothing = Siblings(Seat(directory, 1, 6)), Siblings(Seat(directory, 2, 6))
    raises, answers = Siblings(Seat(directory, 3, 6)), Siblings(Seat(directory, 5, 6))

    async def never(argument: Any) -> Any:
        await asyncio.sleep(3_600)

    async def wrong(argument: Any) -> Any:
        raise RuntimeError("as planned")

    async def well(argument: Any) -> Any:
        return b"[1,2]"

    hangs.answer("say", never)
    raises.answer("say", wrong)
    answers.answer("say", well)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(directory / "4.sock"))
        stopped.listen(1)  # the kernel accepts; nobody reads
        async with asker, hangs, knows_nothing, raises, answers:
            began = SYSTEM_CLOCK.monotonic()
            heard = await asker.ask("say")
            took = SYSTEM_CLOCK.monotonic() - began
    assert heard.missing == (1, 2, 3, 4)
    assert heard.answers == {5: [1, 2]}
    assert ASK_TIMEOUT * 0.9 <= took < PATIENCE


async def test_a_successor_takes_the_place_of_one_that_was_killed(directory: Path) -> None:
    """Its socket is still there: nobody removed it."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(directory / "1.sock"))
    async with family(directory, 2) as (first, _):
        assert set((await first.ask("say")).answers) == {1}
    assert not any(directory.iterdir())  # noqa: ASYNC240 - everything has ended


async def test_an_answer_has_a_bound(directory: Path) -> None:
    """A sibling that goes mad must not take our memory."""

    async def flood(argument: Any) -> Any:
        return b"1" * (ANSWER_BYTES_MAX + 1)

    async with family(directory, 2) as (first, second):
        second.answer("flood", flood)
        assert (await first.ask("flood")).missing == (1,)


async def test_a_process_alone_asks_nobody(directory: Path) -> None:
    """`gatepost serve` without more processes, and every embedding program."""
    async with Siblings() as alone:
        assert (alone.index, alone.count) == (0, 1)
        assert (await alone.ask("say")) == channel.Heard()
    async with Siblings(Seat(directory, 0, 1)) as single:
        assert (await single.ask("say")) == channel.Heard()


def test_the_directory_is_private_and_its_sockets_have_short_names(tmp_path: Path, directory: Path) -> None:
    """Figures of a service are not for every user of the machine, and a long TMPDIR must not keep it from starting."""
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert len(bytes(directory)) < channel.PATH_BYTES_MAX
