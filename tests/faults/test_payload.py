"""Fault cases of class payload: one bytes object from publish to socket, and vectors that plain HMAC verifies."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from gatepost import Dispatcher, verify
from gatepost.store.rows import DeadFilter
from gatepost.testing.hostile import HostileServer, answering
from gatepost.wire.payload import payload_bytes
from gatepost.wire.signing import parse_secret, sign
from tests.faults.kit import head
from tests.hostile.engine import LOOPBACK

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
AWKWARD: list[object] = [
    {"é": "🎉", "z": 1, "a": {"y": [1, 2], "b": None}, "line": "\u2028\u2029", "tag": "</script>&<"},
    {"big": 2**200, "small": 5e-324, "float": 0.1 + 0.2, "minus": -0.0, "int": 1.0},
    b'{"a": 1, "a": 2,\n\t"spaced" :"kept",  "esc": "\\u00e9\\u2028\\/"}',
    b"\x00\xff not json and not utf-8 \xfe",
    b"",
    [],
]


async def test_payload_01_what_is_stored_signed_and_sent_is_one_and_the_same() -> None:
    """The dead letter holds what is stored, the receiver what was sent, and the signature covers exactly those bytes."""
    answer = answering(head("Content-Length: 0", status="410 Gone"))  # final: the body is kept as a dead letter
    async with HostileServer(answer) as server, Dispatcher.open("memory://", egress=LOOPBACK, run=True) as gp:
        for payload in AWKWARD:
            endpoint = await gp.endpoints.create(server.url, secret=SECRET)
            await gp.publish("a.b", payload)
            async with asyncio.timeout(20):
                while not (page := await gp.dead_letters.list(DeadFilter())).items:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            (letter,) = page.items
            stored = await gp.store.dead_letter(letter.delivery_id)
            request = server.requests[-1]
            fields = dict(line.split(": ", 1) for line in request.head.decode().split("\r\n")[1:] if ": " in line)
            expected = payload_bytes(payload)
            assert stored is not None
            assert request.body == stored.body == expected
            assert hashlib.sha256(request.body).digest() == hashlib.sha256(expected).digest()
            assert verify(request.body, fields, [SECRET]).body == expected
            await gp.dead_letters.purge(DeadFilter())
            await gp.endpoints.delete(endpoint.id)


@pytest.mark.parametrize("payload", [{"x": float("inf")}, {"x": float("nan")}, "text", {1, 2}, {"x": object()}])
def test_payload_01_what_has_no_one_serialisation_is_refused(payload: Any) -> None:
    """Better than a body that only some parsers read."""
    with pytest.raises((TypeError, ValueError), match="payload"):
        payload_bytes(payload)


VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "signing.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "body",
    [
        b'{"html":"\\u003cb\\u003e","line":"\\u2028"}',
        '{"html":"<b>","line":"\u2028","name":"Zo\u00eb \U0001f389"}'.encode(),
        b'{ "a":1 ,\n"b" : 2 }',
    ],
)
def test_payload_03_plain_hmac_over_the_raw_body_verifies(body: bytes) -> None:
    """A receiver that parses and dumps again gets another text; the raw bytes are what is signed."""
    headers = sign("evt_1", 1_700_000_000, body, [SECRET])
    mac = hmac.new(parse_secret(SECRET), b"evt_1.1700000000." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    again = json.dumps(json.loads(body), separators=(",", ":")).encode()
    if again != body:
        assert sign("evt_1", 1_700_000_000, again, [SECRET]) != headers


def test_payload_03_the_published_vectors_include_such_bodies() -> None:
    """Pretty-printed, minified and beyond ASCII: tests/unit/test_signing.py verifies every one of them."""
    bodies = [json.dumps(case) for case in VECTORS]
    assert any("pretty" in body for body in bodies)
    assert any("utf8" in body for body in bodies)
