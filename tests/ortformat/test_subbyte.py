"""Constants of 2 and 4 bits: the file loads in onnxruntime, and computes what it makes of the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ortconv
from ortconv.errors import UnsupportedError
from tests.batches import slow_except
from tests.unoptimized import run

NIBBLES = list(range(-8, 8))
CODES = [value + 8 for value in NIBBLES]

Constant = tuple[str, int, list[int], list[float] | list[int]]


def model(node: onnx.NodeProto, x: onnx.ValueInfoProto, *constants: Constant, opset: int = 21) -> onnx.ModelProto:
    """One node that reads `x` and constants, given by name, type, shape and numbers."""
    known = [helper.make_tensor(*c) for c in constants]
    y = onnx.ValueInfoProto(name="y")
    y.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [node]
    if node.op_type == "QuantizeLinear":
        nodes.append(helper.make_node("DequantizeLinear", ["q", *node.input[1:]], ["y"], domain=node.domain))
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def gather(kind: int, numbers: list[int], scales: int, *zeros: Constant, **attrs: int) -> onnx.ModelProto:
    width = len(numbers) // 2
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "x", "s", *(name for name, *_ in zeros)], ["y"], domain="com.microsoft",
        block_size=16, **attrs,
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [3])
    scale = [0.5 + i for i in range(2 * scales)]
    return model(node, x, ("w", kind, [2, width], numbers), ("s", TensorProto.FLOAT, [2, scales], scale), *zeros)


def added(kind: int, numbers: list[int], *zero: Constant) -> onnx.ModelProto:
    """x + DequantizeLinear(w), with a scale for each column."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    proto = model(helper.make_node("Add", ["x", "r"], ["y"]), x, ("w", kind, [4, 4], numbers), *zero,
                  ("s", TensorProto.FLOAT, [4], [0.5, 1, 2, 3]))  # fmt: skip
    proto.graph.node.insert(0, helper.make_node("DequantizeLinear", ["w", "s", *(n for n, *_ in zero)], ["r"], axis=1))
    return proto


def quantized(opset: int = 21, domain: str = "") -> onnx.ModelProto:
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    return model(node, x, ("s", TensorProto.FLOAT, [], [0.1]), ("z", TensorProto.UINT4, [], [7]), opset=opset)


CASES = {
    "int4": (added(TensorProto.INT4, NIBBLES), "DequantizeLinear"),
    "uint4 and zero points": (added(TensorProto.UINT4, CODES, ("z", TensorProto.UINT4, [4], [0, 3, 8, 15])), "DequantizeLinear"),
    "gathered int4": (gather(TensorProto.INT4, NIBBLES * 2, 1), "GatherBlockQuantized"),
    "gathered uint4": (gather(TensorProto.UINT4, CODES * 2, 1), "GatherBlockQuantized"),
    "gathered int4 and zero points": (
        gather(TensorProto.INT4, NIBBLES * 4, 2, ("z", TensorProto.INT4, [2, 2], [-8, 7, 1, 0])), "GatherBlockQuantized"),
    "gathered uint4 and an odd number of blocks": (
        gather(TensorProto.UINT4, CODES * 6, 3, ("z", TensorProto.UINT4, [2, 3], [1, 2, 3, 4, 5, 15]), quantize_axis=-1),
        "GatherBlockQuantized"),
    "columns gathered": (
        gather(TensorProto.INT4, NIBBLES * 2, 1, gather_axis=1, quantize_axis=1), "Cast GatherBlockQuantized"),
    "quantized to uint4": (quantized(), "Cast DequantizeLinear QuantizeLinear"),
}  # fmt: skip


@pytest.mark.parametrize("level", slow_except(["all"], ("disable", "all")))
@pytest.mark.parametrize("case", CASES)
def test_stored(case: str, level: str, tmp_path: Path) -> None:
    proto, operators = CASES[case]
    target = tmp_path / "m.ort"
    result = ortconv.convert(proto, target, optimization_level=level, fold_limit=0)
    assert result.validation is not None
    assert len(result.validation.engines) == 2
    found = {node.op for node in ortconv.load(target).graph}
    assert found - {"Add", "Identity"} == set(operators.split())
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, 3) if "athered" in case else rng.standard_normal(4).astype(np.float32)
    np.testing.assert_array_equal(run(target, {"x": x})[0], run(proto, {"x": x})[0])


def test_release_of_the_stored_form(tmp_path: Path) -> None:
    """GatherBlockQuantized of int4 is older than that of two codes per byte."""
    proto, _ = CASES["gathered int4"]
    with pytest.raises(UnsupportedError, match=r"needs onnxruntime 1\.22"):
        ortconv.convert(proto, tmp_path / "m.ort", target_ort="1.21")


def test_without_a_cast(tmp_path: Path) -> None:
    """Before opset 21, no Cast makes integers of 4 bits."""
    with pytest.raises(UnsupportedError, match="no constants of element type uint4"):
        ortconv.convert(quantized(17, "com.microsoft"), tmp_path / "m.ort")
