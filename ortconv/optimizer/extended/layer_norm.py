"""Fuses LayerNormalization for operator sets that lack it, and RMS normalization, into ONNX Runtime's operators."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Ints
from ortconv.ir.operands import axes_of, producer_of, scalar
from ortconv.ir.schema import attribute
from ortconv.ir.types import Dim, DType
from ortconv.optimizer.basic import layer_norm as basic
from ortconv.optimizer.conditions import channels_of, equal_shapes, exactly, keeps_rank, per_channel, same_dim
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.extended.fill import is_filled
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import channels_to_first, channels_to_last, permuted_type, transpose_perm


@rule("LayerNormFusion", *(r.pattern for r in basic.fuse_layer_norm))
def fuse_layer_norm(m: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon) * scale  ->  LayerNormalization(x, scale), for every opset

    Counterpart: LayerNormFusionL2
    Differs: as for LayerNormFusion of the basic level; float32 only.
    """
    return None if m.x.dtype is not DType.FLOAT else basic.normalized(m)


@rule("ChannelNormFusion", *(r.pattern for r in basic.fuse_layer_norm))
def fuse_channel_norm(m: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon) * scale over channels  ->  LayerNormalization between Transposes"""
    x = m.x
    rank, channels = x.rank or 0, channels_of(x)
    if x.dtype is not DType.FLOAT or not channels or not basic.is_group((channels,)):
        return None
    given = m.values("scale", "bias")
    inputs = [v.astype(np.float32) for value in given if (v := per_channel(value, rank, channels)) is not None]
    epsilon = basic.epsilon_of(m, DType.FLOAT)
    if epsilon is None or not _averages_channels(m) or len(inputs) < len(given):
        return None
    last = channels_to_last(rank)
    moved = (permuted_type(x.type, last),)
    t = New("Transpose", [x], {"perm": Ints(last)}, types=moved)
    norm = New("LayerNormalization", [t, *inputs], {"axis": -1, "epsilon": epsilon}, types=moved)
    return New("Transpose", [norm], {"perm": Ints(channels_to_first(rank))})


def _averages_channels(m: Match) -> bool:
    """True if such a pattern normalizes over axis 1."""
    axes = ((1,), (1 - (m.x.rank or 0),))
    along = all(axes_of(node) in axes and node.attr("keepdims", 1) for node in basic.reductions(m))
    return along and basic.has_plain_operands(m)


_NORM = P("LayerNormalization", "x", "scale", name="norm")


@rule("ChannelNormFusion", P("Add", P("Transpose", _NORM, name="back"), C("bias"), commutative=True))
def fuse_channel_norm_bias(m: Match) -> Replacement:
    """Transpose(LayerNormalization(x, scale)) + bias per channel  ->  Transpose(LayerNormalization(x, scale, bias))"""
    norm, back = m.node("norm"), m.node("back")
    rank = m.x.rank or 0
    channels = m.x.dim(-1)
    if rank < 3 or not isinstance(channels, int):
        return None
    if any(v is not None for v in norm.outputs[1:]) or norm.attr("axis", -1) != -1:
        return None
    bias = per_channel(m.bias, rank, channels)
    if bias is None or m.bias.dtype is not DType.FLOAT or transpose_perm(back) != channels_to_first(rank):
        return None
    biased = New("LayerNormalization", [m.x, m.scale, bias.astype(np.float32)], like=norm, types=(norm.out.type,))
    return New("Transpose", [biased], like=back)


def _roots() -> list[P]:
    """Patterns for Sqrt(ReduceMean(x ^ 2) + epsilon)."""
    squares = P("Pow", "x", C("two", one=True, where=exactly(2.0))), P("Mul", "x", "x")
    means = (P(basic.MEANS, square, ..., name="mean") for square in squares)
    return [P("Sqrt", P("Add", mean, C("epsilon", one=True), commutative=True)) for mean in means]


def _inverse_roots() -> list[P]:
    one = C("one", one=True, where=exactly(1.0))
    return [inverse for root in _roots() for inverse in (P("Reciprocal", root), P("Div", one, root))]


def _unscaled_root_mean_square() -> list[P]:
    divided = [P("Div", "x", root) for root in _roots()]
    return divided + [P("Mul", "x", inverse, commutative=True) for inverse in _inverse_roots()]


_SCALED = [P("Mul", norm, "scale", commutative=True) for norm in _unscaled_root_mean_square()]
_FACTORS = [P("Mul", inverse, "scale", commutative=True) for inverse in _inverse_roots()]


@rule("SimplifiedLayerNormFusion", *_SCALED, *(P("Mul", "x", factor, commutative=True) for factor in _FACTORS))
def fuse_root_mean_square(m: Match) -> Replacement:
    """x / Sqrt(ReduceMean(x ^ 2) + epsilon) * scale  ->  SimplifiedLayerNormalization(x, scale)

    Counterpart: SimplifiedLayerNormFusion
    Differs: the square as a product, Reciprocal instead of the division, and a scale that is multiplied by it first.
    """
    if m.scale.dtype is not DType.FLOAT or m.scale.rank != 1 or not same_dim(m.scale.dim(0), m.x.dim(-1)):
        return None
    return _by_root_mean_square(m, m.scale)


def _by_root_mean_square(m: Match, scale: NewInput) -> Replacement:
    x = m.x
    rank = x.rank
    if x.dtype is not DType.FLOAT or not rank or not basic.is_group((x.dim(-1),)) or scale is None:
        return None
    epsilon = basic.epsilon_of(m, DType.FLOAT)
    if epsilon is None or not keeps_rank(x, *m.values("two", "one", "epsilon")):
        return None
    if basic.trailing_axis([m.node("mean")], rank) != rank - 1:
        return None
    stash = int(DType.FLOAT)
    return New("SimplifiedLayerNormalization", [x, scale], {"axis": -1, "epsilon": epsilon, "stash_type": stash})


@rule("UnscaledNormFusion", *basic.unscaled_patterns())
def fuse_unscaled(m: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon)  ->  LayerNormalization(x, 1)

    Counterpart: none: ONNX Runtime keeps products with ones, which are omitted here
    """
    return None if m.x.dtype is not DType.FLOAT else basic.normalized(m)


@rule("UnscaledNormFusion", *_unscaled_root_mean_square())
def fuse_unscaled_root_mean_square(m: Match) -> Replacement:
    "x / Sqrt(ReduceMean(x ^ 2) + epsilon)  ->  SimplifiedLayerNormalization(x, 1)"
    return _by_root_mean_square(m, basic.ones((m.x.dim(-1),), DType.FLOAT) if m.x.rank else None)


def _row_mean(name: str) -> P:
    return P("ReduceMean", "rows", ..., name=name, shared=True)


_ROW_SQUARES = P("ReduceSumSquare", P("Sub", "rows", _row_mean("subtracted")), ..., name="squares")
_STATISTICS = (P("Squeeze", _row_mean("mean"), ...), P("Div", _ROW_SQUARES, C("count", one=True)))
_BY_ROWS = P("BatchNormalization", "rows", "ones", "zeros", *_STATISTICS, name="norm")


@rule("UnscaledNormFusion", P("Reshape", _BY_ROWS, ...))
def fuse_batch_norm_of_rows(m: Match) -> Replacement:
    """Reshape(BatchNormalization(Reshape(x, (1, rows, width, 1)), 1, 0, mean, variance))  ->  LayerNormalization(x, 1)

    Keras 2 normalizes so: each row is a channel.
    """
    flat, norm = producer_of(m.rows, "Reshape"), m.node("norm")
    x = None if flat is None else flat.inputs[0]
    if x is None or x.dtype is not DType.FLOAT or not equal_shapes(x.shape, m.root.out.shape):
        return None
    width = x.dim(-1)
    if not _normalizes_rows(m, width) or not basic.is_group((width,)) or norm.attr("training_mode", 0):
        return None
    if not is_filled(m.ones, 1) or not is_filled(m.zeros, 0):
        return None
    epsilon = attribute(norm, "epsilon")
    return New("LayerNormalization", [x, basic.ones((width,), DType.FLOAT)], {"axis": -1, "epsilon": epsilon})


def _normalizes_rows(m: Match, width: Dim) -> bool:
    """True if mean and variance are those of rows of this width, each of which is a channel."""
    rows, means = m.rows.shape or (), m.optional_nodes("mean", "subtracted")
    if len(rows) != 4 or (rows[0], rows[2], rows[3]) != (1, width, 1) or scalar(m.count) != width:
        return False
    kept = all(node.attr("keepdims", 1) for node in means)
    return kept and all(set(axes_of(node) or ()) == {0, 2, 3} for node in (*means, m.node("squares")))


LAYER_NORM = fuse_layer_norm + basic.fuse_layer_norm_bias
CHANNEL_NORM = fuse_channel_norm + fuse_channel_norm_bias
UNSCALED = fuse_unscaled + fuse_unscaled_root_mean_square + fuse_batch_norm_of_rows
