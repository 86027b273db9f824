"""Records that users own: what must stay secret does, wherever a record is printed."""

from __future__ import annotations

import copy
import pickle

import pytest

from gatepost.delivery.records import Endpoint, EndpointSecret, Secret

KEY = "whsec_c2VjcmV0"


def test_a_secret_shows_itself_only_when_asked() -> None:
    """Log lines, messages and debuggers print what they are given."""
    secret = Secret(KEY)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret:>10}", "%s %r" % (secret, secret), f"{[secret]}"):  # noqa: UP031
        assert "c2VjcmV0" not in shown
        assert "***" in shown
    assert secret.reveal() == KEY
    assert type(secret.reveal()) is str
    assert secret == KEY


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_does_not_travel_by_itself(copied: object) -> None:
    """Caches, queues and crash reports pickle whatever they hold."""
    assert callable(copied)
    with pytest.raises(TypeError, match="reveal"):
        copied(Secret(KEY))


def test_an_endpoint_shows_neither_secrets_nor_headers_nor_its_url() -> None:
    """Chat and automation services take the path of the URL as the password; records end up in log lines."""
    endpoint = Endpoint(
        id="ep_0000000000001",
        tenant="acme",
        url="https://hooks.example.com/t0ken?key=t0ken",
        secrets=(EndpointSecret(Secret("whsec_t0ken"), 0),),
        headers={"authorization": "t0ken"},
    )
    assert "t0ken" not in repr(endpoint)
    assert "ep_0000000000001" in repr(endpoint)


def test_an_endpoint_takes_the_types_it_names() -> None:
    """A filter that matches too much sends events to strangers."""
    endpoint = Endpoint("ep_0000000000001", "acme", "https://h.example.com/", event_types=("invoice.*", "user.created"))
    taken = {
        "invoice.paid": True,
        "invoice.": True,
        "invoice": False,
        "Invoice.paid": False,
        "user.created": True,
        "user.created.x": False,
        "x.user.created": False,
        "*": False,
    }
    assert {name: endpoint.accepts(name) for name in taken} == taken
    assert Endpoint("ep_0000000000001", "acme", "https://h.example.com/").accepts("anything")
