"""The browser of the session, and tests that run on its loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from tests.conftest import TEST_LIMIT
from tests.console.browser import Browser, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The session's Chromium; skips, or fails in CI, where there is none."""
    made = Browser(find_chromium())
    yield made
    made.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Coroutine tests that use the browser run on its loop; others as everywhere."""
    browser = pyfuncitem.funcargs.get("browser")
    if not isinstance(browser, Browser) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    browser.run(pyfuncitem.obj(**arguments), TEST_LIMIT)
    return True
