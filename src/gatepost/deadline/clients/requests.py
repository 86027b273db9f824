"""A requests adapter with a true total: `session.mount("http://inventory.internal", DeadlineAdapter(SAME_DC))`.

requests has no total timeout; here connect, TLS, head and body together have the earlier of the ambient deadline and the
tier's total, whether the body is read at once or streamed. A `timeout=` given to a request only tightens the tier's phases, and
needs not be given. Internal tiers get `Request-Timeout`; mount one adapter per URL prefix, for a redirect looks its adapter up
anew, and is a call of its own (only the ambient deadline bounds them together).
"""

from __future__ import annotations

from typing import Any

try:
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise ImportError("gatepost.deadline.clients.requests needs requests: pip install requests") from error

from gatepost.deadline.clients.call import Call, CallExceeded, working_for
from gatepost.deadline.clients.urllib3 import POOL_CLASSES, bounded_retry, mapped
from gatepost.deadline.tiers import Tier


class DeadlineTimeout(CallExceeded, requests.exceptions.Timeout):
    """The call's time is up: a `DeadlineExceeded`, and what `except requests.Timeout` catches."""

    response = None
    request = None


class DeadlineAdapter(HTTPAdapter):
    """`requests.adapters.HTTPAdapter` (same arguments) whose calls belong to `tier`."""

    def __init__(self, tier: Tier, *args: Any, **options: Any) -> None:
        self.tier = tier
        super().__init__(*args, **options)
        self.max_retries = bounded_retry(self.max_retries)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = dict(POOL_CLASSES)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = dict(POOL_CLASSES)
        return manager

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send it within its time; raises `DeadlineTimeout` when that is up, there or here."""
        call = Call(self.tier, DeadlineTimeout)
        sent = request.copy()  # the original goes on into redirects, which may lead to somebody else
        sent.headers.update(call.headers(request.headers))
        with working_for(call), mapped(call):
            response = super().send(sent, stream, _tightened(timeout, call), verify, cert, proxies)
            response.request = request
            refused = call.refused(response.status_code, response.headers)
            if refused is not None:
                response.close()
                raise refused
        return response


def _tightened(timeout: Any, call: Call) -> Any:
    connect, read = _pair(timeout)
    left = call.seconds(None, "before the call")
    return (_least(connect, call.tier.connect, left), _least(read, call.tier.read, left))


def _pair(timeout: Any) -> tuple[float | None, float | None]:
    match timeout:
        case (connect, read):
            return connect, read
        case urllib3.Timeout():
            return timeout.connect_timeout, timeout.read_timeout  # type: ignore[return-value]  # resolved numbers
        case _:
            return timeout, timeout


def _least(own: float | None, *limits: float) -> float:
    return min(limits) if own is None else min(own, *limits)
