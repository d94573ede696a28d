"""Memory objects: bytes that models and executions refer to instead of copying."""

from __future__ import annotations

import mmap

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import bad_data


class Memory:
    """A block of bytes: a mapped file or an array of the caller."""

    def __init__(self, data: Array, mapping: mmap.mmap | None = None) -> None:
        self.data = data
        self._mapping = mapping

    @classmethod
    def from_array(cls, array: Array) -> Memory:
        """The bytes of a C-contiguous array, shared with it."""
        if not array.flags.c_contiguous:
            raise bad_data("the array of a memory must be C-contiguous")
        return cls(array.reshape(-1).view(np.uint8))

    @property
    def size(self) -> int:
        """In bytes."""
        return self.data.nbytes

    def region(self, offset: int, length: int) -> Array:
        """Bytes offset..offset+length. BAD_DATA outside of the memory."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise bad_data(f"bytes {offset}..{offset + length} lie outside of a memory of {self.size}")
        return self.data[offset : offset + length]
