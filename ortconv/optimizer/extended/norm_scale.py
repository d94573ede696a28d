"""Scales and biases behind a normalization that has none of its own, where it may be rounded to float16 in between."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.operands import constant_of
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import equal_shapes, is_filled_with, without_absent
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P


def _behind(*, rounded: bool) -> Iterator[P]:
    """A scale or bias of a normalization, without or with Casts to float16 and back."""
    for op, *norms in (("Mul", "LayerNormalization", "SimplifiedLayerNormalization"), ("Add", "LayerNormalization")):
        norm = P(tuple(norms), "x", C("scale"), C("bias", optional=True), name="norm")
        inner = P("Cast", P("Cast", norm, name="narrow"), name="wide") if rounded else norm
        yield P(op, inner, "k", commutative=True)


@rule("NormScaleFusion", *_behind(rounded=False))
def fuse_affine(m: Match) -> Replacement:
    """LayerNormalization(x, 1) * scale  ->  LayerNormalization(x, scale), also SimplifiedLayerNormalization;
    LayerNormalization(x, scale, 0) + bias  ->  LayerNormalization(x, scale, bias)
    """
    operand = _operand(m)
    if operand is None or m.root.op == "Add":
        return None if operand is None else _normalized(m, m.scale, operand)
    return _normalized(m, operand) if is_filled_with(m.scale, 1) else None


@rule("RoundedNormFusion", *_behind(rounded=True))
def fuse_rounded_affine(m: Match) -> Replacement:
    """Cast(Cast(LayerNormalization(x, 1))) * scale  ->  LayerNormalization(x, scale), for Casts to float16 and back; also a bias

    Counterpart: LayerNormFusionL2, SimplifiedLayerNormFusion (on by default there, as part of extended)
    Differs: in float32 between Casts, which releases without kernels for float16 have, too.
    Opt-in: leaves out a rounding, so results are nearer to those of float32, but not those of the source.
    """
    return fuse_affine[0].build(m)


def _operand(m: Match) -> Array | None:
    """The constant behind a normalization in the form of its scale or bias; None if it does not fit, or if there is a bias."""
    norm = m.node("norm")
    const, own = _constant(m.k), m.tensor("scale").shape
    if const is None or not _is_float(m) or without_absent(norm.outputs) != [norm.out]:
        return None
    if m.bias is not None and not is_filled_with(m.bias, 0):
        return None
    lead = const.ndim - len(own)
    if lead < 0 or const.ndim > (norm.out.rank or 0) or not equal_shapes(const.shape, (1,) * lead + own):
        return None
    return const.reshape(own).astype(np.float32)


def _is_float(m: Match) -> bool:
    """True for float32; a Cast between must be to float16."""
    narrow = m.optional_node("narrow")
    if narrow is not None and narrow.out.dtype is not DType.FLOAT16:
        return False
    return m.node("norm").out.dtype is m.root.out.dtype is DType.FLOAT


def _constant(value: Value) -> Array | None:
    """The elements of a constant, also of one that is widened from float16."""
    node = value.producer
    inner = node.inputs[0] if node is not None and node.is_op("Cast") else value
    const = constant_of(inner)
    return const.numpy() if const is not None and const.dtype in (DType.FLOAT, DType.FLOAT16) else None


def _normalized(m: Match, *operands: Value | Array) -> New:
    norm = m.node("norm")
    return New(norm.op, [m.x, *operands], like=norm)
