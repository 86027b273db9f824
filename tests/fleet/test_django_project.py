"""The Django example, as its page says: migrate, serve the shop, run `manage.py gatepost serve`, and receive the webhook."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from gatepost.testing.receiver import Receiver
from tests.fleet.test_outbox_sqlite import until

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "django_project"
LOOPBACK = {"GATEPOST_EGRESS_SCHEMES": "https,http", "GATEPOST_EGRESS_ALLOW_CIDRS": "127.0.0.0/8"}
PATIENCE = 40.0


def environ(data: Path) -> dict[str, str]:
    """A fresh data directory, and receivers on loopback."""
    return {**os.environ, **LOOPBACK, "SHOP_DATA": str(data), "GATEPOST_LISTEN_PORT": "0", "PYTHONUNBUFFERED": "1"}


async def manage(data: Path, *arguments: str, code: int = 0) -> str:
    """`manage.py` to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "manage.py",
        *arguments,
        cwd=PROJECT,
        env=environ(data),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate()
    assert process.returncode == code, output.decode()
    return output.decode()


@asynccontextmanager
async def running(data: Path, mark: str, *arguments: str) -> AsyncIterator[str]:
    """A `manage.py` command that stays; yields the rest of the line that holds `mark`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=PROJECT,
        env={**environ(data), "DJANGO_SETTINGS_MODULE": "settings"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    seen: list[str] = []
    draining: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(PATIENCE):
            async for raw in process.stdout:
                seen.append(raw.decode())
                if mark in seen[-1]:
                    break
            else:
                raise AssertionError("".join(seen))
        draining = asyncio.ensure_future(process.stdout.read())
        yield seen[-1].partition(mark)[2].strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        if draining is not None:
            await draining
        await process.wait()


SERVER = """
import sys
from wsgiref.simple_server import make_server
from django.core.wsgi import get_wsgi_application
server = make_server("127.0.0.1", 0, get_wsgi_application())
print("listening on", server.server_port, flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
"""


async def test_an_order_that_commits_is_told_and_one_that_fails_is_not(tmp_path: Path) -> None:
    """HTTP in, two SQLite files, HTTP out: everything a newcomer runs."""
    await manage(tmp_path, "migrate", "-v", "0")
    await manage(tmp_path, "migrate", "gatepost", "zero", "-v", "0")
    await manage(tmp_path, "migrate", "gatepost", "-v", "0")
    async with (
        Receiver(keep=10) as receiver,
        running(tmp_path, "listening on", "-c", SERVER) as port,
        running(tmp_path, "accepting requests at", "manage.py", "gatepost", "serve") as line,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        service = "http://127.0.0.1:" + line.replace('"', " ").replace(",", " ").split()[0].rpartition(":")[2]
        created = await client.post(f"{service}/v1/endpoints", json={"url": f"{receiver.url}/hooks"})
        assert created.status_code == 201, created.text
        shop = f"http://127.0.0.1:{port}/orders"
        taken = await client.post(shop, json={"number": 1})
        assert taken.status_code == 201, taken.text
        assert (await client.post(shop, json={"number": 1})).status_code == 409
        event_id = taken.json()["event_id"]
        await until(lambda: event_id in receiver.ledger)
        await asyncio.sleep(0.6)
        assert dict(receiver.ledger) == {event_id: 1}
        assert json.loads(receiver.received[0].body) == {"number": 1}
        checks = (await client.get(f"{service}/readyz")).json()["checks"]
        assert [check["state"] for name, check in checks.items() if name.startswith("outbox")] == ["following"]
    with sqlite3.connect(tmp_path / "shop.sqlite3") as file:
        assert file.execute("SELECT count(*) FROM gatepost_outbox").fetchone() == (0,)
    file.close()


async def test_the_command_is_gatepost_with_the_projects_settings(tmp_path: Path) -> None:
    """Every command works, and a wrong setting is refused as in gatepost.toml."""
    assert "serve" in await manage(tmp_path, "gatepost", "--help")
    program = "import settings; settings.GATEPOST['listn'] = {'port': 1}; settings.GATEPOST['outboxes'] = ['default']; "
    run = "import sys; sys.argv[0] = 'manage.py'; from django.core.management import execute_from_command_line as run; run(sys.argv)"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program + run,
        "gatepost",
        "serve",
        cwd=PROJECT,
        env={**environ(tmp_path), "DJANGO_SETTINGS_MODULE": "settings"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode == 2
    assert b"GATEPOST_LISTN_PORT is not a setting; write GATEPOST_LISTEN_PORT" in error
