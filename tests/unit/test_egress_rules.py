"""What the client finds out about machine and network, and that every place asks the same rules with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gatepost.delivery.outcome import Outcome
from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.errors import DestinationDenied, ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.nat64 import RETRY, Nat64Finder
from gatepost.net.own_addresses import own_addresses
from gatepost.net.resolver import Resolution, find_nat64_prefixes
from gatepost.service.egress_check import check_case
from gatepost.store.memory import MemoryStore
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.receiver import Receiver
from gatepost.testing.virtual import VirtualLoop, run_virtual
from gatepost.wire.egress import Denied, EgressPolicy, Target
from gatepost.wire.egress_rules import EgressRules
from gatepost.wire.nat64 import NAT64_NAME, nat64_prefixes_in
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.engine import LOOPBACK, FixedResolver, assert_nothing_held, limits

PUBLIC = "93.184.215.14"
FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 93.184.215.0/24 2 0 2
           |-- 93.184.215.0
              /24 link UNICAST
           |-- 93.184.215.14
              /32 host LOCAL
        |-- 93.184.215.255
           /32 link BROADCAST
        |-- 127.0.0.1
           /32 host LOCAL
"""
IF_INET6 = """26064700000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


class Recorder:
    """An observer that keeps operational observations."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Not of interest here."""

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not of interest here."""

    def operational(self, observation: OperationalObservation) -> None:
        """Keep its kind."""
        self.kinds.append(observation.kind)


# ---------------------------------------------------------------------------------------- our own addresses


def test_own_addresses_are_read_from_the_kernels_tables(tmp_path: Path) -> None:
    """A webhook to our own public address would reach what listens beside us, from inside."""
    (tmp_path / "fib_trie").write_text(FIB_TRIE)
    (tmp_path / "if_inet6").write_text(IF_INET6)
    assert own_addresses(tmp_path) == {PUBLIC, "2606:4700::2"}, "networks, broadcast and loopback are not ours"


def test_without_the_tables_the_kernel_is_asked_for_its_sender(tmp_path: Path) -> None:
    """macOS has no /proc, and some containers hide it: less is known then, and nothing breaks."""
    found = own_addresses(tmp_path / "missing")
    assert all(not text.startswith("127.") and text != "::1" for text in found)


async def test_a_url_that_names_our_own_address_is_refused_everywhere() -> None:
    """At registration and at the attempt, by the same function."""
    async with DispatchClient(limits(), own_addresses=frozenset({PUBLIC})) as client:
        attempt = await client.deliver(f"https://{PUBLIC}/", b"x")
        assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, Reason.ADDR_LOCAL_INTERFACE)
        gp = Dispatcher(MemoryStore(), client)
        await gp.prepare()
        with pytest.raises(DestinationDenied) as refused:
            await gp.endpoints.create(f"https://{PUBLIC}/")
        assert refused.value.reason == Reason.ADDR_LOCAL_INTERFACE
        await gp.aclose()


async def test_a_name_that_leads_to_our_own_address_is_refused() -> None:
    """Anybody can point a name of his at us."""
    resolver = FixedResolver({"hooks.example.com": (PUBLIC,)})
    async with DispatchClient(limits(), resolver=resolver, own_addresses=frozenset({PUBLIC})) as client:
        attempt = await client.deliver("https://hooks.example.com/", b"x")
        assert (attempt.outcome, attempt.phase, attempt.reason) == (
            Outcome.EGRESS_DENIED,
            Phase.DNS,
            Reason.ADDR_LOCAL_INTERFACE,
        )
        assert_nothing_held(client)


# ----------------------------------------------------------------------------------------------------- NAT64


@pytest.mark.parametrize(
    ("answer", "prefix"),
    [
        ("64:ff9b::192.0.0.170", "64:ff9b::/96"),
        ("64:ff9b::c000:ab", "64:ff9b::/96"),
        ("2606:4700:64:ff::192.0.0.171", "2606:4700:64:ff::/96"),
        ("2606:4700:c000:aa::", "2606:4700::/32"),
        ("2606:4700:12c0:0:aa::", "2606:4700:1200::/40"),
        ("2606:4700:1234:c000:0:aa00::", "2606:4700:1234::/48"),
    ],
)
def test_the_prefix_is_read_from_the_answer(answer: str, prefix: str) -> None:
    """RFC 7050 section 3: the known address stands behind the prefix, around the u-octet."""
    assert prefix in nat64_prefixes_in([answer, "192.0.0.170"])


def test_an_answer_without_the_known_addresses_has_no_prefix() -> None:
    """A wildcard zone or a captive portal is no translator."""
    assert nat64_prefixes_in(["192.0.0.170", "2606:4700::1", "fe80::c000:aa%eth0"]) == ()


class Translating:
    """A network with NAT64; counts the questions about it."""

    def __init__(self, *answers: Resolution | ResolveError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str) -> Resolution:
        """Every other name is on loopback."""
        if host != NAT64_NAME:
            return Resolution(("127.0.0.1",))
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ResolveError):
            raise answer
        return answer

    async def nat64_prefixes(self) -> tuple[str, ...]:
        """By the shared function."""
        return await find_nat64_prefixes(self)


async def test_an_undeclared_prefix_is_named_and_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A provider's own prefix looks like any global address and leads to every IPv4 address, private ones included."""
    resolver = Translating(Resolution(("2606:4700:64::192.0.0.170",)))
    recorder = Recorder()
    async with Receiver() as receiver:
        url = receiver.url.replace("127.0.0.1", "hooks.example.com")
        with caplog.at_level(logging.WARNING, "gatepost.client"):
            async with DispatchClient(limits(), egress=LOOPBACK, resolver=resolver, observer=recorder) as client:
                assert (await client.deliver(receiver.url, b"x")).delivered
                assert resolver.asked == 0, "an address needs no answer"
                assert (await client.deliver(url, b"x")).delivered
                async with asyncio.timeout(2.0):
                    while not client.rules.nat64_seen:  # noqa: ASYNC110  # a value of another task
                        await asyncio.sleep(0)
                refused = client.check_url("https://[2606:4700:64::7f00:1]/")
                assert isinstance(refused, Denied)
                assert refused.reason is Reason.ADDR_NAT64
                assert "nat64_prefixes" in refused.remedy
                attempt = await client.deliver("https://[2606:4700:64::7f00:1]/", b"x")
                assert attempt.reason is Reason.ADDR_NAT64
                assert (await client.deliver(url, b"x")).reused
    assert resolver.asked == 1
    assert recorder.kinds == ["nat64_undeclared"]
    assert "2606:4700:64::/96" in caplog.text


async def test_a_declared_prefix_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """The operator has said so already."""
    policy = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",), nat64_prefixes=("2606:4700:64::/96",))
    resolver = Translating(Resolution(("2606:4700:64::192.0.0.170",)))
    async with Receiver() as receiver, DispatchClient(limits(), egress=policy, resolver=resolver) as client:
        assert (await client.deliver(receiver.url.replace("127.0.0.1", "hooks.example.com"), b"x")).delivered
        await asyncio.sleep(0.05)
        assert client.rules.nat64_seen
    assert not caplog.records


def test_the_question_is_repeated_only_when_nobody_could_answer() -> None:
    """At boot the name servers may not be there yet; an answer of any kind is final."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        failure = ResolveError(Reason.DNS_TEMPORARY_FAILURE, temporary=True)
        resolver = Translating(failure, ResolveError(Reason.DNS_NO_ADDRESS, temporary=False))
        heard: list[tuple[str, ...]] = []
        finder = Nat64Finder(resolver, loop.clock, heard.append)
        for seconds, asked in ((0.0, 1), (RETRY / 2, 1), (RETRY, 2), (RETRY * 10, 2)):
            await asyncio.sleep(seconds)
            finder.look(loop)
            await asyncio.sleep(0.01)
            assert resolver.asked == asked
        assert heard == []
        await finder.aclose()

    run_virtual(main)


# ---------------------------------------------------------------------------------------------------- reload


async def test_a_reload_is_asked_for_urls_literals_and_new_connections() -> None:
    """What an operator forbids during an incident is forbidden for the very next attempt."""
    resolver = FixedResolver({"hooks.example.com": ("127.0.0.1",)})
    closed = EgressPolicy(schemes=("https",), allow_cidrs=("127.0.0.0/8",))
    async with Receiver() as receiver, DispatchClient(limits(), egress=LOOPBACK, resolver=resolver) as client:
        url = receiver.url.replace("127.0.0.1", "hooks.example.com")
        assert (await client.deliver(url, b"x")).delivered
        assert (await client.deliver(receiver.url, b"x")).delivered
        client.egress = closed
        assert client.egress is closed
        for refused in (url, receiver.url):
            attempt = await client.deliver(refused, b"x")
            assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, Reason.SCHEME_NOT_ALLOWED)
        client.egress = LOOPBACK
        assert (await client.deliver(url, b"x")).reused, "a reload drops nothing"
        with pytest.raises(TypeError, match="write an EgressPolicy"):
            client.egress = "https"  # type: ignore[assignment]  # what the test is about


async def test_a_literal_is_checked_again_when_it_is_connected_to() -> None:
    """The rules may change while an attempt waits for its turn."""
    async with Receiver() as receiver, DispatchClient(limits(max_per_host=1), egress=LOOPBACK) as client:
        receiver.answer("/slow", 200, delay=0.2)
        first = asyncio.ensure_future(client.deliver(receiver.url + "/slow", b"x"))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(client.deliver(receiver.url, b"x", endpoint_id="other"))
        await asyncio.sleep(0.05)
        client.egress = EgressPolicy(schemes=("http",))
        assert (await first).delivered, "what is in flight ends under the rules it began with"
        attempt = await second
        assert (attempt.outcome, attempt.reason) == (Outcome.EGRESS_DENIED, Reason.ADDR_LOOPBACK)
        assert_nothing_held(client)


def test_rules_answer_like_the_functions_they_stand_for() -> None:
    """One place holds policy, machine and network together."""
    rules = EgressRules(EgressPolicy(), frozenset({PUBLIC}), ("2606:4700:64::/96",))
    assert isinstance(rules.check_url("https://example.com/"), Target)
    assert rules.check_address("93.184.215.15") is None
    refused = rules.check_addresses((PUBLIC,))
    assert isinstance(refused, Denied)
    assert refused.reason is Reason.ADDR_LOCAL_INTERFACE
    assert rules.nat64_undeclared == ("2606:4700:64::/96",)


def test_the_command_line_asks_the_same_rules() -> None:
    """An operator who asks why must hear what an attempt from this machine would."""
    case = {"url": "https://hooks.example.com/", "dns_answers": [PUBLIC]}
    assert check_case(case, EgressPolicy()).allowed
    verdict = check_case(case, EgressPolicy(), own_addresses=frozenset({PUBLIC}))
    assert (verdict.allowed, verdict.reason) == (False, "addr_local_interface")
    behind = {"url": "https://hooks.example.com/", "dns_answers": ["2606:4700:64::a00:1"]}
    assert check_case(behind, EgressPolicy()).allowed
    verdict = check_case(behind, EgressPolicy(), nat64_seen=("2606:4700:64::/96",))
    assert (verdict.allowed, verdict.reason) == (False, "addr_nat64")
    assert "nat64_prefixes" in verdict.detail
