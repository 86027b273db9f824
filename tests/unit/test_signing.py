"""Signatures: the published vectors, the independent package in both directions, and each way a webhook is refused.

`tests/data/signing.json` holds Standard Webhooks vectors made with `standardwebhooks` 1.1.0 and cross-checked with `hmac`.
"""

from __future__ import annotations

import base64
import copy
import json
import pickle
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.message import Message as EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

import gatepost
from gatepost.errors import SignatureError
from gatepost.wire.signing import SIGNATURE_CODES, Message, Signer, new_secret, parse_secret, sign, verify

VECTORS: list[dict[str, Any]] = [
    case
    for case in json.loads((Path(__file__).parent.parent / "data" / "signing.json").read_text(encoding="utf-8"))
    if "secrets" in case  # the others are v1a (ed25519), which needs the cryptography package and comes later
]
SECRET = new_secret(bytes(range(32)))
OTHER = new_secret(bytes(range(1, 33)))
NOW = 1_767_225_600
BODY = b'{"type":"ping"}'


def refused(
    code: str, body: Any = BODY, headers: Any = None, secrets: Any = (SECRET,), **options: Any
) -> SignatureError:
    """Verify and demand a refusal with `code`."""
    if headers is None:
        headers = sign("evt_1", NOW, BODY, [SECRET])
    options.setdefault("now", NOW)
    with pytest.raises(SignatureError) as caught:
        verify(body, headers, secrets, **options)
    assert caught.value.code == code
    assert code in SIGNATURE_CODES
    return caught.value


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_vectors_are_signed_and_verified_as_published(case: dict[str, Any]) -> None:
    """Receivers in every language check against the same vectors."""
    body = bytes.fromhex(case["body_hex"])
    headers = sign(case["webhook_id"], int(case["webhook_timestamp"]), body, case["secrets"])
    assert headers == {
        "webhook-id": case["webhook_id"],
        "webhook-timestamp": case["webhook_timestamp"],
        "webhook-signature": case["webhook_signature"],
    }
    for secret in case["secrets"]:
        message = verify(body, headers, [secret], now=int(case["webhook_timestamp"]))
        assert message == Message(case["webhook_id"], int(case["webhook_timestamp"]), body)


def test_the_independent_package_accepts_what_we_sign() -> None:
    """Most Python receivers use it; it checks against its own clock."""
    now = int(time.time())
    headers = sign("evt_1", now, BODY, [OTHER, SECRET])
    assert Webhook(SECRET).verify(BODY, headers) == {"type": "ping"}
    assert Webhook(OTHER).verify(BODY.decode(), headers) == {"type": "ping"}


def test_we_accept_what_the_independent_package_signs() -> None:
    """A receiver using `gatepost.verify` hears from any sender."""
    moment = datetime.fromtimestamp(NOW, tz=UTC)
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(NOW),
        "Webhook-Signature": Webhook(SECRET).sign("msg_1", moment, BODY.decode()),
    }
    assert verify(BODY, headers, [SECRET], now=NOW) == Message("msg_1", NOW, BODY)


def test_without_now_the_system_clock_is_asked() -> None:
    """Receivers should not have to pass the time."""
    assert verify(BODY, sign("evt_1", int(time.time()), BODY, [SECRET]), [SECRET]).id == "evt_1"


@pytest.mark.parametrize(
    "headers",
    [
        {"WEBHOOK-ID": "evt_1", "Webhook-Timestamp": str(NOW)},
        [("Webhook-Id", "evt_1"), ("WEBHOOK-TIMESTAMP", str(NOW))],
        [(b"webhook-id", b"evt_1"), (b"webhook-timestamp", str(NOW).encode())],
    ],
    ids=["mapping", "pairs", "ASGI pairs"],
)
def test_headers_come_in_every_shape_and_case(headers: Any) -> None:
    """Frameworks disagree on case and container, and none of it is the receiver's problem."""
    signature = sign("evt_1", NOW, BODY, [SECRET])["webhook-signature"]
    if isinstance(headers, dict):
        headers = {**headers, "webhook-SIGNATURE": signature}
    elif isinstance(headers[0][0], bytes):
        headers = [*headers, (b"Webhook-Signature", signature.encode())]
    else:
        headers = iter([("Accept", "*/*"), *headers, ("webhook-signature", signature)])
    assert verify(BODY, headers, [SECRET], now=NOW).id == "evt_1"


def test_headers_of_the_standard_library_server_work() -> None:
    """`http.server` gives an email message, which iterates over names only."""
    headers = EmailMessage()
    for name, value in sign("evt_1", NOW, BODY, [SECRET]).items():
        headers[name] = value
    assert verify(BODY, headers, [SECRET], now=NOW).timestamp == NOW


def test_any_secret_and_any_signature_may_match() -> None:
    """Rotation on either side must not lose a webhook, and unknown versions are skipped."""
    headers = sign("evt_1", NOW, BODY, [OTHER])
    headers["webhook-signature"] = "v1a,AAAA  v2,b v1,bad v1,\u00e9 nonsense " + headers["webhook-signature"]
    assert verify(BODY, headers, [SECRET, OTHER], now=NOW).id == "evt_1"


def test_a_changed_body_or_another_secret_is_no_match() -> None:
    """The point of signing."""
    refused("no_match", body=BODY + b" ")
    refused("no_match", body=b"")
    refused("no_match", secrets=[OTHER])


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp"])
def test_id_and_timestamp_are_part_of_what_is_signed(name: str) -> None:
    """Otherwise a replay could take a new id or a fresh time."""
    headers = sign("evt_1", NOW, BODY, [SECRET])
    headers[name] = {"webhook-id": "evt_2", "webhook-timestamp": str(NOW + 1)}[name]
    refused("no_match", headers=headers)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_empty_or_repeated_header_is_named(name: str) -> None:
    """A receiver behind a header-dropping proxy needs to hear which one."""
    headers = sign("evt_1", NOW, BODY, [SECRET])
    assert name in str(refused("missing_header", headers={**headers, name: ""}))
    assert name in str(refused("missing_header", headers={key: headers[key] for key in headers if key != name}))
    assert name in str(refused("duplicate_header", headers=[*headers.items(), (name.upper(), headers[name])]))


@pytest.mark.parametrize("text", ["", "1.5", "-1", "+1", " 1", "1e9", "\u0661", "9" * 13, "1_0"])
def test_only_plain_numbers_are_timestamps(text: str) -> None:
    """`int()` accepts signs, blanks, underscores and other scripts; two parsers must not read two times."""
    headers = {**sign("evt_1", NOW, BODY, [SECRET]), "webhook-timestamp": text}
    refused("missing_header" if not text else "malformed_timestamp", headers=headers)


def test_ids_with_a_full_stop_are_refused() -> None:
    """`a.1` and `a` + `1` would sign the same bytes."""
    refused("malformed_id", headers={**sign("evt_1", NOW, BODY, [SECRET]), "webhook-id": "evt.1"})
    with pytest.raises(ValueError, match="letters, digits, hyphens or underscores"):
        sign("evt.1", NOW, BODY, [SECRET])


def test_the_tolerance_counts_both_ways_and_includes_its_edge() -> None:
    """Old ones may be replays; new ones say that a clock is wrong."""
    headers = sign("evt_1", NOW, BODY, [SECRET])
    for now in (NOW - 300, NOW + 300, NOW + 0.5):
        assert verify(BODY, headers, [SECRET], now=now).timestamp == NOW
    refused("timestamp_too_old", now=NOW + 301)
    refused("timestamp_too_new", now=NOW - 301)
    refused("timestamp_too_old", now=NOW + 1, tolerance=0.5)


@pytest.mark.parametrize("options", [{"tolerance": -1}, {"tolerance": float("nan")}, {"now": float("nan")}])
def test_impossible_times_are_misuse(options: dict[str, float]) -> None:
    """NaN compares false with everything, so it would switch the age check off."""
    with pytest.raises(ValueError, match="write seconds"):
        verify(BODY, sign("evt_1", NOW, BODY, [SECRET]), [SECRET], **options)


def test_no_signature_of_our_version_is_told_apart_from_a_wrong_one() -> None:
    """The first is a sender's or proxy's fault, the second a secret's."""
    headers = sign("evt_1", NOW, BODY, [SECRET])
    refused("malformed_signature", headers={**headers, "webhook-signature": "v1a,AAAA"})
    refused("malformed_signature", headers={**headers, "webhook-signature": headers["webhook-signature"][3:]})


def test_a_signature_in_other_base64_spelling_is_no_match() -> None:
    """Comparing text keeps one signature one text."""
    headers = sign("evt_1", NOW, BODY, [SECRET])
    refused("no_match", headers={**headers, "webhook-signature": headers["webhook-signature"].rstrip("=")})


def test_text_bodies_are_misuse_with_the_way_out_in_the_message() -> None:
    """The commonest mistake of receivers: signing what was parsed and written again."""
    text: Any = "{}"
    with pytest.raises(TypeError, match=r"request\.get_data\(\)"):
        sign("evt_1", NOW, text, [SECRET])
    with pytest.raises(TypeError, match=r"request\.get_data\(\)"):
        verify(text, {}, [SECRET])


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "MTs/WBqa34nMr7adv9G8d3H89BdzCelm+XRazKYxp2U=",
        "whsec_",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_" + base64.urlsafe_b64encode(b"\xff" * 32).decode(),
        "whsec_" + base64.b64encode(bytes(32)).decode().rstrip("="),
        "whsec_" + base64.b64encode(bytes(32)).decode()[:-2] + "B=",
        "whsec_ " + base64.b64encode(bytes(32)).decode(),
        "whsec_\u00e9" + base64.b64encode(bytes(32)).decode(),
        b"whsec_",
        None,
    ],
)
def test_malformed_secrets_are_refused_without_being_repeated(secret: Any) -> None:
    """The reference library drops foreign characters silently, so two people can hold different keys for one text."""
    error = refused("malformed_secret", secrets=[secret], headers={})
    if secret and len(secret) > 6:
        assert str(secret)[6:] not in str(error)
    with pytest.raises(SignatureError):
        sign("evt_1", NOW, BODY, [secret])


def test_the_number_of_secrets_is_bounded_and_a_bare_text_is_misuse() -> None:
    """Each secret costs every receiver a comparison; a bare text would be read letter by letter."""
    refused("malformed_secret", secrets=[])
    refused("malformed_secret", secrets=[SECRET] * 6)
    with pytest.raises(TypeError, match=r"\[secret\]"):
        Signer(SECRET)


@pytest.mark.parametrize("timestamp", [1.5, "1", True, None])
def test_timestamps_are_whole_seconds(timestamp: Any) -> None:
    """A float would be written with its decimals."""
    with pytest.raises(TypeError, match="whole seconds"):
        sign("evt_1", timestamp, BODY, [SECRET])


@pytest.mark.parametrize("timestamp", [-1, 1_767_225_600_000])
def test_timestamps_in_milliseconds_or_before_1970_are_refused(timestamp: int) -> None:
    """Receivers would drop them as too new or malformed, a day later."""
    with pytest.raises(ValueError, match="milliseconds"):
        sign("evt_1", timestamp, BODY, [SECRET])


def test_new_secrets_are_accepted_and_bounded() -> None:
    """What we write we must read."""
    assert parse_secret(new_secret(bytes(24))) == bytes(24)
    for size in (0, 23, 65):
        with pytest.raises(ValueError, match="24 to 64"):
            new_secret(bytes(size))


def test_a_signer_shows_and_pickles_no_secret() -> None:
    """It lives in memory dumps of logs and task frames otherwise."""
    signer = Signer([SECRET, OTHER])
    assert repr(signer) == "<Signer secrets=2>"
    for leak in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="holds secrets"):
            leak(signer)
    assert "ping" not in repr(verify(BODY, sign("evt_1", NOW, BODY, [SECRET]), [SECRET], now=NOW))


def test_signing_is_exported_by_the_package() -> None:
    """The names users rely on."""
    assert gatepost.sign is sign
    assert gatepost.verify is verify


@given(body=st.binary(max_size=300), key=st.binary(min_size=24, max_size=64), timestamp=st.integers(0, 10**12 - 1))
def test_what_is_signed_verifies_and_nothing_else(body: bytes, key: bytes, timestamp: int) -> None:
    """For any body, key and time, and never for a body one byte longer."""
    secret = new_secret(key)
    headers: Iterable[tuple[str, str]] = sign("evt_1", timestamp, body, [secret]).items()
    assert verify(body, headers, [secret], now=timestamp) == Message("evt_1", timestamp, body)
    with pytest.raises(SignatureError, match="no signature matches"):
        verify(body + b"\0", headers, [secret], now=timestamp)
