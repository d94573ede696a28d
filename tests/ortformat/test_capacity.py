"""Models that no .ort file can hold are refused from a count."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from ortconv import convert
from ortconv.errors import UnsupportedError
from ortconv.onnxio.load import from_proto
from ortconv.ortformat import capacity, layout, writer
from ortconv.ortformat.capacity import least_bytes, least_tables, refuse_many_bytes
from ortconv.pipeline import conversion


def chain(count: int) -> onnx.ModelProto:
    """Nodes in a row, none of which can be removed."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])


def products(*weights: np.ndarray) -> onnx.ModelProto:
    """Products of an input with weights of 4 by 4, one after the other."""
    names = ["x", *(f"v{i}" for i in range(len(weights) - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(len(weights))]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
    constants = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_the_count_is_no_more_than_what_the_writer_counts() -> None:
    for proto in (chain(20), products(np.eye(4, dtype=np.float32))):
        made = writer._Writer(from_proto(proto), shapes=False)
        made.root()
        assert 0 < least_tables(proto.graph) <= made.visits


def test_nodes_count_that_something_needs() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) {
        a = Sin(x)
        unread = Cos(a)
        y = If(c) <
            then_branch = t () => (float[2] z) { b = Softmax<axis = 0>(a)  z = Tan(b) },
            else_branch = e () => (float[2] z) { z = Constant<value = float[2] {1.0, 2.0}>() }>
    }"""
    sin, branches, softmax, tan = 2 + 3, 2 + 2 + 3, 2 + 1 + 3, 2 + 3
    assert least_tables(parser.parse_model(text).graph) == sin + branches + softmax + tan


def test_equal_weights_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ones, twos = np.full((4, 4), 1, np.float32), np.full((4, 4), 2, np.float32)
    monkeypatch.setattr(capacity, "LARGEST_FILE", 100)
    assert least_bytes(from_proto(products(ones, ones, twos)).graph) == 128
    monkeypatch.setattr(capacity, "LARGEST_FILE", 127)
    with pytest.raises(UnsupportedError, match=r"the weights have 128 bytes, 1\.0 times the 127 that"):
        refuse_many_bytes(from_proto(products(ones, ones, twos)).graph)


@pytest.mark.parametrize(("level", "nodes"), [("disable", 21), ("all", 81)])
def test_a_large_model_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, nodes: int
) -> None:
    """What the optimizer may make small enough is tried."""
    for module in (capacity, layout, writer):
        monkeypatch.setattr(module, "LARGEST_VISITS", 100)
    monkeypatch.setattr(capacity, "MANY", 10)
    onnx.save(chain(nodes), tmp_path / "m.onnx")
    stages: list[str] = []
    with pytest.raises(UnsupportedError, match=f"at least {5 * nodes:,} tables") as caught:
        convert(tmp_path / "m.onnx", tmp_path, optimization_level=level, started=stages.append)
    assert stages == ["load"]
    assert caught.value.hint == "split the model"
    assert caught.value.file == str(tmp_path / "m.onnx")
    onnx.save(chain(nodes - 1), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="onnxruntime loads at most"):
        convert(tmp_path / "m.onnx", tmp_path, optimization_level=level, started=stages.append)
    assert "write" in stages
    assert not list(tmp_path.glob("*.ort"))


def test_too_many_bytes_are_refused_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be stored in fewer bits is tried."""
    weights = [np.random.default_rng(seed).random((4, 4), np.float32) for seed in range(3)]
    onnx.save(products(*weights), tmp_path / "m.onnx")
    for module in (capacity, conversion):
        monkeypatch.setattr(module, "LARGEST_FILE", 100)
    stages: list[str] = []
    with pytest.raises(UnsupportedError, match="the weights have 192 bytes"):
        convert(tmp_path / "m.onnx", tmp_path, started=stages.append)
    assert stages == ["load"]
    convert(tmp_path / "m.onnx", tmp_path / "m.ort", float16=True)
    assert (tmp_path / "m.ort").exists()
