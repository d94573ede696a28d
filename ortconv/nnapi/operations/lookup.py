"""Looking up rows: EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.farmhash import fingerprint64
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.table import Call, Dims, operation


def looked_up_dims(c: Call) -> Dims:
    return c.lookups.dims[0], *c.values.dims[1:]


@operation(
    "EMBEDDING_LOOKUP",
    "lookups:I values:T",
    types="F Q@3 I@3 H@4 S@4",
    infer=looked_up_dims,
    checks=(rank("lookups", 1),),
)
def embedding_lookup(c: Call) -> Array:
    rows = c.lookups.array
    if rows.size and not 0 <= rows.min() <= rows.max() < c.values.dims[0]:
        raise op_failed(f"an index is out of range for {c.values.dims[0]} rows")
    return c.values.array[rows]


def found_dims(c: Call) -> list[Dims]:
    if c.keys.dims != c.values.dims[:1]:
        raise op_failed(f"{c.keys.size} keys for {c.values.dims[0]} rows")
    return [looked_up_dims(c), c.lookups.dims]


@operation(
    "HASHTABLE_LOOKUP", "lookups:I keys:I values:T", outputs="out:T hits:Q", types="F I Q", infer=found_dims,
    checks=(rank("lookups", 1), rank("keys", 1)),
)  # fmt: skip
def hashtable_lookup(c: Call) -> list[Array]:
    """The rows of keys, which ascend; zeros and no hit where there is none."""
    keys, lookups = c.keys.array, c.lookups.array
    at = np.minimum(np.searchsorted(keys, lookups), len(keys) - 1)
    hits = keys[at] == lookups
    rows = np.where(hits.reshape(-1, *[1] * (c.values.rank - 1)), c.values.array[at], 0)
    return [rows, hits.astype(np.uint8)]


SPARSE_OLD, DENSE, SPARSE = 1, 2, 3


def projected_dims(c: Call) -> Dims:
    if c.kind not in (SPARSE_OLD, DENSE, SPARSE):
        raise op_failed(f"{c.kind} is no type of projection")
    hashes, bits = c.hashes.dims
    if bits > 32 or (c.weight is not None and c.weight.dims != c.x.dims[:1]):
        raise op_failed(f"{bits} bits, or weights that do not fit {c.x.dims[0]} rows")
    return (hashes * bits,) if c.kind == DENSE else (hashes,)


@operation(
    "LSH_PROJECTION", "hashes:F|H@3 x:any weight:F|H@3? kind:i", outputs="out:I", infer=projected_dims,
    checks=(rank("hashes", 2), rank("weight", 1)), native_half=True,
)  # fmt: skip
def lsh_projection(c: Call) -> Array:
    """For each hash function and bit, whether the weighted sum of the hashes of all rows is positive."""
    rows = [row.tobytes() for row in np.ascontiguousarray(c.x.array)]
    weights = np.ones(len(rows)) if c.weight is None else c.weight.array.astype(np.float64)
    seeds = c.hashes.array.astype(np.float32)

    def positive(seed: np.float32) -> bool:
        hashes = [fingerprint64(seed.tobytes() + row) for row in rows]
        signed = np.array(hashes, np.uint64).astype(np.int64).astype(np.float64)
        return bool(signed @ weights > 0)

    bits = np.array([[positive(seed) for seed in row] for row in seeds], np.int64)
    if c.kind == DENSE:
        return bits.reshape(-1)
    words = bits @ (1 << np.arange(bits.shape[1])[::-1])
    return words if c.kind == SPARSE_OLD else words + (np.arange(len(words)) << bits.shape[1])
