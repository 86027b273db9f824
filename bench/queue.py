"""The store alone, under the name the command line has for it: `gatepost bench queue` is `python -m bench.store_cost`."""  # noqa: A005 - the command has this name

from __future__ import annotations

import sys

from bench.store_cost import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
