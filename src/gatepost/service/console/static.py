"""The console's own style sheet, script and icon, read once and served under a name that holds their digest.

A page names the version it was made for, so browsers keep the files for a year and never mix versions. There is nothing from
other hosts and nothing that is built.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.service.api.problems import not_found

TYPES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"
DIGEST_CHARS: Final = 16


def _read(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


_CONTENT: Final = {name: _read(name) for name in TYPES}
_VERSIONS: Final = {name: hashlib.sha256(content).hexdigest()[:DIGEST_CHARS] for name, content in _CONTENT.items()}

router = APIRouter()


def static_path(name: str) -> str:
    """Where a file is, below `/console`."""
    return f"/static/{_VERSIONS[name]}/{name}"


@router.get("/static/{version}/{name}")
async def static_file(version: str, name: str) -> Response:
    """A file. One of another version than asked for is served too, and not kept: a page of the process that was before us."""
    if name not in TYPES:
        raise not_found()
    kept = FOREVER if version == _VERSIONS[name] else "no-cache"
    return Response(_CONTENT[name], media_type=TYPES[name], headers={"cache-control": kept})
