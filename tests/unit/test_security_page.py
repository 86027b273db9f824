"""SECURITY.md says what the code does: its table of defaults, and the promises that can be looked up."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from gatepost.delivery.policy import ClientPolicy
from gatepost.net.dial import ADDRESSES_MAX
from gatepost.net.names import PENDING_MAX
from gatepost.net.tls import TLSContexts, TLSProfile
from gatepost.service.config import Settings
from gatepost.wire.egress import URL_BYTES_MAX, EgressPolicy
from gatepost.wire.headers import VALUE_BYTES_MAX

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")


def defaults() -> dict[str, str]:
    """The table of the page."""
    return dict(re.findall(r"^\| `([a-z_.0-9]+)` \| ([^|]+?) \|$", PAGE, re.MULTILINE))


def actual(name: str) -> object:
    """What the code has for a row."""
    area, _, field = name.partition(".")
    settings = Settings()
    context = TLSContexts().get(None)
    match area:
        case "egress":
            value = getattr(EgressPolicy(), field)
            return ", ".join(value) or "none" if isinstance(value, tuple) else value
        case "policy":
            return getattr(ClientPolicy(), field)
        case "tls":
            if field == "x509_strict":
                assert context.verify_flags & ssl.VERIFY_X509_STRICT
                return TLSProfile().x509_strict
            if field == "alpn":
                return "http/1.1"  # proven by scenario 34: a context does not tell what it offers
            value = getattr(context, field)
            return getattr(value, "name", value)
        case "service":
            return {
                "listen_host": settings.listen.host,
                "max_payload": settings.max_payload,
                "metrics_public": settings.metrics.public,
            }[field]
        case "limits":
            return {
                "url_bytes": URL_BYTES_MAX,
                "header_value_bytes": VALUE_BYTES_MAX,
                "names_pending": PENDING_MAX,
                "addresses_dialled": ADDRESSES_MAX,
            }[field]
        case _:
            raise AssertionError(f"{name}: a row of which this test knows nothing")


def test_every_default_of_the_page_is_the_codes() -> None:
    """A page that promises more than the code does is worse than none."""
    table = defaults()
    assert len(table) > 30
    assert {name: str(actual(name)) for name in table} == table


def test_every_egress_setting_has_a_row() -> None:
    """A new one must say what it is by default."""
    fields = {name for name in EgressPolicy.__dataclass_fields__ if EgressPolicy.__dataclass_fields__[name].init}
    assert {f"egress.{name}" for name in fields} <= set(defaults())


def test_nothing_turns_certificate_checks_off() -> None:
    """No parameter, no setting and no profile whose name says so, anywhere."""
    source = Path(__file__).parents[2] / "src" / "gatepost"
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"verify\s*=\s*False|CERT_NONE|check_hostname\s*=\s*False|insecure(?!_channel)", text), (
            path
        )
