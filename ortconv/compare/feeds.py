"""Inputs made up for a model: from the types and shapes of its inputs and from what reads them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType, SequenceType, TensorType

Feeds = dict[str, Any]

FREE_SIZES = (8, 32, 64, 224, 1, 2, 16)
"""What an unknown dimension is tried with, in this order."""

PASSED_THROUGH = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Slice", "Concat", "Transpose", "Where",
     "Clip"}
)  # fmt: skip
"""Operators whose output holds elements of their inputs."""


MASKS = (DType.BOOL, DType.INT32, DType.INT64)
"""The types of masks that are inputs."""


def candidates(graph: Graph, seed: int = 0) -> Iterator[Feeds]:
    """Feeds for the required inputs, one set for each size that unknown dimensions may take; just one if all are known.

    A first dimension that is free is taken as a batch of 1. The same seed gives the same feeds.
    """
    sizes = FREE_SIZES if any(_is_free(v) for v in graph.inputs if v.const is None) else FREE_SIZES[:1]
    for size in sizes:
        symbols: dict[str, int] = {}
        yield {v.name: generate(v, _dims(v, size, symbols), seed) for v in graph.inputs if v.const is None}


def generate(value: Value, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random content for one input: standard normal floats, indices within the table that they index, masks of 0 and 1.

    A mask begins with 1 along its last axis: under a causal mask too, every row of scores then keeps an entry. The softmax
    of a row without any depends on nothing but how its huge negative numbers were rounded.
    """
    type = value.type
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode("utf-8", "surrogateescape"))])
    if isinstance(type, SequenceType) and isinstance(type.element, TensorType):
        return [_array(rng, type.element.dtype, (2,), 2)]
    if not isinstance(type, TensorType):
        raise UsageError(
            f"cannot make up a value for input '{value.name}' of type {type}", hint="give inputs of your own"
        )
    bound = _upper_bound(value)
    made = _array(rng, type.dtype, shape, bound)
    if type.dtype in MASKS and bound == 2 and len(shape) > 1:
        made[..., :1] = 1
    return made


def _array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], high: int) -> Array:
    if dtype is DType.STRING:
        return rng.choice(np.array(["a", "b", "ab", ""], dtype=object), shape)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in (DType.UINT8, DType.INT8):
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
    if dtype.numpy.kind in "iu" or dtype in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2):
        return rng.integers(0, high, shape).astype(dtype.numpy)
    if dtype.numpy.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


def _upper_bound(value: Value) -> int:
    """One more than the largest integer that is safe to feed: 2, unless the value indexes tables, whose smallest then counts."""
    bound, seen, stack = 1 << 16, {value}, [value]
    found = False
    while stack:
        for node, slot in stack.pop().uses:
            if (
                node.op in ("Gather", "GatherElements", "EmbedLayerNormalization")
                and slot == 1
                and node.inputs[0] is not None
            ):
                rows = node.inputs[0].dim(node.attr("axis", 0))
                if isinstance(rows, int) and rows > 0:
                    bound, found = min(bound, rows), True
            elif node.op in PASSED_THROUGH:
                fresh = [v for v in node.outputs if v is not None and v not in seen]
                seen.update(fresh)
                stack += fresh
    return bound if found else 2


def _is_free(value: Value) -> bool:
    return value.shape is None or not all(isinstance(d, int) for d in value.shape)


def _dims(value: Value, size: int, symbols: dict[str, int]) -> tuple[int, ...]:
    shape = value.shape if value.shape is not None else (None,)
    dims = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int):
            dims.append(dim)
            continue
        batch = axis == 0 and len(shape) > 1
        dims.append(symbols.setdefault(dim, 1 if batch else size) if dim is not None else 1 if batch else size)
    return tuple(dims)


def from_arrays(graph: Graph, arrays: Mapping[str, Any]) -> Feeds:
    """A user's arrays as feeds. UsageError if an input is missing or unknown."""
    names = {v.name: v for v in graph.inputs}
    unknown = [name for name in arrays if name not in names]
    missing = [name for name, v in names.items() if v.const is None and name not in arrays]
    if unknown or missing:
        what = f"there is no input '{unknown[0]}'" if unknown else f"input '{missing[0]}' is missing"
        raise UsageError(what, hint=f"the model's inputs: {', '.join(f'{v.name} {v.type}' for v in names.values())}")
    return dict(arrays)
