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
from ortconv.ortformat.capacity import least_bytes, least_tables, refuse_too_large
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
        model = from_proto(proto)
        made = writer._Writer(model, shapes=False)
        made.segments()
        assert 0 < least_tables(model.graph) <= made.visits


def test_nodes_that_need_not_run_do_not_count() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] c = {1.0, 2.0}> {
        a = Sin(c)
        b = Cos(x)
        unread = Tan(b)
        y = Add(x, a)
    }"""
    assert least_tables(from_proto(parser.parse_model(text)).graph) == 2 + 3


def test_equal_weights_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ones, twos = np.full((4, 4), 1, np.float32), np.full((4, 4), 2, np.float32)
    monkeypatch.setattr(capacity, "LARGEST_FILE", 100)
    assert least_bytes(from_proto(products(ones, ones, twos)).graph) == 128
    monkeypatch.setattr(capacity, "LARGEST_FILE", 127)
    with pytest.raises(UnsupportedError, match=r"the weights have 128 bytes, 1\.0 times the 127 that"):
        refuse_too_large(from_proto(products(ones, ones, twos)).graph)
    refuse_too_large(from_proto(products(ones, ones, twos)).graph, narrowed=True)


@pytest.mark.parametrize(("level", "nodes"), [("disable", 21), ("all", 81)])
def test_a_large_model_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, nodes: int
) -> None:
    """What the optimizer may make small enough is tried."""
    for module in (capacity, layout, writer):
        monkeypatch.setattr(module, "LARGEST_VISITS", 100)
    monkeypatch.setattr(conversion, "MANY", 10)
    onnx.save(chain(nodes), tmp_path / "m.onnx")
    stages: list[str] = []
    with pytest.raises(UnsupportedError, match=f"at least {5 * nodes:,} tables") as caught:
        convert(tmp_path / "m.onnx", tmp_path, optimization_level=level, started=stages.append)
    assert stages == ["load"]
    assert caught.value.hint == "split the model"
    onnx.save(chain(nodes - 1), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="onnxruntime loads at most"):
        convert(tmp_path / "m.onnx", tmp_path, optimization_level=level, started=stages.append)
    assert "write" in stages
    assert not list(tmp_path.glob("*.ort"))
