"""Happy Eyeballs over real loopback sockets: which address wins and when, why none does, and that nothing is left open."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given, strategies

from gatepost.clock import SYSTEM_CLOCK
from gatepost.net.dial import ADDRESSES_MAX, STAGGER, Dial, _same_address, interleave
from gatepost.wire.reasons import Reason

V4, V6 = socket.AF_INET, socket.AF_INET6


def open_descriptors() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd"))


class Dialled:
    """What a dial came to; both callbacks in one place, since exactly one of them may be called, once."""

    def __init__(self, addresses: Sequence[str], port: int) -> None:
        self.sock: socket.socket | None = None
        self.address = ""
        self.reason: Reason | None = None
        self.calls = 0
        self._event = asyncio.Event()
        self.dial = Dial(asyncio.get_running_loop(), addresses, port, self._on_connected, self._on_failed)
        self.began = SYSTEM_CLOCK.monotonic()
        self.took = 0.0

    def _on_connected(self, sock: socket.socket, address: str) -> None:
        self.sock, self.address = sock, address
        self._done()

    def _on_failed(self, reason: Reason) -> None:
        self.reason = reason
        self._done()

    def _done(self) -> None:
        self.calls += 1
        self.took = SYSTEM_CLOCK.monotonic() - self.began
        self._event.set()

    async def run(self) -> Dialled:
        """Dial, and wait a little longer for a second call that must not come."""
        assert not self._event.is_set(), "never from inside __init__"
        before = open_descriptors()
        self.dial.start()
        await self._event.wait()
        await asyncio.sleep(0.02)
        assert self.calls == 1
        if self.sock is not None:
            self.sock.close()
        assert open_descriptors() == before
        return self


@contextmanager
def listening(*addresses: str, refusing: Sequence[str] = (), hole: str | None = None) -> Iterator[int]:
    """One port on which these addresses listen and `refusing` ones do not; on `hole` a connect neither succeeds nor fails.

    (A port that is bound and not listened on refuses, and nobody else can take it. On Linux a full backlog drops every
    further SYN.)
    """
    with ExitStack() as socks:
        for _ in range(20):
            opened: list[socket.socket] = []
            port = 0
            try:
                for address in (*addresses, *refusing, *([hole] if hole else [])):
                    sock = socks.enter_context(socket.socket(V6 if ":" in address else V4))
                    opened.append(sock)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((address, port))
                    port = sock.getsockname()[1]
            except OSError:  # somebody else has this port on one of the addresses
                for sock in opened:
                    sock.close()
            else:
                break
        for sock in opened:
            if sock.getsockname()[0] not in refusing:
                sock.listen(16 if sock.getsockname()[0] != hole else 0)
        if hole:
            for _ in range(4):
                filler = socks.enter_context(socket.socket())
                filler.setblocking(False)
                with suppress(BlockingIOError):
                    filler.connect((hole, port))
        yield port


# ------------------------------------------------------------------------------------------------ order


ORDERS: list[tuple[list[str], socket.AddressFamily | None, list[str]]] = [
    ([], None, []),
    (["1.1.1.1"], V6, ["1.1.1.1"]),
    (["a::1", "a::2", "1.1.1.1", "2.2.2.2"], None, ["a::1", "1.1.1.1", "a::2", "2.2.2.2"]),
    (["1.1.1.1", "a::1", "a::2", "a::3"], None, ["1.1.1.1", "a::1", "a::2", "a::3"]),
    (["a::1", "a::2", "1.1.1.1"], V4, ["1.1.1.1", "a::1", "a::2"]),
    (["1.1.1.1", "2.2.2.2", "a::1"], V6, ["a::1", "1.1.1.1", "2.2.2.2"]),
    (["1.1.1.1", "2.2.2.2"], V6, ["1.1.1.1", "2.2.2.2"]),
]


@pytest.mark.parametrize(("addresses", "first", "expected"), ORDERS)
def test_families_take_turns(addresses: list[str], first: socket.AddressFamily | None, expected: list[str]) -> None:
    """RFC 8305 section 4: one broken family must cost one stagger, not one per address."""
    assert interleave(addresses, first) == expected


ADDRESSES = strategies.lists(strategies.sampled_from(["1.1.1.1", "2.2.2.2", "a::1", "a::2", "a::3"]), unique=True)


@given(ADDRESSES, strategies.sampled_from([None, V4, V6]))
def test_no_address_is_lost_and_each_family_keeps_its_order(
    addresses: list[str], first: socket.AddressFamily | None
) -> None:
    """The resolver's order within a family says what it prefers."""
    ordered = interleave(addresses, first)
    assert sorted(ordered) == sorted(addresses)
    for family in (":", "."):
        assert [a for a in ordered if family in a] == [a for a in addresses if family in a]
    shorter = min(sum(":" in a for a in addresses), sum("." in a for a in addresses))
    if shorter:
        turns = [":" in a for a in ordered[: 2 * shorter]]
        assert turns == [turns[0], not turns[0]] * shorter
        assert turns[0] == (":" in addresses[0] if first is None else first == V6)


# ------------------------------------------------------------------------------------------------ connecting


async def test_one_address_that_listens_is_connected() -> None:
    """The plain case; the socket is given over unblocking and open."""
    with listening("127.0.0.1") as port:
        dialled = await Dialled(["127.0.0.1"], port).run()
        assert (dialled.address, dialled.reason) == ("127.0.0.1", None)


async def test_an_address_that_refuses_costs_no_stagger() -> None:
    """The next one is tried at once: waiting for what has failed helps nobody."""
    with listening("127.0.0.3", refusing=["127.0.0.1", "127.0.0.2"]) as port:
        dialled = await Dialled(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port).run()
        assert dialled.address == "127.0.0.3"
        assert dialled.took < STAGGER


async def test_an_address_that_is_silent_costs_one_stagger() -> None:
    """A dead first address must not use up the connect limit of all."""
    with listening("127.0.0.2", hole="127.0.0.1") as port:
        dialled = await Dialled(["127.0.0.1", "127.0.0.2"], port).run()
        assert dialled.address == "127.0.0.2"
        assert STAGGER - 0.01 <= dialled.took < STAGGER + 1.0


async def test_the_next_address_is_tried_at_once_when_a_pending_one_fails() -> None:
    """A refusal during the wait ends it: here the third is reached before a second stagger could pass."""
    with listening("127.0.0.3", refusing=["127.0.0.2"], hole="127.0.0.1") as port:
        dialled = await Dialled(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port).run()
        assert dialled.address == "127.0.0.3"
        assert dialled.took < 2 * STAGGER - 0.02


async def test_both_families_reach_a_host_that_has_only_one() -> None:
    """Half of the dual-stack hosts of this world have a broken half."""
    with listening("127.0.0.1", refusing=["::1"]) as port:
        dialled = await Dialled(interleave(["::1", "127.0.0.1"], None), port).run()
        assert dialled.address == "127.0.0.1"
    with listening("::1", refusing=["127.0.0.1"]) as port:
        dialled = await Dialled(interleave(["127.0.0.1", "::1"], None), port).run()
        assert dialled.address == "::1"


async def test_when_all_refuse_the_reason_says_so() -> None:
    """The last failure is named; it comes as soon as the last one fails."""
    with listening(refusing=["127.0.0.1", "127.0.0.2"]) as port:
        dialled = await Dialled(["127.0.0.1", "127.0.0.2"], port).run()
    assert dialled.reason is Reason.CONNECTION_REFUSED
    assert dialled.took < STAGGER


async def test_no_address_at_all_fails() -> None:
    """An empty list is an answer of a resolver too."""
    assert (await Dialled([], 80).run()).reason is Reason.CONNECT_FAILED


async def test_only_the_first_few_addresses_are_tried() -> None:
    """Twenty dead addresses cannot be told apart within a connect limit of seconds, and each costs a socket."""
    last = f"127.0.0.{ADDRESSES_MAX + 1}"
    addresses = [f"127.0.0.{number}" for number in range(1, ADDRESSES_MAX + 2)]
    with listening(last, refusing=addresses[:-1]) as port:
        assert (await Dialled(addresses, port).run()).reason is Reason.CONNECTION_REFUSED
        assert (await Dialled(addresses[1:], port).run()).address == last


async def test_what_the_system_cannot_reach_fails_by_its_reason() -> None:
    """Codes, not texts: retry and alerts depend on them."""
    assert (await Dialled(["255.255.255.255"], 80).run()).reason in (Reason.CONNECT_FAILED, Reason.NETWORK_UNREACHABLE)


async def test_our_own_lack_of_descriptors_is_not_the_hosts_fault() -> None:
    """EMFILE once counted against every endpoint at the same time, and opened all breakers."""
    dialled = Dialled(["127.0.0.1"], 80)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        dialled.dial.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    assert dialled.reason is Reason.LOCAL_RESOURCES


async def test_cancelling_closes_everything_and_calls_nobody() -> None:
    """At any moment: before the first address, between two, after the end, and twice."""
    with listening("127.0.0.2", hole="127.0.0.1") as port:
        for wait in (0.0, 0.05, STAGGER - 0.02):
            dialled = Dialled(["127.0.0.1", "127.0.0.1", "127.0.0.2"], port)
            before = open_descriptors()
            dialled.dial.start()
            await asyncio.sleep(wait)
            dialled.dial.cancel()
            dialled.dial.cancel()
            assert open_descriptors() == before
            await asyncio.sleep(0.05)
            assert dialled.calls == 0
        dialled = await Dialled(["127.0.0.2"], port).run()
        dialled.dial.cancel()
        unstarted = Dialled(["127.0.0.2"], port)
        unstarted.dial.cancel()
        unstarted.dial.start()
        await asyncio.sleep(0.02)
        assert unstarted.calls == 0


@pytest.mark.parametrize(
    ("peer", "asked", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("::1", "::2", False),
        ("::ffff:127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "::ffff:127.0.0.1", False),
    ],
)
def test_the_kernels_view_of_the_peer_is_compared_by_value(peer: str, asked: str, same: bool) -> None:
    """Something between us and the kernel (a redirecting firewall, a proxy library) may connect elsewhere."""
    assert _same_address(peer, asked) == same
