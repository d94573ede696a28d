"""FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import F, I, Q, S, bias, bytes_of, compute, level_of, numbers, quantized

from ortconv.ir.tensor import Array
from ortconv.nnapi import FeatureLevel, NnapiError, Operand, OperandType, Operation
from tests.executor.single_node import run_onnxruntime

FC, MATMUL = Operation.FULLY_CONNECTED, Operation.BATCH_MATMUL


def dense(*inputs: Any, kind: Operand = F, **quant: Any) -> Array:
    return compute(FC, *inputs, out=OperandType(kind, (0, 0), **quant))[0]


@pytest.mark.parametrize("dims", [(6, 4), (2, 3, 4), (3, 2, 2, 2), (4, 6)])
def test_rows_of_what_is_flattened(dims: tuple[int, ...]) -> None:
    x, w, b = numbers(*dims), numbers(5, 4), numbers(5)
    want = run_onnxruntime("Gemm", [x.reshape(-1, 4), w, b], {"transB": 1})[0]
    np.testing.assert_allclose(dense(x, w, b, 0), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dense(x, w, b, 2), np.clip(want, -1, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "zeros"), [(Q, (3, 200, 128)), (S, (-100, 20, -1))])
def test_quantized(kind: Operand, zeros: tuple[int, int, int]) -> None:
    x = bytes_of(4, 300, scale=0.5, zero_point=zeros[0], kind=kind)
    w = bytes_of(6, 300, scale=0.25, zero_point=zeros[1], kind=kind)
    sums = x.centered.astype(np.int64) @ w.centered.T.astype(np.int64) + 1000
    scale = float(np.abs(sums).max() / 8 / 100)
    got = dense(x, w, bias(np.full(6, 1000), 0.125), 0, kind=kind, scale=scale, zero_point=zeros[2])
    low, high = OperandType(kind).limits
    want = np.clip(np.rint(sums / 8 / np.float32(scale)) + zeros[2], low, high)
    assert np.abs(got - want).max() <= 1
    assert np.count_nonzero(got != want) <= 1


def test_empty_batch() -> None:
    assert dense(np.zeros((0, 3), np.float32), numbers(2, 3), numbers(2), 0).shape == (0, 2)


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        (((2, 5), (3, 4), (3,)), "rows of 4"),
        (((2, 4), (3, 4), (2,)), "units"),
        (((4,), (3, 4), (3,)), "rank"),
        (((1, 1, 1, 2, 2), (3, 4), (3,)), "rank"),
        (((2, 4), (4,), (3,)), "rank"),
    ],
)
def test_refused_while_building(dims: tuple[tuple[int, ...], ...], reason: str) -> None:
    with pytest.raises(NnapiError, match=f"BAD_DATA.*{reason}"):
        dense(*(numbers(*one) for one in dims), 0)


def test_unknown_dimensions_are_not_objected_to() -> None:
    unknown, out = OperandType(F), OperandType(F)
    assert level_of(FC, unknown, numbers(3, 4), numbers(3), 0, out=out) == FeatureLevel.LEVEL_1
    assert level_of(FC, numbers(2, 4), unknown, numbers(3), 0, out=out) == FeatureLevel.LEVEL_1
    assert level_of(FC, OperandType(F, (0, 4)), OperandType(F, (0, 4)), unknown, 0, out=out) == FeatureLevel.LEVEL_1


def test_small_output_scales_take_a_level() -> None:
    x, w = quantized(np.zeros((1, 1)), 0.5, 0), quantized(np.zeros((1, 1)), 0.5, 0)
    for scale, level in ((0.25, FeatureLevel.LEVEL_3), (0.26, FeatureLevel.LEVEL_1)):
        assert level_of(FC, x, w, bias(np.zeros(1), 0.25), 0, out=OperandType(Q, (1, 1), scale)) == level


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dims", [((), ()), ((2,), (2,)), ((2, 1), (1, 3))])
def test_matrix_products(dims: tuple[tuple[int, ...], tuple[int, ...]], left: bool, right: bool) -> None:
    a, b = numbers(*dims[0], 4, 5), numbers(*dims[1], 5, 3)
    want = run_onnxruntime("MatMul", [a, b])[0]
    given = (np.ascontiguousarray(x.swapaxes(-1, -2)) if turned else x for x, turned in ((a, left), (b, right)))
    got = compute(MATMUL, *given, left, right, out=OperandType(F))[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_integer_matrices() -> None:
    a, b = np.array([[1 << 20, 3]], np.int32), np.array([[1 << 10], [-7]], np.int32)
    assert compute(MATMUL, a, b, False, False, out=OperandType(I))[0].tolist() == [[(1 << 30) - 21]]


def test_quantized_matrices() -> None:
    a = bytes_of(2, 3, 40, scale=0.5, zero_point=-3, kind=S)
    b = bytes_of(2, 40, 4, scale=0.5, zero_point=10, kind=S, seed=1)
    got = compute(MATMUL, a, b, False, False, out=OperandType(S, (), 200.0, 5))[0]
    want = np.clip(np.rint(a.real @ b.real / 200) + 5, -128, 127)
    assert np.abs(got - want).max() <= 1


def test_matrices_that_do_not_go_together() -> None:
    out = OperandType(F)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*cannot be multiplied"):
        compute(MATMUL, numbers(2, 3), numbers(2, 3), False, False, out=out)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*broadcast"):
        compute(MATMUL, numbers(2, 2, 3), numbers(3, 3, 2), False, False, out=out)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*ranks"):
        compute(MATMUL, numbers(2, 2, 3), numbers(3, 2), False, False, out=out)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*rank"):
        compute(MATMUL, numbers(3), numbers(3), False, False, out=out)
