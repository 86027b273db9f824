"""Registration looks at the receiver's certificate first: what is refused, what is stored as unverified, and what clears it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import replace

import pytest
import trustme

from gatepost.delivery.records import Endpoint, Secret, Tenant, TenantLimits
from gatepost.dispatch.moves import ONCE_PER, TENANTS_MAX, Moves
from gatepost.dispatch.verification import NOT_PROBED, REMEDIES, tls_profile
from gatepost.errors import ConfigurationError, DestinationDenied, LimitExceeded
from gatepost.net.tls import TLSProfile
from gatepost.store.codec import endpoint_from_document, endpoint_to_document
from gatepost.store.secretbox import SecretBox
from gatepost.testing.fake_client import Answer, denied, faulty, refused, silent
from gatepost.testing.virtual import VirtualClock
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, Reason
from tests.simulation.harness import Simulation, simulate

URL = "https://good.receivers.net/hook"
OTHER = "https://other.receivers.net/hook"
BOTH = EgressPolicy(schemes=("https", "http"))
AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("client@example.com")
CA_PEM = AUTHORITY.cert_pem.bytes().decode()
CERT_PEM = CERTIFICATE.cert_chain_pems[0].bytes().decode()
KEY_PEM = CERTIFICATE.private_key_pem.bytes().decode()


def test_every_reason_that_refuses_says_what_to_mend() -> None:
    """The owner reads it, not we."""
    assert set(REMEDIES) == PERMANENT_TLS_REASONS | {Reason.TLS_NOT_TLS}
    assert all(text.endswith(".") for text in REMEDIES.values())


def test_a_broken_chain_is_refused_with_its_class_and_its_remedy() -> None:
    """Every delivery would fail by it, for days, before anybody looked."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            for reason, remedy in REMEDIES.items():
                sim.client.on_probe(URL, faulty(reason, Phase.TLS))
                with pytest.raises(DestinationDenied) as error:
                    await gp.endpoints.create(URL)
                assert error.value.reason == reason
                assert remedy in str(error.value)
            sim.client.on_probe(URL, denied(Reason.ADDR_PRIVATE))
            with pytest.raises(DestinationDenied) as error:
                await gp.endpoints.create(URL)
            assert error.value.reason == Reason.ADDR_PRIVATE
            assert not (await gp.endpoints.list()).items
            assert not sim.client.sent, "a probe is no attempt"

    simulate(main)


@pytest.mark.parametrize(
    ("ends", "unverified"),
    [
        (None, None),
        (refused(), "connection_refused"),
        (silent(), "wait_timeout"),
        (faulty(Reason.DNS_NO_ADDRESS, Phase.DNS), "dns_no_address"),
        (faulty(Reason.TLS_CONNECTION_CLOSED, Phase.TLS), "tls_connection_closed"),
        (faulty(Reason.LOCAL_RESOURCES, Phase.CONNECT), "local_resources"),
    ],
)
def test_a_receiver_that_is_not_there_yet_is_taken_and_marked(
    ends: Answer | None, unverified: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Endpoints are registered before their servers run; and the log says that nobody has seen a certificate."""

    async def main(sim: Simulation) -> None:
        sim.client.on_probe(URL, ends)
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(URL)
            assert endpoint.unverified == unverified
            assert (await gp.endpoints.get(endpoint.id)).unverified == unverified

    with caplog.at_level(logging.WARNING, "gatepost.dispatch"):
        simulate(main)
    assert ("unverified" in caplog.text) is (unverified is not None)


def test_who_asks_for_no_probe_gets_none_and_plain_http_has_nothing_to_see() -> None:
    """A deployment script may run where nothing can be reached."""

    async def main(sim: Simulation) -> None:
        sim.client.on_probe(URL, faulty(Reason.TLS_CERT_EXPIRED, Phase.TLS))
        sim.client.egress = BOTH
        async with sim.dispatcher(run=False) as gp:
            assert (await gp.endpoints.create(URL, probe=False)).unverified == NOT_PROBED
            assert (await gp.endpoints.create("http://good.receivers.net/")).unverified is None

    simulate(main)


def test_the_first_attempt_that_gets_through_tls_clears_the_mark() -> None:
    """Also one whose answer is an error: the certificate was right."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, refused(), Answer(status=500))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            await gp.publish("a", b"{}")
            await asyncio.sleep(0.01)
            assert (await gp.endpoints.get(endpoint.id)).unverified == NOT_PROBED
            await asyncio.sleep(60.0)
            assert len(sim.sent_to(endpoint)) >= 2
            after = await gp.endpoints.get(endpoint.id)
            assert after.unverified is None
            assert after.generation == endpoint.generation + 1

    simulate(main)


def test_an_update_is_verified_anew_when_it_changes_who_is_spoken_to() -> None:
    """What was seen of the old URL says nothing of the new one; a new description changes nothing."""

    async def main(sim: Simulation) -> None:
        sim.client.on_probe(OTHER, refused())
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(URL)
            sim.client.on_probe(URL, faulty(Reason.TLS_CERT_EXPIRED, Phase.TLS))
            assert (await gp.endpoints.update(endpoint.id, description="new")).unverified is None
            with pytest.raises(DestinationDenied):
                await gp.endpoints.update(endpoint.id, ca_pem=CA_PEM)
            with pytest.raises(DestinationDenied):
                await gp.endpoints.update(endpoint.id, probe=True)
            moved = await gp.endpoints.update(endpoint.id, url=OTHER)
            assert (moved.url, moved.unverified) == (OTHER, "connection_refused")
            paused = await gp.endpoints.pause(endpoint.id)
            assert paused.unverified == "connection_refused"
            assert (await gp.endpoints.update(endpoint.id, url=URL, probe=False)).unverified == NOT_PROBED
            with pytest.raises(TypeError, match="changeable"):
                await gp.endpoints.update(endpoint.id, unverified=None)

    simulate(main)


# -------------------------------------------------------------------------------------------- TLS settings


def test_tls_settings_reach_every_attempt_and_the_test() -> None:
    """Stored and not used would be a receiver without its client certificate."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(
                URL, ca_pem=CA_PEM, client_cert_pem=CERT_PEM, client_key_pem=KEY_PEM, x509_strict=False
            )
            await gp.publish("a", b"{}")
            await asyncio.sleep(1.0)
            await gp.endpoints.test(endpoint.id)
            profile = TLSProfile(ca_pem=CA_PEM, client_cert_pem=CERT_PEM, client_key_pem=KEY_PEM, x509_strict=False)
            assert [sent.tls for sent in sim.client.sent] == [profile, profile]
            assert KEY_PEM.splitlines()[1] not in repr(endpoint)

    simulate(main)


WRONG = [
    ({"client_cert_pem": CERT_PEM}, "both client_cert_pem and client_key_pem"),
    ({"client_cert_pem": CA_PEM, "client_key_pem": KEY_PEM}, "no matching pair"),
    ({"ca_pem": "no certificate"}, "ca_pem"),
    ({"ca_pem": "x" * 70_000}, "at most 65536"),
    ({"ca_pem": 3}, "write PEM text"),
    ({"client_key_pem": 3}, "write PEM text"),
    ({"x509_strict": None}, "write True or False"),
    ({"url": "http://a.receivers.net/", "client_cert_pem": CERT_PEM, "client_key_pem": KEY_PEM}, "write https://"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=range(len(WRONG)))
def test_tls_settings_that_can_never_work_are_refused(fields: dict[str, object], message: str) -> None:
    """At registration, where somebody reads it. Contexts are built in a thread, so on a real loop."""
    sim = Simulation()
    sim.client.egress = BOTH

    async def main() -> None:
        gp = sim.make()
        await gp.prepare()
        with pytest.raises(ConfigurationError, match=message) as error:
            await gp.endpoints.create(**{"url": URL, "probe": False, **fields})  # type: ignore[arg-type]  # wrong on purpose
        assert KEY_PEM.splitlines()[1] not in str(error.value)
        await gp.aclose()
        await sim.client.aclose()

    asyncio.run(main())


def test_only_an_endpoint_with_settings_of_its_own_has_a_profile() -> None:
    """One context of 0.9 MiB serves all the others."""
    plain = Endpoint("ep_0000000000001", "acme", URL)
    assert tls_profile(plain) is None
    assert tls_profile(replace(plain, x509_strict=False)) == TLSProfile(x509_strict=False)
    assert tls_profile(replace(plain, ca_pem=CA_PEM)) == TLSProfile(ca_pem=CA_PEM)


def test_the_key_is_sealed_before_it_is_stored() -> None:
    """Like signing secrets: a copy of the database must not be a copy of the key."""
    box = SecretBox([SecretBox.new_key()])
    endpoint = Endpoint(
        "ep_0000000000001", "acme", URL, client_cert_pem=CERT_PEM, client_key_pem=Secret(KEY_PEM), unverified="x"
    )
    document = endpoint_to_document(endpoint, box)
    assert KEY_PEM.splitlines()[1] not in document
    assert endpoint_from_document(document, box) == endpoint
    plain = dataclasses.replace(endpoint, client_cert_pem=None, client_key_pem=None)
    assert endpoint_from_document(endpoint_to_document(plain, box), box) == plain


# --------------------------------------------------------------------------------------------------- moves


def test_a_tenant_drops_connections_once_a_minute_at_most() -> None:
    """Connections are shared: one record changed every second would keep everybody's cold."""
    clock = VirtualClock()
    forgotten: list[str] = []
    moves = Moves(clock, forgotten.append)
    moves.left("a", "https://one:443")
    moves.left("a", "https://two:443")
    moves.left("b", "https://two:443")
    assert forgotten == ["https://one:443", "https://two:443"]
    clock.advance(ONCE_PER)
    moves.left("a", "https://three:443")
    assert forgotten[2:] == ["https://three:443"]
    for number in range(TENANTS_MAX + 1):
        moves.left(f"t{number}", "https://one:443")
    assert len(moves._last) == TENANTS_MAX


def test_an_attempt_under_the_old_record_does_not_verify_the_new_one() -> None:
    """It may have been under way while the owner moved his endpoint: nobody has seen the new receiver's certificate."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, Answer(delay=5.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            await gp.publish("a", b"{}")
            await asyncio.sleep(1.0)
            await gp.endpoints.update(endpoint.id, url=OTHER, probe=False)
            await asyncio.sleep(10.0)
            assert [sent.url for sent in sim.client.sent] == [URL], "in flight, it ended where it began"
            assert (await gp.endpoints.get(endpoint.id)).unverified == NOT_PROBED
            assert await gp.endpoints.mark_verified(endpoint.id, 2)
            assert not await gp.endpoints.mark_verified(endpoint.id, 2)

    simulate(main)


def test_registrations_at_once_do_not_pass_the_tenants_limit() -> None:
    """A probe takes seconds: a hundred that wait for theirs must not all count as the first."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            await sim.store.put_tenant(Tenant("default", limits=TenantLimits(endpoints=3)))
            await gp._catalogue.follow()
            sim.client.probe_delay = 2.0
            ended = await asyncio.gather(
                *(gp.endpoints.create(f"https://e{n}.receivers.net/") for n in range(10)), return_exceptions=True
            )
            assert sum(isinstance(end, LimitExceeded) for end in ended) == 7
            assert len((await gp.endpoints.list()).items) == 3

    simulate(main)
