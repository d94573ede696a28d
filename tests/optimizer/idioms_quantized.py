"""Steps of random models near the quantized patterns: operators between DequantizeLinear and QuantizeLinear, integer products."""

from __future__ import annotations

from typing import Any

import numpy as np
from idioms_fused import activated
from typed_graphs import Builder, ImpossibleError, clipped, split

KINDS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}


class Parameters:
    """A scale, a zero point and their type, made constants once."""

    def __init__(self, b: Builder, kind: str, scale: Any, zero: Any, *, explicit: bool = True) -> None:
        self.kind = kind
        self.inputs = [b.const(scale, np.float32)]
        if explicit:
            self.inputs.append(b.const(np.broadcast_to(np.asarray(zero), np.shape(scale)), kind))


def parameters(b: Builder, kind: str | None = None, zero: int | None = None) -> Parameters:
    kind = kind or b.near(b.kind, *KINDS if b.opset >= 21 else ("uint8", "int8"))
    low, high = KINDS[kind]
    middle = (low + high + 1) // 2
    zero = b.near(middle, low, low + 3) if zero is None else zero
    explicit = kind != "uint8" or zero != 0 or b.chance(0.7)
    return Parameters(b, kind, b.pick(0.0625, 0.0625, 0.03, 0.125), zero, explicit=explicit)


def q(b: Builder, x: str, p: Parameters) -> str:
    return b.op("QuantizeLinear", x, *p.inputs, domain=b.domain)


def dq(b: Builder, x: str, p: Parameters, axis: int | None = None) -> str:
    return b.op("DequantizeLinear", x, *p.inputs, domain=b.domain, **({} if axis is None else {"axis": axis}))


def qdq(b: Builder, x: str, p: Parameters | None = None) -> str:
    p = p or parameters(b)
    return dq(b, q(b, x, p), p)


def start(b: Builder) -> None:
    """Settle what most pairs of a model look like."""
    if b.dtype != np.float32 or b.opset < 10:
        raise ImpossibleError
    if not b.kind:
        b.kind = b.pick("uint8", "uint8", "int8")
        b.domain = "com.microsoft" if b.chance(0.1) else ""
        if b.opset >= 21 and b.chance(0.15):
            b.kind = b.pick("uint16", "int16")


def activations(b: Builder, *shapes: tuple[int, ...]) -> str:
    """A dequantized value of one of the shapes."""
    shape = b.pick(*shapes)
    pairs = {n.output[0] for n in b.nodes if n.op_type == "DequantizeLinear"}
    found = [v for v in b.known(lambda a: a.shape == shape and a.dtype == np.float32) if v in pairs]
    if found and b.chance(0.7):
        return str(b.pick(*found[-2:]))
    return str(b.near(qdq(b, b.x(*shape)), b.x(*shape)))


def weights(b: Builder, *shape: int, axis: int) -> str:
    """A dequantized constant, with one scale or one along an axis."""
    kind = b.near("int8", "uint8")
    low, high = KINDS[kind]
    codes = b.const(b.seeded().integers(low // 2, high // 2, shape), kind)
    if b.opset >= 13 and b.chance(0.4):
        scales = 0.01 * (1 + np.arange(shape[axis]))
        return dq(b, codes, Parameters(b, kind, scales, b.near(0, 1)), b.near(axis, axis - len(shape)))
    return dq(b, codes, Parameters(b, kind, b.near(0.02, 0.05), b.near(0, 3), explicit=b.chance(0.8)))


def finished(b: Builder, y: str) -> None:
    """A pair behind the operator, or something beside it."""
    if b.chance(0.3):
        y = activated(b, y)
    if b.chance(0.9):
        y = qdq(b, y)
    if b.chance(0.08):
        qdq(b, y)


def conv(b: Builder) -> None:
    start(b)
    x = activations(b, (1, 3, 4, 4), (2, 2, 5, 5), (1, 4, 3, 3), (1, 2, 6))
    spatial, channels = len(b.shape(x)) - 2, b.shape(x)[1]
    out, size = b.pick(2, 3, 4), b.pick(1, 2, 3)
    w = weights(b, out, channels, *[size] * spatial, axis=0)
    inputs = [x, w]
    if b.chance(0.6):
        if b.chance(0.7):
            codes = b.const(b.seeded().integers(-500, 500, out), np.int32)
            scale = b.near(0.0625 * 0.02, 0.01)
            inputs.append(b.op("DequantizeLinear", codes, b.const(scale, np.float32)))
        else:
            inputs.append(b.weight(out))
    pads = [1] * 2 * spatial if b.chance(0.4) else None
    finished(b, b.op("Conv", *inputs, pads=pads, strides=[2] * spatial if b.chance(0.2) else None))


def conv_pair(b: Builder) -> None:
    """Two convolutions with something between them, which may all have the channels last."""
    start(b)
    x = activations(b, (1, 4, 6, 6), (2, 4, 4, 4))
    for _ in range(b.pick(2, 2, 3)):
        x = qdq(b, b.op("Conv", x, weights(b, 4, 4, 1, 1, axis=0)))
        kind = b.pick("none", "none", "MaxPool", "Add", "Relu", "Transpose", "returned")
        if kind == "MaxPool":
            x = b.op(kind, x, kernel_shape=[1, 1])
        elif kind == "Add":
            x = qdq(b, b.op(kind, x, activations(b, b.shape(x))))
        elif kind == "Relu":
            x = qdq(b, b.op(kind, x))
        elif kind == "Transpose":
            x = b.op(kind, b.op(kind, x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
        elif kind == "returned":
            b.taps.append(x)


def product(b: Builder) -> None:
    start(b)
    x = activations(b, (3, 4), (2, 3, 4), (1, 6))
    inner, columns = b.shape(x)[-1], b.pick(2, 3)
    w = weights(b, inner, columns, axis=1) if b.chance(0.7) else activations(b, (inner, columns))
    if len(b.shape(x)) == 2 and b.chance(0.4):
        bias = [b.weight(columns)] if b.chance(0.5) else []
        if b.chance(0.3):
            codes = b.const(b.seeded().integers(-500, 500, columns), np.int32)
            bias = [b.op("DequantizeLinear", codes, b.const(0.0625 * 0.02, np.float32))]
        y = b.op("Gemm", x, w, *bias, alpha=b.near(1.0, 0.5), beta=b.near(1.0, 0.5))
    else:
        y = b.op("MatMul", x, w)
        if b.chance(0.3):
            y = b.op("Add", y, b.weight(columns))
    finished(b, y)


def elementwise(b: Builder) -> None:
    start(b)
    x = activations(b, (2, 3, 4), (1, 3, 4, 4), (6,))
    op = b.pick(
        "Add",
        "Mul",
        "Sigmoid",
        "LeakyRelu",
        "Where",
        "Softmax",
        "AveragePool",
        "GlobalAveragePool",
        "Relu",
        "Clip",
        "Sub",
    )
    if op in ("Add", "Mul", "Sub"):
        y = activations(b, b.shape(x), (*([1] * (len(b.shape(x)) - 1)), b.shape(x)[-1]))
        y = b.op(op, *b.pick((x, y), (y, x)))
    elif op == "Where":
        y = b.op(op, b.x(*b.shape(x), dtype=bool), x, activations(b, b.shape(x)))
    elif op == "Clip":
        y = clipped(b, x, b.near(0.0, None, -1.0), b.near(6.0, None, 100.0))
    elif op == "AveragePool":
        y = b.op(op, x, kernel_shape=[2] * (len(b.shape(x)) - 2))
    elif op == "Softmax":
        y = b.op(op, x, axis=b.pick(-1, 1))
    else:
        y = b.op(op, x)
    finished(b, y)


def move(b: Builder) -> None:
    """Operators that only move data, between pairs with equal or other parameters."""
    start(b)
    p = parameters(b)
    x = b.input(b.pick((2, 3, 4), (1, 3, 4, 4)))
    x = dq(b, q(b, x, p), p)
    shape = b.shape(x)
    op = b.pick(
        "Transpose",
        "Reshape",
        "MaxPool",
        "Squeeze",
        "Gather",
        "Slice",
        "Split",
        "Concat",
        "ArgMax",
        "Resize",
        "ReduceMax",
    )
    after = b.near(p, parameters(b))
    if op == "Split":
        for part in split(b, x, 0 if shape[0] == 2 else 2, [shape[0 if shape[0] == 2 else 2] // 2] * 2):
            dq(b, q(b, part, after), after)
        return
    if op == "ArgMax":
        b.op(op, x, axis=b.pick(0, 1), keepdims=b.pick(0, 1))
        return
    if op == "Transpose":
        y = b.op(op, x, perm=b.permutation(len(shape)))
    elif op == "Reshape":
        y = b.op(op, x, b.ints(shape[0], -1))
    elif op == "MaxPool":
        y = b.op(op, x, kernel_shape=[2] * (len(shape) - 2), pads=b.near(None, [1] * 2 * (len(shape) - 2)))
    elif op == "Gather":
        y = b.op(op, x, b.ints(1, 0), axis=1)
    elif op == "Slice":
        y = b.op(op, x, b.ints(0), b.ints(2), b.ints(1))
    elif op == "Concat":
        other = b.near(x, activations(b, shape))
        y = b.op(op, x, other, axis=b.pick(0, 1))
    elif op == "ReduceMax":
        y = b.op(op, x, keepdims=b.pick(0, 1))
    else:
        raise ImpossibleError
    if b.chance(0.25):
        y = b.op(b.pick("Relu", "Transpose", "Flatten"), y)
    dq(b, q(b, y, after), after)


def dynamic(b: Builder) -> None:
    """An integer product of a dynamically quantized value."""
    start(b)
    x = b.x(*b.pick((3, 4), (2, 3, 4)))
    codes, scale, zero = b.several("DynamicQuantizeLinear", 3, x)
    columns = b.pick(2, 3)
    kind = b.pick("int8", "uint8")
    w = b.const(b.seeded().integers(KINDS[kind][0], KINDS[kind][1], (b.shape(x)[-1], columns)), kind)
    per_column = b.chance(0.3)
    dims = (columns,) if per_column else ()
    zeros = [b.const(np.full(dims, b.near(0, 1)), kind)] if b.chance(0.7) else []
    y = b.op("MatMulInteger", codes, w, b.near(zero, b.const(0, np.uint8)), *zeros)
    y = b.op("Cast", y, to=1)
    factor = b.op("Mul", *b.pick((scale, s := b.const(np.full(dims, 0.02), np.float32)), (s, scale)))
    y = b.op("Mul", *b.pick((y, factor), (factor, y)))
    if b.chance(0.5):
        b.op("Add", *b.pick((y, k := b.near(b.weight(columns), b.weight(1, columns))), (k, y)))


def narrow(b: Builder) -> None:
    """A product with a constant of 4 bits in blocks."""
    start(b)
    inner, columns = b.pick(32, 64), b.pick(2, 3)
    x = b.x(b.pick(1, 2), inner)
    packed = b.const(b.seeded().integers(0, 256, (columns, inner // 32, 16)), np.uint8)
    scales = b.const(np.full(columns * inner // 32, 0.125), np.float32)
    y = b.op("MatMulNBits", x, packed, scales, domain="com.microsoft", K=inner, N=columns, bits=4, block_size=32)
    b.op("Add", y, b.near(b.weight(columns), b.weight(1, columns), b.weight(1)))


STEPS = (conv, conv, conv_pair, product, product, elementwise, elementwise, move, move, move, dynamic, narrow)
