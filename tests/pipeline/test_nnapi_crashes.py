"""Conversions for NNAPI replace nodes on which ONNX Runtime's provider ends the process, or its session or run fails."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

import ortconv
from ortconv.ir.graph import Graph
from ortconv.partition import Target, partition
from tests.batches import slow_except

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
@pytest.mark.parametrize("style", slow_except(["Runtime"], ["Fixed", "Runtime"]))
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


HIGH_RANK = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,2,3,4,5] x) => (float[1,2,3,4,5] y) <float low = {0}, float high = {6}> {
  a = Relu(x)
  b = Tanh(a)
  c = Clip(b, low, high)
  d = Softmax(c)
  y = Softplus(d)
}"""
HALF = """<ir_version: 8, opset_import: ["": 13]>
g (float16[1,2,3,4,5] x) => (float16[1,2,3,4,5] y) { y = Relu(x) }"""
CONV_3D = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,2,4,4,4] x, float[2,2,2,2,2] w) => (float[1,2,3,3,3] y) {
  a = Conv(x, w)
  y = Relu(a)
}"""
INDICES = """<ir_version: 8, opset_import: ["": 13]>
g (float[2,3,4] x) => (float[4] y) <int32 first = {0}, int64 last = {-1}> {
  a = Gather(x, first)
  y = Gather(a, last)
}"""
CONCAT = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,3,4,5] x) => (float[1,6,4,5] y) <float s = {0.05}, uint8 z = {6}> {
  q = QuantizeLinear(x, s, z)
  a = DequantizeLinear(q, s, z)
  o = DequantizeLinear(q, s, z)
  b = HardSigmoid(o)
  c = QuantizeLinear(b, s, z)
  d = DequantizeLinear(c, s, z)
  e = Concat<axis = 1>(a, d)
  f = QuantizeLinear(e, s, z)
  y = DequantizeLinear(f, s, z)
}"""
LEAKY = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,3,4,5] x) => (float[1,3,4,5] y) { y = LeakyRelu(x) }"""


@pytest.mark.parametrize("style", slow_except(["Runtime"], ["Fixed", "Runtime"]))
@pytest.mark.parametrize("source", [HIGH_RANK, CONV_3D, INDICES, CONCAT])
def test_no_node_fails(source: str, style: str, tmp_path: Path) -> None:
    """The provider refuses or runs every node of the file, in which the nodes that it would run are assigned to it."""
    model = onnx.parser.parse_model(source)
    assert any(v.fails for v in partition(ortconv.load(model).graph, Target()).verdicts.values())
    result = ortconv.convert(
        model, tmp_path / "m.ort", use_nnapi=True, optimization_level="basic", optimization_style=style
    )
    assert not result.warnings
    graph = ortconv.load(tmp_path / "m.ort").graph
    verdicts = partition(graph, Target()).verdicts
    assert not any(v.fails for v in verdicts.values())
    assert all(v.taken == (node.ep != "") for node, v in verdicts.items())


def test_nodes_between_casts_are_repaired(tmp_path: Path) -> None:
    """Only Casts make the Relu one that the provider accepts."""
    graph = converted(HALF, tmp_path, use_nnapi=True, optimization_level="basic", target_ort="1.13")
    assert [node.op for node in graph] == ["Cast", "Max", "Cast"]


def test_fused_nodes_are_not_repaired(tmp_path: Path) -> None:
    graph = converted(CONV_3D, tmp_path, use_nnapi=True)
    assert [node.op for node in graph] == ["FusedConv"]


def test_remaining_failures_are_a_warning(tmp_path: Path) -> None:
    result = ortconv.convert(onnx.parser.parse_model(LEAKY), tmp_path / "m.ort", use_nnapi=True, nnapi_feature_level=27)
    (warning,) = result.warnings
    assert warning.startswith("1 node will make an app with NNAPI at feature level 27 fail, such as LeakyRelu 'y': ")


def test_other_results_are_a_warning(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2,3] x) => (float[2,3] y) { y = Elu <alpha = -1.0> (x) }'
    )
    (warning,) = ortconv.convert(model, tmp_path / "m.ort", use_nnapi=True).warnings
    assert warning.startswith(
        "1 node will have other results in an app with NNAPI at feature level 31, such as Elu 'y': alpha"
    )


def test_repairs_can_be_disabled(tmp_path: Path) -> None:
    result = ortconv.convert(
        onnx.parser.parse_model(INDICES), tmp_path / "m.ort", use_nnapi=True, disable_passes=("GatherToPlainGather",)
    )
    assert len(result.warnings) == 1
    assert [node.op for node in ortconv.load(tmp_path / "m.ort").graph] == ["Gather", "Gather"]
