"""Convolutions against onnxruntime."""

import math
import tracemalloc
from itertools import product

import numpy as np
import onnx
import pytest

from ortconv.errors import BackendError, GraphError
from ortconv.executor.algorithms import conv, row_tiles
from ortconv.executor.kernels import conv as kernels
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.arrays import normal
from tests.batches import batched
from tests.executor.single_node import assert_same, compare, run_kernel, run_onnxruntime

# input, weights, attributes
CONVOLUTIONS = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"group": 2, "pads": [1, 2], "strides": [2], "dilations": [2]}),
    ((2, 4, 11), (4, 1, 3), {"group": 4, "pads": [1, 1], "strides": [2]}),
    ((1, 3, 8, 9), (5, 3, 1, 1), {}),
    ((2, 3, 8, 9), (5, 3, 1, 1), {"strides": [2, 3]}),
    ((2, 3, 8, 9), (5, 3, 1, 1), {"pads": [1, 0, 2, 1]}),
    ((2, 3, 8, 9), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 3, 8, 9), (5, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 3, 52, 60), (8, 3, 7, 7), {"strides": [1, 1], "pads": [3, 3, 3, 3]}),
    ((2, 3, 30, 110), (8, 3, 3, 5), {"strides": [2, 2], "pads": [1, 2, 1, 2]}),
    ((1, 3, 30, 110), (8, 3, 3, 5), {"dilations": [1, 2], "pads": [1, 2, 1, 2]}),
    ((1, 64, 14, 15), (66, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 6, 8, 9), (4, 3, 3, 3), {"group": 2}),
    ((2, 6, 8, 9), (4, 3, 1, 1), {"group": 2}),
    ((2, 6, 8, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 6, 8, 9), (6, 1, 5, 3), {"group": 6, "pads": [2, 1, 2, 1], "strides": [2, 2]}),
    ((1, 6, 12, 9), (6, 1, 3, 3), {"group": 6, "dilations": [2, 2]}),
    ((2, 3, 8, 9), (9, 1, 3, 3), {"group": 3, "auto_pad": "SAME_UPPER"}),
    ((1, 3, 7, 8), (2, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((1, 3, 7, 8), (2, 3, 2, 4), {"auto_pad": "VALID", "strides": [2, 3]}),
    ((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 1], "strides": [1, 2, 2]}),
    ((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), {"group": 4, "pads": [1] * 6}),
    ((1, 4, 5, 6, 7), (4, 2, 1, 1, 1), {"group": 2}),
    ((0, 3, 8, 9), (5, 3, 3, 3), {}),
    ((1, 3, 4, 40), (2, 3, 3, 3), {"pads": [5, 5, 5, 5]}),
    ((2, 8, 3, 40), (4, 8, 3, 3), {"pads": [5, 1, 5, 1]}),
    ((2, 8, 20, 75), (4, 8, 5, 3), {"pads": [2, 1, 2, 1], "strides": [2, 2], "dilations": [1, 2]}),
    ((1, 8, 9, 40), (4, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
    ((1, 8, 20, 21), (8, 1, 5, 5), {"group": 8, "pads": [4, 4, 4, 4], "strides": [3, 2]}),
    ((1, 8, 20, 21), (8, 1, 3, 3), {"group": 8, "pads": [4, 4, 4, 4], "strides": [2, 3], "dilations": [2, 2]}),
    ((1, 4, 3, 2), (4, 1, 3, 3), {"group": 4, "pads": [6, 6, 6, 6], "strides": [1, 2]}),
    ((1, 48, 9, 8), (48, 48, 3, 3), {"pads": [0, 2, 1, 1]}),
    ((1, 300, 9, 7), (330, 300, 1, 1), {}),
    ((2, 300, 9, 7), (330, 300, 1, 1), {"strides": [2, 1]}),
    ((3, 70, 9, 9), (190, 70, 3, 3), {"strides": [2, 2]}),
    ((2, 70, 12, 12), (190, 70, 3, 3), {"dilations": [3, 2]}),
    ((2, 3, 40, 50), (6, 3, 8, 10), {"strides": [8, 10]}),
    ((1, 4, 40, 50), (6, 2, 9, 8), {"strides": [7, 5], "dilations": [2, 1], "group": 2}),
    ((1, 5, 1, 1), (3, 5, 1, 1), {}),
    ((1, 5, 1, 1), (3, 5, 1, 1), {"pads": [0, 1, 1, 0]}),
]


@batched
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_conv(rng, x, w, attributes, bias):
    inputs = [normal(rng, *x), normal(rng, *w), normal(rng, w[0]) if bias else None]
    compare("Conv", inputs, attributes, atol=1e-6 + 1e-7 * math.prod(w[1:]))


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_windows_that_are_many_are_copied_in_pieces(rng, x, w, attributes, monkeypatch):
    """On the kernel itself, which runs if the weights are an input."""
    a, b = rng.standard_normal(x), rng.standard_normal(w)
    whole = kernels.conv(a, b, **attributes)
    monkeypatch.setattr(kernels, "MOST_COLUMNS", 100)
    np.testing.assert_allclose(kernels.conv(a, b, **attributes), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_memory_of_large_windows(rng):
    x, w = normal(rng, 1, 1, 300, 300), normal(rng, 1, 1, 40, 40)
    tracemalloc.start()
    result = kernels.conv(x, w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.shape == (1, 1, 261, 261)
    assert peak < 8 * kernels.MOST_COLUMNS


def laid_out(w, group=1, **geometry):
    """The convolution with weights that are laid out once, without bias."""
    return conv.convolution(w, group, geometry)


def assert_laid_out_equals_plain(rng, x, w, attributes):
    x, w = normal(rng, *x), normal(rng, *w)
    want = run_kernel("Conv", [x, w], attributes)[0]
    for memory in (x, np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)):
        assert_same(laid_out(w, **attributes)(memory), want, rtol=1e-4, atol=1e-4)


@batched
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_laid_out_conv(rng, x, w, attributes):
    assert_laid_out_equals_plain(rng, x, w, attributes)


@batched
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_conv_in_many_tiles(rng, x, w, attributes, monkeypatch):
    monkeypatch.setattr(row_tiles, "TILE_BYTES", 2000)
    assert_laid_out_equals_plain(rng, x, w, attributes)


@pytest.mark.parametrize("shape", [(1, 0, 5, 5), (0, 3, 5, 5)])
@pytest.mark.parametrize("channels", [1, 4])
def test_conv_of_nothing(rng, shape, channels):
    x, w = normal(rng, *shape), normal(rng, channels, shape[1], 3, 3)
    (y,) = run_kernel("Conv", [x, w, np.ones(channels, np.float32)], {"strides": [2, 2]})
    assert y.shape == (shape[0], channels, *((n - 1) // 2 for n in shape[2:]))
    assert (y == 1).all() or shape[1]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_conv_keeps_its_type(rng, dtype):
    x, w, b = (normal(rng, *s).astype(dtype) for s in ((1, 3, 6, 6), (4, 3, 3, 3), (4,)))
    got = run_kernel("Conv", [x, w, b])[0]
    assert got.dtype == dtype
    want = run_kernel("Conv", [v.astype(np.float32) for v in (x, w, b)])[0]
    np.testing.assert_allclose(
        got.astype(np.float64),
        want.astype(dtype).astype(np.float64),
        rtol=2e-3 if dtype is np.float16 else 1e-5,
        atol=1e-5,
    )


def test_conv_does_not_spread_non_finite_values(rng):
    x, w = normal(rng, 1, 64, 12, 12), normal(rng, 64, 64, 3, 3)
    x[0, 0, 5, 5], x[0, 1, 9, 9] = np.nan, np.inf
    compare("Conv", [x, w], {"pads": [1, 1, 1, 1]}, rtol=1e-4, atol=1e-4)
    assert_same(
        laid_out(w, pads=(1, 1, 1, 1))(x), run_onnxruntime("Conv", [x, w], {"pads": [1, 1, 1, 1]})[0], 1e-4, 1e-4
    )


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 4, 4), (2, 4, 3, 3), {}, "4 channels"),
        ((1, 3, 2, 2), (2, 3, 5, 5), {}, r"a window spanning \[5, 5\] does not fit into \[2, 2\]"),
        ((1, 3, 5, 2), (2, 3, 3, 3), {"strides": [2, 2]}, "does not fit"),
        ((1, 3, 2, 2), (2, 3, 3, 3), {"pads": [1, 0, 0, 0], "dilations": [1, 2]}, "does not fit"),
        ((1, 3, 0, 5), (2, 3, 1, 1), {}, "does not fit"),
        ((1, 4, 4, 4), (3, 2, 1, 1), {"group": 2}, "divided"),
    ],
)
def test_conv_refuses(rng, x, w, attributes, message):
    inputs = [normal(rng, *x), normal(rng, *w)]
    with pytest.raises(GraphError, match=message):
        run_kernel("Conv", inputs, attributes)
    with pytest.raises(Exception, match=r"."):
        run_onnxruntime("Conv", inputs, attributes)


def test_padding_beyond_memory_is_refused_at_once(rng):
    x, w = normal(rng, 1, 4, 8, 8), normal(rng, 4, 1, 3, 3)
    with pytest.raises(MemoryError):
        laid_out(w, group=4, pads=[1, 1, 1, 2**54])(x)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_a_bias_of_another_shape(shape: tuple[int, ...]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[1,2,4,4] x) => (float[1,3,4,4] y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w, b) }""")
    for name, size in (("w", (3, 2, 1, 1)), ("b", shape)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(size, np.float32), name))
    with pytest.raises(BackendError, match=r"the bias has shape .*, it must be \[3\]"):
        Session(from_proto(model)).run(None, {"x": np.zeros((1, 2, 4, 4), np.float32)})


ACTIVATIONS = [
    ("Relu", []),
    ("Sigmoid", []),
    ("Tanh", []),
    ("LeakyRelu", [0.2]),
    ("HardSigmoid", [0.3, 0.4]),
    ("Clip", [-0.5, 1.5]),
]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("name", "parameters"), ACTIVATIONS)
def test_fused_conv(rng, name, parameters, residual):
    inputs = [normal(rng, 1, 3, 6, 6), normal(rng, 4, 3, 3, 3), normal(rng, 4)]
    if residual:
        inputs.append(normal(rng, 1, 4, 4, 4))
    attributes = {"activation": name}
    if parameters:
        attributes["activation_params"] = parameters
    compare("FusedConv", inputs, attributes, domain="com.microsoft", atol=1e-5)


# input, weights, attributes
TRANSPOSED = [
    ((2, 3, 5), (3, 4, 3), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ((2, 3, 4, 5), (3, 4, 2, 2), {"strides": [2, 2]}),
    ((2, 3, 4, 5), (3, 4, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 4, 5), (3, 4, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]}),
    ((1, 4, 4, 5), (4, 3, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ((1, 4, 4, 5), (4, 1, 3, 3), {"group": 4, "strides": [2, 2]}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [12, 10]}),
    ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [11, 9], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 4, 5), (3, 2, 4, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 4, 5), (3, 2, 3, 4), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 4, 5), (3, 2, 1, 2), {"strides": [3, 3], "auto_pad": "SAME_LOWER", "output_padding": [0, 1]}),
    ((1, 3, 4, 5), (3, 2, 3, 4), {"strides": [2, 2], "auto_pad": "VALID"}),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 1, 0]}),
    ((0, 3, 4, 5), (3, 4, 2, 2), {"strides": [2, 2]}),
]


@batched
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_conv_transpose(rng, x, w, attributes, bias):
    outputs = w[1] * attributes.get("group", 1)
    inputs = [normal(rng, *x), normal(rng, *w), normal(rng, outputs) if bias else None]
    compare("ConvTranspose", inputs, attributes, atol=1e-5)


@pytest.mark.parametrize(("channels", "zero_points"), list(product((3, 130, 700), (False, True))))
def test_conv_integer_is_exact(rng, channels, zero_points):
    x = rng.integers(0, 256, (2, channels, 6, 6), dtype=np.uint8)
    w = rng.integers(0, 256, (5, channels, 3, 3), dtype=np.uint8)
    inputs = [x, w, np.array(3, np.uint8), np.array(128, np.uint8)] if zero_points else [x, w]
    compare("ConvInteger", inputs, {"pads": [1, 1, 1, 1]}, opset=10)


def test_conv_integer_at_the_extremes():
    x = np.full((1, 700, 4, 4), 255, np.uint8)
    w = np.full((2, 700, 3, 3), 255, np.uint8)
    w[1, ::2] = 0
    compare("ConvInteger", [x, w], opset=10)
