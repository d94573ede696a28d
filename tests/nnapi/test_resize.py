"""Resizing against onnxruntime's Resize, and what is refused."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from nnapi_calls import compute
from nnapi_models import tensor
from onnx import TensorProto, helper

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operation
from tests.batches import batched

F = tensor()
MODES = {"asymmetric": (False, False), "align_corners": (True, False), "half_pixel": (False, True)}
NEAREST = {"asymmetric": "floor", "align_corners": "round_prefer_ceil", "half_pixel": "round_prefer_ceil"}


def resized(x: Array, size: tuple[int, int], mode: str, transformation: str) -> Array:
    """What onnxruntime makes of an NCHW image."""
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode=mode, coordinate_transformation_mode=transformation,
        **({"nearest_mode": NEAREST[transformation]} if mode == "nearest" else {}),
    )  # fmt: skip
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [4], [*x.shape[:2], *size])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [sizes],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y: Array = session.run(None, {"x": x})[0]
    return y


@batched
@pytest.mark.parametrize("transformation", MODES)
@pytest.mark.parametrize("size", [(3, 9), (8, 4), (1, 1), (5, 7), (16, 3)])
@pytest.mark.parametrize(
    ("code", "mode"), [(Operation.RESIZE_BILINEAR, "linear"), (Operation.RESIZE_NEAREST_NEIGHBOR, "nearest")]
)
def test_resizing_is_onnxruntime_s(code: Operation, mode: str, size: tuple[int, int], transformation: str) -> None:
    x = np.random.default_rng(2).random((2, 3, 5, 7), np.float32)
    (found,) = compute(code, x, size[1], size[0], True, *MODES[transformation], out=F)
    np.testing.assert_allclose(found, resized(x, size, mode, transformation), rtol=1e-5, atol=1e-6)


def test_scales_are_multiplied_in_single_precision() -> None:
    x = np.zeros((1, 3, 3, 1), np.float32)
    scale = float(np.float32(5 / 3))  # a little less than 5/3; the product rounds to 5
    assert compute(Operation.RESIZE_NEAREST_NEIGHBOR, x, scale, scale, False, out=F)[0].shape == (1, 5, 5, 1)


@pytest.mark.parametrize("extra", [(0, 2), (-1, 2), (float("inf"), 1.0), (0.1, 1.0)], ids=str)
def test_sizes_must_be_positive(extra: tuple[float, float]) -> None:
    with pytest.raises(NnapiError, match=r"pixels|scale"):
        compute(Operation.RESIZE_BILINEAR, np.zeros((1, 3, 3, 1), np.float32), *extra, out=F)


def test_corners_and_centers_exclude_each_other() -> None:
    with pytest.raises(NnapiError, match="both"):
        compute(Operation.RESIZE_BILINEAR, np.zeros((1, 3, 3, 1), np.float32), 2, 2, False, True, True, out=F)
