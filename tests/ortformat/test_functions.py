"""Expanded functions compute what the functions do; onnx's node cases survive the format."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from node_cases import node_cases
from onnx import parser

from ortconv.errors import OrtconvError, UnsupportedError
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.functions import expand_functions
from ortconv.ortformat.reader import parse
from ortconv.ortformat.writer import serialize
from ortconv.runtime.session import Session
from tests.unoptimized import options

NEWEST = 26
PREFIXES = (
    "castlike",
    "mish",
    "hardswish",
    "swish",
    "group_normalization",
    "sce",
    "nllloss",
    "sequence_map",
    "center_crop",
)


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    return [c for c in node_cases() if all(o.version <= NEWEST for o in c.model.opset_import if not o.domain)]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and a.dtype != object:
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return str(a) == str(b)


def compare(case: Any) -> str:
    """Our file in onnxruntime against the case's own model there."""
    try:
        reference = ort.InferenceSession(case.model.SerializeToString(), options())
        feeds = {v.name: x for v, x in zip(reference.get_inputs(), case.data_sets[0][0], strict=True)}
        expected = reference.run(None, feeds)
    except Exception:
        return "not for onnxruntime"
    try:
        model = from_proto(case.model)
        expand_functions(model)
        verify(model.graph)
        data = b"".join(serialize(model))
    except UnsupportedError as error:
        return f"unsupported: {error.message}"
    assert b"".join(serialize(parse(data))) == data
    try:
        session = ort.InferenceSession(data, options())
    except Exception as error:
        return f"refused: {error}"
    return "same" if same(expected, session.run(None, feeds)) else "different"


@pytest.mark.slow
def test_function_cases(cases: list[Any]) -> None:
    chosen = [c for c in cases if c.name.removeprefix("test_").startswith(PREFIXES)]
    results = {c.name: compare(c) for c in chosen}
    seen = Counter(r.split(":")[0] for r in results.values())
    assert seen["different"] == seen["refused"] == 0, {k: r for k, r in results.items() if r[:3] in ("dif", "ref")}
    assert seen["same"] >= 100
    refusals = {r.split(" is ")[1] if " is " in r else r for r in results.values() if r.startswith("unsupp")}
    assert refusals <= {"not part of the ORT format"}


def test_nodes_of_a_body_are_named_after_their_node() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [act] a = HardSwish(x) y = HardSwish(a) }'
    model = from_proto(parser.parse_model(text))
    assert expand_functions(model) == 2
    assert [n.name for n in model.graph] == ["act/HardSigmoid", "act/Mul", "y/HardSigmoid", "y/Mul"]


@pytest.mark.parametrize(
    "name",
    [
        "attention_local_window_with_past",
        "causal_conv_with_state_silu_with_past_state",
        "linear_attention_gated_delta",
        "swiglu",
    ],
)
def test_bodies_whatever_is_left_out(name: str) -> None:
    """Inputs between others, and attributes with a default."""
    (case,) = [c for c in node_cases() if c.name == f"test_{name}"]
    model, node = from_proto(case.model), case.model.graph.node[0]
    assert expand_functions(model) >= 1
    verify(model.graph)
    assert node.op_type not in {n.op for n in model.graph.walk()}
    inputs, outputs = case.data_sets[0]
    session = Session(model)
    got = session.run(None, {a.name: x for a, x in zip(session.get_inputs(), inputs, strict=True)})
    for a, b in zip(got, outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "bias"),
    [("FastGelu(x)", ""), ("FastGelu(x, b)", "[4]"), ("FastGelu(x, b)", "[2,1]"), ("QuickGelu<alpha = 0.7>(x)", "")],
)
def test_gelus_of_doubles_have_the_bodies_of_onnxruntime(call: str, bias: str) -> None:
    other = f", double{bias} b" if bias else ""
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    message = parser.parse_model(f"{head} g (double[2,4] x{other}) => (double[2,4] y) {{ y = com.microsoft.{call} }}")
    draw = np.random.default_rng(0).standard_normal
    feeds = {"x": draw((2, 4)), **({"b": draw((2, 1) if "," in bias else 4)} if bias else {})}
    want = ort.InferenceSession(message.SerializeToString(), options()).run(None, feeds)
    model = from_proto(message)
    expand_functions(model)
    assert not {n.domain for n in model.graph} - {""}
    got = ort.InferenceSession(b"".join(serialize(model)), options()).run(None, feeds)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-14)


@pytest.mark.slow
def test_all_node_cases(cases: list[Any]) -> None:
    results = {c.name: compare(c) for c in cases}
    seen = Counter(r.split(":")[0] for r in results.values())
    assert seen["different"] == 0, [k for k, r in results.items() if r == "different"]
    assert seen["same"] > 1300
    # onnxruntime inserts casts around float16 operators without a kernel when it loads .onnx files, not when it loads .ort files
    for name, result in results.items():
        if result.startswith("refused"):
            assert "Could not find an implementation for" in result, name
            assert any(part in name for part in ("16", "precision")), name


def test_names_do_not_clash_and_types_are_known() -> None:
    model = from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[N,3] x, bool c) => (float[N,3] y, float[N,3] z) {
            Softplus_X__1 = Neg (x)
            y = Mish (Softplus_X__1)
            a = Mish (y)
            z = If (c) <then_branch = t () => (float[N,3] u) { u = Mish (a) },
                        else_branch = e () => (float[N,3] v) { v = Neg (a) }>
        }""")
    )
    assert expand_functions(model) == 3
    verify(model.graph)
    assert "Mish" not in {node.op for node in model.graph.walk()}
    assert [v.name for v in model.graph.outputs] == ["y", "z"]
    for node in model.graph.walk():
        assert node.out.dtype is not None
        assert node.out.shape is not None
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(4, 3)
    got = ort.InferenceSession(b"".join(serialize(model)), options()).run(None, {"x": x, "c": np.array(True)})

    def mish(v: Any) -> Any:
        return v * np.tanh(np.log1p(np.exp(v)))

    np.testing.assert_allclose(got[0], mish(-x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], mish(mish(mish(-x))), rtol=1e-5, atol=1e-6)


def test_nothing_to_expand() -> None:
    model = from_proto(
        parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    )
    assert expand_functions(model) == 0


def test_body_that_cannot_be_found_names_the_node() -> None:
    message = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x, float[2] l) => (float[2] y) { y = CastLike (x, l) }'
    )
    message.graph.node[0].name = "c"
    model = from_proto(message)
    model.graph.inputs[1].type = None
    with pytest.raises(OrtconvError) as raised:
        expand_functions(model)
    assert raised.value.node == "CastLike 'c'"


def test_types_without_a_kernel_are_named() -> None:
    model = from_proto(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (bfloat16[2] x) => (bfloat16[2] y) { y = Relu (x) }'
        )
    )
    with pytest.raises(UnsupportedError, match=r"no kernel for this operator of tensor\(bfloat16\)"):
        expand_functions(model)


def test_a_function_of_a_sequence_of_unknown_type_is_refused() -> None:
    """onnx's inliner would end the process."""
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2] x) => (seq(float[2]) y) {
        s = own.Split (x)
        y = SequenceMap (s) <body = b (float[2] a) => (float[2] r) { r = Relu(a) }>
    }"""
    model = from_proto(parser.parse_model(text))
    with pytest.raises(UnsupportedError, match=r"SequenceMap 'y': .*the type of 's' is not known"):
        expand_functions(model)
