"""The service follows producers' databases: set by one setting, and seen in readiness without failing it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost import Publisher
from gatepost.errors import ConfigurationError
from gatepost.service.config import load_settings
from gatepost.testing.receiver import Receiver
from tests.fleet.outbox_drivers import database
from tests.fleet.test_outbox_sqlite import connect
from tests.service.running import api, ok, until

COMMAND = (sys.executable, "-m", "gatepost.service.cli")


async def test_the_service_follows_the_outboxes_it_is_told(tmp_path: Path) -> None:
    """A producer commits in its own database, and the service delivers; a second one that is down is shown, not fatal."""
    url = await database("sqlite", tmp_path)
    down = f"sqlite:///{tmp_path / 'missing.db'}"
    async with Receiver() as receiver, api(tmp_path, outboxes=(url, down)) as service:
        await ok(service.client.post("/v1/endpoints", json={"url": f"{receiver.url}/ok"}), 201)
        connection = connect(url)
        receipt = Publisher().publish_sync("order.paid", {"n": 1}, connection=connection)
        connection.commit()
        connection.close()

        async def delivered() -> bool:
            return receiver.ledger.get(receipt.event_id) == 1

        async def shown() -> bool:
            checks = (await ok(service.client.get("/readyz")))["checks"]
            states = {
                name: (check["ok"], check["state"]) for name, check in checks.items() if name.startswith("outbox")
            }
            return states == {f"outbox {url}": (True, "following"), f"outbox {down}": (True, "failing")}

        await until(delivered)
        await until(shown)
        status = (await ok(service.client.get("/v1/fleet")))["here"]["outboxes"]
        assert [(one["place"], one["state"], one["taken"]) for one in status] == [
            (url, "following", 1),
            (down, "failing", 0),
        ]
        printed = await asyncio.to_thread(
            subprocess.run,
            [*COMMAND, "status", "--url", service.running.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert f"outbox {url} following, 1 taken, 0 set aside\n" in printed.stdout, printed.stderr


def test_outboxes_are_set_like_everything_else(tmp_path: Path) -> None:
    """A list in the file, commas in the environment, refused at the start, and never printed with a password."""
    file = tmp_path / "gatepost.toml"
    file.write_text('outboxes = ["postgresql://app:geheim@db/orders", "sqlite:///app.db"]\n')
    settings = load_settings(file, {}, open_files=1_024)
    assert settings.outboxes == ("postgresql://app:geheim@db/orders", "sqlite:///app.db")
    assert "geheim" not in repr(settings)
    environ = {"GATEPOST_OUTBOXES": "sqlite:///a.db, sqlite:///b.db"}
    assert load_settings(None, environ, open_files=1_024).outboxes == ("sqlite:///a.db", "sqlite:///b.db")
    for text in ("sqlite:///gatepost.db", "mysql://app:geheim@db/orders"):
        with pytest.raises(ConfigurationError, match="outboxes") as caught:
            load_settings(None, {"GATEPOST_OUTBOXES": text}, open_files=1_024)
        assert "geheim" not in str(caught.value)
