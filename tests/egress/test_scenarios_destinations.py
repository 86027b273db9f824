"""Scenarios 1 to 16, 22, 23, 47, 48 and 51 to 54 of the egress page: names, addresses, resolvers and what never decides."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gatepost
from gatepost import Dispatcher
from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import DestinationDenied, ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.dial import Dial
from gatepost.service.egress_check import CASE_FIELDS, check_case
from gatepost.testing.hostile import HostileServer
from gatepost.wire.egress import Denied, EgressPolicy, check_addresses
from gatepost.wire.headers import HeaderRefused, check_header
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.egress.kit import DEFAULT, IDENTITY, INSIDE, NAME, PUBLIC, assert_denied, canary, receiver
from tests.faults.kit import ScriptedResolver, closed_port, not_found
from tests.hostile.engine import SMALL, FixedResolver, assert_nothing_held, limits, wait_idle

CORPUS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "egress.json").read_text(encoding="utf-8"))
SOURCE = Path(gatepost.__file__).parent


@pytest.mark.parametrize(
    "case", [case for case in CORPUS["cases"] if case["stage"] in ("url", "dns", "header")], ids=lambda case: case["id"]
)
def test_scenario_01_the_corpus_through_the_pure_rules(case: dict[str, Any]) -> None:
    """Verdict and reason as the case says. Redirect cases are in test_redirects.py, since hops are the client's."""
    if case["stage"] == "header":
        name, value = case["header"]
        if case["expect"] == "allow":
            assert check_header(name, value) == name.lower()
        else:
            with pytest.raises(HeaderRefused) as caught:
                check_header(name, value)
            assert caught.value.code == case["reason_code"]
        return
    verdict = check_case({name: case[name] for name in CASE_FIELDS if name in case}, EgressPolicy())
    assert (verdict.allowed, verdict.reason) == (case["expect"] == "allow", case["reason_code"])


def test_scenario_01_the_rules_open_no_socket() -> None:
    """They import nothing that could; patching sockets would only show what one run did."""
    pure = [*SOURCE.glob("wire/egress*.py"), SOURCE / "wire" / "headers.py", SOURCE / "wire" / "reasons.py"]
    assert len(pure) >= 6
    for path in pure:
        assert imports(path).isdisjoint({"socket", "ssl", "asyncio", "os", "select"}), path


def test_scenario_02_random_addresses_against_the_table() -> None:
    """tests/model/test_egress_properties.py holds the properties; here that they exist, for the number."""
    names = functions(Path(__file__).parents[1] / "model" / "test_egress_properties.py")
    assert "test_no_wrapped_form_of_an_ipv4_address_passes_whatever_is_allowed" in names
    assert "test_the_default_verdict_is_what_the_table_says" in names


def test_scenario_03_random_urls_against_a_second_parser() -> None:
    """tests/model/test_egress_second_parser.py compares with ada-url; here that it exists, for the number."""
    names = functions(Path(__file__).parents[1] / "model" / "test_egress_second_parser.py")
    assert {"test_built_urls_name_one_host", "test_mutated_urls_of_the_corpus_name_one_host"} <= names


async def test_scenario_04_loopback_is_refused_at_registration_and_delivery() -> None:
    """By address and by name, under the default rules."""
    async with HostileServer("ok") as server, Dispatcher.open("memory://", egress=DEFAULT) as gp:
        for host in ("127.0.0.1", "localhost", "[::1]"):
            url = f"http://{host}:{server.port}/"
            with pytest.raises(DestinationDenied):
                await gp.endpoints.create(url)
            reason = Reason.HOST_SPECIAL_USE if host == "localhost" else Reason.ADDR_LOOPBACK
            await assert_denied(gp.client, url, reason)
        assert server.connections == 0


async def test_scenario_05_a_name_that_leads_to_loopback() -> None:
    """Registered as a name like any other, refused when it is connected to, after one question."""
    async with HostileServer("ok") as server:
        resolver = ScriptedResolver(("127.0.0.1",))
        async with DispatchClient(limits(), egress=DEFAULT, resolver=resolver) as client:
            await assert_denied(client, f"http://{NAME}:{server.port}/", Reason.ADDR_LOOPBACK)
        assert resolver.asked == [NAME]
        assert server.connections == 0


async def test_scenario_06_rebinding_between_registration_and_delivery() -> None:
    """The answer at registration protects nobody: what counts is the answer that is connected to."""
    async with receiver() as (server, _):
        url = f"http://{NAME}:{server.port}/"
        resolver = ScriptedResolver(("127.0.0.1",), (INSIDE,))
        async with DispatchClient(limits(dns_ttl=0.001), egress=PUBLIC, resolver=resolver) as client:
            assert not isinstance(client.check_url(url), Denied)
            assert (await client.deliver(url, SMALL, IDENTITY)).delivered
            client.forget(f"http://{NAME}:{server.port}")
            await asyncio.sleep(0.01)
            await assert_denied(client, url, Reason.ADDR_OPERATOR_DENIED)
        assert server.request_count == 1


async def test_scenario_07_rebinding_inside_one_attempt() -> None:
    """One question, and the socket goes to its answer by number: a second answer would be used by nobody."""
    async with receiver() as (server, _):
        resolver = ScriptedResolver(("127.0.0.1",), (INSIDE,))
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            attempt = await client.deliver(f"http://{NAME}:{server.port}/", SMALL, IDENTITY)
            assert attempt.delivered
            assert attempt.address == f"127.0.0.1:{server.port}"
            assert len(resolver.asked) == 1


async def test_scenario_08_rebinding_behind_keep_alive() -> None:
    """Until its age the old connection goes on to the old peer; the next one asks again and is refused."""
    async with receiver() as (server, _):
        url = f"http://{NAME}:{server.port}/"
        resolver = ScriptedResolver(("127.0.0.1",), (INSIDE,))
        policy = limits(max_connection_age=0.2, dns_ttl=0.001)
        async with DispatchClient(policy, egress=PUBLIC, resolver=resolver) as client:
            for number in range(3):
                attempt = await client.deliver(url, SMALL, IDENTITY)
                assert attempt.delivered
                assert attempt.reused is (number > 0)
            await asyncio.sleep(0.21)
            await assert_denied(client, url, Reason.ADDR_OPERATOR_DENIED)
            assert len(resolver.asked) == 2
        assert server.connections == 1


@pytest.mark.parametrize("answers", [("127.0.0.1", INSIDE), (INSIDE, "127.0.0.1")])
async def test_scenario_09_mixed_answers_connect_to_nobody(answers: tuple[str, str]) -> None:
    """Whichever comes first."""
    async with receiver() as (server, _):
        resolver = ScriptedResolver(answers)
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            await assert_denied(client, f"http://{NAME}:{server.port}/", Reason.DNS_MIXED_ANSWERS)
        assert server.connections == 0


async def test_scenario_10_the_second_of_two_good_addresses() -> None:
    """The first refuses; the second is used, and nobody who was not in the answer."""
    async with HostileServer("ok", host="127.0.0.3") as server, canary(server.port):
        resolver = ScriptedResolver(("127.0.0.2", "127.0.0.3"))
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            attempt = await client.deliver(f"http://{NAME}:{server.port}/", SMALL, IDENTITY)
            assert attempt.delivered
            assert attempt.address == f"127.0.0.3:{server.port}"


async def test_scenario_11_forty_answers() -> None:
    """No honest zone has them."""
    resolver = ScriptedResolver([f"93.184.216.{number}" for number in range(40)])
    async with DispatchClient(limits(), egress=DEFAULT, resolver=resolver) as client:
        await assert_denied(client, f"http://{NAME}/", Reason.DNS_TOO_MANY_ANSWERS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux connects 0.0.0.0 to loopback")
async def test_scenario_12_a_peer_that_is_not_who_was_dialled() -> None:
    """Linux connects 0.0.0.0 to 127.0.0.1: a real case of a socket that ends up elsewhere. Closed before a byte is sent."""
    async with HostileServer("tls-stall") as server:
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def connected(sock: socket.socket, _address: str) -> None:
            sock.close()
            ended.set_result(sock)

        dial = Dial(
            asyncio.get_running_loop(),
            ["0.0.0.0"],
            server.port,
            connected,
            ended.set_result,
        )
        dial.start()
        assert await ended is Reason.PEER_MISMATCH
        await server.wait_disconnected()
        assert server.bytes_seen == 0, "no ClientHello"


async def test_scenario_13_an_allowed_ipv4_network_opens_no_mapped_address() -> None:
    """127.0.0.0/8 is allowed; `::ffff:127.0.0.1` is another family and stays refused."""
    policy = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
    async with HostileServer("ok") as server:
        resolver = ScriptedResolver(("::ffff:127.0.0.1",))
        async with DispatchClient(limits(), egress=policy, resolver=resolver) as client:
            await assert_denied(client, f"http://{NAME}:{server.port}/", Reason.ADDR_IPV4_MAPPED)
            await assert_denied(client, f"http://[::ffff:127.0.0.1]:{server.port}/", Reason.ADDR_IPV4_MAPPED)
        assert server.connections == 0


async def test_scenario_14_no_list_opens_a_metadata_service() -> None:
    """An allow-list that covers it does not mean it."""
    policy = EgressPolicy(schemes=("http",), allow_cidrs=("169.254.0.0/16", "0.0.0.0/0", "fd00::/8"))
    for address in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254"):
        async with DispatchClient(limits(), egress=policy, resolver=ScriptedResolver((address,))) as client:
            await assert_denied(client, f"http://{NAME}/", Reason.ADDR_METADATA)


async def test_scenario_16_a_reload_that_denies_a_pooled_peer() -> None:
    """The connection is dropped when it is borrowed, and the delivery refused."""
    async with HostileServer("ok") as server:
        resolver = ScriptedResolver(("127.0.0.1",))
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            url = f"http://{NAME}:{server.port}/"
            assert (await client.deliver(url, SMALL, IDENTITY)).delivered
            client.egress = DEFAULT
            assert_nothing_held(client, idle=1)
            await assert_denied(client, url, Reason.ADDR_LOOPBACK)
            await wait_idle(client, 0)
            await server.wait_disconnected()
        assert server.request_count == 1


PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "http_proxy", "https_proxy", "all_proxy")


async def test_scenario_22_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spelling at once, with and without NO_PROXY."""
    async with receiver() as (server, inside):
        for variable in PROXY_VARIABLES:
            monkeypatch.setenv(variable, inside.url)
        for no_proxy in ("", "*", "127.0.0.1"):
            monkeypatch.setenv("NO_PROXY", no_proxy)
            monkeypatch.setenv("no_proxy", no_proxy)
            async with DispatchClient(limits(), egress=PUBLIC) as client:
                assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered


async def test_scenario_23_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Authorization that nobody configured."""
    for name in (".netrc", "netrc"):
        (tmp_path / name).write_text("default login a password b\nmachine 127.0.0.1 login a password b\n")
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with receiver() as (server, _), DispatchClient(limits(), egress=PUBLIC) as client:
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        assert b"authorization" not in server.requests[0].head.lower()


class HalfDead:
    """Answers for `good.`, never for anybody else."""

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(self, host: str) -> Any:
        """Wait for ever unless it is `good.`."""
        self.asked += 1
        if not host.startswith("good"):
            await asyncio.Event().wait()
        return await FixedResolver({host: ("127.0.0.1",)}).resolve(host)


async def test_scenario_47_two_hundred_hanging_names_beside_twenty_good_ones() -> None:
    """The good ones are delivered within a bound while the bad ones hang, and each bad one ends at its limit."""
    async with HostileServer("ok") as server:
        policy = limits(connect_timeout=0.4, max_connections=500)
        async with DispatchClient(policy, egress=PUBLIC, resolver=HalfDead()) as client:
            hanging = [
                asyncio.create_task(
                    client.deliver(f"http://dead-{number}.example.com/", SMALL, IDENTITY, tenant=f"t{number % 100}")
                )
                for number in range(200)
            ]
            await asyncio.sleep(0)
            began = SYSTEM_CLOCK.monotonic()
            good = await asyncio.gather(
                *(
                    client.deliver(f"http://good{number}.example.com:{server.port}/", SMALL, IDENTITY, tenant="good")
                    for number in range(20)
                )
            )
            assert all(attempt.delivered for attempt in good), good
            assert SYSTEM_CLOCK.monotonic() - began < 0.4
            for task in hanging:
                attempt = await task
                assert attempt.phase is Phase.DNS
                assert attempt.reason in (Reason.DNS_TIMEOUT, Reason.DNS_OVERLOAD), attempt
                assert attempt.elapsed < 1.4


ANSWERS: list[tuple[object, Reason]] = [
    (not_found("dns_temporary_failure", temporary=True), Reason.DNS_TEMPORARY_FAILURE),
    (not_found("dns_no_address", temporary=False), Reason.DNS_NO_ADDRESS),
    (ResolveError("a code nobody knows", temporary=True), Reason.DNS_TEMPORARY_FAILURE),
    (ResolveError("a code nobody knows", temporary=False), Reason.DNS_NO_ADDRESS),
    (socket.gaierror(socket.EAI_FAIL, "failed"), Reason.DNS_TEMPORARY_FAILURE),
    (UnicodeError("label too long"), Reason.DNS_TEMPORARY_FAILURE),
    (RuntimeError("a bug"), Reason.DNS_TEMPORARY_FAILURE),
    (["fe80::1%eth0"], Reason.IPV6_ZONE_ID),
    ([], Reason.DNS_NO_ADDRESS),
]


@pytest.mark.parametrize(("answer", "reason"), ANSWERS, ids=lambda value: ascii(value)[:40])
async def test_scenario_48_whatever_a_resolver_does_is_classified(answer: Any, reason: Reason) -> None:
    """And the client lives: the next name is asked for as if nothing had happened."""
    async with HostileServer("ok") as server:
        resolver = ScriptedResolver(answer, ("127.0.0.1", "127.0.0.1", "127.0.0.1"))
        async with DispatchClient(limits(), egress=PUBLIC, resolver=resolver) as client:
            attempt = await client.deliver(f"http://{NAME}:{server.port}/", SMALL, IDENTITY)
            assert (attempt.phase, attempt.reason) == (Phase.DNS, reason), attempt
            assert_nothing_held(client)
            other = await client.deliver(f"http://other.example.com:{server.port}/", SMALL, IDENTITY)
            assert other.delivered, "three times the same address is one address"
            assert server.connections == 1


@pytest.mark.parametrize("answer", ["not an address", "1.2.3", "::g", "", "127.0.0.1 ", "0x7f000001"])
async def test_scenario_48_a_malformed_answer_is_refused_and_never_dialled(answer: str) -> None:
    """A resolver of one's own may have a bug."""
    async with DispatchClient(limits(), egress=PUBLIC, resolver=ScriptedResolver((answer,))) as client:
        attempt = await client.deliver(f"http://{NAME}:{closed_port()}/", SMALL, IDENTITY)
        assert not attempt.delivered
        assert attempt.phase is Phase.DNS, attempt
        assert_nothing_held(client)


async def test_scenario_51_a_private_and_an_unresolvable_name_say_nothing_of_the_inside() -> None:
    """A customer who can probe names must not read our split horizon from texts: codes only, and no address in any of them."""
    async with DispatchClient(limits(), egress=DEFAULT, resolver=ScriptedResolver(("10.1.2.3",))) as client:
        private = await client.deliver(f"http://{NAME}/", SMALL, IDENTITY)
    missing = ScriptedResolver(not_found("dns_no_address", temporary=False))
    async with DispatchClient(limits(), egress=DEFAULT, resolver=missing) as client:
        unknown = await client.deliver(f"http://{NAME}/", SMALL, IDENTITY)
    for attempt in (private, unknown):
        assert attempt.address is None
        assert "10.1.2.3" not in repr(attempt)
        assert isinstance(attempt.reason, Reason)


async def test_scenario_52_registration_and_delivery_ask_the_same_function() -> None:
    """One object, one state of the policy: what a reload changes is changed for both at once."""
    async with HostileServer("ok") as server, Dispatcher.open("memory://", egress=PUBLIC) as gp:
        await gp.endpoints.create(server.url)
        assert (await gp.client.deliver(server.url, SMALL, IDENTITY)).delivered
        gp.client.egress = DEFAULT
        with pytest.raises(DestinationDenied) as caught:
            await gp.endpoints.create(server.url)
        attempt = await assert_denied(gp.client, server.url, Reason.ADDR_LOOPBACK)
        assert caught.value.reason == attempt.reason


NETWORK = {"ssl", "socket", "http", "urllib.request", "httpx", "requests", "aiohttp", "aiodns", "pycares", "smtplib"}
ALLOWED = {
    "net": NETWORK,
    "service/app.py": {"socket"},  # listens
    "service/notify.py": {"socket"},  # a datagram to systemd, on this machine
    "service/child.py": {"socket"},  # the line to its parent, inherited; and this machine's name
    "service/processes.py": {"socket"},  # listens for its children
    "service/demo.py": {"socket"},  # finds a free port
    "service/doctor/endpoint.py": {
        "socket"
    },  # holds what `gatepost.net.dial` connected, at an address that was checked
    "service/doctor/handshake.py": {
        "socket",
        "ssl",
    },  # verifies on such a socket, and sends nothing behind the handshake
    "service/cli/api_client.py": {"http"},  # the command line's way to its own API
    "testing": NETWORK,
    "deadline/clients": NETWORK,  # a deadline for the calls of other programs, with their clients
    "deadline/guard.py": {"socket", "ssl"},  # looks for calls without a deadline in other programs' tests
    "deadline/tiers.py": {"httpx", "aiohttp"},  # types of their timeouts
}
"""Who may import what. Everything of the service that calls out goes through `gatepost.net`."""
FOR_OTHER_PROGRAMS = ("gatepost.deadline.clients", "gatepost.deadline.guard", "gatepost.testing")
BORROWERS = ("deadline/", "testing/", "service/cli/", "service/demo")
"""Who may import those: themselves, and commands that are not the service."""


def test_scenario_53_only_the_connector_can_call_out() -> None:
    """Deliveries, test events and probes: no other module has the means."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        allowed = next((names for prefix, names in ALLOWED.items() if place.startswith(prefix)), set())
        found = {
            banned for name in imports(path) for banned in NETWORK if name == banned or name.startswith(banned + ".")
        }
        assert found <= allowed, (place, found)
        borrowed = {name for name in imports(path) if name.startswith(FOR_OTHER_PROGRAMS)}
        assert not borrowed or place.startswith(BORROWERS), (place, borrowed)


def test_scenario_54_optimised_python_gives_the_same_verdicts() -> None:
    """`python -O` removes asserts; no check may be one. The same run in a bare interpreter needs none of the extras."""
    cases = [case for case in CORPUS["cases"] if case["stage"] in ("url", "dns")]
    fields = [{name: case[name] for name in CASE_FIELDS if name in case} for case in cases]
    program = (
        "import json, sys\n"
        "for banned in ('fastapi', 'typer', 'cryptography', 'uvicorn', 'prometheus_client', 'pydantic'): sys.modules[banned] = None\n"
        "from gatepost.service.egress_check import check_case\n"
        "from gatepost.wire.egress import EgressPolicy\n"
        "assert False, 'this is -O'\n"
        "print(json.dumps([check_case(case, EgressPolicy()).reason for case in json.load(sys.stdin)]))\n"
    )
    for interpreter in ([sys.executable, "-O"], [sys.executable, "-OO"]):
        result = subprocess.run(
            [*interpreter, "-c", program],
            input=json.dumps(fields),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        )
        assert json.loads(result.stdout) == [case["reason_code"] for case in cases]


def test_scenario_54_no_verdict_relies_on_the_interpreters_tables() -> None:
    """`is_global` and `is_private` changed between CPython 3.11 and 3.13: the table is our own."""
    for path in SOURCE.rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert names.isdisjoint({"is_global", "is_private", "is_reserved"}), path
    assert check_addresses(["93.184.216.34"], EgressPolicy()) == ("93.184.216.34",)


def imports(path: Path) -> set[str]:
    """Modules a file imports, at any depth of it, type checking included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def functions(path: Path) -> set[str]:
    """Names of the functions of a file."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}
