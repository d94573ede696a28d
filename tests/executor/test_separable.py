"""A pointwise convolution and the depthwise one that reads it must compute as one step what they compute as two."""

import numpy as np
import pytest

from ortconv.executor import quantized
from ortconv.executor.kernels import depthwise, stripes
from ortconv.session import Session
from tests.batches import batched
from tests.executor import test_quantized
from tests.executor.test_quantized import codes, plain

RNG = np.random.default_rng(5)
CHANNELS, EXPANDED = 5, 12
SHAPES = [(1, CHANNELS, 19, 23), (2, CHANNELS, 8, 7), (1, CHANNELS, 4, 40), (0, CHANNELS, 9, 9)]

GEOMETRIES = {
    "padded": "kernel_shape = [3,3], pads = [1,1,1,1]",
    "bare": "kernel_shape = [3,2]",
    "strides": "kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]",
    "long strides": "kernel_shape = [2,3], pads = [0,1,1,0], strides = [3,4]",
    "dilations": "kernel_shape = [3,3], pads = [2,2,2,2], dilations = [2,3]",
    "strides and dilations": "kernel_shape = [3,3], pads = [3,2,1,4], strides = [2,2], dilations = [1,2]",
    "large kernel": "kernel_shape = [5,5], pads = [2,2,2,2], strides = [2,2]",
    "more padding than image": "kernel_shape = [3,3], pads = [9,9,9,9], strides = [2,1]",
    "same upper": 'kernel_shape = [4,3], auto_pad = "SAME_UPPER", strides = [2,3]',
    "same lower": 'kernel_shape = [3,4], auto_pad = "SAME_LOWER", strides = [1,2]',
}
FLOATS = {
    "linear": ("e = Conv(x, w, b)", "y = Neg(d)"),
    "activations": ("p = Conv(x, w, b) e = Clip(p, low, high)", "y = Relu(d)"),
    "factors": ("p = Conv(x, w) n = BatchNormalization(p, s, b, m, v) e = HardSwish(n)", "y = Mul(d, by_channel)"),
    "summands": ("p = Conv(x, w, b) q = Add(p, by_channel) e = Sigmoid(q)", "y = Add(d, d)"),
    "swish": ("p = Conv(x, w, b) g = Sigmoid(p) e = Mul(p, g)", "y = Tanh(d)"),
}


def f32(*shape):
    return RNG.uniform(-0.9, 0.9, shape).astype(np.float32)


def save(path, body, constants, geometry, kind="float"):
    kernel = [int(k) for k in geometry.split("[")[1].split("]")[0].split(",")]
    constants = {k: a(*kernel) if callable(a) else a for k, a in constants.items()}
    return test_quantized.save(constants, body, kind, path)


def apart(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized, "can_expand", lambda *_: False)
        return Session(path)


def steps(session):
    return len(session._programs[0][0].steps)


@pytest.fixture(params=[(1 << 11, 0), (1 << 20, 0), (1 << 20, 1 << 40)], ids=["many stripes", "one stripe", "in turn"])
def _in_stripes(request, monkeypatch):
    stripe, large = request.param
    monkeypatch.setattr(stripes, "STRIPE_BYTES", stripe)
    monkeypatch.setattr(depthwise, "_LARGE_BYTES", large)
    monkeypatch.setattr(depthwise, "_FEWEST_COLUMNS", 1)


WEIGHTS = {
    "w": f32(EXPANDED, CHANNELS, 1, 1), "b": f32(EXPANDED), "t": lambda *k: f32(EXPANDED, 1, *k), "c": f32(EXPANDED),
    "low": np.float32(-0.4), "high": np.float32(0.7), "by_channel": f32(EXPANDED, 1, 1),
    "s": f32(EXPANDED), "m": f32(EXPANDED), "v": np.abs(f32(EXPANDED)), "by_pixel": f32(1, 1, 1, 23),
}  # fmt: skip


@batched
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("body", FLOATS)
@pytest.mark.usefixtures("_in_stripes")
def test_floats(body, geometry, tmp_path):
    before, behind = FLOATS[body]
    convolved = f"d = Conv<group = {EXPANDED}, {GEOMETRIES[geometry]}>(e, t, c)"
    path = save(tmp_path / "m.onnx", f"{before} {convolved} {behind}", WEIGHTS, GEOMETRIES[geometry])
    ours, reference = Session(path), plain(path)
    assert steps(ours) == 1
    for shape in SHAPES:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        want = reference.run(None, {"x": x})[0]
        for got in [ours.run(None, {"x": x})[0] for _ in range(3)]:
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@pytest.mark.usefixtures("_in_stripes")
def test_special_values(tmp_path):
    geometry = GEOMETRIES["strides"]
    body = f"e = Conv(x, w, b) d = Conv<group = {EXPANDED}, {geometry}>(e, t, c) y = Relu(d)"
    path = save(tmp_path / "m.onnx", body, WEIGHTS, geometry)
    ours, reference = Session(path), plain(path)
    x = np.random.default_rng(1).standard_normal(SHAPES[0]).astype(np.float32)
    x[0, :, 3, 3:6] = [[np.nan, np.inf, -np.inf]] * CHANNELS
    np.testing.assert_allclose(ours.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], 1e-5, 1e-5)


APART = {
    "another reader": ("e = Conv(x, w, b)", "k = Sin(e) j = ReduceSum(k) y = Mul(d, j)"),
    "an output": ("e = Conv(x, w, b)", "y = Relu(d)"),
    "a summand for each pixel": ("p = Conv(x, w, b) e = Add(p, by_pixel)", "y = Relu(d)"),
    "a sum with what it reads": ("e = Conv(x, w, b)", "y = Add(d, e)"),
    "a kernel": ("e = Conv<pads = [1,1,1,1]>(x, w3, b)", "y = Relu(d)"),
    "strides": ("e = Conv<strides = [1,2]>(x, w, b)", "y = Relu(d)"),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.usefixtures("_in_stripes")
def test_what_stays_apart(name, tmp_path):
    before, behind = APART[name]
    geometry = GEOMETRIES["padded"]
    body = f"{before} d = Conv<group = {EXPANDED}, {geometry}>(e, t, c) {behind}"
    kind = "float[o, p, q, r] e, float" if name == "an output" else "float"
    constants = WEIGHTS | {"w3": f32(EXPANDED, CHANNELS, 3, 3)}
    path = save(tmp_path / "m.onnx", body, constants, geometry, kind)
    ours, reference = Session(path), plain(path)
    assert steps(ours) > 1
    x = np.random.default_rng(0).standard_normal(SHAPES[0]).astype(np.float32)
    for want, got in zip(*(s.run(None, {"x": x}) for s in (reference, ours)), strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


QUANTIZED = {
    "w": codes(EXPANDED, CHANNELS, 1, 1), "t": lambda *k: codes(EXPANDED, 1, *k), "xs": np.float32(0.02), "xz": np.uint8(128),
    "es": np.float32(0.04), "ez": np.uint8(0), "zs": np.float32(0.03), "zz": np.uint8(77), "ws": np.float32(0.005),
    "wz": np.int8(0), "b": codes(EXPANDED, dtype=np.int32, low=-900, high=900), "bs": np.float32(0.0001),
}  # fmt: skip
CHAINS = {
    "operators": """q = QuantizeLinear(x, xs, xz) e = QLinearConv(q, xs, xz, w, ws, wz, es, ez, b)
        y = QLinearConv<group = 12, GEOMETRY>(e, es, ez, t, ws, wz, zs, zz, b)""",
    "channels last": """q = QuantizeLinear(x, xs, xz) l = Transpose<perm = [0,2,3,1]>(q)
        e = com.microsoft.QLinearConv<channels_last = 1>(l, xs, xz, w, ws, wz, es, ez)
        d = com.microsoft.QLinearConv<channels_last = 1, group = 12, GEOMETRY>(e, es, ez, t, ws, wz, zs, zz, b)
        y = Transpose<perm = [0,3,1,2]>(d)""",
    "floats between": """q = QuantizeLinear(x, xs, xz) f = DequantizeLinear(q, xs, xz) u = DequantizeLinear(w, ws, wz)
        o = DequantizeLinear(b, bs) p = Conv(f, u, o) r = Relu(p) k = QuantizeLinear(r, es, ez) e = DequantizeLinear(k, es, ez)
        v = DequantizeLinear(t, ws, wz) d = Conv<group = 12, GEOMETRY>(e, v) y = QuantizeLinear(d, zs, zz)""",
}


@batched
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.usefixtures("_in_stripes")
def test_codes(chain, geometry, tmp_path):
    body = CHAINS[chain].replace("GEOMETRY", GEOMETRIES[geometry])
    path = save(tmp_path / "m.onnx", body, QUANTIZED, GEOMETRIES[geometry], "uint8")
    # Where floats lie between, their sums and exact ones may lie on two sides of a half.
    ours, reference = Session(path), (apart if chain == "floats between" else plain)(path)
    assert steps(ours) == (4 if chain == "channels last" else 2)
    for shape in SHAPES:
        x = np.random.default_rng(sum(shape)).normal(0, 1.5, shape).astype(np.float32)
        want = reference.run(None, {"x": x})[0]
        for got in [ours.run(None, {"x": x})[0] for _ in range(3)]:
            np.testing.assert_array_equal(got, want)
