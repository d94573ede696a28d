"""Memory of the process that runs models."""

from __future__ import annotations

from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 1 << 30
_GROWTH = 64 << 20
_LARGEST_ON_HEAP = 32 << 20


@cache
def keep_freed_memory() -> None:
    """Let glibc hand freed arrays out again instead of returning them to the system: every page would cost a fault at its next use.

    Has no effect on other C libraries.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _GROWTH)
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
