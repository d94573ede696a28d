"""Look-ups in tables: EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import output_quantization, same_quantization
from ortconv.nnapi.operations.fingerprint import fingerprint64
from ortconv.nnapi.operations.shapes import are_within
from ortconv.nnapi.operations.table import Dims, OperationCall, operation


def rows_dims(c: OperationCall) -> Dims:
    if c.lookups.rank != 1 or c.values.rank < 2:
        raise op_failed(f"lookups {list(c.lookups.dims)} need rank 1, values {list(c.values.dims)} rank 2 or more")
    return (*c.lookups.dims, *c.values.dims[1:])


@operation(
    "EMBEDDING_LOOKUP", "lookups:I values:T", types="F Q@3 I@3 H@4 S@4", infer=rows_dims,
    quantization=(same_quantization("values", "out"),),
)  # fmt: skip
def embedding_lookup(c: OperationCall) -> Array:
    lookups, rows = c.lookups.array, c.values.dims[0]
    if not are_within(lookups, rows):
        raise op_failed(f"lookups {lookups.min()} to {lookups.max()} are not within {rows} rows")
    return c.values.array[lookups]


def hashtable_dims(c: OperationCall) -> list[Dims]:
    if c.keys.dims != c.values.dims[:1]:
        raise op_failed(f"keys {list(c.keys.dims)} do not fit values {list(c.values.dims)}")
    return [rows_dims(c), c.lookups.dims]


@operation(
    "HASHTABLE_LOOKUP", "lookups:I keys:I values:T", outputs="out:T hits:Q", types="F I Q", infer=hashtable_dims,
    quantization=(same_quantization("values", "out"), output_quantization(1.0, 0, 0, "hits")),
)  # fmt: skip
def hashtable_lookup(c: OperationCall) -> Sequence[Array]:
    """Keys are in ascending order. Rows of missing keys are 0."""
    at = np.minimum(np.searchsorted(c.keys.array, c.lookups.array), c.keys.size - 1)
    hits = c.keys.array[at] == c.lookups.array
    found = c.values.array[at]
    found[~hits] = 0
    return found, hits.astype(np.uint8)


class LshProjection(IntEnum):
    SPARSE_OLD = 1
    DENSE = 2
    SPARSE = 3


def projection_dims(c: OperationCall) -> Dims:
    if c.hash.rank != 2 or c.hash.dims[1] > 32 or c.x.rank < 1:
        raise op_failed(f"hash {list(c.hash.dims)} must be [functions, bits] with at most 32 bits")
    if c.weight is not None and c.weight.dims != c.x.dims[:1]:
        raise op_failed(f"weights {list(c.weight.dims)} do not fit the rows of {list(c.x.dims)}")
    if c.projection not in list(LshProjection):
        raise op_failed(f"{c.projection} is not a type of projection")
    return (c.hash.size,) if c.projection == LshProjection.DENSE else c.hash.dims[:1]


@operation(
    "LSH_PROJECTION", "hash:T x:F|H|I|Q weight:T? projection:i", outputs="out:I", types="F H@3", infer=projection_dims,
    native_half=True,
)  # fmt: skip
def lsh_projection(c: OperationCall) -> Array:
    """Each bit is the sign of a sum over the rows: the fingerprint of seed and row, times the weight of the row."""
    rows = [row.tobytes() for row in np.ascontiguousarray(c.x.array)]
    weights = [1.0] * len(rows) if c.weight is None else c.weight.array.tolist()
    bits = np.zeros(c.hash.dims, np.int64)
    for place, seed in np.ndenumerate(c.hash.array.astype(np.float32)):
        head = seed.tobytes()
        bits[place] = sum(weight * _signed(fingerprint64(head + row)) for weight, row in zip(weights, rows)) > 0
    if c.projection == LshProjection.DENSE:
        return bits.reshape(-1)
    count, width = bits.shape
    numbers = bits @ (np.int64(1) << np.arange(width)[::-1])
    if c.projection == LshProjection.SPARSE:
        numbers += np.arange(count) << width
    return numbers.astype(np.int32)


def _signed(x: int) -> float:
    return float(x - (1 << 64) if x >> 63 else x)
