"""Counts are those of the file, costs those that can be counted by hand, and notes give advice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortconv
from ortconv.cli import main, render
from ortconv.errors import UsageError
from ortconv.inspection.inspect import Inspection
from ortconv.inspection.quantization import lint
from ortconv.models import load
from tests.conftest import SAMPLES


def parsed(graph: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>\ng {graph}')


def inspect(graph: str, **options: object) -> Inspection:
    return ortconv.inspect(parsed(graph), **options)  # type: ignore[arg-type]


def walk(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from walk(attribute.g)


def kinds(found: Inspection) -> dict[str, str]:
    return {note.kind: str(note) for note in found.notes}


# ---------------------------------------------------------------------- counts and costs


def test_counts_are_those_of_the_file(sample: Path) -> None:
    proto = onnx.load(sample)
    graphs = list(walk(proto.graph))
    ops = Counter(node.op_type for graph in graphs for node in graph.node)
    constants = ops.pop("Constant", 0) + sum(len(graph.initializer) for graph in graphs)
    found = ortconv.inspect(sample)
    assert {row.operator: row.count for row in found.operators} == ops
    assert (found.nodes, found.constants, found.graphs) == (ops.total(), constants, len(graphs))
    given = {tensor.name for tensor in proto.graph.initializer}
    assert [port.name for port in found.inputs] == [v.name for v in proto.graph.input if v.name not in given]
    assert found.file_bytes == sample.stat().st_size
    assert sum(row.time_share for row in found.operators) == pytest.approx(1)


def test_costs_can_be_counted_by_hand() -> None:
    found = inspect(
        "(float[1,3,8,8] x) => (float[1,4,6,6] y) <float[4,3,3,3] w = {"
        + ", ".join(["1"] * 108)
        + "}> { c = Conv (x, w) r = Relu (c) y = Neg (r) }"
    )
    conv, image = 4 * 6 * 6, 3 * 8 * 8
    assert found.multiply_adds == conv * 27
    assert (found.parameters, found.constant_bytes) == (108, 432)
    assert found.memory.peak_bytes == 4 * (image + conv)
    assert found.memory.peak_node == "Conv 'c'"
    assert found.memory.total_bytes == 4 * (image + 3 * conv)
    assert found.operators[0].operator == "Conv"


def test_a_value_with_a_late_reader_stays_alive() -> None:
    found = inspect("(float[100] x) => (float[100] y) { a = Relu (x) b = Neg (a) c = Abs (b) y = Add (a, c) }")
    assert found.memory.peak_bytes == 1200  # a and two more at a time; x is free behind Relu


def test_memory_counts_the_larger_subgraph_while_its_node_runs() -> None:
    branches = (
        "then_branch = t () => (float[100] c) { a = Neg (x) c = Abs (a) }",
        "else_branch = e () => (float[100] d) { d = Exp (x) }",
    )
    found = inspect(f"(float[100] x, bool b) => (float[100] y) {{ y = If (b) <{', '.join(branches)}> }}")
    assert found.graphs == 3
    assert (found.memory.peak_node, found.memory.peak_bytes) == ("If 'y'", 4 * 400 + 1)  # x, b, y, a and c
    assert found.memory.total_bytes == 5 * 400 + 1


def test_dimensions_can_be_fixed(samples: Path) -> None:
    free = ortconv.inspect(samples / "bert_tiny.onnx")
    fixed = ortconv.inspect(samples / "bert_tiny.onnx", fix_dims={"batch": 2, "sequence": 16})
    assert (free.symbols, fixed.symbols) == (["batch", "sequence"], [])
    assert fixed.multiply_adds > 30 * free.multiply_adds


def test_an_ort_file_has_a_format_version(samples: Path, tmp_path: Path) -> None:
    ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", validate=False)
    found = ortconv.inspect(tmp_path / "m.ort")
    assert (found.format, found.format_version) == ("ort", "5")
    assert found.oldest_onnxruntime == ortconv.verify(tmp_path / "m.ort").oldest_onnxruntime
    assert kinds(found)["optimized"].startswith("already optimized at extended")
    assert "optimized" not in kinds(ortconv.inspect(samples / "mnist.onnx"))


# ---------------------------------------------------------------------- notes


def weights(rows: int, columns: int, name: str = "w") -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.arange(rows * columns, dtype=np.float32).reshape(rows, columns), name)


def test_notes_name_what_stands_out_and_advice() -> None:
    proto = parsed(
        "(int64[n] i, double[3] d) => (float[n,64] y, double[3] e) { g = Gather (w, i) y = Add (g, b) e = Sqrt (d) }"
    )
    proto.graph.initializer.extend(
        [weights(2000, 64), weights(1, 64, "b"), weights(300, 64, "unused"), weights(300, 64, "copy")]
    )
    notes = kinds(ortconv.inspect(proto))
    assert notes["dynamic-shapes"] == "dynamic n: NNAPI supports no node (--fix-dim n=SIZE)"
    assert notes["large-constant"].startswith("77% of the bytes are 'w', read by Gather")
    assert notes["unused"] == "no node reads the constant 'unused' and 1 other (ortconv convert drops it)"
    assert "1 node in float64, such as Sqrt 'e'" in notes["float64"]
    assert notes["copies"].startswith("76.8 kB of constants are copies")


def test_unremarkable_models_have_no_other_notes() -> None:
    found = inspect("(float[1,4] x, float[1,4] z) => (float[1,4] y) { y = Sub (x, z) }")
    assert [note.kind for note in found.notes] == ["optimized"]


def test_custom_operators_and_overridable_constants() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my.domain": 1]> g (float[400,400] w) => (float[400,400] y) '
        "{ a = my.domain.Twist (w) y = Relu (a) }"
    )
    proto.graph.initializer.append(weights(400, 400))
    notes = kinds(ortconv.inspect(proto))
    assert "my.domain:Twist" in notes["custom"]
    assert (
        notes["overridable"]
        == "'w': a constant that is also an input is never folded (ortconv convert --freeze-initializers)"
    )


def test_overridable_constants_of_a_small_model() -> None:
    notes = kinds(inspect("(float[1,4] x, float[1,4] w = {1, 2, 3, 4}) => (float[1,4] y) { y = Sub (x, w) }"))
    assert notes["overridable"].startswith("'w': a constant that is also an input")


# ---------------------------------------------------------------------- quantization

PAIR = "<float s = {0.1}, uint8 z = {128}, int8 o = {0}>"
CONV = (
    f"(float[1,4,8,8] x, float[4,4,3,3] w) => (float[1,4,6,6] y) {PAIR} {{"
    " q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = QuantizeLinear (w, s, o) u = DequantizeLinear (v, s, o)"
    " c = Conv (d, u) p = QuantizeLinear (c, s, z) f = DequantizeLinear (p, s, z) y = Tanh (f) }"
)


@pytest.mark.parametrize(("model", "form"), [("mnist", "none"), ("qdq_cnn", "QDQ"), ("bert_tiny", "none")])
def test_quantization_form_of_samples(model: str, form: str, samples: Path) -> None:
    assert ortconv.inspect(samples / f"{model}.onnx").quantization.form == form


@pytest.mark.parametrize(
    ("graph", "form"),
    [
        (CONV, "QDQ"),
        ("(float[2,3] x) => (uint8[2,3] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }", "dynamic"),
        (f"(uint8[3] a) => (uint8[3] y) {PAIR} {{ y = com.microsoft.QLinearAdd (a, s, z, a, s, z, s, z) }}", "QOperator"),
        ("(float[2,2] x) => (float[2,2] y) <int8[2,2] w = {1, 2, 3, 4}, float s = {0.1}> "
         "{ d = DequantizeLinear (w, s) y = MatMul (x, d) }", "weights only"),
        ("(uint8[2,2] q, float[2,2] x) => (float[2,2] y) <float s = {0.1}> { d = DequantizeLinear (q, s) y = MatMul (x, d) }",
         "weights only"),
    ],
)  # fmt: skip
def test_quantization_form_of_a_graph(graph: str, form: str) -> None:
    assert inspect(graph).quantization.form == form


def test_ranges_and_what_is_left_in_float(samples: Path) -> None:
    found = inspect(CONV).quantization
    assert found.activation_types == ["int8", "uint8"]
    assert found.narrowest is not None
    assert found.widest is not None
    assert (found.narrowest.low, found.narrowest.high) == pytest.approx((-12.8, 12.7))
    assert (found.float_nodes, found.float_share) == (0, 0)
    half = inspect(
        f"(float[4,4] x, float[4,4] w) => (float[4,4] y) {PAIR} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
        " m = MatMul (d, w) p = QuantizeLinear (m, s, z) f = DequantizeLinear (p, s, z) t = Tanh (f) y = MatMul (t, w) }"
    )
    assert half.quantization.float_operators == {"MatMul": 1}
    assert half.quantization.float_share == 0.5
    assert "50% of the multiply-adds are left in float, 1 nodes, most of them MatMul" in kinds(half)["left-in-float"]


def test_a_scale_that_is_not_finite_has_no_range() -> None:
    graph = "(float[2] x) => (uint8[2] y) <float t = {0}> { y = QuantizeLinear (x, t) }"
    model = parsed(graph)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32("nan"), "t"))
    found = ortconv.inspect(model).quantization
    assert (found.narrowest, found.widest) == (None, None)


def test_two_zero_points_beside_one_scale_have_no_range() -> None:
    """onnxruntime and numpy compute it."""
    graph = "(float[2,2] x) => (uint8[2,2] y) <float s = {1}, uint8[2] z = {0, 0}> { y = QuantizeLinear (x, s, z) }"
    assert inspect(graph).quantization.narrowest is None


def test_lint_judges_each_group() -> None:
    found = inspect(CONV, lint="quantization")
    assert found.lint is not None
    by_target = {v.target: v for v in found.lint if v.operator == "Conv"}
    assert by_target.keys() == {"NNAPI", "CoreML"}
    assert not by_target["CoreML"].taken
    assert {r.rule for r in by_target["CoreML"].reasons} == {"operator"}
    assert inspect(CONV).lint is None


def test_lint_takes_what_nnapi_takes(samples: Path) -> None:
    found = ortconv.inspect(samples / "qdq_cnn.onnx", lint="quantization")
    assert found.lint is not None
    nnapi = [v for v in found.lint if v.target == "NNAPI"]
    assert sum(v.taken for v in nnapi) == 6
    assert all(v.taken != bool(v.reasons) for v in nnapi)
    assert {r.rule for v in nnapi for r in v.reasons} == {"qdq", "runtime"}


MISSING = {
    "missing-pair": "p = QuantizeLinear (m, s, z) y = DequantizeLinear (p, s, z) m = Add (d, x)",
    "shared-dequantizer": "m = Add (d, d) p = QuantizeLinear (m, s, z) y = DequantizeLinear (p, s, z)",
    "float-reader": "m = Relu (d) p = QuantizeLinear (m, s, z) f = DequantizeLinear (p, s, z) y = Add (m, f)",
    "types": "m = Relu (d) p = QuantizeLinear (m, s, o) y = DequantizeLinear (p, s, o)",
}


@pytest.mark.parametrize("rule", MISSING)
def test_lint_names_what_keeps_groups_from_forming(rule: str) -> None:
    text = f"(float[4] x) => (float[4] y) {PAIR} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) {MISSING[rule]} }}"
    reasons = [r for v in lint(load(parsed(text)).graph) if v.target == "both" for r in v.reasons]
    assert rule in {r.rule for r in reasons}
    assert all(r.message and r.advice for r in reasons)


def test_an_unknown_lint_is_refused() -> None:
    with pytest.raises(UsageError, match="no lint 'style'"):
        inspect(CONV, lint="style")


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize("name", ["bert_tiny", "qdq_cnn", "if_branch"])
def test_it_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(render, "room", lambda: 80)
    assert main(["inspect", str(SAMPLES / f"{name}.onnx"), "--lint", "quantization"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[1:] if len(line) > 80] == []


def test_markdown(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(samples / "bert_tiny.onnx"), "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| operator | count | types | MACs | touches | time |\n|---|--:|---|--:|--:|--:|\n| MatMul | 16 |" in shown
    assert r"| in | input\_ids | int64\[batch,sequence\] |" in shown


def test_reasons_that_are_left_out_are_counted(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ortconv.report.inspect.MOST_REASONS", 1)
    assert main(["inspect", str(samples / "qdq_cnn.onnx"), "--lint", "quantization", "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert re.search("^### Lint of the quantization, the first 1 of [0-9]+ reasons\n", shown, re.MULTILINE)
    assert "- " not in shown.splitlines()


def test_text_names_the_essentials(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(samples / "qdq_cnn.onnx"), "--lint", "quantization"]) == 0
    shown = capsys.readouterr().out
    assert "loads in onnxruntime 1.13 and later" in shown
    assert "NNAPI supports 6 of 12 groups" in shown
    assert re.search(r"Conv +4 +float +1\.8 M", shown)


def test_a_sparse_constant_counts_as_it_is_stored() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) { y = Add(x, s) }'
    )
    values, indices = (onnx.helper.make_tensor(name, kind, [2], [1, 5]) for name, kind in (("s", 1), ("", 7)))
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [2, 3]))
    assert ortconv.inspect(proto).constant_bytes == ortconv.load(proto).graph.constant_bytes == 2 * (4 + 8)
