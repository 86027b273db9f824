"""What `deploy/` gives operators fits this version: settings, options, ports, paths and grace periods are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from gatepost.service.app import REQUESTS_GRACE
from gatepost.service.cli.root import app
from gatepost.service.config import Settings, load_settings
from gatepost.service.processes import DRAIN_SLACK
from gatepost.service.settings_table import SETTINGS
from tests.packaging.building import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "gatepost.service"
COMPOSE = DEPLOY / "compose.yaml"
CONTAINER = DEPLOY / "container" / "Containerfile"
TEXTS = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json")
YAML = [path for path in TEXTS if path.suffix in (".yml", ".yaml")]


def composed() -> dict[str, Any]:
    """The compose file."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return document


def seconds(text: str) -> float:
    """`60s` as a number."""
    return float(text.removesuffix("s"))


def test_every_setting_named_is_one() -> None:
    """The service refuses to start with one that it does not know."""
    known = {setting.env for setting in SETTINGS}
    named = {name for path in TEXTS for name in re.findall(r"GATEPOST_[A-Z_]+", path.read_text())}
    assert len(named) > 6
    assert named - known == set()


def test_every_command_is_one_and_its_options_are_too() -> None:
    """A unit with a misspelt option starts at the first boot after the next deploy, and not before."""
    lines = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    commands = [shlex.split(line)[1:] for line in lines] + [composed()["services"]["gatepost"]["command"][1:]]
    commands += [
        json.loads(words)[1:] for words in re.findall(r'^CMD (\["gatepost".*\])$', CONTAINER.read_text(), re.MULTILINE)
    ]
    assert len(commands) == 3
    group: Any = typer.main.get_command(app)
    for name, *arguments in commands:
        group.commands[name].make_context(name, arguments)


def test_the_example_configuration_is_accepted() -> None:
    """It is copied as it stands."""
    settings = load_settings(DEPLOY / "systemd" / "gatepost.toml", {}, open_files=65_536)
    assert (settings.fleet.processes, settings.listen.port) == (2, Settings().listen.port)


def test_nothing_is_killed_before_its_drain_can_end() -> None:
    """A kill in the middle of a drain means every delivery in flight once more."""
    longest = Settings().grace + REQUESTS_GRACE + DRAIN_SLACK
    [unit] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert float(unit) >= longest
    assert seconds(composed()["services"]["gatepost"]["stop_grace_period"]) >= longest
    texts = UNIT.read_text() + COMPOSE.read_text()
    said = re.findall(r"(\d+) s (?:as it comes|for attempts in flight)|, (\d+) s to answer", texts)
    assert {float(one or other) for one, other in said} == {Settings().grace, REQUESTS_GRACE + DRAIN_SLACK}


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_yaml_can_be_read(path: Path) -> None:
    """By the program that it is for; here at least as YAML."""
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_everything_mounted_or_copied_exists() -> None:
    """Docker makes an empty directory of what is missing, and the program behind it starts with nothing."""
    for service in composed()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in composed()["volumes"], source
    build = composed()["services"]["gatepost"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]) == CONTAINER
    ignored = (DEPLOY / "container" / "Containerfile.dockerignore").read_text()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINER.read_text(), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}\n" in ignored, source
    [rules] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["rule_files"]
    assert (DEPLOY / "prometheus" / rules).exists()


def test_ports_and_names_meet() -> None:
    """Who asks whom, where: a port that is off by one shows as an empty dashboard."""
    services = composed()["services"]
    port = Settings().listen.port
    assert services["gatepost"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    text = CONTAINER.read_text()
    assert f"GATEPOST_LISTEN_PORT={port}" in text
    assert f"EXPOSE {port}\n" in text
    assert f"http://127.0.0.1:{port}/healthz" in text
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert [one["static_configs"][0]["targets"] for one in scrape] == [[f"gatepost:{port}"]]
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "gatepost.yaml").read_text())["providers"]
    mounts = services["grafana"]["volumes"]
    assert f"./grafana/dashboard.json:{provider['options']['path']}/gatepost.json:ro" in mounts
    asked = re.findall(r'"uid":\s*"([^"]*)"', json.dumps(_datasources(DEPLOY / "grafana" / "dashboard.json")))
    assert {uid for uid in asked if not uid.startswith("$") and not uid.startswith("-- ")} <= {source["uid"]}


def _datasources(dashboard: Path) -> list[Any]:
    """What its panels read from."""
    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value[name] for name in ("datasource",) if isinstance(value.get(name), dict))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(json.loads(dashboard.read_text()))
    return found


def test_images_are_pinned_and_the_service_is_nobody_special() -> None:
    """`latest` changes under a running installation, and a process that needs no rights gets none."""
    images = [service["image"] for service in composed()["services"].values()]
    images += re.findall(r"^FROM (\S+)", CONTAINER.read_text(), re.MULTILINE)
    assert [image for image in images if not re.search(r":v?\d+\.\d+", image)] == []
    assert re.search(r"^USER 10001:10001$", CONTAINER.read_text(), re.MULTILINE)
    service = composed()["services"]["gatepost"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    published = [port for one in composed()["services"].values() for port in one.get("ports", [])]
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    [version] = re.findall(r"UV_VERSION := (.+)", (ROOT / "Makefile").read_text())
    assert f"uv=={version}" in CONTAINER.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    """A directive that is misspelt is ignored with a line in the journal that nobody reads."""
    unit = tmp_path / "gatepost.service"
    unit.write_text(UNIT.read_text().replace("/opt/gatepost/bin/gatepost", "/bin/true"))
    for arguments in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=20", "--no-pager"]):
        done = subprocess.run(
            ["systemd-analyze", *arguments, str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if arguments[0] == "verify":
            assert done.stderr == ""
