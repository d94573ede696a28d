"""Every fusion of the table finds its group, and the group computes what its nodes compute one by one."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ortconv.compare.gap import strict_gap
from ortconv.executor.constants import Constants
from ortconv.executor.fusion.group import Scope
from ortconv.executor.fusion.table import FLOAT, QUANTIZED
from ortconv.executor.plan import _bind
from ortconv.executor.replay.recorder import Recorder
from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto

RNG = np.random.default_rng(11)
W = {name: RNG.standard_normal((6, 6)).astype(np.float32) for name in "uvw"}
QW = {"w": RNG.integers(-9, 9, (6, 6)).astype(np.int8)}
QUANTIZATION = "float s = {0.05}, float t = {0.02}, uint8 z = {128}, int8 o = {0}"

MODELS = {
    "int8": (
        f"""g (uint8[4,6] x) => (uint8[4,6] y) <{QUANTIZATION}> {{
            a = QLinearMatMul(x, s, z, w, t, o, s, z) y = QLinearMatMul(a, s, z, w, t, o, s, z) }}""",
        QW,
    ),
    "dynamic quantization": (
        """g (float[4,6] x) => (int32[4,6] y) { a, s, z = DynamicQuantizeLinear(x) y = MatMulInteger(a, w, z) }""",
        QW,
    ),
    "attention": (
        """g (float[1,2,5,4] q, float[1,2,4,5] k, float[1,2,5,4] v) => (float[1,2,5,4] y) <float f = {0.5}> {
            a = MatMul(q, k) b = Mul(a, f) c = Softmax<axis = -1>(b) y = MatMul(c, v) }""",
        {},
    ),
    "elementwise": (
        "g (float[64,128] x) => (float[64,128] y) { a = Neg(x) b = Sigmoid(a) y = Mul(b, x) }",
        {},
    ),
}  # fmt: skip


def graph_of(text: str, weights: dict[str, np.ndarray]) -> Graph:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return from_proto(proto).graph


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    return {
        v.name: RNG.integers(0, 255, v.static_shape).astype(np.uint8)
        if v.dtype.name == "UINT8"
        else RNG.standard_normal(v.static_shape).astype(np.float32)
        for v in graph.inputs
    }


def test_there_is_a_model_for_every_fusion() -> None:
    assert [*QUANTIZED, *FLOAT] == list(MODELS)


@pytest.mark.parametrize("fusion", [*QUANTIZED, *FLOAT])
def test_a_group_computes_what_its_nodes_compute(fusion) -> None:
    graph = graph_of(*MODELS[fusion])
    constants = Constants()
    bind = partial(_bind, constants, align=constants.align)
    scope = Scope(list(graph), constants, bind, graph.outputs)
    for group in {**QUANTIZED, **FLOAT}[fusion](scope):
        scope.claim(group)
    assert scope.groups
    assert scope.claimed == {node for group in scope.groups.values() for node in group.nodes}
    for inputs in (drawn(graph) for _ in range(5)):
        want = run(graph, scope, inputs, grouped=False)
        for recorder in (None, Recorder()):
            got = run(graph, scope, inputs, grouped=True, recorder=recorder)
            for a, b in zip(want, got, strict=True):
                if a.dtype.kind == "f":
                    assert strict_gap(a, b).within(1e-6)
                else:
                    np.testing.assert_array_equal(a, b)


def run(graph: Graph, scope: Scope, inputs: dict[str, np.ndarray], grouped: bool, recorder: Recorder | None = None):
    """The outputs by the groups of a scope, or by plain kernels, one node after the other."""
    values = {v: inputs[v.name] for v in graph.inputs}
    bind = scope.bind if grouped else partial(_bind, scope.constant, reference=True)
    for node in graph:
        group = scope.groups.get(node) if grouped else None
        if grouped and group is None and node in scope.claimed:
            continue
        function, reads = bind(node) if group is None else (group.function, group.reads)
        operands = [None if v is None else values.get(v, scope.constant(v)) for v in reads]
        result = function(*operands) if recorder is None else recorder.call(function, *operands)
        makes = node.outputs
        values.update(zip(makes, result if isinstance(result, tuple) else (result,), strict=True))
    return [values[v] for v in graph.outputs]
