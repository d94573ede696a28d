"""Resampling against onnxruntime."""

from itertools import product

import numpy as np
import pytest

from tests.arrays import f32
from tests.batches import batched
from tests.executor.single_node import assert_same, compare, run_kernel

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SCALES = [(1, 1, 2, 2), (1, 1, 0.5, 0.25), (1, 1, 1.5, 3), (1, 1, 1, 2)]
SIZES = [(1, 2, 8, 3), (1, 2, 1, 20), (1, 2, 3, 7), (1, 2, 6, 8)]


def image(rng, *shape):
    return rng.standard_normal(shape or (1, 2, 6, 8)).astype(np.float32)


@batched
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(("coordinates", "rounding"), list(product([*COORDINATES, "tf_half_pixel_for_nn"], ROUNDING)))
def test_nearest(rng, coordinates, rounding, scales):
    if coordinates == "tf_half_pixel_for_nn":
        attributes, opset = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}, 11
    else:
        attributes, opset = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}, 19
    compare("Resize", [image(rng), f32([]), f32(scales)], attributes, opset=opset)


@batched
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_sizes(rng, coordinates, mode, sizes):
    inputs = [image(rng), None, None, np.array(sizes)]
    compare("Resize", inputs, {"mode": mode, "coordinate_transformation_mode": coordinates}, opset=19, atol=1e-5)


@batched
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "cubic", "cubic_coeff_a": -0.5},
        {"mode": "cubic", "exclude_outside": 1},
    ],
)
def test_scales(rng, attributes, coordinates, scales):
    inputs = [image(rng), None, f32(scales)]
    compare("Resize", inputs, {**attributes, "coordinate_transformation_mode": coordinates}, opset=19, atol=1e-5)


def test_scales_of_two_dimensions(rng):
    compare("Resize", [image(rng), None, f32([[1, 1, 2, 2]])], {"mode": "linear"}, opset=19, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop(rng, mode):
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    for roi in ([0, 0, 0.2, 0.1, 1, 1, 0.7, 0.9], [0, 0, -0.2, 0.3, 1, 1, 0.7, 1.4]):
        x = image(rng)
        for size in ([5, 9], [x.shape[2], 9], [5, x.shape[3]], [*x.shape[2:]]):
            compare("Resize", [x, f32(roi), None, np.array([*x.shape[:2], *size])], attributes, opset=13, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "rank"), [("nearest", 1), ("nearest", 3), ("nearest", 5), ("linear", 3), ("linear", 5)]
)
def test_ranks(rng, mode, rank):
    shape, scales = (3, 4, 3, 5, 4)[-rank:], (1, 1, 2, 1.5, 2)[-rank:]
    compare("Resize", [image(rng, *shape), None, f32(scales)], {"mode": mode}, opset=19, atol=1e-5)


@batched
@pytest.mark.parametrize("channels", [2, 40])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 4, 0.5)])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_channels_last_in_memory(rng, coordinates, scales, mode, channels):
    x = image(rng, 1, 5, 6, channels).transpose(0, 3, 1, 2)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    compare("Resize", [x, None, f32(scales)], attributes, opset=19, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(3, 7), (12, 9), (6, 20)])
def test_aspect_ratio(rng, sizes, policy):
    attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "nearest"}
    compare("Resize", [image(rng), None, None, np.array(sizes)], attributes, opset=18)


def test_axes_in_any_order(rng):
    x = image(rng)
    a = run_kernel("Resize", [x, None, f32([3, 0.5])], {"axes": [3, -2], "mode": "linear"}, opset=18)
    b = run_kernel("Resize", [x, None, f32([1, 1, 0.5, 3])], {"mode": "linear"}, opset=18)
    assert_same(a, b)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_integers(rng, mode, dtype):
    x = rng.integers(0, 120, (1, 2, 6, 8)).astype(dtype)
    compare("Resize", [x, None, f32([1, 1, 2, 2])], {"mode": mode}, opset=13)


@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 2, 3, 3), (1, 2, 5, 4), (1, 2, 9, 4)])
def test_antialias_preserves_constants_and_means(rng, sizes, mode, exclude_outside):
    attributes = {"mode": mode, "antialias": 1, "exclude_outside": exclude_outside}
    ones = np.ones((1, 2, 6, 8), np.float32)
    assert_same(
        run_kernel("Resize", [ones, None, None, np.array(sizes)], attributes)[0], np.ones(sizes, np.float32), 1e-6
    )


@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 1.5, 1), (1, 1, 0.5, 0.5)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_before_opset_11(rng, mode, scales):
    compare("Resize", [image(rng), f32(scales)], {"mode": mode}, opset=10)
    if min(scales) >= 1:
        compare("Upsample", [image(rng), f32(scales)], {"mode": mode}, opset=9)
        compare("Upsample", [image(rng)], {"mode": mode, "scales": [float(s) for s in scales]}, opset=7)


# ONNX's reference aligns the corner of the output's length before it is rounded down, and resamples what keeps its size where the
# scale is not 1; onnxruntime has neither.
FRACTIONAL = [
    *(("align_corners", size, scale) for size, scale in ((6, 0.6), (5, 0.7), (7, 1.5), (3, 2.4), (11, 0.9))),
    *((mode, 6, 1.1) for mode in COORDINATES if mode != "half_pixel_symmetric"),
    *((mode, 4, 1.2) for mode in ("half_pixel", "asymmetric")),
]


@batched
@pytest.mark.parametrize("opset", [13, 18, 19])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("coordinates", "size", "scale"), FRACTIONAL)
def test_fractional_lengths(rng, coordinates, size, scale, mode, opset):
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    inputs = [image(rng, 1, 1, 2, size), f32([]), f32([1, 1, 1, scale])]
    compare("Resize", inputs, attributes, opset=opset, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", SCALES)
def test_resize_keeps_channels_last(rng, mode, scales):
    x = image(rng, 2, 3, 6, 8)
    strided = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    rest = [None, np.array(scales, np.float32)]
    [want], [got] = (run_kernel("Resize", [v, *rest], {"mode": mode}) for v in (x, strided))
    assert_same(got, want, rtol=1e-6, atol=1e-6)
    assert np.moveaxis(got, 1, -1).flags.c_contiguous


@batched
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(rng, mode, padding, align_corners):
    grid = (rng.random((2, 4, 5, 2)) * 3 - 1.5).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    compare("GridSample", [image(rng, 2, 3, 6, 7), grid], attributes, opset=20, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_volumes(rng, mode):
    grid = (rng.random((2, 4, 5, 3, 3)) * 3 - 1.5).astype(np.float32)
    compare("GridSample", [image(rng, 2, 3, 4, 6, 7), grid], {"mode": mode}, opset=20, atol=1e-4)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_affine_grid(rng, size, align_corners):
    rank = len(size) - 2
    theta = rng.standard_normal((2, rank, rank + 1)).astype(np.float32)
    compare("AffineGrid", [theta, np.array(size)], {"align_corners": align_corners}, opset=20)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("scale", [0.6, 0.7, 1.5])
def test_corners_of_whole_lengths_before_19(rng, opset, mode, scale):
    """onnxruntime has these in every opset, later ones have the fraction of the length as well."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    compare("Resize", [image(rng, 1, 1, 6, 7), f32([]), f32([1, 1, scale, scale])], attributes, opset=opset, atol=1e-5)


@pytest.mark.slow
def test_enlarging_a_million_times():
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    for mode in ("nearest", "linear"):
        (got,) = run_kernel("Resize", [x, None, None, np.array([1, 2, 3 << 20])], {"mode": mode})
        (few,) = run_kernel("Resize", [x, None, None, np.array([1, 2, 3 << 4])], {"mode": mode})
        assert got.shape == (1, 2, 3 << 20)
        np.testing.assert_allclose(got[..., (1 << 15) :: 1 << 16], few, atol=0.05)
