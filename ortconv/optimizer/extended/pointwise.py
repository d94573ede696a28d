"""Products with weights between channels last and channels first become Convs of one point, with fewer or smaller Transposes."""

from __future__ import annotations

from math import prod

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.transpose import merge_transposes
from ortconv.optimizer.pattern import C, Match, P, PatternInput
from ortconv.optimizer.permutation import channels_to_first, channels_to_last, transpose_perm

FEWEST_POINTS = 64
"""With fewer points, the product is as fast as the Conv."""

NARROW = 16
"""With fewer channels, MatMul and the Add of a bias are slow."""

WIDER = 2
"""The Transpose moves to the side with fewer channels if the other side has at least this many times as many."""

SOFTMAX_BY_AXIS = 13
"""The opset from which on Softmax is over one axis."""

_ACTIVATIONS = {
    "": ("Relu", "Gelu", "LeakyRelu", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Erf", "Softmax"),
    MICROSOFT: ("Gelu", "QuickGelu"),
}
"""Activations between a Transpose and a product, in known models."""

_TRANSPOSED = P("Transpose", "x", name="transpose")


def _products(x: PatternInput) -> tuple[P, P]:
    """The pattern of a product of x with constant weights, without and with a bias."""
    product = P("MatMul", x, C("w"), name="product")
    return product, P("Add", product, C("bias"), commutative=True)


@rule("PointwiseConvFusion", *(P("Transpose", product) for product in _products("x")))
def transpose_before_product(m: Match) -> Replacement:
    """Transpose(MatMul(x, w) + b) to channels first  ->  Conv(Transpose(x), w', b), if x has fewer channels"""
    x, shape = m.x, m.x.shape or ()
    sizes = _sizes(m, len(shape), shape[1:-1])
    if sizes is None or transpose_perm(m.root) != channels_to_first(len(shape)):
        return None
    inner, outer = sizes
    if outer < WIDER * inner and max(sizes) >= NARROW:
        return None
    transposed = New("Transpose", [x], like=m.root, types=[TensorType(DType.FLOAT, (shape[0], inner, *shape[1:-1]))])
    return _conv(m, transposed)


@rule(
    "PointwiseConvFusion",
    *_products(_TRANSPOSED),
    *(p for domain, ops in _ACTIVATIONS.items() for p in _products(P(ops, _TRANSPOSED, domain=domain, name="act"))),
)
def transpose_after_product(m: Match) -> Replacement:
    """MatMul(Transpose(x), w) + b, from channels first  ->  Transpose(Conv(x, w', b)), if the result has fewer channels
    or is transposed back; also with an activation before the product
    """
    transpose, x, shape = m.node("transpose"), m.x, m.x.shape or ()
    rank = len(shape)
    sizes = _sizes(m, rank, shape[2:])
    if sizes is None or transpose_perm(transpose) != channels_to_last(rank):
        return None
    inner, outer = sizes
    transposed_back = [transpose_perm(reader) for reader in m.root.out.consumers] == [channels_to_first(rank)]
    if inner < WIDER * outer and max(sizes) >= NARROW and not transposed_back:
        return None
    act = m.optional_node("act")
    source = x if act is None else _moved(act, x)
    if source is None:
        return None
    conv = _conv(m, source, TensorType(DType.FLOAT, (shape[0], outer, *shape[2:])))
    return New("Transpose", [conv], like=transpose)


def _sizes(m: Match, rank: int, points: Shape) -> tuple[int, int] | None:
    """The numbers of channels before and after the product; None if it is no product for each of many points."""
    weights, bias = m.tensor("w"), m.optional("bias")
    if rank not in (3, 4) or weights.rank != 2 or m.x.dtype is not DType.FLOAT or not _are_many(m.x, points):
        return None
    inner, outer = weights.shape
    if 0 in weights.shape or (_is_added_later(m.node("product"), outer) if bias is None else bias.shape != (outer,)):
        return None
    return inner, outer


def _is_added_later(product: Node, width: int) -> bool:
    """True if a bias is added to the product: then the rule applies to both."""
    readers = [r for r in product.out.consumers if r.is_op("Add")]
    return any(v is not None and v.constant is not None and v.shape == (width,) for r in readers for v in r.inputs)


def _are_many(x: Value, points: tuple[Dim, ...]) -> bool:
    """True if the points of x are enough. An unknown number must not be 0: onnxruntime refuses a Conv of no points."""
    if any(isinstance(d, str) for d in points):
        return 0 not in points and _is_behind_conv(x)
    return prod(d or 0 for d in points if not isinstance(d, str)) >= FEWEST_POINTS


def _is_behind_conv(x: Value) -> bool:
    """True if the chain of first operands that leads to x has a Conv."""
    while x.producer is not None:
        if x.producer.op.endswith("Conv"):
            return True
        operands = [v for v in x.producer.present_inputs if v.constant is None]
        if not operands:
            return False
        x = operands[0]
    return False


def _conv(m: Match, x: Value | New, *types: ValueType) -> New:
    weights = m.tensor("w").numpy().T
    ones = (1,) * ((m.x.rank or 0) - 2)
    filters = np.ascontiguousarray(weights).reshape(*weights.shape, *ones)
    inputs = [x, filters, *m.values("bias")]
    return New("Conv", inputs, {"kernel_shape": Ints(ones)}, types=types, like=m.node("product"))


def _moved(act: Node, x: Value) -> New | None:
    """The activation of x before it is transposed to channels last; None for a Softmax over the channels."""
    attrs = dict(act.attrs)
    if act.op == "Softmax":
        rank = x.rank or 0
        axis = act.attr("axis", -1) % rank
        if axis in (0, rank - 1) or act.opset < SOFTMAX_BY_AXIS:
            return None
        attrs["axis"] = axis + 1
    return New(act.op, [x], attrs, domain=act.domain, types=[x.type], like=act)


RULES = transpose_before_product + transpose_after_product + merge_transposes
