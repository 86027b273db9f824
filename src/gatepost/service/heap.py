"""Takes what stays out of the garbage collector's way, so that a full collection does not stop the event loop.

A service that knows 5,000 endpoints holds 300,000 objects for as long as it runs. To walk them all takes the collector 200 to 300 ms,
whenever enough others have come and gone; meanwhile nothing is answered and every limit is late. Run by `gatepost serve` only: it
concerns the whole process, and what was set aside and becomes a cycle of garbage later is not found any more.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

FIRST_AFTER: Final = 15.0
"""Seconds after the start: the endpoints are read, and what is known of them."""
AGAIN_AFTER: Final = 3_600.0
"""Seconds between later rounds, which look only at what came since the last one."""


async def keep_heap_quiet() -> None:
    """Until cancelled."""
    pause = FIRST_AFTER
    while True:
        await asyncio.sleep(pause)
        set_aside()
        pause = AGAIN_AFTER


def set_aside() -> None:
    """Collect once, and leave everything that is left alone from now on."""
    gc.collect()
    gc.freeze()
