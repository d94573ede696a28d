"""Inputs that are made up for validation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortconv
from ortconv.errors import UnsupportedError
from ortconv.inputs.candidates import accepted, candidates, first_run
from ortconv.inputs.feeds import Draw, changed, free_problem, generate, make
from ortconv.inputs.operand_roles import upper_bound
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session

CAUSAL_HALF = """<ir_version: 8, opset_import: ["": 17]>
g (float16[1, 16, 64] x, int64[batch, 16] attention_mask, bool[keys] flags) => (float16[1, 16, 64] y, bool[keys] same) {
  none = Constant<value_float = -10000.0>()
  one = Constant<value_float = 1.0>()
  axes = Constant<value_ints = [1]>()
  turned = Transpose<perm = [0, 2, 1]>(x)
  products = MatMul(x, turned)
  scores = Mul(products, scale)
  padded = Cast<to = 1>(attention_mask)
  missing = Sub(one, padded)
  lowered = Mul(missing, none)
  row = Unsqueeze(lowered, axes)
  padding = Cast<to = 10>(row)
  bias = Add(padding, causal)
  masked = Add(scores, bias)
  weights = Softmax<axis = -1>(masked)
  y = MatMul(weights, x)
  same = Identity(flags)
}"""


def causal_half(path: Path) -> Path:
    """Causal attention with a padding mask in half precision."""
    model = onnx.parser.parse_model(CAUSAL_HALF)
    causal = np.triu(np.full((16, 16), -10000, np.float16), 1)
    model.graph.initializer.append(numpy_helper.from_array(causal, "causal"))
    model.graph.initializer.append(numpy_helper.from_array(np.float16(0.06), "scale"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("op", "inputs"), [("GreedySearch", 4), ("Sampling", 4), ("BeamSearch", 7)])
def test_a_search_for_tokens_ends_soon(op: str, inputs: int) -> None:
    names = ("longest", "shortest", *("beams", "returned", "length")[: 3 * (inputs > 4)], "repetition")
    types = [f"{'float' if name in ('length', 'repetition') else 'int32'}[1] {name}" for name in names]
    decoder = (
        "decoder = d () => (float[1] z) { z = Constant<value_floats = [1.0]>() }, eos_token_id = 1, pad_token_id = 1"
    )
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
      g (int32[batch, start] x, {", ".join(types)}) => (int32[a, b] y) {{
        y = com.microsoft.{op}<{decoder}>(x, {", ".join(names)})
      }}"""
    graph = from_proto(onnx.parser.parse_model(text)).graph
    feeds = next(candidates(graph, 0))
    assert feeds["x"].shape[1] < feeds["longest"][0] <= feeds["x"].shape[1] + 4
    assert {feeds[name].item() for name in names[2:]} <= {1, 1.25, 2}


@pytest.mark.parametrize(("key", "known"), [("string", ["cat", "dog", "eel"]), ("int64", [3, 5, 7])])
def test_maps_have_keys_that_the_model_knows(key: str, known: list[Any], tmp_path: Path) -> None:
    number, text = (onnx.TensorProto.INT64, onnx.TensorProto.STRING)
    node = onnx.helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **{f"{key}_vocabulary": known})
    element = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    type = onnx.helper.make_map_type_proto(text if key == "string" else number, element)
    x, y = onnx.helper.make_value_info("x", type), onnx.helper.make_tensor_value_info("y", 1, [1, 3])
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    drawn = [next(candidates(ortconv.load(tmp_path / "m.onnx").graph, seed))["x"] for seed in range(8)]
    assert {k for x in drawn for k in x} == {*known}
    validation = ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort").validation
    assert validation is not None
    assert validation.skipped is None


def test_other_elements_are_drawn_if_the_model_refuses_the_first() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int32 a, int32 b) => (int32 y) { s = Add(a, b) y = Div(a, s) }'
    session = ortconv.Session(from_proto(onnx.parser.parse_model(text)), "onnxruntime")
    assert all(accepted(session.model.graph, partial(session.run, None), seed=seed)[1] for seed in range(16))


def test_pixels_that_become_indices_are_from_0_to_1(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,16,n] x) => (float[1,3,16,n] y)
        <float[4] table = {0, 1, 2, 3}, float bins = {4}> { b = Mul(x, bins) i = Cast<to = 7>(b) y = Gather(table, i) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    validation = ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort").validation
    assert validation is not None
    assert validation.inputs[0].startswith("fraction inputs")
    feeds, _ = first_run(ortconv.Session(tmp_path / "m.ort"))
    assert 0 <= feeds["x"].min() < feeds["x"].max() < 1


def test_masks_begin_with_one(tmp_path: Path) -> None:
    graph = ortconv.load(causal_half(tmp_path / "m.onnx")).graph
    for seed in range(20):
        feeds = next(candidates(graph, seed))
        assert (feeds["attention_mask"][:, 0] == 1).all()
        assert set(np.unique(feeds["attention_mask"])) <= {0, 1}
    drawn = [next(candidates(graph, seed)) for seed in range(20)]
    assert any(not feeds["attention_mask"].all() for feeds in drawn)
    assert any(not feeds["flags"][0] for feeds in drawn)


def test_causal_attention_in_half_precision_converts(tmp_path: Path) -> None:
    result = ortconv.convert(causal_half(tmp_path / "m.onnx"), tmp_path / "m.ort")
    assert result.validation is not None
    assert result.validation.skipped is None


EMBED = "com.microsoft.EmbedLayerNormalization(i, i, w, p, q, f, f)"


@pytest.mark.parametrize(
    ("node", "others", "indices", "bound"),
    [
        ("Gather(x, i)", "float[3,4] x", "int64[2]", 3),
        ("GatherElements<axis = 1>(x, i)", "float[3,4] x", "int64[3,2]", 4),
        ("ScatterElements<axis = -1>(x, i, u)", "float[3,4] x, float[3,1] u", "int64[3,1]", 4),
        ("GatherND(x, i)", "float[3,4,5] x", "int64[6,2]", 3),
        ("GatherND<batch_dims = 1>(x, i)", "float[3,4,5] x", "int64[3,2]", 4),
        ("ScatterND(x, i, u)", "float[3,1] x, float[6] u", "int64[6,2]", 1),
        ("RoiAlign(x, r, i)", "float[3,1,6,6] x, float[9,4] r", "int64[9]", 3),
        ("NegativeLogLikelihoodLoss(x, i)", "float[3,4] x", "int64[3]", 4),
        ("ai.onnx.ml.ArrayFeatureExtractor(x, i)", "float[3,4] x", "int64[2]", 4),
        (EMBED, "float[9,4] w, float[8,4] p, float[3,4] q, float[4] f", "int32[1,2]", 3),
        ("SequenceAt(s, i)", "seq(float) s", "int64", 1),
        ("Add(i, i)", "float[3,4] x", "int64[2]", 2),
    ],
)
def test_indices_lie_within_what_they_index(node: str, others: str, indices: str, bound: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1]>
        g ({others}, {indices} i) => (y) {{ y = {node} }}"""
    *_, value = from_proto(onnx.parser.parse_model(text)).graph.inputs
    assert upper_bound(value) == bound


@pytest.mark.parametrize(
    ("node", "bound"),
    [
        ("ScatterND(k, rows, i)", 3), ("ScatterElements(i, at, k)", 3), ("Where(b, k, i)", 3), ("Where(b, i, k)", 3),
        ("Concat<axis = 0>(k, i)", 3), ("ReduceMax(i)", 3), ("Add(i, k)", 2),
    ],
)  # fmt: skip
def test_indices_are_passed_on(node: str, bound: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[3,4] x, bool[2] b, int64[2] k, int64[2] at, int64[2] i) => (y)
        <int64[2,1] rows = {{0, 1}}> {{ s = {node} y = Gather(x, s) }}"""
    *_, value = from_proto(onnx.parser.parse_model(text)).graph.inputs
    assert upper_bound(value) == bound


@pytest.mark.parametrize(
    ("body", "is_index"),
    [
        ("i = Cast<to = 6>(x) y = Gather(w, i)", True),
        ("r = Reshape(x, shape) i = Cast<to = 7>(r) y = Gather(w, i)", True),
        ("v, k = TopK(x, one) i = Cast<to = 6>(k) y = Gather(w, i)", False),
        ("i = Cast<to = 6>(x) y = Add(i, i)", False),
    ],
)
def test_floats_that_are_cast_to_indices(body: str, is_index: bool) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[40] x, float[9,4] w) => (y) <int64[1] shape = {{-1}}, int64[1] one = {{1}}> {{ {body} }}"""
    value, _ = from_proto(onnx.parser.parse_model(text)).graph.inputs
    drawn = generate(value, (40,), 0, Draw())
    assert (set(drawn.tolist()) == set(range(9))) is is_index
    assert (changed(value, drawn, "large") is drawn) is is_index
    assert (changed(value, drawn, "negative") is drawn) is is_index


@pytest.mark.parametrize("node", ["Cast<to = 1>(x)", "CastLike(x, t)"])
def test_strings_that_are_cast_to_numbers_are_numerals(node: str, tmp_path: Path) -> None:
    text = (
        f"""<ir_version: 8, opset_import: ["" : 17]> g (string[3,4] x, float[1] t) => (float[3,4] y) {{ y = {node} }}"""
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    found = ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort").validation
    assert found is not None
    assert found.skipped is None


@pytest.mark.parametrize(
    "node", ["GatherND(x, i)", "ScatterND(x, i, u)", pytest.param("RoiAlign(t, r, b)", marks=pytest.mark.slow)]
)
def test_indices_of_a_batch_of_one(node: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,5] x, int64[4,2] i, float[4] u, float[1,1,6,6] t, float[3,4] r, int64[3] b) => (float y) {{ y = {node} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    assert ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort").validation.skipped is None


@pytest.mark.parametrize(
    "between", ["t = Reshape(table, sizes) rows = Identity(t)", "t = Tile(table, sizes) rows = Cast<to = 7>(t)"]
)
def test_indices_are_found_behind_operators_that_move_them(between: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[n] table, int64[k] sizes, float[5] weights) => (y) {{ {between} y = Gather(weights, rows) }}"""
    table, sizes, _ = from_proto(onnx.parser.parse_model(text)).graph.inputs
    assert upper_bound(table) == 5
    assert upper_bound(sizes) == 2


@pytest.mark.parametrize("shape", ["1, 5, 2", "5, 1"])
def test_a_dft_has_points_and_an_axis(shape: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[{shape}] x, int64 points, int64 axis) => (y) {{ y = DFT(x, points, axis) }}"""
    graph = from_proto(onnx.parser.parse_model(text)).graph
    for seed in range(4):
        feeds = next(candidates(graph, seed))
        assert Session(Model(graph)).run(None, feeds)
        assert feeds["points"] > 1


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "int8"])
@pytest.mark.parametrize("node", ["Div(x, moved)", "Mod(x, moved)"])
def test_integers_are_not_divided_by_zero(node: str, dtype: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({dtype}[64] x, {dtype}[64] d) => ({dtype}[64] y) {{ moved = Identity(d) y = {node} }}"""
    graph = from_proto(onnx.parser.parse_model(text)).graph
    problem = free_problem(graph, {}, {})
    for kind in ("drawn", "negative", "large", "zeros"):
        feeds = make(problem, problem.fixed, kind=kind)
        assert np.all(feeds["d"]), kind
    assert not np.all(feeds["x"])


@pytest.mark.parametrize(
    "nodes",
    [
        "w = Unsqueeze(d, a) k = Concat<axis = 0>(o, w) y = Slice(x, z, e, b, k)",
        "k = Identity(d) r = Range(p, q, k) c = Cast<to = 1>(r) t = Unsqueeze(c, a) y = Mul(x, t)",
    ],
)
def test_steps_are_not_zero(nodes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[5,5] x, int64 d) => (float[M,N] y)
        <int64[1] a = {{0}}, int64[1] o = {{1}}, int64[2] z = {{0, 0}}, int64[2] e = {{5, 5}}, int64[2] b = {{0, 1}},
         int64 p = {{0}}, int64 q = {{5}}> {{ {nodes} }}"""
    problem = free_problem(from_proto(onnx.parser.parse_model(text)).graph, {}, {})
    for kind in ("drawn", "zeros"):
        assert all(make(problem, problem.fixed, seed, kind=kind)["d"] for seed in range(4)), kind


def test_an_axis_of_one_element_is_not_reflected() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[1,3,4] x, int64[6] p) => (float[A,B,C] y) { y = Pad<mode = "reflect">(x, p) }"""
    graph = from_proto(onnx.parser.parse_model(text)).graph
    feeds = next(candidates(graph, 0))
    assert feeds["p"].tolist() == [0, 1, 1, 0, 1, 1]
    assert Session(Model(graph)).run(None, feeds)


@pytest.mark.parametrize("time", ["20", "T"])
@pytest.mark.parametrize("kind", ["drawn", "zeros"])
def test_lengths_are_those_of_the_sequences(time: str, kind: str) -> None:
    """Speech models compute masks up to the largest length, which must then have the shape of the sequences."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[2,{time},4] x, int64[2] n) => (int64[k] y)
        {{ zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
        most = ReduceMax<keepdims = 0>(n) y = Range(zero, most, one) }}"""
    problem = free_problem(from_proto(onnx.parser.parse_model(text)).graph, {}, {})
    feeds = make(problem, {**problem.fixed, "T": 20}, kind=kind)
    assert feeds["n"].tolist() == [20, 20]


def test_an_empty_input_of_impossible_sizes_is_refused() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[0, 4611686018427387904, 4] x) => (y) { y = Relu(x) }'
    graph = from_proto(onnx.parser.parse_model(text)).graph
    with pytest.raises(UnsupportedError, match="fits no memory"):
        next(candidates(graph, 0))
