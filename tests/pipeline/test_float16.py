"""Conversion to float16: valid graphs, few Casts, numbers within the error budget, and float32 where float16 does not do."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ortconv
from ortconv.errors import UnsupportedError, UsageError
from ortconv.ir.graph import Node
from ortconv.ir.types import DType
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.cut import minimum_cut
from ortconv.optimizer.float16 import to_float16
from tests import text_models
from tests.batches import batched
from tests.conftest import SAMPLES


def model(body: str, opset: int = 17) -> onnx.ModelProto:
    return text_models.parse(body, opset)


def with_weights(proto: onnx.ModelProto, **weights: Any) -> onnx.ModelProto:
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return proto


def converted(proto: onnx.ModelProto, tmp_path: Path, **settings: Any) -> tuple[ortconv.Result, list[Node]]:
    """The result of a conversion that is proved on both engines, and the nodes of its file."""
    settings = {"optimization_level": "basic", **settings}
    result = ortconv.convert(proto, tmp_path / "x.ort", float16=True, **settings)
    assert result.float16 is not None
    graph = ortconv.load(tmp_path / "x.ort").graph
    verify(graph)
    return result, list(graph.walk())


DENSE = with_weights(
    model("g (float[n,8] x) => (float[n,4] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"),
    w=np.random.default_rng(0).normal(size=(8, 16)),
    v=np.random.default_rng(1).normal(size=(16, 4)),
)


@pytest.mark.parametrize("imports", ['"com.microsoft": 1', '"": 28, "com.microsoft": 1'])
def test_casts_of_a_model_without_operators_of_onnx(imports: str, tmp_path: Path) -> None:
    """The Casts have a version although no node of the source does, and onnxruntime 1.17 has their kernels."""
    signature = "g (float[n,4,12] x) => (float[n,4,4] y)"
    body = "y = com.microsoft.Attention <num_heads: int = 2> (x, w, b)"
    proto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {signature} {{ {body} }}")
    draw = np.random.default_rng(0).standard_normal
    result, nodes = converted(with_weights(proto, w=draw((12, 12)), b=draw(12)), tmp_path)
    assert nodes[-1].outputs[0].dtype is DType.FLOAT
    assert result.oldest_onnxruntime.release == "1.17"


@pytest.mark.parametrize(("op", "rows"), [("ScatterND", [[0], [2]]), ("ScatterElements", [[0, 2, 1, 0], [1, 1, 0, 2]])])
def test_sums_by_scatter_stay_float32(op: str, rows: list[list[int]], tmp_path: Path) -> None:
    """onnxruntime's float16 kernels throw when they run."""
    body = f'h = MatMul(x, w)  s = {op}<reduction = "add">(h, i, u)  y = MatMul(s, v)'
    proto = model(f"g (float[3,8] x, float[2,4] u) => (float[3,8] y) {{ {body} }}", 18)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(rows), "i"))
    draw = np.random.default_rng(0).standard_normal
    _, nodes = converted(with_weights(proto, w=draw((8, 4)), v=draw((4, 8))), tmp_path)
    assert next(n for n in nodes if n.op == op).out.dtype is DType.FLOAT


@pytest.mark.parametrize("seed", [48, 114, 188, 191])
def test_values_that_onnxruntime_does_not_round_count_in_the_budget(seed: int, tmp_path: Path) -> None:
    """The errors of operands and results cancel here; onnxruntime has only the first, beyond the budget."""
    draw = np.random.default_rng(seed).standard_normal
    body = "a = MatMul(x, u) b = Relu(a) c = MatMul(b, v) d = Relu(c) y = MatMul(d, w)"
    proto = model(f"g (float[1,8] x) => (float[1,1] y) {{ {body} }}")
    proto = with_weights(proto, u=draw((8, 8)), v=draw((8, 8)), w=draw((8, 1)))
    result, _ = converted(proto, tmp_path, optimization_level="all", error_budget=1e-3)
    assert result.float16 is not None
    assert result.float16.kept > 0


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_weights_become_float16_and_the_interface_stays(level: str, tmp_path: Path) -> None:
    result, _ = converted(DENSE, tmp_path, optimization_level=level)
    graph = ortconv.load(tmp_path / "x.ort").graph
    assert [v.dtype for v in (*graph.inputs, *graph.outputs)] == [DType.FLOAT] * 2
    assert {v.dtype for v in graph.initializers.values() if v.constant and v.constant.size > 4} == {DType.FLOAT16}
    assert result.float16 is not None
    assert (result.float16.nodes, result.float16.kept, result.float16.casts) == (3, 0, 2)
    assert result.float16.bytes_after * 2 == result.float16.bytes_before
    assert result.float16.error <= 0.01
    assert result.validation is not None
    assert result.validation.backend == "numpy and onnxruntime"


@pytest.mark.slow
@pytest.mark.parametrize("level", ["basic", "all"])
def test_samples_shrink(level: str, tmp_path: Path) -> None:
    for name in ("mnist", "mobilenet_v2_small", "bert_tiny"):
        plain = ortconv.convert(SAMPLES / f"{name}.onnx", tmp_path / "plain.ort", optimization_level=level)
        result = ortconv.convert(SAMPLES / f"{name}.onnx", tmp_path / "x.ort", optimization_level=level, float16=True)
        assert result.constants_after < 0.6 * plain.constants_after, name


def test_computed_shapes_stay_float32(tmp_path: Path) -> None:
    proto = with_weights(
        model(
            """g (float[n,3000] x) => (float[m] y) {
            s = Shape(x)  f = Cast<to=1>(s)  half = Mul(f, k)  p = ReduceProd<keepdims=1>(half)  t = Cast<to=7>(p)
            e = Expand(one, t)  l = MatMul(x, w)  z = ReduceSum<keepdims=0>(l)  y = Add(e, z) }"""
        ),
        k=[0.5, 1.0], one=[1.0], w=np.random.default_rng(0).normal(size=(3000, 2)),
    )  # fmt: skip
    result, nodes = converted(proto, tmp_path)
    kept = [n.op for n in nodes if n.op in ("Mul", "ReduceProd")]
    assert kept
    assert all(n.out.dtype is DType.FLOAT for n in nodes if n.op in kept)
    assert result.float16 is not None
    assert result.float16.nodes


def test_examples_are_in_the_order_of_the_graph(tmp_path: Path) -> None:
    steps = "".join(f"f{i} = Mul(f{i - 1}, k)  " for i in range(1, 5))
    proto = with_weights(
        model(
            f"""g (float[n,8] x) => (float[m] y) {{ s = Shape(x)  f0 = Cast<to=1>(s)  {steps}
            p = ReduceProd<keepdims=1>(f4)  t = Cast<to=7>(p)
            e = Expand(one, t)  l = MatMul(x, w)  z = ReduceSum<keepdims=0>(l)  y = Add(e, z) }}"""
        ),
        k=[0.5, 1.0], one=[1.0], w=np.random.default_rng(0).normal(size=(8, 2)),
    )  # fmt: skip
    found = converted(proto, tmp_path)[0].float16
    assert found is not None
    assert [example.split()[0] for example in found.examples] == ["Shape", "Cast", "Mul", "Mul", "Mul"]


@pytest.mark.parametrize(("constant", "reason"), [(1e6, "beyond"), (1e-12, "loses")])
def test_a_constant_that_float16_does_not_hold_keeps_its_reader(constant: float, reason: str, tmp_path: Path) -> None:
    proto = with_weights(
        model("g (float[2,8] x) => (float[2,4] y) { h = MatMul(x, w)  s = Abs(h)  y = Div(s, c) }"),
        w=np.random.default_rng(0).normal(size=(8, 4)), c=constant,
    )  # fmt: skip
    result, nodes = converted(proto, tmp_path, optimization_level="disable")
    assert next(n for n in nodes if n.op == "Div").out.dtype is DType.FLOAT
    assert result.float16 is not None
    assert reason in " ".join(result.float16.examples)


def test_values_out_of_range_stay_float32(tmp_path: Path) -> None:
    proto = with_weights(
        model("g (float[2,8] x) => (float[2,8] y) { s = Mul(x, c)  t = Mul(s, s)  r = Sqrt(t)  y = Mul(r, w) }"),
        c=1000.0, w=np.linspace(0.001, 1, 8),
    )  # fmt: skip
    given = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}
    result, _ = converted(proto, tmp_path, optimization_level="disable", validate_with=given)
    assert result.float16 is not None
    assert result.float16.reasons["values beyond 65504"] == 2
    got = ortconv.Session(tmp_path / "x.ort").run(None, given)[0]
    assert np.abs(got).max() > 900
    assert np.isfinite(got).all()


def test_subgraphs_keep_their_interface(tmp_path: Path) -> None:
    proto = with_weights(
        model(
            """g (bool c, float[2,8] x) => (float[2,8] y) {
            h = Relu(x)
            y = If(c) <
              then_branch = t () => (float[2,8] a) { p = MatMul(h, w)  a = Relu(p) },
              else_branch = e () => (float[2,8] b) { q = MatMul(x, w)  b = Neg(q) }
            > }"""
        ),
        w=np.random.default_rng(0).normal(size=(8, 8)),
    )  # fmt: skip
    result, nodes = converted(proto, tmp_path)
    assert [n.inputs[1].dtype for n in nodes if n.op == "MatMul" and n.inputs[1]]
    assert next(n for n in nodes if n.op == "If").out.dtype is DType.FLOAT
    assert result.float16 is not None
    assert result.float16.bytes_after * 2 == result.float16.bytes_before


def test_quantized_groups_stay_as_they_are(tmp_path: Path) -> None:
    result = ortconv.convert(SAMPLES / "qdq_cnn.onnx", tmp_path / "x.ort", float16=True)
    assert result.float16 is not None
    assert result.float16.nodes == 0
    assert any("QLinear" in op for op in result.operators)


def test_sums_of_integer_products_stay_float32() -> None:
    """Generated inputs keep them below 65504; other inputs need not."""
    proto = model("""g (float[2,2] x) => (float[2,2] y)
        <int8[2,2] w = {1, 2, 3, 4}, float k = {0.1}, float[2] b = {0.5, 1}> {
        q, s, z = DynamicQuantizeLinear(x) t = Mul(s, k)
        sums = MatMulInteger(q, w, z) f = Cast<to = 1>(sums) h = Mul(f, t) a = Add(h, b) y = Relu(a) }""")
    graph = from_proto(proto).graph
    to_float16(graph, set())
    types = {node.op: node.out.dtype for node in graph if node.op in ("Mul", "Add")}
    assert types == {"Mul": DType.FLOAT, "Add": DType.FLOAT16}
    assert all(n.out.dtype is DType.FLOAT for sums in graph if sums.op == "MatMulInteger" for n in sums.out.consumers)


def test_an_overridable_initializer_stays_float32(tmp_path: Path) -> None:
    proto = with_weights(
        model("g (float[2,8] x, float[8,4] w) => (float[2,4] y) { y = MatMul(x, w) }"),
        w=np.random.default_rng(0).normal(size=(8, 4)),
    )
    converted(proto, tmp_path)
    graph = ortconv.load(tmp_path / "x.ort").graph
    assert {v.name: v.dtype for v in graph.inputs} == {"x": DType.FLOAT, "w": DType.FLOAT}


def test_an_output_that_others_read_keeps_its_name(tmp_path: Path) -> None:
    proto = with_weights(
        model("g (float[2,8] x) => (float[2,8] h, float[2,8] y) { h = MatMul(x, w)  y = MatMul(h, w) }"),
        w=np.random.default_rng(0).normal(size=(8, 8)),
    )
    result, _ = converted(proto, tmp_path, optimization_level="disable")
    assert result.float16 is not None
    assert result.float16.casts == 3
    assert [v.name for v in ortconv.load(tmp_path / "x.ort").graph.outputs] == ["h", "y"]


def test_the_budget_decides(tmp_path: Path) -> None:
    errors = []
    for budget in (1e-2, 1e-4, 1e-9):
        result, _ = converted(DENSE, tmp_path, error_budget=budget)
        assert result.float16 is not None
        assert result.float16.error <= budget
        errors.append(result.float16.nodes)
    assert errors[0] == 3
    assert errors[-1] == 0


def test_float16_for_nnapi_is_doubted(tmp_path: Path) -> None:
    result, _ = converted(DENSE, tmp_path, use_nnapi=True)
    assert ["NNAPI_FLAG_USE_FP16" in text for text in result.warnings] == [True]
    result, _ = converted(DENSE, tmp_path, use_coreml=True)
    assert result.warnings == []


CHOOSING = with_weights(
    model("g (float[64,8] x) => (float[64,16] y, int64[64,1] i) { y = MatMul(x, w)  i = ArgMax <axis = 1> (y) }"),
    w=np.random.default_rng(0).normal(size=(8, 1)) + np.random.default_rng(1).normal(size=(8, 16)) * 1e-4,
)


def test_where_noise_decides_nothing_real_inputs_are_asked_for(tmp_path: Path) -> None:
    result, _ = converted(CHOOSING, tmp_path)
    assert result.float16 is not None
    assert result.float16.reasons == {"error budget": 2}
    assert "ArgMax" in (result.float16.advice or "")
    assert "--validate-with" in (result.float16.advice or "")
    given = {"x": np.eye(64, 8, dtype=np.float32)}
    result, _ = converted(CHOOSING, tmp_path, validate_with=given)
    assert result.float16 is not None
    assert result.float16.advice is None


@pytest.mark.parametrize("name", ["MatMul", "first", "h"])
def test_named_nodes_stay_float32(name: str, tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(DENSE)
    proto.graph.node[0].name = "first"
    _, nodes = converted(proto, tmp_path, optimization_level="disable", keep_float32=[name])
    types = [n.inputs[1].dtype for n in nodes if n.op == "MatMul" and n.inputs[1]]
    producers = [n.inputs[1].producer for n in nodes if n.op == "MatMul" and n.inputs[1]]
    assert types == [DType.FLOAT, DType.FLOAT]
    assert producers[0] is None
    assert (producers[1] is None) == (name == "MatMul")


def test_wrong_options_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no node of this name") as caught:
        converted(DENSE, tmp_path, keep_float32=["MatMull"])
    assert "MatMul" in str(caught.value.hint)
    for settings in ({"error_budget": 0.1}, {"keep_float32": ["x"]}, {"float16": True, "verify_each": True}):
        with pytest.raises(UsageError):
            ortconv.Options(**settings)  # type: ignore[arg-type]


def test_a_model_that_cannot_run_is_not_converted(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot be measured"):
        ortconv.convert(DENSE, tmp_path / "x.ort", float16=True, validate_budget="20s,1B")
    assert not (tmp_path / "x.ort").exists()


def test_every_single_node_may_stay_float32() -> None:
    """Whatever is kept, the graph is well typed and computes nearly the same."""
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    want = ortconv.Session(from_proto(DENSE)).run(None, {"x": x})[0]
    nodes = len(DENSE.graph.node)
    for keep in itertools.product((False, True), repeat=nodes):
        made = from_proto(DENSE)
        done = to_float16(made.graph, {n for n, kept in zip(list(made.graph), keep, strict=True) if kept})
        verify(made.graph)
        got = ortconv.Session(made).run(None, {"x": x})[0]
        assert np.abs(got - want).max() < 0.01 * np.abs(want).max()
        assert (done.nodes == 0) == (made.graph.outputs[0].producer is not None and all(keep[::2]))


@batched
@pytest.mark.parametrize("seed", range(40))
def test_minimum_cut_is_minimal_and_the_largest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    values = [
        (int(rng.integers(-1, count)), [int(n) for n in rng.integers(-1, count, int(rng.integers(1, 4)))])
        for _ in range(int(rng.integers(1, 10)))
    ]
    fixed = {n for n in range(count) if rng.random() < 0.3}

    def cost(inner: set[int]) -> int:
        return sum(any((r in inner) is not (p in inner) for r in readers) for p, readers in values)

    every = [{n for n in range(count) if bits >> n & 1} | fixed for bits in range(1 << count)]
    least = min(map(cost, every))
    found = minimum_cut(count, values, fixed)
    assert fixed <= found
    assert cost(found) == least
    assert all(inner <= found for inner in every if cost(inner) == least)
