"""Steps of random models: single operators, and what the rules look for with something beside it now and then."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto
from typed_graphs import (
    Builder,
    ImpossibleError,
    clipped,
    padded,
    product,
    reduced,
    sliced,
    split,
    squeezed,
    value_info,
)

UNARY = ("Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Exp", "Sqrt", "Erf", "Softplus", "LeakyRelu", "Elu", "HardSigmoid", "Identity",
         "Dropout", "Floor", "Sign", "Reciprocal", "Selu")  # fmt: skip
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64)


# ---------------------------------------------------------------------- single operators


def unary(b: Builder) -> None:
    b.op(b.pick(*UNARY), b.float())


def binary(b: Builder) -> None:
    x = b.float()
    shape = b.shape(x)
    other = [1 if b.chance(0.3) else d for d in shape[b.rng.randrange(len(shape) + 1) :]]
    y = b.weight(*other) if b.chance(0.5) else b.x(*other)
    b.op(b.pick("Add", "Sub", "Mul", "Div", "Max", "Min"), *b.pick((x, y), (y, x)))


def constant_arithmetic(b: Builder) -> None:
    x = b.any(lambda a: a.dtype.kind in "fi" and a.dtype.itemsize > 1)
    array = b.values[x]
    dims = [b.pick(1, d) for d in array.shape[b.rng.randrange(array.ndim + 1) :]]
    if b.chance(0.1):
        dims = [1, *array.shape]
    op = b.pick("Add", "Sub", "Mul", "Div", "Pow")
    neutral = 0 if op in ("Add", "Sub") else 1
    k = b.const(np.full(dims, b.near(neutral, -0.0, 2, 3)), array.dtype)
    b.op(op, *(b.pick((x, k), (k, x)) if op in ("Add", "Mul") else (x, k)))


def logic(b: Builder) -> None:
    x = b.float()
    condition = b.op(b.pick("Less", "Greater", "Equal") if b.opset >= 11 else "Less", x, b.number(0.25))
    if b.chance(0.7):
        condition = b.op("Not", condition)
    if b.chance(0.2):
        condition = b.op("Not", condition)
    y = b.pick(x, b.number(0.0), b.weight(*b.shape(x)))
    b.op("Where", condition, *b.pick((x, y), (y, x)))


def casts(b: Builder) -> None:
    x = b.any(lambda a: a.dtype.kind in "fib")
    for _ in range(b.pick(1, 2, 2, 3)):
        # Whether a sum is exactly zero is a matter of rounding.
        x = b.op("Cast", x, to=b.pick(*FLOAT_TYPES, *([TensorProto.BOOL] if b.values[x].dtype.kind != "f" else [])))
    if b.values[x].dtype != b.dtype and b.chance(0.6):
        b.op("Cast", x, to={"f2": 10, "f4": 1, "f8": 11}[b.dtype.str[1:]])


def clips(b: Builder) -> None:
    x = b.float()
    for _ in range(b.pick(1, 2, 2, 3)):
        if b.chance(0.4):
            x = b.op("Relu", x)
        else:
            low, high = b.pick(None, 0.0, -1.0, 0.5, 2.0, -0.0), b.pick(None, 6.0, 1.0, 0.0, np.inf)
            x = clipped(b, x, low, high)


def reciprocal(b: Builder) -> None:
    x = b.float()
    one = b.number(1.0)
    y = b.near(b.op("Div", one, x), b.op("Reciprocal", x))
    z = b.x(*b.shape(x))
    b.op("Mul", *b.pick((y, z), (z, y)))


def reduction(b: Builder) -> None:
    x = b.float((1, 2, 3, 4))
    rank = len(b.shape(x))
    axes = sorted({b.axis(b.rng.randrange(rank), rank) for _ in range(b.pick(1, 2))})
    if len({a % rank for a in axes}) == len(axes):
        reduced(b, b.pick("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), x, axes, b.pick(0, 1))


def softmax(b: Builder) -> None:
    x = b.float((2, 3, 4))
    b.op(b.pick("Softmax", "LogSoftmax"), x, axis=b.axis(b.pick(1, len(b.shape(x)) - 1), len(b.shape(x))))


def arg(b: Builder) -> None:
    b.op(b.pick("ArgMax", "ArgMin"), b.float((1, 2, 3)), axis=0, keepdims=b.pick(0, 1))


# ---------------------------------------------------------------------- moves and shapes


def factors(b: Builder, size: int) -> list[int]:
    dims: list[int] = []
    while size > 1 and len(dims) < 3:
        d = b.pick(*[d for d in range(1, size + 1) if size % d == 0])
        dims.append(d)
        size //= d
    return [*dims, size]


def reshape(b: Builder, x: str | None = None) -> str:
    x = x or b.any(lambda a: a.dtype.kind in "fi")
    shape = b.shape(x)
    kind = b.pick("spec", "spec", "Flatten", "Squeeze", "Unsqueeze", "same", "input")
    ones = [i for i, d in enumerate(shape) if d == 1]
    if kind == "Flatten":
        return b.op("Flatten", x, axis=b.rng.randrange(len(shape) + 1))
    if kind == "Squeeze" and ones:
        return squeezed(b, kind, x, b.axis(b.pick(*ones), len(shape)))
    if kind == "Unsqueeze" and len(shape) < 5:
        return squeezed(b, kind, x, b.rng.randrange(len(shape) + 1))
    if kind == "same":
        return b.op("Reshape", x, b.ints(*shape))
    dims = factors(b, product(shape)) if product(shape) else list(shape)
    if kind == "input":
        return b.op("Reshape", x, b.fed(np.array(dims, np.int64)))
    if b.chance(0.4) and dims and product(dims):
        dims[b.rng.randrange(len(dims))] = -1
    dims = [0 if i < len(shape) and d == shape[i] and b.chance(0.4) else d for i, d in enumerate(dims)]
    return b.op("Reshape", x, b.ints(*dims))


def reshapes(b: Builder) -> None:
    x = reshape(b)
    if b.chance(0.3):
        x = b.op("Transpose", x, perm=b.permutation(len(b.shape(x))))
    reshape(b, x)


def computed_reshape(b: Builder) -> None:
    """A Reshape whose target is put together from dimensions."""
    x = b.float((2, 3, 4))
    shape = b.shape(x)
    dims = b.op("Shape", x)
    axis = b.rng.randrange(len(shape))
    form = b.pick("Gather", "Gather", "Slice", "Gather 1")
    if form == "Slice":
        one = sliced(b, dims, 0, axis, axis + 1)
    elif form == "Gather":
        one = squeezed(b, "Unsqueeze", b.op("Gather", dims, b.const(axis, np.int64), axis=0), 0)
    else:
        one = b.op("Gather", dims, b.ints(axis))
    rest = product(shape[:axis]) * product(shape[axis + 1 :])
    parts = [one, b.ints(b.near(-1, rest))]
    if b.chance(0.3) and shape[axis]:
        parts = [b.op("Div", one, b.ints(b.pick(1, shape[axis]))), b.ints(-1)]
    if b.chance(0.2):
        parts = [b.op("Mul", one, b.ints(rest)), b.ints(1)]
    b.op("Reshape", x, b.op("Concat", *b.pick(parts, parts[::-1]), axis=0))


def shape_arithmetic(b: Builder) -> None:
    x = b.float((1, 2, 3))
    dims = b.op("Shape", x)
    kind = b.pick("ConstantOfShape", "Expand", "Range", "Tile", "Slice", "If")
    if kind == "ConstantOfShape":
        filled = b.op("ConstantOfShape", dims, value=np.array([b.pick(0, 1, 2.5)], b.dtype))
        b.op("Add", filled, x)
    elif kind == "Expand":
        b.op("Expand", b.weight(*[1] * len(b.shape(x))), dims)
    elif kind == "Tile":
        b.op("Tile", x, b.op("ConstantOfShape", b.op("Shape", dims), value=np.array([b.near(1, 2)], np.int64)))
    elif kind == "Slice" and b.opset >= 10:
        last = b.op("Gather", dims, b.ints(0))
        b.op("Slice", x, b.op("Sub", last, b.ints(1)), last, b.ints(0))
    elif kind == "Range" and b.opset >= 11:
        count = b.op("Gather", dims, b.const(0, np.int64), axis=0)
        steps = b.op("Range", b.const(0, np.int64), count, b.const(1, np.int64))
        b.op("Gather", x, steps, axis=0)
    else:
        small = b.op("Equal" if b.opset >= 11 else "Less", b.op("Gather", dims, b.ints(0)), b.ints(b.pick(1, 2, 3)))
        conditional(b, small, x)


def transpose(b: Builder) -> None:
    x = b.float((2, 3, 4))
    rank = len(b.shape(x))
    usual: list[list[int] | None] = [[1, 0], [0, 2, 1], [0, 3, 1, 2], [0, 2, 3, 1]]
    perm = b.pick(*([p for p in usual if len(p or ()) == rank] or [None]), b.permutation(rank))
    b.op("Transpose", x, perm=perm)


def transposed_pair(b: Builder) -> None:
    """An operator between Transposes that may cancel."""
    x = b.float((2, 3, 4))
    rank = len(b.shape(x))
    perm = b.near([0, *range(2, rank), 1], b.permutation(rank))
    y = b.op("Transpose", x, perm=perm)
    before = len(b.made)
    b.grow((unary, binary, concat, reduction, softmax, splits, pads, logic, gather, slices, casts), b.pick(1, 1, 2))
    made = [v for v in b.made[before:] if b.values[v].ndim == rank]
    y = made[-1] if made else y
    b.op("Transpose", y, perm=b.near([perm.index(i) for i in range(rank)], perm))


def slices(b: Builder) -> None:
    x = b.float((1, 2, 3, 4))
    axis = b.rng.randrange(len(b.shape(x)))
    size = b.shape(x)[axis]
    start, end = b.pick((0, 2**63 - 1), (0, size), (-size, 2**31 - 1), (0, 1), (1, size), (-1, -size - 1))
    sliced(b, x, b.axis(axis, len(b.shape(x))), start, end, -1 if end < 0 else b.near(1, 2))


def gather(b: Builder) -> None:
    x = b.float((1, 2, 3))
    axis = b.rng.randrange(len(b.shape(x)))
    size = b.shape(x)[axis]
    picked = [b.axis(b.rng.randrange(size), size) for _ in range(b.pick(1, 2))] if size else []
    shape = b.pick((len(picked),), (), (1, -1))
    b.op("Gather", x, b.const(np.array(picked[:1] if shape == () else picked).reshape(shape), np.int64), axis=axis)


def shared_out(b: Builder) -> None:
    """Gathers or Slices that take all of one axis."""
    x = b.input(b.pick((3, 2, 4), (2, 3, 4), (3, 6)))
    axis = b.pick(0, 1)
    size = b.shape(x)[axis]
    kind = b.pick("Gather", "Gather 1", "Slice")
    for i in range(size if b.chance(0.85) else size - 1):
        at = b.near(i, 0, b.axis(i, size))
        if kind == "Slice":
            part = sliced(b, x, axis, i, b.near(i + 1, 2**31 - 1))
        else:
            part = b.op("Gather", x, b.ints(at) if kind != "Gather" else b.const(at, np.int64), axis=axis)
        if b.chance(0.7):
            b.op(b.pick("Relu", "Neg"), part)


def range_gather(b: Builder) -> None:
    x = b.float((1, 2, 3))
    n = b.shape(x)[0]
    start, limit, step = b.pick((0, n, 1), (1, n, 1), (0, n, 2), (n - 1, -1, -1), (0, max(n - 1, 0), 1))
    b.op("Gather", x, b.op("Range", *(b.const(v, np.int64) for v in (start, limit, step))), axis=0)


def computed_range(b: Builder) -> None:
    """A Gather along a range that is as long as a dimension says."""
    x, y = b.float((2, 3)), b.float((1, 2))
    n = b.op("Gather", b.op("Shape", b.near(x, y)), b.const(0, np.int64), axis=0)
    b.op("Gather", x, b.op("Range", b.const(b.near(0, 1), np.int64), n, b.const(1, np.int64)), axis=b.near(0, 1))


def concat(b: Builder) -> None:
    x = b.float((1, 2, 3, 4))
    if not b.values[x].size:
        raise ImpossibleError  # onnxruntime takes empty parts of any shape
    axis = b.rng.randrange(len(b.shape(x)))
    others = [b.pick(x, b.weight(*b.shape(x)), b.x(*b.shape(x))) for _ in range(b.pick(0, 1, 1, 2))]
    b.op("Concat", x, *others, axis=b.axis(axis, len(b.shape(x))))


def splits(b: Builder) -> None:
    x = b.float((1, 2, 3, 4))
    axis = b.rng.randrange(len(b.shape(x)))
    size = b.shape(x)[axis]
    parts = split(b, x, axis, b.pick([size], [size // 2, size - size // 2], [1] * min(size, 4)))
    if b.chance(0.5):
        b.op("Concat", *parts, axis=axis)


def pads(b: Builder) -> None:
    x = b.float((2, 3, 4))
    rank = len(b.shape(x))
    amounts = [b.pick(0, 0, 0, 1, 2) for _ in range(2 * rank)]
    padded(
        b, x, b.near(amounts, [0] * 2 * rank, [-1, *amounts[1:]]), b.near(0.0, 1.0, -np.inf), b.near("constant", "edge")
    )


def expand(b: Builder) -> None:
    x = b.float()
    shape = b.shape(x)
    if b.chance(0.3):
        b.op("Tile", x, b.ints(*[b.near(1, 2) for _ in shape]))
    else:
        b.op("Expand", x, b.ints(*b.pick([1] * len(shape), shape, [b.pick(1, 2), *shape])))


def space_to_depth(b: Builder) -> None:
    x = b.input((b.pick(1, 2), b.pick(1, 3), 4, b.near(6, 5)))
    halves = []
    for w in (0, 1):
        for h in (0, 1):
            rows = sliced(b, x, 2, h, b.near(2**31 - 1, 3), b.near(2, 3))
            halves.append(sliced(b, rows, 3, w, 2**31 - 1, 2))
    b.op("Concat", *b.near(halves, [halves[0], *halves[2:], halves[1]], halves[:3]), axis=b.near(1, 0))


def shape_of_another(b: Builder) -> None:
    """The shape of what has that of x."""
    x = b.float((1, 2, 3))
    y = b.near(b.op("Cast", x, to=b.pick(*FLOAT_TYPES)), b.op("Relu", x), b.op("Transpose", x))
    b.op("Cast", b.op("Shape", y), to=b.pick(TensorProto.FLOAT, TensorProto.INT64))


def labels(b: Builder) -> None:
    """One map of integers after another."""
    x = b.x(b.pick(2, 4), dtype=np.int64)
    for keys, values in (([0, 1, 2], [5, 6, 7]), ([5, 6, b.near(7, 9)], [1, 0, 2])):
        default = b.near(-1, 5)
        x = b.op("LabelEncoder", x, domain="ai.onnx.ml", keys_int64s=keys, values_int64s=values, default_int64=default)


# ---------------------------------------------------------------------- control flow


def conditional(b: Builder, condition: str | None = None, x: str | None = None) -> None:
    """An If whose branches read outer values."""
    x = x or b.float()
    if condition is None:
        shape = b.near((), (1,))
        condition = b.pick(b.const(b.pick(True, False), bool), b.input(shape, bool), b.input(shape, bool))
    results, bodies = [], []
    for _ in range(2):
        inner = b.branch()
        inner.grow(STEPS, b.pick(1, 2))
        found = [v for v in inner.made if inner.values[v].dtype == b.dtype]
        y = found[-1] if found else x
        bodies.append(inner.closed([y]))
        results.append(inner.values[bodies[-1].output[0].name])
    if b.opset < 11 and results[0].shape != results[1].shape:
        raise ImpossibleError
    taken = results[0 if b.values[condition].all() else 1]
    name = b.fresh("v")
    b.nodes.append(onnx.helper.make_node("If", [condition], [name], then_branch=bodies[0], else_branch=bodies[1]))
    b.values[name] = taken
    b.made.append(name)


def loop(b: Builder) -> None:
    """A Loop that carries one value and collects another, reading outer ones."""
    x = b.float((1, 2, 3))
    inner = b.branch()
    i, c, carried = b.fresh("i"), b.fresh("c"), b.fresh("l")
    inner.values |= {i: np.array(0, np.int64), c: np.array(True), carried: b.values[x]}
    inner.inputs = [carried]
    inner.grow(STEPS, b.pick(1, 2))
    same = [v for v in inner.made if inner.values[v].shape == b.shape(x) and inner.values[v].dtype == b.dtype]
    y = inner.op("Add", same[-1] if same else x, b.pick(x, carried))
    inner.values[y] = b.values[x]
    dims = list(b.shape(x))
    infos = [
        value_info(i, TensorProto.INT64, []),
        value_info(c, TensorProto.BOOL, []),
        inner._info(carried, b.near(None, dims)),
    ]
    body = inner.closed([inner.op("Identity", c), y, inner.op("Neg", y)], infos)
    trips = b.const(b.pick(1, 2, 3), np.int64)
    names = [b.fresh("v") for _ in range(2)]
    b.nodes.append(onnx.helper.make_node("Loop", [trips, b.near("", b.const(True, bool)), x], names, body=body))
    count = int(b.values[trips])
    b.values |= {names[0]: b.values[x], names[1]: np.broadcast_to(b.values[x], (count, *b.shape(x)))}
    b.made += names


STEPS = (
    unary, unary, binary, constant_arithmetic, constant_arithmetic, logic, casts, clips, reciprocal, reduction, softmax, arg,
    reshapes, reshapes, computed_reshape, shape_arithmetic, transpose, transposed_pair, transposed_pair, slices, gather, shared_out,
    range_gather, computed_range, concat, splits, pads, expand, space_to_depth, shape_of_another, labels, conditional,
    loop,
)  # fmt: skip
