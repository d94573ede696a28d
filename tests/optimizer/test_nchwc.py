"""Channels in blocks: what is made runs in onnxruntime and on our own kernels as the source does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from rewriting import ops, parse, random_feeds, run

import ortconv
from ortconv.ir import nchwc
from ortconv.ir.graph import Graph
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.layout.nchwc import block_channels
from ortconv.optimizer.levels import passes_of, run_passes
from ortconv.ortformat.writer import write
from ortconv.pipeline import optimize
from tests.batches import sampled

B = nchwc.block_length()
DOMAIN = nchwc.DOMAIN + "."


def weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let every input but x, z and p be a constant of random numbers."""
    graph = proto.graph
    for name, array in random_feeds(proto, 7).items():
        if name not in ("x", "z", "p"):
            positive = np.abs(array) + np.float32(0.5) if name.startswith("var") else array
            graph.initializer.append(onnx.numpy_helper.from_array(positive, name))
    kept = [i for i in graph.input if i.name in ("x", "z", "p")]
    del graph.input[:]
    graph.input.extend(kept)
    return proto


def blocked(text: str, tmp_path: Path, *, opset: int = 13) -> Graph:
    """The graph in blocks, after its numbers have been held against the source's on both backends."""
    proto = weights(parse(text, opset))
    model = from_proto(weights(parse(text, opset)))
    context = Context(PassSettings(target_platform="amd64"))
    optimize(model, "all", context=context)
    verify(model.graph)
    feeds = random_feeds(proto, 3)
    want = run(proto, feeds)
    write(model, tmp_path / "m.ort")
    ours = ortconv.Session(str(tmp_path / "m.ort"), backends=["numpy"]).run(None, feeds)
    for a, b, c in zip(want, run(model_proto(model), feeds), ours, strict=True):
        assert a.shape == b.shape == c.shape
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(c, a, rtol=1e-4, atol=1e-4)
    return model.graph


@sampled(4)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("given", "out", "group", "taken"),
    [
        (1, 5, 1, True), (3, B, 1, True), (B - 1, 3, 1, True), (B, 2 * B, 1, True), (B + 4, 7, 1, True),
        (B + 2, 8, 1, False), (B, B, B, True), (B + 4, B + 4, B + 4, True), (6, 6, 6, False), (2 * B, 2 * B, 2, True),
        (B, B, 2, False), (8, 16, 8, False),
    ],
)  # fmt: skip
def test_convolution(given: int, out: int, group: int, taken: bool, bias: bool, tmp_path: Path) -> None:
    more, b = (f", float[{out}] b", ", b") if bias else ("", "")
    y = f"Conv<group = {group}, pads = [1, 1, 1, 1]>(x, w{b})"
    text = f"g (float[2,{given},5,6] x, float[{out},{given // group},3,3] w{more}) => (float y) {{ y = {y} }}"
    graph = blocked(text, tmp_path)
    direct = group == 1 and given < B
    expected = {DOMAIN + "Conv": 1, DOMAIN + "ReorderOutput": 1} | ({} if direct else {DOMAIN + "ReorderInput": 1})
    assert ops(graph) == (expected if taken else {"Conv": 1})


HEAD = "c = Conv<pads = [1, 1, 1, 1]>(x, w)"
"""A convolution to 2 B channels, in blocks."""

BEHIND = {
    "Relu": ("y = Relu(c)", {}),
    "Elu": ("y = Elu(c)", {"Elu": 1}),
    "Softplus": ("y = Softplus(c)", {"Softplus": 1}),
    "Gelu": ("y = com.microsoft.Gelu(c)", {"com.microsoft.Gelu": 1}),
    "rounding": ("r = Floor(c) y = Sin(r)", {"Floor": 1, "Sin": 1}),
    "NaN where blocks are filled up": ("r = Relu(c) y = Sqrt(r)", {"Sqrt": 1}),
    "hard-swish": ("s = HardSigmoid<alpha = 0.16666667163372, beta = 0.5>(c) y = Mul(c, s)", {}),
    "SiLU": ("s = Sigmoid(c) y = Mul(c, s)", {"com.microsoft.QuickGelu": 1}),
    "MaxPool": ("y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)", {DOMAIN + "MaxPool": 1}),
    "AveragePool": ("y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c)", {DOMAIN + "AveragePool": 1}),
    "AveragePool beyond its padding": (
        "y = AveragePool<ceil_mode = 1, count_include_pad = 1, kernel_shape = [2, 2], strides = [2, 2]>(c)", {"AveragePool": 1},
    ),
    "AveragePool beyond the image": (
        "y = AveragePool<count_include_pad = 1, kernel_shape = [6, 2], strides = [2, 2]>(c)", {"AveragePool": 1},
    ),
    "pool without rows": ("y = MaxPool<kernel_shape = [7, 7], strides = [2, 2]>(c)", {"MaxPool": 1}),
    "GlobalAveragePool": ("y = GlobalAveragePool(c)", {DOMAIN + "GlobalAveragePool": 1}),
    "GlobalMaxPool": ("y = GlobalMaxPool(c)", {DOMAIN + "GlobalMaxPool": 1}),
    "sum": ("r = Relu(c) d = Tanh(c) y = Mul(r, d)", {"Relu": 1, "Tanh": 1, "Mul": 1}),
    "number": ("k = Constant<value_float = 2.5>() e = Elu(c) y = Mul(e, k)", {"Elu": 1, "Mul": 1}),
    "concat": ("d = Elu(c) y = Concat<axis = 1>(c, d)", {"Elu": 1, "Concat": 1}),
    "batch normalization": (
        "e = Elu(c) y = BatchNormalization(e, gamma, beta, mean, var)", {"Elu": 1, DOMAIN + "Conv": 2},
    ),
    "nearest": (
        'k = Constant<value_floats = [1.0, 1.0, 2.0, 3.0]>() y = Resize<mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric">(c, , k)', {DOMAIN + "Upsample": 1},
    ),
    "linear": (
        'k = Constant<value_ints = [1, 32, 10, 12]>() y = Resize<mode = "linear">(c, , , k)', {DOMAIN + "Upsample": 1},
    ),
    "channels last": ("y = Transpose<perm = [0, 2, 3, 1]>(c)", {}),
    "squeeze and excite": (
        "p = GlobalAveragePool(c) q = Conv(p, v) s = Sigmoid(q) e = Elu(c) y = Mul(e, s)",
        {DOMAIN + "GlobalAveragePool": 1, DOMAIN + "Conv": 3, "Elu": 1, "Reshape": 1},
    ),
}  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("case", BEHIND)
def test_behind_a_convolution(case: str, tmp_path: Path) -> None:
    tail, more = BEHIND[case]
    tail = tail.replace("32", str(2 * B))
    text = f"""g (float[1,3,5,6] x, float[{2 * B},3,3,3] w, float[{2 * B},{2 * B},1,1] v, float[{2 * B}] gamma,
        float[{2 * B}] beta, float[{2 * B}] mean, float[{2 * B}] var) => (float y) {{ {HEAD} {tail} }}"""
    assert ops(blocked(text, tmp_path, opset=19)) == {DOMAIN + "Conv": 1, DOMAIN + "ReorderOutput": 1} | more


def test_split_and_residual(tmp_path: Path) -> None:
    text = f"""g (float[N,3,H,W] x, float[{2 * B},3,3,3] w, float[{B},{B},3,3] v) => (float y) {{
        {HEAD} a, b = Split<axis = 1>(c) d = Conv<pads = [1, 1, 1, 1]>(a, v) s = Add(d, b) y = Relu(s)
    }}"""
    assert ops(blocked(text, tmp_path)) == {DOMAIN + "Conv": 2, "Split": 1, DOMAIN + "ReorderOutput": 1}


def test_channels_that_do_not_fill_blocks(tmp_path: Path) -> None:
    text = f"""g (float[2,3,5,6] x, float[{B + 3},3,3,3] w, float[5,{B + 3},3,3] v) => (float c, float y) {{
        {HEAD} r = Sigmoid(c) d = Conv(r, v) y = MaxPool<kernel_shape = [2, 2]>(d)
    }}"""
    found = ops(blocked(text, tmp_path))
    assert found[DOMAIN + "Conv"] == 2
    assert found[DOMAIN + "ReorderOutput"] == 2


REFUSED = {
    "weights that are fed": "g (float[1,3,5,6] x, float[8,3,3,3] p) => (float y) { y = Conv(x, p) }",
    "one spatial axis": "g (float[1,3,5] x, float[8,3,3] w) => (float y) { y = Conv(x, w) }",
    "double": "g (double[1,3,5,6] x, double[8,3,3,3] w) => (double y) { y = Conv(x, w) }",
    "nothing to gain": "g (float[1,32,5,6] x) => (float y) { r = Relu(x) y = GlobalMaxPool(r) }",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    model = from_proto(weights(parse(REFUSED[case])))
    context = Context(PassSettings(target_platform="amd64"))
    optimize(model, "all", context=context)
    assert "NchwcTransformer" not in context.counts()


def test_subgraphs_stay() -> None:
    text = """g (float[1,3,5,6] x, bool p, float[16,3,3,3] w) => (float y) {
        y = If (p) <then_branch = t () => (float a) { a = Conv(x, w) }, else_branch = e () => (float b) { b = Conv(x, w) }>
    }"""
    model = from_proto(weights(parse(text)))
    context = Context(PassSettings(target_platform="amd64"))
    optimize(model, "all", context=context)
    assert "NchwcTransformer" not in context.counts()


@pytest.mark.parametrize("platform", [None, "arm"])
def test_only_where_asked_for(platform: str | None) -> None:
    model = from_proto(weights(parse("g (float[1,3,5,6] x, float[16,3,3,3] w) => (float y) { y = Conv(x, w) }")))
    optimize(model, "all", context=Context(PassSettings(target_platform=platform)))
    assert ops(model.graph) == {"Conv": 1}


@pytest.mark.parametrize("limit", [0, 1])
def test_stops_when_told(limit: int) -> None:
    text = "g (float[1,3,5,6] x, float[16,3,3,3] w, float[3,16,3,3] v) => (float y) { c = Conv(x, w) y = Conv(c, v) }"
    model = from_proto(weights(parse(text)))
    for _ in run_passes(model.graph, passes_of("basic"), Context()):
        pass
    context = Context(PassSettings(target_platform="amd64", limit=limit))
    block_channels(model.graph, context)
    verify(model.graph)
    assert len(context.trace) == limit
    assert ops(model.graph).get("Conv", 0) == 2 - limit


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 16, 40])
@pytest.mark.parametrize("block", [8, 16])
def test_blocks_and_back(channels: int, block: int) -> None:
    x = np.random.default_rng(0).random((2, channels, 3, 4), np.float32)
    y = nchwc.from_blocks(nchwc.to_blocks(x, block), block)
    assert np.array_equal(y[:, :channels], x)
    assert not y[:, channels:].any()
    for inputs in (False, True):
        w = nchwc.filters_from_blocks(nchwc.filters_to_blocks(x, block, inputs=inputs), block, inputs=inputs)
        assert np.array_equal(w[:2, :channels], x)
        assert not w[2:].any()


def test_empty_images() -> None:
    x = np.zeros((0, 3, 4, 0), np.float32)
    assert nchwc.from_blocks(nchwc.to_blocks(x, 8), 8).shape == (0, 8, 4, 0)
