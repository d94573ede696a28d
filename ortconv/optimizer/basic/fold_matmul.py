"""Rules for MatMul and Gemm: biases, transposed operands, BatchNormalization before and after them."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.basic.fold_conv import batch_norm
from ortconv.optimizer.conditions import FLOATS, RESHAPES, broadcasts_into, count, rounded, same_dim, wide, with_shape
from ortconv.optimizer.engine import Context, FunctionPass, New, Replacement, apply, rule
from ortconv.optimizer.pattern import C, Match, P

# ---------------------------------------------------------------------- Gemm


@rule("GemmSumFusion", P(("Sum", "Add"), P("Gemm", "a", "b", "c?", name="gemm"), "k", commutative=True))
def fuse_gemm_sum(m: Match) -> Replacement:
    """Gemm(a, b) + k  ->  Gemm(a, b, k); Gemm(a, b, c) + k  ->  Gemm(a, b, beta * c + k) for constants

    Counterpart: GemmSumFusion
    Differs: Add as well as Sum, and a second bias if both are constants.
    """
    gemm, k = m.gemm, m.k
    if k is gemm.out or gemm.out.rank != 2 or not broadcasts_into(k.shape, gemm.out.shape):
        return None
    attrs: dict[str, Attribute] = {**gemm.attrs, "beta": 1.0}
    types = (m.root.out.type,)
    if m.c is None or gemm.attr("beta", 1.0) == 0:
        return New("Gemm", [m.a, m.b, k], attrs, like=gemm, types=types)
    if m.c.constant is None or k.constant is None or k.dtype not in FLOATS:
        return None
    total = rounded(gemm.attr("beta", 1.0) * wide(m.c) + wide(k), k.dtype)
    if total is None or total.size > max(m.c.constant.size, k.constant.size):
        return None
    return New("Gemm", [m.a, m.b, total], attrs, like=gemm, types=types)


_TRANSPOSE = P("Transpose", "t", where=lambda node: tuple(node.attr("perm", Ints((1, 0)))) == (1, 0))


def _operands(*values: Value | None) -> list[Value]:
    """The inputs of a Gemm; an absent bias is omitted."""
    return [v for v in values if v is not None]


def _flipped(node: Node, *names: str) -> dict[str, Attribute]:
    return {**node.attrs, **{name: int(not node.attr(name, 0)) for name in names}}


@rule("GemmTransposeFusion", P("Gemm", _TRANSPOSE, "b", "c?"))
def fuse_transposed_a(m: Match) -> Replacement:
    """Gemm(Transpose(a), b, c)  ->  Gemm(a, b, c) with transA flipped

    Counterpart: GemmTransposeFusion
    """
    return New("Gemm", _operands(m.t, m.b, m.c), _flipped(m.root, "transA"), like=m.root, types=(m.root.out.type,))


@rule("GemmTransposeFusion", P("Gemm", "a", _TRANSPOSE, "c?"))
def fuse_transposed_b(m: Match) -> Replacement:
    """Gemm(a, Transpose(b), c)  ->  Gemm(a, b, c) with transB flipped"""
    return New("Gemm", _operands(m.a, m.t, m.c), _flipped(m.root, "transB"), like=m.root, types=(m.root.out.type,))


@rule("GemmTransposeFusion", P("Transpose", P("Gemm", "a", "b", name="gemm")))
def fuse_transposed_output(m: Match) -> Replacement:
    """Transpose(Gemm(a, b))  ->  Gemm(b, a) with both flags flipped"""
    if tuple(m.root.attr("perm", Ints((1, 0)))) != (1, 0):
        return None
    gemm = m.gemm
    attrs: dict[str, Attribute] = {
        **gemm.attrs,
        "transA": int(not gemm.attr("transB", 0)),
        "transB": int(not gemm.attr("transA", 0)),
    }
    return New("Gemm", [m.b, m.a], attrs, like=gemm, types=(m.root.out.type,))


# ---------------------------------------------------------------------- BatchNormalization

_MATMUL = P("MatMul", "a", C("w"), name="product")
_GEMM = P("Gemm", "a", C("w"), C("c", optional=True), name="product")
_PARAMETERS = (C("gamma"), C("beta"), C("mean"), C("var"))


def _normalized(m: Match, each: int = 1) -> New | None:
    """The matched product as a Gemm that includes the BatchNormalization at the root; each channel has `each` columns."""
    affine, product, w = batch_norm(m.root), m.product, m.w.constant
    if affine is None or w.rank != 2 or m.a.rank != 2 or w.dtype not in FLOATS:
        return None
    gemm = product.op == "Gemm"
    columns = 0 if gemm and product.attr("transB", 0) else 1
    if w.shape[columns] != each * len(affine.scale):
        return None
    c = m.bound.get("c")
    with np.errstate(all="ignore"):
        scale, shift = (np.repeat(part, each) for part in affine)
        scaled = rounded(wide(m.w) * (scale if columns else scale[:, None]), w.dtype)
        if c is not None:
            shift = shift + product.attr("beta", 1.0) * wide(c) * scale
        bias = rounded(shift, w.dtype)
    if scaled is None or bias is None or (c is not None and bias.size > max(c.constant.size, len(scale))):
        return None
    attrs: dict[str, Attribute] = {**product.attrs, "beta": 1.0} if gemm else {}
    return New("Gemm", [m.a, scaled, bias], attrs, like=product, types=(product.out.type,))


@rule(
    "MatMul_BatchNormalization_Fusion",
    P("BatchNormalization", _MATMUL, *_PARAMETERS),
    P("BatchNormalization", _GEMM, *_PARAMETERS),
)
def fold_matmul_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(MatMul(a, w))  ->  Gemm(a, w', c'), for matrices; also BatchNormalization(Gemm)

    Counterpart: MatMul_BatchNormalization_Fusion
    Differs: also after a Gemm.
    """
    return _normalized(m)


_BATCH_NORM = P("BatchNormalization", "x", *_PARAMETERS, name="bn")
_BEFORE = (_BATCH_NORM, P(("Flatten", "Reshape"), _BATCH_NORM, ..., name="flat"))


@rule(
    "BNGemmFusion",
    *(P("Gemm", before, C("w"), C("c", optional=True)) for before in _BEFORE),
    *(P("MatMul", before, C("w")) for before in _BEFORE),
)
def fold_batch_norm_product(m: Match) -> Replacement:
    """Gemm(Flatten(BatchNormalization(x)), w, c)  ->  Gemm(Flatten(x), w', c'); also with MatMul, and with Reshape or
    nothing instead of Flatten

    Counterpart: none: beyond ONNX Runtime
    """
    affine, product, w, c = batch_norm(m.bn), m.root, m.w.constant, m.bound.get("c")
    if affine is None or w.rank != 2 or w.dtype not in FLOATS or product.attr("transA", 0):
        return None
    rows = 1 if product.attr("transB", 0) else 0
    each, flat = _pixels(m.x.shape or ()), m.bound.get("flat")
    if each is None or each * len(affine.scale) != w.shape[rows]:
        return None
    if (m.x if flat is None else flat.out).rank != 2:
        return None
    scaled, bias = _with_affine(product, m.w, c, *(np.repeat(part, each) for part in affine))
    if scaled is None or bias is None or (c is not None and bias.size > max(c.constant.size, w.shape[1 - rows])):
        return None
    x = m.x if flat is None else New(flat.op, [m.x, *flat.inputs[1:]], like=flat, types=(flat.out.type,))
    if product.op == "MatMul" and not bias.any():
        return New("MatMul", [x, scaled], like=product, types=(product.out.type,))
    attrs: dict[str, Attribute] = {**product.attrs, "beta": 1.0} if product.op == "Gemm" else {}
    return New("Gemm", [x, scaled, bias], attrs, like=product, types=(product.out.type,))


def _with_affine(
    product: Node, weights: Value, c: Value | None, scale: Array, shift: Array
) -> tuple[Array | None, Array | None]:
    """The weights and the bias of a product with the operand x * scale + shift; None for those that are not finite."""
    assert weights.constant is not None
    w, rows, dtype = wide(weights), product.attr("transB", 0), weights.constant.dtype
    with np.errstate(all="ignore"):
        scaled = rounded(w * (scale if rows else scale[:, None]), dtype)
        added = product.attr("alpha", 1.0) * (w @ shift if rows else shift @ w)
        bias = rounded(added if c is None else added + product.attr("beta", 1.0) * wide(c), dtype)
    return scaled, bias


def _pixels(shape: Shape) -> int | None:
    """Number of elements of each channel; None if it is unknown."""
    sizes = [d for d in shape[2:] if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(shape) - 2 else None


def _moved(product: P, *names: str) -> P:
    for name in names:
        product = P(("Reshape", "Transpose"), product, ..., name=name)
    return P("BatchNormalization", product, *_PARAMETERS)


@rule(
    "MatMul_BatchNormalization_Fusion",
    *(_moved(product, *names) for names in (("last",), ("first", "last")) for product in (_MATMUL, _GEMM)),
)
def fold_moved_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(Reshape(MatMul(a, w)))  ->  Reshape(Gemm(a, w', c')), if the columns become the channels

    Also for Transpose, and for two such nodes.

    Counterpart: MatMul_BatchNormalization_Fusion
    Differs: at most two of Reshape and Transpose in between, not a longer chain.
    """
    axis: int | None = 1
    moves = [node for name in ("first", "last") if (node := m.bound.get(name)) is not None]
    for move in moves:
        axis = None if axis is None else _axis_behind(move, axis)
    result: New | None = _normalized(m) if axis == 1 else None
    for move in moves if result is not None else ():
        result = New(move.op, [result, *move.inputs[1:]], like=move, types=(move.out.type,))
    return result


@rule(
    "MatMul_BatchNormalization_Fusion",
    *(P("BatchNormalization", P("Reshape", product, ..., name="move"), *_PARAMETERS) for product in (_MATMUL, _GEMM)),
)
def fold_split_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(Reshape(MatMul(a, w)))  ->  Reshape(Gemm(a, w', c')), if the columns become pixels of channels

    Counterpart: none: beyond ONNX Runtime
    """
    move: Node = m.move
    pixels = [d for d in (move.out.shape or ())[2:] if isinstance(d, int)]
    if len(pixels) != (move.out.rank or 0) - 2:
        return None
    result = _normalized(m, math.prod(pixels))
    return None if result is None else New("Reshape", [result, *move.inputs[1:]], like=move, types=(move.out.type,))


def _axis_behind(move: Node, axis: int) -> int | None:
    """The output axis of a Transpose or Reshape that equals an axis of its input; None if the axis is split or this is unknown."""
    assert move.inputs[0] is not None
    before, after = move.inputs[0].shape, move.out.shape
    if before is None or after is None or axis >= len(before):
        return None
    if move.op == "Transpose":
        return tuple(move.attr("perm", Ints(reversed(range(len(before)))))).index(axis)
    fits = (i for i, dim in enumerate(after) if same_dim(dim, before[axis]) and _same_count(before[:axis], after[:i]))
    return next(fits, None)


def _same_count(a: Shape, b: Shape) -> bool:
    """True if two shapes are known to have the same number of elements."""
    known = math.prod(d for d in a if isinstance(d, int)) == math.prod(d for d in b if isinstance(d, int))
    symbols = [[d for d in shape if not isinstance(d, int)] for shape in (a, b)]
    return known and symbols[0] == symbols[1] and None not in symbols[0]


# ---------------------------------------------------------------------- MatMul + Add

_WITH_BIAS = P("Add", P("MatMul", "a", "b", name="product"), "k", commutative=True)


@rule("MatMulAddFusion", _WITH_BIAS)
def fuse_matmul_add(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Gemm(a, b, k), for matrices

    Counterpart: MatMulAddFusion
    Differs: also double, and a bias of any shape that broadcasts into the product, including a scalar.
    """
    if m.a.dtype not in FLOATS or m.a.rank != 2 or m.b.rank != 2 or m.k is m.product.out:
        return None
    rows_columns = (m.a.dim(0), m.b.dim(1))
    if not broadcasts_into(m.k.shape, rows_columns):
        return None
    return New("Gemm", [m.a, m.b, m.k], {}, like=m.product, types=(m.root.out.type,))


@rule("MatMulAddFusion", _WITH_BIAS)
def fuse_stacked_matmul_add(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)), for a stack of matrices of known shape and a matrix b"""
    shapes = _stacked(m.product, m.k)
    if shapes is None:
        return None
    outer, (inner, columns) = shapes
    rows = count(outer)
    dtype: DType = m.a.dtype
    flat = New("Reshape", [m.a, np.array((rows, inner), np.int64)], {}, types=(TensorType(dtype, (rows, inner)),))
    gemm = New("Gemm", [flat, m.b, m.k], {}, like=m.product, types=(TensorType(dtype, (rows, columns)),))
    shape = np.array((*outer, columns), np.int64)
    return New("Reshape", [gemm, shape], {}, types=(with_shape(m.root.out, (*outer, columns)),))


def _stacked(product: Node, k: Value) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """The outer dimensions of a stack of matrices, and the shape of the matrix by which it is multiplied."""
    a, b = product.inputs
    assert a is not None
    assert b is not None
    left, right = a.static_shape, b.static_shape
    if left is None or right is None or len(right) != 2 or len(left) < 3 or a.dtype not in FLOATS:
        return None
    if 0 in left or 0 in right or left[-1] != right[0] or k.static_shape != (right[1],):
        return None
    return left[:-1], right


def _candidates(graph: Graph) -> dict[Value, list[Node]]:
    """The Adds that `fuse_stacked_matmul_add` can rewrite, by the stack of matrices that their products read."""
    found: dict[Value, list[Node]] = {}
    for product in graph:
        if not product.is_op("MatMul") or len(product.out.uses) != 1 or product.out.is_output:
            continue
        ((add, slot),) = product.out.uses
        k = add.input(1 - slot) if add.is_op("Add") and add.graph is graph else None
        if k is not None and _stacked(product, k) is not None:
            assert product.inputs[0] is not None
            found.setdefault(product.inputs[0], []).append(add)
    return found


def _merges(reader: Node) -> bool:
    return reader.op in RESHAPES and reader.domain == "" and reader.out.static_shape is not None


def fuse_stacked(graph: Graph, context: Context) -> int:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)) for stacks of matrices, if the new Reshapes merge with
    others

    All products of one tensor share the Reshape before them.

    Counterpart: MatMulAddFusion
    Differs: stacks of matrices are flattened only if the added Reshapes merge with others; ONNX Runtime flattens all,
        which hides attention from its own fusions.
    """
    changes = 0
    for stack, adds in _candidates(graph).items():
        maker, products = stack.producer, len(stack.uses) == len(adds) and not stack.is_output
        front = products and maker is not None and maker.graph is graph and _merges(maker)
        behind = any(len(a.out.uses) == 1 and not a.out.is_output and _merges(a.out.consumers[0]) for a in adds)
        if front or behind:
            changes += sum(apply(r, add, context) is not None for add in adds for r in fuse_stacked_matmul_add)
    return changes


PASSES = (FunctionPass("MatMulAddFusion", fuse_stacked, operators=(("", "MatMul"),)),)
GEMM_RULES = (
    *fuse_gemm_sum,
    *fuse_transposed_a,
    *fuse_transposed_b,
    *fuse_transposed_output,
    *fold_matmul_batch_norm,
    *fold_moved_batch_norm,
    *fold_split_batch_norm,
    *fold_batch_norm_product,
)
MATMUL_ADD_RULES = fuse_matmul_add
RULES = (*GEMM_RULES, *MATMUL_ADD_RULES)
