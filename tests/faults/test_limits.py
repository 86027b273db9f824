"""Fault cases of class limits: what a receiver sends is bounded as it is read, and never inflated."""

from __future__ import annotations

import gzip
import tracemalloc

from gatepost.delivery.outcome import RetrySafety
from gatepost.testing.hostile import answering
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.reasons import BodyFault, Reason
from tests.faults.kit import PATIENT, Case, delivering, head, meet_all
from tests.hostile.engine import IDENTITY, SMALL, answered, limits

TOO_LARGE = answered(body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
CAP = 65_536


async def test_limits_01_a_compressed_body_is_never_inflated() -> None:
    """100 KiB that would become 100 MiB stay 100 KiB, of which the cap is kept; a wrong label changes nothing."""
    bomb = gzip.compress(bytes(100 * 1_024 * 1_024), 1)[:120_000]
    small = gzip.compress(gzip.compress(b"twice"))
    tracemalloc.start()
    try:
        attempts = await meet_all(
            [
                Case(answering(head("Content-Encoding: gzip", f"Content-Length: {len(bomb)}") + bomb), TOO_LARGE),
                Case(
                    answering(head("Content-Encoding: gzip", "Content-Length: 40", status="500 E") + bomb[:40]),
                    answered(500, safety=RetrySafety.AMBIGUOUS, kept=True),
                ),
                Case(
                    answering(head("Content-Encoding: gzip, gzip", f"Content-Length: {len(small)}") + small),
                    answered(kept=True),
                ),
                *(
                    Case(answering(head(f"Content-Encoding: {name}", "Content-Length: 7") + b"garbage"), answered(kept=True))
                    for name in ("br", "zstd", "deflate", "nonsense")
                ),
            ]
        )  # fmt: skip
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert attempts[0].body == bomb[:CAP]
    assert attempts[2].body == small
    assert peak < 8 * 1_024 * 1_024, "inflated, it would be 100"


async def test_limits_01_no_compression_is_asked_for() -> None:
    """Who is not asked and compresses all the same gets its bytes kept as they are."""
    async with delivering("ok") as (server, client):
        await client.deliver(server.url, SMALL, IDENTITY)
        assert b"\r\naccept-encoding: identity\r\n" in server.requests[0].head.lower()


async def test_limits_02_twenty_endless_bodies_cost_twenty_caps() -> None:
    """Read as far as the cap and no further: the limit is on reading, not on what is stored."""
    tracemalloc.start()
    try:
        attempts = await meet_all([Case("endless-body", TOO_LARGE)] * 20, limits(**PATIENT))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(attempt.body) == CAP for attempt in attempts)
    assert peak < 20 * 6 * CAP + 4 * 1_024 * 1_024


def test_limits_02_a_body_in_tiny_pieces_costs_what_its_bytes_cost() -> None:
    """Two bytes a chunk, in one segment or in thousands: what is held is the body, not an object for each piece."""
    for pieces in (1, 30_000):
        reader = ResponseReader(CAP, CAP, 10)
        reader.feed(head("Transfer-Encoding: chunked"))
        data = b"2\r\nab\r\n" * (30_000 // pieces)
        tracemalloc.start()
        try:
            for _ in range(pieces):
                reader.feed(data)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reader.body == b"ab" * 30_000
        assert held < 2 * CAP + 16_384
