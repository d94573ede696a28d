"""onnx's inference does not end the process, whatever the nodes are."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from onnx import AttributeProto, ModelProto, TensorProto, TensorShapeProto, helper, parser
from onnx.shape_inference import infer_shapes

from ortconv.errors import GraphError
from ortconv.ir.types import TensorType
from ortconv.ir.verify import verify
from ortconv.onnxio import infer
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.messages import contents
from ortconv.onnxio.shield import may_be_below_zero, shortening
from tests.batches import batched

RANDOM = Path(__file__).with_name("random_nodes.py")


def parsed(text: str) -> ModelProto:
    """The model, without the type of its first output."""
    proto = parser.parse_model(text)
    proto.graph.output[0].ClearField("type")
    return proto


def random_nodes(seeds: int, first: int, step: int) -> list[str]:
    command = [sys.executable, str(RANDOM), str(seeds), str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(sys, "getdlopenflags") or sys.platform == "darwin", reason="needs fork")
@pytest.mark.parametrize("first", range(2))
def test_inference_survives_random_nodes(first: int) -> None:
    assert random_nodes(6, first, 2) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(sys, "getdlopenflags") or sys.platform == "darwin", reason="needs fork")
@pytest.mark.parametrize("first", range(8))
def test_inference_survives_many_random_nodes(first: int) -> None:
    assert random_nodes(100, first, 8) == []


BEHIND_UNKNOWN = {
    "EyeLike": ("u = c.Custom(x) y = EyeLike<dtype = 1>(u)", "float[...]"),
    "EyeLike of a known shape": ("u = Relu(x) y = EyeLike<dtype = 6>(u)", "int32[2,3]"),
    "EyeLike without a type": ("y = EyeLike(x)", "float[2,3]"),
    "RegexFullMatch": ('u = c.Custom(x) y = RegexFullMatch<pattern = "a">(u)', "bool[...]"),
    "RegexFullMatch of a known shape": ('y = RegexFullMatch<pattern = "a">(s)', "bool[4]"),
    "GatherND": ("y = GatherND(x, i)", "float[5]"),
    "GatherND of slices": ("y = GatherND<batch_dims = 1>(z, j)", "float[2,4]"),
    "GatherND of nothing known": ("u = c.Custom(x) y = GatherND(x, u)", "float[...]"),
    "LabelEncoder": ('u = c.Custom(x) y = ai.onnx.ml.LabelEncoder<keys_floats = [1.0], values_strings = ["a"]>(u)', "string[...]"),
    "LabelEncoder of a known shape": ('y = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [7]>(s)', "int64[4]"),
    "DictVectorizer": ('u = c.Custom(x) y = ai.onnx.ml.DictVectorizer<int64_vocabulary = [1]>(u)', "None"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND_UNKNOWN)
def test_types_of_operators_that_onnx_does_not_see(name: str) -> None:
    body, expected = BEHIND_UNKNOWN[name]
    proto = parsed(
        '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 2, "c" : 1]> '
        "g (float[2, 3] x, string[4] s, int64[5, 2] i, int64[2, 1] j, float[2, 3, 4] z) => (float y) { " + body + " }"
    )
    model = from_proto(proto)
    (y,) = model.graph.outputs
    assert str(y.type) == expected
    assert all(not node.op.startswith("\1") for node in model.graph)


def test_they_are_found_again_when_types_are_inferred_twice() -> None:
    """The declared shape of y contradicts the graph, so types are inferred again without it."""
    model = from_proto(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] z)'
            " <float[7] y> { e = EyeLike(x)\n y = Relu(x)\n z = Add(e, y) }"
        )
    )
    assert [node.op for node in model.graph] == ["EyeLike", "Relu", "Add"]
    assert model.warnings


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        ({"dim_value": -3}, True),
        ({"dim_value": -3, "denotation": "d" * 200}, True),
        ({"dim_value": 1 << 62}, False),
        ({"dim_param": "n"}, False),
    ],
)
def test_negative_sizes_are_found_in_a_message(dim: dict[str, Any], expected: bool) -> None:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dimension(**dim)])
    assert may_be_below_zero(shape.SerializeToString()) is expected


def test_what_stands_behind_them_is_inferred() -> None:
    model = from_proto(
        parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 17]> g (float[2, 3] x) => (float[A, B] y) '
            "{ e = EyeLike(x) a = Add(e, x) t = Transpose(a) y = MatMul(a, t) }"
        )
    )
    assert model.graph.outputs[0].type == TensorType(model.graph.inputs[0].dtype, (2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Unsqueeze<axes = [-1]>(x)", "float[2,1,3,1]"),
        ("y = Unsqueeze<axes = [-2, 0]>(x)", "float[1,2,1,1,3]"),
        ("y = Squeeze<axes = [-2]>(x)", "float[2,3]"),
        ("s = Squeeze<axes = [-2]>(x) y = Transpose(s)", "float[3,2]"),
        ("y = If(b) <then_branch = t () => (u) { u = Squeeze<axes = [-2]>(x) }, "
         "else_branch = e () => (v) { v = Squeeze<axes = [1]>(x) }>", "float[2,3]"),
    ],
)  # fmt: skip
def test_negative_axes_of_early_operator_sets(body: str, expected: str, opset: int) -> None:
    proto = parsed(
        f'<ir_version: 5, opset_import: ["" : {opset}]> g (float[2,1,3] x, bool b) => (float y) {{ {body} }}'
    )
    assert str(from_proto(proto).graph.outputs[0].type) == expected


@pytest.mark.parametrize("opset", [12, 22])
@pytest.mark.parametrize(
    "window",
    [
        'auto_pad = "VALID", kernel_shape = [1], strides = [2]',
        "pads = [1, 1], kernel_shape = [2], strides = [3]",
        "dilations = [2], pads = [2, 2], kernel_shape = [2], strides = [3]",
    ],
)
def test_a_pool_with_ceil_mode_has_no_window_in_the_padding_alone(window: str, opset: int) -> None:
    proto = parsed(f"""<ir_version: 7, opset_import: ["" : {opset}]>
        g (float[2,3,4] x) => (float y) {{ y, i = MaxPool<ceil_mode = 1, {window}>(x) z = Identity(i) }}""")
    pool = next(iter(from_proto(proto).graph))
    assert [str(v.type) for v in pool.outputs if v is not None] == ["float[2,3,2]", "int64[2,3,2]"]


@pytest.mark.parametrize("start", ["k", "d"])
def test_a_slice_of_a_shape_from_a_computed_index_has_an_unknown_length(start: str) -> None:
    proto = parsed(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[6,1,8,8] x, int64[1] k) => (float y) <int64[1] end = {{4}}, int64[1] axis = {{0}}, int64[1] c = {{48}}> {{
        d = Abs(k) s = Shape(x) v = Slice(s, {start}, end, axis) t = Concat<axis = 0>(c, v) y = Reshape(x, t) }}""")
    assert str(from_proto(proto).graph.outputs[0].type) == "float[...]"


@pytest.mark.parametrize(
    ("opset", "body", "expected"),
    [
        (17, "y = Resize(x, , scales)", "float[1,4,7,12]"),
        (17, "c = Constant<value_floats = [1.0, 1.0, 0.7, 1.2]>() y = Resize(x, , c)", "float[1,4,7,12]"),
        (18, "y = Resize<axes = [-1]>(x, , scale)", "float[1,4,10,13]"),
        (9, "y = Upsample(x, scales)", "float[1,4,7,12]"),
        (8, "y = Upsample<scales = [1.0, 1.0, 0.7, 1.2]>(x)", "float[1,4,7,12]"),
        (17, "r = Resize(x, , scales) y = Transpose<perm = [0, 2, 3, 1]>(r)", "float[1,7,12,4]"),
    ],
)
def test_sizes_are_products_in_float32(opset: int, body: str, expected: str) -> None:
    """10 times 0.7 is 7 in float32, and less in exact arithmetic, since 0.7 is not a number of float32."""
    constants = "float[4] scales = {1, 1, 0.7, 1.2}, float[1] scale = {1.3}"
    proto = parsed(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1,4,10,10] x) => (float y) <{constants}> {{ {body} }}'
    )
    (y,) = from_proto(proto).graph.outputs
    assert str(y.type) == expected


@pytest.mark.parametrize(
    ("scales", "sizes"), [("none", "sizes"), ("made", "sizes"), ("listed", "sizes"), ("scales", "no_sizes")]
)
def test_a_resize_in_a_branch_by_a_constant_outside(scales: str, sizes: str) -> None:
    body = f"u = Resize(x, , {scales}, {sizes})"
    proto = parsed(f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,2,s,s] x, bool b) => (float y)
        <float[0] none = {{}}, int64[0] no_sizes = {{}}, float[4] scales = {{1, 1, 2, 2}}, int64[4] sizes = {{1, 2, 8, 8}}> {{
        made = Constant<value = float[0] {{}}>() listed = Constant<value_floats: floats = []>()
        y = If(b) <then_branch = t () => (u) {{ {body} }}, else_branch = e () => (v) {{ v = Neg(x) }}> }}""")
    graph = from_proto(proto).graph
    resize = next(node for node in graph.walk() if node.op == "Resize")
    assert str(resize.out.type) == ("float[1,2,8,8]" if sizes == "sizes" else "float[1,2,?,?]")


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (11, "y = Squeeze(x)"),
        (13, "y = Squeeze(x, none)"),
        (13, "e = Constant<value_ints: ints = []>() y = Squeeze(x, e)"),
        (13, "e = Constant<value = int64[0] {}>() y = Squeeze(x, e)"),
        (
            13,
            "y = If(b) <then_branch = t () => (u) { u = Squeeze(x, none) }, else_branch = e () => (v) { v = Squeeze(x) }>",
        ),
    ],
)
def test_squeeze_with_an_empty_list_of_axes_removes_all_of_size_1(opset: int, body: str) -> None:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,1,3,1] x, bool b) => (float y) <int64[0] none = {{}}>'
    proto = parsed(f"{head} {{ {body} }}")
    if opset == 11:
        proto.graph.node[0].attribute.add(name="axes", type=AttributeProto.INTS)
    assert str(from_proto(proto).graph.outputs[0].type) == "float[2,3]"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('y = Einsum<equation = "int64s">(x)', "malformed"),
        ('y = Einsum<equation = "a>b">(x)', "malformed"),
        ('y = Einsum<equation = "a.b">(x)', "malformed"),
        ("y, m, d = LayerNormalization<axis = 2147483648>(x, x)", "out of range"),
        ("y = GatherND<batch_dims = -1>(x, x)", "must be at least 0"),
    ],
)
def test_nodes_that_onnx_does_not_survive_are_refused(body: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        from_proto(
            parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g (float[2, 3] x) => (float y) {{ {body} }}')
        )


@pytest.mark.parametrize("equation", ["ij->ji", "i j , jk -> ik", "...ij,...jk", "ii", "->", "bij,bjk->bik", "..."])
def test_equations_that_are_well_formed(equation: str) -> None:
    reads = ", ".join(["x"] * (equation.count(",") + 1))
    nodes = f'x = c.Custom(z) y = Einsum<equation = "{equation}">({reads})'
    text = f'<ir_version: 9, opset_import: ["" : 17, "c" : 1]> g (float z) => (float y) {{ {nodes} }}'
    assert len(from_proto(parser.parse_model(text)).graph) == 2


SPLIT = "a, b, c = Split<num_outputs = 3, axis = 0>(x) y = Slice(c, zero, one, zero, one)"


@pytest.mark.parametrize(("rows", "inner"), [(1, False), (1, True), (2, False), (3, False)])
def test_a_slice_of_what_a_split_leaves(rows: int, inner: bool) -> None:
    body = SPLIT
    if inner:
        graphs = [f"{name} () => (float {name}{name}) {{ {SPLIT.replace('y =', f'{name}{name} =')} }}" for name in "pq"]
        body = f"y = If(k) <then_branch = {graphs[0]}, else_branch = {graphs[1]}>"
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{rows},2] x, bool k) => (float y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{ {body} }}"""
    proto = parsed(text)
    if rows == 1:
        with pytest.raises(GraphError, match="too small for 3 parts"):
            from_proto(proto)
    else:
        assert from_proto(proto).graph.outputs[0].shape == (rows - 2, 2)


@pytest.mark.parametrize("length", [3, 4, 5, 6])
@pytest.mark.parametrize(
    ("nodes", "least"),
    [
        ("c = Conv(x, w)", 4), ("b = Conv(x, w) c = Relu(b)", 4), ("c = MaxPool<kernel_shape = [6]>(x)", 5),
        ("c = Pad(x, pads)", 5),
    ],
)  # fmt: skip
def test_a_slice_after_a_window_that_is_too_long(nodes: str, least: int, length: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g (float[1,2,{length}] x, float[2,2,5] w) => (float y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] axis = {{2}}, int64[6] pads = {{0, 0, -5, 0, 0, 0}}>
        {{ {nodes} y = Slice(c, zero, one, axis) }}"""
    proto = parser.parse_model(text)
    if length < least:
        with pytest.raises(GraphError, match="an input is too small: a size of the output is below 0"):
            from_proto(proto)
    else:
        assert len(from_proto(proto).graph)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("b = Conv<kernel_shape = [3], pads = [1, 1]>(a, w)", 0),
        ("b = Conv<kernel_shape = [3], pads = [1, 1], dilations = [2]>(a, w)", 2),
        ("b = Conv<kernel_shape = [3], pads = [1, 1], strides = [-1]>(a, w)", 2),
        ("b = Conv<kernel_shape = [3], pads = [1, 1], strides = [0]>(a, w)", 2),
        ("b = Conv<kernel_shape = [3], pads = [1, 1], auto_pad = \"VALID\">(a, w)", 2),
        ("b = Conv<pads = [1, 1]>(a, w)", 2),
        ("b = MaxPool<kernel_shape = [3], pads = [0, 1]>(a)", 2),
        ("b = ConvTranspose<kernel_shape = [3], pads = [3, 3]>(a, w)", 2),
        ("b = GlobalAveragePool(a)", 0),
        ("b = Pad(a, p)", 2),
        ("b, b1 = Split<num_outputs = 2>(a)", 0),
        ("b, b1, b2 = Split<num_outputs = 3>(a)", 2),
        ("b = If(k) <then_branch = t () => (float u) { u = Pad(a, p) }, else_branch = e () => (float v) { v = Neg(a) }>", 2),
    ],
)  # fmt: skip
def test_nodes_up_to_the_last_that_may_make_a_negative_size(node: str, expected: int) -> None:
    text = f"g (float[1,2,9] x, float w, int64[6] p, bool k) => (float y) {{ a = Neg(x) {node} y = Abs(b) }}"
    graph = parser.parse_graph(text)
    assert shortening(contents(graph)) == expected


@pytest.mark.parametrize("opset", [9, 10, 11, 13])
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0, 1, 0), (None, 2, 4)),
        ((0, -1, 0), (None, 2, 4)),
        ((0, 2**31 - 1, 0), (None, 2, 4)),
        ((1, 4, 2), ("N", 2, 3)),
    ],
)
def test_slices_along_a_symbolic_dimension(
    bounds: tuple[int, int, int], expected: tuple[object, ...], opset: int
) -> None:
    """In operator set 10, onnx gives the result the symbol of the input, whatever part of it the Slice takes."""
    if opset < 10:
        nodes, constants = "starts=[{}], ends=[{}], axes=[{}]".format(*bounds), ""
        nodes = f"t = Slice<{nodes}>(x)"
    else:
        constants = "<int64[1] s = {{{}}}, int64[1] e = {{{}}}, int64[1] a = {{{}}}>".format(*bounds)
        nodes = "t = Slice(x, s, e, a)"
    text = f'<ir_version: 5, opset_import: ["" : {opset}]> g (float[N,2,4] x) => (float y) {constants} {{ {nodes} y = Neg(t) }}'
    proto = parsed(text)
    shape = from_proto(proto).graph.outputs[0].shape
    assert shape is not None
    assert shape[1:] == expected[1:]
    assert shape[0] != "N" or expected[0] == "N" or bounds[1] > 2**30


LOADED_AGAIN = """
import resource, sys
from onnx import parser
from ortconv.onnxio.load import from_proto
from ortconv.process import data_bytes, peak_bytes

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
inputs, body, most, opset = sys.argv[1:]
proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (y) {{ {body} }}')
sizes = []
for _ in range(3):
    from_proto(proto)
    sizes.append(data_bytes())
assert sizes[-1] - sizes[0] < 64 << 20, sizes
assert peak_bytes() < int(most) << 20, peak_bytes()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory")
@pytest.mark.parametrize(
    ("inputs", "body", "most", "opset"),
    [
        ("float[4611686018427387904] x", "y = Add(x, x)", 200, 17),
        ("float[2147483648, 2147483648] x", "flat = Reshape<allowzero = 0>(x, whole) y = Add(flat, flat)", 500, 17),
        ("float[3] x, int64[4611686018427387904] s", "y = Expand(x, s)", 200, 12),
    ],
)
def test_vectors_without_end_take_little_memory(inputs: str, body: str, most: int, opset: int) -> None:
    whole = "whole = Constant<value_ints = [-1]>() "
    command = [sys.executable, "-c", LOADED_AGAIN, inputs, whole + body, str(most), str(opset)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("x", "z", "equation", "expected"),
    [
        ("1,1", "N,3", "bi,bj->bij", ("N", 1, 3)),
        ("1,1", "2,3", "bi, bj -> bij", (2, 1, 3)),
        ("N,1", "1,3", "bi,bj->bij", ("N", 1, 3)),
        ("N,1", "4,3", "bi,bj->bij", (4, 1, 3)),
        ("N,1", "M,3", "bi,bj->bij", (None, 1, 3)),
        ("1,2", "N,3", "bi,bj", (2, 3)),
        ("1,2", "N,2", "bi,bi", ()),
        ("1,2,3", "N,3,4", "...ij,...jk->...ik", ("N", 2, 4)),
        ("7,1,1,2", "N,3,5", "...bi,bij->b...j", ("N", 7, 1, 5)),
    ],
)
def test_an_einsum_that_broadcasts_an_axis(x: str, z: str, equation: str, expected: tuple[object, ...]) -> None:
    """onnx takes the first size of each label."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[{x}] x, float[{z}] z) => (y)
        {{ e = Einsum<equation = "{equation}">(x, z) y = Neg(e) }}"""
    )
    assert [node.out.shape for node in from_proto(proto).graph] == [expected, expected]


@pytest.mark.parametrize(
    ("heads", "past", "attributes", "expected"),
    [
        ("B,2,L,8|B,2,S,8", "", "", ["B,2,L,8", "B,2,S,8", "B,2,S,8", "B,2,L,S"]),
        ("B,4,L,8|B,2,5,8", "B,2,P,8", "", ["B,4,L,8", "B,2,P + 5,8", "B,2,P + 5,8", "B,4,L,P + 5"]),
        ("B,L,32|B,S,16", "", "<q_num_heads = 4, kv_num_heads = 2>", ["B,L,32", "B,2,S,8", "B,2,S,8", "B,4,L,S"]),
        ("2,3,32|2,5,16", "2,2,6,8", "<q_num_heads = 4, kv_num_heads = 2>", ["2,3,32", "2,2,11,8", "2,2,11,8", "2,4,3,11"]),
    ],
)  # fmt: skip
def test_an_attention_that_returns_scores(heads: str, past: str, attributes: str, expected: list[str]) -> None:
    """Where a length is unknown, onnx gives the scores 0 columns, or those without the past."""
    query, key = heads.split("|")
    more, reads = (f", float[{past}] pk, float[{past}] pv", ", , pk, pv") if past else ("", "")
    proto = parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]> g (float[{query}] q, float[{key}] k, float[{key}] v{more}) => (r)
        {{ y, nk, nv, s = Attention{attributes}(q, k, v{reads}) r = Neg(s) }}"""
    )
    attention, negation = from_proto(proto).graph
    assert [str(v.type) for v in attention.present_outputs] == [f"float[{dims}]" for dims in expected]
    assert str(negation.out.type) == f"float[{expected[3]}]"


def test_an_attention_over_rows_of_unknown_size() -> None:
    """onnx gives the result 0 columns."""
    proto = parser.parse_model(
        """<ir_version: 11, opset_import: ["": 23]> g (float[B,L,32] q, float[B,S,16] k, float[B,S,H] v) => (r)
        { y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v) r = Neg(y) }"""
    )
    assert [node.out.shape for node in from_proto(proto).graph] == [("B", "L", None)] * 2


def test_a_loop_that_collects_the_results_of_hidden_nodes() -> None:
    """onnx reports a Loop whose body's outputs have unknown types; onnxruntime knows these types."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N] x, int64[1] at, int64 n, bool go) => (seq(float) y)
        { s = SequenceEmpty()  y = Loop(n, go, s) <body = b (int64 i, bool on, t) => (on, u)
        { e = GatherND(x, at) u = SequenceInsert(t, e) }> }"""
    )
    model = from_proto(proto)
    assert [str(v.type) for v in model.graph.outputs] == ["seq(float[])"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("STFT(x, step, w)", "float[1,15,9,2]"),
        ("STFT(x, step, , size)", "float[1,15,9,2]"),
        ("STFT(z, step, w)", "float[1,?,9,2]"),
        ("STFT(x, step, , unknown)", "float[1,?,?,2]"),
        ("STFT<onesided = 0>(x, step, w)", "float[1,15,16,2]"),
    ],
)
def test_an_stft_of_few_frequencies(node: str, expected: str) -> None:
    """onnx takes 0 for the default of `onesided`, onnxruntime 1."""
    proto = parsed(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,128,1] x, float[1,n,1] z, float[16] w, int64 unknown) => (float y) <int64 step = {{8}}, int64 size = {{16}}>
        {{ y = {node} }}"""
    )
    assert str(from_proto(proto).graph.outputs[0].type) == expected


@pytest.mark.parametrize("constant", ["initializer", "node"])
@pytest.mark.parametrize(
    ("kind", "end"), [("int64", 2**63 - 1), ("int64", 2**31 - 1), ("int32", 2**31 - 1), ("int64", -(2**63))]
)
def test_a_slice_backward_to_the_start(kind: str, end: int, constant: str) -> None:
    """Where the end is the largest integer, onnx finds no elements, and onnxruntime all."""
    given, node = f", {kind}[1] end = {{{end}}}", ""
    if constant == "node":
        given, node = "", f"end = Constant<value = {kind}[1] {{{end}}}>()"
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]> g (float[5] x) => (y)
        <{kind}[1] start = {{-1}}, {kind}[1] axis = {{0}}, {kind}[1] step = {{-1}}{given}>
        {{ {node} r = Slice(x, start, end, axis, step) y = Neg(r) }}"""
    )
    assert from_proto(proto).graph.outputs[0].shape == (5,)


STATED_BY_ONNX = {
    "pool": (
        17,
        "float[1,1,8] x",
        "MaxPool<kernel_shape = [2], strides = [3], pads = [1, 1], ceil_mode = 1>(x)",
        (1, 1, 3),
    ),
    "stft": (17, "float[1,128,1] x", "STFT(x, step, , size)", (1, 15, 9, 2)),
    "output padding": (
        17,
        "float[1,1,4] x, float[1,3,3] w",
        'ConvTranspose<auto_pad = "SAME_UPPER", output_padding = [1], strides = [2]>(x, w)',
        (1, 3, 8),
    ),
    "slice": (13, "float[5] x", "Slice(x, back, end, axis, back)", (5,)),
}


def test_places_in_a_scalar() -> None:
    """onnx infers no rows, onnxruntime returns one."""
    proto = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (float x) => (int64 y) { z = NonZero(x) t = Transpose(z) y = Neg(t) }'
    )
    assert [(n.out.shape or ())[axis] for n, axis in zip(from_proto(proto).graph, (0, 1, 1), strict=True)] == [1, 1, 1]


@pytest.mark.parametrize("name", STATED_BY_ONNX)
def test_shapes_that_onnx_has_written_into_the_file(name: str) -> None:
    """Tools infer shapes with onnx and state them. Where onnx errs, so does the file."""
    opset, inputs, node, expected = STATED_BY_ONNX[name]
    proto = parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (float y) <int64 step = {{8}}, int64 size = {{16}},
        int64[1] back = {{-1}}, int64[1] axis = {{0}}, int64[1] end = {{9223372036854775807}}>
        {{ z = {node} r = Relu(z) y = Neg(r) }}"""
    )
    stated = infer_shapes(proto, data_prop=True)
    assert tuple(d.dim_value for d in stated.graph.value_info[-1].type.tensor_type.shape.dim) != expected
    assert [n.out.shape for n in from_proto(stated).graph] == [expected] * 3


def test_axes_of_a_slice_that_are_damaged() -> None:
    proto = parser.parse_model(
        """<ir_version: 5, opset_import: ["": 10]> g (float[N,4] x) => (float y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] axes = {1}> { c = Relu(x) y = Slice(c, zero, one, axes) }"""
    )
    axes = next(t for t in proto.graph.initializer if t.name == "axes")
    axes.dims[0] = 2**63 - 1
    with pytest.raises(GraphError, match="axes"):
        from_proto(proto)
    axes.CopyFrom(TensorProto(name="axes", data_type=TensorProto.FLOAT, dims=[1], float_data=[1]))
    with pytest.raises(GraphError, match="Slice"):
        from_proto(proto)


@batched
@pytest.mark.parametrize("op", ["Slice", "Squeeze", "Constant", "Einsum", "Split", "Expand"])
@pytest.mark.parametrize("part", ["input", "output", "attribute"])
@pytest.mark.parametrize("opset", [10, 13, 18])
def test_nodes_that_lack_parts(op: str, part: str, opset: int) -> None:
    """Of these, only a Constant can do without inputs, and only Constant and Einsum need their attributes."""
    nodes = {
        "Slice": "r = Slice(c, zero, one, one)",
        "Squeeze": "r = Squeeze(c, one)" if opset > 10 else "r = Squeeze<axes = [1]>(c)",
        "Constant": "r = Constant<value = int64[1] {1}>()",
        "Einsum": 'r = Einsum<equation = "ij,kj->ik">(c, c)',
        "Split": "r, rest = Split<axis = 0>(c)",
        "Expand": "r = Expand(c, one)",
    }
    proto = parser.parse_model(
        f"""<ir_version: 5, opset_import: ["": {opset}]> g (float[N,1] x) => (float y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{ c = Relu(x) {nodes[op]} y = Slice(c, zero, one, one) }}"""
    )
    proto.graph.node[1].ClearField(part)
    loads = (op, part) == ("Constant", "input") or (part == "attribute" and op not in ("Constant", "Einsum"))
    with nullcontext() if loads else pytest.raises(GraphError, match=op):
        verify(from_proto(proto).graph)


@pytest.mark.parametrize("length", [1 << 20, (1 << 20) + 1])
def test_elements_of_long_sparse_vectors_are_not_followed(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx would allocate gigabytes for their sums, and the limit on memory may end the process."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.INT64, [1], [1]),
        helper.make_tensor("i", TensorProto.INT64, [1], [0]),
        [length],
    )
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=sparse), helper.make_node("Neg", ["c"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs), ir_version=8)
    followed = []
    monkeypatch.setattr(
        infer, "infer_shapes", lambda message, *, data_prop, strict=False: followed.append(data_prop) or message
    )
    infer.infer_model(model.SerializeToString())
    assert followed == [length == 1 << 20]
