"""Everything that ortconv changes in the process as a whole: garbage collection, memory, BLAS threads, telemetry, the exit.

A library shares the process with a host. So lasting changes are made only after `take_over()`, which the command calls. Changes
that are undone at once are also made if no other thread could notice them. Two changes are made in any case: telemetry of
onnxruntime is off unless the user wants it, and BLAS has other threads while a session with more than one thread runs.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

_taken_over = False


def take_over() -> None:
    """Declare that the process runs ortconv alone. Best called before numpy is imported."""
    global _taken_over
    _taken_over = True
    # Several BLAS threads make small models slower and results depend on the machine; numpy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A graph of 20,000 nodes is a million objects that live until the end: looking through them again and again finds nothing.
    gc.set_threshold(500_000, 20, 20)


def may_change() -> bool:
    """True if a temporary change of the process's state cannot disturb other code."""
    return _taken_over or threading.active_count() == 1


def end(code: int) -> NoReturn:
    """Flush the standard streams and exit without the interpreter's cleanup, which would cost a fifth of a conversion."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            code = code or 2
            with suppress(OSError):
                os.write(2, f"error: cannot write to {stream.name}: {error.strerror}\n".encode())
    os._exit(code)


# ---------------------------------------------------------------------- garbage collection

_MOST_OBJECTS = 70_000
"""Number of new objects after which Python runs a full collection by default."""

_made = 0
_host_freezes = False
"""True once the host was found to have frozen objects. Python counts them one by one, so they are not counted again."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Suspend garbage collection in a block that makes many objects and no garbage.

    The new objects then count as old. Garbage of earlier such blocks is collected first.
    """
    global _made, _host_freezes
    if not gc.isenabled() or not may_change():
        yield
        return
    if _made > _MOST_OBJECTS:
        gc.collect()
        _made = 0
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        _made += max(gc.get_count()[0] - before, 0)
        _host_freezes = _host_freezes or gc.get_freeze_count() > 0
        if not _host_freezes:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def collect_dead_graphs() -> None:
    """Free the graphs that nothing refers to, and the mappings and descriptors of their files.

    Graphs are cycles of objects. Python collects these late in a process with many objects.
    """
    gc.collect()


# ---------------------------------------------------------------------- memory

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 1 << 30
_GROWTH = 64 << 20
_LARGEST_ON_HEAP = 32 << 20


def keep_freed_memory() -> None:
    """Let glibc reuse freed arrays instead of returning their pages to the system: each new page would cost a page fault.

    It has no effect with other C libraries, or in the process of a host.
    """
    if _taken_over:
        _keep_freed_memory()


@cache
def _keep_freed_memory() -> None:
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _GROWTH)
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


def return_freed_memory() -> None:
    """Return kept memory to the system, since memory will be used in another way from now on."""
    if _taken_over:
        trim()


def trim() -> None:
    """Return freed memory to the system, if its C library can."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_PAUSE = 0.002
"""Seconds between two calls of `repeatedly`."""

_MADV_DONTNEED = 4


@contextmanager
def repeatedly(drop_pages: Callable[[], None]) -> Iterator[None]:
    """Call a function every 2 ms while this block runs: one that drops pages of mapped files from the process's memory.

    The files must stay mapped until the block ends.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_PAUSE):
            drop_pages()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        drop_pages()


def private_mappings(files: Collection[Path]) -> list[tuple[int, int]]:
    """Address and size of each private mapping of these files, as native code maps data that it only reads (Linux)."""
    names, found = {os.path.realpath(file) for file in files}, []
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            area, access, _, _, _, *name = line.split(maxsplit=5)
            if access == "rw-p" and name and name[0] in names:
                start, end = (int(number, 16) for number in area.split("-"))
                found.append((start, end - start))
    return found


def drop_mappings(mappings: Iterable[tuple[int, int]]) -> None:
    """Drop the pages of mapped files, to which nothing has been written, from the process's memory."""
    import ctypes

    for start, size in mappings:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)


@contextmanager
def memory_limit(allowance: int) -> Iterator[None]:
    """Make allocations fail, where the system can, once the process has grown by this number of bytes. Freed memory that it keeps
    counts as in use.

    No limit is set if it would affect other threads of a host.
    """
    limits = _limits(allowance) if may_change() else None
    if limits is None:
        yield
        return
    import resource

    limit, soft, hard = limits
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def limit_data(allowed: int) -> Callable[[], None]:
    """Limit the bytes that this process and its later children allocate (Linux). Returns a function that undoes it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = allowed if hard == resource.RLIM_INFINITY else min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return partial(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))


def _limits(allowance: int) -> tuple[int, int, int] | None:
    """The memory limit to set, and the present soft and hard limits. None if no limit can be set, or a lower one is set already."""
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:  # a Path would take longer than the rest of this function
            pages = int(file.read().split()[0])
    except (ImportError, OSError):
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + allowance
    if any(other != resource.RLIM_INFINITY and other < limit for other in (soft, hard)):
        return None
    return limit, soft, hard


def reset_peak() -> bool:
    """Reset the peak that `peak_bytes` returns; False if the system cannot (not Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def peak_bytes() -> int | None:
    """The peak memory of the process in bytes, including mapped model files; None if the system does not report it."""
    if sys.platform == "win32":
        from ortconv.windows import process_memory

        return process_memory().peak or None
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def data_bytes() -> int:
    """The bytes of memory that the process has allocated, used or not; 0 if the system does not report it (macOS)."""
    if sys.platform == "win32":
        from ortconv.windows import process_memory

        return process_memory().committed
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def usable_memory() -> int | None:
    """The bytes of memory that this process and its children may use: the machine's, or the control group's limit."""
    if sys.platform == "win32":
        from ortconv.windows import machine_memory

        return machine_memory()
    found = []
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(found, default=None)


def usable_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


# ---------------------------------------------------------------------- other libraries


def disable_telemetry() -> None:
    """Stop onnxruntime from writing files of its own and looking up a host, which it does as soon as a session exists.

    If the user has set ORT_DISABLE_TELEMETRY, its value is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@contextmanager
def products_in(count: int) -> Iterator[None]:
    """Set the number of threads of numpy's OpenBLAS, which computes matrix products. Other BLAS libraries are not changed."""
    changed = [(change, was) for change, ask in openblas() if (was := ask()) != count]
    for change, _ in changed:
        change(count)
    try:
        yield
    finally:
        for change, was in changed:
            change(was)


@cache
def openblas() -> list[tuple[Callable[[int], Any], Callable[[], int]]]:
    """The functions of numpy's OpenBLAS that set and get the number of threads."""
    import ctypes

    import numpy

    package, found = Path(numpy.__file__).parent, []
    for path in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("", "")):
                with suppress(AttributeError):
                    change = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
                    found.append((change, getattr(library, f"{prefix}openblas_get_num_threads{suffix}")))
                    break
    return found
