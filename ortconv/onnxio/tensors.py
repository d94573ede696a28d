"""Reads values from .pb files, the format of onnx's test data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortconv.errors import FormatError, UnsupportedError, located
from ortconv.files import read_bytes
from ortconv.ir.types import OptionalType, SequenceType, TensorType, ValueType
from ortconv.onnxio.build import array
from ortconv.onnxproto import TensorProto


def read_value(path: Path, type: ValueType | None) -> Any:
    """The value in a .pb file, read as this type: an array, a list of them, or None for an empty optional.

    Raises FormatError if the file holds no such message, UnsafeInputError if the message refers to another file.
    """
    with located(path):
        return _value(read_bytes(path), type)


def _value(data: bytes, type: ValueType | None) -> Any:
    if type is None or isinstance(type, TensorType):
        return array(_parse(TensorProto, data))
    from onnx import OptionalProto, SequenceProto

    if isinstance(type, SequenceType):
        return _list(_parse(SequenceProto, data))
    if isinstance(type, OptionalType):
        message = _parse(OptionalProto, data)
        kind = OptionalProto.DataType.Name(message.elem_type)
        if kind == "TENSOR":
            return array(message.tensor_value)
        return _list(message.sequence_value) if kind == "SEQUENCE" else None
    raise UnsupportedError(f"values of type {type} cannot be read from .pb files")


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except Exception as error:
        raise FormatError(f"not a valid {kind.DESCRIPTOR.name}: {error}") from error


def _list(message: Any) -> list[Any]:
    return [*map(array, message.tensor_values), *map(_list, message.sequence_values)]
