"""Shapes that follow from shapes with symbols, and what a Resize states."""

from __future__ import annotations

import pytest
from onnx import parser

from ortconv.ir.graph import Node
from ortconv.ir.operands import ints
from ortconv.ir.resize import resizing
from ortconv.ir.types import Shape
from ortconv.onnxio.load import from_proto


def node(text: str, inputs: str, opset: int = 19) -> Node:
    """The last node of a model with one output."""
    domains = f'"": {opset}, "com.microsoft": 1'
    model = f"<ir_version: 8, opset_import: [{domains}]> g ({inputs}) => (float y) {{ y = {text} }}"
    proto = parser.parse_model(model)
    proto.graph.output[0].ClearField("type")
    return list(from_proto(proto).graph)[-1]


QUANTIZED = "uint8[1,H,6,2] x, float s, uint8 z, float t, uint8 u"


@pytest.mark.parametrize(
    ("text", "inputs", "shape"),
    [
        ("MaxPool<kernel_shape = [1, 2], ceil_mode = 1>(x)", "float[1,2,H,6] x", (1, 2, "H", 5)),
        ("MaxPool<kernel_shape = [2, 2], ceil_mode = 1, strides = [1, 2]>(x)", "float[1,2,H,7] x", (1, 2, None, 4)),
        ("com.microsoft.QLinearAveragePool<kernel_shape = [3, 2], pads = [1, 0, 1, 0], channels_last = 1>(x, s, z, t, u)",
         QUANTIZED, (1, "H", 5, 2)),
        ("com.microsoft.QLinearAveragePool<kernel_shape = [3, 2], auto_pad = \"SAME_UPPER\", channels_last = 1>(x, s, z, t, u)",
         QUANTIZED, (1, "H", 6, 2)),
        ("com.microsoft.QLinearConcat<axis = 1>(t, u, x, s, z, x, s, z)", QUANTIZED, (1, "H + H", 6, 2)),
        ("com.microsoft.QLinearConcat<axis = 2>(t, u, x, s, z, x, s, z)", QUANTIZED, (1, "H", 12, 2)),
    ],
)  # fmt: skip
def test_symbols_are_kept(text: str, inputs: str, shape: Shape) -> None:
    assert node(text, inputs, 12).out.shape == shape


IMAGE = "float[1,2,4,4] x"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Resize(x, , k)", [True, True, False, False]),
        ("Resize<axes = [-1, 1, 0, 2]>(x, , k)", [False, True, False, True]),
        ("Resize(x, , , sizes)", [True, True, True, False]),
        ('Resize<keep_aspect_ratio_policy = "not_larger">(x, , , sizes)', [False] * 4),
        ("Resize<axes = [3]>(x, , , length)", [True, True, True, False]),
    ],
)
def test_axes_that_a_resize_keeps(text: str, kept: list[bool]) -> None:
    constants = "float[4] k = {1, 1, 2, 1.01}, int64[4] sizes = {1, 2, 4, 8}, int64[1] length = {8}"
    model = f'<ir_version: 8, opset_import: ["": 19]> g ({IMAGE}) => (float[1,2,a,b] y) <{constants}> {{ y = {text} }}'
    (found,) = from_proto(parser.parse_model(model)).graph
    does = resizing(found, ints)
    assert [does.keeps(axis, found.dim(0, axis)) for axis in range(4)] == kept
