"""The PostgreSQL that tests use: fresh databases, crashes, and no server left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from gatepost.testing.postgres import PostgresServer, shared_server

CHILD = """
import sys
from gatepost.testing.postgres import shared_server
server = shared_server()
print(server.run_sql("SHOW data_directory").strip(), flush=True)
sys.stdin.read()
"""


def test_each_database_is_fresh_and_a_template_is_filled_once() -> None:
    """Tests must not see each other's rows."""
    server = shared_server()
    filled: list[str] = []

    def fill(url: str) -> None:
        filled.append(url)
        server.run_sql("CREATE TABLE t AS SELECT 7 AS n", "example")

    for _ in range(2):
        url = server.create_database(server.template("example", fill))
        name = url.rpartition("/")[2]
        assert server.run_sql("SELECT n FROM t", name) == "7\n"
        server.run_sql("DELETE FROM t", name)
        server.drop_database(url)
    assert len(filled) == 1


def test_what_was_committed_outlives_a_crash_of_the_server() -> None:
    """`immediate` is what chaos tests do to it."""
    server = PostgresServer()
    try:
        server.run_sql("CREATE TABLE t AS SELECT 7 AS n")
        server.restart("immediate")
        assert server.run_sql("SELECT n FROM t") == "7\n"
        server.stop()
        assert not server.running
        server.start()
        assert server.running
    finally:
        server.close()


def test_the_server_ends_with_its_process_however_that_dies() -> None:
    """A killed test run must not leave servers behind."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdin is not None
    data = Path(child.stdout.readline().strip())
    pid = int((data / "postmaster.pid").read_text().split()[0])
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
    subprocess.run(["rm", "-rf", str(data.parent)], check=True)
