"""Convolutions against onnxruntime; the level and the refusals of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import F, H, Q, S, bias, bytes_of, close, compute, level_of, numbers, per_channel, quantized

from ortconv.ir.tensor import Array
from ortconv.nnapi import FeatureLevel, NnapiError, Operand, OperandType, Operation
from ortconv.nnapi.operand import Tensor
from tests.executor.single_node import run_onnxruntime

CONV, DEPTHWISE = Operation.CONV_2D, Operation.DEPTHWISE_CONV_2D
GROUPED, TRANSPOSED = Operation.GROUPED_CONV_2D, Operation.TRANSPOSE_CONV_2D
PADS = 0, 2, 1, 0  # left, right, top, bottom
ONNX_PADS = 1, 0, 0, 2  # top, left, bottom, right
OPEN = (0, 0, 0, 0)


def out(kind: Operand = F, scale: float = 0.0, zero_point: int = 0) -> OperandType:
    return OperandType(kind, OPEN, scale, zero_point)


def convolved(code: Operation, *inputs: Any, like: OperandType | None = None) -> Array:
    return compute(code, *inputs, out=like or out())[0]


def nhwc(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def nchw(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
def test_convolution(strides: tuple[int, int], dilations: tuple[int, int]) -> None:
    x, w, b = numbers(2, 3, 9, 11), numbers(4, 3, 2, 3), numbers(4)
    attributes = {"strides": strides, "dilations": dilations, "pads": ONNX_PADS}
    want = run_onnxruntime("Conv", [x, w, b], attributes)[0]
    scalars = *strides[::-1], 0
    close(convolved(CONV, x, nhwc(w), b, *PADS, *scalars, True, *dilations[::-1]), want)
    close(nchw(convolved(CONV, nhwc(x), nhwc(w), b, *PADS, *scalars, False, *dilations[::-1])), want)
    if dilations == (1, 1):
        close(nchw(convolved(CONV, nhwc(x), nhwc(w), b, *PADS, *scalars)), want)


@pytest.mark.parametrize(("padding", "auto_pad"), [(1, "SAME_UPPER"), (2, "VALID")])
def test_implicit_padding(padding: int, auto_pad: str) -> None:
    x, w, b = numbers(1, 2, 8, 7), numbers(3, 2, 4, 3), numbers(3)
    want = run_onnxruntime("Conv", [x, w, b], {"strides": (3, 2), "auto_pad": auto_pad})[0]
    close(convolved(CONV, x, nhwc(w), b, padding, 2, 3, 0, True), want)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(multiplier: int) -> None:
    x, w, b = numbers(2, 3, 6, 7), numbers(3 * multiplier, 1, 2, 3), numbers(3 * multiplier)
    want = run_onnxruntime("Conv", [x, w, b], {"strides": (2, 1), "pads": ONNX_PADS, "group": 3})[0]
    filter = np.ascontiguousarray(w.transpose(1, 2, 3, 0))
    close(convolved(DEPTHWISE, x, filter, b, *PADS, 1, 2, multiplier, 0, True), want)
    close(nchw(convolved(DEPTHWISE, nhwc(x), filter, b, *PADS, 1, 2, multiplier, 0)), want)


def test_grouped() -> None:
    x, w, b = numbers(2, 4, 6, 7), numbers(6, 2, 2, 3), numbers(6)
    want = run_onnxruntime("Conv", [x, w, b], {"strides": (2, 1), "pads": ONNX_PADS, "group": 2})[0]
    close(convolved(GROUPED, x, nhwc(w), b, *PADS, 1, 2, 2, 0, True), want)
    want = run_onnxruntime("Conv", [x, w, b], {"auto_pad": "SAME_UPPER", "group": 2})[0]
    close(nchw(convolved(GROUPED, nhwc(x), nhwc(w), b, 1, 1, 1, 2, 0, False)), want)


def transposed_filter(w: Array) -> Array:
    """[in, out, height, width] as [out, height, width, in]."""
    return np.ascontiguousarray(w.transpose(1, 2, 3, 0))


@pytest.mark.parametrize(
    ("pads", "extra"),
    [((0, 0, 0, 0), (0, 0)), ((1, 0, 0, 1), (0, 0)), ((1, -1, 0, -2), (2, 1)), ((5, 0, 0, 0), (0, 0))],
)
def test_transposed(pads: tuple[int, int, int, int], extra: tuple[int, int]) -> None:
    """Less than no padding behind the image is onnx's output padding."""
    x, w, b = numbers(2, 3, 4, 5), numbers(3, 2, 3, 4), numbers(2)
    left, right, top, bottom = pads
    attributes = {"strides": (3, 2), "pads": (top, left, max(bottom, 0), max(right, 0)), "output_padding": extra}
    want = run_onnxruntime("ConvTranspose", [x, w, b], attributes)[0]
    close(convolved(TRANSPOSED, x, transposed_filter(w), b, *pads, 2, 3, 0, True), want)
    close(nchw(convolved(TRANSPOSED, nhwc(x), transposed_filter(w), b, *pads, 2, 3, 0, False)), want)


@pytest.mark.parametrize(("rows", "columns"), [(10, 9), (12, 10), (11, 10)])
def test_transposed_to_a_shape(rows: int, columns: int) -> None:
    """SAME is the padding that a convolution of the output would have."""
    x, w, b = numbers(1, 3, 4, 5), numbers(3, 2, 4, 3), numbers(2)
    shape = np.array([1, 2, rows, columns], np.int32)
    got = convolved(TRANSPOSED, x, transposed_filter(w), b, shape, 1, 2, 3, 0, True)
    assert got.shape == tuple(shape)
    image = numbers(1, 2, rows, columns, seed=1)
    there = run_onnxruntime("Conv", [image, w], {"strides": (3, 2), "auto_pad": "SAME_UPPER"})[0]
    backward = got - b.reshape(1, 2, 1, 1)
    assert np.isclose(np.vdot(there, x), np.vdot(image, backward), rtol=1e-4)  # one is the other's adjoint


def test_transposed_without_padding_is_as_large_as_it_is() -> None:
    shape = np.array([1, 3, 3, 1], np.int32)
    got = convolved(TRANSPOSED, numbers(1, 2, 2, 1), numbers(1, 2, 2, 1), numbers(1), shape, 2, 2, 2, 0, False)
    assert got.shape == (1, 4, 4, 1)


@pytest.mark.parametrize(("kind", "x_zero", "y_zero"), [(Q, 120, 100), (S, -9, 3)])
@pytest.mark.parametrize("each", [False, True])
def test_quantized(kind: Operand, x_zero: int, y_zero: int, each: bool) -> None:
    x = bytes_of(1, 6, 5, 4, scale=0.05, zero_point=x_zero, kind=kind)
    scales = np.array([0.02, 0.01, 0.003], np.float32) if each else np.full(3, 0.02, np.float32)
    elements = bytes_of(3, 2, 3, 4, scale=0.02, zero_point=0, kind=S)
    w: Tensor = per_channel(elements.array, 0, scales) if each else elements
    if kind is Q and not each:
        w = quantized(elements.array.astype(np.int32) + 128, 0.02, 128)
    b = np.array([500, -700, 90])
    y = out(kind, 0.4, y_zero)
    got = convolved(CONV, x, w, bias(b, 0 if each else np.float32(0.05) * np.float32(0.02)), 1, 1, 1, 0, like=y)
    real_x, real_w = nchw(x.real), nchw(elements.array) * scales.reshape(3, 1, 1, 1)
    real_b = (b * np.float32(0.05) * scales).astype(np.float32)
    real = run_onnxruntime("Conv", [real_x, real_w, real_b], {"auto_pad": "SAME_UPPER"})[0]
    want = run_onnxruntime("QuantizeLinear", [real, np.array(0.4, np.float32), np.array(y_zero, kind.dtype)])[0]
    assert got.dtype == kind.dtype
    difference = np.abs(nchw(got).astype(int) - want.astype(int))
    assert difference.max() <= 1
    assert np.count_nonzero(difference) <= difference.size // 50


@pytest.mark.parametrize("terms", [257, 259, 33001])
def test_long_sums_are_exact(terms: int) -> None:
    x = quantized(np.full((1, 1, 1, terms), 255), 1.0, 0)
    got = convolved(CONV, x, x, bias(np.array([7 - terms * 255 * 255]), 1.0), 2, 1, 1, 0, like=out(Q, 1.0))
    assert got.item() == 7


def test_float16_is_rounded_once() -> None:
    x, w = np.full((1, 1, 1, 3), 60000, np.float16), np.array([1, 1, -1], np.float16).reshape(1, 1, 1, 3)
    assert convolved(CONV, x, w, np.zeros(1, np.float16), 2, 1, 1, 0, like=out(H)).item() == 60000


@pytest.mark.parametrize("code", [CONV, DEPTHWISE, TRANSPOSED])
def test_empty_batch(code: Operation) -> None:
    x, w, b = np.zeros((0, 4, 5, 2), np.float32), numbers(1 if code is DEPTHWISE else 2, 2, 2, 2), numbers(2)
    rest = {CONV: (0,), DEPTHWISE: (1, 0), TRANSPOSED: (0, False)}[code]
    size = (5, 6) if code is TRANSPOSED else (3, 4)
    assert convolved(code, x, w, b, 0, 0, 0, 0, 1, 1, *rest).shape == (0, *size, 2)


X, W, B = (1, 4, 4, 2), (3, 2, 2, 2), (3,)


@pytest.mark.parametrize(
    ("dims", "rest", "reason"),
    [
        ((X, (3, 2, 2, 1), B), (1, 1, 1, 0), "channels"),
        ((X, W, (2,)), (1, 1, 1, 0), "bias"),
        ((X, W, B), (1, 0, 1, 0), "strides"),
        ((X, W, B), (3, 1, 1, 0), "padding code"),
        ((X, W, B), (1, 1, 1, 4), "activation"),
        ((X, W, B), (2, 0, 0, 0, 1, 1, 0), "padding"),
        ((X, W, B), (0, 0, 0, -1, 1, 1, 0), "padding"),
        ((X, W, B), (2, 1, 1, 0, False, 0, 1), "dilations"),
        ((X, W, B), (2, 1, 1, 0, False, 4, 4), "does not fit"),
        (((1, 0, 4, 2), W, B), (1, 1, 1, 0), "batch"),
        ((X, (3, 0, 2, 2), B), (1, 1, 1, 0), "window"),
    ],
)
def test_refused_while_running(dims: tuple[tuple[int, ...], ...], rest: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(NnapiError, match=f"OP_FAILED.*{reason}"):
        convolved(CONV, *(np.zeros(one, np.float32) for one in dims), *rest)


@pytest.mark.parametrize(
    ("code", "w", "rest", "reason"),
    [
        (DEPTHWISE, (1, 2, 2, 3), (1, 1, 1, 1, 0), "channels"),
        (DEPTHWISE, (2, 2, 2, 4), (1, 1, 1, 2, 0), "channels"),
        (GROUPED, (4, 2, 2, 1), (1, 1, 1, 0, 0, False), "groups"),
        (GROUPED, (4, 2, 2, 2), (1, 1, 1, 2, 0, False), "groups"),
        (GROUPED, (3, 2, 2, 1), (1, 1, 1, 2, 0, False), "groups"),
        (TRANSPOSED, (3, 2, 2, 3), (0, 0, 0, 0, 1, 1, 0, False), "filter"),
        (TRANSPOSED, (3, 2, 2, 2), (0, 0, 0, 0, 0, 1, 0, False), "strides"),
        (TRANSPOSED, (3, 2, 2, 2), (-1, 0, 0, 0, 1, 1, 0, False), "padding"),
        (TRANSPOSED, (3, 2, 2, 2), (0, 0, 3, 2, 1, 1, 0, False), "nothing"),
        (TRANSPOSED, (3, 2, 2, 2), (np.array([1, 8, 8], np.int32), 1, 2, 2, 0, False), "output shape"),
        (TRANSPOSED, (3, 2, 2, 2), (np.array([1, 8, 8, 3], np.int32), 5, 2, 2, 0, False), "padding code"),
    ],
)
def test_others_refused_while_running(code: Operation, w: tuple[int, ...], rest: tuple[Any, ...], reason: str) -> None:
    channels = w[3] if code is DEPTHWISE else w[0]
    with pytest.raises(NnapiError, match=f"OP_FAILED.*{reason}"):
        convolved(code, numbers(*X), numbers(*w), numbers(channels), *rest)


def quantized_level(out_scale: float, bias_scale: float = 0.25, kind: Operand = Q, channel: int | None = None) -> int:
    x = quantized(np.zeros((1, 1, 1, 2)), 0.5, 0, kind)
    w: Tensor = quantized(np.zeros((2, 1, 1, 2)), 0.5, 0, kind)
    if channel is not None:
        w = per_channel(w.array, channel, np.ones(2))
    operands = x, w, bias(np.zeros(2), bias_scale), 1, 1, 1, 0
    return list(FeatureLevel).index(level_of(CONV, *operands, out=out(kind, out_scale))) + 1


def test_levels() -> None:
    assert quantized_level(0.5) == 1
    assert quantized_level(0.25) == 3  # not more than the product of the other scales
    assert quantized_level(0.5, 0.0, channel=0) == 3
    assert quantized_level(0.5, kind=S) == 4
    scalars = 1, 1, 1, 0
    images = numbers(*X), numbers(*W), numbers(*B)
    assert level_of(CONV, *images, *scalars, out=out()) == FeatureLevel.LEVEL_1
    assert level_of(CONV, *images, *scalars, False, out=out()) == FeatureLevel.LEVEL_3
    assert level_of(CONV, *images, *scalars, False, 1, 1, out=out()) == FeatureLevel.LEVEL_3
    halves = [one.astype(np.float16) for one in images]
    assert level_of(CONV, *halves, *scalars, out=out(H)) == FeatureLevel.LEVEL_3


def test_refused_while_building() -> None:
    with pytest.raises(NnapiError, match=r"BAD_DATA.*channel dimension"):
        quantized_level(0.5, 0.0, channel=3)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*rank"):
        convolved(CONV, numbers(4, 4, 2), numbers(*W), numbers(*B), 1, 1, 1, 0)
    with pytest.raises(NnapiError, match=r"BAD_DATA.*inputs"):
        convolved(CONV, numbers(*X), numbers(*W), numbers(*B), 1, 1, 1, 0, False, 1)
    with pytest.raises(NnapiError, match="BAD_DATA"):
        convolved(CONV, numbers(*X), numbers(*W).astype(np.float16), numbers(*B), 1, 1, 1, 0)
