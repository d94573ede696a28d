"""Matrix products in forms that NNAPI supports: two matrices, the second constant, or stacks of equal size."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import only_use, producer_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.optimizer import standard_forms
from ortconv.optimizer.conditions import broadcasts_into, rounded, wide
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import add, is_float, mul, op, reshape, reshaped, shape_of, transpose
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import summand


def _by_matrix(m: Match) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """The shapes of a matrix or stack of matrices, and of the single matrix by which it is multiplied, without leading 1s."""
    left, right = shape_of(m.a), shape_of(m.b)
    if left is None or right is None or not 2 <= len(right) <= len(left) or any(d != 1 for d in right[:-2]):
        return None
    return left, (right[-2], right[-1])


def _matrix(b: Value, shape: tuple[int, int]) -> NewInput:
    return b if b.rank == 2 else reshaped(b, shape)


def _is_computed(b: Value) -> bool:
    """True for a matrix that is neither constant nor made of quantized constants."""
    dq = producer_of(b, "DequantizeLinear")
    return b.constant is None and (dq is None or dq.constant(0) is None)


def _has_bias(product: Node) -> bool:
    """True if the only reader adds a constant per column, which then becomes the bias."""
    use = only_use(product.out)
    k = use[0].input(1 - use[1]) if use is not None and use[0].is_op("Add") else None
    return k is not None and k.constant is not None and broadcasts_into(k.shape, (product.out.dim(-1),))


@rule(
    "MatMulToRows", P("Add", P("MatMul", "a", "b", name="product"), C("k"), commutative=True), P("MatMul", "a", C("b"))
)
def by_rows(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)), for a stack of matrices a and one constant matrix b

    Counterpart: MatMulAddFusion
    Opt-in: two more nodes, which hide attention from its fusions; useful only if an accelerator supports only matrices.
    """
    product = m.optional_node("product") or m.root
    shapes = _by_matrix(m)
    if shapes is None or len(shapes[0]) < 3 or m.b.constant is None or (product is m.root and _has_bias(product)):
        return None
    left, (inner, columns) = shapes
    rows = reshape(m.a, (math.prod(left[:-1]), inner))
    whole = (*left[:-1], columns)
    k = m.optional("k")
    if k is None:
        return reshape(New("MatMul", [rows, _matrix(m.b, (inner, columns))], like=product), whole)
    if not is_float(k) or not broadcasts_into(k.shape, (columns,)):
        return None
    bias = k if k.static_shape == (columns,) else np.broadcast_to(m.tensor("k").numpy(), (columns,))
    return reshape(New("Gemm", [rows, _matrix(m.b, (inner, columns)), bias], {}, like=product), whole)


@rule("MatMulToGemm", P("MatMul", "a", "b"))
def by_gemm(m: Match) -> Replacement:
    """MatMul(a, b)  ->  Reshape(Gemm<transB = 1>(Reshape(a), Transpose(b))), for a computed matrix b

    Opt-in: more nodes; useful only if an accelerator supports computed weights only in the form of Gemm.
    """
    shapes = _by_matrix(m)
    if shapes is None or not _is_computed(m.b):
        return None
    left, (inner, columns) = shapes
    b = transpose(_matrix(m.b, (inner, columns)), (1, 0))
    a = m.a if len(left) == 2 else reshape(m.a, (math.prod(left[:-1]), inner))
    product = op("Gemm", a, b, *summand(None, columns, m.graph), transB=1)
    return product if len(left) == 2 else reshape(product, (*left[:-1], columns))


@rule("MatMulToEqualRanks", P("MatMul", "a", "b"))
def equal_ranks(m: Match) -> Replacement:
    """MatMul of stacks of matrices of different ranks, or of vectors  ->  MatMul of equal ranks, between Reshapes

    A constant stack is repeated if it is smaller than the other one.

    Opt-in: more nodes and constants; useful only if an accelerator needs stacks of equal size.
    """
    left, right = shape_of(m.a), shape_of(m.b)
    if not left or not right:
        return None
    if 1 in (len(left), len(right)):
        return _by_vectors(m, left, right)
    rank = max(len(left), len(right))
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    wanted = [(*batch, *shape[-2:]) for shape in (left, right)]
    if rank < 3 or [left, right] == wanted:
        return None
    sides = [_repeated(v, shape) for v, shape in zip((m.a, m.b), wanted)]
    return None if any(s is None for s in sides) else op("MatMul", *sides)


def _by_vectors(m: Match, left: tuple[int, ...], right: tuple[int, ...]) -> Replacement:
    a, b = left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    shape = (*batch, *(left[-2:-1] if len(left) > 1 else ()), *(right[-1:] if len(right) > 1 else ()))
    if not shape:
        return None
    sides = [v if v.static_shape == s else reshaped(v, s) for v, s in ((m.a, a), (m.b, b))]
    return reshape(op("MatMul", *sides), shape)


LARGEST_REPEAT = 1 << 20
"""Maximum number of elements of a constant after repetition."""


def _repeated(value: Value, shape: tuple[int, ...]) -> NewInput:
    """The value repeated to a shape into which it broadcasts; None if it is computed and would have to be repeated."""
    own = value.static_shape
    if own == shape:
        return value
    if own is not None and math.prod(own) == math.prod(shape):
        return reshaped(value, shape)
    if value.constant is None or math.prod(shape) > LARGEST_REPEAT:
        return None
    return np.broadcast_to(value.constant.numpy(), shape)


@rule("GemmToPlainGemm", P("Gemm", "a", "b", "c?"))
def plain_gemm(m: Match) -> Replacement:
    """Gemm with alpha, beta, transA, a computed b or any c  ->  Gemm without them, with Transpose, Mul and Add if needed

    Opt-in: more nodes; useful only if an accelerator has only the plain form.
    """
    node, out = m.root, m.root.out.static_shape
    alpha, beta = float(attribute(node, "alpha")), float(attribute(node, "beta"))
    if not is_float(m.a, m.b, m.c) or out is None or m.a.rank != 2:
        return None
    is_plain = not node.attr("transA", 0) and (not _is_computed(m.b) or node.attr("transB", 0) != 0)
    if is_plain and alpha == 1 and _is_row(m.c, beta, out[1]):
        return None
    c = m.c if beta != 0 else None
    bias, b = _folded(c, beta, out[1]), _scaled_matrix(m, alpha)
    inside = None if b is None else bias
    result = _product(m, m.b if b is None else b, summand(inside, out[1], m.graph))
    if b is None:
        result = mul(result, alpha)
    if c is None or inside is not None:
        return result
    return add(result, bias if bias is not None else c if beta == 1 else mul(c, beta))


def _scaled_matrix(m: Match, alpha: float) -> Value | Array | None:
    """b multiplied by alpha, unless alpha is 1; None if b is computed, or if an element would not be finite."""
    if alpha == 1:
        return m.b
    return None if m.b.constant is None else rounded(alpha * wide(m.b), m.b.constant.dtype)


def _product(m: Match, b: NewInput, bias: list[NewInput]) -> New:
    """The matched Gemm of a and b, without transA and alpha. A computed b is transposed."""
    a = transpose(m.a, (1, 0)) if m.root.attr("transA", 0) else m.a
    transposed = bool(m.root.attr("transB", 0))
    if _is_computed(m.b) and not transposed:
        b, transposed = transpose(b, (1, 0)), True
    return New("Gemm", [a, b, *bias], {"transB": 1} if transposed else {}, like=m.root)


def _is_row(c: Value | None, beta: float, width: int) -> bool:
    """True if a Gemm adds one number per column, or nothing."""
    return c is None or (beta == 1 and c.static_shape in ((width,), (1, width)))


def _folded(c: Value | None, beta: float, width: int) -> NewInput:
    """A constant summand multiplied by beta, as one number per column; another one if it has that form, else None."""
    if c is None or c.constant is None or not broadcasts_into(c.shape, (width,)):
        return c if _is_row(c, beta, width) else None
    scaled = rounded(beta * wide(c), c.constant.dtype)
    return None if scaled is None else np.broadcast_to(scaled, (width,))


@rule("FusedGemmToGemm", P("FusedGemm", "a", "b", "c?", domain=MICROSOFT))
def fused_gemm(m: Match) -> Replacement:
    """FusedGemm(a, b, c)  ->  Gemm(a, b, c) and its activation

    Counterpart: none: GemmActivationFusion is the reverse
    Opt-in: undoes a fusion in models that were optimized for the CPU earlier.
    """
    return standard_forms.fused_gemm(m.root)


@rule("FusedMatMulToMatMul", P("FusedMatMul", "a", "b", domain=MICROSOFT))
def fused_matmul(m: Match) -> Replacement:
    """FusedMatMul<alpha, transA, transB>(a, b)  ->  alpha * MatMul(Transpose(a), Transpose(b))

    Counterpart: none: MatMulTransposeFusion and MatMulScaleFusion are the reverse
    Opt-in: undoes a fusion in models that were optimized for the CPU earlier.
    """
    return standard_forms.fused_matmul(m.root)
