"""Plans of float16 compute in float32, and round where onnxruntime does."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ortconv.executor.half import widened
from ortconv.executor.kernels.registry import lookup
from ortconv.ir.types import DType
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session

RNG = np.random.default_rng(5)

GRAPHS = {
    "convolutions": """x: float16[1, 3, 20, 22] -> u = Conv<pads = [1,1,1,1]>(x, w) v = Clip(u, low, high)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(v) b = Conv(p, e) s = Sigmoid(b) m = Mul(b, s)
        z = GlobalAveragePool(m)""",
    "attention": """x: float16[3, 5, 40] -> q = Mul(x, k) t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(q, t) p = Softmax(s)
        z = MatMul(p, x)""",
    "casts": """x: float16[4, 40] -> f = Cast<to = 1>(x) g = Exp(f) h = Cast<to = 10>(g) i = Cast<to = 7>(h)
        j = Cast<to = 10>(i) m = Mul(h, k) z = Add(m, j)""",
    "between": """x: float16[4, 40] -> a = Mul(x, k) o = ConstantOfShape(shape) c = CastLike(o, a) d = Add(a, c)
        q = Clip(d) z = Sub(q, x)""",
}  # fmt: skip

BEYOND = {
    "chain": "x: float16[40] -> a = Exp(x) b = Mul(a, a) c = Mul(b, b) s = Mul(c, k) z = Sub(s, s)",
    "moved": "x: float16[40] -> a = Mul(x, big) b = Mul(a, k) m = Reshape(b, line) d = Div(m, big) z = Div(d, big)",
}
"""Results between the nodes are beyond 65504, the outputs are not."""


def model(text):
    given, nodes = text.split(" -> ")
    name, kind = given.split(": ")
    graph = onnx.parser.parse_graph(f"g ({kind} {name}) => (float16 z) {{ {nodes} }}")
    graph.output[0].type.tensor_type.ClearField("shape")
    weights = {"w": RNG.standard_normal((8, 3, 3, 3)) * 0.3, "e": RNG.standard_normal((16, 8, 1, 1)) * 0.3,
               "k": RNG.uniform(0.5, 1, 40), "big": 6e4}  # fmt: skip
    constants = {n: np.float16(a) for n, a in weights.items()}
    constants |= {"low": np.float16(0), "high": np.float16(6), "shape": np.array([4, 40]), "line": np.array([1, 40])}
    read = {v for n in graph.node for v in n.input}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in read)
    return from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9))


def assert_same(text, backend, spread):
    m = model(text)
    plan, other = Session(m), Session(m, [backend])
    (given,) = plan.get_inputs()
    for _ in range(4):
        x = (RNG.standard_normal(given.shape) * spread).astype(np.float16)
        (got,), (want,) = (s.run(None, {"x": x}) for s in (plan, other))
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_plans_compute_what_the_kernels_compute(text):
    assert_same(text, "numpy:reference", 1.5)


@pytest.mark.parametrize("text", BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_float16_between_nodes_stays_finite_as_in_onnxruntime(text):
    assert_same(text, "onnxruntime", 2)


def test_nodes_without_float16_stay():
    text = "(float[2] x) => (float[2] z) <float[2] k = {1, 2}> { z = Mul(x, k) }"
    graph = from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')).graph
    assert widened(list(graph), graph.inputs, graph.outputs) == (list(graph), graph.inputs, graph.outputs)


def test_the_graph_of_the_model_is_left_alone():
    graph = model(GRAPHS["convolutions"]).graph
    uses = {v: list(v.uses) for n in graph for v in (*n.inputs, *n.outputs) if v is not None}
    nodes, inputs, outputs = widened(list(graph), graph.inputs, graph.outputs)
    assert {v: list(v.uses) for v in uses} == uses
    assert [v.type for v in inputs + outputs] == [v.type for v in (*graph.inputs, *graph.outputs)]
    assert not {v.dtype for n in nodes if n.op != "Cast" for v in n.outputs} & {graph.inputs[0].dtype}


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_softmax_of_wider_numbers_keeps_its_type_beside_float16(kind):
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float16[3,5] h, {kind}[3,5] x) => (float16[3,5] y, {kind}[3,5] z)
        <float16[5] k = {{0, 0, 0, 0, 0}}> {{ y = Mul(h, k) z = Softmax(x) }}"""
    proto = onnx.parser.parse_model(text)
    x = RNG.standard_normal((3, 5)).astype(np.float32 if kind == "float" else np.float64)
    feeds = {"h": np.zeros((3, 5), np.float16), "x": x}
    with Session(from_proto(proto), ["numpy"]) as session:
        got = session.run(["z"], feeds)[0]
    powers = np.exp(x.astype(np.float64))
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)


SUBGRAPHS = """<ir_version: 8, opset_import: ["" : 17]> g (float16[2, 40] x, bool c) => (float16[2, 40] z, float16[n, 2, 40] r)
    <int64 three = {3}> {
        s = Exp(x) a = Mul(s, k)
        y = If(c) <
            then_branch = t () => (float16[2, 40] p) {
                m = Mul(a, k)
                n = Not(c)
                p = If(n) <then_branch = i () => (float16[2, 40] v) { v = Neg(m) },
                           else_branch = j () => (float16[2, 40] w) { w = Sub(m, s) }>
            },
            else_branch = e () => (float16[2, 40] q) { q = Add(a, x) }>
        f, r = Loop(three, c, y) <body = b (int64 step, bool go, float16[2, 40] h) =>
            (bool on, float16[2, 40] o, float16[2, 40] scan) { on = Identity(go) u = Mul(h, k) o = Add(u, a) scan = Neg(o) }>
        z = Mul(f, a)
    }"""


@pytest.mark.parametrize("condition", [True, False])
def test_nodes_with_subgraphs_stay_among_the_others(condition):
    proto = onnx.parser.parse_model(SUBGRAPHS)
    proto.graph.initializer.append(numpy_helper.from_array(RNG.uniform(0.5, 1, 40).astype(np.float16), "k"))
    m = from_proto(proto)
    nodes, *_ = widened(list(m.graph), m.graph.inputs, m.graph.outputs)
    assert [n.inputs[0].dtype for n in nodes if n.op == "Exp"] == [DType.FLOAT]
    uses = {v: list(v.uses) for n in m.graph.walk() for v in (*n.inputs, *n.outputs) if v is not None}
    plan, reference = Session(m), Session(m, ["numpy:reference"])
    assert {v: list(v.uses) for v in uses} == uses
    for _ in range(4):
        feeds = {"x": RNG.standard_normal((2, 40)).astype(np.float16), "c": np.asarray(condition)}
        for got, want in zip(plan.run(None, feeds), reference.run(None, feeds), strict=True):
            assert got.dtype == np.float16
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=4e-3, atol=4e-3)


def test_a_model_without_operators_of_onnx_has_casts():
    text = """<ir_version: 8, opset_import: ["com.microsoft": 1]> g (float16[40] x) => (float16[40] z)
        { z = com.microsoft.FastGelu(x, k) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(RNG.uniform(0.5, 1, 40).astype(np.float16), "k"))
    x = RNG.standard_normal(40).astype(np.float16)
    m = from_proto(proto)
    (got,), (want,) = (Session(m, [backend]).run(None, {"x": x}) for backend in ("numpy", "numpy:reference"))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_a_softmax_over_more_elements_than_the_largest_float16():
    softmax = lookup("", "Softmax", 13)
    assert np.all(softmax.reference(np.zeros(70_000, np.float16)) == np.float16(1 / 70_000))
