"""Reductions: what is left of all axes, ties, numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import compute
from nnapi_models import tensor

from ortconv.nnapi import NnapiError, Operand, OperandType, Operation
from ortconv.nnapi.operand import Tensor
from tests.arrays import i32

F, INTS = tensor(), tensor(type=Operand.TENSOR_INT32)
X = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("code", "function"),
    [
        (Operation.REDUCE_SUM, np.sum),
        (Operation.REDUCE_PROD, np.prod),
        (Operation.REDUCE_MAX, np.max),
        (Operation.REDUCE_MIN, np.min),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_axes_count_once_and_from_both_ends(code: Operation, function: np.ufunc, keep: bool) -> None:
    (found,) = compute(code, X, i32(-1, 0, 2), keep, out=F)
    np.testing.assert_allclose(found, function(X, axis=(0, 2), keepdims=keep), rtol=1e-6)
    (found,) = compute(code, X, i32(0, 1, 2), keep, out=F)
    assert found.shape == ((1, 1, 1) if keep else (1,))


@pytest.mark.parametrize(("keep", "dims"), [(-1, (2, 4)), (0, (2, 4)), (2, (2, 1, 4))])
def test_mean_keeps_dimensions_for_positive_flags(keep: int, dims: tuple[int, ...]) -> None:
    assert compute(Operation.MEAN, X, i32(1), keep, out=F)[0].shape == dims


def test_quantized_means_are_cut_off_toward_zero() -> None:
    kind = OperandType(Operand.TENSOR_QUANT8_ASYMM_SIGNED, (2, 2), 1.0, 3)
    x = Tensor(kind, np.array([[-3, -4], [3, 4]], np.int8))
    (found,) = compute(Operation.MEAN, x, i32(1), 0, out=kind.with_dims((2,)))
    assert found.tolist() == [-3, 3]


def test_the_first_extreme_wins_and_nan_never() -> None:
    nan = np.nan
    rows = np.array([[1, 3, 3], [nan, 5, 1], [2, nan, 3], [2, 1, nan]], np.float32)
    assert compute(Operation.ARGMAX, rows, 1, out=INTS)[0].tolist() == [1, 0, 2, 0]
    assert compute(Operation.ARGMIN, rows, -1, out=INTS)[0].tolist() == [0, 0, 0, 1]


def test_the_least_integer_is_least() -> None:
    x = np.array([0, -(2**31), 2**31 - 1], np.int32)
    assert compute(Operation.ARGMIN, x, 0, out=INTS)[0].tolist() == [1]
    assert compute(Operation.ARGMAX, x, 0, out=INTS)[0].tolist() == [2]


def test_of_equal_elements_the_last_comes_first() -> None:
    values, indices = compute(Operation.TOPK_V2, np.array([[1, 2, 2, 0, 2]], np.int32), 4, out=(INTS, INTS))
    assert values.tolist() == [[2, 2, 2, 1]]
    assert indices.tolist() == [[4, 2, 1, 0]]


@pytest.mark.parametrize("k", [0, 5, -1])
def test_too_many_of_the_largest_fail(k: int) -> None:
    with pytest.raises(NnapiError, match=f"k = {k}"):
        compute(Operation.TOPK_V2, X, k, out=(F, INTS))
