"""What the service knows for long is left alone by the garbage collector."""

from __future__ import annotations

import gc

from gatepost.service.heap import set_aside


def test_what_stays_is_not_walked_again() -> None:
    """A full collection over all endpoints stops the loop for a quarter of a second; after this it has nothing to walk."""
    kept = [[number] for number in range(1_000)]
    try:
        set_aside()
        assert gc.get_freeze_count() > 1_000
        assert not any(one is kept[0] for one in gc.get_objects())
    finally:
        gc.unfreeze()
