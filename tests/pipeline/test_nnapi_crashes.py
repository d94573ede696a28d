"""Conversions for NNAPI replace nodes on which ONNX Runtime's provider ends the process."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

import ortconv
from ortconv.ir.graph import Graph
from ortconv.partition import Target, partition

PAD = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,3,4,4] x) => (uint8[1,3,6,6] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}, float s = {0.5}, uint8 z = {0}> {
  a = Pad<mode = "MODE">(x, p)
  y = QuantizeLinear(a, s, z)
}"""
RESIZE = """<ir_version: 7, opset_import: ["": 11]>
g (float[1,3,4,4] x) => (float[1,3,8,8] y) <float[0] none = {}, int64[4] sizes = {1, 3, 8, 8}> {
  a = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, none, none, sizes)
  y = Relu(a)
}"""


GEMM = """<ir_version: 8, opset_import: ["": 13]>
g (float[2,4] x) => (float[2,3] y) <float s = {0.1}, uint8 o = {3}, int8[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
 float t = {0.05}, int8 k = {0}> {
  q = QuantizeLinear(x, s, o)
  a = DequantizeLinear(q, s, o)
  b = DequantizeLinear(w, t, k)
  c = Gemm<transB = 1>(a, b)
  d = QuantizeLinear(c, s, o)
  y = DequantizeLinear(d, s, o)
}"""


def converted(source: str, folder: Path, **settings: object) -> Graph:
    model = onnx.parser.parse_model(source)
    ortconv.convert(model, folder / "m.ort", **settings)
    return ortconv.load(folder / "m.ort").graph


@pytest.mark.parametrize("mode", ["constant", "edge"])
@pytest.mark.parametrize("style", ["Fixed", "Runtime"])
def test_pad_before_quantize(mode: str, style: str, tmp_path: Path) -> None:
    source = PAD.replace("MODE", mode)
    graph = converted(source, tmp_path, use_nnapi=True, optimization_style=style)
    assert [node.op for node in graph] == ["Pad", "Identity", "QuantizeLinear"]
    assert [node.op for node in converted(source, tmp_path)] == ["Pad", "QuantizeLinear"]


def test_empty_scales(tmp_path: Path) -> None:
    graph = converted(RESIZE, tmp_path, use_nnapi=True)
    assert [node.op for node in graph] == ["Resize", "Relu"]
    (found,) = partition(graph, Target()).partitions
    assert len(found.nodes) == 2


def test_signed_gemm(tmp_path: Path) -> None:
    graph = converted(GEMM, tmp_path, use_nnapi=True)
    (found,) = partition(graph, Target()).partitions
    assert len(found.nodes) == len(list(graph)) == 6
    (gemm,) = (node for node in graph if node.op == "Gemm")
    assert gemm.attr("transB", 0) == 0


def test_the_passes_can_be_disabled(tmp_path: Path) -> None:
    source = PAD.replace("MODE", "constant")
    graph = converted(source, tmp_path, use_nnapi=True, disable_passes=["PadSeparation"])
    assert [node.op for node in graph] == ["Pad", "QuantizeLinear"]
    graph = converted(source, tmp_path, use_nnapi=True, optimization_level="disable")
    assert [node.op for node in graph] == ["Pad", "QuantizeLinear"]


def test_partition_tells_of_the_source_as_convert_leaves_it(tmp_path: Path) -> None:
    graph = onnx.parser.parse_model(PAD.replace("MODE", "constant"))
    model = ortconv.load(graph)
    (found,) = ortconv.optimize(model, "basic", Target()).partitionings
    assert [len(one.nodes) for one in found.partitions] == [3]
