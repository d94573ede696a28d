"""Integer arithmetic of quantized operations: fixed-point multipliers, rounding, activation limits."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FuseCode
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType, single


def round_half_away(x: Array | float) -> Array:
    """Round to the nearest integer; halves away from zero."""
    x = np.asarray(x)
    return np.asarray(np.trunc(x + np.copysign(np.asarray(0.5, x.dtype), x)))


def round_away(x: float) -> int:
    """`round_half_away` for one number."""
    return math.floor(x + 0.5) if x >= 0 else math.ceil(x - 0.5)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(m, shift) with real = m * 2**(shift - 31) and m of 31 bits; (0, 0) if real is 0 or rounds to it. OP_FAILED if
    real is NaN or infinite, as the quotient of extreme scales may be.
    """
    if not math.isfinite(real):
        raise op_failed(f"the scales make a factor of {real}")
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    m = round_away(fraction * (1 << 31))
    if m == 1 << 31:
        m, shift = m // 2, shift + 1
    return (m, shift) if shift >= -31 else (0, 0)


def high_mul(a: Array, m: Array | int) -> Array:
    """The high half of 2ab for 32-bit a and nonnegative 32-bit m, both held in int64 arrays; halves are rounded up."""
    ab: Array = a.astype(np.int64, copy=False) * np.asarray(m, np.int64)
    return (ab + (1 << 30)) >> 31


def shift_right(x: Array, by: Array | int) -> Array:
    """x / 2**by, rounded to the nearest integer; halves away from zero."""
    by = np.asarray(by, np.int64)
    half = (np.int64(1) << by) >> 1
    y: Array = (x + half - ((x < 0) & (by > 0))) >> by
    return y


def multiply(x: Array, m: Array | int, shift: Array | int) -> Array:
    """x * m * 2**(shift - 31) as the reference computes it. `m` and `shift` may be arrays, one pair for each channel."""
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    return shift_right(high_mul(x.astype(np.int64) << left, m), right)


def scale_by(x: Array, real: float | Array) -> Array:
    """`multiply` with the fixed-point form of `real`: one number, or one for each index of the last dimension."""
    if np.ndim(real) == 0:
        return multiply(x, *quantize_multiplier(float(real)))
    pairs = [quantize_multiplier(float(one)) for one in np.asarray(real).reshape(-1)]
    return multiply(x, np.array([m for m, _ in pairs]), np.array([shift for _, shift in pairs]))


def product_scale(a: OperandType, b: OperandType) -> float:
    """The scale of a product of elements of both types, rounded to float32."""
    return single(a.scale * b.scale)


def quantize(real: Array, out: OperandType) -> Array:
    """Real numbers as elements of a quantized type: zero point + round(real / scale), clamped to the limits of the
    type.
    """
    low, high = out.limits
    q: Array = np.clip(out.zero_point + round_half_away(real / np.float32(out.scale)), low, high)
    return q.astype(out.type.dtype)


_CLAMP = {
    FuseCode.NONE: (-math.inf, math.inf),
    FuseCode.RELU: (0.0, math.inf),
    FuseCode.RELU1: (-1.0, 1.0),
    FuseCode.RELU6: (0.0, 6.0),
}


def _fuse_code(activation: int) -> FuseCode:
    try:
        return FuseCode(activation)
    except ValueError:
        raise op_failed(f"{activation} is no fused activation") from None


def activate(x: Array, activation: int) -> Array:
    """Apply a fused activation to real numbers."""
    code = _fuse_code(activation)
    return x if code is FuseCode.NONE else np.clip(x, *(np.asarray(limit, x.dtype) for limit in _CLAMP[code]))


def activation_limits(activation: int, out: OperandType) -> tuple[int, int]:
    """The smallest and largest element that a quantized output can have after a fused activation."""
    low, high = out.limits
    lowest, highest = _CLAMP[_fuse_code(activation)]
    if lowest > -math.inf:
        low = max(low, out.zero_point + round_away(lowest / out.scale))
    if highest < math.inf:
        high = min(high, out.zero_point + round_away(highest / out.scale))
    return low, high


def requantize(acc: Array, real: float | Array, out: OperandType, activation: int = 0) -> Array:
    """Accumulators times `real`, plus the zero point, clamped to the limits of the activation and the type."""
    low, high = activation_limits(activation, out)
    q: Array = np.clip(scale_by(acc, real) + out.zero_point, low, high)
    return q.astype(out.type.dtype)


def exact_float(x: Array, terms: int) -> Array:
    """Centered 8-bit numbers in a float type in which sums of `terms` products are exact."""
    return x.astype(np.float32 if terms * 255 * 255 < 1 << 24 else np.float64)
