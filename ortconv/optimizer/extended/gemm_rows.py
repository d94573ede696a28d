"""A Gemm between the Reshape that flattens rows and the one that restores them becomes MatMul, which needs neither."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import same_dim
from ortconv.optimizer.engine import New, NewInput, Replacement, RulePass, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.shapes import dim_of, refined, target

_GEMM = P(
    "Gemm", P("Reshape", "x", ..., name="flat", shared=True), C("weight"), C("bias", optional=True), name="gemm"
)  # fmt: skip


@rule("GemmRowsFusion", P("Reshape", _GEMM, ..., name="whole"))
def fuse_rows(m: Match) -> Replacement:
    """Reshape(Gemm(Reshape(x, (-1, columns)), w, b), (..., width))  ->  MatMul(x, w) + b

    Counterpart: none: ONNX Runtime does the reverse (MatMulAddFusion), which results in more nodes and is not faster
    """
    x: Value = m.x
    weight = m.weight.constant
    rank, plain = x.rank, attribute(m.gemm, "alpha") == 1 and not attribute(m.gemm, "transA")
    if x.dtype is not DType.FLOAT or rank is None or rank < 3 or not plain or weight.rank != 2:
        return None
    transposed = bool(attribute(m.gemm, "transB"))
    columns, width = weight.shape[::-1] if transposed else weight.shape
    if x.dim(-1) != columns or m.flat.out.rank != 2 or not same_dim(m.flat.out.dim(1), columns):
        return None
    if not _restores(m, x, rank, width):
        return None
    matrix: NewInput = m.weight if not transposed else np.ascontiguousarray(weight.numpy().T)
    assert x.shape is not None
    assert x.dtype is not None
    types = [TensorType(x.dtype, (*x.shape[:-1], width))]
    product = New("MatMul", [x, matrix], types=types, like=m.gemm, attrs={})
    if m.bias is None:
        return product
    if attribute(m.gemm, "beta") != 1 or m.bias.shape not in ((width,), (1, width)):
        return None
    vector: NewInput = m.bias if m.bias.rank == 1 else m.bias.constant.numpy().reshape(-1)
    return New("Add", [product, vector], types=types)


def _restores(m: Match, x: Value, rank: int, width: int) -> bool:
    """True if the second Reshape restores the leading dimensions of x; one may be -1."""
    wanted = target(m.whole)
    if wanted is None or len(wanted) != rank or wanted.count(-1) > 1 or any(x.dim(i) == 0 for i in range(rank)):
        return False
    dims = refined(wanted, m.root.out)
    leading = all(w == -1 or dim_of(x, i) in (w, d) for i, (w, d) in enumerate(zip(wanted[:-1], dims)))
    return leading and (wanted[-1] in (-1, width) or dims[-1] == width)


PASSES = (RulePass("GemmRowsFusion", fuse_rows),)
