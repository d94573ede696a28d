"""Forms of Resize for the CPU: what must hold beyond the golden cases."""

from __future__ import annotations

import onnx.parser
import pytest

from ortconv.ir.model import Model
from ortconv.ir.schema import schema
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.extended.cubic_resize import OLDEST, SAME, WITH_ANTIALIAS
from ortconv.partition import Target
from ortconv.pipeline import optimize
from tests.batches import batched

CUBIC = 'r = Resize <mode = "cubic"> (t, , scales)'
MODEL = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,4,4,8] x) => (float[1,8,8,8] y)
    <float[4] scales = {{1, 1, 2, 2}}, float[8] k = {{1, 1, 1, 1, 1, 1, 1, 1}}, int64[2] halves = {{4, 4}}> {{
        t = Transpose <perm = [0, 3, 1, 2]> (x) {nodes} y = Transpose <perm = [0, 2, 3, 1]> (r)
    }}"""


def parsed(nodes: str) -> Model:
    return from_proto(onnx.parser.parse_model(MODEL.format(nodes=nodes)))


@batched
@pytest.mark.parametrize("op", sorted(SAME))
def test_operators_that_are_the_same_in_a_newer_set(op: str) -> None:
    new = schema("", op, WITH_ANTIALIAS)
    for opset in range(OLDEST, WITH_ANTIALIAS):
        old = schema("", op, opset)
        assert old is not None
        assert new is not None
        gone = {"axes"} if op.startswith("Reduce") else set()  # a node with axes is refused
        assert old.attributes.keys() - new.attributes.keys() <= gone
        assert new.required <= old.required
        assert {k: v for k, v in old.defaults.items() if k not in gone} == {k: new.defaults[k] for k in old.defaults}
        assert [i.kind for i in new.inputs[: len(old.inputs)]] == [i.kind for i in old.inputs]
        assert new.least <= old.least


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (CUBIC, 18),
        (f"{CUBIC.replace('r =', 'q =')} r = BatchNormalization (q, k, k, k, k)", 18),
        (f"{CUBIC} u, v = Split <axis = 3> (x)", 17),
        (f"{CUBIC} u, v = Split <axis = 3> (x, halves)", 18),
        (f"{CUBIC} v = ReduceMax <axes = [0]> (x)", 17),
        ('r = Resize <mode = "linear"> (t, , scales)', 17),
    ],
)
def test_the_operator_set_rises_only_for_a_cubic_resize_and_the_same_operators(nodes: str, opset: int) -> None:
    model = parsed(nodes)
    more = [value for node in model.graph for value in node.outputs if value is not None and value.name == "v"]
    model.graph.set_outputs([*model.graph.outputs, *more])
    optimize(model)
    assert model.graph.opset() == opset


def test_a_resize_on_an_accelerator_keeps_its_channels_first() -> None:
    nodes = 's = Sigmoid (t) r = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (s, , scales)'
    on_cpu, offloaded = (parsed(nodes) for _ in range(2))
    optimize(on_cpu)
    optimize(offloaded, target=Target("nnapi"))
    assert [node.op for node in on_cpu.graph] == ["Sigmoid", "Resize"]
    assert {node.op: node.ep for node in offloaded.graph}["Resize"]
    assert "Transpose" in {node.op for node in offloaded.graph}
