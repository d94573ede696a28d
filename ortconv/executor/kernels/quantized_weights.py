"""Products and layers whose weights are integers or packed values of a few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.gemm_exact import exact_sums, per_column, per_row, prepared_dynamic, prepared_to_float
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.kernels.attention import attention_ms
from ortconv.executor.kernels.normalization import embed_layer_normalization
from ortconv.executor.kernels.quantize import dequantize_linear, dynamic_quantize_linear, requantize
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@kernel("QLinearMatMul")
def qlinear_matmul(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    total = exact_sums(a, b, a_zero, b_zero)
    factor = np.asarray(per_row(widen(a_scale), a) * per_column(widen(b_scale), b) / per_row(widen(y_scale), a))
    return requantize(total, factor, per_row(y_zero, a))


@kernel("QGemm", domain=MICROSOFT)
def qgemm(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    left, right = (a.T if transA else a), (b.T if transB else b)
    total = exact_sums(left, right, a_zero, b_zero)
    if c is not None:
        total = total + c
    factor = np.asarray(a_scale.dtype.type(alpha) * a_scale.reshape(()) * per_column(b_scale, right))
    if y_scale is None:
        return np.asarray(total.astype(factor.dtype) * factor)
    return requantize(total, np.asarray(factor / y_scale.reshape(())), y_zero)


@kernel("MatMulIntegerToFloat", domain=MICROSOFT, prepare=prepared_to_float)
def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    total = exact_sums(a, b, a_zero, b_zero).astype(compute_type(a_scale.dtype), copy=False)
    y = total * (per_row(widen(a_scale), a) * per_column(widen(b_scale), b))
    y = y if bias is None else y + widen(bias)
    return np.asarray(y.astype(a_scale.dtype, copy=False))


@kernel("DynamicQuantizeMatMul", domain=MICROSOFT, prepare=prepared_dynamic)
def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    quantized, scale, zero = dynamic_quantize_linear(a)
    return np.asarray(matmul_integer_to_float(quantized, b, scale, b_scale, zero, b_zero, bias))


@kernel("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    """a @ w^T for w (N, K) of a few bits. Each block of a row has a scale and a zero point; `g_idx` has the block of a column."""
    blocks = -(-K // block_size)
    centered = _without_zero_points(b, zero_points, N, blocks, bits, block_size, compute_type(a.dtype))
    scale = widen(scales).reshape(N, blocks)
    if g_idx is None:
        weights = (centered * scale[:, :, None]).reshape(N, -1)[:, :K]
    else:
        weights = centered.reshape(N, -1)[:, :K] * scale[:, g_idx[:K]]
    y = np.matmul(widen(a), weights.T)
    y = y if bias is None else y + widen(bias)
    return np.asarray(y.astype(a.dtype, copy=False))


def _without_zero_points(
    b: Array, zero_points: Array | None, n: int, blocks: int, bits: int, block_size: int, dtype: np.dtype[Any]
) -> Array:
    """Packed numbers minus their zero points, (n, blocks, block_size)."""
    numbers = unpack_bits(b.reshape(n * blocks, -1), bits, block_size).reshape(n, blocks, block_size).astype(dtype)
    if zero_points is None:
        return np.asarray(numbers - dtype.type(1 << (bits - 1)))
    if zero_points.dtype == np.uint8:
        numbers -= unpack_bits(zero_points.reshape(n, -1), bits, blocks)[:, :, None].astype(dtype)
        return numbers
    return np.asarray(numbers - widen(zero_points).reshape(n, blocks, 1))


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """Rows of little-endian packed unsigned values as (rows, count) uint8."""
    flat = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")
    codes = flat[:, : count * bits].reshape(len(packed), count, bits)
    return np.asarray(codes @ (1 << np.arange(bits, dtype=np.int64))).astype(np.uint8)


@kernel("QAttention", domain=MICROSOFT)
def qattention(
    x: Array,
    weight: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    n_outputs: int = 1,
    **attributes: Any,
) -> Any:
    """Attention whose projection is a product of integers."""

    def project(x: Array, weight: Array, bias: Array) -> Any:
        return matmul_integer_to_float(x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)

    return attention_ms(x, weight, bias, mask_index, past, n_outputs=n_outputs, project=project, **attributes)


@kernel("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word: Array,
    position: Array,
    segment: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    *parameters: Array | None,
    epsilon: float = 1e-12,
) -> Any:
    """`parameters` are the scales of the five tables, then their zero points."""
    half = len(parameters) // 2
    tables = [
        None if t is None or s is None else dequantize_linear(t, s.reshape(()), None if z is None else z.reshape(()))
        for t, s, z in zip((word, position, segment, gamma, beta), parameters[:half], parameters[half:])
    ]
    return embed_layer_normalization(input_ids, segment_ids, *tables, mask, epsilon=epsilon)


@kernel("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Rows are gathered first and then dequantized; indices out of range give zeros."""
    gather, quantized = gather_axis % data.ndim, quantize_axis % data.ndim
    packed = data.dtype == np.uint8
    size = data.shape[gather]
    inside = (indices >= -size) & (indices < size)
    at = np.where(inside, indices % max(size, 1), 0)
    block = block_size or data.shape[quantized]
    values = _codes(np.take(data, at, axis=gather), bits if packed else 0)
    behind = quantized if quantized < gather else quantized + indices.ndim - 1

    def spread(v: Array) -> Array:
        """One number for each value, from one number for each block."""
        if gather == quantized:
            return np.take(v, at // block, axis=gather)
        taken = np.take(v, at if v.shape[gather] > 1 else 0 * at, axis=gather)
        return taken.take(np.arange(values.shape[behind]) // block, axis=behind)

    if zero_points is not None:
        values -= spread(_codes(zero_points, bits if packed else 0)[..., : scales.shape[-1]])
    elif packed:
        values -= np.float32(1 << (bits - 1))
    y = values * spread(widen(scales))
    y *= inside.reshape(*(1,) * gather, *inside.shape, *(1,) * (data.ndim - 1 - gather))
    return y.astype(scales.dtype, copy=False)


def _codes(x: Array, bits: int) -> Array:
    """Values of `bits` bits, unpacked along the last axis, as float32; 0 bits for a type with one number per element."""
    if bits in (0, 8):
        return x.astype(np.float32)
    count = x.shape[-1] * 8 // bits
    return unpack_bits(x.reshape(-1, x.shape[-1]), bits, count).reshape(*x.shape[:-1], count).astype(np.float32)


_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
"""The values of the 16 NF4 codes, before the scale of their block."""
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
"""The magnitudes of the FP4 codes, before the scale of their block."""
_TABLES = np.array([(*_FP4, *(-v for v in _FP4)), _NF4], np.float32)


@kernel("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(
    a: Array,
    b: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Array:
    flat = b.reshape(-1)
    codes = np.stack([flat >> 4, flat & 15], axis=1).reshape(-1)[: N * K]
    weights = _TABLES[quant_type][codes] * np.repeat(widen(absmax).reshape(-1), min(block_size, N * K))[: N * K]
    weights = weights.reshape(N, K)
    return np.asarray(np.matmul(widen(a), weights.T if transB else weights).astype(a.dtype, copy=False))
