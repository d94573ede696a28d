"""Hardware buffers, Android's AHardwareBuffer, in ordinary memory of the PC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arguments import checked
from ortconv.nnapi.errors import bad_data, bad_state
from ortconv.nnapi.handle import Handle

LARGEST = 1 << 40  # bytes


class BufferFormat(IntEnum):
    """Formats of hardware buffers. A BLOB has `width` bytes."""

    R8G8B8A8_UNORM = 1
    R8G8B8X8_UNORM = 2
    R8G8B8_UNORM = 3
    R5G6B5_UNORM = 4
    R16G16B16A16_FLOAT = 0x16
    BLOB = 0x21
    R10G10B10A2_UNORM = 0x2B
    D16_UNORM = 0x30
    D24_UNORM = 0x31
    D24_UNORM_S8_UINT = 0x32
    D32_FLOAT = 0x33
    S8_UINT = 0x35
    R8_UNORM = 0x38

    @property
    def pixel_bytes(self) -> int:
        return _PIXEL_BYTES.get(self, 4)


_PIXEL_BYTES = {
    BufferFormat.R8G8B8_UNORM: 3,
    BufferFormat.R5G6B5_UNORM: 2,
    BufferFormat.R16G16B16A16_FLOAT: 8,
    BufferFormat.BLOB: 1,
    BufferFormat.D16_UNORM: 2,
    BufferFormat.S8_UINT: 1,
    BufferFormat.R8_UNORM: 1,
}


class BufferUsage(IntFlag):
    """Uses of a buffer. The CPU can map it only if a CPU usage is among them."""

    CPU_READ_RARELY = 2
    CPU_READ_OFTEN = 3
    CPU_WRITE_RARELY = 2 << 4
    CPU_WRITE_OFTEN = 3 << 4
    GPU_SAMPLED_IMAGE = 1 << 8
    GPU_COLOR_OUTPUT = 1 << 9
    GPU_DATA_BUFFER = 1 << 24


CPU_READ_MASK = 0xF
CPU_WRITE_MASK = 0xF0


@dataclass(frozen=True, slots=True)
class BufferDesc:
    """The description of a buffer: pixels, or a BLOB of `width` bytes. `stride` is in pixels; allocation sets it."""

    width: int
    height: int = 1
    layers: int = 1
    format: int = BufferFormat.BLOB
    usage: int = BufferUsage.CPU_READ_OFTEN | BufferUsage.CPU_WRITE_OFTEN
    stride: int = 0

    @property
    def nbytes(self) -> int:
        return self.width * self.height * self.layers * BufferFormat(self.format).pixel_bytes


class HardwareBuffer(Handle):
    """A buffer, allocated as described. Raises BAD_DATA for an invalid description."""

    @checked
    def __init__(self, desc: BufferDesc) -> None:
        if desc.format not in tuple(BufferFormat):
            raise bad_data(f"{desc.format:#x} is not a format of a hardware buffer")
        if min(desc.width, desc.height, desc.layers) < 1 or desc.nbytes > LARGEST:
            raise bad_data(f"a buffer of {desc.width} x {desc.height}, {desc.layers} layers")
        if desc.format == BufferFormat.BLOB and (desc.height, desc.layers) != (1, 1):
            raise bad_data(f"a BLOB has height 1 and one layer, not {desc.height} and {desc.layers}")
        self.desc = replace(desc, stride=desc.width)
        self._data: Array | None = np.zeros(desc.nbytes, np.uint8)
        self._owners = 1

    def acquire(self) -> None:
        """Add an owner. The buffer lives until each owner has closed it."""
        self._owners += 1

    @property
    def is_in_use(self) -> bool:
        return self._owners > 0

    @property
    def is_blob(self) -> bool:
        return self.desc.format == BufferFormat.BLOB

    @property
    def data(self) -> Array:
        """The bytes. Raises BAD_STATE for a closed buffer."""
        if self._data is None:
            raise bad_state("the hardware buffer is closed")
        return self._data

    def lock(self, usage: int) -> Array:
        """The bytes, for the CPU. Raises BAD_DATA for a usage that the description does not list."""
        for mask in (CPU_READ_MASK, CPU_WRITE_MASK):
            if usage & mask and not self.desc.usage & mask:
                raise bad_data(f"the buffer's usage is {self.desc.usage:#x}: the CPU cannot use it as {usage:#x}")
        if not usage & (CPU_READ_MASK | CPU_WRITE_MASK):
            raise bad_data(f"{usage:#x} is not a CPU usage")
        return self.data

    def _free(self) -> None:
        """Release the bytes. Memories created from the buffer keep them."""
        self._owners = max(0, self._owners - 1)
        if not self._owners:
            self._data = None
