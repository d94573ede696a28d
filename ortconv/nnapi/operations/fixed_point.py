"""exp, sigmoid, tanh and roots of fixed-point numbers, in the steps of the reference, whose last bits differ from
rounded real functions.

A number has `bits` bits, one of them the sign. The number of its integer bits depends on its use; the others are
fraction bits. Arrays are int64. Products keep the high half.
"""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.arithmetic import high_mul, quantize_multiplier, shift_right

EXPONENTS = range(-2, 5)
"""Exponents of the powers of 2 for which exp uses a factor each."""


class FixedPoint:
    """Arithmetic of fixed-point numbers with `bits` bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.one = (1 << (bits - 1)) - 1
        """The largest number without integer bits, which is the one nearest to 1."""
        self._factors = [(n, self.constant(math.exp(-(2.0**n)))) for n in EXPONENTS]

    def constant(self, value: float, integer_bits: int = 0) -> int:
        return round(value * 2.0 ** (self.bits - 1 - integer_bits))

    def limited(self, x: Array) -> Array:
        """The array, clamped to the range of the bits."""
        return np.clip(x, ~self.one, self.one).astype(np.int64)

    def times(self, a: Array | int, b: Array | int) -> Array:
        """The high half of 2ab; halves are rounded up. The result has the integer bits of both factors."""
        ab = np.asarray(a, np.int64) * np.asarray(b, np.int64)
        high: Array = (ab + (1 << (self.bits - 2))) >> (self.bits - 1)
        return np.minimum(high, self.one)

    def exp_of_negative(self, x: Array, integer_bits: int) -> Array:
        """exp(x) for x <= 0, without integer bits: a polynomial between -1/4 and 0, times a factor for each higher bit."""
        fraction_bits = self.bits - 1 - integer_bits
        quarter = 1 << (fraction_bits - 2)
        inner = (x & (quarter - 1)) - quarter
        y = self._exp_near_zero(inner << integer_bits)
        rest = inner - x
        for exponent, factor in self._factors:
            if exponent < integer_bits:
                y = np.where(rest & (1 << (fraction_bits + exponent)), self.times(y, factor), y)
        return np.where(x == 0, self.one, y)

    def _exp_near_zero(self, x: Array) -> Array:
        """exp(x) for -1/4 <= x < 0, by its series around -1/8."""
        x = x + self.constant(1 / 8)
        squared = self.times(x, x)
        cubed, fourth = self.times(squared, x), self.times(squared, squared)
        series = shift_right(self.times(shift_right(fourth, 2) + cubed, self.constant(1 / 3)) + squared, 1)
        middle = self.constant(math.exp(-1 / 8))
        return self.limited(middle + self.times(middle, self.limited(x + series)))

    def _reciprocal(self, x: Array) -> Array:
        """2 / (1 + x) with 2 integer bits for 0 <= x <= 1, by three Newton steps."""
        half = (x + self.one + 1) // 2
        y = self.constant(48 / 17, 2) + self.times(half, self.constant(-32 / 17, 2))
        for _ in range(3):
            error = self.constant(1, 2) - self.times(half, y)
            y = self.limited(y + self.limited(self.times(y, error) << 2))
        return y

    def reciprocal(self, x: Array) -> Array:
        """1 / (1 + x) for 0 <= x <= 1, without integer bits."""
        return self.limited(self._reciprocal(x) << 1)

    def sigmoid(self, x: Array, integer_bits: int) -> Array:
        """The sigmoid, without integer bits."""
        positive = self.reciprocal(self.exp_of_negative(-np.abs(x), integer_bits))
        return np.where(x == 0, self.constant(1 / 2), np.where(x > 0, positive, self.one - positive))

    def tanh(self, x: Array, integer_bits: int) -> Array:
        """The hyperbolic tangent, without integer bits."""
        power = self.exp_of_negative(-np.abs(x), integer_bits + 1)
        y = self.limited((self._reciprocal(power) - self.constant(1, 2)) << 2)
        return np.where(x == 0, 0, np.where(x > 0, y, -y))


SHORT = FixedPoint(16)
LONG = FixedPoint(32)


def multiplier_16(real: float) -> tuple[int, int]:
    """A fixed-point multiplier of 16 bits, and its shift."""
    m, shift = quantize_multiplier(real)
    return min((m + (1 << 15)) >> 16, SHORT.one), shift


def rescaled(x: Array, real: float, integer_bits: int) -> tuple[Array, int]:
    """(x * real in 32 bits, the largest |x| that fits); a larger x becomes 0. Raises OP_FAILED if real is too small."""
    if real * 2.0 ** (31 - integer_bits) <= 1:
        raise op_failed(f"the scale {real:g} is too small")
    m, shift = quantize_multiplier(real * 2.0 ** (31 - integer_bits))
    radius = ((1 << integer_bits) - 1) << (31 - integer_bits) >> shift
    return high_mul(np.where(np.abs(x) > radius, 0, x).astype(np.int64) << shift, m), radius


def inverse_root(x: Array) -> tuple[Array, Array]:
    """Multipliers and shifts of 1 / sqrt(x) for integers x below 2**31, by five Newton steps. 0 counts as 1."""
    x = np.asarray(x, np.int64)
    large = x >= 1 << 29
    bits = np.floor(np.log2(np.maximum(np.where(large, x // 4, x), 1))).astype(np.int64) + 1
    pairs = (31 - bits) // 2 - 1
    shift = 11 + large - pairs
    start = (np.where(large, x // 4, x) << (2 * pairs)) >> 1  # 3 integer bits
    half, y = shift_right(start, 1), np.full_like(start, LONG.constant(1, 3))
    for _ in range(5):
        cubed = LONG.limited(LONG.times(LONG.times(y, y), y) << 6)
        y = LONG.limited((LONG.times(LONG.constant(1.5, 3), y) - LONG.times(half, cubed)) << 3)
    m = LONG.times(y, LONG.constant(math.sqrt(0.5)))
    m, shift = m << np.maximum(-shift, 0), np.maximum(shift, 0)
    return np.where(x > 1, m, LONG.one), np.where(x > 1, -shift, 0)
