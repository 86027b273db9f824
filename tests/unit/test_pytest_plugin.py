"""The fixtures for users' tests do what their page says, in a suite of their own as a user would write it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, PayloadTooLarge, SignatureError
from gatepost.testing.published import RecordingPublisher
from gatepost.testing.scripted_receiver import ScriptedAnswer, ScriptedReceiver
from gatepost.wire.signing import new_secret, sign

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "test-your-receiver.md"


def post(receiver: ScriptedReceiver, webhook_id: str, secret: str | None = None) -> int:
    """One request, as any client would send it."""
    headers = sign(webhook_id, SYSTEM_CLOCK.wall_us() // 1_000_000, b"{}", [secret or receiver.secret])
    request = urllib.request.Request(receiver.url, b"{}", headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_receiver_answers_by_script_and_records() -> None:
    """What it answered stands beside what came."""
    with ScriptedReceiver() as receiver:
        receiver.script(503, ScriptedAnswer(429, b"slow down", {"Retry-After": "1"}))
        assert [post(receiver, "evt_1") for _ in range(3)] == [503, 429, 204]
        assert post(receiver, "evt_2", new_secret(bytes(32))) == 401
        receiver.always(410)
        assert post(receiver, "evt_3") == 410
        seen = receiver.wait_for(5)
        assert [(one.id, one.status, one.fault) for one in seen] == [
            ("evt_1", 503, None),
            ("evt_1", 429, None),
            ("evt_1", 204, None),
            ("evt_2", 401, "no_match"),
            ("evt_3", 410, None),
        ]
        assert [message.id for message in receiver.messages] == ["evt_1"]
        assert (seen[0].path, seen[0].json()) == ("/webhooks", {})
        with pytest.raises(AssertionError, match="5 of 9 webhooks came"):
            receiver.wait_for(9, timeout=0.01)
        with pytest.raises(ConfigurationError, match="status"):
            receiver.script(99)
    with pytest.raises(SignatureError):
        ScriptedReceiver(["no secret"])


def test_a_receiver_that_verifies_nothing_answers_everybody() -> None:
    """It still says what is wrong."""
    with ScriptedReceiver(signed=False) as receiver:
        assert post(receiver, "evt_1", new_secret(bytes(32))) == 204
        assert receiver.received[0].fault == "no_match"
        assert receiver.messages == []


def test_a_recording_publisher_checks_as_the_real_one() -> None:
    """A test that passes with arguments production refuses is worth nothing."""
    published = RecordingPublisher(max_payload=100)
    receipt = published.publish_sync("order.paid", {"number": 1}, tenant="acme", idempotency_key="k", connection="c")
    asyncio.run(published.publish("order.sent", b"raw", ordering_key="o"))
    first, second = published.events
    assert (first.event_id, first.type, first.tenant, first.idempotency_key) == (
        receipt.event_id,
        "order.paid",
        "acme",
        "k",
    )
    assert (first.json(), first.connection, second.body, second.ordering_key) == ({"number": 1}, "c", b"raw", "o")
    assert published.of_type("order.sent") == [second]
    with pytest.raises(ConfigurationError):
        published.publish_sync("not a type", {})
    with pytest.raises(PayloadTooLarge):
        published.publish_sync("order.paid", b"x" * 101)
    assert len(published.events) == 2


def blocks() -> list[str]:
    """The page's programs, in order: the conftest, then tests."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_suite_of_the_page_passes(pytester: pytest.Pytester) -> None:
    """Pasted as it stands, warnings as errors, and without any plugin for asynchronous tests."""
    conftest, *tests = blocks()
    pytester.makeconftest(conftest)
    for number, block in enumerate(tests):
        pytester.makepyfile(**{f"test_{number}": block})
    result = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=sum(block.count("\ndef test_") for block in tests))
    assert len(tests) >= 3


def test_a_failing_test_leaves_nothing_open(pytester: pytest.Pytester) -> None:
    """Threads, sockets and loops of the fixtures end with it."""
    pytester.makeconftest('pytest_plugins = ["gatepost.testing.pytest_plugin"]')
    pytester.makepyfile(
        """
        import socket
        import threading

        def test_fails(gatepost_receiver, hostile):
            server = hostile("silence")
            socket.create_connection(("127.0.0.1", server.port)).close()
            assert False

        def test_nothing_is_left():
            assert [t.name for t in threading.enumerate() if t.name.startswith("gatepost")] == []
        """
    )
    result = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)


def test_the_library_imports_no_pytest() -> None:
    """Everything but the plugin itself works where pytest is not installed."""
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import gatepost.testing.scripted_receiver, gatepost.testing.published, gatepost.testing.loop_thread\n"
        "import gatepost.testing.hostile, gatepost.testing.receiver, gatepost.receive"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    importers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^\s*(import pytest|from pytest)", path.read_text(), re.MULTILINE)
    ]
    assert "src/gatepost/testing/pytest_plugin.py" in importers
    assert [name for name in importers if not name.startswith("src/gatepost/testing/")] == []
