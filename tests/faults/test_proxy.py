"""Fault cases of class proxy: only an explicit proxy counts, its failures are its own, its credentials go to nobody else."""

from __future__ import annotations

import pytest

from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer
from gatepost.wire.headers import HeaderRefused
from tests.hostile.engine import IDENTITY, LOOPBACK, SMALL, limits


@pytest.mark.parametrize("upper", [True, False])
async def test_proxy_01_the_environment_names_no_proxy(upper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spelling points at a canary that must see nothing."""
    async with HostileServer("ok") as canary, HostileServer("ok") as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
            monkeypatch.setenv(name.upper() if upper else name, canary.url)
        monkeypatch.setenv("NO_PROXY", "")
        async with DispatchClient(limits(), egress=LOOPBACK) as client:
            assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        assert canary.connections == 0
        assert server.connections == 1


async def test_proxy_04_a_customers_proxy_authorization_is_refused() -> None:
    """It would reach the endpoint, or speak to our proxy in our name."""
    async with HostileServer("ok") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        for name in ("Proxy-Authorization", "PROXY-AUTHORIZATION", "proxy-connection"):
            with pytest.raises(HeaderRefused):
                await client.deliver(server.url, SMALL, {name: "Basic eA==", **IDENTITY})
        assert server.connections == 0
