"""Twenty thousand mutated responses, cut and delayed at random: the small version of `python -m bench.fuzz`.

A failure names its seed; `python -m bench.fuzz --seed N` begins there.
"""

from __future__ import annotations

import random

import pytest

from bench.fuzz import chunked, fuzz_client_run, fuzz_readers, mutated, pieces, read_all, valid_response

READER_SEEDS = range(100, 109)
CLIENT_SEEDS = (1, 2)
BATCH = 2_000


@pytest.mark.parametrize("seed", READER_SEEDS)
def test_no_bytes_make_the_reader_raise_and_no_cut_changes_what_they_mean(seed: int) -> None:
    """Whole, in pieces, and byte by byte a response is the same one; what is reusable has no fault on it."""
    ends = fuzz_readers(BATCH, seed)
    assert ends["reusable"] > BATCH / 20
    assert {"ok", "response_protocol_error", "response_incomplete", "protocol", "incomplete"} <= set(ends)


@pytest.mark.parametrize("seed", CLIENT_SEEDS)
def test_no_answer_hangs_the_client_mixes_two_requests_or_is_trusted_after_a_fault(seed: int) -> None:
    """Through pool, sockets and limits, on virtual time: ids are compared, and what follows on a connection is looked at."""
    ends = fuzz_client_run(BATCH // 2, seed)
    assert ends["reused"] > BATCH / 20
    assert {"ok", "response_protocol_error", "wait_timeout", "response_timeout", "timeout"} <= set(ends)


def test_what_is_mutated_was_lawful() -> None:
    """Else the fuzzer would only ever test garbage: every response it starts from is read whole and without fault."""
    rng = random.Random(7)
    for number in range(2_000):
        raw = valid_response(rng, f"id-{number}")
        read = read_all(pieces(rng, raw), orderly=True)
        assert read.fault is None
        assert read.body_fault is None, raw
    assert chunked(rng, b"").endswith(b"\r\n\r\n")
    assert len({mutated(random.Random(seed), raw) for seed in range(100)}) > 50
