"""Through a real PgBouncer that pools by transaction: publishing, owning, delivering, and producers' outboxes."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gatepost import Dispatcher, Publisher
from gatepost.testing.postgres_store import KEYS, gatepost_database
from gatepost.testing.receiver import Receiver
from tests.service.running import EGRESS

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PATIENCE = 60
EVENTS = 40
SERVER_CONNECTIONS = 4
"""Fewer than the clients have: each transaction is on another one."""


@contextmanager
def pgbouncer(home: Path, url: str) -> Iterator[str]:
    """A PgBouncer before the database of `url`, with its defaults but for the mode; its URL, for Gatepost."""
    there = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={there.port} user={there.username}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
        f"default_pool_size = {SERVER_CONNECTIONS}\n"
    )
    command = [str(PGBOUNCER), str(config)]
    if os.geteuid() == 0:  # it refuses to run as root
        account = pwd.getpwnam("nobody")
        for directory in (home, *home.parents[:2]):
            directory.chmod(directory.stat().st_mode | 0o011)
        os.chown(config, account.pw_uid, account.pw_gid)
        command[1:1] = ["-u", "nobody"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield f"postgresql://{there.username}@127.0.0.1:{port}{there.path}?pooling=transaction"
        finally:
            process.terminate()
            _, said = process.communicate(timeout=PATIENCE)
            print(said[-4_000:])  # pytest shows it when the test fails


async def listens(url: str) -> None:
    """Wait for it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


@pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer program here (Debian: apt-get install pgbouncer)")
async def test_everything_works_through_a_pgbouncer_that_pools_by_transaction(tmp_path: Path) -> None:
    """No prepared statement, no session lock and no LISTEN outlives a transaction there, and there are few server connections."""
    database = await asyncio.to_thread(gatepost_database, 8)
    async with Receiver(keep=1_000) as receiver:
        with pgbouncer(tmp_path, database) as url:
            await listens(url)
            opening = Dispatcher.open(url, keys=KEYS, egress=EGRESS, run=True)
            async with opening as gp, Publisher.open(url) as publisher, asyncio.timeout(PATIENCE):
                await gp.endpoints.create(receiver.url + "/ok", probe=False)
                await asyncio.gather(*(gp.publish("a", {"n": n}, idempotency_key=f"k{n}") for n in range(EVENTS)))
                again = await gp.publish("a", {"n": 0}, idempotency_key="k0")
                assert again.duplicate
                for number in range(EVENTS):
                    await publisher.publish("b", {"n": number})
                while receiver.statistics().unique_ids < 2 * EVENTS:  # noqa: ASYNC110 - its own count
                    await asyncio.sleep(0.05)
            assert receiver.statistics().duplicates == 0
