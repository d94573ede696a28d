"""Rules that remove nodes without effect, and simplify short chains of elementwise nodes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ortconv.ir.casts import HOLDERS
from ortconv.ir.graph import Attribute, Floats, Ints, Node, Strings
from ortconv.ir.operands import clip_bounds, constant_of, ints, producer_of, scalar, source_of
from ortconv.ir.operators import Trait, named
from ortconv.ir.schema import attribute
from ortconv.ir.slices import AxisSlice, axis_slices
from ortconv.ir.types import INT32_MAX, DType
from ortconv.optimizer.conditions import (
    FLOATS,
    RESHAPES,
    broadcasts_into,
    equal_shapes,
    exactly,
    greatest,
    is_filled_with,
    without_absent,
)
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import identity, transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, elements


@rule("EliminateIdentity", P("Identity", "x"))
def eliminate_identity(m: Match) -> Replacement:
    """Identity(x)  ->  x, unless x cannot take over the name of a graph output

    Counterpart: EliminateIdentity
    Differs: if the graph returns it, its input may have other readers.
    """
    x = m.x
    if m.root.out.is_output and (x.producer is None or x.is_output or x.graph is not m.graph):
        return None
    return x


def _covers(part: AxisSlice[Element], dim: Element, back: Element) -> bool:
    """True if a slice with step 1 includes all of a dimension; an unknown dimension may have any length below 2**31.

    If `back` is not None, the slice begins that number of elements before the end.
    """
    start, end = 0 if back is not None and back == dim else part.start, part.end
    if not isinstance(start, int) or not isinstance(end, int):
        return start == 0 and end is not None and end == dim
    length = dim if isinstance(dim, int) else INT32_MAX
    return (start == 0 or start <= -length) and end >= length


@rule("EliminateSlice", P("Slice", "x", ...))
def eliminate_slice(m: Match) -> Replacement:
    """Slice(x) of everything with step 1  ->  x

    Counterpart: EliminateSlice
    Differs: an end equal to the dimension, and a negative start that reaches the first element, count as everything;
        there only 0 to INT64_MAX does. Also computed bounds.
    """
    x = m.x
    parts, negation = axis_slices(m.root, elements), producer_of(source_of(m.root.input(1), *RESHAPES), "Neg")
    backs = None if negation is None else elements(negation.inputs[0])  # the starts before they are negated
    if parts is None or any(part.step != 1 for part in parts):
        return None
    dims = (dim_of(x, part.axis % x.rank) if x.rank else None for part in parts)
    return x if all(map(_covers, parts, dims, backs or (None,) * len(parts))) else None


@rule("SliceBoundsAsLists", P("Slice", "x", ...))
def list_slice_bounds(m: Match) -> Replacement:
    """Slice(x) with constant bounds that are scalars  ->  Slice(x) with lists of one bound

    Counterpart: none: beyond ONNX Runtime, whose Slice fails on the scalars that exporters write
    """
    bounds = [(v, constant_of(v)) for v in m.root.inputs[1:]]
    lists = [v if const is None or const.rank else const.numpy().reshape(1) for v, const in bounds]
    if all(found is v for found, (v, _) in zip(lists, bounds)):
        return None
    return New("Slice", [m.x, *lists], {}, like=m.root)


@rule("EliminateDropout", P("Dropout", "x", ...))
def eliminate_dropout(m: Match) -> Replacement:
    """Dropout(x) in inference mode or of ratio 0, with an unused mask  ->  x

    Counterpart: EliminateDropout
    Differs: unless the ratio is 0, training_mode must be absent or constant false, which ONNX Runtime does not check.
    """
    mask, ratio, training = m.root.output(1), m.root.input(1), m.root.input(2)
    if mask is not None and mask.is_used:
        return None
    drops = training is not None and scalar(training) != 0 and (ratio is None or scalar(ratio) != 0)
    return None if drops else m.x


@rule("ExpandElimination", P("Expand", "x", "shape"))
def eliminate_expand(m: Match) -> Replacement:
    """Expand(x) to a shape that broadcasts into that of x  ->  x

    Counterpart: ExpandElimination
    Differs: also if the shape is computed and the types show that it changes nothing.
    """
    target = ints(m.shape)
    if target is not None and broadcasts_into(target, m.x.shape):
        return m.x
    return m.x if equal_shapes(m.x.shape, m.root.out.shape) else None


@rule("CastElimination", P("Cast", "x"), P("CastLike", "x", "like"))
def eliminate_cast(m: Match) -> Replacement:
    """Cast(x) to the type that x has  ->  x

    Counterpart: CastElimination
    Differs: also CastLike.
    """
    to = m.root.attrs.get("to") if m.root.op == "Cast" else m.like.dtype
    return m.x if m.x.dtype is not None and m.x.dtype == to else None


@rule("CastChainElimination", P("Cast", P("Cast", "x", name="inner", shared=True)))
def eliminate_cast_chain(m: Match) -> Replacement:
    """Cast(Cast(x, B), C)  ->  Cast(x, C) or x, if B represents every value of x exactly

    Counterpart: RemoveDuplicateCastTransformer
    Differs: only exact chains: the inner type must represent every value of the source's type, and integers must become
        wider. LossyCastChainElimination removes other chains.
    """
    source, between, to = m.x.dtype, m.node("inner").out.dtype, m.root.out.dtype
    if source is None or to is None or between not in HOLDERS.get(source, ()):
        return None
    if to is source:
        return m.x
    # Out of range, float to integer depends on the inner type; a string depends on the source's type.
    if not (source in FLOATS and to in FLOATS) and not (source not in FLOATS and to in HOLDERS[source]):
        return None
    return New("Cast", [m.x], like=m.root)


@rule("PreShapeNodeElimination", P("Shape", P(("Cast", "CastLike"), "x", ..., shared=True)))
def eliminate_cast_before_shape(m: Match) -> Replacement:
    """Shape(Cast(x))  ->  Shape(x)

    Counterpart: PreShapeNodeElimination
    Differs: the Cast may have other readers; also CastLike.
    """
    return New("Shape", [m.x], like=m.root)


NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
"""The second operand with which an operator returns its first one."""


@rule("NoopElimination", P(("Add", "Mul"), "x", C("k"), commutative=True), P(("Sub", "Div", "Pow"), "x", C("k")))
def eliminate_noop(m: Match) -> Replacement:
    """x + 0, 0 + x, x - 0, x * 1, 1 * x, x / 1, x ** 1  ->  x, for a constant that does not enlarge x

    All are exact except one: x + 0.0 turns -0.0 into +0.0, which is ignored, as in ONNX Runtime.

    Counterpart: NoopElimination
    Differs: constants of several elements, x ** 1, operands that are graph inputs, results that the graph returns.
    """
    if not is_filled_with(m.k, NEUTRAL[m.root.op]) or not broadcasts_into(m.tensor("k").shape, m.x.shape):
        return None
    return m.x


@rule(
    "NoopElimination",
    P(("Sum", "Max", "Min", "Mean", "Concat"), "x"),
    P(("Tile", "Pad"), "x", C("repeats"), ...),
    P("Pad", "x"),
    P("Transpose", "x"),
)
def eliminate_trivial(m: Match) -> Replacement:
    """A variadic operator with one operand, Tile by ones, Pad by zeros, Transpose that keeps the axes  ->  x

    Differs: forms that ONNX Runtime does not have.
    """
    node, x = m.root, m.x
    if node.op == "Transpose":
        perm = transpose_perm(node)
        trivial = perm is not None and perm == identity(len(perm))
    elif node.op == "Pad":
        pads = ints(m.repeats) if m.graph.opset() >= 11 else tuple(node.attr("pads", Ints()))
        trivial = pads is not None and not any(pads)
    else:
        trivial = node.op != "Tile" or all(r == 1 for r in ints(m.repeats) or (0,))
    return x if trivial else None


@rule("NoopElimination", P("Split", "x", ..., where=lambda split: len(split.outputs) == 1))
def eliminate_split(m: Match) -> Replacement:
    """Split(x) into one part  ->  x

    Differs: ONNX Runtime keeps it.
    """
    return m.x if equal_shapes(m.root.out.shape, m.x.shape) else None


@rule("NoopElimination", P("Concat", ...))
def drop_empty_operands(m: Match) -> Replacement:
    """Concat(x, y)  ->  x, if y has no elements along the axis; also with more operands

    Differs: ONNX Runtime keeps empty operands.
    """
    shapes = [None if v is None else v.shape for v in m.root.inputs]
    axis = m.root.attr("axis", 1)
    kept = [v for v, shape in zip(m.root.inputs, shapes) if shape is None or shape[axis] != 0]
    if not kept or len(kept) == len(shapes):
        return None
    return New("Concat", kept, m.root.attrs, like=m.root) if len(kept) > 1 else kept[0]


@rule("SumOfTwo", P("Sum", "a", "b"))
def replace_sum(m: Match) -> Replacement:
    """Sum(a, b)  ->  a + b, which more rules and execution providers support"""
    return New("Add", [m.a, m.b], {}, like=m.root) if m.graph.opset() >= 8 else None


@rule(
    "IdleAttributeElimination",
    P(named(Trait.REDUCES), "x", C("axes"), where=lambda node: node.attr("noop_with_empty_axes", 0) != 0),
)
def drop_noop(m: Match) -> Replacement:
    """Reduce<noop_with_empty_axes=1>(x, axes)  ->  Reduce(x, axes), if there are axes: NNAPI supports only that

    tf2onnx writes it at every reduction.
    """
    return _without(m.root, "noop_with_empty_axes") if m.axes.static_shape != (0,) else None


@rule(
    "IdleAttributeElimination",
    P("Gemm", "a", "b", ..., where=lambda node: node.input(2) is None and node.attr("beta", 1.0) != 1),
)
def drop_beta(m: Match) -> Replacement:
    "Gemm<beta>(a, b)  ->  Gemm(a, b)"
    return _without(m.root, "beta")


def _without(node: Node, name: str) -> New:
    return New(node.op, node.inputs, {key: value for key, value in node.attrs.items() if key != name}, like=node)


@rule("DivMulFusion", P("Mul", P("Div", C("one", one=True), "x"), "y", commutative=True))
def fuse_div_mul(m: Match) -> Replacement:
    """(1 / x) * y  ->  y / x, for floats

    Counterpart: DivMulFusion
    Differs: floats only, since 1 / x truncates for integers.
    """
    if m.x.dtype not in FLOATS or scalar(m.one) != 1 or not broadcasts_into(m.tensor("one").shape, m.x.shape):
        return None
    return New("Div", [m.y, m.x], {}, like=m.root)


def _interval(node: Node) -> tuple[float, float] | None:
    """The (lower, upper) bound of a Relu, or of a Clip with constant bounds; else None. First max, then min is applied."""
    bounds = clip_bounds(node, greatest(node.out.dtype))
    return None if any(map(math.isnan, bounds)) else bounds


@rule(
    "FuseReluClip",
    P(("Relu", "Clip"), P(("Relu", "Clip"), "x", ..., name="inner"), ...),
    P("Relu", P("Relu", "x", name="inner", shared=True)),
)
def fuse_relu_clip(m: Match) -> Replacement:
    """Two consecutive Relu or Clip  ->  one Clip or Relu; NaN passes through in both forms

    Counterpart: FuseReluClip
    Differs: also Clip before Relu and Clip before Clip.
    """
    inner, outer, dtype = _interval(m.node("inner")), _interval(m.root), m.x.dtype
    if inner is None or outer is None or dtype is None:
        return None
    low, high = (min(max(b, outer[0]), outer[1]) for b in (min(inner), inner[1]))
    if (low, high) == (0, math.inf) and "Relu" in (m.root.op, m.node("inner").op):
        return New("Relu", [m.x], {}, like=m.root)
    if m.graph.opset() < 11 and dtype not in FLOATS:
        return None
    most = greatest(dtype)
    with np.errstate(over="ignore"):
        pairs = ((low, -most), (high, most))
        bounds = [None if b == absent else np.array(b, dtype.numpy) for b, absent in pairs]
    if m.graph.opset() >= 11:
        return New("Clip", without_absent([m.x, *bounds]), {}, like=m.root)
    named = zip(("min", "max"), bounds)
    return New("Clip", [m.x], {name: float(b) for name, b in named if b is not None}, like=m.root)


@rule("NotWhereFusion", P("Where", P("Not", "c", name="negation", shared=True), "a", "b"))
def fuse_not_where(m: Match) -> Replacement:
    """Where(Not(c), a, b)  ->  Where(c, b, a), if the Not is read only as a condition

    Counterpart: NotWhereFusion
    """
    negated = m.node("negation").out
    if negated.is_output or not all(node.is_op("Where") and slot == 0 for node, slot in negated.uses):
        return None
    return New("Where", [m.c, m.b, m.a], {}, like=m.root)


_IF_TRUE = P("Mul", P("Cast", "c"), "a", commutative=True)
_IF_FALSE = P("Mul", P("Cast", P("Not", "c", shared=True)), "b", commutative=True)


@rule("ProductSelectFusion", P("Add", _IF_TRUE, _IF_FALSE, commutative=True))
def fuse_product_select(m: Match) -> Replacement:
    """Cast(c) * a + Cast(Not(c)) * b  ->  Where(c, a, b), for integers

    tf2onnx writes indices so that count from the end if they are negative.
    """
    if m.root.out.dtype not in (DType.INT32, DType.INT64) or m.c.dtype is not DType.BOOL or m.root.opset < 9:
        return None
    return New("Where", [m.c, m.a, m.b])


_ZERO = C("zero", one=True, where=exactly(0))


@rule("ComparisonCastElimination", P(("Greater", "Less"), P("Cast", "x", name="cast"), _ZERO))
def eliminate_cast_before_comparison(m: Match) -> Replacement:
    """Cast(x) < 0  ->  x < 0, for an integer x that is cast to a float; also Greater"""
    if m.x.dtype not in (DType.INT32, DType.INT64) or m.root.opset < 9 or m.node("cast").out.dtype not in FLOATS:
        return None
    return New(m.root.op, [m.x, m.tensor("zero").numpy().astype(m.x.dtype.numpy)])


_LISTS: dict[str, Any] = {"int64s": Ints, "strings": Strings, "floats": Floats}


class _LabelMap(NamedTuple):
    """What a LabelEncoder does. `keys` and `values` are the ends of the names of its attributes."""

    keys: str
    values: str
    mapping: dict[Any, Any]
    default: Any


def _label_map(node: Node) -> _LabelMap | None:
    """The map of a LabelEncoder whose keys and values are lists."""
    keys, values = ([k for k in _LISTS if f"{role}_{k}" in node.attrs] for role in ("keys", "values"))
    if len(keys) != 1 or len(values) != 1 or any(k.endswith("_tensor") for k in node.attrs):
        return None
    given: list[Any] = list(node.attr(f"keys_{keys[0]}", ()))
    mapping = dict(zip(given, node.attr(f"values_{values[0]}", ()), strict=False))
    if len(mapping) != len(given) or any(map(_is_nan, mapping)):
        return None
    return _LabelMap(keys[0], values[0], mapping, attribute(node, _default(values[0])))


def _default(values: str) -> str:
    """The name of the attribute with the value for other keys."""
    return f"default_{values.removesuffix('s')}"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


_ML = "ai.onnx.ml"


@rule("LabelEncoderFusion", P("LabelEncoder", P("LabelEncoder", "x", domain=_ML, name="first"), domain=_ML))
def fuse_label_encoders(m: Match) -> Replacement:
    """LabelEncoder(LabelEncoder(x))  ->  LabelEncoder(x) with the composed map

    Counterpart: LabelEncoderFusion
    Differs: keys and values of any types if they are lists, from opset 2 of ai.onnx.ml on.
    """
    first, second = _label_map(m.node("first")), _label_map(m.root)
    if first is None or second is None or first.values != second.keys:
        return None
    if any(map(_is_nan, (first.default, *first.mapping.values()))):
        return None
    values = [second.mapping.get(v, second.default) for v in (*first.mapping.values(), first.default)]
    attrs: dict[str, Attribute] = {
        f"keys_{first.keys}": _LISTS[first.keys](first.mapping),
        f"values_{second.values}": _LISTS[second.values](values[:-1]),
        _default(second.values): values[-1],
    }
    return New("LabelEncoder", [m.x], attrs, domain=_ML, like=m.root)
