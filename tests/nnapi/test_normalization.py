"""Normalizations and softmax against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import F, H, Q, S, compute, level_of, numbers, quantized

from ortconv.ir.tensor import Array
from ortconv.nnapi import FeatureLevel, NnapiError, Operand, OperandType, Operation
from tests.executor.single_node import run_onnxruntime

L2, LRN = Operation.L2_NORMALIZATION, Operation.LOCAL_RESPONSE_NORMALIZATION
INSTANCE = Operation.INSTANCE_NORMALIZATION
SOFTMAX, LOG_SOFTMAX = Operation.SOFTMAX, Operation.LOG_SOFTMAX
FIXED = {Q: {SOFTMAX: (1 / 256, 0), L2: (1 / 128, 128)}, S: {SOFTMAX: (1 / 256, -128), L2: (1 / 128, 0)}}


def computed(code: Operation, *inputs: Any, kind: Operand = F) -> Array:
    return compute(code, *inputs, out=OperandType(kind, (), *FIXED.get(kind, {}).get(code, ())))[0]


def close(got: Array, want: Array, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("axis", [-3, -1, 0, 2])
def test_softmax(axis: int) -> None:
    x = 10 * numbers(3, 4, 5)
    close(computed(SOFTMAX, x, 0.5, axis), run_onnxruntime("Softmax", [x / 2], {"axis": axis})[0])
    close(computed(LOG_SOFTMAX, x, 0.5, axis), run_onnxruntime("LogSoftmax", [x / 2], {"axis": axis})[0])
    if axis == -1:
        close(computed(SOFTMAX, x, 2.0), run_onnxruntime("Softmax", [2 * x])[0])


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1e30, 1e30, -1e30]], np.float32)
    assert computed(SOFTMAX, x, 1.0).tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize("kind", [Q, S])
def test_quantized_softmax(kind: Operand) -> None:
    x = quantized(np.array([[0, 40, 60, 100]]) + (-128 if kind is S else 0), 0.1, 3, kind)
    want = run_onnxruntime("Softmax", [x.real * np.float32(0.7)])[0]
    got = computed(SOFTMAX, x, 0.7, kind=kind)
    assert got.dtype == kind.dtype
    low, high = OperandType(kind).limits
    assert got.tolist() == np.clip(np.rint(want * 256) + low, low, high).tolist()


def test_softmax_of_nothing() -> None:
    assert computed(SOFTMAX, np.zeros((0, 5), np.float32), 1.0).shape == (0, 5)


def test_softmax_refused() -> None:
    for beta in (0.0, -1.0):
        with pytest.raises(NnapiError, match=r"OP_FAILED.*beta"):
            computed(SOFTMAX, numbers(2, 3), beta)
    for axis in (2, -3):
        with pytest.raises(NnapiError, match=r"OP_FAILED.*axis"):
            computed(SOFTMAX, numbers(2, 3), 1.0, axis)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*rank"):
        computed(SOFTMAX, numbers(1, 1, 1, 2, 3), 1.0)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*scale"):
        compute(SOFTMAX, quantized(np.zeros((1, 2)), 0.1, 0), 1.0, out=OperandType(Q, (1, 2), 1 / 128, 0))
    with pytest.raises(NnapiError, match="BAD_DATA"):
        computed(SOFTMAX, numbers(2, 3).astype(np.float16), 1.0, kind=H)  # beta is a FLOAT16


@pytest.mark.parametrize(("rank", "level"), [(1, 3), (2, 1), (3, 3), (4, 1)])
def test_softmax_levels(rank: int, level: int) -> None:
    assert level_of(SOFTMAX, numbers(*[2] * rank), 1.0, out=OperandType(F)) == FeatureLevel.number(level)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_l2(axis: int) -> None:
    x = numbers(3, 4, 5)
    want = run_onnxruntime("LpNormalization", [x], {"axis": axis, "p": 2})[0]
    close(computed(L2, x, axis), want)


@pytest.mark.parametrize("kind", [F, Q, S])
def test_l2_of_zeros(kind: Operand) -> None:
    x = np.zeros((2, 3), np.float32) if kind is F else quantized(np.full((2, 3), 7), 0.5, 7, kind)
    zero_point = 0 if kind is F else FIXED[kind][L2][1]
    assert computed(L2, x, kind=kind).tolist() == [[zero_point] * 3] * 2


@pytest.mark.parametrize("kind", [Q, S])
def test_quantized_l2_saturates(kind: Operand) -> None:
    low, high = OperandType(kind).limits
    x = quantized(np.array([[7, 107, 7], [7, -93 if kind is S else 0, 7]]), 0.5, 7, kind)
    zero_point = FIXED[kind][L2][1]
    assert computed(L2, x, kind=kind).tolist() == [[zero_point, high, zero_point], [zero_point, low, zero_point]]


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("radius", [0, 1, 10])
def test_local_response(axis: int, radius: int) -> None:
    x = 3 * numbers(2, 6, 3, 4)
    size = 2 * radius + 1
    attributes = {"size": size, "bias": 1.5, "alpha": 0.25 * size, "beta": 0.6}
    want = run_onnxruntime("LRN", [x], attributes)[0]
    close(computed(LRN, x, radius, 1.5, 0.25, 0.6, axis), want)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    close(np.moveaxis(computed(LRN, last, radius, 1.5, 0.25, 0.6), -1, 1), want)


def test_local_response_refused() -> None:
    with pytest.raises(NnapiError, match=r"OP_FAILED.*radius"):
        computed(LRN, numbers(1, 2, 2, 3), -1, 1.0, 1.0, 1.0)
    with pytest.raises(NnapiError, match="OP_FAILED"):
        computed(LRN, np.zeros((0, 2, 2, 3), np.float32), 1, 1.0, 1.0, 1.0)


def test_instance() -> None:
    x = 4 * numbers(2, 3, 4, 5) + 7
    gamma, beta = np.full(3, 1.5, np.float32), np.full(3, -0.5, np.float32)
    want = run_onnxruntime("InstanceNormalization", [x, gamma, beta], {"epsilon": 0.01})[0]
    close(computed(INSTANCE, x, 1.5, -0.5, 0.01, True), want, 1e-4)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    close(computed(INSTANCE, last, 1.5, -0.5, 0.01, False).transpose(0, 3, 1, 2), want, 1e-4)
