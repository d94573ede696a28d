"""Fuses products with 4-bit weights into com.microsoft:MatMulNBits, which keeps the activations in float32.

Weights of 8 bits are unchanged: in float32 that kernel is slower than DequantizeLinear and MatMul.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array, Tensor, two_per_byte
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import is_plain_gemm, numbers, without_absent
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.extended.qdq import product
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import DOMAINS, LIMITS, microsoft

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
UNBLOCKED = 32
"""The block size for weights with one scale, or with one per column."""

DEFAULT_ZERO_POINT = 8

FLOAT32 = 1
"""The accuracy level that computes in float32."""


def _constants(dq: Node) -> tuple[Tensor, Array, Array] | None:
    """The 4-bit weight matrix of a DequantizeLinear, its float32 scales, and its zero points, if all are constant; else None."""
    weight, scale, zero = (dq.constant(i) for i in range(3))
    if weight is None or scale is None or (zero is None and dq.input(2) is not None):
        return None
    if weight.dtype not in (DType.INT4, DType.UINT4) or len(numbers(*weight.shape)) != 2:
        return None
    if {scale.dtype, dq.out.dtype} != {DType.FLOAT}:
        return None
    return weight, scale.numpy(), np.zeros(scale.shape, np.int8) if zero is None else zero.numpy().astype(np.int8)


def _blocks(dq: Node) -> tuple[list[Array | None], dict[str, Attribute]] | None:
    """The inputs and attributes of MatMulNBits for a weight (K, N): values (N, blocks, bytes), scales, zero points or None."""
    constants = _constants(dq)
    if constants is None:
        return None
    weight, scale, zeros = constants
    rows, columns = weight.shape
    size, (low, _) = int(dq.attr("block_size", 0)), LIMITS[weight.dtype]
    scales = _by_block(scale, dq, rows, columns, size)
    offsets = _by_block((zeros - low).astype(np.uint8), dq, rows, columns, size)
    size = size or UNBLOCKED
    if scales is None or offsets is None or not SMALLEST_BLOCK <= size <= LARGEST_BLOCK or size & (size - 1):
        return None
    count = len(scales)
    codes = np.zeros((count * size, columns), np.uint8)
    codes[:rows] = weight.numpy().astype(np.int8) - low
    packed = two_per_byte(codes.T.reshape(columns, count, size))
    zero_points = None if (offsets == DEFAULT_ZERO_POINT).all() else two_per_byte(offsets.T).reshape(-1)
    attrs: dict[str, Attribute] = {"K": rows, "N": columns, "bits": 4, "block_size": size, "accuracy_level": FLOAT32}
    return [packed, np.ascontiguousarray(scales.T).reshape(-1), zero_points], attrs


def _by_block(parameter: Array, dq: Node, rows: int, columns: int, size: int) -> Array | None:
    """A scale or zero point as (blocks, N); None if it neither varies along the rows nor per column."""
    axis = int(dq.attr("axis", 1)) % 2
    if size:
        blocks = -(-rows // size)
        return parameter if parameter.shape == (blocks, columns) else None
    blocks = -(-rows // UNBLOCKED)
    if parameter.size != 1 and (axis != 1 or parameter.shape != (columns,)):
        return None
    return np.ascontiguousarray(np.broadcast_to(parameter.reshape(1, -1), (blocks, columns)))


_WEIGHTS = tuple(P("DequantizeLinear", C("weight"), ..., name="dequantize", domain=d) for d in DOMAINS)


@rule("QDQSelectorActionTransformer", *(P("MatMul", "a", w) for w in _WEIGHTS))
def fuse_matmul(m: Match) -> Replacement:
    """MatMul(a, DQ(w)) with 4-bit w  ->  MatMulNBits(a, w)"""
    return _fused(m, None)


@rule("QDQSelectorActionTransformer", *(P("Gemm", "a", w, "c?") for w in _WEIGHTS))
def fuse_gemm(m: Match) -> Replacement:
    """Gemm(a, DQ(w), c) with 4-bit w  ->  MatMulNBits(a, w, c)"""
    if not is_plain_gemm(m.root) or m.root.attr("transB", 0):
        return None
    if m.c is not None and m.c.static_shape != (m.weight.dim(-1),):
        return None
    return _fused(m, m.c)


def _fused(m: Match, bias: Value | None) -> Replacement:
    if (m.a.rank or 0) < 2:
        return None
    blocks = _blocks(m.node("dequantize"))
    if blocks is None:
        return None
    weights, attrs = blocks
    return microsoft("MatMulNBits", without_absent([m.a, *weights, None, bias]), m.root, attrs)


@rule(
    "MatMulNBitsFusion", P("Add", P("MatMulNBits", ..., name="product", domain=MICROSOFT), C("bias"), commutative=True)
)
def fuse_bias(m: Match) -> Replacement:
    """MatMulNBits(a, w) + bias  ->  MatMulNBits(a, w, bias)

    Counterpart: MatMulNBitsFusion
    """
    product = m.node("product")
    if product.input(5) is not None or m.bias.static_shape != (product.attr("N", 0),):
        return None
    return microsoft("MatMulNBits", [*map(product.input, range(5)), m.bias], product, dict(product.attrs))


RULES = fuse_matmul + fuse_gemm
BEHIND_DEQUANTIZE = product.FLOAT_RULES + RULES
