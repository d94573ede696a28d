"""Converts a graph to wider floats, as the reference for results when their rounding differs: float16 and bfloat16 to float32,
float32 to float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES
from ortconv.ir.graph import Attribute, Graph, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, OptionalType, SequenceType, TensorType, ValueType

Wider = Mapping[DType, DType]
"""The types to convert, each with the wider one."""

NARROW: Wider = {DType.FLOAT16: DType.FLOAT, DType.BFLOAT16: DType.FLOAT}
SINGLE: Wider = {DType.FLOAT: DType.DOUBLE}


def is_narrow(graph: Graph) -> bool:
    """True if a value of the graph has a narrow type."""
    return any(v is not None and v.dtype in NARROW for node in graph.walk() for v in node.outputs)


def widen(graph: Graph, wider: Wider) -> None:
    """Convert every value of these types, constants included, in place."""
    for part in graph.graphs():
        for value in (*part.inputs, *part.initializers.values()):
            _widen(value, wider)
        for node in part:
            for output in node.present_outputs:
                _widen(output, wider)
            node.attrs.update({name: _wide_attribute(name, value, wider) for name, value in node.attrs.items()})


def _wide_attribute(name: str, value: Attribute, wider: Wider) -> Attribute:
    if isinstance(value, int) and name in TYPE_ATTRIBUTES:
        return int(wider.get(DType(value), DType(value)))
    return _wide_tensor(value, wider) if isinstance(value, Tensor) else value


def _widen(value: Value, wider: Wider) -> None:
    value.type = None if value.type is None else _wide_type(value.type, wider)
    if isinstance(value.const, Tensor):
        value.const = _wide_tensor(value.const, wider)


def _wide_type(type: ValueType, wider: Wider) -> ValueType:
    if isinstance(type, TensorType):
        return TensorType(wider.get(type.dtype, type.dtype), type.shape)
    if isinstance(type, SequenceType):
        return SequenceType(_wide_type(type.element, wider))
    return OptionalType(_wide_type(type.element, wider)) if isinstance(type, OptionalType) else type


def _wide_tensor(tensor: Tensor, wider: Wider) -> Tensor:
    dtype = wider.get(tensor.dtype)
    return tensor if dtype is None else Tensor.of(tensor.numpy().astype(dtype.numpy))


def wide(fed: Any, wider: Wider) -> Any:
    """An input converted to the type that the widened graph expects."""
    if isinstance(fed, list):
        return [wide(element, wider) for element in fed]
    if not isinstance(fed, np.ndarray) or fed.dtype == object:
        return fed
    dtype = wider.get(DType.of(fed.dtype))
    return fed if dtype is None else fed.astype(dtype.numpy)


def narrow(result: Any, like: Any) -> Any:
    """A result of the widened graph, converted to the type of `like`."""
    if isinstance(result, list) and isinstance(like, list) and len(result) == len(like):
        return [narrow(a, b) for a, b in zip(result, like, strict=True)]
    if isinstance(result, np.ndarray) and isinstance(like, np.ndarray) and result.dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            return result.astype(like.dtype) if like.dtype != result.dtype else result
    return result
