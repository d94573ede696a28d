"""Rules that fold constant arithmetic around Conv and ConvTranspose into their weights and biases.

Results are computed in float64 and rounded once. A fold with a result that is not finite is refused, and so is one with a constant
that varies along other axes than the channels. Weights are copied, never changed, so that other nodes may share them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import own_producer, producer_of
from ortconv.ir.schema import attribute
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.tensor import Array, Tensor
from ortconv.optimizer.conditions import (
    LARGE,
    array_of,
    numbers,
    output_channels,
    per_channel,
    round_together,
    rounded,
    same_dim,
    wide,
)
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, with_factor


class Affine(NamedTuple):
    """y * scale + shift, each with one element per channel, in float64."""

    scale: Array
    shift: Array


def batch_norm(node: Node) -> Affine | None:
    """The scale and shift of a BatchNormalization with constant parameters in inference mode; None for any other node."""
    if node.attr("training_mode", 0) or node.attr("spatial", 1) != 1 or any(node.outputs[1:]):
        return None
    given = [wide(v) for v in node.inputs[1:] if v is not None and v.constant is not None]
    if len(given) != 4 or {part.shape for part in given} != {(given[0].size,)}:
        return None
    gamma, beta, mean, variance = given
    with np.errstate(all="ignore"):
        k = gamma / np.sqrt(variance + attribute(node, "epsilon"))
        return Affine(k, beta - mean * k)


def arithmetic(node: Node, constant: Value, rank: int, channels: int) -> Affine | None:
    """The scale and shift of Add, Sub, Mul or Div with a constant, for a tensor of this rank; None for any other node."""
    k = per_channel(constant, rank, channels)
    if k is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op == "Add":
        return Affine(one, k)
    if node.op == "Sub":
        return Affine(-one, k) if node.input(0) is constant else Affine(one, -k)
    with np.errstate(all="ignore"):
        return Affine(k if node.op == "Mul" else 1 / k, zero)


def scaled_weights(weights: Value, scale: Array, node: Node) -> Array:
    """The weights of a Conv or ConvTranspose with each output channel multiplied by `scale`, in float64."""
    w = wide(weights)
    if node.op == "Conv":
        return w * scale.reshape(-1, *[1] * (w.ndim - 1))
    return by_second_axis(w, scale, node.attr("group", 1))


def by_second_axis(weights: Array, scale: Array, group: int) -> Array:
    """The weights with each input channel of a Conv, or each output channel of a ConvTranspose, multiplied by `scale`."""
    grouped = weights.reshape(group, -1, *weights.shape[1:])
    result: Array = (grouped * scale.reshape(group, 1, -1, *[1] * (weights.ndim - 2))).reshape(weights.shape)
    return result


def folded(m: Match, affine: Affine) -> New | None:
    """The matched Conv(x, w, b) with `affine` applied to its output."""
    scale, shift = affine
    with np.errstate(all="ignore"):
        w = m.w if np.all(scale == 1) else scaled_weights(m.w, scale, m.node("conv"))
        return with_weights(m, w, shift if m.b is None else wide(m.b) * scale + shift)


def with_weights(m: Match, weights: Value | Array, bias: Array) -> New | None:
    """The matched Conv with other weights and another bias, rounded to its type, but no new bias of zeros; None if that fails."""
    conv, dtype = m.node("conv"), m.tensor("w").dtype
    w = weights if isinstance(weights, Value) else rounded(weights, dtype)
    b = rounded(bias, dtype)
    if w is None or b is None:
        return None
    return New(conv.op, [m.x, w, *([b] if m.b is not None or b.any() else [])], like=conv, types=(m.root.out.type,))


def is_convolution(m: Match) -> bool:
    conv = m.node("conv")
    w: Tensor = m.tensor("w")
    if w.rank < 3 or not w.size:
        return False
    channels, group = output_channels(w, conv), conv.attr("group", 1)
    if w.shape[0] % group or channels % group:
        return False
    return m.b is None or m.tensor("b").shape == (channels,)


PARAMETERS = (C("gamma"), C("beta"), C("mean"), C("var"))
BATCH_NORM = P("BatchNormalization", "x", *PARAMETERS, name="bn")
_CONV = P(("Conv", "ConvTranspose"), "x", C("w"), C("b", optional=True), name="conv")


@rule("ConvAddFusion", P("Add", _CONV, C("k"), commutative=True), P("Sub", _CONV, C("k")), P("Sub", C("k"), _CONV))
def fold_conv_add(m: Match) -> Replacement:
    """Conv(x, w, b) + k  ->  Conv(x, w, b + k), also - k; k - Conv(x, w, b)  ->  Conv(x, -w, k - b)

    Counterpart: ConvAddFusion
    Differs: ConvTranspose, subtraction, the constant on the left, and every shape that varies along the channels only;
        rounded once.
    """
    affine = _affine(m)
    with np.errstate(all="ignore"):
        if affine is None or (m.b is not None and round_together(wide(m.b) * affine.scale, affine.shift)):
            return None
    return folded(m, affine)


@rule("ConvMulFusion", *with_factor(_CONV, C("k")))
def fold_conv_mul(m: Match) -> Replacement:
    """Conv(x, w, b) * k  ->  Conv(x, w * k, b * k); also / k

    Counterpart: ConvMulFusion
    Differs: ConvTranspose, division, the constant on the left, and every shape that varies along the channels only;
        rounded once.
    """
    affine = _affine(m)
    return None if affine is None else folded(m, affine)


def _affine(m: Match) -> Affine | None:
    w: Tensor = m.tensor("w")
    return arithmetic(m.root, m.k, w.rank, output_channels(w, m.node("conv"))) if is_convolution(m) else None


_ACTIVATED = P(("Relu", "LeakyRelu"), _CONV, name="activation")


@rule("ConvMulFusion", *with_factor(_ACTIVATED, C("k")))
def fold_activated_mul(m: Match) -> Replacement:
    """Relu(Conv(x, w, b)) * k  ->  Relu(Conv(x, w * k, b * k)), for positive constants; also / k"""
    activation = m.node("activation")
    affine = _affine(m)
    conv = folded(m, affine) if affine is not None and np.all(affine.scale > 0) else None
    return conv if conv is None else New(activation.op, [conv], like=activation)


@rule("ConvBNFusion", P("BatchNormalization", _CONV, *PARAMETERS))
def fold_conv_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(Conv(x, w, b))  ->  Conv(x, w', b')

    Counterpart: ConvBNFusion
    Differs: computed in float64 and rounded once; refused if a weight would overflow.
    """
    affine = batch_norm(m.root)
    if affine is None or not is_convolution(m) or len(affine.scale) != output_channels(m.tensor("w"), m.node("conv")):
        return None
    return folded(m, affine)


def branches(concat: Node) -> list[Value]:
    """The operands of a Concat along the channels, if each is the result of a convolution that nothing else reads; else []."""
    operands, rank = concat.present_inputs, concat.out.rank
    if rank is None or concat.attr("axis", 1) not in (1, 1 - rank):
        return []
    convolutions = [own_producer(v, "Conv", "ConvTranspose") for v in operands]
    alike = all(n is not None and n.graph is concat.graph and n.ep == concat.ep for n in convolutions)
    return operands if alike else []


def _has_constant_weights(conv: Node) -> bool:
    return all(v.constant is not None for v in conv.present_inputs[1:])


@rule("ConvBNFusion", P("BatchNormalization", P("Concat", ..., name="concat"), *PARAMETERS))
def fold_branches_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(Concat(Conv, Conv))  ->  Concat(BatchNormalization(Conv), BatchNormalization(Conv)), which are folded

    Differs: ONNX Runtime keeps one behind joined convolutions.
    """
    concat, affine = m.node("concat"), batch_norm(m.root)
    operands = branches(concat)
    sizes = numbers(*(v.dim(1) for v in operands))
    if affine is None or not sizes or sum(sizes) != len(affine.scale):
        return None
    if not all(operand.producer and _has_constant_weights(operand.producer) for operand in operands):
        return None
    parts = [np.split(array_of(v), np.cumsum(sizes)[:-1]) for v in m.root.present_inputs[1:]]
    pairs = zip(operands, *parts, strict=True)
    normalized = [New("BatchNormalization", [v, *part], like=m.root, types=[v.type]) for v, *part in pairs]
    return New("Concat", normalized, like=concat)


@rule("BNConvFusion", P("Conv", BATCH_NORM, C("w"), C("b", optional=True), name="conv"))
def fold_batch_norm_conv(m: Match) -> Replacement:
    """Conv(BatchNormalization(x), w, b)  ->  Conv(x, w', b'), if there is no padding or no shift"""
    conv = m.node("conv")
    affine = batch_norm(m.node("bn"))
    if affine is None or not is_convolution(m):
        return None
    w, group = wide(m.w), conv.attr("group", 1)
    if w.shape[1] * group != len(affine.scale):
        return None
    pads = spatial_pads(conv, w.ndim - 2)
    if np.any(affine.shift) and (pads is None or any(pads)):
        return None
    with np.errstate(all="ignore"):
        shift = by_second_axis(w, affine.shift, group).reshape(w.shape[0], -1).sum(axis=1)
        return with_weights(m, by_second_axis(w, affine.scale, group), shift if m.b is None else wide(m.b) + shift)


_GATES = ("Clip", "Erf", "Tanh")
_WITH_CONSTANTS = ("Add", "Div", "Mul", *_GATES)
_LONGEST_GATE = 4


def _is_gated(value: Value) -> bool:
    """True for x * gate(x) that a constant factor completes to a Gelu or HardSwish: x * (1 + Erf(x / k)), x * Clip(x + 3, 0, 6)."""
    product = producer_of(value, "Mul")
    return product is not None and any(_is_gate(a, b) for a, b in (product.inputs, product.inputs[::-1]))


def _is_gate(gate: Value | None, x: Value | None) -> bool:
    """True for a value computed from x by a gate, with constants before and after it."""
    passed = False
    for _ in range(_LONGEST_GATE):
        node = producer_of(gate, *_WITH_CONSTANTS)
        if node is None:
            return False
        passed = passed or node.op in _GATES
        if passed and x in node.inputs:
            return True
        gate = next((v for v in node.present_inputs if v.constant is None), None)
    return False


_SCALED = with_factor("x", C("k"), name="scaling")


@rule("MulConvFusion", *(P("Conv", x, C("w"), C("b", optional=True)) for x in _SCALED))
def fold_mul_conv(m: Match) -> Replacement:
    """Conv(x * k, w, b)  ->  Conv(x, w', b), unless k belongs to an activation; also x / k"""
    if _is_gated(m.x):
        return None
    conv, dtype = m.root, m.tensor("w").dtype
    w, group = wide(m.w), conv.attr("group", 1)
    if w.ndim < 3 or not w.size or m.x.rank != w.ndim or w.shape[0] % group:
        return None
    channels = w.shape[1] * group
    k = per_channel(m.k, w.ndim, channels)
    if k is None or (m.tensor("k").size > 1 and not same_dim(m.x.dim(1), channels)):
        return None
    with np.errstate(all="ignore"):
        scaled = rounded(by_second_axis(w, 1 / k if m.node("scaling").op == "Div" else k, group), dtype)
    return None if scaled is None else New("Conv", [m.x, scaled, *conv.inputs[2:]], like=conv)


@rule("GatherConvFusion", P("Conv", P("Gather", "x", C("order")), C("w"), C("b", optional=True), name="conv"))
def fold_gather_conv(m: Match) -> Replacement:
    """Conv(Gather<axis = 1>(x, a permutation of the channels), w, b)  ->  Conv(x, w', b)

    Counterpart: none: ONNX Runtime keeps the Gather, as before the first Conv of YOLOX
    """
    order, gather, channels = m.tensor("order"), m.root.present_inputs[0].producer, numbers(m.x.dim(1))
    if gather is None or gather.attr("axis", 0) not in (1, 1 - (m.x.rank or 0)) or not channels or order.rank != 1:
        return None
    places = order.numpy() % channels[0]
    grouped = m.root.attr("group", 1) != 1 or m.tensor("w").shape[1:2] != channels
    if grouped or not np.array_equal(np.sort(places), np.arange(channels[0])):
        return None
    return New("Conv", [m.x, array_of(m.w)[:, np.argsort(places)], *m.root.inputs[2:]], like=m.root)


@rule(
    "BNArithmeticFusion",
    P(("Add", "Mul"), BATCH_NORM, C("k"), commutative=True),
    P(("Sub", "Div"), BATCH_NORM, C("k")),
    P("Sub", C("k"), BATCH_NORM),
)
def fold_batch_norm_arithmetic(m: Match) -> Replacement:
    """BatchNormalization(x) + k  ->  BatchNormalization(x) with another scale and bias; also -, *, /

    Not for a large k: the kernel adds the mean to it first, which would round the mean.
    """
    bn, gamma = m.node("bn"), m.tensor("gamma")
    if batch_norm(bn) is None or m.x.rank is None or m.x.rank < 2:
        return None
    affine = arithmetic(m.root, m.k, m.x.rank, gamma.size)
    if affine is None or np.any(np.abs(affine.shift) > LARGE):
        return None
    with np.errstate(all="ignore"):
        scale = rounded(wide(m.gamma) * affine.scale, gamma.dtype)
        shift = rounded(wide(m.beta) * affine.scale + affine.shift, m.tensor("beta").dtype)
    if scale is None or shift is None:
        return None
    return New("BatchNormalization", [m.x, scale, shift, m.mean, m.var], like=bn)


BATCH_NORMS = (*fold_conv_batch_norm, *fold_branches_batch_norm, *fold_batch_norm_conv)
