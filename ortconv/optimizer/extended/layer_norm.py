"""LayerNormalization for operator sets that lack it, and normalization by the root mean square, in ONNX Runtime's operators."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Attribute, Value
from ortconv.ir.types import DType
from ortconv.optimizer.basic import layer_norm as basic
from ortconv.optimizer.conditions import same_dim, scalar
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.pattern import C, Match, P


@rule("LayerNormFusion", *(r.pattern for r in basic.fuse_layer_norm))
def fuse_layer_norm(m: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon) * scale  ->  LayerNormalization(x, scale), whatever the opset

    Counterpart: LayerNormFusionL2
    Differs: as for LayerNormFusion of the basic level; float32 only.
    """
    return None if m.x.dtype is not DType.FLOAT else basic.normalized(m)


def _root_mean_square_patterns() -> list[P]:
    two = C("two", one=True, where=basic.exactly(2.0))
    one = C("one", one=True, where=basic.exactly(1.0))
    patterns = []
    for square in (P("Pow", "x", two), P("Mul", "x", "x")):
        mean = P("ReduceMean", square, ..., name="mean")
        root = P("Sqrt", P("Add", mean, C("epsilon", one=True), commutative=True))
        for quotient in (
            P("Div", "x", root),
            P("Mul", "x", P("Reciprocal", root), commutative=True),
            P("Mul", "x", P("Div", one, root), commutative=True),
        ):
            patterns.append(P("Mul", quotient, "scale", commutative=True))
    return patterns


@rule("SimplifiedLayerNormFusion", *_root_mean_square_patterns())
def fuse_root_mean_square(m: Match) -> Replacement:
    """x / Sqrt(ReduceMean(x ^ 2) + epsilon) * scale  ->  SimplifiedLayerNormalization(x, scale)

    Counterpart: SimplifiedLayerNormFusion
    Differs: the square as a product, and Reciprocal in place of the division.
    """
    x: Value = m.x
    rank = x.rank
    if x.dtype is not DType.FLOAT or m.scale.dtype is not DType.FLOAT or not rank:
        return None
    constants = tuple(v for name in ("two", "one", "epsilon") if (v := m.bound.get(name)) is not None)
    if basic.trailing_axis([m.mean], rank) != rank - 1 or not basic.keeps_shape(x, constants):
        return None
    if m.scale.rank != 1 or not same_dim(m.scale.dim(0), x.dim(-1)) or x.dim(-1) == 0:
        return None
    epsilon = float(np.float32(scalar(m.epsilon)))
    if not 0 <= epsilon < math.inf:
        return None
    attrs: dict[str, Attribute] = {"axis": -1, "epsilon": epsilon, "stash_type": int(DType.FLOAT)}
    return New("SimplifiedLayerNormalization", [x, m.scale], attrs, types=[m.root.out.type])


PASSES = (
    RulePass("LayerNormFusion", fuse_layer_norm, basic.fuse_layer_norm_bias),
    RulePass("SimplifiedLayerNormFusion", fuse_root_mean_square),
)
