"""Runs `async def` tests, each on a fresh event loop; a coroutine or task left behind is an error like any warning.

`GATEPOST_TEST_LOOP=uvloop` runs them on uvloop, as production does.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Callable
from typing import Final

import pytest

TEST_LIMIT: Final = 60.0
"""Seconds after which a hanging test is ended: generous, since the machine is shared."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it puts into the background like this, and every program that a test starts and
    # interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if os.environ.get("GATEPOST_TEST_LOOP", "asyncio") != "uvloop":
        return None
    import uvloop

    return uvloop.new_event_loop


LOOP_FACTORY: Final = _loop_factory()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests; sync ones go their usual way."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        async with asyncio.timeout(TEST_LIMIT):
            await test(**arguments)

    with asyncio.Runner(loop_factory=LOOP_FACTORY) as runner:
        runner.run(bounded())
    return True
