"""A Gemm between the Reshape that flattens rows and the one that restores them becomes MatMul, which needs neither."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import is_plain_gemm, with_shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
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
    gemm = m.node("gemm")
    x = m.x
    weight, transposed = m.tensor("weight"), bool(attribute(gemm, "transB"))
    if x.dtype is not DType.FLOAT or weight.rank != 2 or not is_plain_gemm(gemm):
        return None
    columns, width = weight.shape[::-1] if transposed else weight.shape
    flat = m.node("flat").out
    if x.dim(-1) != columns or flat.rank != 2 or flat.dim(1) != columns or not _restores(m, x, width):
        return None
    if m.bias is not None and m.bias.shape not in ((width,), (1, width)):
        return None
    matrix: NewInput = m.weight if not transposed else np.ascontiguousarray(weight.numpy().T)
    types = [with_shape(x, (*(x.shape or ())[:-1], width))]
    product = New("MatMul", [x, matrix], types=types, like=gemm, attrs={})
    if m.bias is None:
        return product
    return New("Add", [product, m.bias if m.bias.rank == 1 else m.tensor("bias").numpy().reshape(-1)], types=types)


def _restores(m: Match, x: Value, width: int) -> bool:
    """True if the second Reshape restores the leading dimensions of x, at least two; one may be -1."""
    wanted, shape = target(m.node("whole")), x.shape or ()
    if wanted is None or not 3 <= len(wanted) == len(shape) or wanted.count(-1) > 1 or 0 in shape:
        return False
    dims = refined(wanted, m.root.out)
    leading = all(w == -1 or dim_of(x, i) in (w, d) for i, (w, d) in enumerate(zip(wanted[:-1], dims)))
    return leading and (wanted[-1] in (-1, width) or dims[-1] == width)
