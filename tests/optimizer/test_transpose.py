"""The transpose optimizer: every operator that a Transpose may pass, what it may not pass, and what it costs."""

from __future__ import annotations

import functools
import itertools
from random import Random

import idioms
import numpy as np
import onnx
import pytest
from golden import passes_in
from onnx import TensorProto, helper, numpy_helper
from rewriting import check, ops, optimized, parse, random_feeds, run
from typed_graphs import Builder

from ortconv.ir.tensor import Array
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.permutation import compose, identity, inverse
from tests.batches import batched, sampled
from tests.counting import calls

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

(PASS,) = passes_in("basic.transpose")
SHAPE = (2, 3, 4, 5)
PERMS = list(itertools.permutations(range(4)))


def sandwich(
    op: str,
    perm: tuple[int, ...],
    *,
    attrs: dict[str, object] | None = None,
    inputs: dict[str, Array] | None = None,
    order: list[str] | None = None,
    shape: tuple[int, ...] = SHAPE,
    dtype: int = TensorProto.FLOAT,
    opset: int = 13,
    outputs: int = 1,
    domain: str = "",
    out_rank: int = 4,
) -> onnx.ModelProto:
    """x, Transpose<perm>, the operator with constant further inputs, and a Transpose of each output of some rank."""
    attrs, inputs = attrs or {}, inputs or {}
    names = order or ["t", *inputs]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node(op, names, [f"r{i}" for i in range(outputs)], name="op", domain=domain, **attrs),
    ]
    results = []
    for i in range(outputs):
        if out_rank >= 2:
            nodes.append(helper.make_node("Transpose", [f"r{i}"], [f"y{i}"], perm=list(reversed(range(out_rank)))))
        results.append(f"y{i}" if out_rank >= 2 else f"r{i}")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in inputs.items() if name],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    typed = onnx.shape_inference.infer_shapes(model)
    kinds = {v.name: v.type.tensor_type.elem_type for v in typed.graph.output}
    for output in model.graph.output:
        output.type.tensor_type.elem_type = kinds[output.name] or dtype
    return model


def transposes(proto: onnx.ModelProto, **options: object) -> int:
    """How many Transposes are left, after the result was found equal to the source."""
    feeds = random_feeds(proto)
    feeds = {k: np.abs(v) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    graph, _ = check(proto, [PASS], feeds=feeds, **options)  # type: ignore[arg-type]
    return ops(graph).get("Transpose", 0)


UNARY = [
    ("Relu", {}, 13), ("Abs", {}, 13), ("Neg", {}, 13), ("Exp", {}, 13), ("Sqrt", {}, 13), ("Erf", {}, 13),
    ("Sigmoid", {}, 13), ("Tanh", {}, 13), ("LeakyRelu", {"alpha": 0.2}, 13), ("Elu", {}, 13), ("Selu", {}, 13),
    ("HardSigmoid", {}, 13), ("HardSwish", {}, 14), ("Softplus", {}, 13), ("Softsign", {}, 13), ("Celu", {}, 13),
    ("Shrink", {}, 13), ("ThresholdedRelu", {}, 13), ("Identity", {}, 13), ("Dropout", {}, 13), ("Floor", {}, 13),
    ("IsNaN", {}, 13), ("Cast", {"to": TensorProto.INT32}, 13), ("Clip", {}, 13), ("Gelu", {}, 20),
    ("Clip", {"min": 0.5, "max": 1.5}, 8), ("Mish", {}, 18),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("op", "attrs", "opset"), UNARY)
def test_unary(op: str, attrs: dict[str, object], opset: int) -> None:
    assert transposes(sandwich(op, (0, 2, 3, 1), attrs=attrs, opset=opset)) == 1
    assert transposes(sandwich(op, (3, 2, 1, 0), attrs=attrs, opset=opset)) == 0


BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "Less", "GreaterOrEqual", "Equal"]
BROADCASTS = [(), (1,), (1, 1, 1, 1), (1, 1, 1), "last", "first", "whole", "two"]


def _other(perm: tuple[int, ...], kind: object) -> tuple[int, ...]:
    seen = [SHAPE[i] for i in perm]
    named = {"last": (seen[3],), "first": (seen[0], 1, 1, 1), "whole": tuple(seen), "two": (seen[2], 1)}
    return named[kind] if isinstance(kind, str) else kind  # type: ignore[return-value]


@sampled(6)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("kind", BROADCASTS)
def test_broadcast_with_a_constant(op: str, kind: object) -> None:
    for perm in [(0, 2, 3, 1), (3, 2, 1, 0)]:
        k = np.abs(np.random.default_rng(1).standard_normal(_other(perm, kind))).astype(np.float32)
        orders = [["t", "k"]] if op == "PRelu" else [["t", "k"], ["k", "t"]]
        for order in orders:
            proto = sandwich(op, perm, inputs={"k": k}, order=order, opset=16)
            assert transposes(proto) == (0 if perm == (3, 2, 1, 0) else 1)


def test_where_with_constants() -> None:
    seen = [SHAPE[i] for i in (0, 2, 3, 1)]
    rng = np.random.default_rng(0)
    inputs = {"c": rng.random((seen[3],)) < 0.5, "k": np.array(7, np.float32)}
    assert transposes(sandwich("Where", (0, 2, 3, 1), inputs=inputs, order=["c", "t", "k"])) == 1


def test_constant_that_enlarges_the_rank_blocks() -> None:
    k = np.ones((2, 1, 1, 1, 1), np.float32)
    assert transposes(sandwich("Add", (0, 2, 3, 1), inputs={"k": k}, out_rank=5)) == 2


def axis_cases() -> list[tuple[str, dict[str, object], int, int, int]]:
    """Operator, attributes, opset, outputs, rank of the outputs."""
    cases: list[tuple[str, dict[str, object], int, int, int]] = []
    for axis in (0, 1, 3, -1, -3):
        cases += [(op, {"axis": axis}, 13, 1, 4) for op in ("Softmax", "LogSoftmax", "Hardmax")]
        cases += [(op, {"axis": axis}, 13, 1, 4) for op in ("ArgMax", "ArgMin")]
        cases += [("ArgMax", {"axis": axis, "keepdims": 0}, 13, 1, 3)]
    for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"):
        cases += [(op, {"axes": [1, -1], "keepdims": keep}, 13, 1, 4 if keep else 2) for keep in (0, 1)]
        cases += [(op, {"keepdims": keep}, 13, 1, 4 if keep else 0) for keep in (0, 1)]
    cases += [("ReduceLogSum", {"axes": [2]}, 13, 1, 4), ("ReduceLogSumExp", {"axes": [2], "keepdims": 0}, 13, 1, 3)]
    cases += [("ReduceSum", {"axes": [0, 2], "keepdims": 0}, 11, 1, 2)]
    cases += [("Unsqueeze", {"axes": axes}, 11, 1, 4 + len(axes)) for axes in ([0], [4], [-1], [1, 3], [2, -6])]
    cases += [("Slice", {"starts": [1, 0], "ends": [9, 3], "axes": [3, -3]}, 9, 1, 4)]
    cases += [("Slice", {"starts": [1, 0], "ends": [9, 1]}, 9, 1, 4)]
    cases += [("Pad", {"pads": [0, 1, 2, 3, 1, 0, 0, 2], "mode": mode}, 10, 1, 4) for mode in ("constant", "edge")]
    return cases


@sampled(4)
@pytest.mark.parametrize(("op", "attrs", "opset", "outputs", "out_rank"), axis_cases())
def test_axes_by_attributes(op: str, attrs: dict[str, object], opset: int, outputs: int, out_rank: int) -> None:
    for perm in [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)]:
        proto = sandwich(op, perm, attrs=attrs, opset=opset, outputs=outputs, out_rank=out_rank)
        assert transposes(proto, rtol=1e-4) <= 1


I64 = np.int64
INPUT_CASES = [
    ("ReduceSum", {"keepdims": 0}, {"axes": np.array([1, -1], I64)}, 13, 1, 2),
    ("ReduceSum", {"keepdims": 1}, {"axes": np.array([1, -1], I64)}, 13, 1, 4),
    ("ReduceSum", {"keepdims": 1, "noop_with_empty_axes": 1}, {"axes": np.array([], I64)}, 13, 1, 4),
    ("ReduceSum", {"keepdims": 1}, {"axes": np.array([], I64)}, 13, 1, 4),
    ("ReduceMean", {"keepdims": 0}, {"axes": np.array([2], I64)}, 18, 1, 3),
    ("ReduceMax", {"keepdims": 1}, {"axes": np.array([2, 0], I64)}, 18, 1, 4),
    ("Unsqueeze", {}, {"axes": np.array([1, -1], I64)}, 13, 1, 6),
    ("Tile", {}, {"repeats": np.array([1, 2, 3, 1], I64)}, 13, 1, 4),
    ("Split", {"axis": 1}, {}, 13, 1, 4),
    ("Slice", {}, {"s": np.array([1, -3], I64), "e": np.array([9, -1], I64)}, 13, 1, 4),
    ("Slice", {}, {"s": np.array([1], np.int32), "e": np.array([9], np.int32), "a": np.array([-1], np.int32)}, 13, 1, 4),
    ("Slice", {}, {n: np.array([i], I64) for n, i in (("s", -1), ("e", -9), ("a", 2), ("p", -2))}, 13, 1, 4),
    ("Pad", {}, {"p": np.array([0, 1, 2, 3, 1, 0, 0, 2], I64), "v": np.array(1.5, np.float32)}, 13, 1, 4),
    ("Pad", {"mode": "reflect"}, {"p": np.array([0, 1, 1, 1, 1, 0, 0, 1], I64)}, 13, 1, 4),
    ("Pad", {}, {"p": np.array([1, 2, 3, 0], I64), "v": np.array(1.5, np.float32), "a": np.array([1, -1], I64)}, 18, 1, 4),
    ("Pad", {"mode": "edge"}, {"p": np.array([1, 2], I64), "": np.array(0), "a": np.array([2], I64)}, 18, 1, 4),
    ("Clip", {}, {"lo": np.array(0.25, np.float32), "hi": np.array(1, np.float32)}, 13, 1, 4),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("op", "attrs", "inputs", "opset", "outputs", "out_rank"), INPUT_CASES)
def test_axes_by_inputs(
    op: str, attrs: dict[str, object], inputs: dict[str, Array], opset: int, outputs: int, out_rank: int
) -> None:
    for perm in [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)]:
        proto = sandwich(op, perm, attrs=attrs, inputs=inputs, opset=opset, outputs=outputs, out_rank=out_rank)
        assert transposes(proto, rtol=1e-4) <= 1


@batched
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (1, 0, 3, 2), (0, 1, 3, 2), (2, 3, 0, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_softmax_before_and_after_opset_13(opset: int, perm: tuple[int, ...], axis: int) -> None:
    proto = sandwich("Softmax", perm, attrs={"axis": axis}, opset=opset)
    block = axis % 4
    passes = opset >= 13 or set(perm[block:]) == set(range(block, 4))
    assert transposes(proto) == (1 if passes else 2)


@pytest.mark.parametrize("axes", [None, [1], [1, -1]])
def test_squeeze(axes: list[int] | None) -> None:
    for perm in [(3, 1, 2, 0), (0, 1, 3, 2)]:
        shape = [[2, 1, 5, 1], [2, 1, 3, 5], [2, 1, 5, 1]][0 if axes is None else len(axes)]
        source = tuple(shape[perm.index(i)] for i in range(4))
        rank = 2 if axes is None else 4 - len(axes)
        attrs = {} if axes is None else {"axes": axes}
        assert transposes(sandwich("Squeeze", perm, attrs=attrs, opset=11, shape=source, out_rank=rank)) <= 1
        inputs = {} if axes is None else {"axes": np.array(axes, I64)}
        assert transposes(sandwich("Squeeze", perm, inputs=inputs, opset=13, shape=source, out_rank=rank)) <= 1


@batched
@pytest.mark.parametrize("perm", PERMS)
def test_pairs_merge(perm: tuple[int, ...]) -> None:
    for second in [(0, 2, 3, 1), inverse(perm)]:
        proto = sandwich("Relu", perm)
        proto.graph.node[1].CopyFrom(helper.make_node("Transpose", ["t"], ["r0"], perm=second))
        proto.graph.node[2].CopyFrom(helper.make_node("Relu", ["r0"], ["y0"]))
        assert transposes(proto) == (compose(perm, second) != identity(4))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("(float[2,1,4,1] x) => (float y) <int64[2] s = {2, -1}> { t = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(t, s) }", 0),
        ("(float[2,1,4,1] x) => (float y) <int64[2] s = {0, -1}> { t = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(t, s) }", 0),
        ("(float[2,3,4,1] x) => (float y) <int64[2] s = {2, -1}> { t = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(t, s) }", 1),
        ("(float[2,N,4,1] x) => (float y) <int64[2] s = {2, -1}> { t = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(t, s) }", 1),
        ("(float[2,4] x) => (float y) <int64[3] s = {2, 1, -1}> { t = Reshape(x, s) y = Transpose<perm = [0, 2, 1]>(t) }", 0),
        ("(float[2,4] x) => (float y) <int64[3] s = {0, 1, -1}> { t = Reshape(x, s) y = Transpose<perm = [1, 0, 2]>(t) }", 0),
        ("(float[N,4] x) => (float y) <int64[3] s = {0, 1, 4}> { t = Reshape(x, s) y = Transpose<perm = [1, 0, 2]>(t) }", 0),
        ("(float[2,4] x) => (float y) <int64[3] s = {2, 2, -1}> { t = Reshape(x, s) y = Transpose<perm = [1, 0, 2]>(t) }", 1),
        ("(float[2,4] x) => (float y, float t) <int64[3] s = {2,1,4}> { t = Reshape(x, s) y = Transpose<perm = [0,2,1]>(t) }", 1),
        ("(float[2,1,4] x) => (float y) { t = Transpose<perm = [1, 0, 2]>(x) y = Neg(t) }", 1),
    ],
)  # fmt: skip
def test_axes_of_one(text: str, left: int) -> None:
    assert ops(check("g " + text, [PASS])[0]).get("Transpose", 0) == left


QUANTIZED = """g (float[2,3,4,5] x) => (float y) <float s = {0.05}, uint8 z = {128}> {
    t = Transpose<perm = [0, 2, 3, 1]>(x) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z)
    r = Relu(d) y = Transpose<perm = [0, 3, 1, 2]>(r) }"""


@pytest.mark.parametrize(
    "text",
    [
        "(float[2,3,4,5] x, float[2,4,5,3] k) => (float y) { {T} r = Add(t, k) y = Transpose(r) }",
        "(float[2,3,4,5] x, float[3] k) => (float y) { {T} r = Add(t, k) y = Transpose(r) }",
        "(float[2,3,4,5] x, float[3] k = {1, 2, 3}) => (float y) { {T} r = Add(t, k) y = Transpose(r) }",
        "(float[2,3,4,5] x) => (float y) { {T} y = Relu(t) }",
        "(float[2,3,4,5] x) => (float y) { {T} r = Flatten(t) y = Transpose(r) }",
        "(float[2,3,4,5] x) => (float y) { {T} r = GlobalAveragePool(t) y = Transpose(r) }",
        "(float[2,3,4,5] x, int64[1] a) => (float y) { {T} r = ReduceSum(t, a) y = Transpose(r) }",
        "(float[2,3,4,5] x) => (float y, float t) { {T} r = Relu(t) y = Neg(r) }",
    ],
)  # fmt: skip
def test_stays(text: str) -> None:
    proto = parse("g " + text.replace("{T}", "t = Transpose<perm = [0, 2, 3, 1]>(x)"))
    before = ops(from_proto(proto).graph)
    model, context = optimized(proto, [PASS])
    assert ops(model.graph) == before
    assert not context.trace


@pytest.mark.parametrize(("opset", "left"), [(13, {"Gather": 1, "Pad": 1}), (18, {"Pad": 1})])
def test_pad_with_dynamic_pads_gets_them_in_order_or_axes(opset: int, left: dict[str, int]) -> None:
    text = """g (float[2,3,4,5] x, int64[8] p) => (float y) {
        t = Transpose<perm = [0, 2, 3, 1]>(x) r = Pad(t, p) y = Transpose<perm = [0, 3, 1, 2]>(r) }"""
    feeds = random_feeds(parse(text, opset)) | {"p": np.array([0, 1, 2, 0, 1, 0, 0, 3], I64)}
    assert ops(check(text, [PASS], opset=opset, feeds=feeds)[0]) == left


STEPS = (idioms.transpose, idioms.transpose, idioms.transposed_pair, idioms.unary, idioms.binary, idioms.concat, idioms.reduction,
         idioms.softmax)  # fmt: skip


@sampled(6)
@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    builder = Builder(Random(seed), 13)
    builder.grow(STEPS, 20)
    found = builder.example()
    result = model_proto(optimized(found.proto, [PASS])[0])
    for want, got in zip(run(found.proto, found.feeds), run(result, found.feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_cost_is_linear() -> None:
    def chain(n: int) -> onnx.ModelProto:
        nodes = [helper.make_node("Transpose", ["x"], ["v0"])]
        nodes += [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(n)]
        nodes += [helper.make_node("Transpose", [f"v{n}"], ["y"])]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
        graph = helper.make_graph(nodes, "g", [x], [y])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    def fan(n: int) -> onnx.ModelProto:
        proto = chain(0)
        for i in range(n):
            proto.graph.node.append(helper.make_node("Relu", ["v0"], [f"r{i}"]))
            proto.graph.node.append(helper.make_node("Transpose", [f"r{i}"], [f"s{i}"]))
        return proto

    for make in (chain, fan):
        costs = []
        for n in (250, 1000):
            graph = from_proto(make(n)).graph
            costs.append(calls(functools.partial(PASS.run, graph, Context())))
            assert ops(graph).get("Transpose", 0) == 0
        assert costs[1] < 4 * 1.2 * costs[0]


def test_nodes_of_another_provider_stay() -> None:
    for only_cpu, eps, fires in (
        (True, ["nnapi"] * 5, False),
        (False, ["nnapi"] * 5, True),
        (False, ["", "nnapi", "", "", ""], False),
    ):
        graph = from_proto(parse(QUANTIZED)).graph
        for node, ep in zip(graph, eps, strict=True):
            node.ep = ep
        assert bool(PASS.run(graph, Context(only_cpu=only_cpu))) == fires
        assert all(node.ep == "nnapi" for node in graph) == (eps == ["nnapi"] * 5)


def test_it_stops_at_the_limit() -> None:
    for limit in range(4):
        model, context = from_proto(parse(QUANTIZED)), Context(PassSettings(limit=limit))
        [PASS][0].run(model.graph, context)
        verify(model.graph)
        assert len(context.trace) == limit
        feeds = random_feeds(parse(QUANTIZED))
        for want, got in zip(run(parse(QUANTIZED), feeds), run(model_proto(model), feeds), strict=True):
            np.testing.assert_array_equal(want, got)


@batched
@pytest.mark.parametrize("perm", PERMS)
@pytest.mark.parametrize("parts", [{1: (3, 1)}, {0: (1, 2)}, {2: (2, 2), 3: (1, 5)}, {2: (2, 1, 2), 0: (2, 1)}])
def test_reshape_that_takes_axes_apart(perm: tuple[int, ...], parts: dict[int, tuple[int, ...]]) -> None:
    dims = [d for axis in perm for d in parts.get(axis, (SHAPE[axis],))]
    proto = sandwich("Reshape", perm, inputs={"s": np.array(dims)}, out_rank=len(dims))
    assert transposes(proto) <= 1


@pytest.mark.parametrize("shape", [(2, 15, 4), (5, 2, 12), (60, 2), (2, 2, 3, 10), (10, 3, 2, 2, 1)])
def test_reshape_that_joins_axes_blocks(shape: tuple[int, ...]) -> None:
    proto = sandwich("Reshape", (3, 0, 1, 2), inputs={"s": np.array(shape)}, out_rank=len(shape))
    assert transposes(proto) == 2


def test_a_size_picked_out_of_range_stays_an_error_of_the_run() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,M] x) => (float[A,B,C] y, int64[D] n) <int64[1] i = {3}> {
            t = Transpose<perm = [2, 1, 0]>(x)
            y = Transpose<perm = [2, 1, 0]>(t)
            k = Shape(t)
            n = Gather(k, i)
        }""")
    graph = from_proto(proto).graph
    assert PASS.run(graph, Context()) > 0
    assert ops(graph) == {"Identity": 1, "Shape": 1, "Gather": 2}
