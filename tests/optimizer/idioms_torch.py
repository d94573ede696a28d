"""Steps of random models like PyTorch's Transformer layers, whose attention has rows with the length before the batch."""

from __future__ import annotations

import math

import numpy as np
from idioms_fused import HEADS, SIZE, project
from typed_graphs import Builder, reduced, split

HIDDEN = HEADS * SIZE


def layer(b: Builder) -> None:
    """Attention with a residual, of rows (length, batch, hidden) or of swapped ones, and a norm and a product of rows around it."""
    length, batch, batch_first = b.pick(3, 5), b.pick(1, 1, 2, 3), b.chance(0.5)
    x = b.x(*((batch, length) if batch_first else (length, batch)), HIDDEN)
    for _ in range(b.pick(1, 2)):
        before = norm(b, x) if b.chance(0.4) else x
        memory = b.near(before, before, b.x(*((batch, length + 1) if batch_first else (length + 1, batch)), HIDDEN))
        y = attention(b, before, memory, batch_first)
        y = b.op("Add", *b.pick((x, y), (y, x))) if b.chance(0.8) else y
        x = b.op("Relu", project(b, y, HIDDEN)) if b.chance(0.5) else y
    if b.chance(0.3):
        reduced(b, "ReduceMean", x, [b.pick(0, 1, 2)])


def norm(b: Builder, x: str) -> str:
    return b.op("LayerNormalization", x, b.weight(HIDDEN), b.weight(HIDDEN)) if b.opset >= 17 else b.op("Relu", x)


def attention(b: Builder, x: str, memory: str, batch_first: bool) -> str:
    """The attention of rows, which Transposes swap before and after it if they have the batch first."""
    if batch_first:
        rows = {v: b.op("Transpose", v, perm=[1, 0, 2]) for v in dict.fromkeys((x, memory))}
        x, memory = rows[x], rows[memory]
    q, k, v = sides(b, x, memory)
    stack, scale = b.chance(0.4), b.pick("query", "query", "scores", "none")
    factor = b.number(1 / math.sqrt(SIZE))
    query, value = (heads(b, side, stack, transposed=False) for side in (q, v))
    keys = heads(b, k, stack, transposed=True)
    query = b.op("Mul", query, factor) if scale == "query" else query
    scores = b.op("MatMul", query, keys)
    scores = b.op("Mul", scores, factor) if scale == "scores" else scores
    if b.chance(0.15):
        band = np.triu(np.full(b.shape(scores)[-2:], -10000.0), 1)
        scores = b.op("Add", scores, b.const(band))
    product = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
    merged = b.op("Transpose", product, perm=[1, 0, 2] if stack else b.near([2, 0, 1, 3], [2, 1, 0, 3], [0, 2, 1, 3]))
    return projected(b, merged, b.shape(x), batch_first)


def sides(b: Builder, x: str, memory: str) -> tuple[str, str, str]:
    """Query, keys and values: projected apart, or together."""
    if x != memory or b.chance(0.3):
        return project(b, x, HIDDEN), project(b, memory, HIDDEN), project(b, memory, HIDDEN)
    together = project(b, x, 3 * HIDDEN)
    if b.chance(0.5):
        q, k, v = split(b, together, 2, [HIDDEN] * 3)
        return q, k, v
    apart = b.op("Reshape", together, b.ints(*b.shape(x)[:2], 3, HIDDEN))
    q, k, v = (b.op("Gather", apart, b.const(np.array(i), np.int64), axis=2) for i in range(3))
    return q, k, v


def heads(b: Builder, rows: str, stack: bool, transposed: bool) -> str:
    """Rows (length, batch, hidden) as heads, with batch and heads in one axis, or apart."""
    length, batch, _ = b.shape(rows)
    if stack:
        spec = b.pick((length, batch * HEADS, SIZE), (0, -1, SIZE))
        return b.op("Transpose", b.op("Reshape", rows, b.ints(*spec)), perm=[1, 2, 0] if transposed else [1, 0, 2])
    spec = b.pick((length, batch, HEADS, SIZE), (0, 0, HEADS, SIZE), (length, -1, HEADS, SIZE), (0, 0, -1, SIZE))
    split_apart = b.op("Reshape", rows, b.ints(*spec))
    if transposed and b.chance(0.3):
        return b.op("Transpose", b.op("Transpose", split_apart, perm=[1, 2, 0, 3]), perm=[0, 1, 3, 2])
    return b.op("Transpose", split_apart, perm=b.near([1, 2, 3, 0] if transposed else [1, 2, 0, 3], [0, 2, 1, 3]))


def projected(b: Builder, merged: str, shape: tuple[int, ...], batch_first: bool) -> str:
    """The merged heads as rows again, projected by a Gemm of flat rows or by a MatMul, with the batch first if the input has it."""
    length, batch, hidden = shape
    if b.chance(0.5):
        flat = b.op("Reshape", merged, b.ints(*b.pick((-1, hidden), (length * batch, hidden))))
        weights, bias = b.weight(hidden, hidden), [b.weight(hidden)] if b.chance(0.7) else []
        rows = b.op("Reshape", b.op("Gemm", flat, weights, *bias, transB=b.pick(0, 1)), b.ints(length, batch, hidden))
    else:
        rows = project(b, b.op("Reshape", merged, b.ints(*b.pick((0, -1, hidden), (length, batch, hidden)))), hidden)
    return b.op("Transpose", rows, perm=[1, 0, 2]) if batch_first else rows


STEPS = (layer,)
