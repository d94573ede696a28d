"""Fuses products with 4-bit weights into com.microsoft:MatMulNBits, which keeps the activations in float32.

Weights of 8 bits are fused only on request, with activations of 8 bits: in float32 that kernel is slower than DequantizeLinear and
MatMul.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Attribute
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array, two_per_byte
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import array_of, is_plain_gemm, numbers, without_absent
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.extended.qdq import product
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import DOMAINS, LIMITS, microsoft

BLOCK_SIZES = (16, 32, 64, 128, 256)
UNBLOCKED = 32
"""The block size for weights with one scale, or with one per column."""

FLOAT32 = 1
"""The accuracy level that computes in float32."""


def _blocks(m: Match, bits: int, is_transposed: bool) -> tuple[list[Array | None], dict[str, Attribute]] | None:
    """The inputs and attributes of MatMulNBits for a weight (K, N), or (N, K) if it is transposed: values (N, blocks, bytes),
    scales, zero points or None. None if the blocks or types do not fit.
    """
    dq, weight = m.node("dequantize"), m.tensor("weight")
    if weight.dtype not in LIMITS or weight.dtype.bits != bits or len(numbers(*weight.shape)) != 2:
        return None
    if {m.scale.dtype, dq.out.dtype} != {DType.FLOAT}:
        return None
    scale, zero = m.tensor("scale").numpy(), m.optional("zero")
    zeros = np.zeros(scale.shape, np.int8) if zero is None else array_of(zero).astype(np.int8)
    codes, size, low = weight.numpy().astype(np.int8), int(dq.attr("block_size", 0)), np.int8(LIMITS[weight.dtype][0])
    axis = int(dq.attr("axis", 1)) % 2
    if is_transposed:
        codes, scale, zeros, axis = codes.T, scale.T, zeros.T, 1 - axis
    rows, columns = codes.shape
    scales = _by_block(scale, axis, rows, columns, size)
    offsets = _by_block((zeros - low).view(np.uint8), axis, rows, columns, size)
    size = size or UNBLOCKED
    if scales is None or offsets is None or size not in BLOCK_SIZES:
        return None
    count = len(scales)
    padded = np.zeros((columns, count * size), np.uint8)
    padded[:, :rows] = (codes - low).view(np.uint8).T
    pack = two_per_byte if bits == 4 else np.ascontiguousarray
    packed = pack(padded.reshape(columns, count, size))
    zero_points = None if (offsets == 1 << bits - 1).all() else pack(offsets.T).reshape(-1)
    attrs: dict[str, Attribute] = {"K": rows, "N": columns, "bits": bits, "block_size": size}
    return [packed, np.ascontiguousarray(scales.T).reshape(-1), zero_points], attrs


def _by_block(parameter: Array, axis: int, rows: int, columns: int, size: int) -> Array | None:
    """A scale or zero point as (blocks, N); None if it neither varies along the rows nor per column."""
    if size:
        blocks = -(-rows // size)
        return parameter if parameter.shape == (blocks, columns) else None
    blocks = -(-rows // UNBLOCKED)
    if parameter.size != 1 and (axis != 1 or parameter.shape != (columns,)):
        return None
    return np.ascontiguousarray(np.broadcast_to(parameter.reshape(1, -1), (blocks, columns)))


_QUANTIZED = (C("weight"), C("scale"), C("zero", optional=True))
WEIGHTS = tuple(P("DequantizeLinear", *_QUANTIZED, name="dequantize", domain=d) for d in DOMAINS)


PRODUCTS = (*(P("MatMul", "a", w) for w in WEIGHTS), *(P("Gemm", "a", w, "c?") for w in WEIGHTS))


@rule("QDQSelectorActionTransformer", *PRODUCTS)
def fuse_product(m: Match) -> Replacement:
    """MatMul(a, DQ(w)) with 4-bit w  ->  MatMulNBits(a, w); Gemm(a, DQ(w), c) with 4-bit w  ->  MatMulNBits(a, w, c)"""
    return fused(m, 4, FLOAT32)


def fused(m: Match, bits: int, accuracy_level: int) -> Replacement:
    """MatMulNBits for a product of `a` and a weight of this number of bits behind `dequantize`; None if it cannot hold them.

    A Gemm must be a plain product, with at most a bias of one number for each column.
    """
    bias, transposed = m.optional("c"), bool(m.root.attr("transB", 0))
    if (m.a.rank or 0) < 2 or (m.root.op == "Gemm" and not is_plain_gemm(m.root)):
        return None
    if bias is not None and bias.static_shape != (m.weight.dim(0 if transposed else 1),):
        return None
    blocks = _blocks(m, bits, transposed)
    if blocks is None:
        return None
    weights, attrs = blocks
    attrs["accuracy_level"] = accuracy_level
    return microsoft("MatMulNBits", without_absent([m.a, *weights, None, bias]), m.root, attrs)


_PRODUCT = P("MatMulNBits", ..., name="product", domain=MICROSOFT)


@rule("MatMulNBitsFusion", P("Add", _PRODUCT, C("bias"), commutative=True))
def fuse_bias(m: Match) -> Replacement:
    """MatMulNBits(a, w) + bias  ->  MatMulNBits(a, w, bias)

    Counterpart: MatMulNBitsFusion
    """
    product = m.node("product")
    if product.input(5) is not None or m.bias.static_shape != (product.attr("N", 0),):
        return None
    return microsoft("MatMulNBits", [*map(product.input, range(5)), m.bias], product, dict(product.attrs))


RULES = fuse_product
BEHIND_DEQUANTIZE = product.FLOAT_RULES + RULES
