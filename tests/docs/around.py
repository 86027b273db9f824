"""What already runs when a reader comes to a page: `<!-- tested with: NAME, … -->` names these."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Final

from gatepost.testing.postgres import shared_server
from tests.docs.blocks import ROOT
from tests.docs.reader import Reader

ADMIN_KEY: Final = "an-admin-key-for-the-docs-0123456789"
LOOPBACK: Final = "GATEPOST_EGRESS_SCHEMES=https,http GATEPOST_EGRESS_ALLOW_CIDRS=127.0.0.0/8"


def _receiver(reader: Reader) -> None:
    """A receiver on port 9000 that says 200."""
    reader.leave(f"python -m gatepost.testing.receiver --port {reader.port('9000')}")


def _service(reader: Reader) -> None:
    """`gatepost serve` on SQLite, port 8080, that may call this machine."""
    reader.environment["GATEPOST_URL"] = f"http://127.0.0.1:{reader.port('8080')}"
    reader.leave(f"{LOOPBACK} gatepost serve --db sqlite:///service.db --port {reader.port('8080')}")


def _keyed_service(reader: Reader) -> None:
    """The same with an admin key, which is in the reader's environment."""
    reader.environment["GATEPOST_API_KEY"] = ADMIN_KEY
    reader.environment["GATEPOST_SECURITY_ADMIN_KEY"] = ADMIN_KEY
    _service(reader)


def _url(reader: Reader) -> None:
    """Only where the service will be, which the page starts itself: commands find it at the reader's port."""
    reader.environment["GATEPOST_URL"] = f"http://127.0.0.1:{reader.port('8080')}"
    reader.environment["GATEPOST_LISTEN_PORT"] = reader.port("8080")


def _endpoint(reader: Reader) -> None:
    """An endpoint at the receiver, for every type: `ep_…`."""
    reader.paste(f"gatepost endpoint create http://127.0.0.1:{reader.port('9000')}/hooks")


def _keys_file(reader: Reader) -> None:
    """`keys`, with a key to seal secrets, which the service reads."""
    reader.paste('echo "k1:$(head -c 32 /dev/urandom | base64)" > keys; chmod 600 keys')
    reader.environment["GATEPOST_SECURITY_KEYS_FILE"] = "keys"


def _deploy(reader: Reader) -> None:
    """`deploy/` in the reader's directory."""
    shutil.copytree(ROOT / "deploy", reader.home / "deploy")


def _tenant(reader: Reader) -> None:
    """A tenant `acme`."""
    reader.paste("gatepost tenant create acme")


def _dead_letter(reader: Reader) -> None:
    """An endpoint that answers 500 to its one attempt, and an event for it: `ep_…`, `dlv_…`, `evt_…`."""
    reader.paste(
        f"gatepost endpoint create http://127.0.0.1:{reader.port('9000')}/status/500 --schedule 0 --type 'invoice.*'\n"
        "gatepost publish invoice.paid --data '{\"number\": 7}'\n"
        "until gatepost dead list | grep dlv_; do sleep 0.1; done"
    )


def _postgres(reader: Reader) -> None:
    """Any PostgreSQL URL of the page is an empty database."""
    reader.database = shared_server().create_database()
    reader.environment["GATEPOST_LISTEN_PORT"] = reader.port("8080")


def _examples(reader: Reader) -> None:
    """`examples/` in the reader's directory."""
    shutil.copytree(ROOT / "examples", reader.home / "examples", ignore=shutil.ignore_patterns("__pycache__"))


AROUND: Final[Mapping[str, Callable[[Reader], None]]] = {
    "receiver": _receiver,
    "service": _service,
    "keyed service": _keyed_service,
    "url": _url,
    "endpoint": _endpoint,
    "keys file": _keys_file,
    "deploy": _deploy,
    "tenant": _tenant,
    "dead letter": _dead_letter,
    "postgres": _postgres,
    "examples": _examples,
}
