"""Quantized models for Arm: what is int8 stays int8, and the products of int8 are made of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
from qdq_net import MICROSOFT, Net, around, check
from rewriting import optimized

from ortconv.ir.types import DType
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.extended import qdq
from ortconv.optimizer.extended.qdq import PASSES

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast


def convolution(kind: str, weights: str) -> Net:
    net = Net(kind)
    x, w = (
        net.activations(2, 4, 9, 9),
        net.weights(6, 4, 3, 3, scale=0.004, kind=weights, zero=0 if weights == "int8" else 40),
    )
    return net.quantized(net.add("Conv", x, w, pads=[1, 1, 1, 1]))


def product(kind: str, weights: str) -> Net:
    net = Net(kind)
    return net.quantized(net.add("MatMul", net.activations(3, 5), net.weights(5, 6, scale=0.01, kind=weights)))


def product_to_float(kind: str, weights: str) -> Net:
    net = Net(kind)
    net.step = 1e-4
    return net.returned(net.add("MatMul", net.activations(3, 5), net.weights(5, 6, scale=0.01, kind=weights)))


def shared(kind: str, weights: str) -> Net:
    """A residual block: the first result is read by the second convolution and by the sum."""
    net = Net(kind)
    w = net.weights(4, 4, 3, 3, scale=0.004, kind=weights)
    first = net.qdq(net.add("Conv", net.activations(2, 4, 9, 9), w, pads=[1] * 4), 0.05, net.zero(), kind)
    second = net.qdq(net.add("Conv", first, w, pads=[1] * 4), 0.05, net.zero(), kind)
    return net.quantized(net.add("Add", first, second))


NETS = {"QLinearConv": convolution, "QLinearMatMul": product, MICROSOFT + "MatMulIntegerToFloat": product_to_float}


def expected(op: str) -> dict[str, int]:
    found = around(op)
    if "ToFloat" in op:
        del found["DequantizeLinear"]
    return found


def integers(net: Net, platform: str | None) -> set[DType | None]:
    """The types of what QuantizeLinear makes."""
    model, _ = optimized(net.proto(), PASSES, Context(PassSettings(target_platform=platform)))
    return {n.out.dtype for n in model.graph if n.op == "QuantizeLinear"}


@pytest.mark.parametrize("op", NETS)
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_on_arm_types_stay(op: str, kind: str) -> None:
    assert check(NETS[op](kind, "int8"), platform="arm") == expected(op)
    assert integers(NETS[op](kind, "int8"), "arm") == {DType[kind.upper()]}


@pytest.mark.parametrize("op", NETS)
@pytest.mark.parametrize("platform", [None, "amd64"])
def test_elsewhere_activations_become_unsigned(op: str, platform: str | None) -> None:
    assert check(NETS[op]("int8", "int8"), platform=platform) == expected(op)
    assert integers(NETS[op]("int8", "int8"), platform) == {DType.UINT8}


@pytest.mark.parametrize("op", NETS)
def test_signed_activations_and_unsigned_weights_have_no_kernel(op: str) -> None:
    found = check(NETS[op]("int8", "uint8"), platform="arm")
    assert not any(name.endswith(op) for name in found)


def test_what_several_nodes_read_stays_signed(tmp_path: Path) -> None:
    found, theirs = check(shared("int8", "int8")), operators_of_onnxruntime(shared("int8", "int8"), "amd64", tmp_path)
    assert {op: n for op, n in found.items() if op != "DequantizeLinear"} == {"Conv": 2, "Add": 1, "QuantizeLinear": 4}
    assert all(theirs[op] == n for op, n in found.items() if op != "DequantizeLinear")
    assert integers(shared("int8", "int8"), None) == {DType.INT8, DType.UINT8}


def test_what_several_nodes_read_becomes_unsigned_on_request() -> None:
    shift = next(p for p in qdq.OPT_IN if p.name == "QDQS8ToU8Shared")
    model, _ = optimized(shared("int8", "int8").proto(), (shift, *PASSES), Context())
    assert Counter(n.op for n in model.graph if n.op.startswith("QLinear")) == {"QLinearConv": 2, "QLinearAdd": 1}


@pytest.mark.parametrize("op", NETS)
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("platform", ["arm", "amd64"])
def test_as_onnxruntime_does(op: str, kind: str, platform: str, tmp_path: Path) -> None:
    theirs = operators_of_onnxruntime(NETS[op](kind, "int8"), platform, tmp_path)
    assert set(theirs) == set(check(NETS[op](kind, "int8"), platform=platform))


def operators_of_onnxruntime(net: Net, platform: str, tmp_path: Path) -> Counter[str]:
    """How many nodes of each operator onnxruntime's extended level makes of a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "theirs.onnx")
    options.add_session_config_entry("session.qdqisint8allowed", str(int(platform == "arm")))
    options.log_severity_level = 4
    onnxruntime.InferenceSession(net.proto().SerializeToString(), options)
    nodes = onnx.load(tmp_path / "theirs.onnx").graph.node
    return Counter((MICROSOFT if n.domain == "com.microsoft" else "") + n.op_type for n in nodes)
