"""What units of steps compute must be what their steps compute one by one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_graph

from ortconv.compare.gap import strict_gap
from ortconv.compare.tolerance import limit
from ortconv.executor import plan
from ortconv.executor.fusion import elementwise, elementwise_program
from ortconv.executor.fusion.elementwise_ops import Instruction, Literal, Temporary
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.replay.work import AT_ONCE
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.arrays import i64
from tests.batches import sampled

RNG = np.random.default_rng(7)


def f32(*shape):
    return RNG.uniform(0.05, 0.9, shape).astype(np.float32)


WEIGHTS = {"w": f32(16, 8, 3, 3) - np.float32(0.5), "c": f32(16) - np.float32(0.5)}
STATISTICS = {name: f32(16) for name in "sbmv"}
PADS = i64(0, 0, 1, 0, 0, 0, 2, 1)
SCALE, ORIGIN = np.float32(0.1), np.uint8(100)

MODELS = {
    "activation": (WEIGHTS, "y = Conv<pads = [1,1,1,1]>(x, w, c) z = Relu(y)", 1),
    "BatchNormalization": (
        WEIGHTS | STATISTICS,
        "y = Conv<strides = [2,2]>(x, w) n = BatchNormalization<epsilon = 0.01>(y, s, b, m, v) z = LeakyRelu<alpha = 0.2>(n)", 1),
    "BatchNormalization alone": (
        {name: f32(8) for name in "sbmv"}, "n = BatchNormalization(x, s, b, m, v) z = Relu(n)", 1),
    "negative variance": (
        {"s": f32(8), "b": f32(8), "m": f32(8), "v": -f32(8)}, "n = BatchNormalization(x, s, b, m, v) z = Relu(n)", 1),
    "factors and summands": (
        WEIGHTS | {"k": f32(1, 16, 1, 1), "j": f32(16, 1, 1), "one": np.float32(1)},
        "y = Conv(x, w, c) d = Div(y, k) e = Mul(one, d) f = Sub(e, j) g = Sub(one, f) z = HardSwish(g)", 1),
    "Pad": (WEIGHTS | {"p": PADS}, "q = Pad(x, p) y = Conv<pads = [0,1,0,0]>(q, w, c) z = Relu(y)", 1),
    "Pad with ones": (
        WEIGHTS | {"p": PADS, "one": np.float32(1)}, "q = Pad(x, p, one) y = Conv(q, w, c) z = Relu(y)", 2),
    "cropping Pad": (WEIGHTS | {"p": -PADS}, "q = Pad(x, p) y = Conv(q, w, c) z = Relu(y)", 2),
    "SiLU": (WEIGHTS, "y = Conv<pads = [1,1,1,1]>(x, w, c) g = Sigmoid(y) z = Mul(y, g)", 1),
    "SiLU of scaled sums": (
        WEIGHTS | {"k": f32(16, 1, 1) * np.float32(300)}, "y = Conv(x, w, c) m = Mul(y, k) g = Sigmoid(m) z = Mul(g, m)", 1),
    "HardSwish in parts": (
        WEIGHTS | {"k": f32(16, 1, 1) * np.float32(9)},
        "y = Conv(x, w, c) m = Mul(y, k) g = HardSigmoid<alpha = 0.16666667, beta = 0.5>(m) z = Mul(m, g)", 1),
    "HardSwish with another slope": (
        WEIGHTS, "y = Conv(x, w) g = HardSigmoid<alpha = 0.1666, beta = 0.5>(y) z = Mul(y, g)", 1),
    "gate": (
        WEIGHTS | {"u": f32(16, 8, 1, 1)},
        "y = Conv(x, w, c) a = GlobalAveragePool(x) h = Conv(a, u) g = HardSigmoid<alpha = 0.3>(h) z = Mul(y, g)", 3),
    "residual": (
        {"w": f32(8, 8, 3, 3), "u": f32(8, 8, 1, 1), "low": np.float32(0), "high": np.float32(6)},
        "a = Conv(x, u) b = Conv<pads = [1,1,1,1]>(a, w) y = Add(b, a) z = Clip(y, low, high)", 2),
    "channels last": (
        WEIGHTS | {"k": f32(16)},
        "y = Conv(x, w, c) t = Transpose<perm = [0,2,3,1]>(y) f = Mul(t, k) g = Add(f, k) z = Relu(g)", 3),
    "odd tiles": ({"w": f32(64, 8, 3, 3), "u": f32(64, 64, 3, 3)}, "a = Conv(x, w) y = Conv<pads = [1,1,1,1]>(a, u) z = Abs(y)", 2),
    "another reader": (WEIGHTS, "y = Conv(x, w, c) r = Relu(y) s = Sin(y) z = Mul(r, s)", 3),
    "quantized": (
        WEIGHTS | {"f": SCALE, "o": ORIGIN}, "y = Conv(x, w, c) q = QuantizeLinear(y, f, o) z = DequantizeLinear(q, f, o)", 3),
    "requantized": (
        WEIGHTS | {"f": SCALE, "g": np.float32(0.2), "o": ORIGIN},
        "y = Conv(x, w, c) q = QuantizeLinear(y, f, o) z = DequantizeLinear(q, g, o)", 3),
    "product": ({"w": f32(8, 40), "c": f32(40)}, "y = MatMul(x, w) a = Add(c, y) e = Erf(a) z = Mul(a, e)", 1),
    "integer product": (
        {"w": np.arange(-160, 160).clip(-127, 127).astype(np.int8).reshape(8, 40), "v": np.int8(3), "c": f32(40)},
        """q, s, o = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, o, v) y = Cast<to = 1>(i) p = Mul(y, s)
        z = Add(c, p)""", 2),
    "integer product and its codes": (
        {"w": np.arange(-32, 32).astype(np.int8).reshape(8, 8)},
        """q, s, o = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, o) y = Cast<to = 1>(i) k = Cast<to = 1>(q)
        p = Mul(y, s) z = Add(p, k)""", 3),
    "rows": (
        {"two": np.float32(2), "e": np.float32(1e-3), "g": f32(8), "h": f32(8)},
        """u = ReduceMean<axes = [-1]>(x) d = Sub(x, u) p = Pow(d, two) v = ReduceMean<axes = [3]>(p) a = Add(v, e)
        r = Sqrt(a) n = Div(d, r) f = Mul(n, g) z = Add(f, h)""", 6),
    "LayerNormalization": (
        {"w": f32(8, 24), "c": f32(24), "g": f32(24), "h": f32(24)},
        "y = MatMul(x, w) a = Add(y, c) n = LayerNormalization<axis = 3, epsilon = 0.01>(a, g, h) z = Neg(n)", 1),
    "LayerNormalization alone": ({"g": f32(8), "h": f32(8)}, "z = LayerNormalization<epsilon = 0.01>(x, g, h)", 1),
    "LayerNormalization without means": (
        {"g": f32(8)}, "n = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(x, g) z = Neg(n)", 1),
    "LayerNormalization over two axes": (
        {"w": f32(8, 24), "g": f32(8, 24)}, "y = MatMul(x, w) n = LayerNormalization<axis = 2>(y, g) z = Neg(n)", 3),
    "LayerNormalization and its mean": (
        {"w": f32(8, 24), "g": f32(24)}, "y = MatMul(x, w) n, m = LayerNormalization(y, g) z = Add(n, m)", 3),
    "SkipLayerNormalization": (
        {"w": f32(8, 24), "c": f32(24), "k": f32(8, 24), "g": f32(24), "h": f32(24)},
        """y = MatMul(x, w) n = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(y, y, g, h, c)
        m = com.microsoft.SkipLayerNormalization(n, k, g) z = Neg(m)""", 1),
    "dynamic product": (
        {"w": np.arange(-160, 160).clip(-127, 127).astype(np.int8).reshape(8, 40), "s": f32(40), "v": np.int8(3), "c": f32(40)},
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, s, v, c) g = com.microsoft.Gelu(y) a = Add(g, c) z = Abs(a)", 1),
    "dynamic products": (
        {"w": np.arange(-160, 160).clip(-127, 127).astype(np.int8).reshape(8, 40), "s": f32(40), "c": f32(40)},
        """q, t, o = DynamicQuantizeLinear(x) a = com.microsoft.MatMulIntegerToFloat(q, w, t, s, o)
        b = com.microsoft.MatMulIntegerToFloat(q, w, t, s, o, , c) d = Tanh(b) z = Add(a, d)""", 3),
    "Gelu": (
        {"w": f32(8, 40), "r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
        "y = MatMul(x, w) d = Div(y, r) e = Erf(d) a = Add(one, e) m = Mul(y, a) z = Mul(m, half)", 1),
    "Gelu of a half": (
        {"r": np.full(1, 0.5**0.5, np.float32), "one": np.float32(1), "half": np.float32(0.5)},
        "n = Neg(x) h = Mul(half, n) d = Mul(r, n) e = Erf(d) a = Add(e, one) z = Mul(h, a)", 1),
    "Gelu by tanh": (
        {"w": f32(8, 40), "b": f32(40), "s": np.float32(0.7978845608), "k": np.full(1, 0.044715, np.float32),
         "three": np.float32(3), "one": np.float32(1), "half": np.float32(0.5)},
        """m = MatMul(x, w) y = Add(m, b) h = Mul(half, y) p = Pow(y, three) c = Mul(k, p) d = Add(y, c) e = Mul(d, s)
        t = Tanh(e) a = Add(t, one) z = Mul(h, a)""", 1),
    "Gelu by tanh of a product": (
        {"s": np.float32(0.7978845608), "k": np.float32(0.044715), "one": np.float32(1), "half": np.float32(0.5)},
        """n = Neg(x) a = Mul(n, s) b = Mul(k, n) c = Mul(b, n) d = Add(one, c) e = Mul(a, d) t = Tanh(e)
        f = Add(one, t) g = Mul(n, f) z = Mul(g, half)""", 1),
    "nearly Gelu by tanh": (
        {"s": np.float32(0.7978845608), "k": np.float32(0.05), "one": np.float32(1), "half": np.float32(0.5)},
        """n = Neg(x) a = Mul(n, s) b = Mul(k, n) c = Mul(b, n) d = Add(one, c) e = Mul(a, d) t = Tanh(e)
        f = Add(one, t) g = Mul(n, f) z = Mul(g, half)""", 1),
    "nearly Gelu": (
        {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.4)},
        "n = Neg(x) d = Div(n, r) e = Erf(d) a = Add(e, one) m = Mul(a, half) p = Mul(n, m) z = Add(p, e)", 1),
    "cubes": ({"three": np.float32(3), "c": f32(8, 1, 1)}, "p = Pow(x, three) a = Mul(p, c) z = Add(a, x)", 1),
    "squares of more axes": ({"two": np.full((1, 1, 1, 1, 1), 2, np.float32)}, "p = Pow(x, two) n = Neg(p) z = Exp(n)", 2),
    "slopes": (WEIGHTS | {"k": f32(16, 1, 1)}, "y = Conv(x, w, c) z = PRelu(y, k)", 1),
    "slopes around one": (WEIGHTS | {"k": f32(16, 1, 1) + np.float32(0.5)}, "y = Conv(x, w, c) z = PRelu(y, k)", 1),
    "SiLU of what others read": (WEIGHTS, "y = Conv(x, w, c) g = Sigmoid(y) m = Mul(g, y) z = Add(m, g)", 1),
    **{f"FusedConv {name}": (
        WEIGHTS | {"k": f32(16, 1, 1)},
        f"""y = Conv(x, w) a = com.microsoft.FusedConv<activation = "{name}", activation_params: floats = [{numbers}]>(x, w, c, y)
        z = Mul(a, k)""", 2)
       for name, numbers in {"Relu": "", "Clip": "-0.5, 0.6", "LeakyRelu": "0.3", "HardSigmoid": "0.3, 0.4", "HardSwish": "",
                             "Sigmoid": "", "Tanh": ""}.items()},
    "FusedConv without activation": (
        WEIGHTS | {"k": f32(16, 1, 1)}, "y = com.microsoft.FusedConv(x, w, c) m = Mul(y, k) z = Relu(m)", 1),
    "Sum": (
        WEIGHTS | {"u": f32(16, 8, 3, 3), "k": f32(16, 1, 1)},
        "y = Conv(x, w, c) d = Conv(x, u) s = Sum(y, k, d) z = Relu(s)", 2),
    "Sum of one": (WEIGHTS, "y = Conv(x, w, c) s = Sum(y) z = Neg(s)", 3),
    "shortcut": (
        WEIGHTS | STATISTICS | {"u": f32(16, 8, 3, 3), "k": f32(16, 1, 1)},
        """y = Conv(x, w, c) n = BatchNormalization(y, s, b, m, v) d = Conv(x, u) e = Mul(d, k) f = Add(e, k) a = Add(n, f)
        z = Relu(a)""", 2),
}  # fmt: skip
"""Constants, nodes, and how many steps are left of them."""

LAST_AXES = {"product", "integer product", "integer product and its codes", "Gelu", "rows"}
LAST_AXES |= {"Gelu by tanh", "SkipLayerNormalization", "dynamic product", "dynamic products"}
LAST_AXES |= {name for name in MODELS if name.startswith("LayerNormalization")}


OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def model(name, path):
    constants, body, _ = MODELS[name]
    channels = len(constants["s"]) if "BatchNormalization(x" in body else "c"
    graph = parse_graph(f"g (float[n, {channels}, h, w1] x) => (float[o, p, q, r] z) {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items())
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=8), path)
    return path


def plain(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FLOAT", {})
        return Session(path)


def examples(name):
    shapes = [(1, 8, 9, 11), (2, 8, 40, 40), (0, 8, 9, 9), (1, 8, 7, 8)]
    if name in LAST_AXES:
        shapes = [(2, 3, 8, 8), (1, 70, 8, 8), (4, 160, 8, 8), (0, 3, 8, 8), (1, 1, 8, 8)]
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        yield x
        if x.size:
            special = x.copy()
            special.reshape(-1)[: 6 * 37 : 37] = [np.nan, np.inf, -np.inf, -0.0, 1e30, 0.0][: len(range(0, x.size, 37))]
            yield special


@sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_unit(name, tmp_path):
    path = model(name, tmp_path / "m.onnx")
    fused, reference = Session(path), plain(path)
    steps = fused._main.programs[0][0].steps
    assert len(steps) == MODELS[name][2]
    allowed = limit(fused.model.graph, [])
    for x in examples(name):
        with np.errstate(all="ignore"):
            want, got = reference.run(None, {"x": x})[0], fused.run(None, {"x": x})[0]
        assert strict_gap(want, got).within(max(allowed, 1e-6)), (x.shape, strict_gap(want, got))
        np.testing.assert_array_equal(np.signbit(want[want == 0]), np.signbit(got[want == 0]))


def test_values_that_are_asked_for_are_made(tmp_path):
    path = model("SiLU", tmp_path / "m.onnx")
    loaded = onnx.load(path)
    loaded.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    onnx.save(loaded, path)
    x = next(examples("SiLU"))
    z, y = Session(path).run(None, {"x": x})
    np.testing.assert_allclose(z, y / (1 + np.exp(-y)), rtol=1e-5)


def test_what_is_not_read_is_not_computed(tmp_path, monkeypatch):
    """SiLU takes the bias and four instructions; those of its Sigmoid are left out."""
    counts = []

    def program(instructions, *others):
        counts.append(len(instructions))
        return BlockProgram(instructions, *others)

    monkeypatch.setattr(elementwise, "BlockProgram", program)
    Session(model("SiLU", tmp_path / "m.onnx"))
    assert counts == [5]


def test_threads_share_a_plan(tmp_path):
    session = Session(model("SiLU", tmp_path / "m.onnx"))
    inputs = [np.random.default_rng(i).standard_normal((1, 8, 40, 30 + i % 3)).astype(np.float32) for i in range(12)]
    want = [session.run(None, {"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(want, pool.map(lambda x: session.run(None, {"x": x})[0], inputs), strict=True):
            np.testing.assert_array_equal(a, b)


SHAPES = [
    [(4, 6, 5), (4, 6, 5)], [(4, 6, 5), (5,)], [(4, 6, 5), (6, 5)], [(4, 6, 5), (4, 1, 1)], [(4, 6, 5), (4, 6, 1)],
    [(4, 6, 5), (1, 6, 1)], [(4, 6, 5), ()], [(), ()], [(1, 1), (1,)], [(2, 300, 500), (500,)], [(2, 300, 500), (300, 1)],
    [(2, 300, 500), (2, 300, 500)], [(70000, 3), (3,)], [(70001,), (1,)], [(4, 60, 50), (4, 1, 50)], [(40, 60, 50), (40, 1, 50)],
]  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("small", [0, 1 << 12])
def test_program_broadcasts_as_numpy(monkeypatch, shapes, order, owned, small):
    monkeypatch.setattr(elementwise_program, "_SMALL", small)
    a, b = (
        np.asarray(np.random.default_rng(i).standard_normal(s), np.float32, order=order) for i, s in enumerate(shapes)
    )
    first, second, product, difference, total = (Temporary() for _ in range(5))
    instructions = [
        Instruction(np.multiply, (first, Literal(b)), product),
        Instruction(np.subtract, (product, second), difference),
        Instruction(np.add, (difference, first), total),
    ]
    run = BlockProgram(instructions, first if owned else None, [second] if owned else [first, second])
    want, held = a * b - b + a, a.copy(order="K")
    got = run.run(AT_ONCE, held, [b]) if owned else run.run(AT_ONCE, None, [held, b])
    assert got is not None
    np.testing.assert_array_equal(got, want)
    assert owned or np.array_equal(held, a)


@pytest.mark.parametrize("shapes", [[(3, 1), (1, 4)], [(0, 3), (3,)]], ids=str)
def test_program_declines_what_it_cannot_lay_out(shapes):
    a, b = (np.ones(s, np.float32) for s in shapes)
    operands = Temporary(), Temporary()
    program = BlockProgram([Instruction(np.add, operands, Temporary())], None, operands)
    assert program.run(AT_ONCE, None, [a, b]) is None


SCALARS = {
    "rows of scalars": (
        "float[1] c = {-0.8}",
        "s = Div(c, x) t = Sub(s, z) p = Softmax<axis = 0>(t) e = Div(p, z) f = Erf(e) a = Add(f, x) y = Mul(p, a)",
    ),
    "Gelu of a scalar": (
        "float[1] r = {1.4142135}, float one = {1}, float[1,1] half = {0.5}",
        "d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) g = Mul(m, half) y = Mul(g, z)",
    ),
    "Gelu between quantizers": (
        "float r = {1.4142135}, float s = {0.013}, uint8 o = {128}, float one = {1}, float half = {0.5}",
        "d = Div(x, r) e = Erf(d) q = QuantizeLinear(e, s, o) f = DequantizeLinear(q, s, o) a = Add(f, one)"
        "m = Mul(x, a) y = Mul(m, half)",
    ),
}


@pytest.mark.parametrize("shape", [(), (3, 4)])
@pytest.mark.parametrize("name", SCALARS)
def test_units_of_scalars_and_quantizers(name, shape):
    constants, body = SCALARS[name]
    dims = ",".join(map(str, shape))
    kind = f"float[{dims}]" if shape else "float"
    model = helper.make_model(
        parse_graph(f"g ({kind} x, {kind} z) => ({kind} y) <{constants}> {{ {body} }}"),
        opset_imports=[helper.make_opsetid("", 14)],
        ir_version=8,
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for value in model.graph.input:
        value.type.tensor_type.shape.SetInParent()
    feeds = {"x": f32(*shape), "z": f32(*shape)}
    session = Session(from_proto(model))
    want = unoptimized.run(model, feeds)[0]
    for _ in range(3):
        (got,) = session.run(None, feeds)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_the_share_of_a_single_element_is_one():
    """A Cast or Floor behind a Softmax would make 0 of the number before 1."""
    header = '<ir_version: 8, opset_import: ["": 17]>'
    proto = onnx.parser.parse_model(f"{header} g (float[300,1] x) => (float[300,1] y) {{ s = Softmax(x) y = Neg(s) }}")
    (y,) = Session(proto, "numpy").run(None, {"x": 3 * RNG.standard_normal((300, 1), np.float32)})
    np.testing.assert_array_equal(y, np.float32(-1))


@pytest.mark.parametrize(("count", "row"), [(1, 0), (4096, 3 * 1024), (2**31 - 1, 0), (2 * (2**31 - 1), 0)])
def test_repeated_rows_divide_the_result(count, row):
    """Some results have a prime number of rows, or twice one: a search up to it would take minutes."""
    like = np.broadcast_to(np.float32(0), (count, 3))
    assert elementwise_program._repeated_row(like, (0, 1), [np.zeros(3, np.float32)]) == row
