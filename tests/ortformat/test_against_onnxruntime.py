"""Our files say what onnxruntime's own converter says, field by field, and compute the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from ort_canonical import canonical, differences, opset_imports, without_shapes
from ort_models import models

from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.functions import expand_functions
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.ortformat.reader import parse
from ortconv.ortformat.verify import decode
from ortconv.ortformat.writer import save, serialize
from ortconv.pipeline import convert
from tests.batches import batched, sampled, slow_except
from tests.conftest import SHARED_MODELS, SMALL
from tests.unoptimized import options

MODELS = models()
FILES = sorted(SHARED_MODELS.glob("*.onnx"))


def is_slow(path: Path) -> bool:
    return path.stem not in SMALL


def their_file(model: onnx.ModelProto, path: Path) -> bytes:
    """What onnxruntime writes for a model without optimizing it."""
    settings = options()
    settings.optimized_model_filepath = str(path)
    settings.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return path.read_bytes()


def our_file(model: Model) -> bytes:
    model.graph.prune()
    return b"".join(serialize(model))


def merge_duplicates(found: Any) -> Any:
    """Undo that onnxruntime gives each reader of a DequantizeLinear a copy of its own, whatever the level."""
    if isinstance(found, str):
        if found == "Added by EnsureUniqueDQForNodeUnit":
            return ""
        return re.sub(r"/duplicated(_token_\d+|_\d+)?(?=,|$)", "", found)
    if isinstance(found, dict):
        return {merge_duplicates(k): merge_duplicates(v) for k, v in found.items()}
    if isinstance(found, (list, tuple)):
        items = type(found)(merge_duplicates(v) for v in found)
        return sorted(set(items)) if items and isinstance(items, list) and "->" in str(items[0]) else items
    return found


def drop_casts(model: Model, theirs: Any) -> None:
    """Do as onnxruntime does at every level: remove some Cast nodes to the type that their input has, chains of them at once."""

    def is_idle(node: Any) -> bool:
        return node is not None and node.op == "Cast" and node.out.dtype is node.inputs[0].dtype

    for node in model.graph:
        if is_idle(node) and f"Cast -> {node.out.name}" not in theirs["nodes"]:
            source = node.inputs[0]
            while is_idle(source.producer):
                source = source.producer.inputs[0]
            model.graph.replace_uses(node.out, source)
            model.graph.remove(node)


def drop_unmentioned(graph: Any) -> None:
    """Forget the types of values that nothing refers to any more, which onnxruntime leaves behind."""
    mentioned = {*graph["inputs"], *graph["outputs"], *graph["initializers"], *graph["sparse"]}
    for node in graph["nodes"].values():
        mentioned.update(node["inputs"])
    for key in graph["nodes"]:
        mentioned.update(key.split(" -> ")[1].split(", "))
    graph["values"] = {k: v for k, v in graph["values"].items() if k in mentioned}


def feeds_for(session: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(string)": object}
    feeds = {}
    for info in session.get_inputs():
        shape = [d if isinstance(d, int) else 6 for d in info.shape]
        if info.type == "tensor(string)":
            feeds[info.name] = np.array(["a", "B", "x"], dtype=object)
        else:
            feeds[info.name] = np.asarray(random.uniform(1, 4, shape)).astype(kinds[info.type])
    return feeds


@sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_fields(name: str, tmp_path: Path) -> None:
    theirs = their_file(MODELS[name], tmp_path / "theirs.ort")
    ours = our_file(from_proto(MODELS[name]))
    a, b = canonical(ours), canonical(theirs)
    if MODELS[name].ir_version < 4:  # theirs keep naming constants as inputs
        b["graph"]["inputs"] = [n for n in b["graph"]["inputs"] if n not in b["graph"]["initializers"]]
    assert (a.pop("version"), b.pop("version")) == ("5", "6")
    # merging the types of a skipped axis or of an inferred dimension is the shape inference's business
    if name in ("conv", "empty and scalar"):
        a, b = without_shapes(a), without_shapes(b)
    assert differences(a, b) == []
    assert opset_imports(decode(ours).model) == opset_imports(decode(theirs).model)


@pytest.mark.parametrize("number", [21, 22, 25, 26])
def test_values_of_small_integers(number: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 13, opset_import: ["": 25]> g (float[2,3] x) => (float[2,3] y) {{
            n = Cast <to = {number}> (x)
            y = Cast <to = 1> (n)
        }}"""
    )
    theirs, ours = their_file(model, tmp_path / "theirs.ort"), our_file(from_proto(model))
    (expected,), (got,) = (
        ort.InferenceSession(file, options()).run(None, {"x": np.float32([[-1, 0, 1], [-2, 3, 7]])})
        for file in (theirs, ours)
    )
    np.testing.assert_array_equal(got, expected)
    assert differences(canonical(ours)["graph"], canonical(theirs)["graph"]) == []


@batched
@pytest.mark.parametrize("name", MODELS)
def test_runs_equally(name: str) -> None:
    reference = ort.InferenceSession(MODELS[name].SerializeToString(), options())
    session = ort.InferenceSession(our_file(from_proto(MODELS[name])), options())
    feeds = feeds_for(reference)
    for expected, got in zip(reference.run(None, feeds), session.run(None, feeds), strict=True):
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(got, expected)
            assert got.dtype == expected.dtype
        else:
            assert str(got) == str(expected)


def test_slices_of_unknown_dimensions_share_no_memory() -> None:
    """In opset 10, onnxruntime infers that the result of such a Slice is as large as its input."""
    model = onnx.parser.parse_model("""<ir_version: 5, opset_import: ["": 10]> g (float[C,H] x) => (float[1,1] y)
        <int64[1] start = {0}, int64[1] end = {100}, int64[1] axis = {1}, int64[1] step = {2}> {
        a = Neg(x) b = Neg(a) c = Slice(x, start, end, axis, step)
        d = ReduceSum(b) e = ReduceSum(c) y = Add(d, e) }""")
    session = ort.InferenceSession(our_file(from_proto(model)), options(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((3, 8), np.float32)})[0] == 36


@pytest.mark.parametrize("style", ["Fixed", "Runtime"])
@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_default_options_load_a_quantized_model(level: str, style: str, tmp_path: Path) -> None:
    onnx.save(MODELS["quantized"], tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.ort", optimization_level=level, optimization_style=style)
    session = ort.InferenceSession(tmp_path / "m.ort", providers=["CPUExecutionProvider"])
    assert [v.name for v in session.get_outputs()] == ["y"]


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if is_slow(p) else []) for p in FILES]
)
def test_fields_of_real_models(path: Path, tmp_path: Path) -> None:
    message = onnx.load(path)
    b = canonical(their_file(message, tmp_path / "theirs.ort"))
    model = from_proto(message)
    expand_functions(model)
    drop_casts(model, b["graph"])
    a = canonical(our_file(model))
    a, b = without_shapes(a), merge_duplicates(without_shapes(b))
    drop_unmentioned(b["graph"])
    a.pop("version"), b.pop("version")
    if message.ir_version < 4:
        b["graph"]["inputs"] = [n for n in b["graph"]["inputs"] if n not in b["graph"]["initializers"]]
    assert differences(a, b) == []


@pytest.mark.skipif(not FILES, reason="the collection of models is not here")
def test_collection_has_its_models() -> None:
    assert len(FILES) >= 20


# ---------------------------------------------------------------------- reading what onnxruntime wrote


@sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_reads_their_files(name: str, tmp_path: Path) -> None:
    theirs = their_file(MODELS[name], tmp_path / "theirs.ort")
    again = our_file(parse(theirs))
    a, b = canonical(again, imports=True), canonical(theirs, imports=True)
    a.pop("version"), b.pop("version")
    if MODELS[name].ir_version < 4:
        b["graph"]["inputs"] = [n for n in b["graph"]["inputs"] if n not in b["graph"]["initializers"]]
    assert differences(a, b) == []


def test_saved_runtime_optimizations_are_decoded(tmp_path: Path) -> None:
    settings = options()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.optimized_model_filepath = str(tmp_path / "x.ort")
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.add_session_config_entry("optimization.minimal_build_optimizations", "save")
    ort.InferenceSession(MODELS["conv"].SerializeToString(), settings)
    root = decode((tmp_path / "x.ort").read_bytes())
    records = root.model.graph.runtime_optimizations.records
    assert [r.optimizer_name for r in records] == ["ConvActivationFusion"]
    assert len(records[0].runtime_optimization_records) == 1
    assert parse((tmp_path / "x.ort").read_bytes()).graph.outputs[0].name == "y"


# ---------------------------------------------------------------------- operator configurations


@pytest.mark.parametrize("types", slow_except([True], (False, True)))
def test_operator_config(types: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.tools.ort_format_model")
    chosen = {n.replace(" ", "_"): from_proto(m) for n, m in MODELS.items()}
    chosen["one_hot"] = from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 13]>
            g (int32[3] x) => (float[3,4] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot (x, d, v) }""")
    )
    for name, model in chosen.items():
        save(model, tmp_path / f"{name}.ort")
    paths = [str(tmp_path / f"{name}.ort") for name in chosen]
    script = (
        "import sys, pathlib; from onnxruntime.tools.ort_format_model import create_config_from_models as create;"
        "create([pathlib.Path(p) for p in sys.argv[3:]], pathlib.Path(sys.argv[1]), sys.argv[2] == 'True')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x.config"), str(types), *paths], check=True)
    required = RequiredOperators(types=types)
    for model in chosen.values():
        required.add(model)
    ours = required.text(paths)
    assert ours == (tmp_path / "x.config").read_text()
    assert ('{"custom": [["int32_t", "float", "int64_t"]]}' in ours) is types
