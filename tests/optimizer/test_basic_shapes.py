"""Shapes as symbolic quantities."""

from __future__ import annotations

import pytest
from onnx import parser

from ortconv.ir.graph import Graph, Value
from ortconv.ir.model import Model
from ortconv.ir.types import Dim, DType, TensorType
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context
from ortconv.optimizer.propagation import Equalities, propagate
from ortconv.optimizer.shapes import DimOf, Element, elements, expressed, refined, target
from ortconv.pipeline.stages import optimize
from tests.batches import batched

CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] axis = {0}, int64[1] start = {1}, "
    "int64[1] end = {3}, int64[1] step = {2}, int64[2] both = {0, 1}, int64[1] seven = {7}, "
    "int64[2] two_four = {2, 4}, int64[3] copied = {0, -1, 3}, int64[3] joined = {0, 0, -1}, "
    "int64[2] last = {-1, 24}, int64[2] first = {-1, 5}, int64[1] flat = {-1}, int64 minus = {-1}, "
    "int64[1] large = {4611686018427387904}"
)


def graph(body: str, inputs: str = "float[N,4,unknown] x, int64[2] s", outputs: str = "float[] y") -> Graph:
    opset = 18 if "axes" in body else 17
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {body} }}'
    return from_proto(parser.parse_model(text)).graph


def value(g: Graph, name: str) -> Value:
    return next(v for node in g for v in node.outputs if v is not None and v.name == name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s1 = Shape(x) t = Identity(s1)", ("N", 4, "unknown")),
        ("t = Shape<start = 1>(x)", (4, "unknown")),
        ("t = Shape<start = -2, end = -1>(x)", (4,)),
        ("s1 = Shape(x) t = Gather(s1, zero)", ("N",)),
        ("s1 = Shape(x) t = Gather(s1, both)", ("N", 4)),
        ("s1 = Shape(x) t = Slice(s1, start, end)", (4, "unknown")),
        ("s1 = Shape(x) t = Slice(s1, axis, end, axis, step)", ("N", "unknown")),
        ("s1 = Shape(x) g = Gather(s1, one) m = Mul(g, two) t = Unsqueeze(m, axis)", (8,)),
        ("s1 = Shape(x) g = Gather(s1, zero) m = Mul(one, g) d = Div(m, one) a = Add(d, zero) t = Sub(a, zero)", ("N",)),
        ("s1 = Shape(x) g = Gather(s1, zero) t = Mul(g, two)", ("2·N",)),
        ("s1 = Shape(x) g = Gather(s1, zero) m = Mul(g, two) t = Div(m, g)", (2,)),
        ("s1 = Shape(x) g = Gather(s1, zero) m = Mul(g, g) n = Mul(two, m) t = Div(n, g)", ("2·N",)),
        ("s1 = Shape(x) g = Gather(s1, zero) t = Div(g, two)", (None,)),
        ("s1 = Shape(x) t = Mul(s1, large)", ("4611686018427387904·N", None, "4611686018427387904·unknown")),
        ("s1 = Shape<start = 1, end = 2>(x) m = Add(s1, large) c = Cast<to = 6>(m) t = Cast<to = 7>(c)", (None,)),
        ("s1 = Shape(x) g = Gather(s1, zero) h = Gather(s1, both) t = Div(g, h)", (1, None)),
        ("s1 = Shape(x) g = Gather(s1, zero) m = Sub(zero, one) t = Mul(g, m)", (None,)),
        ("s1 = Shape(x) c = Cast<to = 6>(s1) t = Cast<to = 7>(c)", ("N", 4, "unknown")),
        ("s1 = Shape(x) t = Concat<axis = 0>(s1, seven, s)", ("N", 4, "unknown", 7, None, None)),
    ],
)  # fmt: skip
def test_elements(body: str, expected: tuple[Element, ...]) -> None:
    g = graph(body + " y = Identity(t)", outputs="int64[] y")
    assert elements(value(g, "t")) == expected


def test_a_dimension_without_a_name_stands_for_itself() -> None:
    g = graph("r = Reshape(x, s) z = Shape(r) t = Gather(z, one) y = Identity(t)", outputs="int64[] y")
    r = value(g, "r")
    r.type = None
    assert elements(value(g, "t")) == (DimOf(r, 1),)


@batched
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("s1 = Shape(x) n = Gather(s1, zero) y = Range(zero, n, one)", ("N",)),
        ("s1 = Shape(x) n = Gather(s1, zero) y = Range(one, n, one)", (None,)),
        ("s1 = Shape(x) p = Gather(s1, zero) n = Gather(s1, one) e = Add(n, p) y = Range(p, e, one)", (4,)),
        ("s1 = Shape(x) p = Gather(s1, zero) n = Gather(s1, minus) e = Add(n, p) y = Range(p, e, two)", (None,)),
        ("y = Range(zero, two, one)", (2,)),
        ("y = Slice(x, axis, end, start)", ("N", 3, 6)),
        ("s1 = Shape(x) n = Slice(s1, axis, start) y = Slice(x, axis, n, start)", ("N", "min(4,N)", 6)),
        ("s1 = Shape(x) n = Slice(s1, axis, start) y = Slice(x, start, n, start)", ("N", None, 6)),
        ("y = Gather<axis = 1>(x, both)", ("N", 2, 6)),
        ("y = Gather<axis = -1>(x, zero)", ("N", 4)),
        ("y = Concat<axis = 0>(x, x)", ("N + N", 4, 6)),
        ("y = Concat<axis = 1>(x, x)", ("N", 8, 6)),
        ("p = Slice(x, start, end, axis) y = Concat<axis = 1>(p, x)", ("N", 8, 6)),
        ("s1 = Shape(x) y = Expand(one, s1)", ("N", 4, 6)),
        ("s1 = Shape(x) e = Equal(s1, minus) w = Where(e, one, s1) y = Expand(one, w)", ("N", 4, 6)),
        ("s1 = Shape(x) e = Equal(s1, two) w = Where(e, one, s1) y = Expand(one, w)", (None, 4, 6)),
        ("s1 = Shape(x) n = Slice(s1, axis, start) r = Concat<axis = 0>(n, start, end) y = Tile(x, r)", ("N·N", 4, 18)),
        ("i = Cast<to = 7>(x) y = GatherElements<axis = 1>(x, i)", ("N", 4, 6)),
        ("s1 = Shape(x) y = ConstantOfShape(s1)", ("N", 4, 6)),
        ("y = Less(x, x)", ("N", 4, 6)),
        ("y = ReduceSum(x, both)", (1, 1, 6)),
        ("y = ReduceSum<keepdims = 0>(x, flat)", ("N", 4)),
        ("y = ReduceSum<keepdims = 0>(x, s)", None),
        ("u = Reshape(x, s) y = Shape(u)", (2,)),
        ("s1 = Shape(x) y = Trilu(x)", ("N", 4, 6)),
        ("k = Constant<value_ints = [0, 0, 1, 0, -1, 2]>() y = Pad(x, k)", ("N", 3, 9)),
        ("k = Constant<value_ints = [1, 0, 0, 0, 0, 0]>() y = Pad(x, k)", ("N + 1", 4, 6)),
        ("s1 = Shape(x) k = Concat<axis = 0>(s1, s1) y = Pad(x, k)", (None, None, None)),
        ("s1 = Shape(x) y = Resize(x, , , s1)", ("N", 4, 6)),
        ("k = Constant<value_floats = [1.0, 2.0, 1.0]>() y = Resize(x, , k)", ("N", 8, 6)),
        ("k = Constant<value_floats = [2.0]>() y = Resize<axes = [-2]>(x, , k)", ("N", 8, 6)),
        (
            'k = Constant<value_ints = [9, 9]>() y = Resize<axes = [0, 1], keep_aspect_ratio_policy = "not_larger">(x, , , k)',
            (None, None, 6),
        ),
    ],
)
def test_shapes_of_results(body: str, shape: tuple[Dim, ...] | None) -> None:
    kind = (
        "int64"
        if "Range" in body or "Expand" in body or "= Shape(u)" in body
        else "bool"
        if "Less" in body
        else "float"
    )
    g = graph(body, "float[N,4,6] x, int64[2] s", f"{kind} y")
    value(g, "y").type = TensorType(DType.INT64 if kind == "int64" else DType.FLOAT, None)
    propagate(g, Context())
    assert value(g, "y").shape == shape


def test_a_slice_with_more_bounds_than_axes() -> None:
    g = graph("y = Slice(x, s, s)", "float[N,4] x, int64[3] s", "float y")
    value(g, "y").type = TensorType(DType.FLOAT, None)
    propagate(g, Context())
    assert value(g, "y").shape is None


def test_sums_have_the_names_that_exporters_give_them() -> None:
    """So a mask for all keys fits the keys that a Concat returns."""
    body = "k = Concat<axis = 0>(p, x) n = Shape<start = 0, end = 1>(k) e = Slice(m, axis, n, axis) y = Relu(e)"
    g = graph(body, 'float[P,4] p, float[S,4] x, float["P + S",4] m')
    optimize(Model(g), "basic")
    assert [node.op for node in g] == ["Relu"]


@pytest.mark.parametrize(
    ("body", "shape", "other"),
    [
        ("y, b = Split<axis = -1>(x, two_four)", ("N", 4, 2), ("N", 4, 4)),
        ("y, b = Split<axis = 1>(x)", ("N", 2, 6), ("N", 2, 6)),
        ("y, b = Split<axis = 0>(x)", ("?1", "?2", "?3"), ("?1", "?2", "?3")),
    ],
)
def test_parts_of_unknown_sizes(body: str, shape: tuple[Dim, ...], other: tuple[Dim, ...]) -> None:
    g = graph(body, "float[N,4,6] x")
    for name in ("y", "b"):
        value(g, name).type = TensorType(DType.FLOAT, ("?1", "?2", "?3"))
    propagate(g, Context())
    assert (value(g, "y").shape, value(g, "b").shape) == (shape, other)


def test_an_operand_of_the_shape_of_the_result() -> None:
    g = graph("m = Slice(x, start, end, axis) r = Relu(m) y = Neg(r)", "float[N,4,6] x")
    value(g, "m").type = TensorType(DType.FLOAT, (None, None, None))
    value(g, "r").type = TensorType(DType.FLOAT, ("A", 4, 6))
    propagate(g, Context())
    assert value(g, "m").shape == ("A", 4, 6)


def test_what_is_left_of_a_product() -> None:
    body = "r = Reshape(x, flat) t = Reshape(r, last) u = Reshape(x, first) y = Add(t, x)"
    g = graph(body, "float[N,24] x", "float[N,24] y")
    propagate(g, Context())
    assert value(g, "r").shape == ("24·N",)
    assert value(g, "t").shape == ("N", 24)
    assert value(g, "u").dim(0) != "N"


@pytest.mark.parametrize(
    ("wanted", "spec"),
    [
        (("N", 2, 2, "unknown"), (0, 2, 2, -1)),
        (("N", 4), (0, 4)),
        (("unknown", "N"), None),
        (("N", "M"), (0, -1)),
        (("M", 4, "unknown"), (-1, 4, 0)),
        (("N", -1, 2), (0, -1, 2)),
        (("N", -1, None), None),
        ((0, 4), None),
    ],
)
def test_expressed(wanted: tuple[Element, ...], spec: tuple[int, ...] | None) -> None:
    x = graph("y = Neg(x)", outputs="float[N,4,u] y").inputs[0]
    assert expressed(wanted, x) == spec


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Unsqueeze(x, start)", ("N", 1, 4, "unknown")),
        ("y = Flatten(x)", ("N", -1)),
        ("y = Flatten<axis = 0>(x)", (1, -1)),
        ("a = Unsqueeze(x, start) y = Squeeze(a, start)", ("N", 4, "unknown")),
        ("a = Unsqueeze(x, start) y = Squeeze(a)", None),
        ("y = Reshape(x, both)", ("N", 1)),
        ("y = Reshape<allowzero = 1>(x, both)", (0, 1)),
    ],
)
def test_target(body: str, expected: tuple[Element, ...] | None) -> None:
    assert target(list(graph(body))[-1]) == expected


def test_types_follow_in_one_walk() -> None:
    g = graph(
        "s1 = Shape(x) n = Gather(s1, zero) n1 = Unsqueeze(n, axis) t = Concat<axis = 0>(n1, m1) r = Reshape(x, t)"
        " a = Exp(r) b = Transpose<perm = [1, 0]>(a) c = Add(b, one1) y = MatMul(c, r)",
        inputs="float[N,4,6] x, int64[1] m1, float[1] one1",
    )
    for name in ("r", "a", "b", "c", "y"):
        value(g, name).type = None
    assert propagate(g, Context()) == 5
    assert propagate(g, Context()) == 0
    assert value(g, "r").shape == ("N", None)
    assert value(g, "c").shape == (None, "N")
    assert value(g, "y").rank == 2


@pytest.mark.parametrize(
    ("shape", "expected"), [("copied", ("N", 8, 3)), ("last", ("N", 24)), ("first", (None, 5)), ("flat", ("24·N",))]
)
def test_what_is_left_over(shape: str, expected: tuple[Dim, ...]) -> None:
    g = graph(f"y = Reshape(x, {shape})", inputs="float[N,4,6] x")
    value(g, "y").type = None
    propagate(g, Context())
    assert value(g, "y").shape == expected


@pytest.mark.parametrize(
    ("target", "last"),
    [
        ("y = Reshape(r, joined)", 8),
        ("d = Shape<start = 0, end = 1>(r) t = Concat<axis = 0>(d, d, flat) y = Reshape(r, t)", None),
    ],
)
def test_a_rest_beside_copies_of_unnamed_dimensions(target: str, last: Dim) -> None:
    g = graph(f"r = Exp(x) {target}", inputs="float[unknown,B,2,4] x")
    value(g, "r").type = value(g, "y").type = TensorType(DType.FLOAT, None)
    g.inputs[0].type = TensorType(DType.FLOAT, (None, None, 2, 4))
    propagate(g, Context())
    assert value(g, "y").shape == (None, None, last)


def test_invented_symbols_give_way_everywhere() -> None:
    g = graph("a = Exp(x) b = Neg(a) c = Abs(x) y = Add(b, c)", outputs="float[] y")
    for name, first in (("a", "?1"), ("b", "unk__2"), ("c", "Abs_2_o0__d0"), ("y", "Addy_dim_0")):
        value(g, name).type = TensorType(DType.FLOAT, (first, 4, "unknown"))
    assert propagate(g, Context()) > 0
    assert {v.shape for node in g for v in node.outputs if v is not None} == {("N", 4, "unknown")}
    assert propagate(g, Context()) == 0


def test_a_branch_learns_for_itself() -> None:
    then_branch = "b1 () => (float[N,4,unknown] p) { a = Exp(x) p = Neg(a) }"
    else_branch = "b2 () => (float[N,4,unknown] q) { q = Abs(x) }"
    g = graph(
        f"y = If<then_branch = {then_branch}, else_branch = {else_branch}>(c)", inputs="bool c, float[N,4,unknown] x"
    )
    sub = next(s for node in g for s in node.subgraphs if any(n.op == "Exp" for n in s))
    inner = value(sub, "a")
    inner.type = TensorType(DType.FLOAT, ("?1", 4, "unknown"))
    assert propagate(sub, Context()) > 0
    assert inner.shape == ("N", 4, "unknown")


def test_a_dimension_that_a_reshape_copies_is_not_its_target() -> None:
    """There are no columns. So the result has as many rows as its operand, not 0."""
    body = "r = Slice(x, axis, rows, axis) s1 = Shape(r) n = Gather(s1, start) t = Concat<axis = 0>(n, flat) y = Reshape(r, t)"
    g = graph(body, "float[4,0] x, int64[1] rows")
    propagate(g, Context())
    shape = value(g, "r").shape
    assert shape is not None
    assert isinstance(shape[0], str)
    assert shape[1] == 0


def test_symbols_of_the_model_stay() -> None:
    g = graph("a = Exp(x) y = Neg(a)", outputs="float[] y")
    value(g, "a").type = TensorType(DType.FLOAT, ("M", 4, None))
    propagate(g, Context())
    assert value(g, "a").shape == ("M", 4, "unknown")


@pytest.mark.parametrize("symbol", ["?7", "unk__3", "Slice_12_o0__d1", "Slice_output_dim_2"])
def test_what_known_operands_decide_is_known(symbol: str) -> None:
    body = "c = MaxPool<kernel_shape = [3], strides = [2]>(x) a = Exp(c) b, d = Split<axis = 2>(a) y = Add(b, d)"
    g = graph(body, inputs="float[1,4,9] x")
    for name in ("c", "a"):
        value(g, name).type = TensorType(DType.FLOAT, (1, 4, symbol))
    for name in ("b", "d"):
        value(g, name).type = TensorType(DType.FLOAT, (1, 4, "half"))
    propagate(g, Context())
    assert [value(g, name).shape for name in "cabd"] == [(1, 4, 4), (1, 4, 4), (1, 4, 2), (1, 4, 2)]
    assert propagate(g, Context()) == 0


def test_a_size_that_only_a_symbol_decides_is_known() -> None:
    """Tools that do not know an operator of com.microsoft declare its result without sizes."""
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[N,4] x) => (float[n,m] y) {
        a = com.microsoft.QuickGelu(x)
        y = Neg(a)
    }"""
    g = from_proto(parser.parse_model(text)).graph
    value(g, "a").type = TensorType(DType.FLOAT, (None, 4))
    propagate(g, Context())
    assert value(g, "a").shape == ("N", 4)


def test_what_data_decide_stays_open() -> None:
    g = graph("n = NonZero(x) y = Cast<to = 1>(n)", inputs="float[1,4,9] x")
    value(g, "n").type = TensorType(DType.INT64, (3, "?1"))
    propagate(g, Context())
    assert value(g, "n").shape == (3, "?1")


def test_a_body_teaches_nothing() -> None:
    body = "else_branch = g1 () => (float[1,4,unknown] p) { p = MaxPool<kernel_shape = [3]>(x) }"
    g = graph(
        f"y = If<then_branch = g2 () => (float[1,4,unknown] q) {{ q = Exp(x) }}, {body}>(b) z = Neg(x)",
        inputs="float[1,4,9] x, bool b",
    )
    sub = next(s for node in g for s in node.subgraphs if any(n.op == "MaxPool" for n in s))
    value(sub, "p").type = value(g, "z").type = TensorType(DType.FLOAT, (1, 4, "?5"))
    propagate(sub, Context())
    assert value(sub, "p").shape == (1, 4, 7)
    assert value(g, "z").shape == (1, 4, "?5")


def test_equalities_meet() -> None:
    equal = Equalities()
    for a, b in (("?1", "?2"), ("?2", "?3"), ("?3", "?1"), ("?3", 5), ("N", "M"), (None, "?4"), ("?5", "N")):
        equal.note(a, b)
    assert [equal.resolve(d) for d in ("?1", "?2", "?3", "?4", "?5", "N", "M", None, 7)] == [
        5, 5, 5, "?4", "N", "N", "M", None, 7,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        (("N", -1, None, "?1", "?1"), ("?2", 4, "M", "M", "?3"), ("N", 4, "M", "M", "?1")),
        ((-1, None), ("?2", None), (-1, None)),
        ((2, 3), (6,), (2, 3)),
    ],
)
def test_refined(wanted: tuple[Element, ...], known: tuple[Dim, ...], expected: tuple[Element, ...]) -> None:
    out = value(graph("y = Neg(x)"), "y")
    out.type = TensorType(DType.FLOAT, known)
    assert refined(wanted, out) == expected


@pytest.mark.parametrize(
    "body",
    [
        "y = Floor(x)",
        "y = IsNaN(x)",
        "y = Softsign(x)",
        "y = LogSoftmax(x)",
        "y = CumSum(x, one)",
        "y = Mean(x, x)",
        "y = Mod<fmod = 1>(x, x)",
    ],
)
def test_symbols_pass_operators_that_keep_shapes(body: str) -> None:
    g = graph(body, "float[N,4] x", "y")
    (node,) = g
    node.out.type = TensorType(DType.BOOL if node.op == "IsNaN" else DType.FLOAT, ("unk__3", None))
    propagate(g, Context())
    assert node.out.shape == ("N", 4)


def test_axes_of_a_slice_that_its_input_lacks() -> None:
    g = graph("n = Shape(s) b = Neg(n) k = Constant<value_ints = [7]>() y = Slice(x, b, n, k)")
    propagate(g, Context())
    assert not {"N", 4, "unknown"} & set(value(g, "y").shape or ())
