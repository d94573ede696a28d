"""Boxes and regions against onnxruntime, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from nnapi_calls import compute
from nnapi_models import tensor
from onnx import helper
from onnx.helper import np_dtype_to_tensor_dtype

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operand import Tensor

F, INTS = tensor(), tensor(type=Operand.TENSOR_INT32)
HARD, LINEAR, GAUSSIAN = range(3)


def onnx_result(code: str, inputs: dict[str, Array], **attributes: Any) -> Array:
    """What onnxruntime makes of one node."""
    types = {name: np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    graph = helper.make_graph(
        [helper.make_node(code, list(inputs), ["y"], **attributes)], "g",
        [helper.make_tensor_value_info(name, kind, inputs[name].shape) for name, kind in types.items()],
        [helper.make_value_info("y", helper.make_tensor_type_proto(7 if code == "NonMaxSuppression" else 1, None))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y: Array = session.run(None, inputs)[0]
    return y


def random_boxes(rng: np.random.Generator, count: int, size: float) -> Array:
    corners = np.sort(rng.random((count, 2, 2), np.float32), axis=1) * np.float32(size)
    return corners.reshape(count, 4)


@pytest.mark.parametrize("limit", [-1, 0, 3])
def test_hard_suppression_is_onnxruntime_s(limit: int) -> None:
    rng = np.random.default_rng(4)
    rows, classes = 60, 3
    scores = rng.permutation(rows * classes).reshape(rows, classes).astype(np.float32) / (rows * classes)
    boxes = np.stack([random_boxes(rng, rows, 10)] * classes, axis=1)
    inputs = {
        "boxes": boxes[None, :, 0], "scores": scores.T[None, 1:].copy(), "limit": np.array([rows], np.int64),
        "overlap": np.array([0.3], np.float32), "threshold": np.array([0.25], np.float32),
    }  # fmt: skip
    wanted = [(label + 1, row) for _, label, row in onnx_result("NonMaxSuppression", inputs).tolist()]
    if limit >= 0:
        best = sorted(wanted, key=lambda one: -scores[one[1], one[0]])[:limit]
        wanted = [one for one in wanted if one in best]
    batches = np.full(rows, 2, np.int32)
    found = compute(
        Operation.BOX_WITH_NMS_LIMIT,
        scores,
        boxes.reshape(rows, -1),
        batches,
        0.25,
        limit,
        HARD,
        0.3,
        1.0,
        0.1,
        out=(F, F, INTS, INTS),
    )
    assert found[2].tolist() == [label for label, _ in wanted]
    np.testing.assert_array_equal(found[0], [scores[row, label] for label, row in wanted])
    np.testing.assert_array_equal(found[1], np.reshape([boxes[row, label] for label, row in wanted], (-1, 4)))
    assert (found[3] == 2).all()


@pytest.mark.parametrize(("kernel", "second"), [(LINEAR, 0.8 * 0.5), (GAUSSIAN, 0.8 * np.exp(-0.5))])
def test_soft_suppression_lowers_scores(kernel: int, second: float) -> None:
    """Two boxes that overlap by a half, and one apart; sigma is 1/2."""
    scores = np.array([[0, 0.9], [0, 0.8], [0, 0.7]], np.float32)
    boxes = np.tile(np.array([[0, 0, 4, 2], [0, 0, 2, 2], [8, 8, 9, 9]], np.float32), 2)
    inputs = [scores, boxes, np.zeros(3, np.int32), 0.1, -1, kernel, 0.4, 0.5, 0.05]
    values, found, _, _ = compute(Operation.BOX_WITH_NMS_LIMIT, *inputs, out=(F, F, INTS, INTS))
    np.testing.assert_allclose(values, [0.9, 0.7, second], rtol=1e-6)
    assert found[:, 0].tolist() == [0, 8, 0]


def test_each_batch_has_its_own_limit() -> None:
    scores = np.array([[0, 0.5, 0.6], [0, 0.7, 0.2], [0, 0.9, 0.3]], np.float32)
    boxes = np.tile(np.array([[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]], np.float32), 3)
    inputs = [scores, boxes, np.array([4, 4, 1], np.int32), 0.0, 2, HARD, 0.5, 1.0, 0.0]
    values, _, classes, batches = compute(Operation.BOX_WITH_NMS_LIMIT, *inputs, out=(F, F, INTS, INTS))
    assert values.tolist() == np.float32([0.7, 0.6, 0.9, 0.3]).tolist()
    assert classes.tolist() == [1, 2, 1, 2]
    assert batches.tolist() == [4, 4, 1, 1]


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("nchw", [False, True])
def test_aligned_regions_are_onnxruntime_s(samples: int, nchw: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.random((2, 3, 9, 7), np.float32)
    boxes = random_boxes(rng, 12, 14)
    batches = rng.integers(0, 2, 12).astype(np.int32)
    attributes = {"output_height": 3, "output_width": 2, "sampling_ratio": samples, "spatial_scale": 0.5}
    wanted = onnx_result(
        "RoiAlign", {"x": x, "rois": boxes, "batches": batches.astype(np.int64)}, mode="avg",
        coordinate_transformation_mode="output_half_pixel", **attributes,
    )  # fmt: skip
    image = x if nchw else x.transpose(0, 2, 3, 1)
    (found,) = compute(Operation.ROI_ALIGN, image, boxes, batches, 3, 2, 2.0, 2.0, samples, samples, nchw, out=F)
    np.testing.assert_allclose(found if nchw else found.transpose(0, 3, 1, 2), wanted, rtol=1e-5, atol=1e-6)


def test_quantized_regions_are_the_real_ones() -> None:
    rng = np.random.default_rng(6)
    x = Tensor(
        OperandType(Operand.TENSOR_QUANT8_ASYMM, (1, 8, 8, 2), 0.1, 90), rng.integers(0, 256, (1, 8, 8, 2), np.uint8)
    )
    roi = Tensor(
        OperandType(Operand.TENSOR_QUANT16_ASYMM, (2, 4), 0.125, 0),
        np.array([[3, 8, 40, 63], [0, 0, 64, 9]], np.uint16),
    )
    rest = [np.zeros(2, np.int32), 2, 3, 1.0, 1.0, 0, 0, False]
    (real,) = compute(Operation.ROI_ALIGN, x.real, roi.real, *rest, out=F)
    (found,) = compute(Operation.ROI_ALIGN, x, roi, *rest, out=OperandType(x.type, (), 0.1, 90))
    assert np.abs((found.astype(np.float32) - 90) * np.float32(0.1) - real).max() < 0.2


IMAGE = np.zeros((1, 4, 4, 1), np.float32)


@pytest.mark.parametrize(
    ("box", "batch"),
    [
        ((0, 0, 9, 4), 0),
        ((-1, 0, 4, 4), 0),
        ((3, 0, 2, 4), 0),
        ((0, np.nan, 4, 4), 0),
        ((0, 0, 4, 4), 1),
        ((0, 0, 4, 4), -1),
    ],
)
def test_regions_must_lie_in_an_image(box: tuple[float, ...], batch: int) -> None:
    roi, batches = np.array([box], np.float32), np.array([batch], np.int32)
    for code, inputs in (
        (Operation.ROI_ALIGN, [IMAGE, roi, batches, 2, 2, 2.0, 2.0, 0, 0, False]),
        (Operation.ROI_POOLING, [IMAGE, roi, batches, 2, 2, 2.0, 2.0, False]),
    ):
        with pytest.raises(NnapiError) as caught:
            compute(code, *inputs, out=F)
        assert caught.value.code is ResultCode.OP_FAILED


def detections(regular: bool, limit: int, class_limit: int, score_threshold: float = 0.1) -> list[Array]:
    """Of three boxes, the first two of which are the same, with two classes and a background."""
    scores = np.array([[[0, 0.6, 0.5], [0, 0.4, 0.7], [0.9, 0.3, 0.2]]], np.float32)
    anchors = np.array([[1, 1, 2, 2], [1, 1, 2, 2], [5, 5, 2, 2]], np.float32)
    inputs = [scores, np.zeros((1, 3, 4), np.float32), anchors, 1.0, 1.0, 1.0, 1.0, regular, limit, class_limit, 5]
    return compute(Operation.DETECTION_POSTPROCESSING, *inputs, score_threshold, 0.5, False, out=(F, F, INTS, INTS))


def test_fast_detections_have_room_for_the_classes_of_each_box() -> None:
    scores, boxes, classes, found = detections(regular=False, limit=3, class_limit=2)
    np.testing.assert_allclose(scores, [[0.7, 0.4, 0.3, 0.2, 0, 0]])
    assert classes.tolist() == [[1, 0, 0, 1, 0, 0]]
    assert boxes[0, :, 0].tolist() == [0, 0, 4, 4, 0, 0]
    assert found.tolist() == [4]


def test_regular_detections_take_each_class_by_itself() -> None:
    scores, boxes, classes, found = detections(regular=True, limit=3, class_limit=2)
    np.testing.assert_allclose(scores, [[0.7, 0.6, 0.3]])
    assert classes.tolist() == [[1, 0, 0]]
    assert boxes[0].tolist() == [[0, 0, 2, 2], [0, 0, 2, 2], [4, 4, 6, 6]]
    assert found.tolist() == [3]


def test_nothing_above_the_threshold_is_nothing_found() -> None:
    for regular in (False, True):
        scores, _, _, found = detections(regular, 2, 1, score_threshold=0.95)
        assert found.tolist() == [0]
        assert not scores.any()


@pytest.mark.parametrize(("regular", "limit", "class_limit"), [(False, 0, 1), (False, 1, 0), (True, -1, 1)])
def test_limits_of_detections_are_positive(regular: bool, limit: int, class_limit: int) -> None:
    with pytest.raises(NnapiError, match="positive"):
        detections(regular, limit, class_limit)


def test_proposals_are_large_and_inside() -> None:
    """Four cells, 8 apart, with one anchor; the image ends at 12."""
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32).reshape(1, 2, 2, 1)
    deltas = np.zeros((1, 2, 2, 4), np.float32)
    deltas[0, 0, 1, 2:] = -2  # a box of less than 1
    anchors, image = np.array([[0, 0, 4, 4]], np.float32), np.array([[12, 9]], np.float32)
    inputs = [scores, deltas, anchors, image, 8.0, 8.0, -1, -1, 0.5, 1.0, False]
    values, boxes, batches = compute(Operation.GENERATE_PROPOSALS, *inputs, out=(F, F, INTS))
    np.testing.assert_allclose(values, [0.9, 0.7])
    assert boxes.tolist() == [[0, 0, 4, 4], [0, 8, 4, 12]]
    assert batches.tolist() == [0, 0]


def test_peaks_of_a_parabola_are_found_between_cells() -> None:
    """Maps that are quadratic forms have their own peak; the middle of cell 0 is at 1/2."""
    size, peak = 8, np.array([3.3, 4.4])
    y, x = np.mgrid[:size, :size]
    heat = 5 - (x - peak[0]) ** 2 - 2 * (y - peak[1]) ** 2 + 0.5 * (x - peak[0]) * (y - peak[1])
    box = np.array([[10, 20, 26, 60]], np.float32)
    scores, points = compute(
        Operation.HEATMAP_MAX_KEYPOINT, heat.astype(np.float32)[None, :, :, None], box, False, out=(F, F)
    )
    np.testing.assert_allclose(scores, [[5]], rtol=1e-5)
    np.testing.assert_allclose(points[0, 0], [10, 20] + (peak + 0.5) / size * [16, 40], rtol=1e-5)


def test_coordinates_have_one_quantization() -> None:
    x = OperandType(Operand.TENSOR_QUANT8_ASYMM, (1, 4), 1.0, 0)
    roi = OperandType(Operand.TENSOR_QUANT16_ASYMM, (1, 4), 0.25, 0)
    inputs = [roi, Tensor(x, np.zeros((1, 4), np.uint8)), np.zeros(1, np.int32), roi]
    inputs[0], inputs[3] = (Tensor(roi, np.zeros(dims, np.uint16)) for dims in ((1, 4), (1, 2)))
    with pytest.raises(NnapiError, match=r"OP_FAILED.*0\.125"):
        compute(Operation.AXIS_ALIGNED_BBOX_TRANSFORM, *inputs, out=roi)
