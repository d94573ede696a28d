"""What is recorded must hold for other numbers, leave everything alone that is not its own, and give way where it does not hold."""

import threading

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from ortconv.errors import BackendError
from ortconv.executor.algorithms import conv, gemm, sliding_window
from ortconv.executor.replay.recorder import Recorder
from ortconv.executor.replay.work import recordable
from ortconv.runtime.session import Session
from tests.batches import batched
from tests.executor.kernels.test_conv import CONVOLUTIONS

RNG = np.random.default_rng(3)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def replayed(function, first, then):
    """What the calls recorded for one operand make of another, all other memory being full of other numbers."""
    recorder = Recorder()
    x = recorder.like(first)
    np.copyto(x, first)
    recorder.hold(0, [x])
    recorder.end_step()
    result = function.record(recorder, x)
    recorder.hold(1, [result])
    calls = recorder.calls()
    recorder.end_step()
    np.copyto(x, then)
    for block in recorder._free:
        block.memory[:] = 0x7F
    result.fill(np.nan)
    with np.errstate(all="ignore"):
        for call, args in calls:
            call(*args)
    return result


@batched
@pytest.mark.parametrize(("shape", "weights", "attributes"), [c for c in CONVOLUTIONS if all(c[0])])
@pytest.mark.parametrize("is_last", [False, True])
def test_convolutions(shape, weights, attributes, is_last):
    geometry = dict(attributes)
    function = conv.convolution(f32(*weights), geometry.pop("group", 1), geometry)
    first, then = f32(*shape), f32(*shape)
    if is_last:
        first, then = (sliding_window.channels_first(sliding_window.channels_last(x)) for x in (first, then))
    np.testing.assert_array_equal(replayed(function, first, then), function(then))


def test_convolution_of_what_is_not_finite():
    function = conv.convolution(f32(64, 64, 3, 3), 1, {"pads": (1, 1, 1, 1)})
    x = f32(1, 64, 14, 14)
    hot = x.copy()
    hot[0, 3, 5, 6] = np.inf
    got = replayed(function, x, hot)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(function(hot)))
    assert np.isfinite(got).any()
    np.testing.assert_array_equal(replayed(function, hot, x), function(x))


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("columns", [5, 64, 300])
def test_products(rows, columns):
    multiply = recordable(gemm.matrix(f32(70, columns)).multiply)
    got = replayed(multiply, f32(2, rows, 70), x := f32(2, rows, 70))
    np.testing.assert_allclose(got, multiply(x), 0, 0)


def test_scratch_memory_serves_again():
    sizes = []

    @recordable
    def function(work, x):
        for _ in range(5):
            with work.scratch():
                sizes.append(work.empty((1000,)).ctypes.data)
        return work.contiguous(x)

    function.record(Recorder(), f32(3, 4))
    assert len(set(sizes)) == 1


def test_the_smallest_free_memory_that_fits_serves_again():
    recorder = Recorder()
    first = {n: recorder.empty((n,)).ctypes.data for n in (96, 16, 48)}
    recorder.end_step()
    again = {n: recorder.empty((n,)).ctypes.data for n in (40, 16, 32)}
    assert again == {40: first[48], 16: first[16], 32: first[96]}


NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 8, n, 12] x) => (float[1, 8, m, 12] y, float[1, 8, m, 12] z)
 {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv<group = 8, pads = [1, 1, 1, 1]>(b, d)
    s = Sigmoid(c)
    t = Mul(c, s)
    u = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(t)
    v = Concat<axis = 1>(u, b)
    f, g = Split<axis = 1>(v)
    y = Add(f, g)
    z = Identity(g)
}"""


@pytest.fixture
def net(tmp_path):
    model = parse_model(NET)
    weights = {"w": f32(8, 8, 1, 1), "d": f32(8, 1, 3, 3)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def _runs(path, inputs):
    """What sessions that have never run make of each input."""
    return [Session(path).run(None, {"x": x}) for x in inputs]


def _plan(session):
    return session._main.programs[0][0]


def test_runs_do_not_touch_each_other(net):
    inputs = [f32(1, 8, 10, 12) for _ in range(4)]
    want, given = _runs(net, inputs), [x.copy() for x in inputs]
    session = Session(net)
    got = [session.run(None, {"x": x}) for x in inputs]
    for results, expected in zip(got, want, strict=True):
        for a, b in zip(results, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(inputs, given, strict=True):
        np.testing.assert_array_equal(a, b)
    (recording,) = _plan(session)._recordings.values()
    # Split and Identity only tell where their results lie.
    assert len(recording.steps) == 5
    assert not [step.node.op for step in recording.steps if step.operands(range(99))]


def test_shapes_have_their_own_recordings_until_there_are_many(net):
    session = Session(net)
    for n in (6, 8, 10, 6, 8, 10, 6, 8, 10):
        x = f32(1, 8, n, 12)
        for a, b in zip(session.run(None, {"x": x}), *_runs(net, [x]), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(_plan(session)._recordings) == 2


def test_one_run_in_a_recording_at_a_time(net):
    inputs = [f32(1, 8, 10, 12) for _ in range(8)]
    want, session = _runs(net, inputs), Session(net)
    for _ in range(2):
        session.run(None, {"x": inputs[0]})
    wrong = []

    def work(i):
        for _ in range(30):
            got = session.run(None, {"x": inputs[i]})
            wrong.extend(i for a, b in zip(got, want[i], strict=True) if not np.array_equal(a, b))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_threads_share_recorded_steps(net):
    x = f32(1, 8, 10, 12)
    (want,) = _runs(net, [x])
    session = Session(net, threads=2)
    for _ in range(4):
        for a, b in zip(session.run(None, {"x": x}), want, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    session.close()


DEPENDS_ON_DATA = """<ir_version: 8, opset_import: ["" : 17]> g (float[20] x) => (float[k, 3] y)
    <float[1, 3] w = {1, 2, 3}, float[3, 3] e = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
    at = NonZero(x)
    zero = Constant<value_ints = [0]>()
    places = Squeeze(at, zero)
    found = Gather(x, places)
    one = Constant<value_ints = [-1, 1]>()
    rows = Reshape(found, one)
    p = MatMul(rows, w)
    q = Relu(p)
    y = MatMul(q, e)
}"""


def test_shapes_that_depend_on_data(tmp_path):
    onnx.save(parse_model(DEPENDS_ON_DATA), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for count in (5, 5, 5, 7, 5, 0, 20):
        x = np.where(np.arange(20) < count, f32(20), 0).astype(np.float32)
        want = np.maximum(x[x != 0][:, None] * np.array([[1, 2, 3]], np.float32), 0)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    assert list(_plan(session)._recordings.values()) == [None]


CHOOSES = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64[2] i) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
    a = Gather(x, i)
    one = Constant<value_ints = [1, -1]>()
    b = Reshape(a, one)
    y = MatMul(b, w)
}"""


def test_wrong_data_is_told_as_ever(tmp_path):
    text = CHOOSES.replace("float[2, 2] y", "float[1, 2] y")
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx"), f32(4)
    for last in (1, 2, 3):
        session.run(None, {"x": x, "i": np.array([0, last])})
    with pytest.raises(BackendError, match=r"Gather 'a' failed on input shapes \[\(4,\), \(2,\)\]"):
        session.run(None, {"x": x, "i": np.array([0, 9])})
    want = x[[0, 3]][None] @ np.array([[1, 2], [3, 4]], np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x, "i": np.array([0, 3])})[0], want, 1e-6)


MOVES = """<ir_version: 8, opset_import: ["" : 17]> g (float[4, 6] x, int64[1] start) => (float[4, 3] y)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
    two = Constant<value_ints = [2]>()
    end = Add(start, two)
    axis = Constant<value_ints = [1]>()
    part = Slice(x, start, end, axis)
    y = MatMul(part, w)
}"""


def test_views_that_depend_on_data(tmp_path):
    onnx.save(parse_model(MOVES), tmp_path / "m.onnx")
    session, x, w = Session(tmp_path / "m.onnx"), f32(4, 6), np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for start in (0, 1, 3, 4, 2):
        got = session.run(None, {"x": x, "start": np.array([start])})[0]
        np.testing.assert_allclose(got, x[:, start : start + 2] @ w, 1e-5, 1e-6)


CONSTANTS = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2, 2] x) => (float[2, 2] y)
    <float[2, 2] p = {1, 2, 3, 4}, float[2, 2] q = {5, 6, 7, 8}, float[2, 2] w = {1, 0, 0, 1}> {
    a = If(c) <then_branch = t () => (float[2, 2] u) { u = Identity(p) }, else_branch = e () => (float[2, 2] v) { v = Identity(q) }>
    b = Add(a, x)
    d = MatMul(a, w)
    y = Add(b, d)
}"""

OPERANDS = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2, 2] x) => (float[2, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}> {
    p = MatMul(x, w)
    q = Add(p, p)
    a = If(c) <then_branch = t () => (float[2, 2] u) { u = Identity(p) }, else_branch = e () => (float[2, 2] v) { v = Identity(q) }>
    r = Mul(q, q)
    s = MatMul(r, w)
    b = MatMul(s, w)
    k = Cast<to = 11>(a)
    l = Cast<to = 1>(k)
    y = Add(b, l)
}"""


@pytest.mark.parametrize("text", [CONSTANTS, OPERANDS])
def test_branches_that_hand_on_what_they_get(text, tmp_path):
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for i, c in enumerate([True, True, False, True, False, False]):
        feeds = {"c": np.array(c), "x": f32(2, 2) + i}
        want = Session(tmp_path / "m.onnx").run(None, feeds)[0]
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)


STRINGS = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g (string[2] x, float[2] z) => (float[2] y) {
    a = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_floats = [1.0, 2.0]>(x)
    b = Add(a, z)
    y = Neg(b)
}"""


def test_strings_come_in(tmp_path):
    onnx.save(parse_model(STRINGS), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for i, word in enumerate(["a", "b", "a", "b"]):
        x, z = np.array([word, "b"], object), np.float32([i, 1])
        np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], -np.float32([1 + (word == "b"), 2]) - z)
    assert all(_plan(session)._recordings.values())


def test_maxima_with_indices(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 6, 6] x) => (float[1, 2, 3, 3] y, int64[1, 2, 3, 3] i) {
        a, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        y = Neg(a)
    }"""
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for _ in range(4):
        x = f32(1, 2, 6, 6)
        for got, want in zip(
            session.run(None, {"x": x}), Session(tmp_path / "m.onnx").run(None, {"x": x}), strict=True
        ):
            np.testing.assert_array_equal(got, want)


RESIZES = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x, int64[4] sizes) => (float[1, 2, A, B] z) {
    y = Resize<mode = "linear">(x, , , sizes)
    z = Relu(y)
}"""


def test_sizes_that_are_inputs(tmp_path):
    onnx.save(parse_model(RESIZES), tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx"), f32(1, 2, 4, 4)
    for size in (8, 8, 8, 12, 5, 8):
        want = Session(tmp_path / "m.onnx").run(None, {"x": x, "sizes": np.array([1, 2, size, 4])})[0]
        assert want.shape == (1, 2, size, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x, "sizes": np.array([1, 2, size, 4])})[0], want)


SCALES = """<ir_version: 8, opset_import: ["" : 17]> g (uint8[5] x, float s, uint8 o, int64[2] i, bool[2] c) => (float[2] z)
    <float[2] t = {7, 8}> { u = DequantizeLinear(x, s, o) v = Neg(u) w = Gather(v, i) y = Where(c, w, t) z = Neg(y) }"""


def test_scales_indices_and_conditions_that_are_inputs(tmp_path):
    onnx.save(parse_model(SCALES), tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx"), np.arange(5, dtype=np.uint8)
    runs = (1, 0, [1, 2], [1, 1]), (2, 3, [-1, 0], [1, 0]), (4, 1, [4, 3], [0, 1]), (8, 2, [0, 0], [1, 1])
    for scale, zero, indices, chosen in runs:
        feeds = {
            "x": x,
            "s": np.float32(scale),
            "o": np.uint8(zero),
            "i": np.array(indices),
            "c": np.array(chosen, bool),
        }
        want = np.where(feeds["c"], ((x.astype(np.float32) - zero) * scale)[indices], [-7, -8])
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)
