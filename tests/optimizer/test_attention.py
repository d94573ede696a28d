"""Attention as exporters spell it out, against the fused operators, run by onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import pytest
from golden import passes_in
from onnx import TensorProto, helper, numpy_helper
from rewriting import check, ops, optimized, parse, random_feeds, run

from ortconv.ir.kernels import release_named
from ortconv.ir.types import DType
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.extended.attention import fusion as attention
from ortconv.optimizer.extended.attention.heads import Heads
from ortconv.optimizer.extended.attention.mask import Masks
from ortconv.pipeline import optimize
from ortconv.runtime.session import Session
from tests.batches import sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

FUSION = (*passes_in("basic.nan_guard"), *passes_in("extended.attention.fusion"))
PASSES = (*passes_in("basic.reshape"), *passes_in("extended.transpose"), *FUSION)
HEADS, SIZE = 2, 4
HIDDEN = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Builder:
    """A graph of attention over x (batch, rows, hidden), each part of which a test may write differently."""

    batch: int | str = 2
    rows: int | str = 5
    opset: int = 13
    memory: bool = False
    """Keys and values come from another input, of 7 rows."""
    gemm: bool = False
    key: str = "once"
    scale: str = "div"
    mask: str = ""
    guard: bool = False
    bias: tuple[bool, bool, bool] = (True, True, True)
    axis: int = -1
    merge: str = "copies"
    extra: tuple[str, ...] = ()
    shared_weights: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def const(self, name: str, content: object, dtype: object = None) -> str:
        if name not in {c.name for c in self.constants}:
            self.constants.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def node(self, op: str, *inputs: str, out: str = "", **attrs: object) -> str:
        out = out or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attrs))
        return out

    def project(self, x: str, name: str, biased: bool, rng: np.random.Generator) -> str:
        weight = self.const("w" if self.shared_weights else f"w_{name}", rng.normal(size=(HIDDEN, HIDDEN)), np.float32)
        bias = self.const(f"b_{name}", rng.normal(size=HIDDEN), np.float32)
        if self.gemm:
            flat = self.node("Reshape", x, self.const(f"flat_{x}", [-1, HIDDEN], np.int64))
            return self.node("Gemm", flat, weight, *([bias] if biased else []))
        product = self.node("MatMul", x, weight)
        return self.node("Add", product, bias) if biased else product

    def split(self, rows: str, length: int | str, perm: list[int]) -> str:
        fixed = self.gemm or (isinstance(length, int) and isinstance(self.batch, int) and self.merge == "fixed")
        spec = [self.batch, length, HEADS, SIZE] if fixed else [0, 0, -1, SIZE]
        name = f"split_{length}" if fixed else "split"
        return self.node("Transpose", self.node("Reshape", rows, self.const(name, spec, np.int64)), perm=perm)

    def keys(self, rows: str, length: int | str) -> str:
        if self.key == "once":
            return self.split(rows, length, [0, 2, 3, 1])
        heads = self.split(rows, length, [0, 2, 1, 3])
        if self.key == "twice":
            return self.node("Transpose", heads, perm=[0, 1, 3, 2])
        flat = self.node("Reshape", heads, self.const("flat_heads", [-1, length, SIZE], np.int64))
        swapped = self.node("Transpose", flat, perm=[0, 2, 1])
        return self.node("Reshape", swapped, self.const("whole", [-1, HEADS, SIZE, length], np.int64))

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        source, length = ("memory", 7) if self.memory else ("x", self.rows)
        q, k, v = (self.project(s, n, b, rng) for s, n, b in zip(("x", source, source), "qkv", self.bias))
        if self.scale == "query":
            q = self.node("Mul", q, self.const("c", 0.5, np.float32))
        query, keys = self.split(q, self.rows, [0, 2, 1, 3]), self.keys(k, length)
        value = self.split(v, length, [0, 2, 1, 3])
        if self.scale == "both":
            c = self.const("c", 0.7, np.float32)
            query, keys = self.node("Mul", query, c), self.node("Mul", c, keys)
        scores = self.node("MatMul", query, keys)
        if self.scale == "div":
            scores = self.node("Div", scores, self.const("c", 2.0, np.float32))
        scores, extra = self.masked(scores, length)
        weights = self.node("Softmax", scores, axis=self.axis, out="weights")
        if self.guard:
            weights = self.node("Where", self.node("IsNaN", weights), self.const("zero", 0, np.float32), weights)
        rows = self.node("Transpose", self.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        spec = {
            "copies": [0, 0, HIDDEN],
            "fixed": [self.batch, self.rows, HIDDEN],
            "flat": [-1, HIDDEN],
            "heads": [0, 0, 0, -1],
        }
        merged = self.node("Reshape", rows, self.const("merged", spec[self.merge], np.int64))
        self.node(
            "MatMul",
            merged,
            self.const("out", rng.normal(size=(SIZE if self.merge == "heads" else HIDDEN, 3)), np.float32),
            out="y",
        )
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.batch, self.rows, HIDDEN])]
        if self.memory:
            inputs.append(helper.make_tensor_value_info("memory", TensorProto.FLOAT, [self.batch, 7, HIDDEN]))
        outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", *self.extra)]
        graph = helper.make_graph(self.nodes, "g", inputs + extra, outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def masked(self, scores: str, length: int | str) -> tuple[str, list[onnx.ValueInfoProto]]:
        shapes = {
            "full": [self.batch, 1, self.rows, length], "heads": [1, HEADS, self.rows, length], "row": [self.batch, 1, 1, length],
            "plane": [self.rows, length], "batches": ["other", 1, self.rows, length],
        }  # fmt: skip
        if self.mask in shapes:
            given = helper.make_tensor_value_info("mask", TensorProto.FLOAT, shapes[self.mask])
            return self.node("Add", scores, "mask") if self.mask != "heads" else self.node("Add", "mask", scores), [
                given
            ]
        if self.mask in ("causal infinite", "no key"):
            first = 1 if self.mask == "causal infinite" else 0
            causal = np.triu(np.full((5, 5), -np.inf, np.float32), first)
            return self.node("Add", scores, self.const("causal", causal)), []
        if self.mask == "causal":
            causal = np.triu(np.full((5, 5), LOWEST, np.float32), 1)
            return self.node("Add", scores, self.const("causal", causal)), []
        if self.mask in ("where", "where mild"):
            seen = np.tril(np.ones((1, 1, 5, 5), bool))
            low = self.const("low", LOWEST if self.mask == "where" else -100.0, np.float32)
            return self.node("Where", self.const("seen", seen), scores, low), []
        if self.mask in ("where and row", "row and where"):
            given = helper.make_tensor_value_info("mask", TensorProto.FLOAT, [self.batch, 1, 1, length])
            seen = helper.make_tensor_value_info("seen", TensorProto.BOOL, [1, 1, self.rows, length])
            low = self.const("low", LOWEST, np.float32)
            if self.mask == "where and row":
                return self.node("Add", self.node("Where", "seen", scores, low), "mask"), [given, seen]
            return self.node("Where", "seen", self.node("Add", "mask", scores), low), [given, seen]
        if self.mask in ("padding", "infinite padding"):
            given = helper.make_tensor_value_info("seen", TensorProto.BOOL, [self.batch, 1, self.rows, length])
            low = self.const("low", LOWEST if self.mask == "padding" else -np.inf, np.float32)
            mask = self.node("Where", "seen", self.const("zero", 0, np.float32), low)
            return self.node("Add", scores, mask), [given]
        if self.mask in ("condition", "inverted condition"):
            given = helper.make_tensor_value_info("seen", TensorProto.BOOL, [self.batch, 1, 1, length])
            low = self.const("low", LOWEST, np.float32)
            branches = [scores, low] if self.mask == "condition" else [low, scores]
            return self.node("Where", "seen", *branches), [given]
        if self.mask.startswith("keys"):
            given = helper.make_tensor_value_info("seen", TensorProto.BOOL, [self.batch, length])
            rows = self.node("Unsqueeze", "seen", self.const("axes", [1, 2], np.int64))
            if self.mask == "keys and":
                rows = self.node("And", rows, self.const("all", np.ones((1, 1, 5, 1), bool)))
            low = self.const("low", -np.inf if self.mask == "keys infinite" else LOWEST, np.float32)
            zero = self.const("zero", 0, np.float32)
            if self.mask == "keys scores":
                return self.node("Where", rows, scores, low), [given]
            branches = [low, zero] if self.mask == "keys inverted" else [zero, low]
            return self.node("Add", scores, self.node("Where", rows, *branches)), [given]
        return scores, []


def fused(builder: Builder, feeds: dict[str, np.ndarray] | None = None, **dims: int) -> dict[str, int]:
    """The operators of the result, whose numbers are checked."""
    proto = builder.model()
    graph, _ = check(proto, PASSES, feeds=random_feeds(proto, **dims) if feeds is None else feeds, rtol=1e-4, atol=1e-4)
    return ops(graph)


ATTENTION = {"com.microsoft.Attention": 1, "MatMul": 1}


@sampled(4)
@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
@pytest.mark.parametrize("batch", [2, "b"])
@pytest.mark.parametrize("key", ["once", "twice", "flat"])
def test_self_attention(opset: int, batch: int | str, key: str) -> None:
    assert fused(Builder(opset=opset, batch=batch, key=key)) == ATTENTION


@pytest.mark.parametrize("scale", ["div", "query", "both", "none"])
@pytest.mark.parametrize("bias", [(True, True, True), (True, False, True), (False, False, False)])
def test_scales_and_biases(scale: str, bias: tuple[bool, bool, bool]) -> None:
    assert fused(Builder(scale=scale, bias=bias, rows="r", batch="b")) == ATTENTION


def test_weights_are_packed_in_order() -> None:
    model, _ = optimized(Builder().model(), PASSES)
    node = next(n for n in model.graph if n.op == "Attention")
    assert node.inputs[1].shape == (HIDDEN, 3 * HIDDEN)
    assert node.attrs["num_heads"] == HEADS
    assert node.attrs["scale"] == 0.5


@pytest.mark.parametrize("mask", ["full", "heads", "causal", "where", "padding"])
@pytest.mark.parametrize("memory", [False, True])
def test_masks(mask: str, memory: bool) -> None:
    if memory and mask in ("causal", "where"):
        pytest.skip("a square mask")
    found = fused(Builder(mask=mask, memory=memory))
    assert "Softmax" not in found
    assert found.get("com.microsoft.MultiHeadAttention" if memory else "com.microsoft.Attention") == 1


@pytest.mark.parametrize("rows", [5, "r"])
@pytest.mark.parametrize("mask", ["", "full", "condition"])
def test_heads_that_do_not_fill_tiles(mask: str, rows: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no Attention. With a mask that is only added, and many rows, their parts are faster than any fused node."""
    monkeypatch.setattr(attention, "FEW_COLUMNS", HIDDEN - 1)
    monkeypatch.setattr(attention, "FEW_MASKED_COLUMNS", HIDDEN - 1)
    found = fused(Builder(mask=mask, rows=rows))
    assert "com.microsoft.Attention" not in found
    assert ("Softmax" in found) == (mask == "full" and rows == "r")
    assert ("com.microsoft.MultiHeadAttention" in found) == ("Softmax" not in found)


@pytest.mark.parametrize(("rows", "memory"), [(50, False), (300, True), (5, True), ("r", True)])
def test_narrow_heads(rows: int | str, memory: bool) -> None:
    """With many scores, MultiHeadAttention is slower than its parts; Attention is not."""
    found = fused(Builder(rows=rows, memory=memory))
    parts = memory and rows == 300
    assert found.get("Softmax", 0) == parts
    assert ("com.microsoft.MultiHeadAttention" in found) == (memory and not parts)


def test_masks_that_are_made_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that would give a mask the form for a fused node are removed if there is none."""
    monkeypatch.setattr(attention, "FEW_MASKED_COLUMNS", HIDDEN - 1)
    found = fused(Builder(mask="row", rows="r"))
    assert "Softmax" in found
    assert "Expand" not in found


@pytest.mark.parametrize("rows", [5, "r"])
@pytest.mark.parametrize("batch", [2, "b"])
@pytest.mark.parametrize("mask", ["row", "plane"])
def test_masks_that_are_expanded(rows: int | str, batch: int | str, mask: str) -> None:
    builder = Builder(mask=mask, rows=rows, batch=batch, merge="copies" if rows == "r" or batch == "b" else "fixed")
    found = fused(builder)
    assert found["com.microsoft.Attention"] == 1
    assert found["Expand" if mask == "row" else "Unsqueeze"] == 1


@pytest.mark.parametrize("mask", ["condition", "inverted condition"])
@pytest.mark.parametrize("rows", [5, "r"])
def test_scores_that_are_replaced(mask: str, rows: int | str) -> None:
    proto = Builder(mask=mask, rows=rows).model()
    feeds = random_feeds(proto, r=5)
    feeds["seen"][0] = False
    feeds["seen"][1] = True
    found = fused(Builder(mask=mask, rows=rows), feeds)
    assert found["com.microsoft.Attention"] == 1
    assert found["Where"] == 1


@pytest.mark.parametrize("mask", ["where and row", "row and where"])
@pytest.mark.parametrize("rows", [5, "r"])
@pytest.mark.parametrize("lowest", [LOWEST, -np.inf])
def test_masks_of_which_one_is_added_and_one_replaces(mask: str, rows: int | str, lowest: float) -> None:
    proto = Builder(mask=mask, rows=rows, batch="b").model()
    feeds = random_feeds(proto, r=5, b=3)
    feeds["seen"][...] = np.tril(np.ones((5, 5), bool))
    feeds["mask"][...] = 0
    feeds["mask"][1, ..., :2] = lowest
    feeds["mask"][2] = lowest
    found = fused(Builder(mask=mask, rows=rows, batch="b"), feeds)
    assert found["com.microsoft.Attention"] == 1
    assert found["Where"] == 1


KEY_MASKS = ("keys", "keys and", "keys infinite", "keys inverted", "keys scores")


@sampled(4)
@pytest.mark.parametrize("mask", KEY_MASKS)
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("batch", [2, "b"])
def test_masks_of_keys(mask: str, memory: bool, batch: int | str) -> None:
    builder = Builder(mask=mask, memory=memory, batch=batch)
    proto = builder.model()
    feeds = random_feeds(proto, b=2)
    feeds["seen"][0] = False
    feeds["seen"][1] = [i != 1 for i in range(feeds["seen"].shape[1])]
    graph, _ = check(proto, PASSES, feeds=feeds, rtol=1e-4, atol=1e-4)
    (node,) = (n for n in graph if n.domain)
    padding = node.inputs[4 if memory else 3]
    assert padding is not None
    assert padding.dtype is DType.INT32
    assert padding.rank == 2
    assert {"Where", "Expand", "And"}.isdisjoint(ops(graph))
    assert node.attrs["mask_filter_value"] == (-np.inf if mask == "keys infinite" else LOWEST)


def test_rows_that_are_masked_altogether() -> None:
    for mask in ("padding", "infinite padding"):
        proto = Builder(mask=mask).model()
        feeds = random_feeds(proto)
        feeds["seen"][0, 0, 1] = False
        assert fused(Builder(mask=mask), feeds)["com.microsoft.Attention"] == 1


@pytest.mark.parametrize("memory", [False, True])
def test_numpy_kernels_agree(memory: bool) -> None:
    for mask in ("", "infinite padding"):
        proto = Builder(mask=mask, memory=memory).model()
        feeds = random_feeds(proto)
        if mask:
            feeds["seen"][0, 0, 1] = False
        model, _ = optimized(proto, PASSES)
        want = run(model_proto(model), feeds)
        got = Session(model).run(None, feeds)
        assert np.isnan(want[0]).any() == bool(mask)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)


def test_guard_of_a_finite_mask() -> None:
    proto = Builder(mask="padding", guard=True).model()
    feeds = random_feeds(proto)
    feeds["seen"][0, 0, 1] = False
    assert fused(Builder(mask="padding", guard=True), feeds)["com.microsoft.Attention"] == 1
    feeds["x"][0, 1, 2] = np.nan
    assert fused(Builder(mask="padding", guard=True), feeds)["com.microsoft.Attention"] == 1
    feeds["x"][0, 1, 2] = np.inf
    assert fused(Builder(mask="padding", guard=True), feeds)["com.microsoft.Attention"] == 1
    assert fused(Builder(guard=True))["com.microsoft.Attention"] == 1


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf])
def test_guard_of_rows_without_a_key(bad: float) -> None:
    builder = Builder(mask="infinite padding", guard=True)
    feeds = random_feeds(builder.model())
    feeds["seen"][0, 0, 1] = False
    feeds["x"][1, 2, 3] = bad
    found = fused(Builder(mask="infinite padding", guard=True), feeds)
    assert found["com.microsoft.Attention"] == 1
    assert "IsNaN" not in found


def test_guard_of_a_mask_that_leaves_a_key_to_every_row() -> None:
    builder = Builder(mask="causal infinite", guard=True)
    feeds = random_feeds(builder.model())
    for bad in (0.5, np.nan, np.inf):
        feeds["x"][0, 3, 2] = bad
        found = fused(Builder(mask="causal infinite", guard=True), feeds)
        assert found["com.microsoft.Attention"] == 1
        assert "IsNaN" not in found


@pytest.mark.parametrize(
    "builder",
    [
        Builder(mask="no key", guard=True),
        Builder(mask="full", guard=True),
        Builder(guard=True, memory=True),
        Builder(mask="where mild"),
        Builder(mask="batches", batch=1),
        Builder(mask="batches", batch="b"),
        Builder(axis=1),
        Builder(axis=2),
        Builder(extra=("weights",)),
    ],
)
def test_refused(builder: Builder) -> None:
    proto = builder.model()
    _, context = optimized(proto, FUSION)
    assert context.trace == []


def test_memory() -> None:
    assert fused(Builder(memory=True)) == {"com.microsoft.MultiHeadAttention": 1, "MatMul": 4, "Add": 3}
    assert fused(Builder(memory=True, batch="b", rows="r", key="twice"))["com.microsoft.MultiHeadAttention"] == 1


def test_projection_by_gemm() -> None:
    found = fused(Builder(gemm=True, merge="fixed"))
    assert found == ATTENTION
    found = fused(Builder(gemm=True, merge="fixed", memory=True))
    assert found["com.microsoft.MultiHeadAttention"] == 1
    assert found["Gemm"] == 3


@pytest.mark.parametrize("merge", ["copies", "fixed", "flat", "heads"])
def test_what_follows(merge: str) -> None:
    found = fused(Builder(merge=merge))
    assert found["com.microsoft.Attention"] == 1
    assert found.get("Reshape", 0) == (0 if merge in ("copies", "fixed") else 1)


def test_weights_that_are_shared_are_packed_once() -> None:
    first, second = Builder(), Builder()
    proto, other = first.model(), second.model()
    for node in other.graph.node:
        node.input[:] = [
            "y_first" if i == "x" else i if i in {c.name for c in second.constants} else f"{i}_2" for i in node.input
        ]
        node.output[:] = [f"{o}_2" for o in node.output]
    proto.graph.node.append(helper.make_node("Concat", ["y", "y", "y"], ["wide"], axis=2))
    proto.graph.node.append(helper.make_node("Slice", ["wide", "from", "to", "along"], ["y_first"]))
    for name, number in (("from", 0), ("to", HIDDEN), ("along", 2)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    proto.graph.node.extend(other.graph.node)
    proto.graph.output.append(helper.make_tensor_value_info("y_2", TensorProto.FLOAT, None))
    graph, _ = check(proto, PASSES, rtol=1e-4, atol=1e-4)
    packed = {n.inputs[1] for n in graph if n.op == "Attention"}
    assert ops(graph)["com.microsoft.Attention"] == 2
    assert len(packed) == 1


def test_weights_that_others_read_stay() -> None:
    proto = Builder().model()
    proto.graph.node.append(helper.make_node("MatMul", ["x", "w_q"], ["z"]))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    graph, _ = check(proto, PASSES, rtol=1e-4, atol=1e-4)
    assert ops(graph)["com.microsoft.MultiHeadAttention"] == 1
    model, _ = optimized(Builder(shared_weights=True).model(), PASSES)
    assert ops(model.graph)["com.microsoft.Attention"] == 1


def test_overridable_weights_stay() -> None:
    proto = Builder().model()
    proto.graph.input.append(helper.make_tensor_value_info("w_k", TensorProto.FLOAT, [HIDDEN, HIDDEN]))
    graph, _ = check(proto, PASSES, rtol=1e-4, atol=1e-4)
    assert ops(graph)["com.microsoft.MultiHeadAttention"] == 1


def test_returned_heads_stay() -> None:
    builder = Builder(key="twice")
    proto = builder.model()
    heads = next(n.output[0] for n in proto.graph.node if n.op_type == "Transpose")
    proto.graph.output.append(helper.make_tensor_value_info(heads, TensorProto.FLOAT, None))
    graph, _ = check(proto, PASSES, rtol=1e-4, atol=1e-4)
    assert ops(graph)["com.microsoft.MultiHeadAttention"] == 1


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_only_float(kind: int) -> None:
    proto = Builder().model()
    for constant in proto.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(constant).astype(helper.tensor_dtype_to_np_dtype(kind))
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = kind
    assert optimized(proto, FUSION)[1].trace == []


def test_batches_that_are_broadcast_stay() -> None:
    proto = Builder(memory=True).model()
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 1
    assert optimized(proto, FUSION)[1].trace == []


@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (1, 1), (3, 9)])
def test_any_size(batch: int, rows: int) -> None:
    proto = Builder(batch="b", rows="r", mask="full").model()
    assert fused(Builder(batch="b", rows="r", mask="full"), random_feeds(proto, b=batch, r=rows)) == ATTENTION


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("mask", ["", "full"])
def test_values_of_another_size(memory: bool, mask: str) -> None:
    wide = 2 * HIDDEN
    proto = Builder(memory=memory, mask=mask).model()
    rng = np.random.default_rng(1)
    content = {
        "w_v": rng.normal(size=(HIDDEN, wide)), "b_v": rng.normal(size=wide), "merged": np.array([0, 0, wide]),
        "out": rng.normal(size=(wide, 3)),
    }  # fmt: skip
    for constant in proto.graph.initializer:
        if constant.name in content:
            array = content[constant.name]
            array = array if array.dtype.kind == "i" else array.astype(np.float32)
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    split = [n for n in proto.graph.node if n.op_type == "Reshape"][2]
    split.input[1] = "split_value"
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, HEADS, 2 * SIZE]), "split_value"))
    graph, _ = check(proto, PASSES, rtol=1e-4, atol=1e-4)
    fused_node = next(n for n in graph if n.domain)
    assert fused_node.op == ("MultiHeadAttention" if memory else "Attention")
    assert memory or fused_node.attrs["qkv_hidden_sizes"] == (HIDDEN, HIDDEN, wide)
    feeds = random_feeds(proto)
    np.testing.assert_allclose(
        Session(optimized(proto, PASSES)[0]).run(None, feeds)[0], run(proto, feeds)[0], rtol=1e-4, atol=1e-4
    )


def test_a_bias_is_given_each_form_once() -> None:
    """Four heads of one attention, and four queries per key of another, are different forms of the same bias."""
    model = from_proto(parse("g (float[1,1,5,7] bias, float[1,20,8] x) => (float[1,1,5,7] y) { y = Relu(bias) }"))
    bias, x = model.graph.inputs
    (before,) = model.graph
    heads = Heads(x, count=4, size=2, scale=1.0, nodes=(), rows=None)
    masks = Masks(model.graph)
    whole = masks.whole(bias, heads, x, before)
    grouped = masks.by_groups(bias, replace(heads, count=1, copies=4), before)
    assert (whole.shape, grouped.shape) == ((1, 4, 5, 7), (1, 1, 20, 7))
    assert masks.whole(bias, heads, x, before) is whole


def test_a_number_of_keys_that_no_attention_needs_is_computed_in_time() -> None:
    """The release has no attention with a past, but the mask reads the number of keys, which is then that of both parts."""
    proto = parse(
        """g (float[N,2,8] x, float[N,2,P,4] pk, float[N,2,P,4] pv, float[1,1,2,9] m) =>
            (float[N,2,8] y, float[N,2,T,4] nk, float[N,2,T,4] nv)
        <int64[4] heads = {0, 0, 2, 4}, int64[3] rows = {0, 0, 8}, int64[1] zero = {0}, int64[1] last = {3},
            int64[1] from = {-2}, int64[1] to = {-1}> {
            r = Reshape(x, heads) h = Transpose<perm = [0, 2, 1, 3]>(r)
            nk = Concat<axis = 2>(pk, h) nv = Concat<axis = -2>(pv, h)
            kt = Transpose<perm = [0, 1, 3, 2]>(nk) sh = Shape(nk) n = Slice(sh, from, to, zero) c = Slice(m, zero, n, last)
            s = MatMul(h, kt) b = Add(s, c) p = Softmax<axis = -1>(b) o = MatMul(p, nv)
            t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, rows) }""",
        17,
    )
    model = from_proto(proto)
    optimize(model, "extended", context=Context(PassSettings(release=release_named("1.15"))))
    verify(model.graph)
    assert "Softmax" in ops(model.graph)
