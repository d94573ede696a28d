"""Fuses the nodes of a LayerNormalization or Gelu, if the operator set has that operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import axes_of, scalar
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.conditions import FLOATS, exactly, keeps_rank, same_dim
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

GELU_OPSET = 20
LAYER_NORM_OPSET = 17
TOLERANCE = 1e-5
"""Permitted relative deviation of constants such as the square root of 2, which exporters round."""


def _near(number: float) -> Callable[[Value], bool]:
    def condition(value: Value) -> bool:
        found = scalar(value)
        return found is not None and abs(found - number) <= TOLERANCE * abs(number)

    return condition


def half_of_product(factor: P) -> list[P]:
    """Patterns for 0.5 * x * factor in every order."""
    half = C("half", one=True, where=exactly(0.5))
    return [
        P("Mul", P("Mul", "x", half, commutative=True), factor, commutative=True),
        P("Mul", P("Mul", "x", factor, commutative=True), half, commutative=True),
        P("Mul", "x", P("Mul", factor, half, commutative=True), commutative=True),
    ]


def _gelu_patterns() -> list[P]:
    one = C("one", one=True, where=exactly(1.0))
    scaled = (
        P("Div", "x", C("root_constant", one=True, where=_near(math.sqrt(2)))),
        P("Mul", "x", C("root_constant", one=True, where=_near(math.sqrt(0.5))), commutative=True),
    )
    return [p for x in scaled for p in half_of_product(P("Add", P("Erf", x), one, commutative=True))]


@rule("GeluFusion", *_gelu_patterns())
def fuse_gelu(m: Match) -> Replacement:
    """0.5 * x * (1 + Erf(x / sqrt(2)))  ->  Gelu(x)

    Counterpart: GeluFusionL1
    Differs: multiplication by 1 / sqrt(2) as well as division by sqrt(2), and x * ((1 + Erf) * 0.5).
    """
    if m.graph.opset() < GELU_OPSET or m.x.dtype is not DType.FLOAT:
        return None
    return New("Gelu", [m.x]) if keeps_rank(m.x, m.half, m.one, m.root_constant) else None


MEANS = ("ReduceMean", "GlobalAveragePool")


def _differences_of_squares() -> Iterator[P]:
    """Patterns for ReduceMean(x ^ 2) - mean ^ 2."""
    mean = P("ReduceMean", "x", ..., name="mean", shared=True)
    two = C("two", one=True, where=exactly(2.0))
    for square, subtracted in ((P("Mul", "x", "x"), P("Mul", mean, mean)), (P("Pow", "x", two), P("Pow", mean, two))):
        yield P("Sub", P("ReduceMean", square, ..., name="variance"), subtracted, name="difference")


_VARIANCES = [*_differences_of_squares()]


@rule(
    "VarianceFusion",
    *(P("Max", v, C("zero", one=True, where=exactly(0.0)), commutative=True) for v in _VARIANCES),
    *(P("Relu", v) for v in _VARIANCES),
    *_VARIANCES,
)
def fuse_variance(m: Match) -> Replacement:
    """Max(ReduceMean(x ^ 2) - mean ^ 2, 0)  ->  ReduceMean((x - mean) ^ 2), as Flax normalizes; also without Max, or with Relu

    Large means lose no digits.
    """
    x, mean, variance = m.x, m.node("mean"), m.node("variance")
    is_limited = m.root is m.node("difference") and any(node.op in ("Max", "Relu") for node in m.root.out.consumers)
    if is_limited or x.dtype not in FLOATS or not keeps_rank(x, *m.values("zero", "two")):
        return None
    first, second = (_kept_axes(node, x.rank or 1) for node in (mean, variance))
    if not first or first != second:
        return None
    centered = New("Sub", [x, mean.out], types=(x.type,))
    square = New("Mul", [centered, centered], types=(x.type,))
    return New("ReduceMean", [square, *variance.inputs[1:]], like=variance)


def _kept_axes(node: Node, rank: int) -> frozenset[int] | None:
    """The axes over which a node reduces; None if it does not keep them."""
    return frozenset(a % rank for a in axes_of(node) or ()) if node.attr("keepdims", 1) else None


def _centered(mean: str) -> P:
    return P("Sub", "x", P(MEANS, "x", ..., name=mean))


def _deviations() -> list[P]:
    """Patterns for Sqrt(ReduceMean((x - mean) ^ 2) + epsilon)."""
    squares = (
        P("Pow", _centered("mean_of_square"), C("two", one=True, where=exactly(2.0))),
        P("Mul", _centered("mean_of_square"), _centered("mean_of_factor")),
    )
    variances = (P(MEANS, square, ..., name="variance") for square in squares)
    return [P("Sqrt", P("Add", variance, C("epsilon", one=True), commutative=True)) for variance in variances]


def unscaled_patterns() -> list[P]:
    """Patterns for (x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon) in every form."""
    divided = [P("Div", _centered("mean"), deviation) for deviation in _deviations()]
    return divided + [P("Mul", _centered("mean"), P("Reciprocal", d), commutative=True) for d in _deviations()]


def _factored_patterns() -> Iterator[P]:
    """Patterns for (x - mean) * factor and x * factor + (bias - mean * factor), as TensorFlow computes a normalization.

    The factor is scale / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon).
    """
    mean = P(MEANS, "x", ..., name="mean")
    shifts = (
        P("Add", P("Mul", P("Neg", mean), "factor", commutative=True), "bias", commutative=True),
        P("Sub", "bias", P("Mul", mean, "factor", commutative=True)),
    )
    for deviation in _deviations():
        for inverse in (P("Reciprocal", deviation), P("Div", C("one", one=True, where=exactly(1.0)), deviation)):
            factor = P("Mul", inverse, "scale", commutative=True, name="scaled")
            yield P("Mul", _centered("mean"), factor, commutative=True)
            for shift in shifts:
                yield P("Add", P("Mul", "x", factor, commutative=True), shift, commutative=True)


_SCALED = [P("Mul", norm, "scale", commutative=True) for norm in unscaled_patterns()]


@rule("LayerNormFusion", *_SCALED, *_factored_patterns())
def fuse_layer_norm(m: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean) ^ 2) + epsilon) * scale  ->  LayerNormalization(x, scale)

    Also x * factor + (bias - mean * factor) with factor = scale / Sqrt(...), as TensorFlow computes it.

    Counterpart: LayerNormFusionL1
    Differs: the exponent must be 2 and the mean must be subtracted, neither of which ONNX Runtime checks; epsilon on
        either side; the square as a product; Reciprocal instead of the division; means by GlobalAveragePool; several last
        axes; no Cast in between.
    """
    return None if m.graph.opset() < LAYER_NORM_OPSET else normalized(m)


def normalized(m: Match) -> Replacement:
    """The LayerNormalization for a match of such a pattern, with or without a scale; None if the match computes something else."""
    x = m.x
    shape = x.shape
    if shape is None or x.dtype not in (DType.FLOAT, DType.DOUBLE):
        return None
    axis = trailing_axis(reductions(m), len(shape))
    epsilon = epsilon_of(m, x.dtype)
    if axis is None or epsilon is None or not has_plain_operands(m) or not is_group(shape[axis:]):
        return None
    affine = [_affine(value, shape, axis) for value in m.values("scale", "bias")] or [ones(shape[axis:], x.dtype)]
    return _made(x, affine, axis - len(shape), epsilon)


def _made(x: Value, affine: Sequence[NewInput], axis: int, epsilon: float) -> Replacement:
    stash: dict[str, Attribute] = {"stash_type": int(DType.DOUBLE)} if x.dtype is DType.DOUBLE else {}
    attrs = {"axis": axis, "epsilon": epsilon, **stash}
    return None if any(v is None for v in affine) else New("LayerNormalization", [x, *affine], attrs)


def has_plain_operands(m: Match) -> bool:
    """True if the numbers of such a pattern keep the rank of x, and both products of x and of the mean have the same factor."""
    same_factor = m.optional("factor") in (None, *(n.out for n in m.optional_nodes("scaled")))
    return same_factor and keeps_rank(m.x, *m.values("two", "one", "epsilon"))


def is_group(shape: Shape) -> bool:
    """False for no elements, which onnxruntime refuses to normalize, and for one, which its releases 1.21 to 1.23 refuse."""
    return 0 not in shape and any(d != 1 for d in shape)


def reductions(m: Match) -> list[Node]:
    """The nodes with the means and the variance of such a pattern."""
    return m.optional_nodes("mean", "mean_of_square", "mean_of_factor", "variance")


def epsilon_of(m: Match, dtype: DType) -> float | None:
    """The epsilon, which an attribute holds in float32; None if it is not finite, negative or not exact in float64."""
    epsilon = float(scalar(m.epsilon) or 0.0)
    single = float(np.float32(epsilon))
    return single if 0 <= single < math.inf and (dtype is not DType.DOUBLE or single == epsilon) else None


@rule("LayerNormFusion", P("Add", P("LayerNormalization", "x", "scale", name="norm"), "bias", commutative=True))
def fuse_layer_norm_bias(m: Match) -> Replacement:
    "LayerNormalization(x, scale) + bias  ->  LayerNormalization(x, scale, bias)"
    norm = m.node("norm")
    shape = m.x.shape
    if shape is None or any(v is not None for v in norm.outputs[1:]) or m.x.dtype is not m.bias.dtype:
        return None
    axis = norm.attr("axis", -1) % max(1, len(shape))
    bias = _affine(m.bias, shape, axis)
    return None if bias is None else New("LayerNormalization", [m.x, m.scale, bias], like=norm)


def trailing_axis(reductions: list[Node], rank: int) -> int | None:
    """The first of the trailing axes over which all these nodes reduce with keepdims; None if any of them reduces otherwise."""
    found = set()
    for node in reductions:
        stated = tuple(range(2, rank)) if node.op == "GlobalAveragePool" else axes_of(node)
        if not stated or not node.attr("keepdims", 1) or not all(-rank <= a < rank for a in stated):
            return None
        axes = sorted({a % rank for a in stated})
        if axes != list(range(axes[0], rank)):
            return None
        found.add(axes[0])
    return found.pop() if len(found) == 1 else None


def _affine(value: Value, shape: Shape, axis: int) -> NewInput:
    """A scale or bias in the shape of the normalized axes, without leading axes of 1; None if it has another shape."""
    wanted = shape[axis:]
    own = value.shape
    if own is None or value.dtype is None or not 0 < len(wanted) <= len(own) <= len(shape):
        return None
    lead, tail = own[: len(own) - len(wanted)], own[len(own) - len(wanted) :]
    if any(d != 1 for d in lead) or not all(map(same_dim, tail, wanted)):
        return None
    if not lead:
        return value
    const = value.constant
    return None if const is None else const.numpy().reshape(const.shape[len(lead) :])


def ones(shape: Shape, dtype: DType) -> NewInput:
    """A scale of ones; None if its shape is unknown."""
    known = tuple(d for d in shape if isinstance(d, int))
    return np.ones(known, dtype.numpy) if len(known) == len(shape) else None


LAYER_NORM = fuse_layer_norm + fuse_layer_norm_bias
