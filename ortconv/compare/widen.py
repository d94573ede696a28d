"""Converts a graph to float32, as the reference for float16 and bfloat16 results when their rounding differs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES
from ortconv.ir.graph import Graph, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, OptionalType, SequenceType, TensorType, ValueType

NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})


def is_narrow(graph: Graph) -> bool:
    """True if a value of the graph has a narrow type."""
    return any(v is not None and v.dtype in NARROW for node in graph.walk() for v in node.outputs)


def widen(graph: Graph) -> None:
    """Convert every narrow value of a graph to float32, constants included, in place."""
    for part in graph.graphs():
        for value in (*part.inputs, *part.initializers.values()):
            _widen(value)
        for node in part:
            for output in node.outputs:
                if output is not None:
                    _widen(output)
            for name, attribute in node.attrs.items():
                if name in TYPE_ATTRIBUTES and attribute in NARROW:
                    node.attrs[name] = int(DType.FLOAT)
                elif isinstance(attribute, Tensor):
                    node.attrs[name] = _wide_tensor(attribute)


def _widen(value: Value) -> None:
    value.type = None if value.type is None else _wide_type(value.type)
    if isinstance(value.const, Tensor):
        value.const = _wide_tensor(value.const)


def _wide_type(type: ValueType) -> ValueType:
    if isinstance(type, TensorType) and type.dtype in NARROW:
        return TensorType(DType.FLOAT, type.shape)
    if isinstance(type, SequenceType):
        return SequenceType(_wide_type(type.element))
    return OptionalType(_wide_type(type.element)) if isinstance(type, OptionalType) else type


def _wide_tensor(tensor: Tensor) -> Tensor:
    return Tensor.of(tensor.numpy().astype(np.float32)) if tensor.dtype in NARROW else tensor


def wide(fed: Any) -> Any:
    """An input converted to the type that the widened graph expects."""
    if isinstance(fed, list):
        return [wide(element) for element in fed]
    if not isinstance(fed, np.ndarray) or fed.dtype == object:
        return fed
    return fed.astype(np.float32) if DType.of(fed.dtype) in NARROW else fed


def narrow(result: Any, like: Any) -> Any:
    """A result of the widened graph, converted to the type of `like`."""
    if isinstance(result, list) and isinstance(like, list) and len(result) == len(like):
        return [narrow(a, b) for a, b in zip(result, like, strict=True)]
    if isinstance(result, np.ndarray) and isinstance(like, np.ndarray) and result.dtype == np.float32:
        with np.errstate(all="ignore"):
            return result.astype(like.dtype) if like.dtype != result.dtype else result
    return result
