"""Box selection and region pooling against onnxruntime."""

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel

from tests.arrays import f32
from tests.batches import batched

F32 = np.float32


LIMITS = [
    [np.array([5]), f32(0.3), f32(0.2)],
    [np.array([100]), f32(0.5)],
    [np.array([100])],
    [np.array([7]), f32([0.1]), f32([0.5])],
    [],
    [np.array([0])],
    [np.array([9]), None, f32(0.4)],
    [np.array([100]), f32(0)],
    [np.array([100]), f32(1)],
]


@batched
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("center_point_box", [0, 1])
def test_non_max_suppression(center_point_box, limits):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        boxes = rng.uniform(0, 10, (2, 40, 4)).astype(F32)
        # Rounded, so that scores tie.
        scores = rng.uniform(0, 1, (2, 3, 40)).round(2).astype(F32)
        compare("NonMaxSuppression", [boxes, scores, *limits], {"center_point_box": center_point_box})


def test_non_max_suppression_of_many_boxes():
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 100, (1, 3000, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 9, (1, 3000, 2))], axis=-1).astype(F32)
    scores = rng.uniform(0, 1, (1, 1, 3000)).astype(F32)
    for limit in (10, 400, 3000):
        compare("NonMaxSuppression", [boxes, scores, np.array([limit]), f32(0.4), f32(0.1)])
        compare("NonMaxSuppression", [boxes, scores.round(1), np.array([limit]), f32(0.4), f32(0.1)])


@batched
@pytest.mark.parametrize("limit", [1, 10, 30, 41])
@pytest.mark.parametrize("lowest", [None, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("digits", [1, 2, 7])
def test_non_max_suppression_of_many_classes(digits, lowest, limit):
    """Scores that tie, and some that rise from box to box; boxes in one place and all over the image."""
    rng = np.random.default_rng(limit)
    corner = np.concatenate([rng.uniform(0, 9, (1, 300, 2)), rng.uniform(0, 200, (1, 500, 2))], axis=1)
    boxes = np.concatenate([corner, corner + rng.uniform(1, 9, corner.shape)], axis=-1).astype(F32)
    scores = rng.uniform(0, 1, (1, 6, 800)).round(digits).astype(F32)
    scores[:, :2] = np.linspace(0, 1, 800, dtype=F32).round(digits)
    inputs = [boxes, scores, np.array([limit]), f32(0.4), *([] if lowest is None else [f32(lowest)])]
    compare("NonMaxSuppression", inputs)


def test_non_max_suppression_of_nothing():
    compare("NonMaxSuppression", [np.zeros((1, 0, 4), F32), np.zeros((1, 1, 0), F32), np.array([5])])
    compare("NonMaxSuppression", [np.zeros((1, 3, 4), F32), np.zeros((1, 1, 3), F32), np.array([5]), f32(0.5)])


IMAGE = np.random.default_rng(0).standard_normal((2, 3, 10, 12)).astype(F32)
REGIONS = f32([[0, 0, 5, 5], [2, 3, 9, 8], [-3, -2, 20, 15], [4, 4, 4, 4], [5, 5, 4.5, 4.2], [0, 0, 11, 9]])
BATCH = np.array([0, 1, 1, 0, 0, 1])


@batched
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode, ratio, transformation):
    attributes = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.5}
    modern = {**attributes, "coordinate_transformation_mode": transformation}
    compare("RoiAlign", [IMAGE, REGIONS, BATCH], modern, opset=16, atol=1e-5)
    [old] = run_kernel("RoiAlign", [IMAGE, REGIONS, BATCH], attributes, opset=10)
    [modern_default] = run_kernel(
        "RoiAlign",
        [IMAGE, REGIONS, BATCH],
        {**attributes, "coordinate_transformation_mode": "output_half_pixel"},
        opset=22,
    )
    assert_same(old, modern_default)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_max_roi_pool(scale):
    regions = np.concatenate([BATCH[:, None].astype(F32), REGIONS], axis=1)
    compare("MaxRoiPool", [IMAGE, regions], {"pooled_shape": (2, 3), "spatial_scale": scale}, opset=21)


def test_boxes_of_endless_classes_without_scores():
    (got,) = run_kernel(
        "NonMaxSuppression", [np.zeros((1, 0, 4), np.float32), np.zeros((1, 1 << 40, 0), np.float32), np.array(3)]
    )
    assert got.shape == (0, 3)
