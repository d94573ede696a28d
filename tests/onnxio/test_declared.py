"""Declared types against inferred ones, and operator sets that are used without an import."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import small_models
from onnx import TensorProto, helper, parser

from ortconv.errors import GraphError, OrtconvError
from ortconv.ir.graph import Graph
from ortconv.ir.schema import is_deterministic
from ortconv.ir.types import TensorType
from ortconv.ir.verify import verify
from ortconv.models import load
from ortconv.onnxio.imports import KNOWN
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto

loaded = partial(small_models.parsed, header='ir_version: 9, opset_import: ["" : 17, "c" : 1]')


def shapes(graph: Graph) -> dict[str, str]:
    return {v.name: str(v.type) for node in graph.walk() for v in node.outputs if v is not None}


CONTRADICTIONS = {
    "an inner value": ("float[4, 3] x", "float[4, 3] y", "float[1, 3] a", "a = Relu(x) y = Neg(a)"),
    "an output": ("float[4, 3] x", "float[1, 3] y", "", "a = Relu(x) y = Neg(a)"),
    "another rank": ("float[4, 3] x", "float[4, 3] y", "float[12] a", "a = Relu(x) y = Neg(a)"),
    "a number for a free dimension": ("float[N, 3] x", "float[1, 3] y", "float[1, 3] a", "a = Relu(x) y = Neg(a)"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_dropped_with_a_warning(name: str) -> None:
    reads, returns, inner, body = CONTRADICTIONS[name]
    model = loaded(f"g ({reads}) => ({returns}) <{inner}> {{ {body} }}")
    expected = reads.removesuffix(" x").replace(", ", ",")
    assert set(shapes(model.graph).values()) == {expected}
    (warning,) = model.warnings
    assert warning.startswith("declared shapes contradict the graph and are not used: '")


def test_a_number_for_a_free_dimension_that_only_another_declaration_names() -> None:
    """onnx takes the number where it infers a symbol."""
    body = "a = c.Own(x) b = Relu(a) y = Neg(b)"
    model = loaded(f"g (float[N, 3] x) => (float[N, 5] y) <float[N, 5] a, float[7, 5] b> {{ {body} }}")
    assert "7" not in "".join(shapes(model.graph).values())
    (warning,) = model.warnings
    assert warning.endswith("not used: 'b' is declared as float[7,5], but is float[N,unk__0]")
    model = loaded(f"g (float[N, 3] x) => (float[N, 5] y) <float[N, 5] a> {{ {body} }}")
    assert set(shapes(model.graph).values()) == {"float[N,5]"}
    assert not model.warnings


RANKS = {
    "Unsqueeze": ("float[4, 3] x, int64[2] k", "float[1, 4, 3] y", 4),
    "Squeeze": ("float[1, 4, 1, 3] x, int64[1] k", "float[4, 3] y", 3),
}


@pytest.mark.parametrize("op", RANKS)
def test_ranks_that_computed_axes_do_not_give_are_dropped(op: str) -> None:
    reads, returns, rank = RANKS[op]
    model = loaded(f"g ({reads}) => ({returns}) {{ y = {op}(x, k) }}")
    assert model.graph.outputs[0].rank is None
    (warning,) = model.warnings
    assert warning.endswith(f"but has rank {rank}")
    right = f"float[{', '.join('1' * rank)}] y"
    assert loaded(f"g ({reads}) => ({right}) {{ y = {op}(x, k) }}").warnings == []


def test_a_wrong_rank_of_a_resize_by_scales_of_many_digits_is_dropped() -> None:
    model = loaded("g (float[1, 1, 2, 4] x) => (float y) <float[4] k = {1, 1, 0.6, 0.6}> { y = Resize(x, , k) }")
    assert shapes(model.graph) == {"y": "float[1,1,1,2]"}
    (warning,) = model.warnings
    assert warning.endswith("'y' is declared as float[], but has rank 4")


ROWS = (
    "n = Shape<start = 0, end = 1>(x) r = Shape<start = 1, end = 2>(x) m = Mul(r, k) t = Concat<axis = 0>(n, m)"
    " a = Reshape(x, t) y = Neg(a)"
)
JOINED = "a = Concat<axis = 1>(p, x) y = Mul(a, m)"
NAMED = {
    "rows of three": ("float[N, R, 3] x", "R", ROWS, False),
    "a name of its own": ("float[N, R, 3] x", "S", ROWS, True),
    "one of two terms": ("float[N, P] p, float[N, R] x, float[N, T] m", "R", JOINED, False),
    "a sum": ('float[N, P] p, float[N, R] x, float[N, "P + R"] m', "P + R", JOINED, True),
    "a dimension that may be the sum": ("float[N, P] p, float[N, R] x, float[N, T] m", "T", JOINED, True),
}


@pytest.mark.parametrize("name", NAMED)
def test_outputs_named_like_a_dimension_of_another_size(name: str) -> None:
    reads, dim, body, fits = NAMED[name]
    model = loaded(f'g ({reads}) => (float[N, "{dim}"] a, float[?, ?] y) <int64[1] k = {{3}}> {{ {body} }}')
    assert shapes(model.graph)["a"] == f"float[N,{dim if fits else '?0'}]"
    assert [w.partition(" is declared as ")[0].rpartition(": ")[2] for w in model.warnings] == [
        "dimension 1 of 'a'"
    ] * (not fits)


def test_names_that_torch_invents_are_dropped_where_several_dimensions_have_them() -> None:
    """torch calls a batch and a height alike if it knows neither of them."""
    outputs = "float[Conv7_dim_0, 3, Conv7_dim_0, Conv7_dim_3] y, float[Mul9_dim_0, 3] z, float[rows, rows] w"
    model = loaded(f"g (float[N, 3, 8, 8] x) => ({outputs}) {{ y = c.Own(x) z = c.Own(y) w = c.Own(z) }}")
    expected = [(None, 3, None, "Conv7_dim_3"), ("Mul9_dim_0", 3), ("rows", "rows")]
    assert [v.shape for v in model.graph.outputs] == expected


def test_names_that_torch_invents_are_dropped_in_branches() -> None:
    """torch gives names of the graph's outputs to dimensions of branches."""
    branches = (
        "then_branch = t () => (float[Div8_dim_2, Div8_dim_3] u) { u = c.Own(x) },"
        " else_branch = e () => (float[N, Div8_dim_2] v) { v = c.Own(x) }"
    )
    model = loaded(f"g (bool c, float[N, M] x) => (float[4, N, Div8_dim_2] y) {{ a = If<{branches}>(c) y = c.Own(a) }}")
    assert {name: shape for name, shape in shapes(model.graph).items() if name in "uv"} == {
        "u": "float[?,?]",
        "v": "float[N,?]",
    }


def test_one_contradiction_makes_all_declared_dimensions_doubtful() -> None:
    """What a custom operator makes keeps its declared rank alone."""
    text = "g (float[N, 3] x) => (float[1, 3] y) <float[1, 3] a, float[1, 5] b> {{ a = Relu(x) b = c.Custom(a) y = {0}(b) }}"
    assert shapes(loaded(text.format("Neg")).graph) == {"a": "float[N,3]", "b": "float[?,?]", "y": "float[?0,?1]"}
    consistent = text.replace("N, 3", "1, 3").replace("1, 3] y", "1, 5] y").format("Neg")
    assert shapes(loaded(consistent).graph) == {"a": "float[1,3]", "b": "float[1,5]", "y": "float[1,5]"}
    assert loaded(consistent).warnings == []


def test_declarations_that_contradict_each_other() -> None:
    model = loaded("g (float x) => (float[2, 3] y) <float[1, 3] a> { a = c.Custom(x) y = Neg(a) }")
    assert shapes(model.graph) == {"a": "float[?,?]", "y": "float[?0,?1]"}
    assert len(model.warnings) == 1


def test_declarations_fill_in_what_inference_cannot_know() -> None:
    text = "g (float[2, 3] x, int64[K] s) => (float[P, 3] y, float[B, C] n) <float[P, 3] a> "
    text += "{ a = Reshape(x, s) y = Neg(a) n = Abs(x) }"
    model = loaded(text)
    assert shapes(model.graph) == {"a": "float[P,3]", "y": "float[P,3]", "n": "float[2,3]"}
    assert model.warnings == []


def test_names_that_are_expressions_of_a_fixed_dimension() -> None:
    """As dynamo writes them."""
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 21, "c" : 1]> g (float[N, M] x) => (y)
        <float["2*((N//4)) + 1", "N + M"] a> { a = c.Own(x) y = Neg(a) }"""
    )
    assert shapes(load(proto, {"N": 9}).graph) == {"a": "float[5,N + M]", "y": "float[5,N + M]"}
    assert shapes(load(proto, {"N": 9, "M": 2}).graph) == {"a": "float[5,11]", "y": "float[5,11]"}


def test_declared_dimensions_in_bodies_are_dropped_too() -> None:
    model = loaded("""g (float[N, 3] x, bool c) => (float[N, 3] y) {
        y = If(c) <
            then_branch = t () => (float[1, 3] z) <float[1, 3] a> { a = Relu(x) z = Neg(a) },
            else_branch = e () => (float[1, 3] w) { w = Exp(x) }
        >
    }""")
    assert set(shapes(model.graph).values()) == {"float[N,3]"}
    assert len(model.warnings) == 1


LOOP = """g (float{0} x, int64 n) => (float[K] y) {{
    y = Loop(n, , x) <body = b (int64 i, bool go, float{1} v) => (bool more, float[L] w) <int64[1] s = {{3}}> {{
        more = Identity(go) w = Expand(v, s)
    }}>
}}"""
SCAN = """g (float{0} x) => (float[K, 3] y) {{
    y = Scan<num_scan_inputs = 1, scan_input_axes = [1], body = b (float{1} v) => (float[L] w) <int64[1] s = {{3}}> {{
        w = Expand(v, s)
    }}>(x)
}}"""
FED = [
    (LOOP, "[N]", "[3]", "?0"), (LOOP, "[1]", "[3]", "?0"), (LOOP, "[3]", "[3]", 3),
    (SCAN, "[N, 5]", "[3]", "N"), (SCAN, "[1, 3]", "[3]", 1), (SCAN, "[3, 1]", "[3]", 3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "outside", "inside", "found"), FED)
def test_bodies_that_declare_what_they_are_not_fed(text: str, outside: str, inside: str, found: int | str) -> None:
    model = loaded(text.format(outside, inside))
    body = next(node for node in model.graph if node.subgraphs).subgraphs[0]
    assert body.inputs[-1].shape == (found,)
    assert [w.startswith("declared shapes contradict") for w in model.warnings] == [True] * (f"[{found}]" != inside)


@pytest.mark.parametrize(
    ("outside", "inside", "body", "found"),
    [
        ("[0, 2]", "[0, 2]", "w = Concat<axis = 0>(v, x)", (0, 2)),  # of x, no element
        ("[0, 2]", "[0, 2]", "w = Concat<axis = 0>(v, r)", ("?0", 2)),
        ("[0, 2]", "[0, 2]", "u = Shape(r) q = Reshape(r, u) w = Concat<axis = 0>(v, q)", ("?0", 2)),
        ("[N, 2]", "[N, 2]", "w = Relu(v)", ("N", 2)),
        ("[N, 2]", "[N, 2]", "w = Concat<axis = 0>(v, r)", ("?0", 2)),
        ("", "", "w = Relu(v)", ()),
    ],
)
def test_sizes_that_a_loop_changes(outside: str, inside: str, body: str, found: tuple[int | str, ...]) -> None:
    """PyTorch declares the value that a body reads as the Loop reads it: with size 0, if the body appends to it."""
    model = loaded(f"""g (float{outside} x, float[1, 2] r, int64 n) => (y) {{
        y = Loop(n, , x) <body = b (int64 i, bool go, float{inside} v) => (bool more, float[] w) {{
            more = Identity(go) {body}
        }}>
    }}""")
    body_graph = next(node for node in model.graph if node.subgraphs).subgraphs[0]
    assert body_graph.inputs[-1].shape == found
    assert model.warnings == []


@pytest.mark.parametrize("count", [128, 1 << 40])
def test_a_scan_of_more_inputs_than_it_has(count: int) -> None:
    """Onnx does not look behind an operator of another domain; nothing but ortconv's own errors may come of it."""
    text = SCAN.format("[N, 5]", "[5]").replace("= 1, scan_input_axes = [1]", f"= {count}")
    with suppress(OrtconvError):
        loaded(text.replace("(x)", "(g)").replace("y = Scan", "g = com.microsoft.Gelu(x) y = Scan"))


def test_declared_elements_of_sequences() -> None:
    model = loaded("g (float[B, 3] x, int64[K] s) => (seq(float[d, 3]) y) { y = SplitToSequence<axis = 0>(x, s) }")
    assert str(model.graph.outputs[0].type) == "seq(float[d,3])"


@pytest.mark.parametrize("where", ["float16[2, 3] y", "float[2, 3] y> <float16[2, 3] a"])
def test_declared_element_types_must_hold(where: str) -> None:
    """onnxruntime refuses these: Type Error."""
    returns, _, inner = where.partition("> <")
    with pytest.raises(GraphError, match=r"Relu '\w': '\w' is declared float16, but the operator makes float"):
        loaded(f"g (float[2, 3] x) => ({returns}) <{inner}> {{ a = Relu(x) y = Relu(a) }}")


@pytest.mark.parametrize(("free", "size"), [("N", 5), ("5", "5")])
def test_names_that_are_numbers(free: str, size: int | str) -> None:
    """They are sizes, unless a free dimension of an input has the name."""
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "c" : 1]> g (float[N, 3] x) => (y)
        <float[N, five] a> { a = c.Own(x) y = Neg(a) }"""
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = free
    proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param = free
    proto.graph.value_info[0].type.tensor_type.shape.dim[1].dim_param = "5"
    model = from_proto(proto)
    assert [node.out.shape for node in model.graph] == [(free, size)] * 2
    assert not model.warnings


def test_negative_dimensions_are_unknown_ones() -> None:
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2, 3] x) => (float[A, 3] y) { y = Relu(x) }'
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model = from_proto(proto)
    assert [v.type and v.type.shape for v in model.graph.inputs if isinstance(v.type, TensorType)] == [(None, 3)]


# ---------------------------------------------------------------------- operator sets


@pytest.mark.parametrize(
    ("header", "body", "domain", "version"),
    [
        ('["" : 17]', "y = com.microsoft.Gelu(x)", "com.microsoft", 1),
        ('["" : 17]', 'y = ai.onnx.ml.Normalizer<norm = "MAX">(x)', "ai.onnx.ml", 1),
        ('["com.microsoft" : 1]', "a = com.microsoft.Gelu(x) y = Softmax(a)", "", 13),
        ('["" : 17]', "c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (z) { z = com.microsoft.Gelu(x) }, "
         "else_branch = e () => (w) { w = Neg(x) }>", "com.microsoft", 1),
    ],
)  # fmt: skip
def test_operator_sets_that_onnxruntime_imports_by_itself(header: str, body: str, domain: str, version: int) -> None:
    proto = parser.parse_model(
        f"<ir_version: 8, opset_import: {header}> g (float[2, 3] x) => (float[2, 3] y) {{ {body} }}"
    )
    model = from_proto(proto)
    assert model.graph.opset(domain) == version
    assert len(model.warnings) == 1
    x = np.array([[1, -2, 3], [0, 5, -6]], np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    ran = [
        onnxruntime.InferenceSession(m.SerializeToString(), options).run(None, {"x": x})[0]
        for m in (proto, model_proto(model))
    ]
    np.testing.assert_allclose(ran[1], ran[0], rtol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "y = other.Thing(x)",
        "c = Constant<value = bool {1}>() "
        "y = If(c) <then_branch = t () => (z) { z = other.Thing(x) }, else_branch = e () => (w) { w = Neg(x) }>",
    ],
)
def test_the_domain_of_a_custom_operator_is_imported(body: str) -> None:
    model = loaded(f"g (float x) => (float y) {{ {body} }}")
    assert model.graph.opset("other") == 1
    assert model.warnings == ["the model uses operators of other without importing it: version 1 is imported"]


def test_known_operator_sets() -> None:
    newest: dict[str, int] = {}
    for known in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema():
        newest[known.domain] = max(newest.get(known.domain, 0), known.since_version)
    assert all(KNOWN[domain] <= version for domain, version in newest.items() if domain in KNOWN)
    assert newest.keys() - {"com.ms.internal.nhwc"} <= KNOWN.keys()


# ---------------------------------------------------------------------- names, random numbers


def test_subgraphs_found_by_name_keep_the_names_of_inputs_and_outputs() -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["ids"], ["t"]), helper.make_node("Neg", ["t"], ["logits"])],
        "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, [2])],
        [helper.make_tensor_value_info("logits", TensorProto.INT32, [2])],
    )
    nodes = [
        helper.make_node("Abs", ["ids"], ["t"]),
        helper.make_node("Abs", ["t"], ["logits"]),
        helper.make_node(
            "GreedySearch", ["ids", "t"], ["y"], domain="com.microsoft", decoder=body, eos_token_id=1, pad_token_id=1
        ),
    ]
    values = {n: helper.make_tensor_value_info(n, TensorProto.INT32, [2]) for n in ("ids", "y", "logits")}
    graph = helper.make_graph(nodes, "g", [values["ids"]], [values["y"], values["logits"]])
    graph.output[0].ClearField("type")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = from_proto(onnx.ModelProto(ir_version=8, graph=graph, opset_import=imports))
    verify(model.graph)
    (sub,) = [g for node in model.graph for g in node.subgraphs]
    assert [v.name for v in (*sub.inputs, *sub.outputs)] == ["ids", "logits"]
    assert next(v.name for node in sub for v in node.outputs if v) != "t"


@pytest.mark.parametrize(
    ("node", "deterministic"),
    [
        ("Dropout(x)", True),
        ("Dropout(x, r)", True),
        ("Dropout(x, r, no)", True),
        ("Dropout(x, r, yes)", False),
        ("Dropout(x, r, c)", False),
        ("com.microsoft.BiasDropout(x, x, x, r, yes)", False),
        ("com.microsoft.BiasDropout(x, x, x, r, no)", True),
        ("com.microsoft.BitmaskDropout(x, r, yes)", False),
        ("RandomNormalLike(x)", False),
        (
            "If(c) <then_branch = t () => (z) { z = Dropout(x, r, yes) }, else_branch = e () => (w) { w = Neg(x) }>",
            False,
        ),
        ("Neg(x)", True),
    ],
)
def test_nodes_that_draw_random_numbers(node: str, deterministic: bool) -> None:
    model = loaded(
        f"g (float[2] x, bool c) => (float[2] y) <float r = {{0.5}}, bool yes = {{1}}, bool no = {{0}}> {{ y = {node} }}",
        header='ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]',
    )
    (made,) = model.graph
    assert is_deterministic(made) is deterministic


def test_branches_with_values_of_the_same_name() -> None:
    """onnx's inference gives the second of them what it knows of the elements of the first."""
    branch = "b () => (int64 y) {{ s = {}(z) o = ConstantOfShape(s) y = Size(o) }}"
    branches = f"then_branch = {branch.format('Shape')}, else_branch = {branch.format('c.Custom')}"
    graph = loaded(f"g (bool c, float[2, 3] z) => (int64 y) {{ y = If<{branches}>(c) }}").graph
    (node,) = graph
    found = [{v.name: str(v.type) for inner in sub for v in inner.outputs if v is not None} for sub in node.subgraphs]
    assert [types["o"] for types in found] == ["float[2,3]", "float[...]"]


@pytest.mark.parametrize(
    "graph", ["g (int32[1] x) => (int32[1] y) <float[2] c>", "g (int32[1] x) => (int32[1] y, float[2] c)"]
)
def test_the_declared_type_of_a_constant_is_not_read(graph: str) -> None:
    """onnxruntime makes an initializer of it."""
    model = loaded(f"{graph} {{ c = Constant<value = int32[1] {{7}}>() y = Add(x, c) }}")
    constant = next(node for node in model.graph if node.op == "Add").inputs[1]
    assert constant is not None
    assert str(constant.type) == "int32[1]"
    assert not model.warnings
