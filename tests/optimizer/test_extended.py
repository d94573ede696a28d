"""Fusions into ONNX Runtime's own float operators: FusedConv, FusedGemm, FusedMatMul."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from golden import passes_in
from onnx import TensorProto, helper
from rewriting import check, ops, optimized, parse, random_feeds, run

from ortconv import pipeline
from ortconv.ir.graph import Floats
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer import extended, layout
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.permutation import operand_perm
from tests.batches import batched, sampled, slow_except

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast


def conv(tail: str, *, opset: int = 13, domain: str = "", x: str = "float[1,3,8,8]", more: str = "") -> onnx.ModelProto:
    """A Conv `c` of x, w, b followed by what the text says."""
    kind = x.split("[")[0]
    rank = x.count(",") + 1
    kernel = ",".join("3" for _ in range(rank - 2))
    return parse(
        f"""g ({x} x, {kind}[4,3,{kernel}] w, {kind}[4] b{more}) => ({kind} y) {{
            c = {domain}Conv<pads = [{",".join("1" for _ in range(2 * rank - 4))}]>(x, w, b)
            {tail}
        }}""",
        opset,
    )


CONV_ACTIVATIONS = {
    "Relu": ("y = Relu(c)", None),
    "Sigmoid": ("y = Sigmoid(c)", None),
    "Tanh": ("y = Tanh(c)", None),
    "LeakyRelu": ("y = LeakyRelu<alpha = 0.3>(c)", (0.3,)),
    "LeakyRelu default": ("y = LeakyRelu(c)", (0.01,)),
    "HardSigmoid": ("y = HardSigmoid<alpha = 0.3, beta = 0.4>(c)", (0.3, 0.4)),
    "HardSigmoid default": ("y = HardSigmoid(c)", (0.2, 0.5)),
    "Clip": ("lo = Constant<value_float = -0.5>() hi = Constant<value_float = 6.0>() y = Clip(c, lo, hi)", (-0.5, 6.0)),
    "Clip high only": ("hi = Constant<value_float = 1.0>() y = Clip(c, , hi)", (-3.4028234663852886e38, 1.0)),
    "Clip bare": ("y = Clip(c)", (-3.4028234663852886e38, 3.4028234663852886e38)),
    "Clip crossed": ("lo = Constant<value_float = 1.0>() hi = Constant<value_float = -1.0>() y = Clip(c, lo, hi)", (1.0, -1.0)),
}  # fmt: skip


@batched
@pytest.mark.parametrize("case", CONV_ACTIVATIONS)
@pytest.mark.parametrize("x", ["float[1,3,8,8]", "float[2,3,9]", "float[1,3,4,5,6]"])
def test_conv_activation(case: str, x: str) -> None:
    tail, params = CONV_ACTIVATIONS[case]
    graph, _ = check(conv(tail, x=x), extended.PASSES)
    (node,) = graph
    assert (node.domain, node.op) == ("com.microsoft", "FusedConv")
    assert node.attrs["activation"] == case.split()[0]
    got = node.attrs.get("activation_params")
    assert (got is None) == (params is None)
    if params is not None:
        assert isinstance(got, Floats)
        assert np.allclose(got, params)
    assert graph.opset("com.microsoft") == 1


def test_nan_passes_through_every_conv_activation() -> None:
    for tail, _ in CONV_ACTIVATIONS.values():
        proto = conv(tail)
        feeds = random_feeds(proto)
        feeds["x"][0, 1, 3, 3] = np.nan
        feeds["x"][0, 1, 6, 6] = np.inf
        check(proto, extended.PASSES, feeds=feeds)


@pytest.mark.parametrize(
    ("tail", "options"),
    [
        ("y = Elu(c)", {}),
        ("y = Softplus(c)", {}),
        ("y = Clip(c, k)", {"more": ", float k"}),
        ("d = Relu(c) y = Add(c, d)", {}),
        ("y = Relu(c)", {"x": "double[1,3,8,8]"}),
        ("y = Relu(c)", {"x": "float16[1,3,8,8]"}),
    ],
)
def test_conv_activation_refused(tail: str, options: dict[str, object]) -> None:
    assert not optimized(conv(tail, **options), extended.PASSES)[1].trace  # type: ignore[arg-type]


def test_nan_bound_is_refused() -> None:
    proto = conv("y = Clip(c, lo)")
    proto.graph.initializer.append(helper.make_tensor("lo", TensorProto.FLOAT, [], [float("nan")]))
    assert not optimized(proto, extended.PASSES)[1].trace


GEMM_ACTIVATIONS = {
    "Relu": {},
    "Sigmoid": {},
    "Tanh": {},
    "Softsign": {},
    "Softplus": {},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
}


@batched
@pytest.mark.parametrize("activation", GEMM_ACTIVATIONS)
@pytest.mark.parametrize("bias", ["", ", c"])
def test_gemm_activation(activation: str, bias: str) -> None:
    text = f"""g (float[5,4] a, float[6,4] b, float[6] c) => (float y) {{
        t = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(a, b{bias})
        y = {activation}(t)
    }}"""
    proto = parse(text)
    feeds = random_feeds(proto)
    feeds["a"][0, 0] = np.nan
    graph, _ = check(proto, extended.PASSES, feeds=feeds)
    (node,) = graph
    assert (node.domain, node.op, node.attrs["activation"]) == ("com.microsoft", "FusedGemm", activation)
    for name, value in GEMM_ACTIVATIONS[activation].items():
        assert node.attrs[f"activation_{name}"] == pytest.approx(value)


@pytest.mark.parametrize("rows", [0, 1])
def test_gemm_activation_of_few_rows(rows: int) -> None:
    text = f"g (float[{rows},4] a, float[4,6] b) => (float y) {{ t = Gemm(a, b) y = Relu(t) }}"
    assert check(text, extended.PASSES)[1].counts() == {"GemmActivationFusion": 1}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[5,4] a, float[4,6] b) => (float y) { t = Gemm(a, b) y = Clip(t) }",
        "g (float[5,4] a, float[4,6] b) => (float y) { t = Gemm(a, b) y = Celu(t) }",
        "g (double[5,4] a, double[4,6] b) => (double y) { t = Gemm(a, b) y = Relu(t) }",
        "g (float[5,4] a, float[4,6] b) => (float y) { t = Gemm(a, b) u = Relu(t) y = Sub(t, u) }",
        "g (float[5,4] a, float[4,6] b) => (float y, float t) { t = Gemm(a, b) y = Relu(t) }",
    ],
)
def test_gemm_activation_refused(text: str) -> None:
    assert not optimized(parse(text), extended.PASSES)[1].trace


def matmul_of_transposed(rank: int, perm_a: tuple[int, ...], perm_b: tuple[int, ...], kind: str) -> onnx.ModelProto:
    batch = [2, 3, 5][: rank - 2]
    shapes = []
    for perm, last in ((perm_a, [6, 4]), (perm_b, [4, 7])):
        seen = batch + last
        shapes.append([seen[perm.index(axis)] for axis in range(rank)])
    a, b = (",".join(map(str, shape)) for shape in shapes)
    return parse(
        f"""g ({kind}[{a}] a, {kind}[{b}] b) => ({kind} y) {{
            s = Transpose<perm = [{",".join(map(str, perm_a))}]>(a)
            t = Transpose<perm = [{",".join(map(str, perm_b))}]>(b)
            y = MatMul(s, t)
        }}"""
    )


def _forms(rank: int) -> list[tuple[int, ...]]:
    return [operand_perm(rank, t, b) for t in (0, 1) for b in ((0, 1) if rank > 2 else (0,))]


@pytest.mark.parametrize("rank", slow_except([3], [2, 3, 4, 5]))
@pytest.mark.parametrize("kind", ["float", "double"])
def test_transposed_operands(rank: int, kind: str) -> None:
    for perm_a, perm_b in itertools.product(_forms(rank), repeat=2):
        graph, _ = check(matmul_of_transposed(rank, perm_a, perm_b, kind), extended.PASSES)
        assert ops(graph) == {"com.microsoft.FusedMatMul": 1}, (perm_a, perm_b)


@batched
@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_only_the_permutations_that_fused_matmul_has(perm: tuple[int, ...]) -> None:
    graph, _ = check(matmul_of_transposed(4, perm, (0, 1, 2, 3), "float"), extended.PASSES)
    assert ops(graph).get("Transpose", 0) == (perm not in _forms(4))


@pytest.mark.parametrize(
    ("a", "b", "perm", "fires"),
    [
        ("5,3,6,4", "7,4", "[1,0]", True),
        ("6,4", "2,7,4", "[0,2,1]", True),
        ("6,4", "4,2,7", "[1,0,2]", False),
        ("4", "2,7,4", "[0,2,1]", False),
        ("1,6,4", "4,2,7", "[1,0,2]", True),
        ("0,6,4", "0,7,4", "[0,2,1]", True),
    ],
)
def test_transposed_operand_beside_another_rank(a: str, b: str, perm: str, fires: bool) -> None:
    text = f"g (float[{a}] a, float[{b}] b) => (float y) {{ t = Transpose<perm = {perm}>(b) y = MatMul(a, t) }}"
    assert bool(check(text, extended.PASSES)[1].trace) == fires


SCALES = {
    "a": "s = Mul(a, k) y = MatMul(s, b)",
    "a first": "s = Mul(k, a) y = MatMul(s, b)",
    "b": "s = Mul(b, k) y = MatMul(a, s)",
    "a divided": "s = Div(a, k) y = MatMul(s, b)",
    "product": "s = MatMul(a, b) y = Mul(s, k)",
    "product first": "s = MatMul(a, b) y = Mul(k, s)",
    "product divided": "s = MatMul(a, b) y = Div(s, k)",
    "all": "s = Mul(a, k) t = Div(b, k) u = MatMul(s, t) v = Mul(u, k) y = Div(v, k)",
    "both the same": "s = Mul(a, k) t = Transpose<perm = [0, 2, 1]>(s) y = MatMul(s, t)",
}


@sampled(4)
@pytest.mark.parametrize("case", SCALES)
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("k", ["{kind} k = {{0.125}}", "{kind}[1] k = {{0.125}}", "{kind}[1,1,1] k = {{0.125}}"])
def test_scaled(case: str, kind: str, k: str) -> None:
    text = f"g ({kind}[2,5,4] a, {kind}[2,4,6] b) => ({kind} y) <{k.format(kind=kind)}> {{ {SCALES[case]} }}"
    graph, _ = check(text, extended.PASSES)
    assert ops(graph) == {"com.microsoft.FusedMatMul": 1}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,5,4] a, float[2,4,6] b) => (float y) <float k = {0.0}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float[2,5,4] a, float[2,4,6] b) => (float y) <float k = {0.0}> { s = MatMul(a, b) y = Div(s, k) }",
        "g (float[2,5,4] a, float[2,4,6] b) => (float y) <float k = {1e-44}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float[2,5,4] a, float[2,4,6] b) => (float y) <float k = {2.0}> { s = MatMul(a, b) y = Div(k, s) }",
        "g (float[2,5,4] a, float[2,4,6] b, float k) => (float y) { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float[2,5,4] a, float[2,4,6] b) => (float y) <float[1,1,1,1] k = {2.0}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float[4] a, float[4] b) => (float y) <float[1] k = {2.0}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (double[2,5,4] a, double[2,4,6] b) => (double y) <double k = {0.1}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float16[2,5,4] a, float16[2,4,6] b) => (float16 y) <float16 k = {2}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (int32[2,5,4] a, int32[2,4,6] b) => (int32 y) <int32 k = {2}> { s = MatMul(a, b) y = Mul(s, k) }",
        "g (float[2,5,4] a, float[2,4,6] b) => (float y, float s) <float k = {2.0}> { s = MatMul(a, b) y = Mul(s, k) }",
    ],
)  # fmt: skip
def test_scale_refused(text: str) -> None:
    assert not optimized(parse(text), extended.PASSES)[1].trace


def test_fusion_is_left_out_at_the_limit() -> None:
    _, context = optimized(conv("y = Relu(c)"), extended.PASSES, Context(PassSettings(limit=0)))
    assert not context.trace


@batched
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "tail", ["y = Add(c, z)", "y = Add(z, c)", "s = Add(c, z) y = Relu(s)", "s = Add(c, z) y = Clip(s)"]
)
@pytest.mark.parametrize("dims", ["1,4,6,6", "N,4,6,6", "N,4,H,W"])
def test_conv_add(bias: bool, tail: str, dims: str) -> None:
    proto = parse(
        f"""g (float[{dims}] x, float[{dims}] z, float[4,4,1,1] w, float[4] b) => (float y) {{
            c = Conv(x, w{", b" if bias else ""}) {tail} }}"""
    )
    feeds = random_feeds(proto)
    feeds["z"].flat[3] = np.nan
    graph, _ = check(proto, (*passes_in("propagation"), *layout.PASSES), feeds=feeds)
    (node,) = graph
    assert (node.op, len(node.inputs)) == ("FusedConv", 4)
    assert (node.inputs[2] is not None) == bias
    assert ("activation" in node.attrs) == ("s =" in tail)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_conv_add_of_groups_strides_and_dilations(group: int) -> None:
    text = f"""g (float[2,4,9,10] x, float[2,8,4,4] z, float[8,{4 // group},3,3] w, float[8] b) => (float y) {{
        c = Conv<group = {group}, strides = [2, 2], dilations = [1, 2], pads = [0, 1, 0, 1]>(x, w, b)
        s = Add(c, z) y = LeakyRelu(s) }}"""
    assert ops(check(text, (*passes_in("propagation"), *layout.PASSES))[0]) == {"com.microsoft.FusedConv": 1}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,4,6,6] x, float[1,4,1,1] z, float[4,4,1,1] w) => (float y) { c = Conv(x, w) y = Add(c, z) }",
        "g (float[N,4,6,6] x, float[M,4,6,6] z, float[4,4,1,1] w) => (float y) { c = Conv(x, w) y = Add(c, z) }",
        "g (float[1,4,6] x, float[1,4,6] z, float[4,4,1] w) => (float y) { c = Conv(x, w) y = Add(c, z) }",
        "g (float[1,4,6,6] x, float[4,4,1,1] w) => (float y) { c = Conv(x, w) y = Add(c, c) }",
        "g (double[1,4,6,6] x, double[1,4,6,6] z, double[4,4,1,1] w) => (double y) { c = Conv(x, w) y = Add(c, z) }",
        "g (float[1,4,6,6] x, float[1,4,6,6] z, float[4,4,1,1] w) => (float y, float c) { c = Conv(x, w) y = Add(c, z) }",
        "g (float[1,4,6,6] x, float[1,4,6,6] z, float[4,4,1,1] w) => (float y) { c = Conv(x, w) y = Sub(c, z) }",
    ],
)  # fmt: skip
def test_conv_add_refused(text: str) -> None:
    assert not optimized(parse(text), (*passes_in("propagation"), *layout.PASSES))[1].trace


def test_scale_and_shift_behind_a_concat_become_part_of_the_convolutions() -> None:
    """Channels of two Convs are normalized together, as in NASNet of Keras, whose exporter writes Mul and Add."""
    text = """g (float[1,3,8,8] x, float[2,3,3,3] v, float[2,3,3,3] w) => (float[1,4,6,6] y)
<float[4,1,1] k = {1.5, 2, 0.5, 3}, float[4,1,1] b = {1, 2, 3, 4}> {
  c = Conv(x, v)
  d = Conv(x, w)
  j = Concat<axis = 1>(c, d)
  s = Mul(j, k)
  t = Add(s, b)
  y = Relu(t)
}"""
    proto = parse(text, 13)
    drawn = np.random.default_rng(3)
    for value in list(proto.graph.input)[1:]:
        weights = drawn.random([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, value.name))
        proto.graph.input.remove(value)
    model, feeds = from_proto(proto), random_feeds(proto)
    pipeline.optimize(model, "extended", None)
    assert ops(model.graph) == {"com.microsoft.FusedConv": 2, "Concat": 1}
    (want,), (got,) = run(proto, feeds), run(model_proto(model), feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5)
