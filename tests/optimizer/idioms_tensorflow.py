"""Steps of random models as tf2onnx writes them: 1-D convolutions, Dense layers, normalizations, heads of attention, selects."""

from __future__ import annotations

import numpy as np
from idioms_fused import along_channels, batch_norm, convolved
from typed_graphs import Builder, padded, reduced, sliced, squeezed

HEADS, SIZE = 2, 4


def convolved_rows(b: Builder) -> None:
    """Squeezes of convolutions, nodes behind them, and sometimes an Unsqueeze at the end."""
    axis = b.near(2, 3)
    x = b.x(b.pick(1, 2), b.pick(1, 2, 3), *((1, 5) if axis == 2 else (5, 1)))
    values = [squeezed(b, "Squeeze", convolved(b, x) if b.chance(0.8) else x, b.pick(axis, axis - 4))]
    if b.shape(values[0]) != b.shape(values[0])[:3]:
        return
    for _ in range(b.pick(1, 2, 3)):
        values.append(behind_squeeze(b, b.pick(*values), values))
    if b.chance(0.7):
        y = squeezed(b, "Unsqueeze", values[-1], b.near(axis, 1))
        if b.chance(0.5):
            b.op("Relu", y)


def behind_squeeze(b: Builder, y: str, values: list[str]) -> str:
    shape = b.shape(y)
    kind = b.pick("unary", "constant", "two", "pad", "concat", "slice", "norm", "mean")
    if kind == "constant":
        return b.op(b.pick("Add", "Mul", "Sub"), *b.pick((y, k := along_channels(b, y)), (k, y)))
    if kind == "two":
        return b.op(b.pick("Add", "Mul", "Max"), y, b.near(b.pick(*values), b.x(*shape)))
    if kind == "pad":
        return padded(b, y, [b.pick(0, 0, 1) for _ in range(2 * len(shape))], b.near(0.0, 1.0))
    if kind == "concat":
        return b.op("Concat", y, b.pick(*values), axis=b.pick(0, 1, -1))
    if kind == "slice":
        return sliced(b, y, b.pick(1, -1), b.pick(0, 1), b.near(2**31 - 1, -1))
    if kind == "norm":
        return batch_norm(b, y)
    return b.op("GlobalAveragePool", y) if kind == "mean" else b.op(b.pick("Relu", "Tanh", "Sigmoid", "Neg"), y)


def factored_norm(b: Builder) -> None:
    """x * factor + (bias - mean * factor), or (x - mean) * factor; also without the mean."""
    x = b.x(b.pick(1, 2), 3, b.pick(2, 4))
    width = b.shape(x)[-1]
    mean = mean_of(b, x)
    rms = b.chance(0.25)
    centered = x if rms else b.op("Sub", x, mean)
    root = b.op("Sqrt", b.op("Add", mean_of(b, b.op("Mul", centered, centered)), b.number(0.001, 0.1)))
    inverse = b.pick(b.op("Reciprocal", root), b.op("Div", b.number(1.0), root))
    scale = b.near(b.weight(width), b.weight(1, 1, width), b.weight(3, 1))
    factor = b.op("Mul", *b.pick((inverse, scale), (scale, inverse)))
    if rms or b.chance(0.3):
        b.op("Mul", *b.pick((centered, factor), (factor, centered)))
        return
    bias, other = b.near(b.weight(width), b.x(width)), b.near(factor, scale)
    if b.chance(0.5):
        shift = b.op("Sub", bias, b.op("Mul", mean, other))
    else:
        shift = b.op("Add", b.op("Mul", b.op("Neg", mean), other), bias)
    b.op("Add", *b.pick((b.op("Mul", x, factor), shift), (shift, b.op("Mul", factor, x))))


def mean_of(b: Builder, x: str) -> str:
    return b.op("GlobalAveragePool", x) if b.chance(0.5) else reduced(b, "ReduceMean", x, b.near([-1], [1]))


def dense(b: Builder) -> None:
    """A product with weights between Reshapes, and a bias behind them."""
    batch, rows, width, columns = b.pick(1, 2), 3, b.pick(2, 4), b.pick(4, 6)
    flat = b.op("Reshape", b.x(batch, rows, width), b.ints(-1, width))
    y = b.op("MatMul", flat, b.weight(width, columns))
    dims = b.near((batch, rows, columns), (batch, rows, 2, columns // 2), (batch, columns, rows))
    y = b.op("Reshape", y, b.ints(*b.near(dims, (-1, *dims[1:]))))
    bias = b.near(b.weight(*dims[2:]), b.weight(dims[-1]), b.weight(1, *dims[1:]))
    b.op("Add", *b.pick((y, bias), (bias, y)))


def heads_of_einsum(b: Builder, x: str) -> str:
    """Heads with an inserted axis, moved by a Transpose of five axes, stacked with the batch."""
    batch, rows = b.shape(x)[:2]
    split = b.op("Reshape", x, b.ints(batch, rows, HEADS, SIZE))
    place = b.pick(1, 2, 3)
    inserted = squeezed(b, "Unsqueeze", split, place)
    order = [0, *(axis for axis in (1, 2, 3, 4) if axis != place)]
    perm = b.near([order[0], order[2], order[1], place, order[3]], [order[0], order[2], place, order[3], order[1]])
    moved = b.op("Transpose", inserted, perm=perm)
    dims = [d for i, d in enumerate(b.shape(moved)) if perm[i] != place]
    return b.op("Reshape", moved, b.ints(b.near(-1, batch * HEADS), *dims[2:]))


def einsum_attention(b: Builder) -> None:
    """Products of stacked heads, with a mask as a factor and a summand."""
    batch, rows = b.pick(1, 2), b.pick(1, 3)
    query, key, value = (heads_of_einsum(b, b.x(batch, rows, HEADS * SIZE)) for _ in range(3))
    if b.shape(key)[1] == rows or b.chance(0.5):
        key = b.op("Transpose", key, perm=[0, 2, 1])
    scores = b.op("MatMul", query, key)
    scores = b.op("Reshape", scores, b.ints(batch, HEADS, *b.shape(scores)[1:]))
    if b.chance(0.5):
        scores = blended(b, b.op("Mul", scores, b.number(0.5)))
    weights = b.op("Softmax", scores, axis=-1)
    stacked = b.op("Reshape", weights, b.ints(-1, *b.shape(weights)[2:]))
    y = b.op("MatMul", stacked, value)
    y = b.op("Transpose", b.op("Reshape", y, b.ints(batch, HEADS, *b.shape(y)[1:])), perm=[0, 2, 1, 3])
    b.op("Reshape", y, b.ints(0, 0, -1))


def blended(b: Builder, scores: str) -> str:
    """scores * mask + (1 - mask) * low"""
    shape, kind = b.shape(scores), {"f2": 10, "f4": 1, "f8": 11}[b.dtype.str[1:]]
    kept = b.x(*b.near((shape[0], 1, 1, shape[3]), (1, 1, *shape[2:]), shape), dtype=bool)
    if b.chance(0.4):
        kept = b.op(
            "And", *b.pick((kept, all_true := b.op("Expand", b.const(True, bool), b.ints(*shape))), (all_true, kept))
        )
    low = b.op(
        "Mul", b.number(b.near(-1e38, -10000.0) if kind != 10 else -60000.0), b.op("Cast", b.op("Not", kept), to=kind)
    )
    return b.op("Add", *b.pick((a := b.op("Mul", b.op("Cast", kept, to=kind), scores), low), (low, a)))


def selected(b: Builder) -> None:
    """Cast(c) * x + Cast(Not(c)) * z for integers."""
    x = b.x(b.pick(1, 3), dtype=np.int32)
    compared = b.op("Cast", x, to=1) if b.chance(0.6) else x
    zero = b.const(np.array(b.near(0, 1)), np.float32 if compared != x else np.int32)
    condition = b.op("Less", compared, zero) if b.opset >= 9 or compared != x else b.x(1, dtype=bool)
    kept, rest = b.op("Cast", condition, to=6), b.op("Cast", b.op("Not", condition), to=6)
    b.op("Add", b.op("Mul", kept, b.op("Add", x, b.const(7, np.int32))), b.op("Mul", x, rest))


def cropped(b: Builder) -> None:
    """A transposed convolution whose result is cut."""
    x = b.x(1, 2, 3, 4)
    y = b.op("ConvTranspose", x, b.weight(2, 1, 3, 3), strides=[2, 2], pads=b.near([0, 0, 0, 0], [1, 0, 0, 1]))
    y = sliced(b, y, b.near(-1, 2, 1), b.pick(0, 1), b.near(6, -1, 2**31 - 1))
    b.op("Add", y, b.weight(1))


STEPS = (convolved_rows, convolved_rows, factored_norm, factored_norm, dense, einsum_attention, selected, cropped)
