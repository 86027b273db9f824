"""The curl line that does what the doctor did, for whoever wants to see it with another program or from another machine. Pure."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import urlsplit

MAX_TIME: Final = 30
"""Seconds, as the checklist has it: longer than any limit of ours, so that a slow answer is seen to the end."""


def curl_line(url: str, address: str | None, *, payload: bytes | None = None, ca_file: str | None = None) -> str:
    """For a shell. `address`: connect to it, whatever DNS says there; `payload`: POST it, else OPTIONS. No signature is in it."""
    parts = urlsplit(url)
    words = ["curl", "-v", "--max-time", str(MAX_TIME), "--http1.1", "--noproxy", "*"]
    host = parts.hostname or ""
    if address is not None and address != host:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        shown = f"[{address}]" if ":" in address else address
        words += ["--resolve", f"{host}:{port}:{shown}"]
    if ca_file is not None:
        words += ["--cacert", ca_file]
    if payload is None:
        words += ["-X", "OPTIONS"]
    else:
        words += ["-H", "content-type: application/json", "--data-binary", payload.decode("utf-8", "replace")]
    return shlex.join([*words, url])
