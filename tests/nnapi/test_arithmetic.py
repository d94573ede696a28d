"""Fixed-point arithmetic against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ortconv.nnapi import Operand, OperandType
from ortconv.nnapi.operations.arithmetic import (
    activation_limits,
    high_mul,
    multiply,
    quantize_multiplier,
    requantize,
    scale_by,
    shift_right,
)

EDGES = [0, 1, -1, 2, -2, 3, -3, 5, -5, 1 << 30, -(1 << 30), (1 << 31) - 1, -(1 << 31)]


def half_up(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def half_away(x: Fraction) -> int:
    return half_up(x) if x >= 0 else -half_up(-x)


def some(count: int = 200) -> list[int]:
    rng = np.random.default_rng(5)
    return EDGES + [
        int(x) >> int(by) for x, by in zip(rng.integers(-(1 << 31), 1 << 31, count), rng.integers(0, 31, count))
    ]


@pytest.mark.parametrize("m", [0, 1, 1 << 30, (1 << 30) + 1, 1518500250, (1 << 31) - 1])
def test_high_half_of_a_product(m: int) -> None:
    assert high_mul(np.array(some()), m).tolist() == [half_up(Fraction(x * m, 1 << 31)) for x in some()]


@pytest.mark.parametrize("by", [0, 1, 2, 7, 31])
def test_rounding_shift(by: int) -> None:
    assert shift_right(np.array(some()), by).tolist() == [half_away(Fraction(x, 1 << by)) for x in some()]


def test_shifts_of_their_own() -> None:
    x = np.array([[5, 5, 5], [-5, -5, -5]])
    assert shift_right(x, np.array([0, 1, 2])).tolist() == [[5, 3, 1], [-5, -3, -1]]


@pytest.mark.parametrize("real", [1e-9, 0.0003, 0.1, 0.5, 0.75, 0.999999, 1.0, 1.7, 300.0])
def test_multiplier(real: float) -> None:
    m, shift = quantize_multiplier(real)
    assert 1 << 30 <= m < 1 << 31
    assert math.isclose(m * 2.0 ** (shift - 31), real, rel_tol=1e-9)
    x = np.arange(-5000, 5000)
    assert np.abs(multiply(x, m, shift) - x * real).max() <= 0.5 + 2.0**-20 + 0.5 * (real < 0.5)


def test_too_small_to_matter() -> None:
    assert quantize_multiplier(0.0) == quantize_multiplier(2.0**-40) == (0, 0)


def test_one_scale_for_each_channel() -> None:
    x, scales = np.arange(-300, 300).reshape(-1, 3), np.array([0.01, 0.7, 2.5])
    assert scale_by(x, scales).tolist() == np.stack([scale_by(x[:, i], float(scales[i])) for i in range(3)], 1).tolist()


@pytest.mark.parametrize(("activation", "limits"), [(0, (-128, 127)), (1, (-5, 127)), (2, (-9, -1)), (3, (-5, 19))])
def test_activation_limits(activation: int, limits: tuple[int, int]) -> None:
    out = OperandType(Operand.TENSOR_QUANT8_ASYMM_SIGNED, (3,), 0.25, -5)
    assert activation_limits(activation, out) == limits
    assert requantize(np.array([-(10**6), 10**6]), 1.0, out, activation).tolist() == list(limits)
