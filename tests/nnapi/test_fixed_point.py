"""Fixed-point functions against real ones, and the operations made of them."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import Q, S, compute, quantized

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operand, OperandType, Operation
from ortconv.nnapi.operations.fixed_point import LONG, SHORT, FixedPoint, inverse_root
from tests.batches import batched

RNG = np.random.default_rng(0)
LIMITS = {SHORT: 2.0**-12, LONG: 3e-7}
"""How far results may be off: the last bits of 16, and the error of the series with 32."""


def some(number: FixedPoint) -> Array:
    edges = np.array([0, 1, -1, number.one, -number.one])
    return np.concatenate([edges, RNG.integers(-number.one, number.one, 20000)])


@pytest.mark.parametrize("number", LIMITS, ids=["16 bits", "32 bits"])
@pytest.mark.parametrize("integer_bits", range(1, 5))
def test_functions(number: FixedPoint, integer_bits: int) -> None:
    x = some(number)
    real, unit, limit = x * 2.0 ** (integer_bits + 1 - number.bits), number.one + 1, LIMITS[number]
    assert np.abs(number.exp_of_negative(-np.abs(x), integer_bits) / unit - np.exp(-np.abs(real))).max() < limit
    assert np.abs(number.sigmoid(x, integer_bits) / unit - 1 / (1 + np.exp(-real))).max() < limit
    assert np.abs(number.tanh(x, integer_bits) / unit - np.tanh(real)).max() < 2 * limit


@pytest.mark.parametrize("number", LIMITS, ids=["16 bits", "32 bits"])
def test_reciprocal(number: FixedPoint) -> None:
    x = np.abs(some(number))
    assert np.abs(number.reciprocal(x) / (number.one + 1) - 1 / (1 + x / (number.one + 1))).max() < LIMITS[number]


def test_inverse_root() -> None:
    x = np.concatenate([np.arange(3000), 2 ** np.arange(31), RNG.integers(0, 1 << 31, 20000)])
    m, shift = inverse_root(x)
    assert m.max() < 1 << 31
    assert shift.max() <= 0
    assert np.abs(m * 2.0 ** (shift - 31) * np.sqrt(np.maximum(x, 1)) - 1).max() < 2e-6


def held(got: Array, exact: Array, kind: Operand, near: float) -> None:
    """Elements are exact numbers rounded, but either neighbor where those are nearly in the middle between two."""
    low, high = OperandType(kind).limits
    off = np.abs(got - np.clip(exact, low, high))
    assert off.max() <= 0.5 + near


@pytest.mark.parametrize("scale", [2.0**-20, 0.004, 1 / 64, 0.0723, 0.5, 3.0])
@pytest.mark.parametrize("kind", [Q, S])
def test_sigmoid_and_tanh_of_every_element(kind: Operand, scale: float) -> None:
    low, high = OperandType(kind).limits
    for zero_point in (low, low + 100, high):
        x = quantized(np.arange(low, high + 1), scale, zero_point, kind)
        real = x.centered * float(x.scale)
        (y,) = compute(Operation.LOGISTIC, x, out=OperandType(kind, (256,), 1 / 256, low))
        held(y, low + 128 * (1 + np.tanh(real / 2)), kind, 1e-4)
        (y,) = compute(Operation.TANH, x, out=OperandType(kind, (256,), 1 / 128, low + 128))
        held(y, low + 128 + 128 * np.tanh(real), kind, 1e-4)


@pytest.mark.parametrize(("scale", "radius"), [(2.5, 3), (5.0, 1), (8.0, 0), (1000.0, 0)])
def test_large_steps_leave_few_elements_between_the_ends(scale: float, radius: int) -> None:
    """With none, 0 itself is at the lower end."""
    x = quantized(np.arange(256), scale, 100)
    for code, out, middle in ((Operation.LOGISTIC, (1 / 256, 0), 128), (Operation.TANH, (1 / 128, 128), 128)):
        (y,) = compute(code, x, out=OperandType(Q, (256,), *out))
        assert y[: 101 - radius].tolist() == [0] * (101 - radius)
        assert y[max(101, 100 + radius) :].tolist() == [255] * min(155, 156 - radius)
        assert y[100] == (middle if radius else 0)


@batched
@pytest.mark.parametrize("size", [1, 2, 7, 500, 4096, 5000])
@pytest.mark.parametrize("scale", [2.0**-20, 0.01, 0.3, 4.0, 100.0])
@pytest.mark.parametrize("kind", [Q, S])
def test_softmax(kind: Operand, scale: float, size: int) -> None:
    """Every term of the sum may be off by half a unit of 19 bits."""
    low, high = OperandType(kind).limits
    x = quantized(RNG.integers(low, high + 1, (3, size)), scale, 0, kind)
    x.array[0] = high  # all the same
    powers = np.exp((x.centered - x.centered.max(1, keepdims=True)) * float(np.float32(0.7)) * float(x.scale))
    sums = powers.sum(1, keepdims=True)
    (y,) = compute(Operation.SOFTMAX, x, 0.7, out=OperandType(kind, (3, size), 1 / 256, low))
    held(y, low + 256 * powers / sums, kind, float((256 / sums * (1e-6 + size / sums * 2.0**-20)).max()))


@pytest.mark.parametrize(
    ("code", "scale", "more", "out"),
    [
        (Operation.LOGISTIC, 2.0**-27, (), (1 / 256, -128)),
        (Operation.TANH, 2.0**-27, (), (1 / 128, 0)),
        (Operation.SOFTMAX, 2.0**-20, (2.0**-6,), (1 / 256, -128)),
    ],
)
def test_scales_that_are_too_small(
    code: Operation, scale: float, more: tuple[float, ...], out: tuple[float, int]
) -> None:
    with pytest.raises(NnapiError, match=r"OP_FAILED.*scale"):
        compute(code, quantized(np.ones((1, 2)), scale, 0, S), *more, out=OperandType(S, (1, 2), *out))


@pytest.mark.parametrize("size", [1, 4, 64, 5000])
@pytest.mark.parametrize("kind", [Q, S])
def test_l2_normalization(kind: Operand, size: int) -> None:
    """The multiplier and the shift behind it both round."""
    low, high = OperandType(kind).limits
    x = quantized(RNG.integers(low, high + 1, (200, size)), 1 / 128, low + 128, kind)
    squares = np.square(x.centered.astype(np.int64)).sum(axis=1, keepdims=True)
    (y,) = compute(Operation.L2_NORMALIZATION, x, out=OperandType(kind, (200, size), 1 / 128, low + 128))
    exact = low + 128 + 128 * x.centered / np.sqrt(np.maximum(squares, 1))
    held(y, exact, kind, float(np.exp2(inverse_root(squares)[1] - 1.0).max()) + 1e-3)
