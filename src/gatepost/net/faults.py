"""Errors of the operating system as reasons, by number and never by text."""

from __future__ import annotations

import errno
from typing import Final

from gatepost.wire.reasons import Reason

_BY_ERRNO: Final = {
    errno.ECONNREFUSED: Reason.CONNECTION_REFUSED,
    errno.ECONNRESET: Reason.CONNECTION_RESET,
    errno.EPIPE: Reason.CONNECTION_RESET,
    errno.ECONNABORTED: Reason.CONNECTION_RESET,
    errno.EHOSTUNREACH: Reason.HOST_UNREACHABLE,
    errno.EHOSTDOWN: Reason.HOST_UNREACHABLE,
    errno.ENETUNREACH: Reason.NETWORK_UNREACHABLE,
    errno.ENETDOWN: Reason.NETWORK_UNREACHABLE,
    errno.EAFNOSUPPORT: Reason.NETWORK_UNREACHABLE,
    errno.ETIMEDOUT: Reason.CONNECTION_TIMED_OUT,
    errno.EMFILE: Reason.LOCAL_RESOURCES,
    errno.ENFILE: Reason.LOCAL_RESOURCES,
    errno.ENOBUFS: Reason.LOCAL_RESOURCES,
    errno.ENOMEM: Reason.LOCAL_RESOURCES,
    errno.EADDRNOTAVAIL: Reason.LOCAL_RESOURCES,
    errno.EAGAIN: Reason.LOCAL_RESOURCES,
}
"""EADDRNOTAVAIL and EAGAIN come from `connect` when our own ports are used up."""


def connect_reason(number: int | None) -> Reason:
    """Why a connect failed."""
    return _BY_ERRNO.get(number or 0, Reason.CONNECT_FAILED)


def stream_reason(number: int | None) -> Reason:
    """Why an established connection failed."""
    return _BY_ERRNO.get(number or 0, Reason.CONNECTION_RESET)
