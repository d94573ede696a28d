"""Merges sums of convolutions of the same tensor, as in blocks with branches for training, into one convolution."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Ints, Node
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.fold_conv import BATCH_NORM, Affine, batch_norm, is_convolution, with_weights
from ortconv.optimizer.conditions import wide
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

_CONV = P("Conv", "x", C("w"), C("b", optional=True), name="conv")
_OTHER = P("Conv", "x", C("v"), C("c", optional=True), name="other")


@rule("ConvBranchFusion", P("Add", _CONV, _OTHER, commutative=True))
def merge_convolutions(m: Match) -> Replacement:
    """Conv(x, w, b) + Conv(x, v, c)  ->  Conv(x, w + v, b + c), if the window of one lies within that of the other

    An infinite x may return infinity where the sum returns NaN, as infinity - infinity or 0 * infinity.
    """
    other = m.node("other")
    w, v = m.tensor("w"), m.tensor("v")
    if not _is_convolution(m) or v.rank != w.rank or v.shape[:2] != w.shape[:2] or v.dtype is not w.dtype or not v.size:
        return None
    if (m.c is not None and m.tensor("c").shape != w.shape[:1]) or not _moves_alike(m.node("conv"), other, v.shape[2:]):
        return None
    return _merged(m, wide(m.v), spatial_pads(other, w.rank - 2), None if m.c is None else wide(m.c))


def _moves_alike(conv: Node, other: Node, kernel: tuple[int, ...]) -> bool:
    """True for the same groups, strides and dilations, except dilations of axes where this kernel of `other` has size 1."""
    axes = len(kernel)
    strides, dilations = ((_per_axis(conv, s, axes), _per_axis(other, s, axes)) for s in ("strides", "dilations"))
    if conv.attr("group", 1) != other.attr("group", 1) or strides[0] != strides[1]:
        return False
    return all(a == b or size == 1 for a, b, size in zip(*dilations, kernel, strict=True))


@rule("ConvBranchFusion", P("Add", _CONV, BATCH_NORM, commutative=True), P("Add", _CONV, "x", commutative=True))
def merge_skip(m: Match) -> Replacement:
    """Conv(x, w, b) + BatchNormalization(x)  ->  Conv(x, w', b'); also Conv(x, w, b) + x"""
    if not _is_convolution(m):
        return None
    conv, shape = m.node("conv"), m.tensor("w").shape
    channels, axes, group = shape[0], len(shape) - 2, conv.attr("group", 1)
    affine = batch_norm(m.node("bn")) if "bn" in m.bound else Affine(np.ones(channels), np.zeros(channels))
    if affine is None or len(affine.scale) != channels or shape[1] * group != channels:
        return None
    if any(s != 1 for s in _per_axis(conv, "strides", axes)):
        return None
    diagonal = np.zeros((channels, shape[1], *(1,) * axes))
    where = np.arange(channels)
    diagonal[where, where % shape[1]] = affine.scale.reshape(-1, *(1,) * axes)
    return _merged(m, diagonal, (0,) * (2 * axes), affine.shift)


def _is_convolution(m: Match) -> bool:
    """True if weights can be added to those of the matched Conv without loss. float16 would round them too much."""
    w = m.tensor("w")
    return w.dtype in (DType.FLOAT, DType.DOUBLE) and m.x.rank == w.rank and is_convolution(m)


def _per_axis(node: Node, name: str, axes: int) -> tuple[int, ...]:
    return tuple(node.attr(name, Ints((1,) * axes)))


def _merged(m: Match, taps: Array, pads: tuple[int, ...] | None, bias: Array | None) -> New | None:
    """The matched Conv plus another one with weights `taps`, these pads and a bias; None if its window is not within the first."""
    conv = m.node("conv")
    w = wide(m.w)
    axes = w.ndim - 2
    own = spatial_pads(conv, axes)
    if own is None or pads is None:
        return None
    window = [slice(None), slice(None)]
    for i, dilation in enumerate(_per_axis(conv, "dilations", axes)):
        first, offset = divmod(own[i] - pads[i], dilation)
        left = w.shape[2 + i] - taps.shape[2 + i] - first
        if offset or first < 0 or left < 0 or own[axes + i] - pads[axes + i] != left * dilation:
            return None
        window.append(slice(first, first + taps.shape[2 + i]))
    w[tuple(window)] += taps
    total = np.zeros(len(w)) if m.b is None else wide(m.b)
    return with_weights(m, w, total if bias is None else total + bias)
