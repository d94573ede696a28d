"""Constant folding: what folds, what must not, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rewriting import parse, random_feeds, run

from ortconv.ir.graph import Graph
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.basic.fold_constants import fold as fold_constants
from ortconv.optimizer.engine import Context, PassSettings


def fold(proto: onnx.ModelProto, context: Context | None = None) -> Graph:
    """The graph after folding, checked: same numbers as the source, nothing left to fold."""
    model, context = from_proto(proto), context or Context()
    fold_constants(model.graph, context)
    verify(model.graph)
    if context.settings.limit is None:
        assert fold_constants(model.graph, context) == 0
    model.graph.prune()
    feeds = random_feeds(proto)
    for want, got in zip(run(proto, feeds), run(model_proto(model), feeds), strict=True):
        np.testing.assert_array_equal(got, want)
    return model.graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph]


def test_float16_is_rounded_where_onnxruntime_rounds_it() -> None:
    """There are no kernels of Tan, Cos and Exp for float16: onnxruntime computes them in float32, and rounds only the last."""
    made = parse("g (float16[4] x) => (float16[4] y, float16[4] z) { a = Tan(w) b = Cos(a) y = Sub(b, x) z = Exp(v) }")
    for name, numbers in {"w": [1.57, 1.5703, -1.569, 1.5], "v": [1, 2, 3, 12]}.items():
        made.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float16), name))
    model = from_proto(made)
    fold_constants(model.graph, Context())
    assert "Cos" not in ops(model.graph)
    feeds = {"x": np.zeros(4, np.float16)}
    for want, got in zip(run(made, feeds), run(model_proto(model), feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_shapes_that_become_known_are_used_in_the_same_walk() -> None:
    text = """g (float[2,3] x) => (int64 y) <int64[2] s = {3, 2}, int64[2] one = {1, 1}>
              { t = Mul(s, one) r = Reshape(x, t) y = Shape(r) }"""
    proto = parse(text)
    model = from_proto(proto)
    assert fold_constants(model.graph, Context()) == 2
    assert ops(model.graph) == []


def test_growth_is_bounded() -> None:
    text = "g (float[1] x) => (float y) <int64[1] n = {1000}> { c = ConstantOfShape(n) y = Add(x, c) }"
    assert ops(fold(parse(text), Context(PassSettings(fold_limit=3_991)))) == ["ConstantOfShape", "Add"]
    assert ops(fold(parse(text), Context(PassSettings(fold_limit=3_992)))) == ["Add"]
    twice = """g (float[1] x) => (float y, float z) <int64[1] n = {1000}, int64[1] m = {1001}>
               { c = ConstantOfShape(n) y = Add(x, c) d = ConstantOfShape(m) z = Add(x, d) }"""
    assert ops(fold(parse(twice), Context(PassSettings(fold_limit=5_000)))) == ["Add", "ConstantOfShape", "Add"]


def test_an_expansion_of_unknown_size_is_not_tried() -> None:
    limit = numpy_helper.from_array(np.array(1 << 40), "limit")
    step = numpy_helper.from_array(np.array(1), "step")
    start = numpy_helper.from_array(np.array(0), "start")
    nodes = [helper.make_node("Range", ["start", "limit", "step"], ["r"]), helper.make_node("Shape", ["r"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [], [y], [start, limit, step]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    graph = from_proto(proto).graph
    fold_constants(graph, Context())
    verify(graph)
    assert "Range" not in ops(graph) or all(v.const is None for v in graph.outputs)
    assert sum(v.const.nbytes for v in graph.initializers.values()) < 1_000


def test_a_decided_branch_with_a_wrong_shape() -> None:
    """Exporters that follow the other branches declare shapes that those of the decided ones contradict."""
    text = """g (float[N,3] x) => (float[N,3] y) <bool c = {0}, int64[1] flat = {-1}> {
        p = If(c) <then_branch = t () => (float[K] a) { a = Reshape(x, flat) },
                   else_branch = e () => (float[N,3] b) { b = Abs(x) }>
        q = If(c) <then_branch = u () => (float d) { d = Squeeze(p) },
                   else_branch = f () => (float[K] r) { s = Neg(p) r = Exp(s) }>
        v = Concat<axis = -1>(q, x)
        y = Concat<axis = -1>(v, x) }"""
    graph = fold(parse(text))
    assert [(node.op, node.out.rank) for node in graph] == [
        ("Abs", 2),
        ("Neg", 2),
        ("Exp", 2),
        ("Concat", 2),
        ("Concat", 2),
    ]
