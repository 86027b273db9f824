"""`gatepost endpoint reseal`: the last step before an old key of `security.keys` may go.

It writes every endpoint anew as it is, since whatever is written is sealed with the first key. It decides nothing about keys.
"""

from __future__ import annotations

import sys

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, UrlOption, segment
from gatepost.service.cli.output import JsonFlag, print_json, print_line


def reseal(url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Seal the secrets of all endpoints with the first of `security.keys`. Then the keys behind it may go. For admins."""
    client = ApiClient(url, api_key, keep_alive=True)
    count = 0
    try:
        for endpoint in client.pages("/v1/endpoints", {}, sys.maxsize):
            client.call("PATCH", f"/v1/endpoints/{segment(endpoint['id'])}", {"description": endpoint["description"]})
            count += 1
    finally:
        client.close()
    if as_json:
        print_json({"resealed": count})
    else:
        print_line(f"{count} resealed")
