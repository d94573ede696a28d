"""Back to ONNX: the same bytes after converting again; standard operators, the same numbers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from golden import Case, cases, feeds, optimized
from test_golden import same_numbers

import ortconv
from ortconv.choices import LEVELS
from ortconv.cli import main
from ortconv.errors import UnsupportedError, UsageError
from ortconv.exporting import standard
from ortconv.exporting.export import onnx_bytes
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.onnxio.complete_types import mark
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.reader import parse
from ortconv.ortformat.writer import serialize
from ortconv.pipeline import optimize
from tests.batches import batched, slow_except
from tests.conftest import FAST_NAMES

GOLDEN = list(cases())


def convert(source: Path, target: Path, **settings: Any) -> bytes:
    ortconv.convert(source, target, validate=False, **settings)
    return target.read_bytes()


def content(model: Model) -> bytes:
    return b"".join(serialize(model))


# ---------------------------------------------------------------------- there and back


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_an_export_converts_to_the_same_bytes(sample: Path, level: str, tmp_path: Path) -> None:
    source = convert(sample, tmp_path / "a.ort", optimization_level=level)
    done = ortconv.export(tmp_path / "a.ort", tmp_path / "a.onnx")
    onnx.load(tmp_path / "a.onnx")
    assert convert(tmp_path / "a.onnx", tmp_path / "b.ort", optimization_level="disable") == source
    assert (done.nodes, done.bytes) == (
        sum(1 for _ in load(tmp_path / "a.ort").graph.walk()),
        (tmp_path / "a.onnx").stat().st_size,
    )


@pytest.mark.slow
@batched
@pytest.mark.parametrize("case", GOLDEN, ids=[c.id for c in GOLDEN])
def test_golden_cases_keep_their_bytes(case: Case) -> None:
    model, _ = optimized(case)
    try:
        optimize(model, "disable")
        source = content(model)
    except UnsupportedError:  # what no .ort file holds cannot come back from one
        return
    again = load(onnx_bytes(parse(source)))
    optimize(again, "disable")
    assert content(again) == source


@pytest.mark.slow
def test_few_golden_cases_cannot_be_written() -> None:
    refused = []
    for case in GOLDEN:
        model, _ = optimized(case)
        try:
            optimize(model, "disable")
            content(model)
        except UnsupportedError:
            refused.append(case.id)
    assert len(refused) < 10, refused


def test_constants_of_old_models_stay_constants(tmp_path: Path) -> None:
    head = '<ir_version: 3, opset_import: ["": 13]>'
    text = f"{head} g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Add(x, w) }}"
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    source = convert(tmp_path / "m.onnx", tmp_path / "a.ort", optimization_level="disable")
    ortconv.export(tmp_path / "a.ort", tmp_path / "a.onnx")
    exported = onnx.load(tmp_path / "a.onnx")
    assert (exported.ir_version, [v.name for v in exported.graph.input]) == (3, ["x", "w"])
    assert convert(tmp_path / "a.onnx", tmp_path / "b.ort", optimization_level="disable") == source


@pytest.mark.parametrize(
    ("shape", "kept"),
    [("own,2", ("own", 2)), ("m,2", ("n", 2)), ("n,2", ("n", 2)), ("3,2", (3, 2))],
    ids=["a symbol of its own", "a symbol that another value has", "the inferred symbol", "a number"],
)
def test_inference_renames_no_dimension_of_an_export(shape: str, kept: tuple[object, ...]) -> None:
    size = "3" if shape == "3,2" else "n"
    head = '<ir_version: 8, opset_import: ["": 13]>'
    text = f"{head} g (float[{size},2] x, float[m] z) => (float[{shape}] y, float[m] t) {{ y = Relu(x) t = Neg(z) }}"
    proto = onnx.parser.parse_model(text)
    assert load(proto).graph.outputs[0].shape == (3 if size == "3" else "n", 2)
    mark(proto)
    assert load(proto).graph.outputs[0].shape == kept


def test_an_unknown_size_of_an_export_equals_itself() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,1,n] x) => (float[1,1,w] y) { p = MaxPool<kernel_shape = [2]>(x) r = Relu(p) y = Add(p, r) }""")
    for name in ("p", "r"):
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, None]))
    mark(proto)
    pooled, activated = (node.out.shape for node in list(load(proto).graph)[:2])
    assert pooled == activated
    assert None not in (pooled or (None,))


def test_a_decoder_keeps_the_names_that_its_search_looks_for(tmp_path: Path) -> None:
    decoder = "decoder = d (float[1] x) => (float[1] y) { y = Neg(x) }, eos_token_id = 1, pad_token_id = 1"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (int32[b, s] x, int32[1] longest) => (int32[b, t] y) {{ y = com.microsoft.GreedySearch<{decoder}>(x, longest) }}""")
    (tmp_path / "a.ort").write_bytes(content(from_proto(model)))
    ortconv.export(tmp_path / "a.ort", tmp_path / "a.onnx")
    body = onnx.load(tmp_path / "a.onnx").graph.node[0].attribute[0].g
    assert ([v.name for v in body.input], [v.name for v in body.output]) == (["x"], ["y"])


def test_nodes_for_an_accelerator_are_named_as_lost(samples: Path, tmp_path: Path) -> None:
    source = convert(samples / "mobilenet_v2_small.onnx", tmp_path / "a.ort", use_nnapi=True)
    done = ortconv.export(tmp_path / "a.ort", tmp_path / "a.onnx")
    assert done.providers == ["NnapiExecutionProvider"]
    assert convert(tmp_path / "a.onnx", tmp_path / "b.ort", optimization_level="disable", use_nnapi=True) == source


# ---------------------------------------------------------------------- saved fusions


def test_saved_fusions_are_made_or_dropped(samples: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.ort"
    convert(samples / "qdq_cnn.onnx", source, optimization_style="Runtime")
    count = len(load(source).saved)
    dropped = ortconv.export(source, tmp_path / "dropped.onnx")
    made = ortconv.export(source, tmp_path / "made.onnx", saved_fusions="apply")
    assert (dropped.saved_fusions, dropped.saved_fusions_made) == (count, 0)
    assert made.saved_fusions_made == 10 < count  # two are alternatives for nodes that others take
    assert made.nodes < dropped.nodes
    operators = {node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node}
    assert operators & {"QLinearConv", "FusedConv"}


# ---------------------------------------------------------------------- upgrades


def as_version_4(data: bytes) -> bytes:
    """The file as one of format version 4, which has no kernel_type_str_resolver."""
    old = bytearray(data)
    (root,) = struct.unpack_from("<I", old)
    (vtable,) = struct.unpack_from("<i", old, root)
    fields = [struct.unpack_from("<H", old, root - vtable + 4 + 2 * slot)[0] for slot in range(4)]
    text = root + fields[0] + struct.unpack_from("<I", old, root + fields[0])[0]
    assert old[text + 4 : text + 5] == b"5"
    old[text + 4 : text + 5] = b"4"
    struct.pack_into("<H", old, root - vtable + 4 + 2 * 3, 0)
    return bytes(old)


@pytest.mark.parametrize("style", ["Fixed", "Runtime"])
def test_an_old_file_becomes_a_new_one(style: str, samples: Path, tmp_path: Path) -> None:
    new = convert(samples / "qdq_cnn.onnx", tmp_path / "new.ort", optimization_style=style)
    old = tmp_path / "old.ort"
    old.write_bytes(as_version_4(new))
    done = ortconv.export(old, tmp_path / "upgraded.ort")
    assert done.upgraded_from == "4"
    assert (tmp_path / "upgraded.ort").read_bytes() == new
    assert ortconv.verify(tmp_path / "upgraded.ort").findings == []


# ---------------------------------------------------------------------- standard operators

OWN = {
    "StandardFusedConv": "(float[1,4,6,6] x, float[4,4,3,3] w, float[4] b, float[1,4,4,4] z) => (float[1,4,4,4] y) "
    '{ y = com.microsoft.FusedConv <activation = "LeakyRelu", activation_params = [0.3]> (x, w, b, z) }',
    "StandardFusedGemm": "(float[3,4] a, float[4,5] b, float[5] c) => (float[3,5] y) "
    '{ y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.2, alpha = 0.5> (a, b, c) }',
    "StandardFusedMatMul": "(float[2,4,3] a, float[2,5,4] b) => (float[2,3,5] y) "
    "{ y = com.microsoft.FusedMatMul <transA = 1, transB = 1, alpha = 0.25> (a, b) }",
    "StandardLayerNormalization": "(float[2,3,4] x, float[4] s, float[4] b) => (float[2,3,4] y) "
    "{ y = LayerNormalization <axis = 2> (x, s, b) }",
    "StandardSimplifiedLayerNormalization": "(float[2,3,4] x, float[4] s) => (float[2,3,4] y) "
    "{ y = SimplifiedLayerNormalization <epsilon = 0.001> (x, s) }",
    "StandardSkipLayerNormalization": "(float[2,3,4] x, float[2,3,4] k, float[4] g, float[4] b, float[4] c) => "
    "(float[2,3,4] y, float[2,3,4] s) { y, , , s = com.microsoft.SkipLayerNormalization (x, k, g, b, c) }",
    "StandardSkipSimplifiedLayerNormalization": "(float[2,3,4] x, float[2,3,4] k, float[4] g) => (float[2,3,4] y, float[2,3,4] s) "
    "{ y, , , s = com.microsoft.SkipSimplifiedLayerNormalization (x, k, g) }",
    "StandardGelu": "(float[3,4] x) => (float[3,4] y) { y = com.microsoft.Gelu (x) }",
    "StandardBiasGelu": "(float[3,4] x, float[4] b) => (float[3,4] y) { y = com.microsoft.BiasGelu (x, b) }",
    "StandardFastGelu": "(float[3,4] x, float[4] b) => (float[3,4] y) { y = com.microsoft.FastGelu (x, b) }",
    "StandardQuickGelu": "(float[3,4] x) => (float[3,4] y) { y = com.microsoft.QuickGelu <alpha = 1.5> (x) }",
    "StandardMatMulIntegerToFloat": "(uint8[3,4] a, uint8[4,5] b, float s, float[5] t, float[5] c) => (float[3,5] y) "
    "<uint8 u = {2}, uint8[5] v = {1, 2, 3, 4, 5}> { y = com.microsoft.MatMulIntegerToFloat (a, b, s, t, u, v, c) }",
    "StandardDynamicQuantizeMatMul": "(float[3,4] a, float[5] t) => (float[3,2] y) "
    "<uint8[4,2] b = {1, 2, 3, 4, 5, 6, 7, 8}, float[1] s = {0.5}, uint8[1] z = {3}> "
    "{ y = com.microsoft.DynamicQuantizeMatMul (a, b, s, z) }",
    "StandardQGemm": "(uint8[3,4] a, int8[4,2] b) => (float[3,2] y) "
    "<float s = {0.5}, uint8 z = {3}, float[2] t = {0.25, 0.5}, int8[2] u = {0, 0}, int32[2] c = {7, -9}> "
    "{ y = com.microsoft.QGemm <alpha = 0.5> (a, s, z, b, t, u, c) }",
    "StandardQLinear": "(uint8[3,4] a, uint8[3,4] b, bool[3,4] w) => (uint8[3,4] y, uint8[3,4] v, uint8[6,4] c, uint8[3,4] q) "
    "<float s = {0.5}, uint8 z = {3}> { y = com.microsoft.QLinearAdd (a, s, z, b, s, z, s, z) "
    "v = com.microsoft.QLinearSigmoid (a, s, z, s, z) c = com.microsoft.QLinearConcat <axis = 0> (s, z, a, s, z, b, s, z) "
    "q = com.microsoft.QLinearWhere (w, a, s, z, b, s, z, s, z) }",
    "StandardQuantizeLinear": "(float[3,4] x) => (float[3,4] y) <float s = {0.5}, uint8 z = {3}> "
    "{ q = com.microsoft.QuantizeLinear (x, s, z) y = com.microsoft.DequantizeLinear (q, s, z) }",
}  # fmt: skip
"""For each rule a graph in which it fires."""


@pytest.mark.parametrize("opset", slow_except([18], [13, 18]))
@pytest.mark.parametrize("rule", sorted({r.name for r in standard.STANDARD.rules}))
def test_standard_operators_compute_the_same(rule: str, opset: int, tmp_path: Path) -> None:
    if rule == "StandardLayerNormalization":
        opset = 13
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> g {OWN[rule]}')
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    done = ortconv.export(tmp_path / "m.onnx", tmp_path / "s.onnx", standard=True)
    assert rule in done.rewrites
    assert done.own_operators == {}
    result = onnx.load(tmp_path / "s.onnx")
    assert {o.domain for o in result.opset_import} == {""}
    onnx.checker.check_model(result, full_check=True)
    inputs = feeds(proto, 0, special=False)
    before, after = (ort.InferenceSession(tmp_path / name).run(None, inputs) for name in ("m.onnx", "s.onnx"))
    for expected, actual in zip(before, after, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


EXTENDED = [c for c in GOLDEN if c.id.startswith("extended/")]


@pytest.mark.slow
@batched
@pytest.mark.parametrize("case", EXTENDED, ids=[c.id for c in EXTENDED])
def test_fused_golden_cases_keep_their_numbers(case: Case, tmp_path: Path) -> None:
    model, _ = optimized(case)
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(model))
    ortconv.export(tmp_path / "m.onnx", tmp_path / "s.onnx", standard=True)
    same_numbers(case, onnx.load(tmp_path / "s.onnx"))


def test_what_has_no_body_is_named(tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    text = f"{head} g (float[2,2] x) => (float[2,2] y) {{ y = com.microsoft.Inverse(x) }}"
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    done = ortconv.export(tmp_path / "m.onnx", tmp_path / "s.onnx", standard=True)
    assert (done.rewrites, done.own_operators) == ({}, {"com.microsoft:Inverse": 1})


# ---------------------------------------------------------------------- refusals and the command


def test_no_model_is_written_over(samples: Path, tmp_path: Path) -> None:
    convert(samples / "mnist.onnx", tmp_path / "a.ort")
    (tmp_path / "there.onnx").write_bytes(b"precious")
    for target, message in [
        ("there.onnx", "exists already"),
        ("m.txt", "writes .onnx or .ort"),
        ("a.ort", "exists already"),
    ]:
        with pytest.raises(UsageError, match=message):
            ortconv.export(tmp_path / "a.ort", tmp_path / target)
    assert (tmp_path / "there.onnx").read_bytes() == b"precious"
    with pytest.raises(UsageError, match="files only"):
        ortconv.export(samples / "mnist.onnx", tmp_path / "m.ort")


def test_weights_beyond_the_limit_of_a_message_are_named(tmp_path: Path) -> None:
    weights = onnx.TensorProto(name="w", data_type=1, dims=[1 << 15, 1 << 14], data_location=onnx.TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="w.bin")
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(1 << 31)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,32768] x) => (float[1,16384] y) { y = MatMul(x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(weights)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for change in (
        lambda: ortconv.export(tmp_path / "m.onnx", tmp_path / "x.onnx"),
        lambda: ortconv.bundle(tmp_path / "m.onnx", tmp_path / "b.zip"),
        lambda: ortconv.reduce(tmp_path / "m.onnx", tmp_path / "r.onnx", lambda path: True),
    ):
        with pytest.raises(UnsupportedError, match=r"m\.onnx: the weights have 2,147,483,648 bytes, 1\.0 times"):
            change()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "w.bin"]


def test_bytes_and_messages_are_sources(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    data = content(from_proto(proto))
    assert ortconv.export(data, tmp_path / "m.onnx").nodes == 1


def test_the_command(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples / "mnist.onnx", tmp_path / "a.ort")
    assert main(["export", str(tmp_path / "a.ort"), "-o", str(tmp_path / "a.onnx"), "--standard"]) == 0
    shown = capsys.readouterr().out
    assert "rewrites   StandardFusedConv x2" in shown
    assert "not ONNX" not in shown
    assert main(["export", str(tmp_path / "a.ort"), "-o", str(tmp_path / "a.onnx")]) == 2
