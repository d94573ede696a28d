"""A run in several threads must compute what a run in one computes."""

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

from ortconv import process
from ortconv.backends.numpy_cpu import Numpy
from ortconv.errors import BackendError, UsageError
from ortconv.runtime.session import Session

RNG = np.random.default_rng(3)

SHAPES = {
    "a": (8, 3, 3, 3), "b": (64, 8, 3, 3), "c": (64, 64, 3, 3), "d": (64, 1, 5, 5), "e": (16, 64, 1, 1), "f": (16, 64, 2, 3),
    "up": (64, 16, 2, 2), "wide": (64, 16, 1, 1),
    "out": (16, 6, 3, 3), "k": (1, 64, 1, 1), "p": (64, 192), "q": (192,), "r": (3, 8, 5),
}  # fmt: skip

RECURRENT = {"lw": (2, 32, 64), "lr": (2, 32, 8), "lb": (2, 64)}

GRAPHS = {
    "convolutions": """x: float[2, 3, 45, 40] -> u = Conv<strides = [2,2], pads = [1,1,1,1]>(x, a) v = Conv<pads = [2,1,0,1]>(u, b)
        w = Conv<pads = [1,1,1,1]>(v, c) s = Relu(w) t = Conv<group = 64, pads = [2,2,2,2]>(s, d)
        m = Mul(t, k) n = HardSwish(m) o = Conv(n, e) z = Add(o, o)""",
    "codes": """x: float[1, 3, 45, 40] -> h = QuantizeLinear(x, scale, zero) u = DequantizeLinear(h, scale, zero)
        k1 = DequantizeLinear(i, scale) v = Conv<pads = [1,1,1,1]>(u, k1) s = QuantizeLinear(v, scale, zero)
        t = DequantizeLinear(s, scale, zero) k2 = DequantizeLinear(j, scale) w = Conv<pads = [1,1,1,1]>(t, k2)
        y = QuantizeLinear(w, scale, zero) z = DequantizeLinear(y, scale, zero)""",
    "expanded": """x: float[1, 16, 60, 60] -> u = Conv(x, wide) v = Relu(u)
        w = Conv<group = 64, pads = [2,2,2,2], strides = [2,2]>(v, d) z = HardSwish(w)""",
    "dilated": "x: float[1, 64, 37, 40] -> z = Conv<dilations = [3, 2], auto_pad = \"SAME_LOWER\", strides = [1,2]>(x, f)",
    "one axis": "x: float[2, 8, 6000] -> z = Conv<pads = [4, 0]>(x, r1)",
    "elementwise": "x: float[3, 64, 45, 40] -> m = Mul(x, k) n = Add(m, k) s = Sigmoid(n) z = Mul(n, s)",
    "rows": "x: float[2000, 192] -> y = Add(x, q) z = Softmax<axis = -1>(y)",
    "product": "x: float[300, 64] -> y = MatMul(x, p) z = Add(y, q)",
    "attention": """x: float[1, 4, 300, 64] -> t = Transpose<perm = [0,1,3,2]>(x) s = MatMul(x, t) w = Softmax<axis = -1>(s)
        z = MatMul(w, x)""",
    "packed attention": """x: float[2, 40, 64] -> total = ReduceSum<keepdims = 0>(x, axis) seen = Greater(total, nought)
        mask = Cast<to = 6>(seen) z = com.microsoft.Attention<num_heads = 4>(x, p, q, mask)""",
    "causal attention": "x: float[2, 40, 64] -> z = com.microsoft.Attention<num_heads = 4, unidirectional = 1>(x, p)",
    "given heads": """x: float[2, 40, 64] -> y = MatMul(x, p) u, v, w = Split<axis = 2>(y) t = Transpose<perm = [1,0,2]>(u)
        s = Transpose<perm = [1,0,2]>(t) z = com.microsoft.MultiHeadAttention<num_heads = 8>(s, v, w)""",
    "dynamic codes": """x: float[40, 64] -> y = com.microsoft.DynamicQuantizeMatMul(x, iw, iscale, izero, q)
        z = com.microsoft.Gelu(y)""",
    "integer to float": """x: float[40, 64] -> codes, step, origin = DynamicQuantizeLinear(x)
        y = com.microsoft.MatMulIntegerToFloat(codes, iw, step, scale, origin, izero) z = Identity(y)""",
    "transposed": """x: float[1, 64, 20, 30] -> u = ConvTranspose<strides = [2, 2]>(x, up) v = Relu(u)
        z = ConvTranspose<strides = [2, 2], pads = [1, 0, 1, 1]>(v, out)""",
    "recurrent": """x: float[9, 3, 64] -> y, last, cell = LSTM<hidden_size = 8, direction = "bidirectional">(x, lw, lr, lb)
        z = Sum(y, last, cell)""",
    "pools": "x: float[1, 8, 45, 40] -> u = MaxPool<kernel_shape = [3, 3]>(x) z = AveragePool<kernel_shape = [3, 3]>(u)",
}  # fmt: skip


def _model(text):
    given, nodes = text.split(" -> ")
    name, type = given.split(": ")
    graph = parse_graph(f"g ({type} {name}) => (float z) {{ {nodes} }}")
    graph.output[0].type.tensor_type.ClearField("shape")
    weights = {n: RNG.uniform(-1, 1, s).astype(np.float32) for n, s in SHAPES.items()}
    weights |= {n: RNG.uniform(-1, 1, s).astype(np.float32) for n, s in RECURRENT.items()}
    weights["r1"] = RNG.uniform(-1, 1, (48, 8, 5)).astype(np.float32)
    weights["p"] /= 8  # BLAS rounds otherwise in several threads, and a softmax of large scores would show that
    weights |= {"scale": np.float32(0.03), "zero": np.uint8(120)}
    weights |= {"axis": np.array([-1]), "nought": np.float32(0), "izero": np.uint8(120)}
    weights |= {
        "iw": RNG.integers(0, 255, (64, 192), np.uint8),
        "iscale": RNG.uniform(0.01, 0.02, 192).astype(np.float32),
    }
    weights |= {n: RNG.integers(-40, 40, s, np.int8) for n, s in (("i", (64, 3, 3, 3)), ("j", (64, 64, 3, 3)))}
    read = {v for n in graph.node for v in n.input}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items() if n in read)
    return onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("count", [1, 3])
def test_recorded_runs_give_what_a_first_run_gives(text, count, tmp_path):
    onnx.save(_model(text), tmp_path / "m.onnx")
    several = Session(tmp_path / "m.onnx", threads=count)
    (given,) = several.get_inputs()
    for size in (1, 1, 3, 0.1):
        x = RNG.uniform(-size, size, given.shape).astype(np.float32)
        (expected,), (result,) = (s.run(None, {given.name: x}) for s in (Session(tmp_path / "m.onnx"), several))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max() + 1e-5)
    several.close()


def _blas_threads():
    return [ask() for _, ask in process.openblas()]


def test_blas_has_so_many_threads_and_then_its_own():
    before = _blas_threads()
    assert "openblas" not in str(np.show_config(mode="dicts")) or before
    with process.products_in(3):
        assert _blas_threads() == [3 for _ in before]
        with process.products_in(1):
            assert _blas_threads() == [1 for _ in before]
        assert _blas_threads() == [3 for _ in before]
    with pytest.raises(ZeroDivisionError), process.products_in(2):
        1 / 0  # noqa: B018
    assert _blas_threads() == before


def test_products_of_a_run_use_its_threads(tmp_path):
    onnx.save(_model(GRAPHS["product"]), tmp_path / "m.onnx")
    found = []
    watch = Numpy(reference=True, watch=lambda _, kernel: lambda *x: found.append(_blas_threads()) or kernel(*x))
    for threads in (3, 1):
        Session(tmp_path / "m.onnx", [watch], threads=threads).run(None, {"x": np.zeros((300, 64), np.float32)})
    before = _blas_threads()
    assert found == [[3 for _ in before]] * 2 + [before] * 2


def test_onnxruntime_gets_its_threads(tmp_path):
    onnx.save(_model(GRAPHS["product"]), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", ["onnxruntime"], threads=2)
    assert session._main.programs[0][0]._session.get_session_options().intra_op_num_threads == 2


def test_at_least_one_thread(tmp_path):
    onnx.save(_model(GRAPHS["product"]), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="at least one thread and at most 1024, not 0"):
        Session(tmp_path / "m.onnx", threads=0)


def test_a_failing_kernel_names_its_node_in_threads_too(tmp_path):
    onnx.save(_model("x: float[n, 64] -> z = MatMul(x, p)"), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", threads=2)
    session.model.graph.inputs[0].type = None
    with pytest.raises(BackendError, match="MatMul"):
        session.run(None, {"x": np.zeros((2, 63), np.float32)})
