"""`gatepost doctor` against a running service: silent on a healthy one, and each planted fault found by its own code and no other."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.service.app import open_service
from gatepost.service.config import load_settings
from gatepost.testing.hostile import HostileServer
from tests.service.doctored import codes, deliver, examined, finding, gatepost, publish, register
from tests.service.running import ADMIN_KEY, EGRESS, POLICY, Api, api, settings_for, until
from tests.service.served import Served, environment


async def test_a_healthy_service_is_told_to_be_well(tmp_path: Path) -> None:
    """Whoever is woken by a doctor that always complains stops listening."""
    async with api(tmp_path) as service, HostileServer("ok") as server:
        await deliver(service, server, 300)
        document = await examined(service.running.url, code=0)
        assert document["findings"] == []
        assert document["healthy"] is True
        (process,) = document["processes"]
        assert document["asked"] == [process["node"]] == [service.running.dispatcher.statistics().node]
        (host,) = process["hosts"]
        assert host["attempts"] == host["opened"] + host["reused"] == 300
        assert process["store"]["error"] is None
        assert len(process["store"]["seconds"]) == 3
        told = await gatepost("doctor", "--url", service.running.url)
        assert (told.exit_code, told.stdout) == (0, f"nothing found; asked {process['node']}\n")


async def test_a_second_client_is_found_with_where_it_was_made(tmp_path: Path) -> None:
    """The first line of the checklist: two pools share nothing, and no limit holds for both."""
    async with (
        api(tmp_path) as service,
        HostileServer("ok") as server,
        DispatchClient(POLICY, egress=EGRESS, observer=service.running.dispatcher.client.observer) as second,
    ):
        await deliver(service, server, 1)
        with pytest.warns(RuntimeWarning, match="a second DispatchClient"):
            await second.deliver(server.url, b"{}")
        evidence = finding(await examined(service.running.url), "second_client", "warning")
        assert "2 clients are open, 2 came into use since the start" in evidence
        assert "test_doctor.py" in evidence


async def test_a_client_made_per_delivery_is_found_although_none_is_open_now(tmp_path: Path) -> None:
    """The usual form of it: closed again before anybody can count it."""
    async with api(tmp_path) as service, HostileServer("ok") as server:
        await deliver(service, server, 1)

        async def deliver_by_a_client_of_its_own() -> None:
            async with DispatchClient(POLICY, egress=EGRESS) as client:
                await client.deliver(server.url, b"{}")

        for _ in range(2):
            with pytest.warns(RuntimeWarning, match="a second DispatchClient"):
                await deliver_by_a_client_of_its_own()
        evidence = finding(await examined(service.running.url), "second_client", "warning")
        assert "1 clients are open, 3 came into use since the start" in evidence
        assert "deliver_by_a_client_of_its_own" in evidence


async def test_a_phase_without_a_limit_is_found_in_the_running_process(tmp_path: Path) -> None:
    """No configuration can say so; whatever put it there, one peer that hangs would hold a slot for ever."""
    policy = POLICY.evolve(read_timeout=2.5)
    async with api(tmp_path, policy=policy) as service:
        object.__setattr__(policy, "read_timeout", None)
        try:
            evidence = finding(await examined(service.running.url), "phase_limit_missing", "critical")
        finally:
            object.__setattr__(policy, "read_timeout", 2.5)
        assert evidence == "phase wait: no limit\nphase read: no limit"


async def test_a_host_below_its_reuse_is_found_and_a_quiet_one_is_not(tmp_path: Path) -> None:
    """The best early warning there is. A host with a few requests says nothing."""
    async with api(tmp_path) as service, HostileServer("http-1.0") as closes, HostileServer("http-1.0") as quiet:
        await deliver(service, quiet, 10, event_types=["quiet"])
        assert codes(await examined(service.running.url, code=0)) == []
        await deliver(service, closes, 80, event_types=["busy"])
        evidence = finding(await examined(service.running.url), "reuse_low", "warning")
        assert evidence == f"{closes.url[:-1]}: reuse 0.00, 80 connections for 80 requests in five minutes"


async def test_a_keep_alive_above_the_peers_is_found_whether_announced_or_seen(tmp_path: Path) -> None:
    """What is announced is honoured, and costs connections; what is not announced is learned from closes."""
    async with api(tmp_path) as service, HostileServer("keep-alive-timeout", seconds=5.0) as announces:
        await deliver(service, announces, 3)
        evidence = finding(await examined(service.running.url), "keepalive_above_peer", "notice")
        assert evidence == f"{announces.url[:-1]}: announces Keep-Alive: timeout=5"
        told = await examined(service.running.url, "--fail-on", "warning", code=0)
        assert codes(told) == ["keepalive_above_peer"]
    async with (
        api(tmp_path, database=f"sqlite:///{tmp_path}/other.db") as service,
        HostileServer("idle-limit", seconds=0.3) as closes,
    ):
        client = service.running.dispatcher.client

        async def all_closed() -> bool:
            return not client.statistics().connections_idle

        await deliver(service, closes, 1)
        await until(all_closed)
        await publish(service, 1)
        await until(all_closed)
        evidence = finding(await examined(service.running.url), "keepalive_above_peer", "notice")
        assert evidence.startswith(f"{closes.url[:-1]}: closes idle connections after 0.")
        assert evidence.endswith(" s without announcing it")


async def test_an_attempt_longer_than_a_part_lease_is_found(tmp_path: Path) -> None:
    """On a store of one process nothing comes of it, which is said; a single endpoint's own limits count as well."""
    async with api(tmp_path, policy=POLICY.evolve(read_timeout=40.0), shutdown_grace=50.0) as service:
        evidence = finding(await examined(service.running.url), "budget_above_lease", "notice")
        assert "an attempt may take 41.6 s" in evidence
    async with api(tmp_path) as service:
        endpoint = await register(service, "http://127.0.0.1:65000/", limits={"read_timeout": 60.0})
        evidence = finding(await examined(service.running.url), "budget_above_lease", "notice")
        assert f"an attempt at {endpoint} may take 61.6 s" in evidence


async def test_waits_for_a_connection_that_failed_are_found_by_host(tmp_path: Path) -> None:
    """Sustained, they mean a cap that is too tight or an endpoint that is too slow."""
    policy = POLICY.evolve(max_connections=2, max_per_host=2, pool_timeout=0.05)
    async with api(tmp_path, policy=policy, slots=2) as service, HostileServer("slow-ok", seconds=0.4) as slow:
        client = service.running.dispatcher.client
        await asyncio.gather(*(client.deliver(slow.url, b"{}", endpoint_id=f"e{number}") for number in range(6)))
        evidence = finding(await examined(service.running.url), "pool_timeouts", "warning")
        assert f"127.0.0.1:{slow.port}: 4 of 6 attempts" in evidence


async def test_a_pile_of_sockets_in_time_wait_towards_one_peer_is_found(tmp_path: Path) -> None:
    """Somebody on this machine opens a connection per request; the kernel keeps each local port for a minute."""
    async with api(tmp_path) as service, HostileServer("ok") as server:
        await deliver(service, server, 1)

        def open_and_close() -> None:
            for _ in range(600):
                socket.create_connection(("127.0.0.1", server.port)).close()

        await asyncio.to_thread(open_and_close)

        async def taken_in() -> bool:
            return server.open_connections <= 1  # the service's own

        await until(taken_in)
        evidence = finding(await examined(service.running.url), "time_wait_pile_up", "warning")
        assert f"127.0.0.1:{server.port}: " in evidence
        assert int(evidence.split(": ")[1].split()[0]) >= 500


async def test_redirects_that_are_followed_are_found_in_process_and_endpoint(tmp_path: Path) -> None:
    """What counts is the running process: a configuration may be several deployments ahead."""
    async with api(tmp_path, policy=POLICY.evolve(follow_redirects=True)) as service:
        evidence = finding(await examined(service.running.url), "redirects_on", "warning")
        assert evidence == "follow_redirects is true in the running process"
    async with api(tmp_path) as service:
        limits = {"follow_redirects": True}
        endpoint = await service.running.dispatcher.endpoints.create("http://127.0.0.1:65000/", limits=limits)
        evidence = finding(await examined(service.running.url), "redirects_on", "warning")
        assert evidence == f"{endpoint.id}: its own limits follow redirects"
        await service.running.dispatcher.endpoints.delete(endpoint.id)
    policy = POLICY.evolve(follow_redirects=True, redirect_cross_origin=True)
    async with api(tmp_path, policy=policy) as service:
        assert "go wherever" in finding(await examined(service.running.url), "redirects_on", "critical")


async def test_a_context_that_verifies_nothing_is_found(tmp_path: Path) -> None:
    """There is no setting for it, so only a look at the running process can tell."""
    async with api(tmp_path) as service:
        context = service.running.dispatcher.client.contexts.get(None)
        context.check_hostname = False
        assert finding(await examined(service.running.url), "verification_off", "critical").startswith("1 TLS contexts")


async def test_an_endpoint_that_nobody_verified_is_found(tmp_path: Path) -> None:
    """Its first delivery may be the one that fails."""
    async with api(tmp_path) as service:
        endpoint = await register(service, "https://127.0.0.1:65000/", probe=False)
        evidence = finding(await examined(service.running.url), "endpoint_unverified", "warning")
        assert evidence == f"{endpoint}: not_probed"


class HangingResolver:
    """Answers nobody."""

    async def resolve(self, host: str) -> Resolution:
        """Never."""
        await asyncio.Event().wait()
        raise AssertionError(host)


async def test_a_resolver_that_hangs_is_found(tmp_path: Path) -> None:
    """Known addresses go on for half a minute; then every delivery to a name fails in dns."""
    async with open_service(settings_for(tmp_path), resolver=HangingResolver()) as running:
        async with httpx.AsyncClient(base_url=running.url) as client:
            await register(Api(running, client), "https://hooks.example.com/", probe=False)
        document = await examined(running.url, "--fail-on", "critical")
        assert codes(document) == ["dns_hung", "endpoint_unverified"]
        assert document["findings"][0]["evidence"][0].startswith("hooks.example.com: no answer in 2.")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


async def test_a_full_disk_is_found_before_and_when_events_are_refused(small_disk: Path) -> None:
    """Deliveries go on by the reserve; producers get 503 until there is room."""
    async with api(small_disk) as service:
        await publish(service, 1)
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        (small_disk / "log").write_bytes(bytes(free - (30 << 20)))
        finding(await examined(service.running.url), "disk_low", "warning")
        (small_disk / "other").write_bytes(bytes(15 << 20))
        evidence = finding(await examined(service.running.url), "disk_full", "critical")
        assert "24 MiB are kept for finishing deliveries" in evidence


async def test_limits_of_a_file_that_do_not_run_are_found_when_it_is_compared(tmp_path: Path) -> None:
    """A configuration repository may be several deployments ahead of what a process runs."""
    file = tmp_path / "gatepost.toml"
    async with api(tmp_path) as service:
        limits = f"connect_timeout = {POLICY.connect_timeout}\nwrite_timeout = {POLICY.write_timeout}\n"
        file.write_text(f"[policy]\n{limits}read_timeout = {POLICY.read_timeout}\n")
        assert codes(await examined(service.running.url, "--compare", str(file), code=0)) == []
        file.write_text(f"[policy]\n{limits}read_timeout = 8.0\n")
        evidence = finding(await examined(service.running.url, "--compare", str(file)), "limits_differ", "notice")
        node = service.running.dispatcher.statistics().node
        assert f"{node}: phase wait=2.0, phase read=2.0, attempt_budget=3.6" in evidence
        assert f"{file}: phase wait=8.0" in evidence


def test_a_low_limit_on_open_files_is_found_in_the_process_that_has_it(tmp_path: Path) -> None:
    """The shell of whoever looks has another limit than the service, so the service tells."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost.service.cli", "serve"],
        cwd=tmp_path,
        env=environment(tmp_path, GATEPOST_SECURITY_ADMIN_KEY=ADMIN_KEY),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )
    service = Served(process)
    try:
        url = str(service.wait_for("listening")["url"])
        nobody = asyncio.run(gatepost("doctor", "--url", url))
        assert nobody.exit_code == 2
        assert "unauthorized" in nobody.output
        document = asyncio.run(examined(url, "--api-key", ADMIN_KEY))
        assert "RLIMIT_NOFILE is 256, 4096 are needed" in finding(document, "file_limit_low", "warning")
    finally:
        process.kill()
        process.wait()
        service.wait()


async def test_without_a_service_the_configuration_is_examined_and_said_to_be_all(tmp_path: Path) -> None:
    """Exit 2: a doctor that reached nobody must not say that all is well."""
    file = tmp_path / "gatepost.toml"
    file.write_text(f'database = "sqlite:///{tmp_path}/gatepost.db"\n[policy]\nfollow_redirects = true\n')
    assert load_settings(file, {}).policy.follow_redirects
    document = await examined("http://127.0.0.1:9", "--config", str(file), code=2)
    assert (document["source"], document["healthy"], codes(document)) == ("configuration", None, ["redirects_on"])
    told = await gatepost("doctor", "--url", "http://127.0.0.1:9", "--config", str(file))
    assert "no service at http://127.0.0.1:9" in told.stderr
    assert "seen: the configuration and this machine, no running service" in told.stdout
    assert (await gatepost("doctor", "--offline", "--config", str(file))).exit_code == 1
