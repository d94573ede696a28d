"""Rewriting for an accelerator: what comes of it is taken, computes the same, and nothing changes where that would not help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import numpy as np
import onnx
import pytest
from rewriting import ops, parse, random_feeds, run

from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.ir.graph import Ints
from ortconv.ir.model import Model
from ortconv.ir.text import text
from ortconv.ir.types import DType
from ortconv.ir.verify import verify
from ortconv.models import load
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer import catalog
from ortconv.optimizer.engine import Context
from ortconv.optimizer.recipe import make, names_of
from ortconv.partition import Target, partition
from ortconv.partition.limits import Limits
from ortconv.partition.profile import Copies, DeviceProfile
from ortconv.pipeline import Offload, Options, convert, optimize
from ortconv.pipeline.maximize_offload import maximize
from ortconv.pipeline.offload_gain import HINT, Gain
from tests.batches import slow_except
from tests.conftest import SAMPLES, SHARED_MODELS, SMALL
from tests.counting import calls

STRESS = {"stress_redundant_27k_op13", "stress_unrolled_lstm_ts13"}

WEIGHTS = "float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 1, 0, 2, 2, 2, 2}"
QDQ = "float s = {0.05}, int8 o = {-8}, int8 n = {0}"


def maximized(source: onnx.ModelProto | str, level: int = 31, opset: int = 17, **options: object) -> tuple[Model, Gain]:
    """The model after the rewrites, and what they gained; held against the source where they changed anything."""
    proto = parse(source, opset) if isinstance(source, str) else source
    limits = options.pop("limits", None)
    target = Target(feature_level=level, **options.pop("target", {}))
    model = from_proto(proto)
    gain = maximize(model.graph, target, make("basic", offload=True, **options).offload, Context(), limits)
    model.graph.prune()
    verify(model.graph)
    assert gain.after.refused <= gain.before.refused
    assert partition(model.graph, target).taken == gain.after.taken or limits
    if gain.rewrites:
        feeds = random_feeds(proto)
        for want, got in zip(run(proto, feeds), run(model_proto(model), feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return model, gain


def _pruned(source: onnx.ModelProto) -> str:
    model = from_proto(source)
    model.graph.prune()
    return text(model.graph)


# ---------------------------------------------------------------------- what is rewritten


@pytest.mark.parametrize(
    ("graph", "opset", "level", "rewrites"),
    [
        ("y = HardSwish(x)", 14, 27, ["HardSwishToClip"]),
        ("y = LayerNormalization(x, v)", 17, 29, ["LayerNormalizationToMeans"]),
        ("p = MatMul(x, w) y = Add(p, v)", 17, 27, ["MatMulToRows"]),
        ("y = Gelu<approximate = \"tanh\">(x)", 20, 27, ["GeluToTanh"]),
        ("y = Softmax(x)", 13, 28, ["SoftmaxToRows"]),
        ("y = Softmax<axis = 1>(x)", 13, 28, ["SoftmaxToLastAxis"]),
        ("y = Sub(x, v)", 13, 27, ["SubToAdd"]),
        ("y = Pow(x, two)", 13, 28, ["PowToMul"]),
        ("y = ReduceSum(x)", 13, 31, ["ReduceToMean"]),
        ("y = Elu(x)", 13, 29, ["EluToExp"]),
        ("y = Cos(x)", 13, 31, ["CosToSin"]),
        ("y = Clip(x, low)", 13, 29, ["ClipToMinMax"]),
        ("y = com.microsoft.QuickGelu(x)", 13, 27, ["SwishToSigmoid"]),
    ],
)  # fmt: skip
def test_a_refused_operator(graph: str, opset: int, level: int, rewrites: list[str]) -> None:
    head = f"g (float[2,3,4] x) => (float y) <{WEIGHTS}, float[4] v = {{1, 2, 3, 4}}, float two = {{2}}, float low = {{-2}}>"
    device = DeviceProfile(copies=Copies(0.0, 1e30))
    _, gain = maximized(f"{head} {{ {graph} }}", level, opset, limits=Limits(device=device))
    assert list(gain.rewrites) == rewrites
    assert (gain.before.taken < gain.before.nodes, gain.after.refused, gain.after.partitions) == (True, 0, 1)


def test_partitions_are_joined() -> None:
    _, gain = maximized(
        f"g (float[1,8,4] x) => (float y) <{WEIGHTS}>"
        "{ a = Tanh(x) b = MatMul(a, w) c = Sigmoid(b) d = HardSigmoid(c) y = Exp(d) }"
    )
    assert (gain.before.partitions, gain.after.partitions) == (3, 1)
    assert (gain.before.refused, gain.after.refused) == (2, 0)
    assert gain.rewrites == {"MatMulToRows": 1, "HardSigmoidToClip": 1}
    assert gain.after.multiply_adds == 8 * 4 * 4 > gain.before.multiply_adds


def test_masks_of_attention_are_computed_once() -> None:
    """Two layers whose scores are masked by one input, by different numbers."""
    model, gain = maximized(
        "g (float[1,4,4] x, int64[1,4] keys) => (float y)"
        "<int64 zero = {0}, float lowest = {-3.4028234663852886e38}, float low = {-10000}> {"
        "hidden = Equal(keys, zero) a = Mul(x, x) b = Where(hidden, lowest, a) c = Softmax(b)"
        "d = Mul(c, x) e = Where(hidden, low, d) f = Softmax(e)"
        "h = Mul(f, x) i = Where(hidden, low, h) y = Softmax(i) }"
    )
    assert gain.rewrites == {"WhereToMulAdd": 3}
    assert (gain.before.partitions, gain.after.partitions, gain.before.refused, gain.after.refused) == (4, 1, 4, 3)
    assert ops(model.graph)["Where"] == 2


def test_guards_of_attention_are_multiplications() -> None:
    """PyTorch sets rows without a key, which are NaN, to zero."""
    source = (
        "g (float[1,2,4,4] x, int64[1,4] keys) => (float y) <int64 zero = {0}, float lowest = {-inf}, float none = {0}> {"
        "hidden = Equal(keys, zero) mask = Where(hidden, lowest, none)"
        "a = MatMul(x, x) b = Add(a, mask) c = Softmax(b) n = IsNaN(c) d = Where(n, none, c) e = MatMul(d, x)"
        "f = MatMul(e, x) h = Add(mask, f) i = Softmax(h) o = IsNaN(i) j = Where(o, none, i) y = MatMul(j, x) }"
    )
    model, gain = maximized(source, limits=Limits())
    assert gain.rewrites == {"NanGuardToMul": 2}
    assert (gain.before.partitions, gain.after.partitions) == (3, 1)
    proto = parse(source, 17)
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    for keys in ([0, 0, 0, 0], [1, 0, 0, 1]):
        feeds = {"x": x, "keys": np.array([keys])}
        np.testing.assert_allclose(run(model_proto(model), feeds)[0], run(proto, feeds)[0], 1e-5, 1e-6)


def test_guards_of_finite_masks_vanish() -> None:
    """Rows whose keys are all excluded by the lowest finite number have equal weights, and no NaN."""
    source = (
        "g (float[1,2,4,4] x, bool[1,4] keys) => (float y) <float lowest = {-3.4028234663852886e38}, float none = {0}> {"
        "mask = Where(keys, none, lowest) a = MatMul(x, x) b = Add(a, mask) c = Softmax(b) n = IsNaN(c) d = Where(n, none, c)"
        "y = MatMul(d, x) }"
    )
    model, gain = maximized(source)
    assert gain.rewrites == {"NanGuardToWeights": 1}
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    feeds = {"x": x, "keys": np.zeros((1, 4), bool)}
    np.testing.assert_allclose(run(model_proto(model), feeds)[0], run(parse(source, 17), feeds)[0], 1e-5, 1e-6)


def test_guards_of_sums_of_masks() -> None:
    """Of two finite masks, the sum is infinite where both exclude a key: it excludes more than the keys of one mask."""
    source = (
        "g (float[1,2,4,4] x, float[4,4] mask) => (float y) <float none = {0}> {"
        "a = MatMul(x, x) b = Add(a, mask) c = Softmax(b) n = IsNaN(c) d = Where(n, none, c) e = MatMul(d, x)"
        "f = MatMul(e, x) h = Add(f, mask) i = Softmax(h) o = IsNaN(i) j = Where(o, none, i) y = MatMul(j, x) }"
    )
    model, gain = maximized(source)
    assert gain.rewrites == {"NanGuardToMul": 2}
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    low, out = -3.4028234663852886e38, -np.inf
    mask = np.array([[0, low, out, out], [low, low, out, out], [out] * 4, [low] * 4], np.float32)
    feeds = {"x": x, "mask": mask}
    np.testing.assert_allclose(run(model_proto(model), feeds)[0], run(parse(source, 17), feeds)[0], 1e-5, 1e-6)


@pytest.mark.parametrize(
    "graph",
    [
        "a = Exp(x) b = Greater(a, one) c = Where(b, one, a) y = Exp(c)",  # the accelerator computes the mask
        "a = Equal(k, zero) b = Where(a, one, x) y = Exp(b)",  # no node before it is on the accelerator
        "a = Exp(x) b = Equal(k, zero) y = Where(b, one, a)",  # no node behind it is
    ],
)
def test_masks_that_stay(graph: str) -> None:
    _, gain = maximized(
        f"g (float[2,4] x, int64[1,4] k) => (float y) <float one = {{1}}, int64 zero = {{0}}> {{ {graph} }}"
    )
    assert not gain.rewrites


def test_operators_on_integers() -> None:
    """The end of a network that onnxruntime quantized in its format QOperator, and a layer whose weights need a repair."""
    model, gain = maximized(
        "g (float[1,2,3,4] x) => (float[1,3] y) <float s = {0.05}, uint8 o = {120}, float t = {0.003}, uint8 u = {3},"
        "float k = {0.01}, int8 n = {0}, int64[2] shape = {1, 4}, int32[3] b = {500, -300, 20},"
        "int8[3,4] w = {1, -5, 25, 50, 0, 12, -10, 50, 10, 20, -30, 20}> {"
        "a = QuantizeLinear(x, s, o) b1 = com.microsoft.QLinearSigmoid(a, s, o, t, u)"
        "c = com.microsoft.QLinearConcat<axis = 1>(s, o, a, s, o, b1, t, u)"
        "d = com.microsoft.QLinearGlobalAveragePool(c, s, o, s, o) e = Reshape(d, shape)"
        "f = com.microsoft.QGemm<transB = 1>(e, s, o, w, k, n, b, s, o) y = DequantizeLinear(f, s, o) }"
    )
    assert gain.before.refused > 0
    assert (gain.after.refused, gain.after.partitions) == (0, 1)
    assert not [node for node in model.graph if node.domain]
    assert {"Concat", "AveragePool", "Reshape", "Gemm"} <= ops(model.graph).keys()


def test_a_rewrite_may_need_another() -> None:
    """A dilated convolution of one axis in groups: images of one row, and then one convolution for each group."""
    model, gain = maximized(
        "g (float[1,4,9] x) => (float y) <float[4,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 1, 0, 2, 2, 2, 2}>"
        "{ a = Relu(x) b = Conv<group = 2, dilations = [2]>(a, w) y = Relu(b) }"
    )
    assert gain.after.refused == 0
    assert ops(model.graph) == {"Relu": 2, "Unsqueeze": 1, "Slice": 2, "Conv": 2, "Concat": 1, "Squeeze": 1}


@pytest.mark.slow
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max"])
def test_thousands_of_operands(op: str) -> None:
    count = 1500
    steps = " ".join(f"x{i + 1} = Tanh(x{i})" for i in range(count))
    operands = ", ".join(f"x{i + 1}" for i in range(count))
    model, _ = maximized(f"g (float[2,2] x0) => (float[2,2] y) {{ {steps} y = {op}({operands}) }}")
    pairs = sum(node.op == ("Max" if op == "Max" else "Add") for node in model.graph)
    assert pairs == count - 1


def test_new_nodes_have_names_of_their_own() -> None:
    source = parse("g (float[2,3,4] x) => (float y) { a = Relu(x) y = HardSwish(a) }", 14)
    model, _ = maximized(source)
    source.graph.node[0].name = next(node.name for node in model.graph if node.op == "Clip")
    model, _ = maximized(source)
    assert len({node.name for node in model.graph}) == len(model.graph)


def test_reshapes_of_one_value_are_shared() -> None:
    model, _ = maximized(
        f"g (float[1,8,4] x) => (float y) <{WEIGHTS}> {{ a = Relu(x) b = MatMul(a, w) c = MatMul(a, w) d = Tanh(b) y = Add(d, c) }}"
    )
    assert ops(model.graph)["Reshape"] == 2


def test_signed_activations() -> None:
    text_of = (
        f"g (float[1,1,4,4] x) => (float y) <{QDQ}, int8[1,1,2,2] w = {{1, 2, 3, 4}}> {{"
        "a = QuantizeLinear(x, s, o) b = DequantizeLinear(a, s, o) v = DequantizeLinear(w, s, n) c = Conv(b, v)"
        "d = QuantizeLinear(c, s, o) y = DequantizeLinear(d, s, o) }"
    )
    model, gain = maximized(text_of, opset=13)
    assert (gain.before.taken, gain.after.refused, list(gain.rewrites)) == (0, 0, ["SignedToUnsigned"])
    types = {v.name: v.dtype for node in model.graph for v in node.outputs if v is not None}
    assert (types["a"], types["d"]) == (DType.UINT8, DType.UINT8)


HALF = "g (float16[{n},3,4,4] x) => (float16 y) {{ a = Relu(x) b = Sigmoid(a) y = Mul(a, b) }}"


def test_a_float16_model_is_computed_in_float32() -> None:
    model, gain = maximized(HALF.format(n=1))
    assert (gain.before.taken, gain.after.taken, gain.after.partitions) == (0, 3, 1)
    assert [node.op for node in model.graph] == ["Cast", "Relu", "Sigmoid", "Mul", "Cast"]
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [DType.FLOAT16] * 2


@pytest.mark.parametrize(
    ("size", "target"), [("n", {}), ("1", {"ep": "coreml", "coreml_format": "MLProgram"})], ids=["dynamic", "coreml"]
)
def test_float16_stays_where_float32_gains_nothing(size: str, target: dict[str, object]) -> None:
    source = parse(HALF.format(n=size))
    model = from_proto(source)
    gain = maximize(model.graph, Target(**target), make("basic", offload=True).offload, Context())  # type: ignore[arg-type]
    assert (text(model.graph), gain.rewrites) == (_pruned(source), {})


def test_a_float16_model_of_integers_goes_to_nnapi_in_8_bits(tmp_path: Path) -> None:
    """As ModelOpt writes it: the scales are float16, and the bias is not quantized."""
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 19]>
        g (float16[1,2,4,4] x) => (float16[1,2,4,4] y) <float16 s = {10854}, int8 z = {0}, int8[2,2,1,1] w = {100, -50, 25, 50},
            float16[2] k = {9503, 10158}, int8[2] n = {0, 0}, float16[2] b = {14336, 13312}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 0>(w, k, n)
            c = Conv(d, v, b) o = QuantizeLinear(c, s, z) y = DequantizeLinear(o, s, z) }"""
    )
    result = convert(source, tmp_path / "m.ort", use_nnapi=True, maximize_offload=True)
    assert {"Float16ToFloat32", "BiasQuantization", "SignedToUnsigned"} <= result.rewrites.keys()
    assert [len(p.nodes) for p in result.partitions or ()] == [result.nodes_after - 2]


def test_constant_operands_become_unsigned_as_well() -> None:
    text_of = (
        f"g (float[1,4] x) => (float y) <{QDQ}, int8[4] k = {{-100, 5, 0, 127}}> {{"
        "a = QuantizeLinear(x, s, o) b = DequantizeLinear(a, s, o) v = DequantizeLinear(k, s, n) c = Add(b, v)"
        "d = QuantizeLinear(c, s, o) y = DequantizeLinear(d, s, o) }"
    )
    model, gain = maximized(text_of, opset=13)
    assert (gain.after.refused, list(gain.rewrites)) == (0, ["SignedToUnsigned"])
    assert {v.dtype for node in model.graph if node.op == "DequantizeLinear" for v in node.inputs[:1] if v} == {
        DType.UINT8
    }


PER_CHANNEL = (
    "float s = {0.05}, uint8 o = {128}, float t = {0.2}, float[2] k = {0.02, 0.03}, int8[2] n = {0, 0},"
    "int8[3,2] w = {1, 2, 3, 4, -5, -6}, int8[2,3] r = {1, -2, 3, 4, -5, 6},"
    "int8[2,2,3] f = {1, 2, 3, 4, -5, -6, 7, 8, 9, 1, 2, 3},"
    "int32[2] b = {300, -200}, float[2] sb = {0.001, 0.0015}, int32[2] zb = {0, 0}"
)
READ, WRITE = (
    "a = QuantizeLinear(x, s, o) e = DequantizeLinear(a, s, o)",
    "q = QuantizeLinear(c, t, o) y = DequantizeLinear(q, t, o)",
)


@pytest.mark.parametrize(
    ("graph", "rule"),
    [
        ("float[2,4,3] x | v = DequantizeLinear<axis = 1>(w, k, n) c = MatMul(e, v)", "QDQProductToConv"),
        ("float[2,3] x | v = DequantizeLinear<axis = 0>(r, k, n) c = Gemm<transB = 1>(e, v)", "QDQProductToConv"),
        (
            "float[2,3] x | v = DequantizeLinear<axis = 1>(w, k, n) i = DequantizeLinear<axis = 0>(b, sb, zb)"
            " g = Gemm(e, v, i) c = Relu(g)",
            "QDQProductToConv",
        ),
        ("float[1,2,6] x | v = DequantizeLinear<axis = 0>(f, k, n) c = Conv<pads = [1, 1]>(e, v)", "QDQConv1DToConv2D"),
    ],
)
def test_units_of_other_shapes_stay_in_8_bits(graph: str, rule: str) -> None:
    source, _, unit = graph.partition(" | ")
    model, gain = maximized(f"g ({source}) => (float y) <{PER_CHANNEL}> {{ {READ} {unit} {WRITE} }}", opset=13)
    assert (gain.after.refused, list(gain.rewrites)) == (0, [rule])
    assert [node.op for node in model.graph if node.op in ("MatMul", "Gemm", "Conv")] == ["Conv"]


def test_weights_that_are_read_in_float_become_float() -> None:
    model, gain = maximized(
        f"g (float[2,4,3] x) => (float y) <{PER_CHANNEL}, float[2] h = {{1, 2}}> {{"
        "v = DequantizeLinear<axis = 1>(w, k, n) m = MatMul(x, v) y = Add(m, h) }",
        opset=13,
    )
    assert gain.after.refused == 0
    assert {"QDQWeightsToFloat", "MatMulToRows"} == set(gain.rewrites)
    assert "DequantizeLinear" not in ops(model.graph)


def test_signed_activations_stay_where_unsigned_ones_gain_nothing() -> None:
    source = parse(
        f"g (float[n,4] x) => (float y) <{QDQ}> {{ a = QuantizeLinear(x, s, o) y = DequantizeLinear(a, s, o) }}"
    )
    before = _pruned(source)
    model, gain = maximized(source)
    assert (text(model.graph), gain.rewrites) == (before, {})
    assert gain.advice == "give the inputs fixed shapes: --fix-dim n=N"


# ---------------------------------------------------------------------- what is not


@pytest.mark.parametrize(
    ("graph", "level"),
    [
        ("a = Relu(x) y = LayerNormalization(a, v)", 28),  # Sqrt needs 29
        ("a = Relu(x) b = IsNaN(a) y = Cast<to = 1>(b)", 31),
        ("a = Relu(x) b = Round(a) y = Relu(b)", 31),
        ("a = Relu(x) y = Tanh(a)", 31),
    ],
)
def test_nothing_changes_where_it_does_not_help(graph: str, level: int) -> None:
    source = parse(f"g (float[2,3,4] x) => (float y) <float[4] v = {{1, 2, 3, 4}}> {{ {graph} }}", 17)
    before = _pruned(source)
    model, gain = maximized(source, level)
    assert text(model.graph) == before
    assert gain.before == gain.after
    assert not gain.rewrites


ISLAND = "g (float[2,3,4] x) => (float y) { a = Round(x) b = HardSigmoid(a) y = Round(b) }"


def test_an_island_is_left_unless_it_saves_time() -> None:
    assert maximized(ISLAND)[1].rewrites == {}
    free = DeviceProfile(copies=Copies(0.0, 1e30))
    assert maximized(ISLAND, limits=Limits(device=free))[1].rewrites == {"HardSigmoidToClip": 1}


def test_a_partition_that_the_limits_leave_out_is_not_rewritten() -> None:
    source = "g (float[2,3,4] x) => (float y) { a = Relu(x) y = HardSigmoid(a) }"
    assert maximized(source)[1].rewrites == {"HardSigmoidToClip": 1}
    assert maximized(source, limits=Limits(min_nodes=9))[1].rewrites == {}


def test_behind_a_stop_op_nothing_is_rewritten() -> None:
    source = "g (float[2,3,4] x) => (float y) { a = Relu(x) b = Tanh(a) y = HardSigmoid(b) }"
    assert maximized(source, target={"stop_ops": ("Tanh",)})[1].rewrites == {}


def test_what_the_device_refuses_is_rewritten_into_what_it_runs() -> None:
    source = "g (float[2,3,4] x) => (float y) { a = Relu(x) b = Neg(a) y = Relu(b) }"
    assert maximized(source, target={"refused_ops": ("Neg",)})[1].rewrites == {"NegToMul": 1}
    assert maximized(source, target={"refused_ops": ("Neg", "Mul")})[1].rewrites == {}


def test_choices_of_passes_hold() -> None:
    source = "g (float[2,3,4] x) => (float y) { a = Relu(x) b = Erf(a) y = HardSigmoid(b) }"
    assert maximized(source)[1].rewrites == {"ErfToTanh": 1, "HardSigmoidToClip": 1}
    assert maximized(source, disable=["HardSigmoidToClip"])[1].rewrites == {"ErfToTanh": 1}


def test_none_runs_unasked() -> None:
    running = {n for passes in make("all").stages.values() for p in passes for n in names_of(p)}
    assert not running & {e.name for e in catalog.entries() if e.level == "offload"}
    assert all(e.opt_in and e.why_opt_in and e.counterpart for e in catalog.entries() if e.level == "offload")


# ---------------------------------------------------------------------- properties

OFFLOAD = [case for case in golden.cases() if case.id.startswith("offload/") and case.header.get("run") != "no"]


@pytest.mark.slow
@pytest.mark.parametrize("level", [*(pytest.param(level, marks=pytest.mark.slow) for level in (27, 28, 29)), 31])
def test_golden_cases(level: int) -> None:
    """Every golden case as a model of its own: never less is taken, and the numbers are the source's."""
    free = Limits(device=DeviceProfile(copies=Copies(0.0, 1e30)))
    rewritten = 0
    for case in OFFLOAD:
        source, model = case.proto(), from_proto(case.proto())
        gain = maximize(model.graph, Target(feature_level=level), make("basic", offload=True).offload, Context(), free)
        verify(model.graph)
        assert gain.after.refused <= gain.before.refused, case.id
        if gain.rewrites:
            rewritten += 1
            feeds = golden.feeds(source, 0, special=False)
            for want, got in zip(run(source, feeds), run(model_proto(model), feeds), strict=True):
                limit = 2e-3 if want.dtype == np.float16 else 1e-4  # roundings to float16 are left out
                np.testing.assert_allclose(got, want, rtol=limit, atol=limit, err_msg=case.id)
    assert rewritten > 20


@pytest.mark.parametrize("opset", slow_except([7], (7, 8, 9, 10, 11, 13, 19)))
def test_rules_keep_to_the_operator_set(opset: int) -> None:
    """Every golden case that is a model in an operator set stays one, and its numbers are the same."""
    rewritten = 0
    for case in OFFLOAD:
        source = case.proto()
        next(o for o in source.opset_import if not o.domain).version = opset
        feeds = golden.feeds(source, 0, special=False)
        try:
            onnx.checker.check_model(source)
            expected = run(source, feeds)
        except Exception:
            continue  # no model of this operator set
        model = from_proto(source)
        rewritten += bool(golden.optimize(model, case.passes()).trace)
        model.graph.prune()
        for want, got in zip(expected, run(model_proto(model), feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=case.id)
    assert rewritten > 20


def _chain(length: int) -> Model:
    body = " ".join(f"v{i + 1} = {'HardSigmoid' if i % 2 else 'Tanh'}(v{i})" for i in range(length))
    return from_proto(parse(f"g (float[2,3,4] v0) => (float v{length}) {{ {body} }}"))


@pytest.mark.slow
def test_time_grows_with_the_nodes() -> None:
    passes = make("basic", offload=True).offload

    def cost(length: int) -> int:
        model = _chain(length)
        return calls(lambda: maximize(model.graph, Target(), passes, Context()))

    cost(8)
    assert cost(400) < 4.6 * cost(100)


def _models() -> list[str]:
    index = SHARED_MODELS / "INDEX.json"
    return [m["name"] for m in json.loads(index.read_text())["models"]] if index.exists() else []


@pytest.mark.skipif(not _models(), reason="the shared models are not here")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SMALL else [pytest.mark.slow]) for n in _models() if n not in STRESS]
)
def test_shared_models(name: str) -> None:
    """Never fewer nodes are taken, never more refused, and partitions become fewer wherever anything is rewritten."""
    described = next(m for m in json.loads((SHARED_MODELS / "INDEX.json").read_text())["models"] if m["name"] == name)
    dims = {d: n for i in described["inputs"] for d, n in zip(i["shape"], i["fixed_shape"]) if isinstance(d, str)}
    for level in (27, 29, 31):
        model = load(SHARED_MODELS / described["file"], dims)
        gain = optimize(model, "basic", Target(feature_level=level), offload=Offload.WHERE_IT_HELPS).gain
        assert gain is not None
        verify(model.graph)
        assert gain.after.refused <= gain.before.refused
        assert gain.after.taken >= gain.before.taken
        assert gain.after.multiply_adds >= gain.before.multiply_adds
        assert bool(gain.rewrites) == (gain.after.refused < gain.before.refused)


# ---------------------------------------------------------------------- the command line

NET = f"g (float[1,8,4] x) => (float y) <{WEIGHTS}> {{ a = Tanh(x) b = MatMul(a, w) y = HardSigmoid(b) }}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(parse(NET).SerializeToString())
    return path


def test_convert(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = model.with_suffix(".ort")
    assert main(["convert", str(model), "--use-nnapi", "--maximize-offload", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["offload"]["rewrites"] == {"MatMulToRows": 1, "HardSigmoidToClip": 1}
    assert (found["offload"]["before"]["refused"], found["offload"]["after"]["refused"]) == (2, 0)
    assert len(found["partitions"]) == 1
    found = partition(load(output).graph)
    assert (len(found.partitions), found.coverage) == (1, 100.0)
    assert main(["convert", str(model), "--use-nnapi", "--maximize-offload"]) == 0
    assert "2 nodes fewer on the CPU by" in capsys.readouterr().out


def test_what_could_be_rewritten_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusals(*arguments: str) -> list[Any]:
        assert main([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return (found if arguments[0] == "partition" else found["models"][0])["refusals"]

    def advice(*arguments: str) -> str:
        return " ".join(row["advice"] for row in refusals("convert", str(model), *arguments))

    assert "Max and Min; --maximize-offload" not in advice("--use-nnapi", "--use-coreml")
    assert "Max and Min; --maximize-offload" in advice("--use-nnapi")
    model.write_bytes(parse(NET.replace("Tanh", "Erf")).SerializeToString())
    said = {row["op"]: HINT in str(row["advice"]) for row in refusals("partition", str(model))}
    assert said == {"Erf": True, "HardSigmoid": True, "MatMul": False}
    assert HINT not in str(refusals("partition", str(model), "--maximize-offload"))
    quantized = refusals("partition", str(SAMPLES / "qdq_cnn.onnx"))
    assert all("--maximize-offload" in str(row["advice"]) for row in quantized if row["rule"] == "qdq")
    assert "qdq" in {row["rule"] for row in quantized}


def test_convert_in_runtime_style(model: Path) -> None:
    result = convert(
        model, model.with_suffix(".ort"), use_nnapi=True, maximize_offload=True, optimization_style="Runtime"
    )
    assert result.offload is not None
    assert result.offload.after.refused == 0


def test_a_single_rewrite_by_name(model: Path) -> None:
    result = convert(model, model.with_suffix(".ort"), optimization_level="basic", enable_passes=("HardSigmoidToClip",))
    assert "Clip" in result.operators
    assert "HardSigmoid" not in result.operators


def test_rewrites_of_a_pipeline(model: Path) -> None:
    from ortconv.optimizer.recipe import text as written

    only = written(make("basic", enable=["MatMulToRows"]))
    for pipeline, rewrites in ((only, {"MatMulToRows"}), (written(make()), {"HardSigmoidToClip", "MatMulToRows"})):
        result = convert(model, model.with_suffix(".ort"), use_nnapi=True, maximize_offload=True, pipeline=pipeline)
        assert result.offload is not None
        assert set(result.offload.rewrites) == rewrites


def test_what_does_not_go_together() -> None:
    with pytest.raises(UsageError, match="one accelerator"):
        Options(maximize_offload=True)
    with pytest.raises(UsageError, match="one accelerator"):
        Options(maximize_offload=True, use_nnapi=True, use_coreml=True)
    with pytest.raises(UsageError, match="rewrites nothing"):
        Options(maximize_offload=True, use_nnapi=True, optimization_level="disable")


def test_partition(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", str(model), "--maximize-offload", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["offload"]["before"]["partitions"] == 1
    assert (found["nodes_taken"], found["nodes"]) == (
        found["offload"]["after"]["taken"],
        found["offload"]["after"]["nodes"],
    )
    assert main(["partition", str(model), "--maximize-offload"]) == 0
    assert "nodes fewer on the CPU" in " ".join(capsys.readouterr().out.split())
    assert main(["partition", str(model), "--maximize-offload", "--level", "extended"]) == 2


def test_sampling_points_of_several_levels() -> None:
    """Each level of deformable attention reads its part of the points, which are computed with six axes."""
    model, gain = maximized(
        """g (float[5,48] x, float[1,5,4] r, float[4,4,6,6] image) => (float[4,4,5,2] y, float[4,4,5,2] z)
        <int64[6] s = {1, 5, 4, 3, 2, 2}, int64[6] u = {1, 5, 1, 1, 1, 4}, int64[2] half = {2, 2}, int64 first = {0},
        int64 last = {2}, float half_of = {0.5}, int64[4] t = {4, 5, 2, 2}> {
            b = Reshape(r, u)
            start, size = Split<axis = -1>(b, half)
            a = Reshape(x, s)
            c = Mul(a, half_of)
            d = Mul(c, size)
            e = Add(start, d)
            f = Gather<axis = 3>(e, first)
            h = Transpose<perm = [0, 2, 1, 3, 4]>(f)
            i = Reshape(h, t)
            y = GridSample(image, i)
            j = Gather<axis = 3>(e, last)
            k = Transpose<perm = [0, 2, 1, 3, 4]>(j)
            l = Reshape(k, t)
            z = GridSample(image, l)
        }"""
    )
    assert gain.after.refused == 2, text(model.graph)
    assert sum(node.op == "Mul" for node in model.graph) == 2


def test_pooling_with_attributes_of_another_rank_stays() -> None:
    """PyTorch's exporter states them for images without a batch: such a model is invalid, no fault of a rewrite."""
    model = from_proto(
        parse("g (float[2,8,8] x) => (float[2,8,4] y) { y = MaxPool<kernel_shape = [2], strides = [2]>(x) }", 13)
    )
    (node,) = model.graph
    node.attrs = {"kernel_shape": Ints((2, 2)), "strides": Ints((2, 2)), "pads": Ints((0, 0, 0, 0))}
    gain = maximize(model.graph, Target(), make("basic", offload=True).offload, Context())
    assert not gain.rewrites
