"""Axes that change places around an operator and back: a softmax of transposed scores, pools of rows, a flattened Transpose."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Value
from ortconv.ir.operands import axes_of, producer_of
from ortconv.ir.symbols import as_dim, times
from ortconv.ir.tensor import Array
from ortconv.ir.types import Shape
from ortconv.optimizer.basic.reshape import sizes_of
from ortconv.optimizer.conditions import equal_shapes, numbers, same_dim, with_shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import identity, inverse, permuted_type, transpose_perm
from ortconv.optimizer.shapes import dim_of, expressed, refined, target
from ortconv.optimizer.standard_forms import with_axes

_SCORES = P("Reshape", P("MatMul", "a", "b", name="product"), ..., name="split")


@rule("SwappedSoftmaxFusion", P("Transpose", P("Softmax", _SCORES, name="softmax")))
def swap_scores(m: Match) -> Replacement:
    """Transpose(Softmax<axis -2>(Reshape(MatMul(a, b))))  ->  Softmax<axis -1>(Reshape(MatMul(Transpose(b), Transpose(a))))

    Only if a and b are transposed already. Keras computes the scores of attention so, with one column for each query.
    """
    softmax, split, rank = m.node("softmax"), m.node("split"), m.root.out.rank or 0
    product, sizes = m.node("product").out, sizes_of(split)
    if softmax.opset < 13 or softmax.attr("axis", -1) not in (-2, rank - 2) or transpose_perm(m.root) != _swap(rank):
        return None
    if sizes is None or not equal_shapes(_matrix(product), _matrix(split.out)):
        return None
    if not _is_transposed(m.a) or not _is_transposed(m.b):
        return None
    type = permuted_type(product.type, _swap(product.rank or 0))
    swapped = New("MatMul", [_transposed(m.b), _transposed(m.a)], types=[type])
    dims = [*sizes[:-2], sizes[-1], sizes[-2]]
    scores = New("Reshape", [swapped, np.array(dims, np.int64)], {}, types=[permuted_type(split.out.type, _swap(rank))])
    return New("Softmax", [scores], {"axis": -1}, like=softmax)


def _matrix(value: Value) -> Shape:
    """The last two dimensions."""
    return (value.shape or ())[-2:]


def _swap(rank: int) -> tuple[int, ...]:
    """The permutation that swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _is_transposed(value: Value) -> bool:
    """True for the result of a Transpose of at least two axes, perhaps with leading axes merged."""
    node = producer_of(value, "Reshape")
    inner = value if node is None else node.inputs[0]
    return producer_of(inner, "Transpose") is not None and (value.rank or 0) >= 2


def _transposed(value: Value) -> New:
    perm = _swap(value.rank or 0)
    return New("Transpose", [value], {"perm": Ints(perm)}, types=[permuted_type(value.type, perm)])


_POOLS = ("AveragePool", "LpPool", "MaxPool")


@rule("PoolAxisFusion", P("Reshape", P(_POOLS, P("Reshape", "x", ..., name="before"), name="pool"), ...))
def pool_other_axis(m: Match) -> Replacement:
    """Reshape(MaxPool(Reshape(x)))  ->  MaxPool(x) along the other axis, if the Reshapes only swap rows with an axis of length 1"""
    pool, before, x = m.node("pool"), m.node("before").out, m.x
    around = (x.shape, before.shape), (m.root.out.shape, pool.out.shape)
    if any(pool.outputs[1:]) or not all(_swaps_one(*pair) for pair in around):
        return None
    attrs = {name: _swapped(name, attribute) for name, attribute in pool.attrs.items()}
    return New(pool.op, [x], attrs, like=pool, types=[m.root.out.type])


def _swaps_one(image: Shape | None, other: Shape | None) -> bool:
    """True for two images whose spatial axes are swapped, of which one has length 1."""
    if image is None or other is None or len(image) != 4 or 1 not in image[2:]:
        return False
    return equal_shapes(other, (*image[:2], image[3], image[2]))


def _swapped(name: str, attribute: Attribute) -> Attribute:
    if not isinstance(attribute, Ints) or name not in ("dilations", "kernel_shape", "pads", "strides"):
        return attribute
    pairs = [(attribute[i + 1], attribute[i]) for i in range(0, len(attribute), 2)]
    return Ints(number for pair in pairs for number in pair)


_FLAT = P(("Flatten", "Reshape"), P("Transpose", "x", name="transpose"), ..., name="flat")


@rule("FlattenTransposeFusion", P("MatMul", _FLAT, C("w")), P("Gemm", _FLAT, C("w"), "c?"))
def fold_transpose_into_weights(m: Match) -> Replacement:
    """Gemm(Flatten(Transpose(x)), w)  ->  Gemm(Flatten(x), w with its rows in another order); also MatMul, and with Reshape

    Counterpart: none: ONNX Runtime keeps the Transpose, with which models of TensorFlow end
    """
    product, flat, perm = m.root, m.node("flat"), transpose_perm(m.node("transpose"))
    dims = numbers(*(m.x.shape or (None,))[1:])
    if perm is None or perm[0] != 0 or perm == identity(len(perm)) or product.attr("transA", 0):
        return None
    if not dims or 0 in dims or not equal_shapes(flat.out.shape, (m.x.dim(0), math.prod(dims))):
        return None
    order = [axis - 1 for axis in perm[1:]]
    weights = _reordered(m.tensor("w").numpy(), [dims[axis] for axis in order], order, product.attr("transB", 0))
    if weights is None:
        return None
    rows: NewInput = New(flat.op, [m.x, *flat.inputs[1:]], like=flat, types=[with_shape(m.x, flat.out.shape)])
    return New(product.op, [rows, weights, *product.inputs[2:]], like=product)


def _reordered(weights: Array, dims: list[int], order: list[int], transposed: int) -> Array | None:
    """Weights whose rows belong to axes of these lengths, with the axes moved back from this order; None for no matrix."""
    if weights.ndim != 2 or weights.shape[1 if transposed else 0] != math.prod(dims):
        return None
    back = list(inverse(tuple(order)))
    if transposed:
        moved = weights.reshape(-1, *dims).transpose(0, *(axis + 1 for axis in back))
    else:
        moved = weights.reshape(*dims, -1).transpose(*back, len(dims))
    return np.ascontiguousarray(moved).reshape(weights.shape)


_STACK = P("Reshape", P("Transpose", P("Reshape", "x", ..., name="stack"), name="swap"), ...)


@rule("StackedHeadsFusion", _STACK)
def split_heads_first(m: Match) -> Replacement:
    """Reshape(Transpose<1, 0, 2>(Reshape(x)))  ->  Transpose(Reshape(x)), if the second Reshape splits the first axis only

    PyTorch's MultiheadAttention joins batch and heads, and separates them again. Also Transpose<1, 2, 0>.
    """
    swap, out, wanted = m.node("swap"), m.root.out, target(m.root)
    perm = transpose_perm(swap)
    if perm not in UNSTACKED or wanted is None or len(wanted) != 4:
        return None
    dims = dict(zip((1, perm[1], perm[2]), (None, *refined(wanted, out)[2:])))  # by their axis in the first Reshape
    batch, heads = refined(wanted, out)[:2]
    flat, rows, sizes = swap.out, dim_of(swap.out, perm.index(0)), numbers(heads, dims[2])
    if len(sizes) != 2 or 0 in sizes or flat.dim(perm.index(2)) != sizes[1]:
        return None
    if dims[0] != rows and not same_dim(flat.dim(0), times(as_dim(batch), sizes[0])):
        return None
    after, spec = UNSTACKED[perm], expressed((rows, batch, *sizes), m.x)
    if spec is None:
        return None
    types = [permuted_type(out.type, inverse(after))]
    apart = New("Reshape", [m.x, np.array(spec, np.int64)], {}, like=m.node("stack"), types=types)
    return New("Transpose", [apart], {"perm": Ints(after)}, like=swap)


_ROWS_FIRST = (1, 0, 2)
UNSTACKED = {_ROWS_FIRST: (1, 2, 0, 3), (1, 2, 0): (1, 2, 3, 0)}
"""For each Transpose of (rows, batch * heads, size), the one of (rows, batch, heads, size) with the same result."""


@rule("StackedHeadsFusion", P("Unsqueeze", P("Transpose", "x", name="swap"), ...))
def add_batch_to_rows(m: Match) -> Replacement:
    """Unsqueeze<0>(Transpose<1, 0, 2>(x))  ->  Transpose<1, 2, 0, 3>(Unsqueeze<1>(x)), as in attention of batches"""
    if transpose_perm(m.node("swap")) != _ROWS_FIRST or axes_of(m.root) not in ((0,), (-4,)):
        return None
    batch = with_axes("Unsqueeze", m.x, [1], m.graph)
    return New("Transpose", [batch], {"perm": Ints(UNSTACKED[_ROWS_FIRST])}, like=m.root)
