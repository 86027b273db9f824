"""An old key that seals secrets can be taken away: `gatepost endpoint reseal` is what is needed for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from gatepost.store.secretbox import SecretBox
from tests.service.served import PATIENCE, environment, served


def test_the_old_key_may_go_once_everything_is_sealed_with_the_new_one(tmp_path: Path) -> None:
    """A key that leaked must not be needed for ever, and customers must not need new secrets for it."""
    old, new = SecretBox.new_key(), SecretBox.new_key()
    with served(tmp_path, GATEPOST_SECURITY_KEYS=old) as service:
        body = {"url": "http://127.0.0.1:65000/never", "description": "said once", "headers": {"x-token": "hidden"}}
        made = [httpx.post(f"{service.url}/v1/endpoints", json=body).json() for _ in range(3)]
    with served(tmp_path, GATEPOST_SECURITY_KEYS=f"{new},{old}") as service:
        done = subprocess.run(
            [sys.executable, "-m", "gatepost.service.cli", "endpoint", "reseal", "--json"],
            env={**environment(tmp_path), "GATEPOST_URL": service.url, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, '{"resealed": 3}\n'), done.stderr
    with served(tmp_path, GATEPOST_SECURITY_KEYS=new) as service:
        for endpoint in made:
            shown = httpx.get(f"{service.url}/v1/endpoints/{endpoint['id']}").json()
            assert (shown["description"], list(shown["headers"])) == ("said once", ["x-token"])
            assert shown["secrets"][0]["hint"] == endpoint["secrets"][0]["hint"]
