"""A run in several threads must compute what a run in one computes."""

import threading

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

from ortconv.errors import BackendError, UsageError
from ortconv.executor import threads
from ortconv.executor.kernels import bands
from ortconv.executor.kernels.bands import band
from ortconv.executor.kernels.windows import window
from ortconv.executor.numerics import kernel_settings
from ortconv.executor.threads import Threads, each, shares
from ortconv.session import Session

RNG = np.random.default_rng(3)

SHAPES = {
    "a": (8, 3, 3, 3), "b": (64, 8, 3, 3), "c": (64, 64, 3, 3), "d": (64, 1, 5, 5), "e": (16, 64, 1, 1), "f": (16, 64, 2, 3),
    "k": (1, 64, 1, 1), "p": (64, 192), "q": (192,), "r": (3, 8, 5),
}  # fmt: skip

GRAPHS = {
    "convolutions": (
        """x: float[2, 3, 45, 40] -> u = Conv<strides = [2,2], pads = [1,1,1,1]>(x, a) v = Conv<pads = [2,1,0,1]>(u, b)
        w = Conv<pads = [1,1,1,1]>(v, c) s = Relu(w) t = Conv<group = 64, pads = [2,2,2,2]>(s, d)
        m = Mul(t, k) n = HardSwish(m) o = Conv(n, e) z = Add(o, o)""", 5),
    "codes": (
        """x: float[1, 3, 45, 40] -> h = QuantizeLinear(x, scale, zero) u = DequantizeLinear(h, scale, zero)
        k1 = DequantizeLinear(i, scale) v = Conv<pads = [1,1,1,1]>(u, k1) s = QuantizeLinear(v, scale, zero)
        t = DequantizeLinear(s, scale, zero) k2 = DequantizeLinear(j, scale) w = Conv<pads = [1,1,1,1]>(t, k2)
        y = QuantizeLinear(w, scale, zero) z = DequantizeLinear(y, scale, zero)""", 2),
    "dilated": ("x: float[1, 64, 37, 40] -> z = Conv<dilations = [3, 2], auto_pad = \"SAME_LOWER\", strides = [1,2]>(x, f)", 1),
    "one axis": ("x: float[2, 8, 6000] -> z = Conv<pads = [4, 0]>(x, r1)", 1),
    "elementwise": ("x: float[3, 64, 45, 40] -> m = Mul(x, k) n = Add(m, k) s = Sigmoid(n) z = Mul(n, s)", 1),
    "rows": ("x: float[2000, 192] -> y = Add(x, q) z = Softmax<axis = -1>(y)", 1),
    "product": ("x: float[300, 64] -> y = MatMul(x, p) z = Add(y, q)", 1),
    "attention": (
        """x: float[1, 4, 300, 64] -> t = Transpose<perm = [0,1,3,2]>(x) s = MatMul(x, t) w = Softmax<axis = -1>(s)
        z = MatMul(w, x)""", 1),
}  # fmt: skip


def _model(text):
    given, nodes = text.split(" -> ")
    name, type = given.split(": ")
    graph = parse_graph(f"g ({type} {name}) => (float z) {{ {nodes} }}")
    graph.output[0].type.tensor_type.ClearField("shape")
    weights = {n: RNG.uniform(-1, 1, s).astype(np.float32) for n, s in SHAPES.items()}
    weights["r1"] = RNG.uniform(-1, 1, (48, 8, 5)).astype(np.float32)
    weights |= {"scale": np.float32(0.03), "zero": np.uint8(120)}
    weights |= {n: RNG.integers(-40, 40, s, np.int8) for n, s in (("i", (64, 3, 3, 3)), ("j", (64, 64, 3, 3)))}
    read = {v for n in graph.node for v in n.input}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items() if n in read)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("text", "splits"), GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("count", [2, 3])
def test_threads_change_no_result(text, splits, count, tmp_path, monkeypatch):
    onnx.save(_model(text), tmp_path / "m.onnx")
    monkeypatch.setattr(threads, "_LEAST_WORK", 1 << 12)
    monkeypatch.setattr(bands, "_FEWEST_PIXELS", 1)
    one, several = Session(tmp_path / "m.onnx"), Session(tmp_path / "m.onnx", threads=count)
    shared = []
    monkeypatch.setattr(
        Threads, "each", lambda self, f, parts, old=Threads.each: shared.append(len(parts)) or old(self, f, parts)
    )
    (name,) = (a.name for a in one.get_inputs())
    x = RNG.uniform(-1, 1, one.get_inputs()[0].shape).astype(np.float32)
    (expected,) = one.run(None, {name: x})
    assert not shared
    (result,) = several.run(None, {name: x})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert len(shared) >= splits
    several.close()


@pytest.mark.parametrize("rows", [slice(0, 4), slice(4, 10), slice(9, 10), slice(0, 10)])
@pytest.mark.parametrize("pads", [(0, 0), (2, 1), (-1, -2), (7, 0)])
@pytest.mark.parametrize("stride", [1, 2])
def test_bands_read_what_their_rows_need(rows, pads, stride):
    w = window((25,), (3,), strides=(stride,), dilations=(2,), pads=pads)
    rows = slice(rows.start, min(rows.stop, w.output[0]))
    inputs, own = band(w, rows)
    reached = [
        [i for t in range(3) if 0 <= (i := o * stride - pads[0] + 2 * t) < 25] for o in range(rows.start, rows.stop)
    ]
    again = [
        [inputs.start + i for t in range(3) if 0 <= (i := o * stride - own.begin[0] + 2 * t) < own.size[0]]
        for o in range(own.output[0])
    ]
    assert again == reached
    assert own.output[0] == rows.stop - rows.start
    assert window(own.size, (3,), strides=(stride,), dilations=(2,), pads=(*own.begin, *own.end)).output == own.output


def test_parts_run_in_several_threads_and_keep_their_order():
    barrier, error = threading.Barrier(3, timeout=10), []

    def part(i):
        if i < 3:
            barrier.wait()
        error.append((np.geterr()["over"], np.getbufsize()))
        return i, threading.get_ident(), each(lambda j: threading.get_ident(), range(4))

    before = np.geterr(), np.getbufsize()
    with kernel_settings():
        results = Threads(3).run(each, part, range(8))
    assert (np.geterr(), np.getbufsize()) == before
    assert [i for i, *_ in results] == list(range(8))
    assert len({who for _, who, _ in results}) == 3
    assert set(error) == {("ignore", 1024)}
    assert all(set(inner) == {who} for _, who, inner in results)


def test_an_error_in_any_thread_is_raised():
    def part(i):
        barrier.wait()
        raise ArithmeticError(str(i))

    barrier = threading.Barrier(2, timeout=10)
    with pytest.raises(ArithmeticError):
        Threads(2).run(each, part, range(2))


def test_shares_are_multiples_of_the_step():
    assert shares(100, 1 << 40) == [slice(0, 100)]
    many = Threads(3)
    assert many.run(shares, 100, 1 << 40, 8) == [slice(0, 40), slice(40, 80), slice(80, 100)]
    assert many.run(shares, 100, 1, 8) == [slice(0, 100)]
    assert many.run(shares, 7, 1 << 40, 8) == [slice(0, 7)]
    assert many.run(shares, 0, 0) == [slice(0, 0)]


def test_onnxruntime_gets_its_threads(tmp_path):
    onnx.save(_model(GRAPHS["product"][0]), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", ["onnxruntime"], threads=2)
    assert session._programs[0][0]._session.get_session_options().intra_op_num_threads == 2


def test_at_least_one_thread(tmp_path):
    onnx.save(_model(GRAPHS["product"][0]), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="at least one thread, not 0"):
        Session(tmp_path / "m.onnx", threads=0)


def test_a_failing_kernel_names_its_node_in_threads_too(tmp_path):
    onnx.save(_model("x: float[n, 64] -> z = MatMul(x, p)"), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", threads=2)
    session.model.graph.inputs[0].type = None
    with pytest.raises(BackendError, match="MatMul"):
        session.run(None, {"x": np.zeros((2, 63), np.float32)})
