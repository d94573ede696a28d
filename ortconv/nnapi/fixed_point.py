"""exp, sigmoid and tanh on 16-bit fixed point, in the steps of the reference, whose last bits differ from rounded
real functions.

A number with n integer bits has 15 - n fraction bits. Arrays are int64 and hold 16-bit numbers. Products keep the
high half.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import shift_right

ONE = 0x7FFF  # without integer bits, as near to 1 as there is


def limited(x: Array) -> Array:
    """Within 16 bits."""
    return np.clip(x, -0x8000, 0x7FFF).astype(np.int64)


def times(a: Array | int, b: Array | int) -> Array:
    """The high half of 2ab, rounded; the integer bits of both add up."""
    ab = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    nudged = ab + np.where(ab >= 0, 1 << 14, 1 - (1 << 14))
    return np.minimum(np.where(nudged >= 0, nudged >> 15, -(-nudged >> 15)), 0x7FFF)


def constant(value: float, integer_bits: int = 0) -> int:
    return round(value * (1 << (15 - integer_bits)))


QUARTERS = tuple((exponent, constant(float(np.exp(-(2.0**exponent))))) for exponent in range(-2, 5))
"""exp(-2**n) by n, from a quarter on."""


def exp_of_negative(x: Array, integer_bits: int) -> Array:
    """exp(x) for x <= 0, without integer bits: a polynomial between -1/4 and 0, times a factor for every bit above."""
    fraction_bits = 15 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    inner = (x & (quarter - 1)) - quarter
    y = _exp_near_zero(inner << integer_bits)
    rest = inner - x
    for exponent, factor in QUARTERS:
        if exponent < integer_bits:
            y = np.where(rest & (1 << (fraction_bits + exponent)), times(y, factor), y)
    return np.where(x == 0, ONE, y)


def _exp_near_zero(x: Array) -> Array:
    """exp(x) for -1/4 <= x < 0, by its series around -1/8."""
    x = x + (1 << 12)
    squared = times(x, x)
    cubed, fourth = times(squared, x), times(squared, squared)
    series = shift_right(times(shift_right(fourth, 2) + cubed, constant(1 / 3)) + squared, 1)
    middle = constant(float(np.exp(-0.125)))
    return limited(middle + times(middle, limited(x + series)))


def _reciprocal(x: Array) -> Array:
    """2 / (1 + x) with 2 integer bits for 0 <= x <= 1, by three of Newton's steps."""
    total = x + ONE
    half = (total + np.where(total >= 0, 1, -1)) // 2
    y = constant(48 / 17, 2) + times(half, constant(-32 / 17, 2))
    for _ in range(3):
        error = (1 << 13) - times(half, y)
        y = limited(y + limited(times(y, error) << 2))
    return y


def fixed_sigmoid(x: Array, integer_bits: int = 3) -> Array:
    """Without integer bits."""
    size = np.abs(x)
    positive = limited(_reciprocal(exp_of_negative(-size, integer_bits)) << 1)
    return np.where(x == 0, 1 << 14, np.where(x > 0, positive, ONE - positive))


def fixed_tanh(x: Array, integer_bits: int = 3) -> Array:
    """Without integer bits."""
    size = np.abs(x)
    y = limited((_reciprocal(exp_of_negative(-size, integer_bits + 1)) - (1 << 13)) << 2)
    return np.where(x == 0, 0, np.where(x > 0, y, -y))
