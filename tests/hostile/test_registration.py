"""Registering and changing endpoints against real receivers: the probe, and what happens to connections of an old record."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.errors import DestinationDenied
from gatepost.net.client import DispatchClient
from gatepost.store.memory import MemoryStore
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.hostile import HostileServer
from gatepost.testing.receiver import Receiver
from gatepost.wire.reasons import Reason
from tests.hostile.engine import LOOPBACK, Certificates, assert_nothing_held, limits, same_descriptors

DAY = datetime.timedelta(days=1)
PATIENT = {"connect_timeout": 1.5, "read_timeout": 5.0, "write_timeout": 5.0}


class Watcher:
    """Counts attempts."""

    def __init__(self) -> None:
        self.attempts: list[AttemptObservation] = []

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Keep it."""
        self.attempts.append(observation)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not of interest here."""

    def operational(self, observation: OperationalObservation) -> None:
        """Not of interest here."""


@asynccontextmanager
async def dispatcher(watcher: Watcher | None = None, **changes: float) -> AsyncIterator[Dispatcher]:
    """A dispatcher in memory, with a real client on loopback, not running."""
    async with DispatchClient(limits(**{**PATIENT, **changes}), egress=LOOPBACK, observer=watcher) as client:
        gp = Dispatcher(MemoryStore(), client)
        await gp.prepare()
        try:
            yield gp
        finally:
            await gp.aclose()


async def test_a_right_certificate_is_verified_without_a_request() -> None:
    """Connect and TLS only: the receiver must not see a request that is no event."""
    certificates = Certificates.make()
    watcher = Watcher()
    with same_descriptors():
        async with (
            HostileServer("ok", tls_context=certificates.server("127.0.0.1")) as server,
            dispatcher(watcher) as gp,
        ):
            pem = certificates.authority.cert_pem.bytes().decode()
            endpoint = await gp.endpoints.create(server.url, ca_pem=pem)
            assert endpoint.unverified is None
            await server.wait_disconnected()
            assert (server.connections, server.request_count) == (1, 0)
            assert watcher.attempts == [], "a probe is no attempt"
            assert_nothing_held(gp.client)
            assert (await gp.endpoints.test(endpoint.id)).delivered
            again = await gp.endpoints.update(endpoint.id, probe=True)
            assert again.unverified is None
            assert server.connections == 2, "an open connection has been proven"
            assert_nothing_held(gp.client, idle=1)


async def test_broken_chains_are_refused_by_class() -> None:
    """The owner hears what to mend when he registers, not from a thousand failed deliveries."""
    certificates = Certificates.make()
    now = datetime.datetime.now(datetime.UTC)
    expired = certificates.authority.issue_cert("127.0.0.1", not_before=now - 3 * DAY, not_after=now - DAY)
    old = certificates.server("127.0.0.1")
    expired.configure_cert(old)
    cases = [
        (old, Reason.TLS_CERT_EXPIRED, "Renew"),
        (certificates.server("other.example.com"), Reason.TLS_HOSTNAME_MISMATCH, "subjectAltName"),
        (certificates.server("127.0.0.1", authority=trustme.CA()), Reason.TLS_CERT_UNKNOWN_CA, "fullchain"),
    ]
    pem = certificates.authority.cert_pem.bytes().decode()
    async with dispatcher() as gp:
        for context, reason, remedy in cases:
            async with HostileServer("tls-bad-certificate", tls_context=context) as server:
                with pytest.raises(DestinationDenied, match=remedy) as error:
                    await gp.endpoints.create(server.url, ca_pem=pem)
                assert error.value.reason == reason
                assert (await gp.endpoints.create(server.url, ca_pem=pem, probe=False)).unverified == "not_probed"
        async with HostileServer("tls-not-tls") as server:
            with pytest.raises(DestinationDenied) as error:
                await gp.endpoints.create(server.url, ca_pem=pem)
            assert error.value.reason == Reason.TLS_NOT_TLS
        assert_nothing_held(gp.client)


async def test_who_cannot_be_reached_is_stored_unverified_within_the_limits() -> None:
    """Refused, or silent in the handshake: the receiver may come up later."""
    certificates = Certificates.make()
    pem = certificates.authority.cert_pem.bytes().decode()
    async with dispatcher(connect_timeout=0.3) as gp:
        assert (await gp.endpoints.create("https://127.0.0.1:1024/", ca_pem=pem)).unverified == "connection_refused"
        async with HostileServer("tls-stall") as server:
            assert (await gp.endpoints.create(server.url, ca_pem=pem)).unverified == "tls_timeout"
        assert_nothing_held(gp.client)


async def test_a_probe_that_is_cancelled_holds_nothing() -> None:
    """A caller that gives up leaves neither socket nor lease."""
    certificates = Certificates.make()
    pem = certificates.authority.cert_pem.bytes().decode()
    async with HostileServer("tls-stall") as server, dispatcher() as gp:
        task = asyncio.ensure_future(gp.endpoints.create(server.url, ca_pem=pem))
        while not server.connections:  # noqa: ASYNC110  # a counter of the server
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_nothing_held(gp.client)
        assert not (await gp.endpoints.list()).items


# ------------------------------------------------------------------------------------------- record changes


async def test_a_changed_record_drops_the_hosts_connections_and_lets_attempts_finish() -> None:
    """Idle connections of the old destination go; what is in flight ends where it began."""
    async with Receiver() as old, Receiver() as new, dispatcher() as gp:
        old.answer("/slow", 200, delay=0.3)
        endpoint = await gp.endpoints.create(old.url + "/slow")
        other = await gp.endpoints.create(old.url + "/")
        assert (await gp.endpoints.test(other.id)).delivered
        assert gp.client.statistics().connections_idle == 1
        running = asyncio.ensure_future(gp.endpoints.test(endpoint.id))
        second = asyncio.ensure_future(gp.endpoints.test(other.id))
        await second
        assert gp.client.statistics().connections_idle >= 1
        await gp.endpoints.update(endpoint.id, url=new.url + "/")
        assert gp.client.statistics().connections_idle == 0
        attempt = await running
        assert attempt.delivered
        assert attempt.host == old.url
        assert_nothing_held(gp.client)
        assert (await gp.endpoints.test(endpoint.id)).host == new.url
        assert (await gp.endpoints.test(other.id)).delivered
        assert (await gp.endpoints.test(other.id)).host == old.url
        # Within the same minute nothing more is dropped on this tenant's account.
        idle = gp.client.statistics().connections_idle
        await gp.endpoints.update(endpoint.id, url=old.url + "/")
        assert gp.client.statistics().connections_idle == idle == 2


async def test_other_changes_of_a_record_drop_nothing() -> None:
    """A new path or description is no new peer."""
    async with Receiver() as receiver, dispatcher() as gp:
        endpoint = await gp.endpoints.create(receiver.url + "/a")
        assert (await gp.endpoints.test(endpoint.id)).delivered
        await gp.endpoints.update(endpoint.id, url=receiver.url + "/b", description="new")
        await gp.endpoints.rotate_secret(endpoint.id)
        assert (await gp.endpoints.test(endpoint.id)).reused


async def test_new_tls_settings_drop_the_hosts_connections() -> None:
    """A withdrawn client certificate must not go on speaking over an old connection."""
    certificates = Certificates.make()
    pem = certificates.authority.cert_pem.bytes().decode()
    async with Receiver(tls=certificates.server("127.0.0.1")) as receiver, dispatcher() as gp:
        endpoint = await gp.endpoints.create(receiver.url + "/", ca_pem=pem)
        assert (await gp.endpoints.test(endpoint.id)).delivered
        assert gp.client.statistics().connections_idle == 1
        await gp.endpoints.update(endpoint.id, ca_pem=pem + "\n")
        assert gp.client.statistics().connections_idle == 0
        assert not (await gp.endpoints.test(endpoint.id)).reused
