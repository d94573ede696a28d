"""Memory of the process that runs models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

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


def return_freed_memory() -> None:
    """Give what has been kept back to the system, as other memory will be used from now on."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def once(function: Callable[..., _T], *args: Any) -> Callable[[], _T]:
    """The function that makes this call at its first, and holds nothing but the result from then on."""
    pending: list[Callable[[], _T]] = [lambda: function(*args)]
    made: list[_T] = []

    def result() -> _T:
        for make in [] if made else pending.copy():
            made.append(make())
        pending.clear()
        return made[0]

    return result


def forget_peak() -> None:
    """Let `peak_bytes` count from here on, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """The most memory that the process has held, its mapped model files included; None where the system does not tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    with suppress(ImportError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return None
