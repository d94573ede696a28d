"""The main job through the Python interface: every sample at every level, held against onnxruntime."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ortconv
from ortconv.choices import LEVELS
from ortconv.compare.gap import strict_gap
from ortconv.compare.tolerance import limit
from ortconv.errors import MismatchError, ModelError, UsageError
from ortconv.inputs.candidates import candidates
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.wording import fix_dim_options
from tests import text_models, unoptimized
from tests.conftest import FAST_NAMES

ORT_BASIC = {
    "mnist": 8,
    "mobilenet_v2_small": 43,
    "bert_tiny": 126,
    "qdq_cnn": 51,
    "if_branch": 9,
    "loop_accumulate": 9,
}
"""Nodes after onnxruntime 1.31.1's own basic level, those in subgraphs included."""


@pytest.mark.parametrize("use_nnapi", [False, True], ids=["cpu", "nnapi"])
@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=() if level == "all" else pytest.mark.slow) for level in LEVELS]
)
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_converted_model_computes_what_the_source_computes(
    sample: Path, level: str, use_nnapi: bool, tmp_path: Path
) -> None:
    target = tmp_path / "model.ort"
    result = ortconv.convert(sample, target, optimization_level=level, use_nnapi=use_nnapi)
    assert result.validation is not None
    assert result.validation.skipped is None
    graph = ortconv.load(sample).graph
    feeds = next(iter(candidates(graph, seed=3)))
    want = unoptimized.session(sample).run(None, feeds)
    allowed = limit(graph, [v.dtype for v in graph.outputs])
    for got in (unoptimized.session(target).run(None, feeds), ortconv.Session(target).run(None, feeds)):
        assert all(strict_gap(a, b).within(allowed) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_graph_keeps_its_contract_after_every_pass(sample: Path, level: str) -> None:
    """`verify` raises an error otherwise. It runs after each pass that changes the graph."""
    model, verified = ortconv.load(sample), []

    def check(stage: str, model: Model) -> None:
        verify(model.graph)
        verified.append(stage)

    found = ortconv.optimize(model, level, observer=check)
    verify(model.graph)
    assert verified or not found.trace


def test_basic_level_has_no_more_nodes_than_onnxruntime(sample: Path) -> None:
    model = ortconv.load(sample)
    ortconv.optimize(model, "basic")
    assert sum(1 for _ in model.graph.walk()) <= ORT_BASIC[sample.stem]


def test_optimizing_twice_changes_nothing_more(sample: Path) -> None:
    model = ortconv.load(sample)
    ortconv.optimize(model, "all")
    assert ortconv.optimize(model, "all").trace == []


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph]


def test_mnist_becomes_what_the_documentation_shows(samples: Path) -> None:
    from ortconv.partition import Target, partition

    def optimized(level: str, target: Target | None = None) -> Graph:
        model = ortconv.load(samples / "mnist.onnx")
        ortconv.optimize(model, level, target)
        return model.graph

    basic, extended = optimized("basic"), optimized("extended")
    layer = ["Conv", "Relu", "MaxPool"]
    assert operators(basic) == [*layer, *layer, "Reshape", "Gemm"]
    assert operators(extended) == ["FusedConv", "MaxPool", "FusedConv", "MaxPool", "Reshape", "Gemm"]
    target = Target(stop_ops=("Reshape",))
    assert [[n.op for n in p.nodes] for p in partition(basic, target).partitions] == [[*layer, *layer]]
    assert [[n.op for n in p.nodes] for p in partition(extended, target).partitions] == [["MaxPool"], ["MaxPool"]]
    aware = optimized("extended", target)
    assert operators(aware) == [*layer, *layer, "Reshape", "Gemm"]
    assert [node.ep for node in aware] == ["NnapiExecutionProvider"] * 6 + ["", ""]


def test_function_bodies_are_optimized() -> None:
    model = from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x, int64[N] t) => (float loss) { loss = SoftmaxCrossEntropyLoss(x, t) }""")
    )
    ortconv.optimize(model, "basic")
    operators = [node.op for node in model.graph]
    assert "LogSoftmax" in operators
    assert not {"Transpose", "Slice", "Identity"} & set(operators)


def test_a_wrong_result_is_refused_and_the_old_file_stays(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortconv.ortformat import writer

    target = tmp_path / "model.ort"
    target.write_bytes(b"what was there before")
    real = writer.write

    def corrupting(model: ortconv.ir.model.Model, path: Path) -> None:
        for value in model.graph.initializers.values():
            if value.constant is not None and value.constant.rank == 4:
                value.const = ortconv.ir.tensor.Tensor.of(value.constant.numpy() * np.float32(1.01))
        real(model, path)

    monkeypatch.setattr(writer, "write", corrupting)
    with pytest.raises(MismatchError, match="differs from the source"):
        ortconv.convert(samples / "mnist.onnx", target)
    assert target.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["model.ort"]


def test_the_source_is_never_written_over(samples: Path, tmp_path: Path) -> None:
    first = tmp_path / "model.ort"
    ortconv.convert(samples / "mnist.onnx", first)
    before = first.read_bytes()
    for output in (first, tmp_path / "other.ort"):
        with pytest.raises(UsageError, match=r"reads \.onnx models"):
            ortconv.convert(first, output)
    source = tmp_path / "named.onnx"
    source.write_bytes((samples / "mnist.onnx").read_bytes())
    with pytest.raises(UsageError, match="never overwrites"):
        ortconv.convert(source, source)
    assert first.read_bytes() == before


def test_validation_with_own_inputs(samples: Path, tmp_path: Path) -> None:
    images = np.load(samples / "mnist_test.npz")["images"]
    feeds = {"Input3": images[:1].astype(np.float32)}
    result = ortconv.convert(samples / "mnist.onnx", tmp_path / "model.ort", validate_with=feeds)
    assert result.validation is not None
    assert result.validation.scaled <= result.validation.limit
    with pytest.raises(UsageError, match="given inputs 1: there is no input 'image'"):
        ortconv.convert(samples / "mnist.onnx", tmp_path / "model.ort", validate_with={"image": feeds["Input3"]})
    with pytest.raises(UsageError, match="given inputs 2: input 'Input3' must be float"):
        ortconv.convert(samples / "mnist.onnx", tmp_path / "model.ort", validate_with=[feeds, {"Input3": images[:1]}])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimization_level": "fastest"}, "fastest"),
        ({"nnapi_feature_level": 26}, "26"),
        ({"nnapi_feature_level": 32}, "32"),
    ],
)
def test_options_that_make_no_sense(settings: dict[str, object], message: str, samples: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ortconv.convert(samples / "mnist.onnx", tmp_path / "model.ort", **settings)


@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_the_optimized_graph_as_onnx(sample: Path, tmp_path: Path) -> None:
    result = ortconv.convert(
        sample, tmp_path / "model.ort", optimization_level="extended", save_optimized_onnx_model=True
    )
    saved = tmp_path / "model.optimized.onnx"
    assert str(saved) in result.files
    feeds = next(iter(candidates(ortconv.load(sample).graph)))
    want = unoptimized.session(tmp_path / "model.ort").run(None, feeds)
    got = unoptimized.session(saved).run(None, feeds)
    assert all(strict_gap(a, b).within(1e-6) for a, b in zip(want, got, strict=True))


@pytest.mark.slow
def test_the_result_says_why_nodes_leave_nnapi(samples: Path, tmp_path: Path) -> None:
    result = ortconv.convert(samples / "bert_tiny.onnx", tmp_path / "m.ort", use_nnapi=True)
    assert result.partitions is not None
    assert result.refusals == sorted(result.refusals, key=lambda row: -row.nodes)
    shapes = next(row for row in result.refusals if row.rule == "static-shape")
    assert "NNAPI needs every dimension" in shapes.example
    assert "fixed shapes" in shapes.advice
    assert ortconv.convert(samples / "bert_tiny.onnx", tmp_path / "n.ort").partitions is None


@pytest.mark.slow
def test_fixed_dimensions_bring_nodes_to_nnapi(samples: Path, tmp_path: Path) -> None:
    source, target = samples / "bert_tiny.onnx", tmp_path / "m.ort"
    symbols = {d for v in ortconv.load(source).graph.inputs for d in v.shape or () if isinstance(d, str)}
    sizes = dict.fromkeys(sorted(symbols), 4)
    free = ortconv.convert(source, tmp_path / "free.ort", use_nnapi=True)
    fixed = ortconv.convert(source, target, use_nnapi=True, fix_dims=sizes)
    assert all(a.shape == [4] * len(a.shape or ()) for a in ortconv.Session(target).get_inputs())

    def taken(result: ortconv.pipeline.Result) -> int:
        return sum(len(p.nodes) for p in result.partitions or ())

    assert taken(fixed) > taken(free)
    feeds = {v.name: np.ones((4, 4), np.int64) for v in ortconv.load(target).graph.inputs}
    want = unoptimized.session(source).run(None, feeds)
    got = unoptimized.session(target).run(None, feeds)
    assert all(strict_gap(a, b).within(1e-5) for a, b in zip(want, got, strict=True))
    with pytest.raises(UsageError, match="no input has a dimension named 'n'"):
        ortconv.convert(source, target, fix_dims={"n": 1})


@pytest.mark.parametrize(
    ("nodes", "inputs", "hint"),
    [
        ("y = MatMul(x, w)", "float[N,C] x, float[3,4] w", "without the fixed sizes the model is valid: "),
        ("y = Conv(x, w)", "float[N,C,1,1] x, float[4,3,1,1] w", "if the model does not run with these sizes, choose"),
    ],
)
def test_a_fixed_dimension_that_contradicts_the_model(nodes: str, inputs: str, hint: str, tmp_path: Path) -> None:
    """onnx refuses the product when the model is loaded, and the convolution only when it runs."""
    source = text_models.save_nodes(tmp_path / "m.onnx", nodes, inputs)
    with pytest.raises(ModelError) as caught:
        ortconv.convert(source, tmp_path / "m.ort", fix_dims={"C": 5})
    assert (caught.value.hint or "").startswith(hint)


@pytest.mark.parametrize(("kind", "zero"), [("uint8", 3), ("int8", -125)])
def test_float_biases_of_quantized_units_go_to_nnapi(kind: str, zero: int, tmp_path: Path) -> None:
    """As PyTorch exports models that were trained for quantization."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]>
        g (float[1,2,4,4] x) => (float[1,2,3,3] y) <float s = {{0.02}}, float t = {{0.05}}, {kind} z = {{{zero}}},
            int8[2,2,2,2] v = {{100, -50, 25, 50, 0, 12, -100, 50, 10, 20, -30, 20, 10, 0, 0, 5}}, float k = {{0.01}},
            int8 n = {{0}}, float[2] b = {{0.5001, -0.25}}> {{
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            w = DequantizeLinear(v, k, n)
            c = Conv(d, w, b)
            o = QuantizeLinear(c, t, z)
            y = DequantizeLinear(o, t, z)
        }}"""
    )
    target = tmp_path / "m.ort"
    refused = ortconv.convert(proto, target, use_nnapi=True).refusals
    assert ["--maximize-offload" in row.advice for row in refused] == [True] * (kind == "int8")
    found = ortconv.convert(proto, target, use_nnapi=True, maximize_offload=kind == "int8")
    assert found.rewrites["BiasQuantization"] == 1
    assert [len(p.nodes) for p in found.partitions or ()] == [7]
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}
    (want,), (got,) = (ortconv.Session(m, b).run(None, feeds) for m, b in ((proto, "onnxruntime"), (target, "nnapi")))
    np.testing.assert_allclose(got, want, atol=0.0501)


def test_limited_results_of_quantized_units_go_to_nnapi(tmp_path: Path) -> None:
    """As TensorRT's tools quantize, symmetrically: a Relu that the integers do not imply, and a residual sum in float."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]>
        g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.02}, float t = {0.05}, int8 z = {0},
            int8[2,2,1,1] v = {100, -50, 25, 50}, float[2] k = {0.01, 0.02}, int8[2] n = {0, 0}, float[2] b = {0.5001, -0.25}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            w = DequantizeLinear<axis = 0>(v, k, n)
            c = Conv(d, w, b)
            r = Relu(c)
            o = QuantizeLinear(r, t, z)
            e = DequantizeLinear(o, t, z)
            w2 = DequantizeLinear<axis = 0>(v, k, n)
            f = Conv(e, w2, b)
            y = Add(f, d)
        }"""
    )
    target = tmp_path / "m.ort"
    found = ortconv.convert(proto, target, use_nnapi=True, maximize_offload=True)
    assert {"QDQClamps", "QDQWeightsToFloat"} <= found.rewrites.keys()
    assert [len(p.nodes) for p in found.partitions or ()] == [found.nodes_after]
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}
    (want,), (got,) = (ortconv.Session(m, b).run(None, feeds) for m, b in ((proto, "onnxruntime"), (target, "nnapi")))
    np.testing.assert_allclose(got, want, atol=0.0501)


def test_repairs_for_nnapi_come_before_the_rewrites_for_it(tmp_path: Path) -> None:
    """A layer with a scale for each channel is repaired, refused in this form, and then becomes a convolution."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]>
        g (float[2,4] x) => (float[2,3] y) <float s = {0.02}, float t = {0.05}, uint8 z = {3},
            int8[3,4] v = {1, -5, 25, 50, 0, 12, -10, 50, 10, 20, -30, 20}, float[3] k = {0.1, 0.2, 0.3}, int8[3] n = {0, 0, 0},
            float[3] b = {1, 2, 3}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            w = DequantizeLinear<axis = 0>(v, k, n)
            c = Gemm<transB = 1>(d, w, b)
            o = QuantizeLinear(c, t, z)
            y = DequantizeLinear(o, t, z)
        }"""
    )
    found = ortconv.convert(proto, tmp_path / "m.ort", use_nnapi=True, maximize_offload=True)
    assert [*found.rewrites][:3] == ["BiasQuantization", "SignedGemmRewrite", "QDQProductToConv"]
    assert [len(p.nodes) for p in found.partitions or ()] == [found.nodes_after]
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}
    (want,), (got,) = (
        ortconv.Session(m, b).run(None, feeds) for m, b in ((proto, "onnxruntime"), (tmp_path / "m.ort", "nnapi"))
    )
    np.testing.assert_allclose(got, want, atol=0.0501)


def test_quantized_nodes_in_float16_are_named_unless_they_become_float32(tmp_path: Path) -> None:
    """As a converter to float16 leaves a quantized network: Casts around all quantizers."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]>
        g (float[2,4] x) => (float[2,2] y) <float s = {0.05}, uint8 z = {128}, int8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8},
            int8 n = {0}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Cast<to = 10>(d)
            v = DequantizeLinear(w, s, n) b = Cast<to = 10>(v) c = MatMul(a, b) f = Cast<to = 1>(c)
            o = QuantizeLinear(f, s, z) y = DequantizeLinear(o, s, z) }"""
    )
    (warning,) = ortconv.convert(proto, tmp_path / "m.ort").warnings
    assert warning.startswith("1 node between quantizers in float16, such as MatMul 'c': no integer kernels")
    assert ortconv.convert(proto, tmp_path / "m.ort", optimization_level="basic").warnings == []
    found = ortconv.convert(proto, tmp_path / "m.ort", enable_passes=["Float16ToFloat32"])
    assert found.warnings == []
    assert "QLinearMatMul" in found.operators


def test_frozen_initializers_let_nnapi_and_rewrites_have_the_weights(tmp_path: Path) -> None:
    """As in models that PyTorch exported with keep_initializers_as_inputs."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2] x, float[2,2] w = {1, 2, 3, 4}, float[2] b = {5, 6}) => (float[1,2] y) {
            m = Gemm(x, w, b) i = Identity(b) y = Sub(m, i) }"""
    )
    target = tmp_path / "m.ort"
    free = ortconv.convert(proto, target, use_nnapi=True)
    (warning,) = free.warnings
    assert warning.startswith("'w' and 1 other: a constant that is also an input is never folded")
    assert [row.advice for row in free.refusals] == [
        "it is a graph input with a default value: convert --freeze-initializers"
    ]
    frozen = ortconv.convert(proto, target, use_nnapi=True, freeze_initializers=True)
    assert frozen.warnings == []
    assert [len(p.nodes) for p in frozen.partitions or ()] == [2]
    assert [v.name for v in ortconv.Session(target).get_inputs()] == ["x"]
    assert ortconv.Session(target).get_overridable_initializers() == []


def test_a_model_in_training_mode(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) <float[3] s = {1, 2, 3}, float[3] b = {0, 0, 0}, float r = {0.5}, bool t = {1}> {
            n, mean, var = BatchNormalization<training_mode = 1>(x, s, b, b, s)
            d = Dropout(n, r, t)
            y = Dropout(d, r)
        }"""
    )
    (warning,) = ortconv.convert(proto, tmp_path / "m.ort").warnings
    assert warning.startswith(
        "2 nodes in training mode, such as BatchNormalization 'n' (export the model in inference mode"
    )
    assert [note.kind for note in ortconv.inspect(proto).notes if note.kind == "training"] == ["training"]


def test_dimensions_without_a_name_have_that_of_the_input(tmp_path: Path) -> None:
    source = text_models.save(tmp_path / "m.onnx", "g (float[M,2,N] x) => (float y) { a = Relu(x) y = Neg(a) }")
    proto = onnx.load(source)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value = -1
    dims[2].dim_param = "None"
    onnx.save(proto, source)
    result = ortconv.convert(source, tmp_path / "m.ort", use_nnapi=True)
    assert not result.partitions
    advice = next(row for row in result.refusals if row.rule == "static-shape").advice
    assert advice.endswith(f"convert {fix_dim_options(['x[0]', 'x[2]'])}")
    result = ortconv.convert(source, tmp_path / "m.ort", use_nnapi=True, fix_dims={"x[0]": 3, "x[2]": 4})
    assert [len(p.nodes) for p in result.partitions or ()] == [2]
    assert ortconv.Session(tmp_path / "m.ort").get_inputs()[0].shape == [3, 2, 4]
    for other in ("x[1]", "x[3]", "y[0]"):
        with pytest.raises(UsageError, match=re.escape(f"no input has a dimension named '{other}'")) as caught:
            ortconv.convert(source, tmp_path / "m.ort", fix_dims={other: 1})
        assert caught.value.hint == "symbolic dimensions of the inputs: x[0], x[2]"
