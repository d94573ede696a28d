"""Normalizations, reductions and softmax as combinations of operators that NNAPI supports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortconv.ir.graph import Graph, Value
from ortconv.ir.operands import axes_of
from ortconv.ir.schema import attribute, since_version
from ortconv.ir.types import Shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import (
    add,
    div,
    is_float,
    may_be_infinite,
    mul,
    only_first,
    op,
    reshape,
    shape_of,
    sub,
    trailing,
    transpose,
)
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import mean


def _centered(x: NewInput, axes: Sequence[int], epsilon: float, graph: Graph) -> New:
    """(x - mean) / sqrt(variance + epsilon)"""
    d = sub(x, mean(x, axes, graph))
    return div(d, _root(d, axes, epsilon, graph))


def _centered_twice(x: NewInput, axes: Sequence[int], epsilon: float, graph: Graph) -> New:
    """The same for images: the mean of thousands of elements is rounded, and what is left of it is centered in turn."""
    return _centered(sub(x, mean(x, axes, graph)), axes, epsilon, graph)


def _root(x: NewInput, axes: Sequence[int], epsilon: float, graph: Graph) -> New:
    """The square root of the mean of squares plus epsilon."""
    return op("Sqrt", add(mean(mul(x, x), axes, graph), epsilon))


@rule("LayerNormalizationToMeans", P("LayerNormalization", "x", "scale", "bias?"))
def layer_norm(m: Match) -> Replacement:
    """LayerNormalization(x, scale, bias)  ->  (x - mean) / Sqrt(ReduceMean((x - mean)^2) + epsilon) * scale + bias

    Counterpart: none: LayerNormFusion is the reverse
    """
    rank = m.x.rank
    if not is_float(m.x, m.scale, m.bias) or not rank or not only_first(m.root):
        return None
    axes = range(attribute(m.root, "axis") % rank, rank)
    y = mul(_centered(m.x, tuple(axes), float(attribute(m.root, "epsilon")), m.graph), m.scale)
    return y if m.bias is None else add(y, m.bias)


@rule("RMSNormalizationToMean", P(("RMSNormalization", "SimplifiedLayerNormalization"), "x", "scale"))
def rms_norm(m: Match) -> Replacement:
    """RMSNormalization(x, scale)  ->  x / Sqrt(ReduceMean(x * x) + epsilon) * scale

    Counterpart: none: SimplifiedLayerNormFusion is the reverse
    """
    rank = m.x.rank
    if not is_float(m.x, m.scale) or not rank or not only_first(m.root):
        return None
    axes = tuple(range(m.root.attr("axis", -1) % rank, rank))
    return mul(div(m.x, _root(m.x, axes, m.root.attr("epsilon", 1e-5), m.graph)), m.scale)


@rule("InstanceNormalizationToMeans", P("InstanceNormalization", "x", "scale", "bias"))
def instance_norm(m: Match) -> Replacement:
    """InstanceNormalization(x, scale, bias)  ->  d / Sqrt(ReduceMean(d^2) + epsilon) * scale + bias, d = x - mean, twice"""
    rank = m.x.rank
    if not is_float(m.x) or rank is None or rank < 3:
        return None
    scale, bias = trailing(m.scale, rank), trailing(m.bias, rank)
    if scale is None or bias is None:
        return None
    y = _centered_twice(m.x, tuple(range(2, rank)), float(attribute(m.root, "epsilon")), m.graph)
    return add(mul(y, scale), bias)


@rule("GroupNormalizationToMeans", P("GroupNormalization", "x", "scale", "bias"))
def group_norm(m: Match) -> Replacement:
    """GroupNormalization(x, scale, bias)  ->  Reshape(normalized Reshape(x) of groups) * scale + bias

    Counterpart: none: ONNX Runtime runs GroupNormalization as a function
    """
    shape, groups = shape_of(m.x), m.root.attr("num_groups", 0)
    if shape is None or len(shape) < 3 or groups < 1 or shape[1] % groups:
        return None
    each = 1 if since_version(m.root) >= 21 else shape[1] // groups
    scale, bias = (_per_channel(v, each, shape) for v in (m.scale, m.bias))
    if scale is None or bias is None:
        return None
    grouped = reshape(m.x, (shape[0], groups, math.prod(shape[1:]) // groups))
    y = reshape(_centered_twice(grouped, (2,), m.root.attr("epsilon", 1e-5), m.graph), shape)
    return add(mul(y, scale), bias)


def _per_channel(value: Value, repeats: int, shape: Shape) -> NewInput:
    """A vector of channels, each element repeated, as [C, 1, ...]; None if it has another length, or would have to be computed."""
    if repeats == 1:
        return trailing(value, len(shape))
    const = value.constant
    if const is None or const.size * repeats != shape[1]:
        return None
    return np.repeat(const.numpy(), repeats).reshape(-1, *(1,) * (len(shape) - 2))


def _reduced(m: Match) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shape and the sorted axes of a reduction if both are known and not empty; else None."""
    shape, axes = shape_of(m.x), axes_of(m.root)
    if not shape or axes is None:
        return None
    if not axes:
        return None if m.root.attr("noop_with_empty_axes", 0) else (shape, tuple(range(len(shape))))
    return shape, tuple(sorted({a % len(shape) for a in axes}))


@rule("ReduceToMean", P(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum"), "x", ...))
def reduction(m: Match) -> Replacement:
    """ReduceSum(x)  ->  ReduceMean(x) * count; also ReduceSumSquare, ReduceL1, ReduceL2 and ReduceLogSum

    Opt-in: more nodes; useful only if an accelerator supports ReduceMean and no other reduction.
    """
    found = _reduced(m)
    if found is None:
        return None
    name = m.root.op
    x: NewInput = m.x
    if name in ("ReduceSumSquare", "ReduceL2"):
        x = mul(x, x)
    elif name == "ReduceL1":
        x = op("Abs", x)
    shape, axes = found
    count = math.prod(shape[a] for a in axes)
    y = mean(x, axes, m.graph, m.root.attr("keepdims", 1))
    y = y if count == 1 else mul(y, count)
    behind = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(name)
    return op(behind, y) if behind else y


def _largest(x: NewInput, rows: int, columns: int) -> New:
    """The largest element of each row, as [1, rows, 1, 1]."""
    return op("GlobalMaxPool", reshape(x, (1, rows, columns, 1)))


@rule("ReduceMaxToPool", P(("ReduceMax", "ReduceMin"), "x", ...))
def reduced_max(m: Match) -> Replacement:
    """ReduceMax(x)  ->  Reshape(GlobalMaxPool(Reshape(x))), after a Transpose unless the axes are the last

    Also ReduceMin, with the signs changed before and after.

    Opt-in: more nodes; useful only if an accelerator supports pooling but not these reductions. A pool of infinite elements gives
    the largest finite number, so x must not depend on an infinite constant, such as a mask has, or on the logarithm of a sigmoid.
    """
    found = _reduced(m)
    if found is None or may_be_infinite(m.x):
        return None
    shape, axes = found
    kept = [a for a in range(len(shape)) if a not in axes]
    rest = [shape[a] for a in kept]
    x: NewInput = m.x
    if (order := [*kept, *axes]) != sorted(order):
        x = transpose(x, order)
    rows = math.prod(rest)
    size = rows, math.prod(shape) // rows
    y = _largest(x, *size) if m.root.op == "ReduceMax" else mul(_largest(mul(x, -1), *size), -1)
    return reshape(y, [1 if a in axes else d for a, d in enumerate(shape)] if m.root.attr("keepdims", 1) else rest)


def _rows(m: Match) -> tuple[tuple[int, ...], int, int] | None:
    """The shape of x, and rows and columns of a softmax over it; None if other axes are on both sides of its axis."""
    shape = shape_of(m.x)
    if not shape:
        return None
    axis = attribute(m.root, "axis") % len(shape)
    behind = math.prod(shape[axis + 1 :])
    if since_version(m.root) < 13:
        return shape, math.prod(shape[:axis]), math.prod(shape[axis:])
    return (shape, math.prod(shape[:axis]), shape[axis]) if behind == 1 else None


@rule("SoftmaxToRows", P("Softmax", "x"))
def softmax_of_rows(m: Match) -> Replacement:
    """Softmax(x)  ->  Reshape(Softmax<1>(Reshape(x))) of a matrix, if the axis is the last

    Opt-in: more nodes; useful only if an accelerator supports only matrices: NNAPI below feature level 29.
    """
    found = _rows(m)
    if found is None or len(found[0]) == 2:
        return None
    shape, rows, columns = found
    return reshape(New("Softmax", [reshape(m.x, (rows, columns))], {"axis": 1}, like=m.root), shape)


@rule("SoftmaxToLastAxis", P(("Softmax", "LogSoftmax"), "x"))
def softmax_of_last_axis(m: Match) -> Replacement:
    """Softmax(x) along another axis  ->  Transpose(Softmax(Transpose(x))) along the last; also LogSoftmax

    Opt-in: two more nodes; useful only if an accelerator supports only the last axis: NNAPI below feature level 29.
    """
    rank = m.x.rank
    if not is_float(m.x) or not rank or since_version(m.root) < 13:
        return None
    axis = attribute(m.root, "axis") % rank
    if axis == rank - 1:
        return None
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return transpose(New(m.root.op, [transpose(m.x, perm)], {"axis": rank - 1}, like=m.root), perm)


@rule("LogSoftmaxToParts", P("LogSoftmax", "x"))
def log_softmax(m: Match) -> Replacement:
    """LogSoftmax(x)  ->  d - Log(sum of Exp(d)) with d = x - max(x), if the axis is the last"""
    found = _rows(m)
    if found is None:
        return None
    shape, rows, columns = found
    x = reshape(m.x, (1, rows, columns, 1))
    d = sub(x, op("GlobalMaxPool", x))
    total = mul(mean(op("Exp", d), (2,), m.graph), columns)
    return reshape(sub(d, op("Log", total)), shape)
