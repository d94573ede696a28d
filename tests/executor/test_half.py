"""Plans of float16 compute in float32, and round where float16 rounds."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ortconv.executor.algorithms.elementwise import round_to_half
from ortconv.executor.half import in_float32
from ortconv.executor.replay.work import AT_ONCE
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session

RNG = np.random.default_rng(5)
BITS = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
ALL = BITS[~np.isnan(BITS)].astype(np.float32)
FINITE = np.sort(ALL[np.isfinite(ALL)]).astype(np.float64)
MIDDLES = ((FINITE[:-1] + FINITE[1:]) / 2).astype(np.float32)
RANDOM = RNG.integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
SMALL = RNG.standard_normal(1 << 18).astype(np.float32) * np.float32(1e-5)
EDGES = np.float32([65504, 65519.996, 65520, 65536, 1e30, 3e38, -65520, np.inf, -np.inf, np.nan, -0.0, -1e-9])


@pytest.mark.parametrize("x", [ALL, MIDDLES, np.nextafter(MIDDLES, np.float32(0)), RANDOM, SMALL, EDGES])
def test_every_number_is_rounded_as_by_a_cast(x):
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        got, want = round_to_half(AT_ONCE, x), x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


GRAPHS = {
    "convolutions": """x: float16[1, 3, 20, 22] -> u = Conv<pads = [1,1,1,1]>(x, w) v = Clip(u, low, high)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(v) b = Conv(p, e) s = Sigmoid(b) m = Mul(b, s)
        z = GlobalAveragePool(m)""",
    "softmax": "x: float16[3, 5, 40] -> t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, t) z = Softmax(s)",
    "casts": """x: float16[4, 40] -> f = Cast<to = 1>(x) g = Exp(f) h = Cast<to = 10>(g) i = Cast<to = 7>(h)
        j = Cast<to = 10>(i) z = Add(h, j)""",
    "between": """x: float16[4, 40] -> a = Mul(x, x) o = ConstantOfShape(shape) c = CastLike(o, a) d = Add(a, c)
        q = Clip(d) z = Sub(q, x)""",
    "overflow": "x: float16[40] -> a = Exp(x) b = Mul(a, a) c = Mul(b, b) d = Mul(c, c) z = Sub(d, d)",
}  # fmt: skip


def model(text):
    given, nodes = text.split(" -> ")
    name, kind = given.split(": ")
    graph = onnx.parser.parse_graph(f"g ({kind} {name}) => (float16 z) {{ {nodes} }}")
    graph.output[0].type.tensor_type.ClearField("shape")
    weights = {"w": RNG.standard_normal((8, 3, 3, 3)) * 0.3, "e": RNG.standard_normal((16, 8, 1, 1)) * 0.3}
    constants = {n: a.astype(np.float16) for n, a in weights.items()}
    constants |= {"low": np.float16(0), "high": np.float16(6), "shape": np.array([4, 40])}
    read = {v for n in graph.node for v in n.input}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in read)
    return from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9))


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_plans_compute_what_the_kernels_compute(text):
    m = model(text)
    plan, reference = Session(m), Session(m, ["numpy:reference"])
    (given,) = plan.get_inputs()
    for _ in range(4):
        x = (RNG.standard_normal(given.shape) * 2).astype(np.float16)
        (got,), (want,) = (s.run(None, {"x": x}) for s in (plan, reference))
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=1e-3)


def test_nodes_without_float16_stay():
    graph = from_proto(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
    )).graph  # fmt: skip
    assert in_float32(list(graph), graph.inputs, graph.outputs) == (list(graph), graph.inputs, graph.outputs)


def test_the_graph_of_the_model_is_left_alone():
    graph = model(GRAPHS["convolutions"]).graph
    uses = {v: dict(v.uses) for n in graph for v in (*n.inputs, *n.outputs) if v is not None}
    nodes, inputs, outputs = in_float32(list(graph), graph.inputs, graph.outputs)
    assert {v: dict(v.uses) for v in uses} == uses
    assert [v.type for v in inputs + outputs] == [v.type for v in (*graph.inputs, *graph.outputs)]
    assert sum(n.op == "RoundToHalf" for n in nodes) == 5


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_softmax_of_wider_numbers_keeps_its_type_beside_float16(kind):
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float16[3,5] h, {kind}[3,5] x) => (float16[3,5] y, {kind}[3,5] z)
        {{ y = Exp(h) z = Softmax(x) }}"""
    proto = onnx.parser.parse_model(text)
    x = RNG.standard_normal((3, 5)).astype(np.float32 if kind == "float" else np.float64)
    feeds = {"h": np.zeros((3, 5), np.float16), "x": x}
    with Session(from_proto(proto), ["numpy"]) as session:
        got = session.run(["z"], feeds)[0]
    powers = np.exp(x.astype(np.float64))
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)
