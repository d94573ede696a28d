"""Pooling against onnxruntime, and in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import F, H, Q, S, compute, numbers, quantized

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operand, OperandType, Operation
from tests.executor.single_node import run_onnxruntime

POOLS = [Operation.MAX_POOL_2D, Operation.AVERAGE_POOL_2D, Operation.L2_POOL_2D]
PADS = 0, 1, 1, 0  # left, right, top, bottom


def pool(code: Operation, x: Any, *rest: Any, kind: Operand = F, **quant: Any) -> Array:
    return compute(code, x, *rest, out=OperandType(kind, (0, 0, 0, 0), **quant))[0]


def expected(code: Operation, x: Array, attributes: dict[str, Any]) -> Array:
    """Of an NCHW image."""
    if code is Operation.MAX_POOL_2D:
        y = run_onnxruntime("MaxPool", [x], attributes)[0]
    elif code is Operation.AVERAGE_POOL_2D:
        y = run_onnxruntime("AveragePool", [x], attributes)[0]
    else:
        y = np.sqrt(run_onnxruntime("AveragePool", [x * x], attributes)[0])
    return np.asarray(y)


@pytest.mark.parametrize("code", POOLS)
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_explicit_padding(code: Operation, strides: tuple[int, int]) -> None:
    x = numbers(2, 3, 7, 8)
    left, right, top, bottom = PADS
    want = expected(code, x, {"kernel_shape": (3, 2), "strides": strides, "pads": (top, left, bottom, right)})
    sizes = *strides[::-1], 2, 3, 0
    np.testing.assert_allclose(pool(code, x, *PADS, *sizes, True), want, rtol=1e-5, atol=1e-6)
    got = pool(code, np.ascontiguousarray(x.transpose(0, 2, 3, 1)), *PADS, *sizes)
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("code", POOLS)
@pytest.mark.parametrize(("padding", "auto_pad"), [(1, "SAME_UPPER"), (2, "VALID")])
def test_implicit_padding(code: Operation, padding: int, auto_pad: str) -> None:
    x = numbers(1, 2, 6, 7)
    want = expected(code, x, {"kernel_shape": (4, 3), "strides": (2, 2), "auto_pad": auto_pad})
    np.testing.assert_allclose(pool(code, x, padding, 2, 2, 3, 4, 0, True), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("activation", "low", "high"), [(1, 0, np.inf), (2, -1, 1), (3, 0, 6)])
def test_activation(activation: int, low: float, high: float) -> None:
    x = 8 * numbers(1, 4, 4, 2)
    got = pool(Operation.MAX_POOL_2D, x, 2, 1, 1, 1, 1, activation)
    assert got.tolist() == np.clip(x, low, high).tolist()


def test_float16_is_computed_in_float32() -> None:
    x = np.full((1, 2, 2, 1), 60000, np.float16)
    assert pool(Operation.AVERAGE_POOL_2D, x, 2, 1, 1, 2, 2, 0, kind=H).tolist() == [[[[60000]]]]


@pytest.mark.parametrize(("kind", "zero_point"), [(Q, 200), (S, 72)])
def test_quantized_average_rounds_up_from_the_smallest_element(kind: Operand, zero_point: int) -> None:
    elements = np.array([[0, 1], [1, 0]]) + (-128 if kind is S else 0)
    x = quantized(elements.reshape(1, 2, 2, 1), 0.5, zero_point, kind)
    y = pool(Operation.AVERAGE_POOL_2D, x, 2, 1, 1, 2, 2, 0, kind=kind, scale=0.5, zero_point=zero_point)
    assert y.dtype == kind.dtype
    assert y.item() == elements.min() + 1


def test_padding_is_never_the_maximum() -> None:
    x = quantized(np.array([[[[3]]]]), 1.0, 250)
    y = pool(Operation.MAX_POOL_2D, x, 1, 1, 1, 3, 3, 0, kind=Q, scale=1.0, zero_point=250)
    assert y.item() == 3


@pytest.mark.parametrize("code", POOLS)
def test_empty_batch(code: Operation) -> None:
    assert pool(code, np.zeros((0, 4, 5, 3), np.float32), 2, 2, 2, 2, 2, 0).shape == (0, 2, 2, 3)


@pytest.mark.parametrize(
    ("dims", "rest", "reason"),
    [
        ((1, 4, 4, 1), (2, 0, 0, 0, 1, 1, 2, 2, 0), "padding"),
        ((1, 4, 4, 1), (0, 0, -1, 0, 1, 1, 2, 2, 0), "padding"),
        ((1, 4, 4, 1), (0, 0, 0, 0, 0, 1, 2, 2, 0), "strides"),
        ((1, 4, 4, 1), (0, 0, 0, 0, 1, 1, 2, 0, 0), "window"),
        ((1, 4, 4, 1), (0, 0, 0, 0, 1, 1, 5, 5, 0), "does not fit"),
        ((1, 4, 4, 1), (3, 1, 1, 2, 2, 0), "padding code"),
        ((1, 4, 4, 1), (1, 0, 1, 2, 2, 0), "strides"),
        ((1, 4, 4, 1), (1, 1, 1, 2, 2, 9), "activation"),
        ((1, 0, 4, 1), (1, 1, 1, 2, 2, 0), "batch"),
    ],
)
def test_refused_while_running(dims: tuple[int, ...], rest: tuple[int, ...], reason: str) -> None:
    with pytest.raises(NnapiError, match=f"OP_FAILED.*{reason}"):
        pool(Operation.AVERAGE_POOL_2D, np.zeros(dims, np.float32), *rest)


def test_refused_while_building() -> None:
    x = quantized(np.zeros((1, 2, 2, 1)), 0.5, 3)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*rank"):
        pool(Operation.MAX_POOL_2D, numbers(2, 2, 1), 2, 1, 1, 1, 1, 0)
    with pytest.raises(NnapiError, match="BAD_DATA"):
        pool(Operation.L2_POOL_2D, x, 2, 1, 1, 1, 1, 0, kind=Q, scale=0.5, zero_point=3)
