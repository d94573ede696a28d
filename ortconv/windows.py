"""What Windows does in its own way: reports of memory, locks of files."""

from __future__ import annotations

import ctypes
import msvcrt
import sys
from ctypes import wintypes

assert sys.platform == "win32"

_LOCK_VIOLATION = 33
_LOCKED_BYTE = 1 << 62
"""The position of the byte that is locked: beyond the ends of files, since others cannot read locked bytes."""


class ProcessMemory(ctypes.Structure):
    """The memory of this process, PROCESS_MEMORY_COUNTERS of the Windows API; sizes in bytes."""

    peak: int
    committed: int
    _fields_ = (
        ("size", wintypes.DWORD),
        ("page_faults", wintypes.DWORD),
        ("peak", ctypes.c_size_t),
        *((name, ctypes.c_size_t) for name in ("resident", "peak_paged", "paged", "peak_nonpaged", "nonpaged")),
        ("committed", ctypes.c_size_t),
        ("peak_committed", ctypes.c_size_t),
    )


class MachineMemory(ctypes.Structure):
    """The memory of the machine, MEMORYSTATUSEX of the Windows API; sizes in bytes."""

    total: int
    _fields_ = (
        ("size", wintypes.DWORD),
        ("load", wintypes.DWORD),
        ("total", ctypes.c_uint64),
        *((name, ctypes.c_uint64) for name in ("free", "total_paged", "free_paged", "total_virtual", "free_virtual")),
        ("free_extended", ctypes.c_uint64),
    )


def process_memory() -> ProcessMemory:
    """The memory of this process; zeros if it cannot be read."""
    found = ProcessMemory(size=ctypes.sizeof(ProcessMemory))
    this_process = wintypes.HANDLE(-1)
    ctypes.WinDLL("kernel32").K32GetProcessMemoryInfo(this_process, ctypes.byref(found), found.size)
    return found


def machine_memory() -> int | None:
    """The bytes of memory of the machine; None if they cannot be read."""
    found = MachineMemory(size=ctypes.sizeof(MachineMemory))
    ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(found))
    return found.total or None


def lock(descriptor: int) -> bool | None:
    """Lock a file while this descriptor is open. False if another one locks it, None if the file system has no locks."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
    if kernel.LockFile(handle, 0, _LOCKED_BYTE >> 32, 1, 0):
        return True
    return False if ctypes.get_last_error() == _LOCK_VIOLATION else None
