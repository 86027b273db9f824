"""The guard finds calls without a timeout in the real libraries, names the caller's line, and leaves no trace."""

from __future__ import annotations

import gc
import http.client
import inspect
import socket
import ssl
import threading
import urllib.request
import warnings
from collections.abc import Callable

import httpx
import httpx2
import pytest
import requests
import urllib3

import gatepost.deadline.clients.requests as gp_requests
from gatepost.deadline import deadline
from gatepost.deadline.guard import Finding, Kind, MissingTimeout, MissingTimeoutWarning, guard
from gatepost.deadline.tiers import SAME_DC
from gatepost.errors import ConfigurationError
from gatepost.testing.hostile import HostileServer
from tests.deadline.kit import client_context, hostile

WATCHED = [(socket.socket, "connect"), (socket.socket, "recv"), (socket.socket, "recv_into"), (ssl.SSLSocket, "read")]


def by_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url)


def by_urllib3(url: str) -> None:
    with urllib3.PoolManager(ssl_context=client_context(), timeout=None) as manager:
        manager.request("GET", url, retries=False)


def by_http_client(url: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1].rstrip("/")))
    connection.request("GET", "/")
    connection.getresponse().read()
    connection.close()


def by_urllib(url: str) -> None:
    with urllib.request.urlopen(url, context=client_context() if url.startswith("https") else None) as response:
        response.read()


def by_httpx(url: str) -> None:
    with httpx.Client(timeout=None, trust_env=False) as client:
        client.get(url)


def by_httpx2(url: str) -> None:
    with httpx2.Client(timeout=None, trust_env=False) as client:
        client.get(url)


CALLS: dict[str, Callable[[str], None]] = {
    "requests": by_requests,
    "urllib3": by_urllib3,
    "http.client": by_http_client,
    "urllib.request": by_urllib,
    "httpx": by_httpx,
    "httpx2": by_httpx2,
}


@pytest.mark.parametrize("library", CALLS)
def test_a_call_without_a_timeout_is_named_with_its_line(library: str) -> None:
    """The finding must lead to the line to mend, not into the library."""
    call = CALLS[library]
    lines, start = inspect.getsourcelines(call)
    with hostile("ok") as server, guard("collect") as found:
        call(server.url)
        call(server.url)
    assert found.findings
    for finding in found.findings:
        assert (finding.kind, finding.library, finding.file) == (Kind.NO_TIMEOUT, library, __file__)
        assert start <= finding.line < start + len(lines)
        assert finding.function == f"{__name__}.{call.__qualname__}"
    assert found.findings[0].operation == "connect"
    assert len({finding.line for finding in found.findings}) == len(found.findings)


def test_raise_stops_the_call_before_it_connects() -> None:
    """In CI the call is the failure; nothing must wait for ever to find out."""
    with hostile("ok") as server:
        with guard("raise"), pytest.raises(MissingTimeout, match=r"test_guard\.py:\d+ in .*by_urllib3"):
            by_urllib3(server.url)
        gc.collect()  # a socket left open would warn here
        assert server.connections == 0


def test_warn_points_at_the_callers_line_once() -> None:
    """`-W error::MissingTimeoutWarning` and editors find it there."""
    with hostile("ok") as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with guard():
            for _ in range(3):
                by_http_client(server.url)
    mine = [one for one in caught if issubclass(one.category, MissingTimeoutWarning)]
    assert {one.filename for one in mine} == {__file__}
    assert len({one.lineno for one in mine}) == len(mine)


def test_a_timeout_or_a_deadline_client_is_no_finding() -> None:
    """A guard that cries wolf is turned off."""
    with hostile("ok") as server, guard("raise"):
        requests.get(server.url, timeout=(1.0, 5.0), proxies={"http": ""})
        with httpx.Client(trust_env=False) as client:  # httpx has 5 s by itself
            client.get(server.url)
        with requests.Session() as session, deadline(2.0):
            session.mount("http://", gp_requests.DeadlineAdapter(SAME_DC))
            session.get(server.url)
        plain = socket.create_connection(("127.0.0.1", server.port))  # not by one of the libraries
        plain.close()


def test_a_timeout_that_outlives_the_deadline_drops_it() -> None:
    """`timeout=30` inside a budget of 2 s ignores the caller as well as no timeout does."""
    with hostile("ok") as server, guard("collect") as found:
        with deadline(2.0):
            requests.get(server.url, timeout=30, proxies={"http": ""})
            requests.get(server.url, timeout=1, proxies={"http": ""})
        requests.get(server.url, timeout=30, proxies={"http": ""})
    assert [finding.kind for finding in found.findings] == [Kind.DROPS_DEADLINE]
    assert "longer than the deadline" in str(found.findings[0])


async def test_httpx_async_clients_are_watched_at_the_request() -> None:
    """Their sockets belong to the loop and never block, so the request's own limits are what tells."""
    async with HostileServer("ok") as server:
        with guard("collect") as found:
            async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
                await client.get(server.url)
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(server.url)
            with deadline(1.0):
                async with httpx2.AsyncClient(timeout=30.0, trust_env=False) as other:
                    await other.get(server.url)
    assert [(one.kind, one.library, one.operation) for one in found.findings] == [
        (Kind.NO_TIMEOUT, "httpx", "request"),
        (Kind.DROPS_DEADLINE, "httpx2", "request"),
    ]
    assert {one.file for one in found.findings} == {__file__}


def test_it_removes_itself_also_when_nested_and_when_somebody_wrapped_after_it() -> None:
    """A test tool that stays behind is a bug in production."""
    before = [owner.__dict__.get(name) for owner, name in WATCHED]
    with guard("collect"), guard("collect"):
        assert [owner.__dict__.get(name) for owner, name in WATCHED] != before
    assert [owner.__dict__.get(name) for owner, name in WATCHED] == before

    outer = guard("collect")
    outer.__enter__()
    ours = socket.socket.recv

    def theirs(sock: socket.socket, *args: int) -> bytes:
        return ours(sock, *args)

    socket.socket.recv = theirs  # type: ignore[method-assign, assignment]  # as another tool would
    outer.__exit__(None, None, None)
    assert socket.socket.__dict__["recv"] is theirs
    with hostile("ok") as server:
        by_http_client(server.url)
    assert outer.findings == []
    del socket.socket.recv  # back to what is inherited
    assert [owner.__dict__.get(name) for owner, name in WATCHED] == before


def test_threads_are_watched_and_ignored_packages_are_not() -> None:
    """Most forgotten timeouts live in background threads; some live in code that is not ours to mend."""
    with hostile("ok") as server:
        for ignore, count in (((), 1), ((__name__,), 0)):
            with guard("collect", ignore=ignore) as found:
                thread = threading.Thread(target=by_urllib3, args=(server.url,))
                thread.start()
                thread.join()
            assert len(found.findings) == count
    with pytest.raises(ConfigurationError, match="warn"):
        guard("log")  # type: ignore[arg-type]  # on purpose


def test_findings_travel_between_processes() -> None:
    """pytest-xdist pickles what a test raised."""
    import pickle

    finding = Finding(Kind.NO_TIMEOUT, "requests", "connect", "a.py", 3, "a.b")
    assert pickle.loads(pickle.dumps(MissingTimeout(finding))).finding == finding
