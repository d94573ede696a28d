"""Memory objects: bytes that models and executions refer to instead of copying."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arguments import checked
from ortconv.nnapi.driver_guard import driver
from ortconv.nnapi.errors import NnapiError, bad_data, bad_state, op_failed, unmappable
from ortconv.nnapi.handle import Handle, api
from ortconv.nnapi.hardware_buffer import CPU_READ_MASK, HardwareBuffer
from ortconv.nnapi.operand import OperandType, agree
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.validation import LARGEST, compatible

if TYPE_CHECKING:
    from ortconv.nnapi.compilation import Compilation
    from ortconv.nnapi.device import Device

PROT_READ, PROT_WRITE = 1, 2
"""As in mman.h; Python's mmap has these names on POSIX systems only."""

Role = tuple["Compilation", bool, int]
"""(compilation, True for an output, index of the argument)."""


class Memory(Handle):
    """A block of bytes: an array of the caller, a mapped file, or device memory made from a descriptor."""

    @checked
    def __init__(self, data: Array) -> None:
        if not data.flags.c_contiguous:
            raise bad_data("the array of a memory must be C-contiguous")
        self._data: Array | None = data.reshape(-1).view(np.uint8)

    @classmethod
    @checked
    def from_array(cls, array: Array) -> Memory:
        """A memory that shares the bytes of a C-contiguous array."""
        return cls(array)

    @classmethod
    @checked
    def from_fd(cls, size: int, protection: int, fd: int, offset: int = 0) -> Memory:
        """Map `size` bytes of a file. `protection` combines PROT_READ and PROT_WRITE. UNMAPPABLE if the file cannot be mapped."""
        if size <= 0 or offset < 0 or fd < 0:
            raise bad_data(f"cannot map {size} bytes from {offset} of file descriptor {fd}")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            if os.fstat(fd).st_size < offset + size:
                raise ValueError(f"the file has {os.fstat(fd).st_size} bytes")
            access = mmap.ACCESS_WRITE if protection & PROT_WRITE else mmap.ACCESS_READ
            mapping = mmap.mmap(fd, size + offset - start, access=access, offset=start)
        except (OSError, ValueError, OverflowError) as error:
            raise unmappable(f"{size} bytes from {offset} on cannot be mapped: {error}") from error
        return cls(np.frombuffer(mapping, np.uint8)[offset - start :])

    @classmethod
    @checked
    def from_hardware_buffer(cls, buffer: HardwareBuffer) -> Memory:
        """A memory that shares the bytes of a BLOB, or an image, which only drivers that know its format can read.
        Raises UNMAPPABLE for a BLOB without CPU usage.
        """
        if not buffer.is_blob:
            return ImageMemory(buffer)
        try:
            return cls(buffer.lock(CPU_READ_MASK & buffer.desc.usage))
        except NnapiError as error:
            raise unmappable(f"the buffer cannot be mapped: {error}") from error

    @classmethod
    @checked
    def from_desc(cls, desc: MemoryDesc) -> DeviceMemory:
        """Memory for the roles of a finished descriptor. If these share a device, the device allocates it."""
        return DeviceMemory(desc)

    @property
    def data(self) -> Array:
        """The bytes. Raises BAD_STATE for a closed memory."""
        if self._data is None:
            raise bad_state("the memory is closed")
        return self._data

    @property
    def size(self) -> int:
        return self.data.nbytes

    @checked
    def region(self, offset: int, length: int) -> Array:
        """The bytes from `offset` to `offset` + `length`. Raises BAD_DATA if the region exceeds the memory."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise bad_data(f"bytes {offset}..{offset + length} lie outside of a memory of {self.size}")
        return self.data[offset : offset + length]

    def _free(self) -> None:
        """Release the bytes. A mapping remains while models or executions use it."""
        self._data = None

    @staticmethod
    @checked
    def copy(source: Memory, target: Memory) -> None:
        """Copy one memory into another of the same size. Raises BAD_DATA if the sizes differ or the source is not initialized."""
        if source is target:
            return
        try:
            _copy(source, target)
        except NnapiError:
            if isinstance(target, DeviceMemory):
                target.array = None
            raise


class ImageMemory(Memory):
    """A hardware buffer with pixels. It can be an argument as a whole, but not a constant. Only a driver that knows the
    format can read it. No device here does, so executions end with UNMAPPABLE, as on a phone's CPU.
    """

    api_name = "Memory"

    def __init__(self, buffer: HardwareBuffer) -> None:
        self.buffer = buffer
        self.array: Array | None = None

    @property
    def data(self) -> Array:
        raise unmappable(f"no device here knows images of the format {self.buffer.desc.format:#x}")

    @property
    def elements(self) -> Array:
        return self.data

    @checked
    def region(self, offset: int, length: int) -> Array:
        raise bad_data("an image holds no constants")

    def write(self, array: Array) -> None:
        _ = self.data

    def _free(self) -> None:
        """Keep the buffer, which belongs to its owner."""


def _elements_for(kind: OperandType, source: Memory) -> Array:
    """The contents of a memory as elements of this type. Raises BAD_DATA if they do not fit."""
    if isinstance(source, DeviceMemory):
        if not compatible(source.kind, kind):
            raise bad_data(f"{source.kind} does not fit {kind}")
        return source.elements
    if not kind.is_known or kind.nbytes != source.size:
        raise bad_data(f"{source.size} bytes do not fit {kind}")
    return source.data.view(kind.type.dtype).reshape(kind.dims)


def _copy(source: Memory, target: Memory) -> None:
    if isinstance(source, DeviceMemory) and source.array is None:
        raise bad_data("the source is not initialized")
    if isinstance(target, DeviceMemory):
        target.write(_elements_for(target.declared, source))
        return
    data = source.data
    if data.nbytes != target.size:
        raise bad_data(f"the memories have {data.nbytes} and {target.size} bytes")
    if not target.data.flags.writeable:
        raise bad_data("the target cannot be written to")
    target.data[:] = data


class MemoryDesc(Handle):
    """Describes a device memory by its roles: the arguments for which it will be used."""

    @api("PC")
    def __init__(self) -> None:
        self.roles: dict[Role, OperandType] = {}
        self.dims: tuple[int, ...] = ()
        self.finished = False

    @api("PC")
    def add_input_role(self, compilation: Compilation, index: int, frequency: float) -> None:
        self._add(compilation, index, frequency, is_output=False)

    @api("PC")
    def add_output_role(self, compilation: Compilation, index: int, frequency: float) -> None:
        self._add(compilation, index, frequency, is_output=True)

    def _add(self, compilation: Compilation, index: int, frequency: float, *, is_output: bool) -> None:
        self._must_be_open()
        if not compilation.ready:
            raise bad_data("the compilation is not finished")
        kind = compilation.model.argument_type(index, is_output)
        if not 0.0 < frequency <= 1.0:
            raise bad_data(f"the frequency {frequency} is not in (0, 1]")
        role = (compilation, is_output, index)
        if role in self.roles:
            raise bad_data("the role is there already")
        for other in self.roles.values():
            if not compatible(kind.with_dims(()), other.with_dims(())):
                raise bad_data(f"roles differ: {kind} and {other}")
        if kind.type.is_scalar and self.dims:
            raise bad_data(f"{kind} has no dimensions, the descriptor has {list(self.dims)}")
        self.dims = _combined(self.dims, kind.dims)
        self.roles[role] = kind

    @api("PC")
    def set_dimensions(self, dims: Sequence[int]) -> None:
        """Set unknown dimensions. Raises BAD_DATA if they contradict known ones."""
        self._must_be_open()
        if any(kind.type.is_scalar for kind in self.roles.values()) and dims:
            raise bad_data("a scalar has no dimensions")
        if not all(0 <= dim <= LARGEST for dim in dims):
            raise bad_data(f"{list(dims)} are not dimensions")
        self.dims = _combined(self.dims, tuple(dims))

    @api("PC")
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


def _combined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions that agree with both; () and 0 are unknown. Raises BAD_DATA if they contradict each other."""
    if not agree(a, b):
        raise bad_data(f"dimensions {list(a)} and {list(b)} differ")
    return tuple(p or q for p, q in zip(a or b, b or a))


class DeviceMemory(Memory):
    """Memory of a device, for the declared roles only. It has no contents until an execution or a copy writes it."""

    api_name = "Memory"

    def __init__(self, desc: MemoryDesc) -> None:
        if not desc.finished:
            raise bad_state("the descriptor is not finished")
        self.roles = frozenset(desc.roles)
        self.declared = desc.kind
        users = (compilation.plan.devices_of(out, index) for compilation, out, index in self.roles)
        devices: set[Device] = set().union(*users)
        shared = devices.pop() if len(devices) == 1 else None
        self.device = shared if shared is not None and self._allocated(shared) else None
        is_explicit = any(compilation.is_explicit for compilation, _, _ in desc.roles)
        if self.device is None and (is_explicit or not self.declared.is_known):
            raise op_failed("the roles share no device that could allocate the memory")
        self.array: Array | None = None
        self._closed = False

    def check_role(self, compilation: Compilation, is_output: bool, index: int, kind: OperandType) -> None:
        """Raise BAD_DATA unless the memory may hold this argument."""
        if (compilation, is_output, index) not in self.roles:
            raise bad_data("the memory was not declared for this argument")
        if not compatible(kind, self.declared):
            raise bad_data(f"the argument is {kind}, the memory {self.declared}")

    def _allocated(self, device: Device) -> bool:
        """True if the device has allocated the memory. A driver that fails has not."""
        try:
            with driver(device, "allocates"):
                return bool(device.allocates(self.declared))
        except NnapiError as error:
            vlog.error("Memory", "{} does not allocate: {}", device.name, error)
            return False

    @property
    def kind(self) -> OperandType:
        """The type, with the dimensions of the contents."""
        return self.declared if self.array is None else self.declared.with_dims(self.array.shape)

    @property
    def elements(self) -> Array:
        """The contents. Raises OP_FAILED if there are none yet."""
        if self.array is None:
            raise op_failed("the device memory is used before anything was written to it")
        return self.array

    @property
    def data(self) -> Array:
        return self.elements.reshape(-1).view(np.uint8)

    def write(self, array: Array) -> None:
        """Write the contents. Results that a running execution writes into a closed memory are lost."""
        if not self._closed:
            self.array = np.array(array, self.declared.type.dtype)

    def _free(self) -> None:
        self._closed, self.array = True, None
