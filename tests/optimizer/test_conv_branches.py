"""Sums of convolutions of one tensor, merged, against onnxruntime running them one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import pytest
from golden import passes_in
from onnx import TensorProto, helper, numpy_helper
from rewriting import ops, optimized, random_feeds, run

from ortconv.onnxio.proto import model_proto
from tests.batches import sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

PASSES = passes_in("basic.conv_branches")


class Window(NamedTuple):
    kernel: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = ()


def sum_of(
    *windows: Window, strides: tuple[int, ...] = (1, 1), group: int = 1, biases: tuple[bool, ...] = (True, False)
) -> onnx.ModelProto:
    """The sum of convolutions of an image of 4 channels; those after the first are added on the left."""
    rng = np.random.default_rng(1)
    constants, nodes = [], []
    for i, (window, biased) in enumerate(zip(windows, biases, strict=True)):
        constants.append(numpy_helper.from_array(rng.normal(size=(4, 4 // group, *window.kernel)).astype("f"), f"w{i}"))
        if biased:
            constants.append(numpy_helper.from_array(rng.normal(size=4).astype("f"), f"b{i}"))
        attrs = {"strides": strides, "group": group, "pads": window.pads}
        if window.dilations:
            attrs["dilations"] = window.dilations
        nodes.append(helper.make_node("Conv", ["x", f"w{i}", *([f"b{i}"] if biased else [])], [f"c{i}"], **attrs))
    nodes.append(helper.make_node("Add", ["c1", "c0"], ["y"]))
    image = (9,) if len(strides) == 1 else (9, 8)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4, *image))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def convolutions(proto: onnx.ModelProto) -> int:
    """How many are left in a model that gives the same result."""
    model, _ = optimized(proto, PASSES)
    feeds = random_feeds(proto)
    for want, got in zip(run(proto, feeds), run(model_proto(model), feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return ops(model.graph)["Conv"]


@sampled(4)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Window((3, 3), (1, 1, 1, 1)), Window((1, 1), (0, 0, 0, 0))),
        (Window((3, 3), (1, 1, 1, 1)), Window((3, 3), (1, 1, 1, 1))),
        (Window((5, 3), (2, 1, 2, 1)), Window((1, 3), (0, 1, 0, 1))),
        (Window((3, 3), (0, 2, 2, 0)), Window((2, 1), (0, 0, 1, 0))),
        (Window((4, 2), (1, 0, 2, 1)), Window((2, 2), (0, 0, 1, 1))),
        (Window((3, 3), (2, 4, 2, 4), (2, 4)), Window((1, 1), (0, 0, 0, 0))),
        (Window((5, 3), (4, 2, 4, 2), (2, 2)), Window((3, 1), (2, 0, 2, 0), (2, 3))),
    ],
)
@pytest.mark.parametrize(("strides", "group"), [((1, 1), 1), ((2, 2), 2), ((1, 3), 4)])
@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True), (False, False)])
def test_one_window_in_the_other(
    first: Window, second: Window, strides: tuple[int, ...], group: int, biases: tuple[bool, ...]
) -> None:
    assert convolutions(sum_of(first, second, strides=strides, group=group, biases=biases)) == 1


def test_vectors() -> None:
    assert convolutions(sum_of(Window((5,), (2, 2)), Window((3,), (1, 1)), strides=(2,))) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Window((3, 1), (1, 0, 1, 0)), Window((1, 3), (0, 1, 0, 1))),
        (Window((3, 3), (1, 1, 1, 1)), Window((3, 3), (2, 2, 2, 2), (2, 2))),
        (Window((3, 3), (2, 2, 2, 2), (2, 2)), Window((3, 3), (1, 1, 1, 1))),
        (Window((2, 2), (1, 0, 0, 1)), Window((2, 2), (0, 1, 1, 0))),
    ],
)
def test_other_windows_stay(first: Window, second: Window) -> None:
    assert convolutions(sum_of(first, second)) == 2
