"""The c-ares resolver against a name server of the test's own: answers, chains, failures, and one channel for all."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from gatepost.errors import ConfigurationError, ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.names import NameCache
from gatepost.net.resolver import Resolution
from gatepost.net.resolver_aiodns import AioDnsResolver
from gatepost.testing.receiver import Receiver
from gatepost.testing.virtual import VirtualLoop, run_virtual
from gatepost.wire.reasons import Reason
from tests.hostile.engine import LOOPBACK, limits

installed = pytest.mark.skipif(
    importlib.util.find_spec("aiodns") is None, reason="aiodns is not installed: pip install 'gatepost[dns]'"
)

A, CNAME, AAAA = 1, 5, 28
NXDOMAIN, SERVFAIL = 3, 2
TTL = 77

ZONE: Mapping[str, list[tuple[int, str]] | int | None] = {
    "both.example.com": [(A, "127.0.0.1"), (A, "192.0.2.7"), (AAAA, "::1")],
    "four.example.com": [(A, "127.0.0.1")],
    "alias.example.com": [(CNAME, "middle.example.com"), (CNAME, "four.example.com"), (A, "127.0.0.1")],
    "empty.example.com": [],
    "broken.example.com": SERVFAIL,
    "silent.example.com": None,
}
"""Records, a response code, or no answer at all. Other names do not exist."""


def encoded(name: str) -> bytes:
    """A name as labels."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class NameServer(asyncio.DatagramProtocol):
    """Answers from `ZONE` and counts what is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.ports: set[int] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # asyncio's own type
        """Keep the transport."""
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer one question."""
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        name = ".".join(labels).lower()
        (kind,) = struct.unpack_from("!H", data, at + 1)
        question = data[12 : at + 5]
        self.asked.append((name, kind))
        self.ports.add(addr[1])
        known = ZONE.get(name, NXDOMAIN)
        if known is None:
            return
        code = known if isinstance(known, int) else 0
        records = [] if isinstance(known, int) else [record for record in known if record[0] in (kind, CNAME)]
        answer = b""
        owner = name
        for record_kind, value in records:
            content = encoded(value) if record_kind == CNAME else ipaddress.ip_address(value).packed
            answer += encoded(owner) + struct.pack("!HHIH", record_kind, 1, TTL, len(content)) + content
            if record_kind == CNAME:
                owner = value
        head = struct.pack("!HHHHHH", struct.unpack_from("!H", data)[0], 0x8180 | code, 1, len(records), 0, 0)
        self.transport.sendto(head + question + answer, addr)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[AioDnsResolver, NameServer]]:
    """A resolver that asks our own name server."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        NameServer, local_addr=("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]
    resolver = AioDnsResolver([f"127.0.0.1:{port}"], timeout=0.2, tries=1)
    try:
        yield resolver, server
    finally:
        await resolver.aclose()
        transport.close()


@installed
async def test_both_families_are_asked_and_the_ttl_is_told() -> None:
    """An IPv6-only receiver must be found, and a zone's TTL bounds how long an answer is kept."""
    async with served() as (resolver, server):
        found = await resolver.resolve("both.example.com")
        assert set(found.addresses) == {"127.0.0.1", "192.0.2.7", "::1"}
        assert (found.chain, found.ttl) == ((), TTL)
        assert sorted(server.asked) == [("both.example.com", A), ("both.example.com", AAAA)], "absolute: no search list"
        assert (await resolver.resolve("four.example.com")).addresses == ("127.0.0.1",)


@installed
async def test_the_cname_chain_is_told() -> None:
    """A customer's name may lead to one of our own by CNAME: the rules on names look at every link."""
    async with served() as (resolver, _):
        found = await resolver.resolve("alias.example.com")
        assert found.addresses == ("127.0.0.1",)
        assert found.chain == ("middle.example.com", "four.example.com")


@installed
@pytest.mark.parametrize(
    ("name", "code", "temporary"),
    [
        ("missing.example.com", Reason.DNS_NO_ADDRESS, False),
        ("empty.example.com", Reason.DNS_NO_ADDRESS, False),
        ("broken.example.com", Reason.DNS_TEMPORARY_FAILURE, True),
        ("silent.example.com", Reason.DNS_TEMPORARY_FAILURE, True),
        ("x" * 70 + ".example.com", Reason.DNS_TEMPORARY_FAILURE, True),
    ],
)
async def test_failures_are_told_by_code(name: str, code: Reason, temporary: bool) -> None:
    """A name that does not exist is the owner's to mend, a name server that fails is not."""
    async with served() as (resolver, _):
        with pytest.raises(ResolveError) as caught:
            await resolver.resolve(name)
        assert (caught.value.code, caught.value.temporary) == (code, temporary)


@installed
async def test_a_look_up_can_be_cancelled_and_leaves_nothing() -> None:
    """That is what it is for: a hanging name holds no thread."""
    async with served() as (resolver, _):
        task = asyncio.ensure_future(resolver.resolve("silent.example.com"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await resolver.resolve("four.example.com")).addresses == ("127.0.0.1",)


@installed
async def test_one_channel_serves_every_look_up() -> None:
    """Channels made per session have leaked tens of thousands of descriptors elsewhere."""
    async with served() as (resolver, _):
        await resolver.resolve("four.example.com")
        before = len(os.listdir("/proc/self/fd"))
        names = ("both.example.com", "alias.example.com", "empty.example.com", "missing.example.com")
        await asyncio.gather(*(resolver.resolve(name) for name in names * 50), return_exceptions=True)
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert resolver._channel is None


@installed
async def test_a_client_delivers_through_it() -> None:
    """The port is small, and this is a second thing that fits."""
    async with served() as (resolver, _), Receiver() as receiver:
        port = receiver.url.rstrip("/").rpartition(":")[2]
        async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
            attempt = await client.deliver(f"http://alias.example.com:{port}/", b"x")
            assert attempt.delivered, attempt


@installed
def test_one_resolver_belongs_to_one_loop() -> None:
    """c-ares calls back into the loop that made the channel."""
    resolver = AioDnsResolver(["127.0.0.1:9"], timeout=0.05, tries=1)

    async def ask() -> None:
        with pytest.raises(ResolveError):
            await resolver.resolve("four.example.com")

    async def close() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await resolver.resolve("four.example.com")
        await resolver.aclose()

    with asyncio.Runner() as runner:
        runner.run(ask())
        with asyncio.Runner() as other:
            other.run(close())


def test_without_the_package_it_says_what_to_install() -> None:
    """The extra is optional; an ImportError from inside would name a module nobody asked for."""
    program = (
        "import sys; sys.modules['aiodns'] = None\n"
        "from gatepost.net.resolver_aiodns import AioDnsResolver\n"
        "from gatepost.errors import ConfigurationError\n"
        "try: AioDnsResolver()\n"
        "except ConfigurationError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'gatepost[dns]'" in said


@installed
def test_servers_as_one_text_are_refused() -> None:
    """A text is a list of characters too, each an address of a server that does not answer."""
    with pytest.raises(ConfigurationError, match="write a list"):
        AioDnsResolver("127.0.0.1")


def test_an_answer_is_not_kept_beyond_its_ttl() -> None:
    """A zone that says 10 s moves its receiver within 10 s; one that says 0 still is not asked at every connection."""

    class Timed:
        async def resolve(self, host: str) -> Resolution:
            return Resolution(("192.0.2.1",), (), 0.0 if host == "zero.example" else 10.0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        names = NameCache(Timed(), 30.0, loop.clock)
        for host in ("ten.example", "zero.example"):
            names.ask(host, lambda _: None)
        await asyncio.sleep(0.5)
        assert names.known("ten.example") is not None
        assert names.known("zero.example") is not None
        await asyncio.sleep(1.0)
        assert names.known("zero.example") is None
        await asyncio.sleep(9.0)
        assert names.known("ten.example") is None
        await names.aclose()

    run_virtual(main)
