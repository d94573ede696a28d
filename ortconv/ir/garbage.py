"""Python's garbage collector, and graphs: large, cyclic, and made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 70_000
"""After so many objects Python itself looks through all of them, if it is left alone."""

_made = 0


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection in this block, which makes many objects and no garbage.

    They count as old ones afterward. What such blocks made earlier, and has become garbage, goes at the beginning.
    """
    global _made
    if not gc.isenabled():
        yield
        return
    if _made > _MOST:
        gc.collect()
        _made = 0
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        _made += max(gc.get_count()[0] - before, 0)
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.enable()
