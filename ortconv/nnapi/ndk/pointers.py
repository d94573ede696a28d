"""The memory of C programs: structs, arrays and strings at addresses."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import bad_data
from ortconv.nnapi.hardware_buffer import BufferDesc
from ortconv.nnapi.operand import OperandType

LARGEST = (1 << 63) - 1
FORMATS = {
    "bool": "?",
    "int": "i",
    "int32_t": "i",
    "int64_t": "q",
    "uint32_t": "I",
    "uint64_t": "Q",
    "float": "f",
    "ANeuralNetworksOperationType": "i",
}
"""Formats of C types for the module struct."""
OPERAND_TYPE = struct.Struct("@iIPfi")
CHANNEL_QUANT = struct.Struct("@IIP")
BUFFER_DESC = struct.Struct("@IIIIQIIQ")

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_READ, _WRITE = 0x100, 0x200
_texts: dict[bytes, ctypes.Array[ctypes.c_char]] = {}


def view(address: int, length: int, writable: bool = False) -> memoryview:
    """The bytes at an address."""
    return _view(address, length, _WRITE if writable else _READ)  # type: ignore[no-any-return]


def buffer(address: int, length: int, writable: bool = False) -> Array:
    """The program's own memory as an array of bytes. Raises BAD_DATA for an invalid length."""
    if length > LARGEST:
        raise bad_data(f"a buffer of {length} bytes")
    return np.frombuffer(view(address, length, writable), np.uint8) if length else np.zeros(0, np.uint8)


def numbers(address: int, count: int, kind: str) -> list[int]:
    """The elements of an array with this C type."""
    form = f"@{count}{kind}"
    return list(struct.unpack(form, view(address, struct.calcsize(form))))


def text(address: int) -> str:
    """A string that ends with a zero byte."""
    return os.fsdecode(ctypes.string_at(address))


def operand_type(address: int) -> OperandType:
    """Read an ANeuralNetworksOperandType. Raises BAD_DATA if it is invalid."""
    code, rank, dims, scale, zero_point = OPERAND_TYPE.unpack(view(address, OPERAND_TYPE.size))
    if bool(rank) != bool(dims):
        raise bad_data(f"{rank} dimensions at the address {dims:#x}")
    return OperandType(code, numbers(dims, rank, "I") if rank else (), scale, zero_point)


def channel_quant(address: int) -> tuple[int, list[float]]:
    """Read an ANeuralNetworksSymmPerChannelQuantParams. Raises BAD_DATA if it has no scales."""
    dim, count, scales = CHANNEL_QUANT.unpack(view(address, CHANNEL_QUANT.size))
    if not count or not scales:
        raise bad_data(f"{count} scales at the address {scales:#x}")
    return dim, list(map(float, numbers(scales, count, "f")))


def write(address: int, kind: str, value: int | Sequence[int]) -> None:
    """Write one number, or an array of numbers."""
    values = [value] if isinstance(value, int) else value
    form = f"@{len(values)}{kind}"
    view(address, struct.calcsize(form), writable=True)[:] = struct.pack(form, *values)


def lasting(words: str) -> int:
    """The address of a string that is never freed."""
    data = os.fsencode(words)
    if data not in _texts:
        _texts[data] = ctypes.create_string_buffer(data)
    return ctypes.addressof(_texts[data])


def buffer_desc(address: int) -> BufferDesc:
    """Read an AHardwareBuffer_Desc."""
    width, height, layers, form, usage, stride, _, _ = BUFFER_DESC.unpack(view(address, BUFFER_DESC.size))
    return BufferDesc(width, height, layers, form, usage, stride)


def write_buffer_desc(address: int, desc: BufferDesc) -> None:
    values = (desc.width, desc.height, desc.layers, desc.format, desc.usage, desc.stride, 0, 0)
    view(address, BUFFER_DESC.size, writable=True)[:] = BUFFER_DESC.pack(*values)
