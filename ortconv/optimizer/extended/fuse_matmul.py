"""Fuses transposed or scaled operands, or a scaled result, with MatMul into com.microsoft:FusedMatMul."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import equal_shapes, keeps_rank, numbers, same_dim, with_shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, PatternInput, with_factor
from ortconv.optimizer.permutation import compose, halves, operand_perm, permuted_type, transpose_perm


def _products(a: PatternInput, b: PatternInput) -> tuple[P, P]:
    return P("MatMul", a, b, name="matmul"), P("FusedMatMul", a, b, name="matmul", domain=MICROSOFT)


def _transposed(side: str, *, cast: bool = False) -> tuple[P, P]:
    transpose = P("Transpose", "inner", name="transpose", shared=True)
    if cast:
        transpose = P("Cast", transpose, name="cast")
    return _products(transpose, "other") if side == "A" else _products("other", transpose)


@rule("MatmulTransposeFusion", *(p for side in "AB" for cast in (False, True) for p in _transposed(side, cast=cast)))
def fuse_transpose(m: Match) -> Replacement:
    """MatMul(Transpose(a), b)  ->  FusedMatMul<transA, transBatchA>(a, b); also MatMul(a, Transpose(b)), and with a Cast between

    Counterpart: MatmulTransposeFusion
    """
    transpose, matmul = m.node("transpose"), m.node("matmul")
    side = "A" if matmul.inputs[0] is (m.optional_node("cast") or transpose).out else "B"
    rank, other = transpose.out.rank or 0, m.other.rank or 0
    if not _is_supported(matmul) or min(rank, other) < 2 or not _is_never_empty(m, side):
        return None
    done = operand_perm(rank, matmul.attr(f"trans{side}", 0), matmul.attr(f"transBatch{side}", 0))
    wanted = compose(transpose_perm(transpose) or (), done)
    for batch, transposed in product((0, 1) if rank == other > 2 else (0,), (0, 1)):
        if operand_perm(rank, transposed, batch) == wanted:
            attrs = {**matmul.attrs, f"trans{side}": transposed, f"transBatch{side}": batch}
            inner = _inner(m)
            return _fused(m, (inner, m.other) if side == "A" else (m.other, inner), attrs)
    return None


_STACKED = P("Reshape", P("Transpose", "inner", name="transpose", shared=True), C("shape"), name="reshape")


@rule("MatmulTransposeFusion", *_products("other", _STACKED))
def fuse_transpose_before_reshape(m: Match) -> Replacement:
    "MatMul(a, Reshape(Transpose(b)))  ->  FusedMatMul<transB>(a, Reshape(b)), if the Reshape changes only the leading axes"
    matmul, before, after = m.node("matmul"), m.node("transpose").out.static_shape, m.node("reshape").out.static_shape
    if before is None or after is None or min(len(before), len(after), m.other.rank or 0) < 2:
        return None
    if before[-2:] != after[-2:] or transpose_perm(m.node("transpose")) != operand_perm(len(before), 1, 0):
        return None
    if any(matmul.attr(name, 0) for name in ("transB", "transBatchB")):
        return None
    if not numbers(*after) or not _is_supported(matmul) or not _is_never_empty(m, "B"):
        return None
    shape = (*after[:-2], after[-1], after[-2])
    stacked = New("Reshape", [m.inner, Tensor.of(np.array(shape, np.int64))], types=[with_shape(m.inner, shape)])
    return _fused(m, (m.other, stacked), {**matmul.attrs, "transB": 1, "transBatchB": 0})


@rule("MatmulTransposeFusion", *_products("other", P("Transpose", "inner", name="transpose")))
def keep_last_axis(m: Match) -> Replacement:
    """MatMul(a, Transpose(b))  ->  FusedMatMul<transB>(a, Transpose(b)) with the last axis of b in place, if more axes move

    Counterpart: none: its kernel then moves elements one by one
    """
    matmul, perm = m.node("matmul"), transpose_perm(m.node("transpose")) or ()
    kept = (*perm[:-2], *perm[:-3:-1])
    if halves(perm, m.inner) is None or kept[-1] != len(perm) - 1 or min(len(perm), m.other.rank or 0) < 2:
        return None
    if any(matmul.attr(name, 0) for name in ("transB", "transBatchB")):
        return None
    if not _is_supported(matmul) or not _is_never_empty(m, "B"):
        return None
    moved = New("Transpose", [m.inner], {"perm": Ints(kept)}, types=[permuted_type(m.inner.type, kept)])
    return _fused(m, (m.other, moved), {**matmul.attrs, "transB": 1, "transBatchB": 0})


def _inner(m: Match) -> NewInput:
    """The tensor before it is transposed, with the type that it has after a Cast, if there is one."""
    cast = m.optional_node("cast")
    return m.inner if cast is None else New("Cast", [m.inner], like=cast, types=[with_shape(cast.out, m.inner.shape)])


def _is_never_empty(m: Match, side: str) -> bool:
    """False if operands may be empty in a way that MatMul supports and FusedMatMul does not.

    With a transposed operand, onnxruntime 1.31 leaves sums of no products uninitialized, and refuses an empty stack of
    matrices before a single one.
    """
    matmul = m.node("matmul")
    left, right = matmul.present_inputs
    summed = (left.dim(-2 if matmul.attr("transA", 0) else -1), right.dim(-1 if matmul.attr("transB", 0) else -2))
    if not any(map(numbers, summed)):
        return False
    stacked = side == "A" and left.rank != 2 and right.rank == 2
    return not stacked or bool(numbers(*(left.shape or (None,))))


_SCALE = C("scale", one=True)


def _goes_to_products(scaling: Node) -> bool:
    """True if all readers of a result are products into which the factor can be fused."""
    out, graph = scaling.out, scaling.graph
    readers = out.consumers
    products = all(n.op in ("MatMul", "FusedMatMul") and n.graph is graph and n.ep == scaling.ep for n in readers)
    return products and not out.is_output


def _scaled_operand(op: str, slot: int) -> tuple[P, ...]:
    inner = P(op, "inner", _SCALE, commutative=op == "Mul", name="scaling", shared=True, where=_goes_to_products)
    return _products(inner, "other") if slot == 0 else _products("other", inner)


@rule("MatMulScaleFusion", *(p for slot in (0, 1) for op in ("Mul", "Div") for p in _scaled_operand(op, slot)))
def fuse_scaled_operand(m: Match) -> Replacement:
    """MatMul(a * k, b) or MatMul(a, b * k)  ->  FusedMatMul<alpha = k>(a, b)

    Counterpart: MatMulScaleFusion
    Differs: for double only if alpha, a float32, is exact; 0 and factors that overflow are not fused.
    """
    is_first = m.node("matmul").inputs[0] is m.node("scaling").out
    return _with_alpha(m, (m.inner, m.other) if is_first else (m.other, m.inner), m.inner)


@rule("MatMulScaleFusion", *(p for inner in _products("a", "b") for p in with_factor(inner, _SCALE, "scaling")))
def fuse_scaled_product(m: Match) -> Replacement:
    "MatMul(a, b) * k  ->  FusedMatMul<alpha = k>(a, b)"
    return _with_alpha(m, (m.a, m.b), m.node("matmul").out)


def _with_alpha(m: Match, operands: tuple[Value, Value], scaled: Value) -> Replacement:
    matmul = m.node("matmul")
    if not _is_supported(matmul) or not keeps_rank(scaled, m.scale):
        return None
    factor = float(m.tensor("scale").item())
    if factor == 0 or not math.isfinite(factor):
        return None
    before = float(matmul.attr("alpha", 1.0))
    alpha = before / factor if m.node("scaling").op == "Div" else before * factor
    single = float(np.float32(alpha)) if abs(alpha) < np.finfo(np.float32).max else math.inf
    exact = single == alpha or scaled.dtype is DType.FLOAT
    if not exact or not math.isfinite(single) or abs(single) < np.finfo(np.float32).tiny:
        return None
    return _fused(m, operands, {**matmul.attrs, "alpha": single})


def _is_supported(matmul: Node) -> bool:
    return all(v is not None and v.dtype in (DType.FLOAT, DType.DOUBLE) for v in matmul.inputs[:2])


def _fused(m: Match, operands: tuple[NewInput, NewInput], attrs: dict[str, Attribute]) -> New:
    return New("FusedMatMul", operands, attrs, domain=MICROSOFT, like=m.node("matmul"))


def _stack(side: str) -> P:
    return P("Reshape", side, ..., name=f"stack_{side}", shared=True)


@rule("StackedMatMulFusion", *(P("Reshape", product, ...) for product in _products(_stack("a"), _stack("b"))))
def fuse_stack(m: Match) -> Replacement:
    """Reshape(MatMul(Reshape(a), Reshape(b)))  ->  MatMul(a, b), if the Reshapes merge leading axes and split them again"""
    matmul, values = m.node("matmul"), (m.a, m.b, m.root.out)
    stacks = (m.node("stack_a").out, m.node("stack_b").out, matmul.out)
    if not all(map(_merges_leading_axes, values, stacks)) or any(matmul.attr(f"transBatch{side}", 0) for side in "AB"):
        return None
    leading = [(value.shape or ())[:-2] for value in values]
    if not all(equal_shapes(leading[0], other) for other in leading):
        return None
    return New(matmul.op, [m.a, m.b], domain=matmul.domain, like=matmul, types=[m.root.out.type])


def _merges_leading_axes(value: Value, stack: Value) -> bool:
    """True if the second value has the axes of the first one, but a single one for all before the last two."""
    before, after = value.shape or (), stack.shape or ()
    return len(after) == 3 <= len(before) and all(map(same_dim, before[-2:], after[-2:]))


TRANSPOSED = fuse_transpose + keep_last_axis + fuse_transpose_before_reshape
SCALED = fuse_scaled_operand + fuse_scaled_product
