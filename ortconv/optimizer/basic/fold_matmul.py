"""Rules for MatMul and Gemm: biases, transposed operands, BatchNormalization before and after them."""

from __future__ import annotations

import math
from itertools import dropwhile

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.operands import only_use
from ortconv.ir.symbols import quotient
from ortconv.ir.tensor import Array
from ortconv.optimizer.basic.fold_conv import BATCH_NORM, PARAMETERS, Affine, batch_norm
from ortconv.optimizer.conditions import (
    FLOATS,
    RESHAPES,
    broadcasts_into,
    rounded,
    rounded_sum,
    same_dim,
    wide,
    with_shape,
)
from ortconv.optimizer.engine import Context, New, NewInput, Replacement, apply, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import transpose_perm


@rule("GemmSumFusion", P(("Sum", "Add"), P("Gemm", "a", "b", "c?", name="gemm"), "k", commutative=True))
def fuse_gemm_sum(m: Match) -> Replacement:
    """Gemm(a, b) + k  ->  Gemm(a, b, k); Gemm(a, b, c) + k  ->  Gemm(a, b, beta * c + k) for constants

    Counterpart: GemmSumFusion
    Differs: Add as well as Sum, and a second bias if both are constants.
    """
    gemm, k = m.node("gemm"), m.k
    if k is gemm.out or gemm.out.rank != 2 or not broadcasts_into(k.shape, gemm.out.shape):
        return None
    bias = k if m.c is None or gemm.attr("beta", 1.0) == 0 else _total(m.c, gemm.attr("beta", 1.0), k)
    return None if bias is None else New("Gemm", [m.a, m.b, bias], {**gemm.attrs, "beta": 1.0}, like=gemm)


def _total(c: Value, beta: float, k: Value) -> Array | None:
    """beta * c + k for constants; None if it is larger than both, or cannot be rounded, or if the constants round together."""
    if c.constant is None or k.constant is None or k.dtype not in FLOATS:
        return None
    with np.errstate(all="ignore"):
        total = rounded_sum(beta * wide(c), wide(k), k.constant.dtype)
    return total if total is not None and total.size <= max(c.constant.size, k.constant.size) else None


def _flipped(node: Node, flag: str) -> int:
    return int(not node.attr(flag, 0))


_TRANSPOSE = P("Transpose", "t", where=lambda node: node.attr("perm", Ints((1, 0))) == (1, 0))


@rule("GemmTransposeFusion", P("Gemm", _TRANSPOSE, "b", "c?"), P("Gemm", "a", _TRANSPOSE, "c?"))
def fuse_transposed_operand(m: Match) -> Replacement:
    """Gemm(Transpose(a), b, c)  ->  Gemm(a, b, c) with transA flipped; also Gemm(a, Transpose(b), c) with transB

    Counterpart: GemmTransposeFusion
    """
    flag, operands = ("transA", (m.t, m.b)) if "b" in m.bound else ("transB", (m.a, m.t))
    return New("Gemm", [*operands, *m.values("c")], {**m.root.attrs, flag: _flipped(m.root, flag)}, like=m.root)


@rule("GemmTransposeFusion", P("Transpose", P("Gemm", "a", "b", name="gemm")))
def fuse_transposed_output(m: Match) -> Replacement:
    """Transpose(Gemm(a, b))  ->  Gemm(b, a) with both flags flipped"""
    if m.root.attr("perm", Ints((1, 0))) != (1, 0):
        return None
    gemm = m.node("gemm")
    flags = {"transA": _flipped(gemm, "transB"), "transB": _flipped(gemm, "transA")}
    return New("Gemm", [m.b, m.a], {**gemm.attrs, **flags}, like=gemm)


_MATMUL = P("MatMul", "a", C("w"), name="product")
_GEMM = P("Gemm", "a", C("w"), C("c", optional=True), name="product")


def _normalized(m: Match, each: int = 1) -> New | None:
    """The matched product as a Gemm that includes the BatchNormalization at the root; each channel has `each` columns."""
    affine, product, w = batch_norm(m.root), m.node("product"), m.tensor("w")
    if affine is None or w.rank != 2 or m.a.rank != 2 or w.dtype not in FLOATS:
        return None
    columns = int(not product.attr("transB", 0))
    if w.shape[columns] != each * len(affine.scale):
        return None
    c = m.optional("c")
    with np.errstate(all="ignore"):
        scale, shift = (np.repeat(part, each) for part in affine)
        bias = shift if c is None else shift + product.attr("beta", 1.0) * wide(c) * scale
        parts = _rounded(m, wide(m.w) * (scale if columns else scale[:, None]), bias, len(scale))
    return None if parts is None else _gemm(product, m.a, *parts)


def _rounded(m: Match, weights: Array, bias: Array, columns: int) -> tuple[Array, Array] | None:
    """New weights and bias in the type of the weights. None if one cannot be rounded, or the bias becomes a matrix."""
    dtype, c = m.tensor("w").dtype, m.optional("c")
    w, b = rounded(weights, dtype), rounded(bias, dtype)
    if w is None or b is None or (c is not None and b.size > max(m.tensor("c").size, columns)):
        return None
    return w, b


def _gemm(product: Node, a: NewInput, weights: Array, bias: Array) -> New:
    """The Gemm of a with these weights and this bias, in place of a product."""
    attrs: dict[str, Attribute] = {**product.attrs, "beta": 1.0} if product.op == "Gemm" else {}
    return New("Gemm", [a, weights, bias], attrs, like=product, types=(product.out.type,))


_BEFORE = (BATCH_NORM, P(("Flatten", "Reshape"), BATCH_NORM, ..., name="flat"))


@rule(
    "BNGemmFusion",
    *(P("Gemm", before, C("w"), C("c", optional=True)) for before in _BEFORE),
    *(P("MatMul", before, C("w")) for before in _BEFORE),
)
def fold_batch_norm_product(m: Match) -> Replacement:
    """Gemm(Flatten(BatchNormalization(x)), w, c)  ->  Gemm(Flatten(x), w', c'); also MatMul, and Reshape or nothing for Flatten"""
    affine, product, w = batch_norm(m.node("bn")), m.root, m.tensor("w")
    if affine is None or w.dtype not in FLOATS or product.attr("transA", 0) or {w.rank, product.out.rank} != {2}:
        return None
    parts, flat = _with_affine(m, affine), m.optional_node("flat")
    if parts is None:
        return None
    x = m.x if flat is None else New(flat.op, [m.x, *flat.inputs[1:]], like=flat, types=(flat.out.type,))
    if product.op == "MatMul" and not parts[1].any():
        return New("MatMul", [x, parts[0]], like=product, types=(product.out.type,))
    return _gemm(product, x, *parts)


def _with_affine(m: Match, affine: Affine) -> tuple[Array, Array] | None:
    """The weights and the bias of the matched product with the operand x * scale + shift, as `_rounded` returns them."""
    w, product, c, each = wide(m.w), m.root, m.optional("c"), _pixels(m.x)
    by_row = product.attr("transB", 0)
    if each is None or each * len(affine.scale) != w.shape[1 if by_row else 0]:
        return None
    scale, shift = (np.repeat(part, each) for part in affine)
    with np.errstate(all="ignore"):
        added = product.attr("alpha", 1.0) * (w @ shift if by_row else shift @ w)
        bias = added if c is None else added + product.attr("beta", 1.0) * wide(c)
        return _rounded(m, w * (scale if by_row else scale[:, None]), bias, len(added))


def _pixels(value: Value) -> int | None:
    """Number of elements of each channel; None if it is unknown."""
    shape = value.shape or ()
    sizes = [d for d in shape[2:] if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(shape) - 2 else None


def _moved(product: P, *names: str) -> P:
    for name in names:
        product = P(("Reshape", "Transpose"), product, ..., name=name)
    return P("BatchNormalization", product, *PARAMETERS)


@rule(
    "MatMul_BatchNormalization_Fusion",
    *(_moved(product, *names) for names in ((), ("last",), ("first", "last")) for product in (_MATMUL, _GEMM)),
)
def fold_matmul_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(MatMul(a, w))  ->  Gemm(a, w', c'), for matrices; also BatchNormalization(Gemm)

    Also with one or two of Reshape and Transpose in between, if the columns become the channels, and with a Reshape if
    they become pixels of channels.

    Counterpart: MatMul_BatchNormalization_Fusion
    Differs: also after a Gemm, and for pixels; at most two nodes in between, not a longer chain.
    """
    axis: int | None = 1
    moves = m.optional_nodes("first", "last")
    for move in moves:
        axis = None if axis is None else _axis_behind(move, axis)
    splits = [move.op for move in moves] == ["Reshape"]
    each = 1 if axis == 1 else _pixels(moves[0].out) if splits else None
    result = None if each is None else _normalized(m, each)
    for move in moves if result is not None else ():
        result = New(move.op, [result, *move.inputs[1:]], like=move, types=(move.out.type,))
    return result


def _axis_behind(move: Node, axis: int) -> int | None:
    """The output axis of a Transpose or Reshape that equals an axis of its input; None if the axis is split or this is unknown."""
    before, after, perm = move.present_inputs[0].shape, move.out.shape, transpose_perm(move)
    if before is None or after is None or axis >= len(before):
        return None
    if perm is not None:
        return perm.index(axis)
    same = (i for i, dim in enumerate(after) if same_dim(dim, before[axis]))
    return next((i for i in same if quotient(before[:axis], after[:i]) == 1), None)


_WITH_BIAS = P("Add", P("MatMul", "a", "b", name="product"), "k", commutative=True)


@rule("MatMulAddFusion", _WITH_BIAS)
def fuse_matmul_add(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Gemm(a, b, k), for matrices

    Counterpart: MatMulAddFusion
    Differs: also double, and a bias of any shape that broadcasts into the product, including a scalar; no empty rows of a, which
        a Gemm refuses before onnxruntime 1.20.
    """
    product = m.node("product")
    if m.a.dtype not in FLOATS or m.a.rank != 2 or m.b.rank != 2 or m.k is product.out or 0 in (m.a.dim(1), m.b.dim(0)):
        return None
    rows_columns = (m.a.dim(0), m.b.dim(1))
    if not broadcasts_into(m.k.shape, rows_columns):
        return None
    return New("Gemm", [m.a, m.b, m.k], {}, like=product)


@rule("MatMulAddFusion", _WITH_BIAS)
def fuse_stacked_matmul_add(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)), for a stack of matrices of known shape and a matrix b"""
    product = m.node("product")
    shapes = _stacked(product, m.k)
    if shapes is None:
        return None
    outer, (inner, columns) = shapes
    rows = math.prod(outer)
    flat = New("Reshape", [m.a, np.array((rows, inner), np.int64)], {}, types=(with_shape(m.a, (rows, inner)),))
    gemm = New("Gemm", [flat, m.b, m.k], {}, like=product, types=(with_shape(m.a, (rows, columns)),))
    shape = np.array((*outer, columns), np.int64)
    return New("Reshape", [gemm, shape], {}, types=(with_shape(m.root.out, (*outer, columns)),))


def _stacked(product: Node, k: Value) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """The outer dimensions of a stack of matrices, and the shape of the matrix by which it is multiplied."""
    left, right = (None if v is None else v.static_shape for v in product.inputs)
    if left is None or right is None or len(right) != 2 or len(left) < 3 or product.out.dtype not in FLOATS:
        return None
    return (left[:-1], right) if 0 not in (*left, *right) and k.static_shape == (right[1],) else None


def _candidates(graph: Graph) -> dict[Value, list[Node]]:
    """The Adds that `fuse_stacked_matmul_add` can rewrite, by the stack of matrices that their products read."""
    found: dict[Value, list[Node]] = {}
    for product in graph:
        use = only_use(product.out) if product.is_op("MatMul") else None
        if use is None or not use[0].is_op("Add"):
            continue
        add, slot = use
        stack, k = product.inputs[0], add.input(1 - slot)
        if stack is not None and k is not None and _stacked(product, k) is not None:
            found.setdefault(stack, []).append(add)
    return found


def _merges(reader: Node) -> bool:
    return reader.op in RESHAPES and reader.domain == "" and reader.out.static_shape is not None


def fuse_stacked(graph: Graph, context: Context) -> int:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)) for stacks of matrices, if the new Reshapes merge with others

    All products of one tensor share the Reshape before them.

    Counterpart: MatMulAddFusion
    Differs: stacks of matrices are flattened only if the added Reshapes merge with others; ONNX Runtime flattens all,
        which hides attention from its own fusions.
    """
    gaining = (adds for stack, adds in _candidates(graph).items() if _gains(stack, adds, graph))
    chosen = (add for adds in gaining for add in adds)
    return sum(apply(r, add, context) is not None for add in chosen for r in fuse_stacked_matmul_add)


def _gains(stack: Value, adds: list[Node], graph: Graph) -> bool:
    """True if the Reshape before the products, or that behind one of them, would merge with another."""
    behind = [use[0] for add in adds if (use := only_use(add.out)) is not None]
    owned = len(stack.uses) == len(adds) and not stack.is_output and stack.graph is graph
    return any(map(_merges, behind)) or (owned and stack.producer is not None and _merges(stack.producer))


_SPLIT = P("Reshape", P(("MatMul", "Gemm"), "a", C("w"), name="product"), "shape", name="reshape")


@rule("ColumnBiasFusion", P("Add", _SPLIT, C("k"), commutative=True))
def add_before_reshape(m: Match) -> Replacement:
    """Reshape(MatMul(a, w)) + k  ->  Reshape(MatMul(a, w) + k), for a bias of columns, which the Reshape may split into heads

    Also for a Gemm without a bias.
    """
    product, k, w, out = m.node("product").out, m.tensor("k"), m.tensor("w"), m.node("reshape").out
    dims = tuple(dropwhile(lambda dim: dim == 1, k.shape))
    split = (out.shape or ())[-len(dims) :] if dims else ()
    if k.rank > (out.rank or 0) or split != dims or w.rank < 2 or math.prod(dims) != product.dim(-1):
        return None
    biased = New("Add", [product, k.numpy().reshape(-1)], types=[product.type])
    return New("Reshape", [biased, m.shape], like=m.node("reshape"))


RULES = (
    *fuse_gemm_sum, *add_before_reshape, *fuse_transposed_operand, *fuse_transposed_output, *fold_matmul_batch_norm,
    *fold_batch_norm_product,
)  # fmt: skip
