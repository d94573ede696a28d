"""Operators that only move or select elements operate on the integers: their DequantizeLinear and QuantizeLinear are removed.

Also removes clamps that quantization makes redundant, and pairs that cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node
from ortconv.ir.operands import clip_bounds, ints, only_use
from ortconv.ir.resize import resizing
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, NewInput, Out, Replacement, Rule, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    DOMAINS,
    INTEGERS,
    LIMITS,
    Quantized,
    codes_of,
    dequantized,
    is_implied,
    is_quantizer,
    quantize_patterns,
    quantizer,
    same_parameters,
)


def _picks(node: Node) -> bool:
    """True for a Resize that picks elements of the tensor: kernels that interpolate truncate integers, or overflow."""
    does = resizing(node, ints)
    return does.mode == "nearest" and does.coordinates != "tf_crop_and_resize"


class Mover(NamedTuple):
    """An operator with the same result on integers as on reals: from which opset, for which types, on what condition."""

    since: int
    types: frozenset[DType]
    where: Callable[[Node], bool] | None = None

    def accepts(self, node: Node, dtype: DType | None) -> bool:
        """True if a node of this operator may run on integers of this type."""
        if node.parent.opset() < self.since or dtype not in self.types:
            return False
        return self.where is None or self.where(node)


CLIP_OF_INTEGERS = 12
"""The operator set from which Clip has kernels for 8-bit integers."""

MOVERS = {
    **dict.fromkeys(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Gather", "GatherElements", "Slice",
                     "Expand", "Tile"), Mover(9, INTEGERS)),
    **dict.fromkeys(("MaxPool", "ReduceMax", "ReduceMin"), Mover(12, BYTES)),
    "DepthToSpace": Mover(13, BYTES),
    "Resize": Mover(10, BYTES, _picks),
}  # fmt: skip


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(tuple(MOVERS), ..., name="target")))
def drop_around_mover(m: Match) -> Replacement:
    """Q(op(DQ(x), ...))  ->  op(x, ...)

    Counterpart: QDQSelectorActionTransformer
    Differs: also ReduceMin; Resize only if it selects elements, pooling and Softmax only if the integer kernel has the
        same result; a float bias is rounded to the scale of the sum if that is fine enough; MatMulNBits for 4-bit
        weights only, computing in float32 (see MatMulNBitsAccuracyLevel4).
    """
    target = m.node("target")
    x, y, mover = dequantized(target.input(0), m.root), quantizer(m.root), MOVERS[target.op]
    if x is None or y is None or not mover.accepts(target, x.dtype) or not same_parameters(x, y):
        return None
    return New(target.op, [x.value, *target.inputs[1:]], like=target)


@rule("QDQSelectorActionTransformer", P("Split", ..., where=lambda split: split.input(0) is not None))
def drop_before_split(m: Match) -> Replacement:
    """Split(DQ(x)), with every output quantized like x  ->  DQ(Split(x)), which cancels"""
    x, count = dequantized(m.root.input(0), m.root), len(m.root.outputs)
    if x is None or x.dtype not in INTEGERS or not all(_is_requantized(m.root, i, x) for i in range(count)):
        return None
    split = New("Split", [x.value, *m.root.inputs[1:]], like=m.root, outputs=count)
    return tuple(New("DequantizeLinear", [Out(split, i), *x.parameters]) for i in range(count))


def _is_requantized(split: Node, slot: int, x: Quantized) -> bool:
    """True if the only reader of an output quantizes it with the parameters of x."""
    value = split.output(slot)
    reader, at = (None if value is None else only_use(value)) or (None, 0)
    if reader is None or not is_quantizer(reader, "QuantizeLinear") or at != 0:
        return False
    y = quantizer(reader)
    return y is not None and reader.ep == split.ep and same_parameters(x, y)


@rule("QDQSelectorActionTransformer", P("ArgMax", ...))
def drop_before_arg_max(m: Match) -> Replacement:
    "ArgMax(DQ(x))  ->  ArgMax(x)"
    x = dequantized(m.root.input(0), m.root)
    if x is None or x.dtype not in BYTES or not x.is_per_tensor or m.graph.opset() < 13:
        return None
    return None if x.scale.constant is None else New("ArgMax", [x.value], like=m.root)


_CLIP = P("Clip", "x", C("low", optional=True), C("high", optional=True), name="clamp")


@rule("ClipQuantRewrite", *quantize_patterns(_CLIP))
def drop_clip(m: Match) -> Replacement:
    """Q(Clip(x))  ->  Q(x), if Q saturates at the bounds of Clip or before

    Counterpart: ClipQuantRewrite
    """
    if not is_implied(m.root, m.node("clamp")):
        return None
    return New("QuantizeLinear", [m.x, *m.root.inputs[1:]], domain=m.root.domain, like=m.root)


@rule("ReluQuantRewrite", *quantize_patterns(P("Relu", "x", name="clamp")))
def drop_relu(m: Match) -> Replacement:
    """Q(Relu(x))  ->  Q(x), if Q returns no integer below that of 0

    Counterpart: ReluQuantRewrite
    Differs: the zero point may be absent, and 16-bit integers are supported.
    """
    return drop_clip[0].build(m)


_DEQUANTIZED = [P("DequantizeLinear", "x", ..., domain=domain, shared=True) for domain in DOMAINS]


@rule("QDQFinalCleanupTransformer", *quantize_patterns(*_DEQUANTIZED))
def cancel_pair(m: Match) -> Replacement:
    """Q(DQ(x)) with equal parameters  ->  x

    Counterpart: QDQFinalCleanupTransformer
    """
    x, y = dequantized(m.root.input(0), m.root), quantizer(m.root)
    if x is None or y is None or x.dtype not in INTEGERS or not same_parameters(x, y):
        return None
    return m.x


def behind_clamp(r: Rule) -> Rule:
    """The variant of a rule for Q(op(...)) that matches Q(Relu(op(...))) and Q(Clip(op(...)))."""
    result, *parameters = r.pattern.inputs
    clamp = P(("Relu", "Clip"), result, ..., name="clamp")
    return r._replace(pattern=P(r.pattern.ops, clamp, *parameters, domain=r.pattern.domain))


def with_integer_clip(r: Rule) -> Rule:
    """The variant of a rule for results with a Relu or Clip before the QuantizeLinear."""

    def limit(m: Match) -> Replacement:
        "Q(Clip(op(DQ(x), ...)))  ->  Clip(op on integers), also Relu"
        bounds = _integer_bounds(m)
        made = None if bounds is None else r.build(m)
        return New("Clip", [made, *bounds], {}, like=m.node("clamp")) if bounds and isinstance(made, New) else None

    return behind_clamp(r)._replace(build=limit)


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(("Relu", "Clip"), ..., name="clamp")))
def clip_integers(m: Match) -> Replacement:
    "Q(Clip(DQ(x)))  ->  Clip(x), if both have the same parameters, also Relu"
    x, y = dequantized(m.node("clamp").input(0), m.root), quantizer(m.root)
    if x is None or y is None or not same_parameters(x, y) or not (bounds := _integer_bounds(m)):
        return None
    return New("Clip", [x.value, *bounds], {}, like=m.node("clamp"))


def _integer_bounds(m: Match) -> list[NewInput] | None:
    """The bounds of a Relu or Clip as integers of an 8-bit result; None if they are unknown, or without a Clip of integers."""
    y = quantizer(m.root)
    if y is None or y.dtype not in BYTES or not y.is_per_tensor or m.graph.opset() < CLIP_OF_INTEGERS:
        return None
    low, high = (codes_of(y, bound) for bound in clip_bounds(m.node("clamp")))
    if low is None or high is None:
        return None
    return [np.array(np.clip(codes[0], *LIMITS[y.dtype]), y.dtype.numpy) for codes in (low, high)]


CLAMP_RULES = drop_clip + drop_relu
RULES = drop_around_mover + drop_before_split + drop_before_arg_max
