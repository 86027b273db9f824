"""Fault cases of class headers: nothing splits a request, and no name that is ours can be set by anybody else."""

from __future__ import annotations

import pytest

from gatepost import Dispatcher
from gatepost.errors import ConfigurationError
from gatepost.testing.hostile import HostileServer
from gatepost.wire.headers import CLIENT_NAMES, CLIENT_PREFIXES, HeaderRefused, check_headers
from gatepost.wire.request import request_head, static_head
from tests.faults.kit import delivering
from tests.hostile.engine import IDENTITY, LOOPBACK

CUTS = ["\r", "\n", "\r\n", "\x00", "\u010a", "\u010d", "\u2028", "\x0b", "\x0c", "\x85", "\x7f", "\ud800"]
VALUES = [f"a{cut}X-Evil: 1" for cut in CUTS] + [f"a{cut}" for cut in CUTS] + [" a", "\ta", "a ", "a\t"]
NAMES = [f"X-A{cut}X-B" for cut in CUTS] + ["", " X-A", "X-A ", "X A", "X-A:", "X\u00e9", "X-A\r\n\r\nbody"]


@pytest.mark.parametrize("value", VALUES, ids=ascii)
async def test_headers_01_a_value_that_splits_is_refused_twice_and_never_connects(value: str) -> None:
    """At registration and right before the write; the receiver sees no connection."""
    async with delivering("ok") as (server, client):
        with pytest.raises(HeaderRefused):
            check_headers({"X-Tenant": value})
        with pytest.raises(HeaderRefused) as caught:
            await client.deliver(server.url, b"{}", {"X-Tenant": value, **IDENTITY})
        assert "X-Evil" not in str(caught.value)
        with pytest.raises(ValueError):
            await client.deliver(server.url, b"{}", IDENTITY, content_type=value)
        assert server.connections == 0


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_headers_01_a_name_that_splits_is_refused_twice_and_never_connects(name: str) -> None:
    """The same for names."""
    async with delivering("ok") as (server, client):
        with pytest.raises(HeaderRefused):
            check_headers({name: "1"})
        with pytest.raises(HeaderRefused):
            await client.deliver(server.url, b"{}", {name: "1", **IDENTITY})
        assert server.connections == 0


@pytest.mark.parametrize("cut", CUTS, ids=ascii)
async def test_headers_01_neither_url_nor_event_type_nor_id_can_split(cut: str) -> None:
    """What ends up in the request line or in a header of ours is checked where it comes in."""
    async with delivering("ok") as (server, client):
        attempt = await client.deliver(f"{server.url}a{cut}b?c{cut}d", b"{}", IDENTITY)
        assert not attempt.delivered
        with pytest.raises(HeaderRefused):
            await client.deliver(server.url, b"{}", {"webhook-id": f"evt{cut}x"})
        assert server.connections == 0
    async with HostileServer("ok") as server, Dispatcher.open("memory://", egress=LOOPBACK) as gp:
        with pytest.raises(ValueError):
            await gp.publish(f"a.b{cut}X-Evil: 1", {})
        with pytest.raises(ValueError):
            await gp.endpoints.create(server.url, headers={"X-A": f"1{cut}2"})
        with pytest.raises(ValueError):
            await gp.publish("a.b", b"x", content_type=f"text/plain{cut}")


RESERVED = [
    *sorted(CLIENT_NAMES),
    *(prefix + "authorization" for prefix in CLIENT_PREFIXES),
    "proxy-connection",
    "sec-websocket-key",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
]


def spellings(name: str) -> list[str]:
    """Letter cases of a name."""
    return [name, name.upper(), name.title(), name.swapcase(), name[0].upper() + name[1:]]


@pytest.mark.parametrize("name", RESERVED)
def test_headers_02_reserved_names_are_refused_in_every_spelling(name: str) -> None:
    """No name is special enough to skip the check: that was how undici let Host through."""
    for spelled in spellings(name):
        with pytest.raises(HeaderRefused):
            check_headers({spelled: "1"})
        for broken in (f" {spelled}", f"{spelled} ", f"{spelled}\t", f"{spelled}:"):
            with pytest.raises(HeaderRefused):
                check_headers({broken: "1"})
        if not name.startswith("webhook-"):
            static = static_head("POST", "/", "a.example")
            with pytest.raises(HeaderRefused):
                request_head(static, "agent", "text/plain", 0, {spelled: "1\r\nX-Evil: 1"})


def test_headers_02_a_name_in_two_spellings_is_refused() -> None:
    """One of them would win, and which depends on the receiver."""
    with pytest.raises(HeaderRefused):
        check_headers({"X-Key": "1", "x-key": "2"})
    with pytest.raises(HeaderRefused):
        request_head(static_head("POST", "/", "a.example"), "agent", "text/plain", 0, {"X-Key": "1", "X-KEY": "2"})
    # An underscore is another name (some receivers read it as a hyphen): it is sent as it is, and is never one of ours.
    assert check_headers({"Content_Length": "5"}) == {"content_length": "5"}
    assert issubclass(HeaderRefused, ValueError)
    assert not issubclass(HeaderRefused, ConfigurationError)
