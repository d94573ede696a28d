"""Whole transformers as exporters write them: what becomes of them at level all, and that they still compute the same."""

from __future__ import annotations

from collections.abc import Callable

import exports
import numpy as np
import onnx
import pytest
from exports import Export
from rewriting import ops, parse, random_feeds, run

from ortconv import pipeline
from ortconv.ir.graph import Graph
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.runtime.session import Session
from tests.batches import slow_except

SYMBOLS = {"batch": 2, "rows": 5, "past": 3, "columns": 8}
DECODE = {"batch": 1, "rows": 1, "past": 4, "columns": 5}
ATTENTION, MULTI = "com.microsoft.Attention", "com.microsoft.MultiHeadAttention"


def optimized(proto: onnx.ModelProto, *sizes: dict[str, int], numpy: bool = True) -> Graph:
    """The graph at level all, whose numbers are checked with onnxruntime and our own executor for inputs of these sizes."""
    model = from_proto(proto)
    pipeline.optimize(model, "all", None)
    verify(model.graph)
    for size in sizes:
        feeds = random_feeds(proto, **size)
        for name, value in feeds.items():
            if name == "mask":
                value[...] = np.where(value > 0, exports.LOWEST, 0)
                value[:1, :, :1] = exports.LOWEST
            elif value.dtype == np.int64:
                value[...] = np.abs(value) % 20
        want = run(proto, feeds)
        for got in (run(model_proto(model), feeds), *([Session(model).run(None, feeds)] if numpy else [])):
            for a, b in zip(want, got, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
    return model.graph


STATIC = {"batch": 2, "rows": 5}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("opset", slow_except([17], (17, 18)))
@pytest.mark.parametrize("unbind", ["gather", "split", "slice", "chunk", "between", "before transposes"])
def test_timm(fixed: bool, opset: int, unbind: str) -> None:
    export = Export(**(STATIC if fixed else {}), opset=opset)
    found = ops(optimized(exports.timm(export, unbind=unbind), SYMBOLS))
    assert found[ATTENTION] == 2
    assert {"Transpose", "Split", "Gather", "Softmax"}.isdisjoint(found)


@pytest.mark.slow
def test_query_key_and_value_in_each_head() -> None:
    """With all sizes known, rows are flattened for a Gemm, whose columns keep their order."""
    assert ops(optimized(exports.timm(Export(), unbind="in heads"), SYMBOLS))[ATTENTION] == 2
    assert ops(optimized(exports.timm(Export(**STATIC), unbind="in heads"), SYMBOLS))["Split"] == 2


@pytest.mark.parametrize("fixed", [False, True])
def test_gpt2(fixed: bool) -> None:
    found = ops(optimized(exports.gpt2(Export(**(STATIC if fixed else {}))), SYMBOLS, {"batch": 1, "rows": 1}))
    assert found[ATTENTION] == 2
    assert {"Gemm", "Transpose", "Softmax"}.isdisjoint(found)
    assert found["com.microsoft.FastGelu"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_guarded_weights(fixed: bool) -> None:
    sizes = STATIC if fixed else {}
    assert ops(optimized(exports.timm(Export(guard=True, **sizes)), SYMBOLS))[ATTENTION] == 2
    assert ops(optimized(exports.gpt2(Export(guard=True, **sizes), add=True), SYMBOLS))[ATTENTION] == 2


@pytest.mark.slow
@pytest.mark.parametrize("add", [False, True])
def test_gpt2_with_past(add: bool) -> None:
    """The mask is cut by lengths that the joined keys have, so that attention cannot join them itself."""
    found = ops(optimized(exports.gpt2(Export(), past=True, add=add), SYMBOLS, DECODE, SYMBOLS | {"past": 0}))
    assert found[MULTI] == 2
    assert "Softmax" not in found


def test_mask_that_is_cut_elsewhere() -> None:
    """As many rows as there are keys fit the queries only where nothing is past."""
    proto = exports.gpt2(Export(), past=True)
    for node in proto.graph.node:
        if node.op_type == "Sub":
            node.input[1] = node.input[0]
    found = ops(optimized(proto, SYMBOLS | {"past": 0}))
    assert found["Softmax"] == 2
    assert MULTI not in found


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("kv_heads", slow_except([2], (1, 2, 4)))
@pytest.mark.parametrize("fixed", [False, True])
def test_llama(past: bool, kv_heads: int, fixed: bool) -> None:
    export = Export(**(STATIC if fixed else {}))
    found = ops(
        optimized(exports.llama(export, kv_heads=kv_heads, past=past), SYMBOLS, *([DECODE] if not fixed else []))
    )
    assert found["SimplifiedLayerNormalization"] == 5
    assert found["com.microsoft.QuickGelu"] == 2
    assert found["com.microsoft.RotaryEmbedding"] == 4
    if not past and (kv_heads < 4 or not fixed):
        assert "Expand" not in found
        assert found["Softmax"] == 2, "with a mask and many rows, the parts are faster"
    else:
        assert found[MULTI] == 2
    if kv_heads == 4 and past:
        assert found["Concat"] == 1, "but for the shape of the mask"


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("batch", [2, "batch"])
def test_clip(flat: bool, batch: int | str) -> None:
    found = ops(optimized(exports.clip_text(Export(batch=batch, rows=5), flat=flat), SYMBOLS))
    assert found["com.microsoft.QuickGelu"] == 2
    assert found[ATTENTION] == 2
    assert {"Softmax", "Transpose"}.isdisjoint(found)


@pytest.mark.parametrize("fixed", [False, True])
def test_t5(fixed: bool) -> None:
    found = ops(optimized(exports.t5(Export(**(STATIC if fixed else {}))), SYMBOLS))
    assert found[ATTENTION] == 2
    assert found["SimplifiedLayerNormalization"] == 5


@pytest.mark.parametrize("past", [False, True])
def test_whisper_decoder(past: bool) -> None:
    found = ops(optimized(exports.whisper_decoder(Export(), past=past), SYMBOLS, *([DECODE] if past else [])))
    assert found[MULTI] == (4 if past else 2)
    assert found.get(ATTENTION, 0) == (0 if past else 2)
    assert found.get("Concat", 0) == int(past), "but for the shape of the mask"


BUILDERS: list[Callable[[Export], onnx.ModelProto]] = [exports.timm, exports.gpt2, exports.llama, exports.t5]


@pytest.mark.parametrize("build", slow_except([exports.timm, exports.llama], BUILDERS))
def test_captures_stay(build: Callable[[Export], onnx.ModelProto]) -> None:
    """Every value is returned, so that nothing inside may be fused away."""
    proto = build(Export(layers=1))
    for node in proto.graph.node[:-1]:
        proto.graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in node.output if node.op_type not in ("Split",)
        )
    inferred = onnx.shape_inference.infer_shapes(proto)
    types = {v.name: v.type for v in inferred.graph.value_info}
    for output in proto.graph.output[1:]:
        output.type.CopyFrom(types[output.name])
        if output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.ClearField("shape")
    graph = optimized(proto, SYMBOLS, numpy=False)
    assert not {ATTENTION, MULTI, "com.microsoft.RotaryEmbedding"} & set(ops(graph))


@pytest.mark.parametrize("build", slow_except([exports.timm, exports.t5], [*BUILDERS, exports.whisper_decoder]))
def test_constants_behind_an_identity(build: Callable[[Export], onnx.ModelProto]) -> None:
    """Inference of onnx does not see these constants: axes of a mean, the shape of a Reshape."""
    proto = build(Export())
    plain = ops(optimized(proto, numpy=False))
    for constant in proto.graph.initializer:
        constant.name += "/stored"
    stored = [constant.name for constant in proto.graph.initializer]
    nodes = [onnx.helper.make_node("Identity", [name], [name.removesuffix("/stored")]) for name in stored]
    nodes += list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert ops(optimized(proto, SYMBOLS, numpy=False)) == plain


LENGTH_FIRST = """agraph (float[batch,5,8] x, float[8,24] w) => (float[batch,5,8] y) <
    int64[3] parts = {8, 8, 8}, int64[SPLIT] heads = {5, -1, HEADS}, int64[3] rows = {5, -1, 8}, float half = {0.5}> {
  t = Transpose<perm = [1, 0, 2]>(x)
  p = MatMul(t, w)
  q, k, v = Split<axis = 2>(p, parts)
  qs = Reshape(q, heads)
  ks = Reshape(k, heads)
  vs = Reshape(v, heads)
  qh = Transpose<perm = [FORWARD]>(qs)
  kh = Transpose<perm = [BACKWARD]>(ks)
  vh = Transpose<perm = [FORWARD]>(vs)
  scaled = Mul(qh, half)
  scores = MatMul(scaled, kh)
  weights = Softmax<axis = -1>(scores)
  mixed = MatMul(weights, vh)
  merged = Transpose<perm = [MERGE]>(mixed)
  r = Reshape(merged, rows)
  z = Transpose<perm = [1, 0, 2]>(r)
  y = Add(x, z)
}"""
APART = {"SPLIT": "4", "HEADS": "2, 4", "FORWARD": "1, 2, 0, 3", "BACKWARD": "1, 2, 3, 0", "MERGE": "2, 0, 1, 3"}
STACKED = {"SPLIT": "3", "HEADS": "4", "FORWARD": "1, 0, 2", "BACKWARD": "1, 2, 0", "MERGE": "1, 0, 2"}


@pytest.mark.parametrize("form", [APART, STACKED], ids=["apart", "stacked"])
def test_attention_of_torch_for_any_batch(form: dict[str, str]) -> None:
    """Attention of rows with the length first, as in nn.MultiheadAttention, without and with need_weights."""
    text = LENGTH_FIRST
    for name, content in form.items():
        text = text.replace(name, content)
    found = ops(optimized(parse(text, 17), {"batch": 1}, {"batch": 3}))
    assert found == {"MatMul": 1, "Split": 1, MULTI: 1, "Add": 1}


MASKED = """agraph (float[5,1,8] x, float[5,5] low) => (float[5,1,8] y) <
    int64[4] packed = {5, 1, 3, 8}, int64[3] stacked = {5, 2, 4}, int64[4] heads = {1, 2, 5, 4}, int64[2] flat = {5, 8},
    int64[3] rows = {5, 1, 8}, float half = {0.5}, int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
  f = Reshape(x, flat)
  g = Gemm(f, w, b)
  p = Reshape(g, packed)
  t = Transpose<perm = [2, 0, 1, 3]>(p)
  q = Gather<axis = 0>(t, zero)
  k = Gather<axis = 0>(t, one)
  v = Gather<axis = 0>(t, two)
  qs = Reshape(q, stacked)
  ks = Reshape(k, stacked)
  vs = Reshape(v, stacked)
  qt = Transpose<perm = [1, 0, 2]>(qs)
  kt = Transpose<perm = [1, 0, 2]>(ks)
  vt = Transpose<perm = [1, 0, 2]>(vs)
  qh = Reshape(qt, heads)
  kh = Reshape(kt, heads)
  vh = Reshape(vt, heads)
  kc = Transpose<perm = [0, 1, 3, 2]>(kh)
  scaled = Mul(qh, half)
  product = MatMul(scaled, kc)
  scores = Add(product, low)
  weights = Softmax<axis = -1>(scores)
  mixed = MatMul(weights, vh)
  merged = Transpose<perm = [2, 0, 1, 3]>(mixed)
  r = Reshape(merged, rows)
  y = Add(x, r)
}"""


def test_masked_attention_of_torch_for_a_batch_of_one() -> None:
    """The Reshapes that PackedHeadsFusion leaves are merged before attention is recognized, with its projections."""
    proto = parse(MASKED, 17)
    drawn = np.random.default_rng(7)
    for name, shape in (("w", (8, 24)), ("b", (24,))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(drawn.random(shape, np.float32), name))
    found = ops(optimized(proto, {}))
    assert found[ATTENTION] == 1
    assert "Softmax" not in found
