"""Calls of the NDK's functions: numbers and addresses from C, and values in Python."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ortconv.nnapi.burst import Burst
from ortconv.nnapi.caching import TOKEN_LENGTH
from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.device import Device
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.handle import Handle
from ortconv.nnapi.hardware_buffer import HardwareBuffer
from ortconv.nnapi.memory import Memory, MemoryDesc
from ortconv.nnapi.model import Model
from ortconv.nnapi.ndk import handles, pointers
from ortconv.nnapi.ndk.signature import Signature
from ortconv.nnapi.tracing import vlog

KINDS: dict[str, type] = {
    "ANeuralNetworksModel": Model,
    "ANeuralNetworksCompilation": Compilation,
    "ANeuralNetworksExecution": Execution,
    "ANeuralNetworksMemory": Memory,
    "ANeuralNetworksMemoryDesc": MemoryDesc,
    "ANeuralNetworksBurst": Burst,
    "ANeuralNetworksEvent": Event,
    "ANeuralNetworksDevice": Device,
    "AHardwareBuffer": HardwareBuffer,
}
"""Opaque structs of the headers."""
NN, EXTENSIONS, HARDWARE_BUFFER = "NeuralNetworks.h", "NeuralNetworksExtensions.h", "hardware_buffer.h"

Raw = tuple[Any, ...]
"""The arguments of a C call as numbers: pointers as addresses."""
Reader = Callable[[Raw], Any]


class Failed(NamedTuple):
    """An error with a result that is written nevertheless."""

    code: ResultCode
    value: int | Sequence[int]


class NdkFunction:
    """A row of the table. It is called with numbers as arguments, and returns the result of the C function."""

    def __init__(self, level: int, signature: Signature, python: str, body: Callable[..., Any]) -> None:
        self.level = level
        self.signature = signature
        self.python = python
        self.body = body
        parameters = list(enumerate(signature.parameters))
        self._readers = _readers(signature)
        self._result = next((at for at, one in parameters if one.is_result), None)
        self._otherwise = None if self._result is None else signature.parameters[self._result].otherwise
        self._required = [at for at, one in parameters if one.is_pointer and not one.may_be_null]
        counts = ((at, signature.count_of(at)) for at, one in parameters if one.may_be_null)
        self._counted = [(at, count) for at, count in counts if count is not None]

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def header(self) -> str:
        if self.name.startswith("AHardwareBuffer"):
            return HARDWARE_BUFFER
        return EXTENSIONS if "Extension" in self.name else NN

    def __call__(self, *raw: Any) -> int:
        try:
            return self._called(raw)
        except NnapiError as error:
            vlog.error("NeuralNetworks", "{}: {}", self.name, error)
            return -errno.EINVAL if self.header == HARDWARE_BUFFER else int(error.code)
        except MemoryError:
            return int(ResultCode.OUT_OF_MEMORY)
        except Exception as error:  # a bug in ortconv must not end the program
            vlog.error("NeuralNetworks", "{}: {}", self.name, repr(error))
            return int(ResultCode.OP_FAILED)

    def _called(self, raw: Raw) -> int:
        address = 0 if self._result is None else raw[self._result]
        if address and self._otherwise is not None:
            self._write(address, self._otherwise)
        self._check_pointers(raw)
        result = self.body(*[read(raw) for read in self._readers])
        if self._result is None:
            return int(result) if self.signature.returns_number else 0
        code, value = result if isinstance(result, Failed) else (0, result)
        if address:
            self._write(address, value)
        return int(code)

    def _check_pointers(self, raw: Raw) -> None:
        """Raise UNEXPECTED_NULL for a null pointer that is required, or whose count is not 0."""
        for required in self._required:
            if not raw[required]:
                raise self._null(required)
        for pointer, count in self._counted:
            if not raw[pointer] and raw[count]:
                raise self._null(pointer)

    def _null(self, at: int) -> NnapiError:
        return NnapiError(ResultCode.UNEXPECTED_NULL, f"{self.signature.parameters[at].name} is NULL")

    def _write(self, address: int, value: Any) -> None:
        assert self._result is not None
        kind = self.signature.parameters[self._result].type
        if kind.endswith("**"):
            pointers.write(address, "P", _pointer(value))
        elif kind == "AHardwareBuffer_Desc*":
            pointers.write_buffer_desc(address, value)
        else:
            pointers.write(address, pointers.FORMATS[kind.removesuffix("*")], value)


def _pointer(value: Any) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return pointers.lasting(value)
    return handles.permanent(value) if isinstance(value, Device) else handles.new(value)


def _readers(signature: Signature) -> list[Reader]:
    """The readers of the arguments of a function in Python: a pointer and its count are one."""
    counts = {signature.count_of(at) for at in range(len(signature.parameters))}
    read = (at for at, one in enumerate(signature.parameters) if not one.is_result)
    return [_reader(signature, at) for at in read if at not in counts]


def _reader(signature: Signature, at: int) -> Reader:
    """A function that reads a Python value for the parameter `at` and for the parameter with its count, if there is one."""
    parameter, count = signature.parameters[at], signature.count_of(at)
    bare = parameter.type.removeprefix("const ").rstrip("*").removesuffix("* const")
    if count is not None:
        return _counted_reader(bare, parameter.type, at, count)
    if bare in KINDS:
        kind = KINDS[bare]
        return (lambda raw: raw[at]) if signature.is_free else (lambda raw: handles.find(raw[at], kind))
    pointed = POINTED.get(bare) if parameter.is_pointer else None
    if pointed is not None:
        return lambda raw: pointed(raw[at]) if raw[at] else None
    assert not parameter.is_pointer, parameter
    return (lambda raw: bool(raw[at])) if bare == "bool" else (lambda raw: raw[at])


POINTED: dict[str, Callable[[int], Any]] = {
    "char": pointers.text,
    "uint8_t": lambda address: bytes(pointers.view(address, TOKEN_LENGTH)),
    "ANeuralNetworksOperandType": pointers.operand_type,
    "ANeuralNetworksSymmPerChannelQuantParams": pointers.channel_quant,
    "AHardwareBuffer_Desc": pointers.buffer_desc,
    "ARect": lambda address: address,
}


def _counted_reader(bare: str, full: str, at: int, count: int) -> Reader:
    if bare == "void":
        writable = not full.startswith("const")
        return lambda raw: pointers.buffer(raw[at], raw[count], writable) if raw[at] else None
    if bare in KINDS:
        kind = KINDS[bare]
        return lambda raw: [_live(one, kind) for one in pointers.numbers(raw[at], raw[count], "P")]
    form = pointers.FORMATS[bare]
    return lambda raw: pointers.numbers(raw[at], raw[count], form)


def _live(handle: int, kind: type) -> Any:
    if not handle:
        raise NnapiError(ResultCode.UNEXPECTED_NULL, f"a {kind.__name__} of the list is NULL")
    return handles.find(handle, kind)


def free(handle: int, kind: type[Handle]) -> None:
    """Close the object of a handle and invalidate the handle; NULL is ignored. An object in use remains, such as a
    running execution or a buffer that was acquired more than once.
    """
    if not handle:
        return
    found = handles.find(handle, kind)
    found.close()
    if not found.is_in_use:
        handles.free(handle)
