"""Memory objects: bytes that models and executions refer to instead of copying."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.errors import NnapiError, bad_data, bad_state, op_failed, required
from ortconv.nnapi.handle import Handle
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.timing import timed
from ortconv.nnapi.validation import compatible

if TYPE_CHECKING:
    from ortconv.nnapi.compilation import Compilation

Role = tuple["Compilation", bool, int]
"""A compilation, whether the argument is an output, and its index."""


class Memory(Handle):
    """A block of bytes: an array of the caller, a mapped file, or what a device made from a descriptor."""

    def __init__(self, data: Array, mapping: mmap.mmap | None = None) -> None:
        self._data: Array | None = data
        self._mapping = mapping

    @classmethod
    def from_array(cls, array: Array) -> Memory:
        """The bytes of a C-contiguous array, shared with it."""
        if not array.flags.c_contiguous:
            raise bad_data("the array of a memory must be C-contiguous")
        return cls(array.reshape(-1).view(np.uint8))

    @classmethod
    def from_fd(cls, size: int, protection: int, fd: int, offset: int = 0) -> Memory:
        """`size` bytes of a file from `offset` on, mapped with a protection of mmap.PROT_READ and PROT_WRITE.
        UNMAPPABLE if that cannot be done.
        """
        if size <= 0 or offset < 0 or fd < 0:
            raise bad_data(f"cannot map {size} bytes from {offset} of file descriptor {fd}")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            if os.fstat(fd).st_size < offset + size:
                raise ValueError(f"the file has {os.fstat(fd).st_size} bytes")
            mapping = mmap.mmap(fd, size + offset - start, flags=mmap.MAP_SHARED, prot=protection, offset=start)
        except (OSError, ValueError) as error:
            raise NnapiError(
                ResultCode.UNMAPPABLE, f"{size} bytes from {offset} on cannot be mapped: {error}"
            ) from error
        return cls(np.frombuffer(mapping, np.uint8)[offset - start :], mapping)

    @classmethod
    def from_desc(cls, desc: MemoryDesc) -> DeviceMemory:
        """Memory for the roles of a finished descriptor, made by the device that they share."""
        return DeviceMemory(desc)

    @property
    def data(self) -> Array:
        """The bytes. BAD_STATE for a closed memory."""
        if self._data is None:
            raise bad_state("the memory is closed")
        return self._data

    @property
    def size(self) -> int:
        """In bytes."""
        return self.data.nbytes

    @property
    def is_described(self) -> bool:
        """Whether the memory was made from a descriptor."""
        return False

    def region(self, offset: int, length: int) -> Array:
        """Bytes offset..offset+length. BAD_DATA outside of the memory."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise bad_data(f"bytes {offset}..{offset + length} lie outside of a memory of {self.size}")
        return self.data[offset : offset + length]

    def _free(self) -> None:
        """A mapping stays as long as models use constants in it, and executions arguments."""
        self._data = None
        self._mapping = None

    @staticmethod
    def copy(source: Memory, target: Memory) -> None:
        """The contents of one memory into another of the same size. BAD_DATA if they do not fit or the source holds
        nothing.
        """
        required("the source", source)
        required("the target", target)
        if source is target:
            return
        try:
            _copy(source, target)
        except NnapiError:
            if isinstance(target, DeviceMemory):
                target.array = None
            raise


def _copy(source: Memory, target: Memory) -> None:
    if isinstance(source, DeviceMemory) and source.array is None:
        raise bad_data("the source is not initialized")
    if isinstance(target, DeviceMemory):
        if isinstance(source, DeviceMemory):
            if not compatible(source.kind, target.kind):
                raise bad_data(f"{source.kind} does not fit {target.kind}")
            target.write(source.elements)
            return
        if not target.kind.is_known or target.kind.nbytes != source.size:
            raise bad_data(f"{source.size} bytes do not fit {target.kind}")
        target.write(source.data.view(target.kind.type.dtype).reshape(target.kind.dims))
        return
    data = source.elements.reshape(-1).view(np.uint8) if isinstance(source, DeviceMemory) else source.data
    if data.nbytes != target.size:
        raise bad_data(f"the memories have {data.nbytes} and {target.size} bytes")
    target.data[:] = data


class MemoryDesc(Handle):
    """What a device memory is for: the arguments, or roles, that it will be given as."""

    @timed("PC")
    def __init__(self) -> None:
        self.roles: dict[Role, OperandType] = {}
        self.dims: tuple[int, ...] = ()
        self.finished = False

    @timed("PC")
    def add_input_role(self, compilation: Compilation, index: int, frequency: float) -> None:
        self._add(compilation, False, index, frequency)

    @timed("PC")
    def add_output_role(self, compilation: Compilation, index: int, frequency: float) -> None:
        self._add(compilation, True, index, frequency)

    def _add(self, compilation: Compilation, is_output: bool, index: int, frequency: float) -> None:
        self._must_be_open()
        if not compilation.ready:
            raise bad_data("the compilation is not finished")
        kinds = compilation.model.output_types if is_output else compilation.model.input_types
        if not 0 <= index < len(kinds):
            raise bad_data(f"there are {len(kinds)} arguments, not one {index}")
        if not 0.0 < frequency <= 1.0:
            raise bad_data(f"the frequency {frequency} is not in (0, 1]")
        role = (compilation, is_output, index)
        if role in self.roles:
            raise bad_data("the role is there already")
        for other in self.roles.values():
            if not compatible(kinds[index], other):
                raise bad_data(f"roles differ: {kinds[index]} and {other}")
        self.roles[role] = kinds[index].with_dims(self._merged(kinds[index], self.dims))
        self.dims = self.roles[role].dims

    @timed("PC")
    def set_dimensions(self, dims: Sequence[int]) -> None:
        """Narrow dimensions that are not known."""
        self._must_be_open()
        for kind in self.roles.values():
            if kind.type.is_scalar and dims:
                raise bad_data("a scalar has no dimensions")
        if not self.roles:
            self.dims = tuple(dims)
            return
        self.dims = self._merged(next(iter(self.roles.values())).with_dims(self.dims), tuple(dims))

    @staticmethod
    def _merged(kind: OperandType, dims: tuple[int, ...]) -> tuple[int, ...]:
        if not compatible(kind, kind.with_dims(dims)):
            raise bad_data(f"dimensions {list(dims)} do not fit {kind}")
        if not kind.dims or not dims:
            return kind.dims or dims
        return tuple(p or q for p, q in zip(kind.dims, dims))

    @timed("PC")
    def finish(self) -> None:
        self._must_be_open()
        if not self.roles:
            raise bad_data("a descriptor has at least one role")
        self.finished = True

    def _must_be_open(self) -> None:
        if self.finished:
            raise bad_state("the descriptor is finished")

    @property
    def kind(self) -> OperandType:
        return next(iter(self.roles.values())).with_dims(self.dims)


class DeviceMemory(Memory):
    """Memory of a device, for declared roles alone. It holds nothing until an execution or a copy writes it."""

    api_name = "Memory"

    def __init__(self, desc: MemoryDesc) -> None:
        if not desc.finished:
            raise bad_state("the descriptor is not finished")
        self.roles = frozenset(desc.roles)
        self.declared = desc.kind
        devices = {device for compilation, out, index in desc.roles for device in compilation.devices_of(out, index)}
        explicit = any(compilation.is_explicit for compilation, _, _ in desc.roles)
        self.device = devices.pop() if len(devices) == 1 else None
        if self.device is not None and not self.device.allocates(self.declared):
            self.device = None
        if self.device is None and (explicit or not self.declared.is_known):
            raise op_failed("the roles share no device that could allocate the memory")
        self.array: Array | None = None
        self._closed = False

    @property
    def is_described(self) -> bool:
        return True

    @property
    def kind(self) -> OperandType:
        """With the dimensions of what the memory holds."""
        return self.declared if self.array is None else self.declared.with_dims(self.array.shape)

    @property
    def elements(self) -> Array:
        """OP_FAILED while there are none."""
        if self.array is None:
            raise op_failed("the device memory is used before anything was written to it")
        return self.array

    @property
    def data(self) -> Array:
        return self.elements.reshape(-1).view(np.uint8)

    def write(self, array: Array) -> None:
        """What executions under way still write into a closed memory is lost."""
        if not self._closed:
            self.array = np.array(array, self.declared.type.dtype)

    def _free(self) -> None:
        self._closed, self.array = True, None
