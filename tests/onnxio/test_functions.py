"""Model-local functions: what comes of inlining them computes what onnxruntime computes."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import parser

from ortconv.errors import GraphError, OrtconvError, UnsupportedError
from ortconv.ir.model import Model
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from tests import unoptimized
from tests.batches import batched, slow_except

X = np.array([[-1.5, 0, 1], [2, 3, -4]], np.float32)


def proto_of(graph: str, *functions: str, opset: int = 18, own: int = 0, ir: int = 10) -> onnx.ModelProto:
    """A model of one graph and functions of the domain l, whose opset is `own` where it is not the model's."""
    bodies = "\n".join(
        f if f.startswith("<") else f'<domain: "l", opset_import: ["" : {own or opset}, "l" : 1]> {f}'
        for f in functions
    )
    return parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : {opset}, "l" : 1]>\ng (float[2, 3] x) => (float[A, B] y) {{ {graph} }}\n{bodies}'
    )


def run(proto: onnx.ModelProto) -> np.ndarray:
    result: np.ndarray = unoptimized.session(proto).run(["y"], {"x": X})[0]
    return result


def loaded(proto: onnx.ModelProto) -> Model:
    model = from_proto(proto)
    verify(model.graph)
    return model


LEAKY = "f <alpha: float = 0.7> (q) => (r) { r = LeakyRelu<alpha: float = @alpha>(q) }"
TWICE = "twice (q) => (r) { a = Neg(q) r = Exp(a) }"
BRANCH = """f <alpha: float = 0.25> (q) => (r) {
    c = Constant<value = bool {1}>()
    t = Neg(q)
    r = If(c) <
        then_branch = yes () => (z) { t2 = LeakyRelu<alpha: float = @alpha>(t) z = Add(t2, q) },
        else_branch = no () => (w) { w = Relu(q) }
    >
}"""

CASES = {
    "default": ("y = l.f(x)", LEAKY),
    "given instead of the default": ("y = l.f<alpha = 0.5>(x)", LEAKY),
    "default of ints": ("y = l.f(x)", "f <perm: ints = [0, 1]> (q) => (r) { r = Transpose<perm: ints = @perm>(q) }"),
    "default of a constant": (
        "y = l.f(x)", "f <k: float = 0.5> (q) => (r) { c = Constant<value_float: float = @k>() r = Mul(q, c) }"),
    "neither given nor a default": (
        "y = l.f(x)", "f <alpha> (q) => (r) { r = LeakyRelu<alpha: float = @alpha>(q) }"),
    "default of the function inside": (
        "y = l.g(x)", LEAKY, "g <alpha> (q) => (r) { r = l.f<alpha: float = @alpha>(q) }"),
    "default handed on": (
        "y = l.g(x)", LEAKY, "g <beta: float = 0.1> (q) => (r) { r = l.f<alpha: float = @beta>(q) }"),
    "called twice": ("a = l.twice(x) y = l.twice(a)", TWICE),
    "names of the graph": ("t = Neg(x) a = l.f(t) y = Add(a, t)", "f (x) => (y) { t = Abs(x) a = Exp(t) y = Neg(a) }"),
    "references in subgraphs": ("y = l.f<alpha = 0.5>(x)", BRANCH),
    "defaults in subgraphs": ("y = l.f(x)", BRANCH),
    "subgraphs twice": ("a = l.f(x) y = l.f(a)", BRANCH),
    "called in a subgraph": (
        "c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (z) { z = l.f(x) }, "
        "else_branch = e () => (w) { w = l.twice(x) }>", BRANCH, TWICE),
    "called in a subgraph of a function": (
        "y = l.g(x)", TWICE, """g (q) => (r) {
            c = Constant<value = bool {0}>()
            r = If(c) <then_branch = t () => (z) { z = Relu(q) }, else_branch = e () => (w) { w = l.twice(q) }>
        }"""),
    "input left out": ("y = l.f(x)", "f (q, least) => (r) { r = Clip(q, least) }"),
    "input named by nothing": ('y = l.f(x, "")', "f (q, least) => (r) { r = Clip(q, least) }"),
    "overloads": (
        "a = l.f:one(x) y = l.f:two(a)",
        '<domain: "l", overload: "one", opset_import: ["" : 18]> f (q) => (r) { r = Neg(q) }',
        '<domain: "l", overload: "two", opset_import: ["" : 18]> f (q) => (r) { r = Exp(q) }'),
    "named as an operator": ("y = Relu(x)", '<domain: "", opset_import: ["" : 18]> Relu (q) => (r) { r = Neg(q) }'),
}  # fmt: skip


@batched
@pytest.mark.parametrize("name", CASES)
def test_functions_compute_what_onnxruntime_computes(name: str) -> None:
    proto = proto_of(*CASES[name])
    model = loaded(proto)
    assert not any(node.domain == "l" for node in model.graph.walk())
    np.testing.assert_array_equal(run(model_proto(model)), run(proto))
    assert model.warnings == []


@pytest.mark.parametrize(
    ("body", "opset", "own"),
    [("r = Relu(q)", 20, 17), ("r = Softmax<axis = 0>(q)", 13, 11), ("r = Identity(q)", 18, 9), ("r = Neg(q)", 13, 20)],
)
def test_bodies_are_read_under_the_models_operator_sets(body: str, opset: int, own: int) -> None:
    proto = proto_of("y = l.f(x)", f"f (q) => (r) {{ {body} }}", opset=opset, own=own)
    np.testing.assert_array_equal(run(model_proto(loaded(proto))), run(proto))


def test_other_defaults_are_warned_of() -> None:
    model = loaded(proto_of("y = l.f(x)", "f (q) => (r) { r = Softmax(q) }", opset=13, own=11))
    assert model.warnings == [
        "function l:f is of opset 11, the model of opset 13: its Softmax has the model's defaults, as in ONNX Runtime"
    ]


def test_what_the_models_operator_sets_do_not_allow_is_converted() -> None:
    """onnxruntime refuses these: ReduceMean lost its attribute axes with opset 18."""
    proto = proto_of(
        "a = l.g(x) y = l.f:one(a)",
        '<domain: "l", overload: "one", opset_import: ["" : 11]> '
        "f <least: int = 1> (q) => (r) { a = LeakyRelu(q) r = ReduceMean<axes = [1]>(a) }",
        '<domain: "l", opset_import: ["" : 18, "l" : 1]> g (q) => (r) { r = Exp(q) }',
    )
    with pytest.raises(Exception, match="axes"):
        run(proto)
    (y,) = [run(model_proto(loaded(proto)))]
    np.testing.assert_allclose(y, np.exp(X).mean(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(
    ("graph", "functions", "message"),
    [
        ("y = l.f(x, x)", ["f (q) => (r) { r = Relu(q) }"], "2 inputs, but the function has 1"),
        ("y, z = l.f(x)", ["f (q) => (r) { r = Relu(q) }"], "2 outputs, but the function has 1"),
        ("y = l.f(x)", ["f (q) => (r) { r = Relu(q) }", "f (q) => (r) { r = Neg(q) }"], "two functions l:f"),
        ("y = l.f(x)", ["f (q) => (r) { s = Relu(q) }"], "'y' is not defined"),
        ("y = l.f(x)", ["f (q) => (r) { r = Relu(nothing) }"], "'nothing' is not defined"),
    ],
)
def test_invalid_functions(graph: str, functions: list[str], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        from_proto(proto_of(graph, *functions))


def test_functions_that_cannot_be_converted() -> None:
    with pytest.raises(UnsupportedError, match=r"function l:f uses another operator set version"):
        from_proto(proto_of("y = l.f(x)", "f (q) => (r) { r = Gelu(q) }", opset=17, own=20))


def drawn(seed: int) -> onnx.ModelProto:
    """Functions at random: each calls others that come later, with attributes, defaults and branches."""
    draw = random.Random(seed)
    functions = []
    count = draw.randint(1, 4)
    for i in range(count):
        lines, values = [], ["q", "p"]
        for j in range(draw.randint(1, 4)):
            a, b = draw.choice(values), draw.choice(values)
            name = draw.choice(["x", "y", "t", "v"]) + str(j)
            call = f"l.f{draw.randint(i + 1, count - 1)}" if i + 1 < count else ""
            forms = [f"{name} = Add({a}, {b})", f"{name} = LeakyRelu<alpha: float = @alpha>({a})"]
            forms += [f"{name} = {call}({a}, {b})", f"{name} = {call}<alpha: float = @alpha>({a}, {b})"] if call else []
            inner = f"LeakyRelu<alpha: float = @alpha>({a})" if draw.random() < 0.5 or not call else f"{call}({b}, {a})"
            forms.append(
                f"c{j} = Constant<value = bool {{{draw.randint(0, 1)}}}>() {name} = If(c{j}) "
                f"<then_branch = t () => (z) {{ x = {inner} z = Neg(x) }}, else_branch = e () => (w) {{ w = Sub({a}, {b}) }}>"
            )
            lines.append(draw.choice(forms))
            values.append(name)
        default = draw.choice(["alpha", f"alpha: float = {draw.choice([0.25, 0.5, 2.0])}"])
        functions.append(f"f{i} <{default}> (q, p) => (r) {{ {' '.join(lines)} r = Identity({values[-1]}) }}")
    given = draw.choice(["", "<alpha = 0.125>"])
    return proto_of(f"t0 = Neg(x) x0 = l.f0{given}(x, t0) y = l.f0(x0, x)", *functions)


@pytest.mark.parametrize("first", slow_except([0], (0, 25)))
def test_random_functions(first: int) -> None:
    for seed in range(first, first + 25):
        proto = drawn(seed)
        np.testing.assert_array_equal(run(model_proto(loaded(proto))), run(proto), err_msg=str(seed))


def test_errors_are_ours() -> None:
    proto = proto_of("y = l.f(x)", LEAKY)
    proto.functions[0].node[0].ClearField("output")
    with pytest.raises(OrtconvError):
        from_proto(proto)
