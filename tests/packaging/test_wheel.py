"""What is published holds what it must and nothing else, and works where only it is installed."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gatepost.clock import SYSTEM_CLOCK
from tests.packaging.building import ROOT, build, clean_environment, find_uv, fresh_environment

PATIENCE = 45.0
"""Seconds a step may take on a busy machine."""

pytestmark = pytest.mark.skipif(find_uv() is None, reason="uv is not installed; `make` does it")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive."""
    return build(tmp_path_factory.mktemp("dist"))


def sources() -> set[str]:
    """Files of the package, as they lie in the tree."""
    package = ROOT / "src"
    return {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".db") and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """A template or a migration that is left behind shows only at a user's; a test that is carried along shadows his own."""
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode())
    info = {name for name in names if ".dist-info/" in name}
    assert names - info == sources()
    assert {"gatepost/py.typed", "gatepost/store/migrations/outbox/sqlite.sql"} <= names
    assert {name.partition(".dist-info/")[2] for name in info} == {
        "METADATA",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "RECORD",
    }
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {"dispatch", "server", "postgres", "otel", "grpc", "dns"}
    plain = [name for name in metadata.get_all("Requires-Dist", []) if "extra ==" not in name]
    assert sorted(re.split(r"[<>=]", name)[0] for name in plain) == ["httptools", "idna"]


def test_the_source_archive_holds_what_is_needed_to_test_and_build(built: tuple[Path, Path]) -> None:
    """Distributions build from it and run the tests; a developer's databases and environments stay at home."""
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"Makefile", "README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "uv.lock"}
    assert wanted <= names
    assert {"src/gatepost/py.typed", "tests/conftest.py", "docs/glossary.md", "bench/__init__.py"} <= names
    assert {name for name in names if name.startswith("src/")} == {f"src/{name}" for name in sources()}
    unwanted = re.compile(r"(^|/)(\.venv|\.git/|__pycache__|bench/results)|\.(pyc|db|db-wal|whl)$|^dist/|^docs/_build/")
    assert [name for name in names if unwanted.search(name)] == []


def test_without_extras_deadlines_work_and_the_command_names_what_to_install(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """`pip install gatepost` is for programs that want deadlines or a client; the service is said to be one extra away."""
    programs = fresh_environment(tmp_path, built[0])
    work = (
        "from gatepost.deadline import deadline, remaining\n"
        "with deadline(0.5):\n    assert 0 < remaining() <= 0.5\n"
        "from gatepost import DispatchClient, verify, sign\n"
        "import gatepost\nprint(gatepost.__file__)"
    )
    done = run(programs, tmp_path, "python", "-c", work)
    assert done.stdout.startswith(str(tmp_path)), done.stdout + done.stderr
    done = run(programs, tmp_path, "gatepost", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"gatepost: \w+ is not installed; install the extra: pip install 'gatepost\[server\]'\n", done.stderr
    )


def test_the_service_delivers_from_the_wheel_in_a_fresh_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """The first minutes of every user: install with one extra, start, register, publish, delivered. Away from the tree."""
    programs = fresh_environment(tmp_path, built[0], ["server"])
    assert "serve" in run(programs, tmp_path, "gatepost", "--help").stdout
    with (
        started(programs, tmp_path, "python", "-m", "gatepost.testing.receiver", "--port", "0") as receiver,
        started(programs, tmp_path, "gatepost", "serve", "--port", "0") as service,
    ):
        target, url = receiver.url(), service.url()
        assert ask(url, "/healthz") == {"status": "ok"}
        assert ask(url, "/v1/endpoints", {"url": f"{target}/hooks", "event_types": ["order.*"]})["secret"]
        published = run(
            programs, tmp_path, "gatepost", "publish", "order.paid", "--data", '{"number": 1001}', GATEPOST_URL=url
        )
        assert published.returncode == 0, published.stderr
        limit = SYSTEM_CLOCK.monotonic() + PATIENCE
        while ask(target, "/__stats")["unique_ids"] != 1:
            assert SYSTEM_CLOCK.monotonic() < limit, "not delivered"
            threading.Event().wait(0.05)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE) == 0


def run(
    programs: Path, directory: Path, name: str, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """A program of a fresh environment, run outside this repository."""
    return subprocess.run(
        [str(programs / name), *arguments],
        cwd=directory,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Started:
    """A program that runs until the test ends, and what it says."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    def url(self) -> str:
        """Where it says that it listens."""
        limit = SYSTEM_CLOCK.monotonic() + PATIENCE
        while (found := re.search(r"http://127\.0\.0\.1:\d+", self._log.read_text())) is None:
            assert self.process.poll() is None, self._log.read_text()
            assert SYSTEM_CLOCK.monotonic() < limit, self._log.read_text()
            threading.Event().wait(0.05)
        return found.group()


@contextmanager
def started(programs: Path, directory: Path, name: str, *arguments: str) -> Iterator[Started]:
    """Run a program in the background; killed at the end if it still runs."""
    log = directory / f"{arguments[1]}.log"
    settings = clean_environment(
        PYTHONUNBUFFERED="1",
        GATEPOST_EGRESS_SCHEMES="https,http",
        GATEPOST_EGRESS_ALLOW_CIDRS="127.0.0.0/8",
        GATEPOST_INGEST_MAX_LOOP_LAG="60",
    )
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(programs / name), *arguments], cwd=directory, env=settings, stdout=output, stderr=output, text=True
        )
    try:
        yield Started(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def ask(base: str, path: str, body: object = None) -> dict[str, object]:
    """What curl would get, parsed."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=PATIENCE)
    try:
        sent = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json", "accept": "application/json"}
        connection.request("GET" if body is None else "POST", path, sent, headers)
        response = connection.getresponse()
        answer = response.read()
        assert 200 <= response.status < 300, answer
        found: dict[str, object] = json.loads(answer)
        return found
    finally:
        connection.close()
