"""Pools against onnxruntime."""

import numpy as np
import pytest

from ortconv.errors import UnsupportedError
from ortconv.executor.algorithms.pooling import global_average_pool
from ortconv.executor.algorithms.sliding_window import channels_first
from ortconv.executor.replay.work import AT_ONCE
from tests.batches import batched
from tests.executor.single_node import assert_same, compare, run_kernel, run_onnxruntime

# input, attributes
WINDOWS = [
    ((2, 3, 9), {"kernel_shape": [3]}),
    ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [2, 3]}),
    ((2, 3, 8, 9), {"kernel_shape": [1, 1], "strides": [2, 2]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [0, 1, 2, 0]}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 7, 10), {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 4), {"kernel_shape": [1, 1], "strides": [2, 3], "ceil_mode": 1}),
    ((1, 2, 7, 10), {"kernel_shape": [2, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 7, 10), {"kernel_shape": [2, 4], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 10), {"kernel_shape": [2, 4], "strides": [2, 3], "auto_pad": "VALID"}),
    ((1, 2, 12, 10), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 0, 1, 0]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [1, 1, 0, 0, 1, 1]}),
    ((0, 2, 7, 10), {"kernel_shape": [2, 2]}),
]
UNDILATED = [(shape, attributes) for shape, attributes in WINDOWS if "dilations" not in attributes]


@batched
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_max_pool(rng, shape, attributes, dtype):
    x = rng.permutation(np.prod(shape, dtype=int)).reshape(shape) - 100
    compare("MaxPool", [x.astype(dtype)], attributes, n_outputs=1 if dtype in (np.int8, np.uint8) else 2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_indices_of_ties_are_the_first(dtype):
    x = np.full((1, 2, 5, 5), np.iinfo(dtype).min, dtype)
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    compare("MaxPool", [x], attributes, n_outputs=2)


@pytest.mark.parametrize(("shape", "attributes"), [w for w in WINDOWS if len(w[0]) == 4])
def test_max_pool_column_major_indices(rng, shape, attributes):
    x = rng.standard_normal(shape).astype(np.float32)
    compare("MaxPool", [x], {**attributes, "storage_order": 1}, n_outputs=2)


@batched
@pytest.mark.parametrize("opset", [7, 10, 22])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_average_pool(rng, shape, attributes, count_include_pad, opset):
    if (opset < 19 and "dilations" in attributes) or (opset < 10 and "ceil_mode" in attributes):
        pytest.skip("not in this version")
    if opset < 19 and count_include_pad and "ceil_mode" in attributes:
        pytest.skip("onnxruntime divides by elements beyond the declared padding before version 19")
    x = rng.standard_normal(shape).astype(np.float32)
    compare("AveragePool", [x], {**attributes, "count_include_pad": count_include_pad}, opset=opset)


@batched
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("shape", "attributes"), UNDILATED)
def test_lp_pool(rng, shape, attributes, p):
    if "ceil_mode" in attributes:
        pytest.skip("onnxruntime ignores ceil_mode")
    x = rng.standard_normal(shape).astype(np.float32)
    compare("LpPool", [x], {**attributes, "p": p})


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 7, 5), (1, 2, 3, 4, 5), (0, 3, 4, 4), (2, 3, 1, 1)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(rng, op, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    compare(op, [x], opset=2 if op == "GlobalLpPool" else 22)
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    assert_same(run_kernel(op, [strided]), run_kernel(op, [x]))


@pytest.mark.parametrize("is_last", [False, True])
def test_the_average_of_a_large_image_has_the_error_of_short_sums(rng, is_last):
    x = (100 + rng.random((1, 700, 900, 2))).astype(np.float32)
    x = channels_first(x) if is_last else x.transpose(0, 3, 1, 2).copy()
    error = global_average_pool(AT_ONCE, x) - x.mean((2, 3), np.float64, keepdims=True)
    assert np.abs(error).max() < 1e-4  # 0.2 if all pixels are one sum


def test_the_index_of_a_window_in_the_padding():
    window = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    x = np.ones((1, 2, 1), np.float32)
    ours = run_kernel("MaxPool", [x], window, n_outputs=2)[1]
    assert ours.ravel().tolist() == [-1, 0]
    assert_same(ours, run_onnxruntime("MaxPool", [x], window, n_outputs=2)[1])


def test_max_unpool(rng):
    x = rng.standard_normal((2, 3, 6, 8)).astype(np.float32)
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    values, indices = run_onnxruntime("MaxPool", [x], window, n_outputs=2)
    compare("MaxUnpool", [values, indices], window)
    compare("MaxUnpool", [values, indices, np.array([2, 3, 6, 8])], window)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_nhwc_max_pool(rng, dtype):
    x = rng.integers(0, 120, (2, 7, 8, 3)).astype(dtype)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    compare("NhwcMaxPool", [x], attributes, domain="com.microsoft")


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_keep_half_precision(rng, op):
    x = rng.standard_normal((1, 2, 6, 6)).astype(np.float16)
    got = run_kernel(op, [x], {"kernel_shape": [2, 2]})[0]
    want = run_kernel(op, [x.astype(np.float32)], {"kernel_shape": [2, 2]})[0]
    assert_same(got, want.astype(np.float16), rtol=0, atol=0)


def test_average_of_padding_alone(rng):
    x = rng.standard_normal((1, 2, 1)).astype(np.float32)
    compare("AveragePool", [x], {"kernel_shape": [2], "pads": [1, 1], "dilations": [2]}, opset=19)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides"),
    [((1, 2, 2, 5), [3, 3], [1, 1]), ((1, 2, 2, 1), [3, 3], [2, 3]), ((1, 2, 1, 2), [3, 4], [2, 3])],
)
def test_windows_larger_than_the_image(rng, op, shape, kernel, strides):
    """Nothing comes out, or what a window over all of the image sees, if the stride is larger than what is missing."""
    x = rng.standard_normal(shape).astype(np.float32)
    compare(op, [x], {"kernel_shape": kernel, "strides": strides}, opset=18)


@pytest.mark.parametrize("far", [7, 50, pytest.param(1 << 30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_far_larger_than_the_image(rng, op, far):
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    geometry = {"kernel_shape": [far, 3], "pads": [far - 1, 1, 2, 1]}
    compare(op, [x], geometry, n_outputs=2 if op == "MaxPool" else 1)


def test_dilated_windows_that_leap_over_the_image(rng):
    x = rng.standard_normal((2, 3, 9)).astype(np.float32)
    for size, dilation in ((6, 2), (6, 3), (3, 6)):
        geometry = {"kernel_shape": [size], "dilations": [dilation], "pads": [size - 1] * 2, "strides": [3]}
        compare("MaxPool", [x], geometry, n_outputs=2)


def test_more_steps_than_a_node_may_take(rng):
    x = rng.standard_normal((1, 1, 1 << 21)).astype(np.float32)
    with pytest.raises(UnsupportedError, match="steps, the limit is 1048576"):
        run_kernel("MaxPool", [x], {"kernel_shape": [1 << 21]})
