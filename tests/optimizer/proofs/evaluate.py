"""A graph's outputs in exact arithmetic: node by node, each by its plain kernel.

Tensors of floats are object arrays of `Real`. All others have their own type, and its arithmetic.
Only a Cast to a narrower type rounds, as it does by its definition: other float results keep all their digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.kernels.evaluate import kernel_of
from ortconv.ir.graph import Graph, Graphs, Node, Value
from ortconv.ir.schema import schema_of
from ortconv.ir.symbols import PLUS, TIMES
from ortconv.ir.tensor import Array, dense
from ortconv.ir.types import DType, TensorType

from .real import lifted

Values = dict[Value, Any]

_SIZES = {DType.FLOAT16: (5, 10), DType.BFLOAT16: (8, 7), DType.FLOAT: (8, 23), DType.DOUBLE: (11, 52)}
"""Bits of the exponent and of the fraction."""


class NotGenericError(Exception):
    """A kernel has rounded to some type of floats."""


class WrongShapeError(Exception):
    """A value has another shape than its type says."""


def outputs(graph: Graph, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs of a main graph. Inputs without a feed have their default."""
    values: Values = {v: exact(feeds[v.name]) for v in graph.inputs if v.name in feeds}
    with np.errstate(all="ignore"):
        results = _run(graph, values)
    check_shapes(values)
    return results


def check_shapes(values: Mapping[Value, Any]) -> None:
    """WrongShapeError where a value does not have the shape of its type, or a symbol would be two numbers at once."""
    sizes: dict[str, int] = {}
    for value, held in values.items():
        shape = (
            value.shape if isinstance(value.type, TensorType) and isinstance(held, np.ndarray | np.generic) else None
        )
        if shape is None:
            continue
        fits = len(shape) == held.ndim and all(
            _size(dim, size, sizes) == size for dim, size in zip(shape, held.shape) if dim is not None
        )
        if not fits:
            raise WrongShapeError(f"'{value.name}' is declared as {value.type}, and has the shape {held.shape}")


def _size(dim: int | str, size: int, sizes: dict[str, int]) -> int:
    """What a dimension is: a number, or a symbol, which is its first size from then on; or made of such symbols."""
    if isinstance(dim, int):
        return dim
    for separator, combine in ((PLUS, sum), (TIMES, prod)):
        parts = dim.split(separator)
        if len(parts) > 1 and all(p.isdecimal() or p in sizes for p in parts):
            return combine(int(p) if p.isdecimal() else sizes[p] for p in parts)
    return sizes.setdefault(dim, size)


def exact(array: Any) -> Any:
    """An array with all of its floats as `Real`."""
    if isinstance(array, list):
        return [exact(a) for a in array]
    if not isinstance(array, np.ndarray | np.generic) or not _is_float(array.dtype):
        return array
    return _lift(array)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and DType.of(dtype).is_float)


def _lift(array: Any) -> Array:
    out = np.empty(np.shape(array), object)
    out[...] = lifted(array)
    return out


def _run(graph: Graph, values: Values) -> list[Any]:
    for node in graph:
        results = _results(node, values)
        values.update((v, r) for v, r in zip(node.outputs, results) if v is not None)
    return [_value(v, values) for v in graph.outputs]


def _value(value: Value | None, values: Values) -> Any:
    if value is None:
        return None
    if value not in values:
        assert value.const is not None, f"{value.name} has no value"
        values[value] = exact(dense(value.const))
    return values[value]


def _results(node: Node, values: Values) -> Sequence[Any]:
    operands = [_value(v, values) for v in node.inputs]
    if node.op in ("Cast", "CastLike") and not node.domain and operands[0].dtype == object:
        return [_cast(operands[0], node)]
    kernel, attributes = kernel_of(node)
    result = kernel.reference(*operands, **_defaults(node, kernel.attributes), **{
        name: _attribute(value, values) for name, value in attributes.items()
    })  # fmt: skip
    results = result if isinstance(result, tuple) else (result,)
    if any(isinstance(x, np.ndarray) and x.dtype == object for x in operands):
        rounded = [r.dtype.name for r in results if isinstance(r, np.ndarray | np.generic) and _is_float(r.dtype)]
        if rounded:
            raise NotGenericError(f"{node.label}: {', '.join(rounded)}")
    return [_typed(r, v) for r, v in zip(results, node.outputs)]


def _typed(result: Any, value: Value | None) -> Any:
    if isinstance(result, tuple | list):
        return [_typed(r, None) for r in result]
    is_float = value is not None and isinstance(value.type, TensorType) and value.type.dtype.is_float
    if not is_float:
        return exact(result)
    return _lift(result)


def _defaults(node: Node, taken: frozenset[str] | None) -> dict[str, Any]:
    """Attributes of floats that the node leaves out: ONNX states them in float32, kernels in decimals."""
    schema = schema_of(node)
    stated = {} if schema is None else schema.defaults
    return {
        k: exact(np.float32(v))[()]
        for k, v in stated.items()
        if isinstance(v, float) and k not in node.attrs and (taken is not None and k in taken)
    }


def _attribute(value: Any, values: Values) -> Any:
    if isinstance(value, Graph):
        return _Body(value, values)
    if isinstance(value, Graphs):
        return tuple(_Body(g, values) for g in value)
    if isinstance(value, float):
        return exact(np.float64(value))[()]
    return exact(value)


class _Body:
    """A subgraph as a function of its inputs, as kernels of control flow call it."""

    keeps_condition = False

    def __init__(self, graph: Graph, values: Values) -> None:
        self._graph, self._values = graph, values
        self.output_types = tuple(v.type for v in graph.outputs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(_run(self._graph, {**self._values, **dict(zip(self._graph.inputs, inputs))}))


def _cast(x: Array, node: Node) -> Array:
    """To a type that has every number of x's: x. To any other: rounded to it."""
    source, target = node.inputs[0], node.outputs[0]
    assert source is not None
    assert target is not None
    assert target.dtype is not None
    if source.dtype in _SIZES and target.dtype in _SIZES:
        (a, b), (c, d) = _SIZES[source.dtype], _SIZES[target.dtype]
        if a <= c and b <= d:
            return x
    if target.dtype.is_float:
        return np.asarray(exact(x.astype(np.float64).astype(target.dtype.numpy)))
    numbers = x.astype(bool) if target.dtype is DType.BOOL else x.astype(np.int64)
    return np.asarray(numbers).astype(target.dtype.numpy)
