"""Integer arithmetic of quantized operations: fixed-point multipliers, rounding, activation limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ortconv.executor.algorithms.rounding import round_away
from ortconv.executor.replay.numerics import clip_to
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FuseCode
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType, Tensor, single

BLOCK = 1 << 15
"""Number of elements that are rescaled at once: their float64 form fits into the cache."""
LONG_RUN = 1 << 11
EXACT = float(1 << 22)
AWAY = 1 + 2.0**-30


def round_half_away(x: Array | float) -> Array:
    """Round to the nearest integer; halves away from zero."""
    x = np.asarray(x)
    return np.asarray(np.trunc(x + np.copysign(np.asarray(0.5, x.dtype), x)))


def quantize_multiplier(real: float) -> tuple[int, int]:
    """`fixed_point` for one number."""
    m, shift = fixed_point(real)
    return int(m), int(shift)


def fixed_point(real: float | Array) -> tuple[Array, Array]:
    """(m, shift) with real = m * 2**(shift - 31) and m of 31 bits, as int64; (0, 0) where real is 0 or rounds to it.

    Raises OP_FAILED if real is NaN or infinite, as the quotient of extreme scales may be.
    """
    if not np.isfinite(real).all():
        raise op_failed(f"the scales make a factor of {real}")
    fraction, exponent = np.frexp(np.asarray(real, np.float64))
    m = round_half_away(np.ldexp(fraction, 31)).astype(np.int64)
    shift = exponent.astype(np.int64)
    rounded_up = m == 1 << 31
    m, shift = np.where(rounded_up, m >> 1, m), shift + rounded_up
    tiny = (m == 0) | (shift < -31)
    return np.where(tiny, 0, m), np.where(tiny, 0, shift)


def high_mul(a: Array, m: Array | int) -> Array:
    """The high half of 2ab for 32-bit a and nonnegative 32-bit m, both held in int64 arrays; halves are rounded up."""
    return (a.astype(np.int64, copy=False) * np.asarray(m, np.int64) + (1 << 30)) >> 31


def shift_right(x: Array, by: Array | int) -> Array:
    """x / 2**by, rounded to the nearest integer; halves away from zero."""
    by = np.asarray(by, np.int64)
    half = (np.int64(1) << by) >> 1
    return (x + half - ((x < 0) & (by > 0))) >> by


def multiply(x: Array, m: Array | int, shift: Array | int) -> Array:
    """x * m * 2**(shift - 31) as the reference computes it. `m` and `shift` may be arrays, one pair for each channel."""
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    return shift_right(high_mul(x.astype(np.int64) << left, m), right)


def scale_by(x: Array, real: float | Array) -> Array:
    """`multiply` with the fixed-point form of `real`: one number, or one for each index of the last dimension."""
    return multiply(x, *fixed_point(real))


def by_table(x: Tensor, function: Callable[[Tensor], Array]) -> Array:
    """function(x), for an elementwise function. For 8-bit types it is computed once for each possible element."""
    if x.array.itemsize > 1 or x.array.size <= 1 << 8:
        return function(x)
    elements = np.arange(1 << 8, dtype=np.uint8)
    table = function(Tensor(x, elements.view(x.array.dtype)))
    return table[x.array.view(np.uint8)]


def product_scale(a: OperandType, b: OperandType) -> float:
    """The scale of a product of elements of both types, rounded to float32."""
    return single(a.scale * b.scale)


def quantize(real: Array, out: OperandType) -> Array:
    """Real numbers in a quantized type: zero point + round(real / scale), clamped to the type's limits; the largest for NaN."""
    low, high = out.limits
    q = np.fmin(out.zero_point + round_half_away(real / np.float32(out.scale)), high)
    return np.asarray(np.maximum(q, low), out.type.dtype)


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
        raise op_failed(f"{activation} is not a fused activation") from None


def activate(x: Array, activation: int, work: Work = AT_ONCE) -> Array:
    """Apply a fused activation to real numbers, in place."""
    code = _fuse_code(activation)
    if code is not FuseCode.NONE:
        low, high = (np.asarray(limit, x.dtype) for limit in _CLAMP[code])
        work.do(clip_to, x, low, high, x)
    return x


def activation_limits(activation: int, out: OperandType) -> tuple[int, int]:
    """The smallest and largest element that a quantized output can have after a fused activation."""
    low, high = out.limits
    lowest, highest = _CLAMP[_fuse_code(activation)]
    if lowest > -math.inf:
        low = max(low, out.zero_point + round_away(lowest / out.scale))
    if highest < math.inf:
        high = min(high, out.zero_point + round_away(highest / out.scale))
    return low, high


def requantize(
    acc: Array,
    real: float | Array,
    out: OperandType,
    activation: int = 0,
    bias: Array | None = None,
    work: Work = AT_ONCE,
) -> Array:
    """Integers times `real`, plus the zero point, clamped to the limits of the activation and the type.

    The integers are `acc`, of an integer or float type, plus `bias` for each index of the last dimension, below 2**53.
    """
    m, shift = fixed_point(real)
    low, high = activation_limits(activation, out)
    result = work.empty(acc.shape, out.type.dtype)
    per_channel = bias is not None or m.ndim > 0
    width = acc.shape[-1] if per_channel else 1
    together = rows_together(acc.size // max(1, width), width) if per_channel else 1
    m, shift = (np.tile(one, together) if one.ndim else one for one in (m, shift))
    added = np.zeros(()) if bias is None else np.tile(bias, together)
    width *= together
    sums, results = (work.reshaped(x, (acc.size // max(1, width), width)) for x in (acc, result))
    step = max(1, BLOCK // max(1, width))
    for row in range(0, len(sums), step):
        part = slice(row, row + step)
        work.do(_rescale, sums[part], added, m, shift, out.zero_point, low, high, results[part])
    return result


def rows_together(rows: int, width: int) -> int:
    """Number of rows to treat as one, a divisor of `rows`, so that numpy's innermost loop is long."""
    return next(n for n in range(max(1, LONG_RUN // max(1, width)), 0, -1) if rows % n == 0)


def _rescale(acc: Array, bias: Array, m: Array, shift: Array, zero_point: int, low: int, high: int, out: Array) -> None:
    np.clip(_rescaled(acc, bias, m, shift, zero_point), low, high, out=out, casting="unsafe")


def _rescaled(acc: Array, bias: Array, m: Array, shift: Array, zero_point: int) -> Array:
    """`multiply` of acc + bias, plus the zero point.

    float64 represents the product of 22 and 31 bits exactly, and so each step of the fixed-point arithmetic. The second
    step rounds halves away from zero: the factor AWAY moves halves, and no other number, across the rounding boundary.
    """
    y = np.add(acc, bias, dtype=np.float64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    if max(y.max(initial=0), -y.min(initial=0)) * np.exp2(left.max(initial=0)) >= EXACT:
        return multiply(y.astype(np.int64), m, shift) + zero_point
    y *= np.ldexp(m.astype(np.float64), left - 31)
    y += 0.5
    np.floor(y, out=y)
    y *= np.ldexp(AWAY, -right)
    y += zero_point + 0.5
    np.floor(y, out=y)
    return y


def exact_float(x: Array, terms: int) -> Array:
    """Centered 8-bit numbers in a float type in which sums of `terms` products are exact."""
    return x.astype(np.float32 if terms * 255 * 255 < 1 << 24 else np.float64)
