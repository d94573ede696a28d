"""Chains of quantized operators must compute what their operators compute one by one."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_graph

from ortconv.executor import plan
from ortconv.executor.algorithms import winograd
from ortconv.executor.algorithms.conv import convolution, convolver, filters
from ortconv.executor.algorithms.sliding_window import window
from ortconv.executor.algorithms.winograd import ExactSums
from ortconv.executor.fusion.int8_steps import Int8Steps
from ortconv.executor.kernels import quantize
from ortconv.runtime.session import Session
from tests.batches import sampled, slow_except

RNG = np.random.default_rng(11)


def codes(*shape, dtype=np.int8, low=-127, high=127):
    return RNG.integers(low, high, shape, endpoint=True).astype(dtype)


def f32(*numbers):
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


U8 = {"xz": np.uint8(128), "az": np.uint8(0), "bz": np.uint8(101), "yz": np.uint8(77)}
S8 = {"xz": np.int8(3), "az": np.int8(-128), "bz": np.int8(-5), "yz": np.int8(20)}
SCALES = {"xs": f32(0.02), "as": f32(0.03), "bs": f32(0.041), "ys": f32(0.05), "ws": f32(0.004), "wz": np.int8(0)}
CONV = {"w": codes(16, 8, 3, 3), "c": codes(16, dtype=np.int32, low=-9000, high=9000)}
PER_CHANNEL = {"ws": RNG.uniform(0.002, 0.006, 16).astype(np.float32), "wz": np.zeros(16, np.int8)}
SQUARE = {"u": codes(16, 16, 3, 3), "v": codes(16, 16, 1, 1), "d": codes(16, 1, 3, 3)}
WIDE = {
    "w": codes(64, 8, 1, 1),
    "c": codes(64, dtype=np.int32, low=-9000, high=9000),
    "u": codes(64, 64, 3, 3, low=-60, high=60),
}

ENTER = "q = QuantizeLinear(x, xs, xz)"
CHAIN = (
    ENTER
    + """
    a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
    b = QLinearConv<pads = [1,1,1,1]>(a, as, az, u, us, uz, bs, bz)
    y = QLinearConv<group = 16, pads = [1,1,1,1]>(b, bs, bz, d, us, uz, ys, yz, c)"""
)
PRODUCTS = {"p": codes(24, 16), "ps": np.linspace(0.002, 0.009, 24, dtype=np.float32), "pz": codes(24, low=-4, high=4),
            "pc": codes(24, dtype=np.int32, low=-900, high=900), "r": codes(24, 24), "rs": f32(0.004),
            "rz": np.int8(3)}  # fmt: skip
SINGLE = {"us": f32(0.005), "uz": np.int8(0)}
OPERATORS = {
    "chain": (U8 | SCALES | CONV | SQUARE | SINGLE, CHAIN, "uint8"),
    "signed": (S8 | SCALES | CONV | SQUARE | SINGLE, CHAIN, "int8"),
    "per channel": (U8 | SCALES | CONV | SQUARE | SINGLE | PER_CHANNEL, CHAIN, "uint8"),
    "origins of weights": (U8 | SCALES | CONV | SQUARE | SINGLE | {"uz": np.int8(9)}, CHAIN, "uint8"),
    "Winograd": (U8 | SCALES | WIDE | SINGLE, ENTER + """
        a = QLinearConv(q, xs, xz, w, ws, wz, as, az, c)
        y = QLinearConv<pads = [1,1,1,1]>(a, as, az, u, us, uz, ys, yz, c)""", "uint8"),
    "strides": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<auto_pad = "SAME_UPPER", strides = [2,2]>(q, xs, xz, w, ws, wz, as, az, c)
        y = QLinearConv<strides = [2,2]>(a, as, az, v, us, uz, ys, yz)""", "uint8"),
    "sum": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        b = QLinearConv(a, as, az, v, us, uz, bs, bz)
        y = com.microsoft.QLinearAdd(b, bs, bz, a, as, az, ys, yz)""", "uint8"),
    "sum of ties": (U8 | SCALES | CONV | SQUARE | SINGLE | {"as": f32(0.025), "bs": f32(0.025)}, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        b = QLinearConv(a, as, az, v, us, uz, bs, bz)
        y = com.microsoft.QLinearAdd(b, bs, bz, a, as, az, ys, yz)""", "uint8"),
    "sum that broadcasts": (U8 | SCALES | CONV | {"k": codes(16, 1, 1, dtype=np.uint8, low=0, high=255)}, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        y = com.microsoft.QLinearAdd(k, bs, bz, a, as, az, ys, yz)""", "uint8"),
    "moves": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        m = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(a)
        t = Transpose<perm = [0,1,3,2]>(m)
        y = QLinearConv(t, as, az, v, us, uz, ys, yz)""", "uint8"),
    "channels last": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        t = Transpose<perm = [0,2,3,1]>(q)
        a = com.microsoft.QLinearConv<channels_last = 1, pads = [1,1,1,1]>(t, xs, xz, w, ws, wz, as, az, c)
        m = com.microsoft.NhwcMaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(a)
        y = com.microsoft.QLinearConv<channels_last = 1, group = 16>(m, as, az, d, us, uz, ys, yz)""", "uint8"),
    "other readers": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        b = QLinearConv(a, as, az, v, us, uz, bs, bz)
        g = com.microsoft.QLinearGlobalAveragePool(a, as, az, as, az)
        y = com.microsoft.QLinearAdd(g, as, az, b, bs, bz, ys, yz)""", "uint8"),
    "averages": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        g = com.microsoft.QLinearGlobalAveragePool(a, as, az, bs, bz)
        y = QLinearConv(g, bs, bz, v, us, uz, ys, yz)""", "uint8"),
    "products": (U8 | SCALES | CONV | PRODUCTS, ENTER + """
        a = QLinearConv<strides = [3,3]>(q, xs, xz, w, ws, wz, as, az, c)
        g = com.microsoft.QLinearGlobalAveragePool(a, as, az, bs, bz)
        f = Flatten(g)
        h = com.microsoft.QGemm<transB = 1>(f, bs, bz, p, ps, pz, pc, as, az)
        i = QLinearMatMul(h, as, az, r, rs, rz, bs, bz)
        y = com.microsoft.QGemm(i, bs, bz, r, rs, rz, , ys, yz)""", "uint8"),
    "factors of products": (U8 | SCALES | CONV | PRODUCTS | {"pc": codes(1, 24, dtype=np.int32)}, ENTER + """
        a = QLinearConv<strides = [3,3]>(q, xs, xz, w, ws, wz, as, az, c)
        g = com.microsoft.QLinearGlobalAveragePool(a, as, az, bs, bz)
        f = Flatten(g)
        h = com.microsoft.QGemm<transB = 1>(f, bs, bz, p, ps, pz, pc, as, az)
        y = com.microsoft.QGemm<alpha = 0.5>(h, as, az, r, rs, rz, , ys, yz)""", "uint8"),
    "another origin": (U8 | SCALES | CONV | SQUARE | SINGLE, ENTER + """
        a = QLinearConv<pads = [1,1,1,1]>(q, xs, xz, w, ws, wz, as, az, c)
        y = QLinearConv(a, as, bz, v, us, uz, ys, yz)""", "uint8"),
    "large sums": (U8 | SCALES | SINGLE | {"w": codes(8, 8, 1, 1), "u": np.full((4, 8, 12, 12), 127, np.int8),
                                           "c": codes(8, dtype=np.int32)}, ENTER + """
        a = QLinearConv(q, xs, xz, w, ws, wz, as, az, c)
        y = QLinearConv<pads = [6,6,6,6]>(a, as, az, u, us, uz, ys, yz)""", "uint8"),
}  # fmt: skip
"""Constants, nodes, and the type of the result y."""


@pytest.mark.parametrize(("more", "needs_bytes"), [("", False), ("[n, ch, h, wd] q, uint8", True)])
def test_what_is_quantized_first_is_handed_on_as_codes(more, needs_bytes, tmp_path, monkeypatch):
    """But not where somebody needs the bytes."""
    constants, body, kind = OPERATORS["chain"]
    path = save(constants, body, kind + more, tmp_path / "m.onnx")
    made = []
    to_bytes = quantize.round_to_integers
    monkeypatch.setattr(quantize, "round_to_integers", lambda *args: made.append(args) or to_bytes(*args))
    Session(path).run(None, {"x": next(examples())})
    assert bool(made) == needs_bytes


FLOATS = {"wq": codes(16, 8, 3, 3), "uq": codes(16, 16, 1, 1), "cq": codes(16, dtype=np.int32, low=-9000, high=9000),
          "cs": f32(0.00008), "low": f32(-0.3), "high": f32(2.0)}  # fmt: skip
FLOAT_ENTER = (
    ENTER
    + """
    x_ = DequantizeLinear(q, xs, xz) w = DequantizeLinear<axis = 0>(wq, ws, wz) c = DequantizeLinear(cq, cs)
    u = DequantizeLinear(uq, us, uz)"""
)
BETWEEN = {
    "Conv": ("r = Conv<pads = [1,1,1,1]>(x_, w, c)", 2),
    "Relu": ("a = Conv(x_, w, c) r = Relu(a)", 2),
    "Clip": ("a = Conv(x_, w) r = Clip(a, low, high)", 2),
    "Clip, contradictory": ("a = Conv(x_, w) r = Clip(a, high, low)", 2),
    "Relu and Clip": ("a = Conv(x_, w) b = Clip(a, low, high) r = Relu(b)", 2),
    "sum": (
        """a = Conv<pads = [1,1,1,1]>(x_, w, c) b = Relu(a) p = QuantizeLinear(b, as, az) p_ = DequantizeLinear(p, as, az)
        d = Conv(p_, u) e = QuantizeLinear(d, bs, bz) e_ = DequantizeLinear(e, bs, bz) f = Add(p_, e_) r = Relu(f)""", 7),
    "maxima": (
        """a = Conv<pads = [1,1,1,1]>(x_, w, c) b = Relu(a) p = QuantizeLinear(b, as, az) p_ = DequantizeLinear(p, as, az)
        m = MaxPool<kernel_shape = [2,2]>(p_) n = QuantizeLinear(m, as, az) n_ = DequantizeLinear(n, as, az)
        r = Conv(n_, u)""", 6),
    "a float reader": (
        """a = Conv<pads = [1,1,1,1]>(x_, w, c) p = QuantizeLinear(a, as, az) p_ = DequantizeLinear(p, as, az)
        d = Conv(p_, u) e = Sin(p_) r = Add(d, e)""", 6),
}  # fmt: skip
"""Float operators between dequantized x and the QuantizeLinear behind r, and how many steps are left."""


def save(constants, body, kind, path, x="float[n, ch, h, wd] x", shape="[o, p, r, s]"):
    names = set(re.findall(r"\w+", body))
    used = {name: value for name, value in constants.items() if name in names}
    graph = parse_graph(f"g ({x}) => ({kind}{shape} y) {{ {body} }}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in used.items())
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def plain(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "QUANTIZED", {})
        patch.setattr(plan, "FLOAT", {})
        return Session(path)


def examples():
    for shape in [(1, 8, 9, 11), (2, 8, 24, 30), (1, 8, 7, 8), (0, 8, 9, 9)]:
        x = np.random.default_rng(sum(shape)).normal(0, 1.5, shape).astype(np.float32)
        yield x
        if x.size:
            x = x.copy()
            x.reshape(-1)[: 6 * 37 : 37] = [np.nan, np.inf, -np.inf, -0.0, 1e30, 0.0][
                : len(range(0, min(x.size, 222), 37))
            ]
            yield x


@pytest.mark.parametrize("name", slow_except([*OPERATORS][::3], OPERATORS))
def test_operators_on_codes_are_exact(name, tmp_path):
    path = save(*OPERATORS[name], tmp_path / "m.onnx")
    ours, reference = Session(path), plain(path)
    for x in examples():
        (want,) = reference.run(None, {"x": x})
        for _ in range(3):  # the second one is recorded
            (got,) = ours.run(None, {"x": x})
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want, err_msg=str(x.shape))


@sampled(6)
@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("zero_points", [U8, S8], ids=["unsigned", "signed"])
@pytest.mark.parametrize("scales", [SCALES, SCALES | PER_CHANNEL], ids=["per tensor", "per channel"])
def test_operators_between_dequantized_and_quantized(name, zero_points, scales, tmp_path):
    body, steps = BETWEEN[name]
    kind = "uint8" if zero_points is U8 else "int8"
    constants = zero_points | scales | FLOATS | SINGLE
    path = save(constants, f"{FLOAT_ENTER} {body} y = QuantizeLinear(r, ys, yz)", kind, tmp_path / "m.onnx")
    ours, reference = Session(path), plain(path)
    assert len(ours._main.programs[0][0].steps) == steps
    for x in examples():
        want, got = (s.run(None, {"x": x})[0].astype(int) for s in (reference, ours))
        for _ in range(2):
            np.testing.assert_array_equal(ours.run(None, {"x": x})[0], got)
        # Sums in float32 and exact sums may lie on two sides of a half.
        assert np.abs(want - got).max(initial=0) <= 1
        assert np.count_nonzero(want - got) <= 1 + 1e-2 * want.size


def test_bytes_that_a_step_reads_are_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(Int8Steps, "_entry", lambda *_: None)  # as for x of unknown type
    body = """a = Conv<pads = [1,1,1,1]>(x_, w, c) p = QuantizeLinear(a, as, az) p_ = DequantizeLinear(p, as, az)
        n = Neg(x_) r = Concat<axis = 1>(p_, n)"""
    path = save(
        U8 | SCALES | FLOATS | SINGLE,
        f"{FLOAT_ENTER} {body} y = QuantizeLinear(r, ys, yz)",
        "uint8",
        tmp_path / "m.onnx",
    )
    x = next(examples())
    want, got = (s.run(None, {"x": x})[0].astype(int) for s in (plain(path), Session(path)))
    assert np.abs(want - got).max() <= 1


EXACT = {
    "small weights": (lambda rng, shape, _: rng.integers(-30, 30, shape, endpoint=True), True),
    "products that are too large together": (lambda rng, shape, largest: np.full(shape, 3600 // largest), False),
    "large products": (lambda rng, shape, _: rng.choice([-127, 127], shape), False),
}  # fmt: skip
"""Weights, and whether the sums are exact; if not, the direct form computes them."""


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("lowest", [0, -128])
def test_exact_winograd(name, lowest):
    make, is_exact = EXACT[name]
    rng = np.random.default_rng(3)
    w = make(rng, (64, 128, 3, 3), lowest + 255).astype(np.int8)
    x = np.where(w[0, :, 1, 1] > 0, lowest + 255.0, lowest).astype(np.float32)[None, :, None, None]
    x = x * (rng.random((12, 14)) < (0.2 if is_exact else 1))
    x = x.astype(np.float32)
    geometry = {"pads": (1, 1, 1, 1)}
    place = window((12, 14), (3, 3), **geometry)
    want = convolver(filters(w.astype(np.float64), 1), place, x.shape[1])(x.astype(np.float64))
    np.testing.assert_array_equal(convolution(w, 1, geometry, is_exact=True)(x), want)
    weights, asked = winograd.transform_weights(w.astype(np.float32)), []
    check = ExactSums(lambda: weights)
    own = winograd.convolver(lambda: weights, place, lambda: lambda *args: asked.append(args), check)(x)
    assert bool(asked) != is_exact
    if is_exact:
        np.testing.assert_array_equal(own, want)


PRODUCTS = {
    "MatMul": ("a = MatMul(x_, w) r = Relu(a)", (12, 20), 1, True),
    "MatMul of matrices": ("m = Reshape(x_, shape) n = QuantizeLinear(m, xs, xz) "
                           "n_ = DequantizeLinear(n, xs, xz) f = MatMul(n_, w) r = Reshape(f, rows)", (12, 20), 1, False),
    "Gemm": ("r = Gemm(x_, w, c)", (12, 20), 1, True),
    "Gemm of rows": ("r = Gemm<transB = 1>(x_, w, c)", (20, 12), 0, True),
    "Gemm with one bias": ("r = Gemm<alpha = 1.0, beta = 1.0>(x_, w, b)", (12, 20), 1, True),
    "Gemm with factors": ("r = Gemm<alpha = 0.5>(x_, w, c)", (12, 20), 1, False),
    "Gemm with a bias per row": ("r = Gemm(x_, w, e)", (12, 20), 1, False),
}  # fmt: skip
"""Products of x (N, 12) and dequantized weights of a shape, the axis of their columns, and whether all that runs is on codes."""


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("zero_points", [U8, S8], ids=["unsigned", "signed"])
def test_products_between_dequantized_and_quantized(name, per_channel, zero_points, tmp_path):
    product, shape, axis, is_on_codes = PRODUCTS[name]
    scale = {"ws": RNG.uniform(0.002, 0.006, 20).astype(np.float32), "wz": codes(20, low=-3, high=3)}
    constants = zero_points | SCALES | (scale if per_channel else {}) | {
        "q": codes(*shape), "c": RNG.normal(0, 1, 20).astype(np.float32), "b": f32(0.3), "rows": np.array([-1, 20]),
        "shape": np.array([2, -1, 12]), "e": RNG.normal(0, 1, (6, 1)).astype(np.float32)}  # fmt: skip
    kind = "uint8" if zero_points is U8 else "int8"
    body = f"""p = QuantizeLinear(x, xs, xz) x_ = DequantizeLinear(p, xs, xz) w = DequantizeLinear<axis = {axis}>(q, ws, wz)
        {product} y = QuantizeLinear(r, ys, yz)"""
    path = save(constants, body, kind, tmp_path / "m.onnx", "float[n, 12] x", "[n, 20]")
    ours, reference = Session(path), plain(path)
    assert (len(ours._main.programs[0][0].steps) == 2) == is_on_codes
    for rows in (6,) if "e)" in product else (6, 2, 0):
        x = RNG.normal(0, 1.5, (rows, 12)).astype(np.float32)
        want, got = (s.run(None, {"x": x})[0].astype(int) for s in (reference, ours))
        assert want.shape == got.shape
        assert np.abs(want - got).max(initial=0) <= 1
        assert np.count_nonzero(want - got) <= 1


def test_winograd_of_nothing():
    weights = winograd.transform_weights(np.ones((64, 64, 3, 3), np.float32))
    convolve = winograd.convolver(lambda: weights, window((6, 2), (3, 3)), pytest.fail)
    assert convolve(np.ones((1, 64, 6, 2), np.float32)).shape == (1, 64, 4, 0)


def test_inner_codes_stay_wide(tmp_path):
    """What only steps read is never made as bytes."""
    session = Session(save(*OPERATORS["sum"], tmp_path / "m.onnx"))
    x = next(examples())
    results = []
    steps = [
        step._replace(function=lambda *a, f=step.function: results.append(f(*a)) or results[-1])
        for step in session._main.programs[0][0].steps
    ]
    session._main.programs[0][0].steps[:] = steps
    session.run(None, {"x": x})
    assert [r.dtype for r in results] == [np.float32] * (len(results) - 1) + [np.uint8]


def test_threads_share_a_plan(tmp_path):
    session = Session(save(*OPERATORS["moves"], tmp_path / "m.onnx"))
    inputs = [np.random.default_rng(i).normal(0, 1.5, (1, 8, 20, 20 + i % 3)).astype(np.float32) for i in range(12)]
    want = [session.run(None, {"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(want, pool.map(lambda x: session.run(None, {"x": x})[0], inputs), strict=True):
            np.testing.assert_array_equal(a, b)
