"""Replaces GroupNormalization by InstanceNormalization, for which ONNX Runtime has a kernel."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.schema import since_version
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import FLOATS, with_open
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

BY_CHANNEL = 21
"""The opset from which on scale and bias have one element for each channel, instead of each group."""


@rule("GroupNormFusion", P("GroupNormalization", "x", C("scale"), C("bias")))
def fuse_group_norm(m: Match) -> Replacement:
    """GroupNormalization(x, scale, bias)  ->  Reshape(InstanceNormalization(Reshape(x))) * scale + bias

    Before opset 21, and if each group is a single channel, InstanceNormalization includes scale and bias.

    Counterpart: none: ONNX Runtime runs the function's body, 29 nodes
    """
    x, shape, groups, channels = m.x, m.x.shape or (), m.root.attr("num_groups", 0), m.x.dim(1)
    if x.dtype not in FLOATS or len(shape) < 3 or 0 in shape:
        return None
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        return None
    by_channel = since_version(m.root) >= BY_CHANNEL
    size = channels if by_channel else groups
    stash = m.root.attr("stash_type", int(DType.FLOAT)) if by_channel else x.dtype
    if stash != DType.FLOAT or m.scale.dtype is not x.dtype or {m.scale.static_shape, m.bias.static_shape} != {(size,)}:
        return None
    if x.dtype is DType.FLOAT and size == groups:
        return _normalized(m, x, (m.scale, m.bias))
    y = _normalized(m, x, (np.ones(groups, np.float32), np.zeros(groups, np.float32)))
    scale, bias = (m.tensor(name).numpy().reshape(-1, *(1,) * (len(shape) - 2)) for name in ("scale", "bias"))
    types = (m.root.out.type,)
    return New("Add", [New("Mul", [y, scale], {}, types=types), bias], {}, types=types)


def _normalized(m: Match, x: Value, parameters: tuple[NewInput, NewInput]) -> New:
    """InstanceNormalization of the groups of x, computed in float32, with the shape and type of x."""
    groups, shape = m.root.attr("num_groups", 0), x.shape
    assert shape is not None
    assert x.dtype is not None
    y: NewInput = x if x.dtype is DType.FLOAT else New("Cast", [x], {"to": int(DType.FLOAT)})
    apart = groups != shape[1]
    if apart:
        y = New("Reshape", [y, np.array((0, groups, -1), np.int64)], {})
    result = New("InstanceNormalization", [y, *parameters], {"epsilon": m.root.attr("epsilon", 1e-5)}, like=m.root)
    if apart:
        result = New("Reshape", [result, _shape(x)], {}, types=(TensorType(DType.FLOAT, shape),))
    return result if x.dtype is DType.FLOAT else New("Cast", [result], {"to": int(x.dtype)})


def _shape(x: Value) -> NewInput:
    """The shape input of a Reshape whose output has the shape of x; its input has the same batch."""
    assert x.shape is not None
    dims = with_open(x.shape)
    if -1 in dims[1:]:
        dims[0] = 0
    return np.array(dims, np.int64) if dims.count(-1) < 2 else New("Shape", [x], {})
