"""Deadlines on gRPC: interceptors for servers and clients, sync and asyncio. Needs grpcio (`pip install 'gatepost[grpc]'`).

Only the names for users; `grpc_server` and `grpc_client` do the work.
"""

from __future__ import annotations

try:
    import grpc as _grpc  # noqa: F401 - asked for first, so that its absence is said in our words
except ImportError as error:
    raise ImportError("gatepost.deadline.grpc needs grpcio: pip install 'gatepost[grpc]'") from error

from gatepost.deadline.gate import Operation
from gatepost.deadline.grpc_client import DeadlineClientInterceptor, aio_client_interceptors
from gatepost.deadline.grpc_server import AioDeadlineServerInterceptor, DeadlineServerInterceptor

__all__ = [
    "AioDeadlineServerInterceptor",
    "DeadlineClientInterceptor",
    "DeadlineServerInterceptor",
    "Operation",
    "aio_client_interceptors",
]
