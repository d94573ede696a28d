"""Matrix products in forms that NNAPI supports: two matrices, the second constant, or stacks of equal size."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import broadcasts_into, rounded, wide
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import (
    MICROSOFT,
    add,
    is_float,
    mul,
    number,
    op,
    passes,
    reshape,
    summand,
    transpose,
)
from ortconv.optimizer.pattern import C, Match, P

# ---------------------------------------------------------------------- MatMul


def _stack_by_matrix(product: Node) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """The shapes of a stack of matrices and of the single matrix by which it is multiplied, without leading 1s."""
    a, b = product.inputs
    if a is None or b is None or not is_float(a, b):
        return None
    left, right = a.static_shape, b.static_shape
    if left is None or right is None or len(left) < 3 or len(right) < 2 or 0 in (*left, *right):
        return None
    if any(d != 1 for d in right[:-2]) or len(right) > len(left):
        return None
    return left, (right[-2], right[-1])


def _matrix(b: Value, shape: tuple[int, int]) -> NewInput:
    if b.rank == 2:
        return b
    return b.constant.numpy().reshape(shape) if b.constant is not None else reshape(b, shape)


def _has_bias(product: Node) -> bool:
    """True if the only reader adds a constant per column, which then becomes the bias."""
    if len(product.out.uses) != 1 or product.out.is_output:
        return False
    ((reader, slot),) = product.out.uses
    k = reader.input(1 - slot) if reader.is_op("Add") and reader.graph is product.graph else None
    return k is not None and k.constant is not None and broadcasts_into(k.shape, (product.out.dim(-1),))


@rule(
    "MatMulToRows",
    P("Add", P("MatMul", "a", "b", name="product"), C("k"), commutative=True),
    P("MatMul", "a", "b", where=lambda node: node.inputs[1] is not None and node.inputs[1].constant is not None),
)
def by_rows(m: Match) -> Replacement:
    """MatMul(a, b) + k  ->  Reshape(Gemm(Reshape(a), b, k)), for a stack of matrices a and one constant matrix b

    Counterpart: MatMulAddFusion
    Opt-in: two more nodes, which hide attention from its fusions; useful only if an accelerator supports only matrices.
    """
    product: Node = m.bound.get("product", m.root)
    shapes = _stack_by_matrix(product)
    if shapes is None or m.b.constant is None or (product is m.root and _has_bias(product)):
        return None
    left, (inner, columns) = shapes
    rows = reshape(m.a, (math.prod(left[:-1]), inner))
    whole = (*left[:-1], columns)
    k: Value | None = m.bound.get("k")
    if k is None:
        return reshape(New("MatMul", [rows, _matrix(m.b, (inner, columns))], like=product), whole)
    if not is_float(k) or not broadcasts_into(k.shape, (columns,)):
        return None
    bias = k if k.static_shape == (columns,) else np.broadcast_to(k.constant.numpy(), (columns,))  # type: ignore[union-attr]
    return reshape(New("Gemm", [rows, _matrix(m.b, (inner, columns)), bias], {}, like=product), whole)


@rule("MatMulToGemm", P("MatMul", "a", "b"))
def by_gemm(m: Match) -> Replacement:
    """MatMul(a, b)  ->  Reshape(Gemm<transB = 1>(Reshape(a), Transpose(b))), for a computed matrix b

    Counterpart: none: CPU kernels support MatMul
    Opt-in: more nodes; useful only if an accelerator supports computed weights only in the form of Gemm.
    """
    if m.b.constant is not None:
        return None
    left, right = m.a.static_shape, m.b.static_shape
    if (
        not is_float(m.a, m.b)
        or left is None
        or right is None
        or len(left) < 2
        or len(right) < 2
        or 0 in (*left, *right)
    ):
        return None
    if any(d != 1 for d in right[:-2]) or len(right) > len(left):
        return None
    b = _matrix(m.b, (right[-2], right[-1]))
    a = m.a if len(left) == 2 else reshape(m.a, (math.prod(left[:-1]), left[-1]))
    product = op("Gemm", a, transpose(b, (1, 0)), *summand(None, right[-1], m.graph), transB=1)
    return product if len(left) == 2 else reshape(product, (*left[:-1], right[-1]))


@rule("MatMulToEqualRanks", P("MatMul", "a", "b"))
def equal_ranks(m: Match) -> Replacement:
    """MatMul of stacks of matrices of different ranks, or of vectors  ->  MatMul of equal ranks, between Reshapes

    A constant stack is repeated if it is smaller than the other one.

    Counterpart: none: CPU kernels support MatMul
    Opt-in: more nodes and constants; useful only if an accelerator needs stacks of equal size.
    """
    left, right = m.a.static_shape, m.b.static_shape
    if not is_float(m.a, m.b) or not left or not right or 0 in (*left, *right):
        return None
    if len(left) == 1 or len(right) == 1:
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
    sides = [v if v.static_shape == s else _reshaped(v, s) for v, s in ((m.a, a), (m.b, b))]
    return reshape(op("MatMul", *sides), shape)


def _reshaped(value: Value, shape: tuple[int, ...]) -> NewInput:
    return value.constant.numpy().reshape(shape) if value.constant is not None else reshape(value, shape)


LARGEST_REPEAT = 1 << 20
"""Maximum number of elements of a constant after repetition."""


def _repeated(value: Value, shape: tuple[int, ...]) -> NewInput:
    """The value repeated to a shape into which it broadcasts; None if it is computed and would have to be repeated."""
    own = value.static_shape
    if own == shape:
        return value
    if own is not None and math.prod(own) == math.prod(shape):
        return _reshaped(value, shape)
    if value.constant is None or math.prod(shape) > LARGEST_REPEAT:
        return None
    return np.broadcast_to(value.constant.numpy(), shape)


# ---------------------------------------------------------------------- Gemm


@rule("GemmToPlainGemm", P("Gemm", "a", "b", "c?"))
def plain_gemm(m: Match) -> Replacement:
    """Gemm with alpha, beta, transA, a computed b or any c  ->  Gemm without them, with Transpose, Mul and Add if
    needed

    Counterpart: none: CPU kernels support Gemm
    Opt-in: more nodes; useful only if an accelerator has only the plain form.
    """
    node, out = m.root, m.root.out.static_shape
    if not is_float(m.a, m.b, m.c) or out is None or m.a.rank != 2:
        return None
    alpha, beta = float(attribute(node, "alpha")), float(attribute(node, "beta"))
    b, c = m.b, m.c if beta != 0 else None
    transposed = bool(node.attr("transB", 0))
    computed = b.constant is None and not transposed
    kept = c if beta == 1 and _is_row(c, out[1]) else None
    if not computed and _is_plain(node, alpha) and m.c is kept:
        return None
    a = transpose(m.a, (1, 0)) if node.attr("transA", 0) else m.a
    scales_later = alpha != 1 and b.constant is None
    bias = _folded(c, beta, out[1], kept)
    inside = bias is not None and not scales_later
    attrs = {"transB": 1} if computed or transposed else {}
    inputs = [a, _weights(b, alpha, computed), *summand(bias if inside else None, out[1], m.graph)]
    result = New("Gemm", inputs, attrs, like=node)
    if scales_later:
        result = mul(result, number(alpha))
    return result if c is None or inside else add(result, _scaled(c, beta, bias))


def _is_plain(node: Node, alpha: float) -> bool:
    return alpha == 1 and not node.attr("transA", 0)


def _is_row(c: Value | None, width: int) -> bool:
    """True if a value has one number per column."""
    return c is not None and c.static_shape in ((width,), (1, width))


def _weights(b: Value, alpha: float, computed: bool) -> NewInput:
    """The second operand: scaled if it is constant, transposed if it is computed."""
    if computed:
        return transpose(b, (1, 0))
    return b if alpha == 1 or b.constant is None else rounded(alpha * wide(b), b.constant.dtype)


def _folded(c: Value | None, beta: float, width: int, kept: Value | None) -> NewInput:
    """A constant summand multiplied by beta, as one number per column; for any other summand, `kept`."""
    if c is None or c.constant is None or not broadcasts_into(c.shape, (width,)):
        return kept
    return np.broadcast_to(rounded(beta * wide(c), c.constant.dtype), (width,))  # type: ignore[arg-type]


def _scaled(c: Value, beta: float, bias: NewInput) -> NewInput:
    """The bias if there is one, else the summand multiplied by beta."""
    if bias is not None:
        return bias
    return c if beta == 1 else mul(c, number(beta))


# ---------------------------------------------------------------------- fused products


def _activated(x: New, name: str, alpha: float | None, beta: float | None) -> New | None:
    """The activation of a fused operator, applied to x; None if the activation is unknown."""
    if name in ("Relu", "Sigmoid", "Tanh"):
        return op(name, x)
    if name == "LeakyRelu":
        return op(name, x, alpha=0.01 if alpha is None else alpha)
    return None


@rule("FusedGemmToGemm", P("FusedGemm", "a", "b", "c?", domain=MICROSOFT))
def fused_gemm(m: Match) -> Replacement:
    """FusedGemm(a, b, c)  ->  Gemm(a, b, c) and its activation

    Counterpart: none: GemmActivationFusion is the reverse
    Opt-in: undoes a fusion in models that were optimized for the CPU earlier.
    """
    attrs = {k: v for k, v in m.root.attrs.items() if not k.startswith("activation")}
    columns = m.root.out.dim(1)
    if not isinstance(columns, int):
        return None
    gemm = New("Gemm", [m.a, m.b, *summand(m.c, columns, m.graph)], attrs, like=m.root)
    alpha = m.root.attrs.get("activation_alpha")
    return _activated(gemm, m.root.attr("activation", ""), alpha if isinstance(alpha, float) else None, None)


@rule("FusedMatMulToMatMul", P("FusedMatMul", "a", "b", domain=MICROSOFT))
def fused_matmul(m: Match) -> Replacement:
    """FusedMatMul<alpha, transA, transB>(a, b)  ->  alpha * MatMul(Transpose(a), Transpose(b))

    Counterpart: none: MatMulTransposeFusion and MatMulScaleFusion are the reverse
    Opt-in: undoes a fusion in models that were optimized for the CPU earlier.
    """
    if any(m.root.attr(f"transBatch{side}", 0) for side in "AB"):
        return None
    sides: list[NewInput] = []
    for value, flag in ((m.a, "transA"), (m.b, "transB")):
        if value.rank is None:
            return None
        flipped = m.root.attr(flag, 0) and value.rank > 1
        perm = (*range(value.rank - 2), value.rank - 1, value.rank - 2)
        sides.append(transpose(value, perm) if flipped else value)
    product = New("MatMul", sides, {}, like=m.root)
    alpha = m.root.attr("alpha", 1.0)
    return product if alpha == 1 else mul(product, number(alpha))


PASSES = passes(by_rows, by_gemm, equal_ranks, plain_gemm, fused_gemm, fused_matmul)
