"""Layers of transformers whose weights are integers or packed values of a few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.attention_heads import Masking
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.kernels.attention import self_attention
from ortconv.executor.kernels.normalization import embed_layer_normalization
from ortconv.executor.kernels.qlinear_products import matmul_integer_to_float, unpack_bits
from ortconv.executor.kernels.quantize import dequantize_linear
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


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
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> Any:
    projected = matmul_integer_to_float(x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    parts = np.split(projected, 3, axis=-1)
    masking = Masking(mask_filter_value, unidirectional)
    y, k, v = self_attention(parts, num_heads, mask_index, past, None, scale, masking)
    return y if n_outputs == 1 else (y, np.stack([k, v]))


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
        return np.repeat(taken, min(block, values.shape[behind]), axis=behind).take(
            np.arange(values.shape[behind]), axis=behind
        )

    if zero_points is not None:
        zeros = _codes(zero_points, bits if packed else 0)[..., : scales.shape[-1]]
        values -= spread(zeros)
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
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,  # noqa: N803
) -> Array:
    flat = b.reshape(-1)
    codes = np.stack([flat >> 4, flat & 15], axis=1).reshape(-1)[: N * K]
    weights = _TABLES[quant_type][codes] * np.repeat(widen(absmax).reshape(-1), min(block_size, N * K))[: N * K]
    weights = weights.reshape(N, K)
    return np.asarray(np.matmul(widen(a), weights.T if transB else weights).astype(a.dtype, copy=False))
