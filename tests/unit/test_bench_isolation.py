"""The bad endpoints of the isolation benchmark are bad in the way their phase says."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from bench.bad_endpoints import BEHAVIOURS, bad_endpoints
from bench.isolation import ENDPOINTS, SHARES
from gatepost.testing.hostile import find_behaviour


def test_every_phase_has_a_behaviour_that_exists() -> None:
    """A name that is gone would show only in the middle of a long run."""
    for name in BEHAVIOURS.values():
        assert find_behaviour(name).name == name


def test_shares_say_what_they_are() -> None:
    """The share is a figure in a report."""
    for share, bad in SHARES.items():
        part, whole = map(int, share.split("/"))
        assert bad * whole == part * ENDPOINTS


def test_refusing_endpoints_refuse_and_silent_ones_connect() -> None:
    """These two are played by the kernel alone."""
    with bad_endpoints("refused", 2) as refusing, bad_endpoints("silence", 2) as silent:
        for url in refusing:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
        for url in silent:
            socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)).close()


def test_a_resetting_endpoint_runs_in_its_own_process() -> None:
    """The others are served: their URLs come from the process that plays them."""
    with bad_endpoints("reset", 3) as urls:
        assert len({urlsplit(url).port for url in urls}) == 3
