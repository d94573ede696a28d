"""Attention block by block, and attention that consists of operators."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_graph

from ortconv.executor.algorithms import attention as module
from ortconv.executor.algorithms.attention import attended
from ortconv.executor.replay.recorder import Recorder
from ortconv.executor.replay.work import AT_ONCE
from ortconv.runtime.session import Session
from tests.batches import batched

RNG = np.random.default_rng(5)


def attend(*operands):
    return attended(AT_ONCE, *operands)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def reference(q, k, v, factor, summands):
    scores = np.matmul(q.astype(np.float64), k.swapaxes(-1, -2)) * factor
    for x in summands:
        scores = scores + x
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.matmul(e / e.sum(axis=-1, keepdims=True), v)


MASKS = {"none": [], "keys": [(1, 1, 1, 21)], "all": [(2, 3, 17, 21)], "both": [(17, 21), (2, 1, 1, 1)]}


@batched
@pytest.mark.parametrize("exponential", [(np.exp, 1.0), (np.exp2, np.log2(np.e))])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", [1, 100, 400, 1000, 1 << 18])
def test_attend(monkeypatch, mask, block, exponential):
    monkeypatch.setattr(module, "fast_exponential", lambda: exponential)
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_FEWEST_ROWS", 4)
    q, k, v = f32(2, 17, 3, 8).swapaxes(1, 2), f32(2, 3, 21, 8), f32(2, 3, 21, 5)
    summands = [f32(*shape) for shape in MASKS[mask]]
    got = attend(q, k.swapaxes(-1, -2), v, 0.3, summands)
    np.testing.assert_allclose(got, reference(q, k, v, 0.3, summands), rtol=1e-4, atol=1e-6)
    assert got.swapaxes(1, 2).flags.c_contiguous


def test_rows_far_below_others_are_exact():
    q, k, v = f32(1, 1, 6, 4), f32(1, 1, 9, 4), f32(1, 1, 9, 3)
    shift = np.array([0, -1e4, 50, -200, 3, 0], np.float32).reshape(1, 1, 6, 1)
    with np.errstate(divide="ignore", over="ignore"):
        got = attend(q, k.swapaxes(-1, -2), v, 1.0, [shift])
    np.testing.assert_allclose(got, reference(q, k, v, 1.0, []), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("block", [1, 1 << 18])
@pytest.mark.parametrize("factor", [1e-3, 30, -200])
def test_scores_of_any_size(monkeypatch, factor, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    q, k, v = f32(1, 2, 9, 8), f32(1, 2, 70, 8), f32(1, 2, 70, 8)
    with np.errstate(over="ignore", divide="ignore"):
        got = attend(q, k.swapaxes(-1, -2), v, factor, [])
    np.testing.assert_allclose(got, reference(q, k, v, factor, []), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", range(3))
def test_numbers_that_are_not_finite(value, where):
    q, k, v = operands = [f32(1, 2, 5, 4), f32(1, 2, 6, 4), f32(1, 2, 6, 4)]
    q[0, 1, :2, 2] = 1, -1  # either makes a score of infinity
    operands[where][0, 1, 2, 3] = value
    with np.errstate(all="ignore"):
        got, want = attend(q, k.swapaxes(-1, -2), v, 1.0, []), reference(q, k, v, 1.0, [])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [1, 1 << 18])
@pytest.mark.parametrize("masks", [0, 1])
def test_recorded_for_other_numbers(monkeypatch, masks, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    recorder = Recorder()
    operands = [recorder.copy(f32(1, 2, 70, 4)), recorder.copy(f32(1, 2, 4, 9)), recorder.copy(f32(1, 2, 9, 5))]
    summands = [recorder.copy(f32(1, 1, 70, 9))] * masks
    out = attended(recorder, *operands, 0.5, summands)
    calls = recorder.calls()
    with np.errstate(all="ignore"):
        for size in (1, 3, 1e3, np.inf, 1):
            for x in (*operands, *summands):
                np.copyto(x, f32(*x.shape))
            operands[0][0, 1, 3] *= size
            for call, args in calls:
                call(*args)
            np.testing.assert_array_equal(out, attend(*operands, 0.5, summands))


def test_shapes_that_do_not_fit_are_left_to_the_operators():
    q, kt, v = f32(2, 4, 5, 4), f32(2, 4, 4, 6), f32(2, 4, 6, 4)
    assert attend(q, kt[:1], v, 1.0, []) is None
    assert attend(q, kt[:, :2], v[:, :2], 1.0, []) is None
    assert attend(q, kt, v, 1.0, [f32(2, 1, 4, 5, 6)]) is None
    assert attend(q, kt, v, 1.0, [f32(7)]) is None
    assert attend(q, kt[..., :0], v[:, :, :0], 1.0, []) is None
    assert attend(q.astype(np.float64), kt, v, 1.0, []) is None


HEADS = """
    a = Reshape(q, s) qh = Transpose<perm = [0,2,1,3]>(a)
    b = Reshape(k, s) kh = Transpose<perm = [0,2,3,1]>(b)
    c = Reshape(v, s) vh = Transpose<perm = [0,2,1,3]>(c)
"""
PROJECTED = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
BIASED = """
    p = MatMul(x, wq) pb = Add(p, bq) q = Mul(pb, half)
    k = MatMul(x, wk) w = MatMul(x, wv) v = Add(bv, w)
"""
MODELS = {
    "plain": PROJECTED + HEADS + "t = MatMul(qh, kh) u = Softmax(t) z = MatMul(u, vh)",
    "scaled": BIASED + HEADS + "t = MatMul(qh, kh) m = Mul(half, t) n = Div(m, two) u = Softmax(n) z = MatMul(u, vh)",
    "scaled before": PROJECTED + HEADS + """e = Mul(half, qh) f = Div(kh, two) t = MatMul(e, f) m = Add(mask, t)
        u = Softmax(m) z = MatMul(u, vh)""",
    "divided before": PROJECTED + HEADS + "e = Div(half, qh) t = MatMul(e, kh) u = Softmax(t) z = MatMul(u, vh)",
    "masked": PROJECTED + HEADS + "t = MatMul(qh, kh) m = Add(mask, t) u = Softmax(m) z = MatMul(u, vh)",
    "scaled after the mask":
        PROJECTED + HEADS + "t = MatMul(qh, kh) m = Add(t, mask) n = Mul(m, half) u = Softmax(n) z = MatMul(u, vh)",
    "guarded":
        PROJECTED + HEADS + """t = MatMul(qh, kh) m = Add(t, mask) u = Softmax(m)
        i = IsNaN(u) g = Where(i, none, u) z = MatMul(g, vh)""",
    "over queries": PROJECTED + HEADS + "t = MatMul(qh, kh) u = Softmax<axis = 2>(t) z = MatMul(u, vh)",
}  # fmt: skip


@batched
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_attention_in_operators(name, unseen, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    constants = {n: f32(24, 24) * np.float32(0.2) for n in ("wq", "wk", "wv")} | {n: f32(24) for n in ("bq", "bv")}
    constants |= {"half": np.float32(0.5), "two": np.full(1, 2, np.float32), "none": np.float32(0)}
    constants["s"] = np.array([0, 0, 3, 8])
    graph = parse_graph(f"g (float[2,l,24] x, float[1,1,l,l] mask) => (float[2,3,l,8] z) {{ {MODELS[name]} }}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    feeds = {"x": f32(2, 30, 24), "mask": np.where(RNG.random((1, 1, 30, 30)) < 0.3, -np.inf, 0).astype(np.float32)}
    feeds["mask"][..., 0] = 0
    if unseen:
        feeds["mask"][0, 0, 4] = -np.inf
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    (got,) = Session(path).run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
