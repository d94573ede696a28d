"""CoreML-aware conversion keeps what CoreML takes, alone and together with NNAPI, and ONNX Runtime runs its result."""

from __future__ import annotations

import onnx
import pytest
from partition_graphs import mnist

from ortconv.choices import COREML_FORMATS
from ortconv.compare.gap import strict_gap
from ortconv.compare.tolerance import limit
from ortconv.inputs.candidates import candidates
from ortconv.ir.graph import Graph
from ortconv.ir.types import DType
from ortconv.models import load
from ortconv.optimizer.recipe import make
from ortconv.partition import Target, assign, partition
from ortconv.pipeline import convert, optimize
from tests.conftest import SAMPLES
from tests.partition.test_partition_aware import FOUND, MODELS, described, fixed, places, slow
from tests.unoptimized import session

NNAPI = "NnapiExecutionProvider"
COREML = "CoreMLExecutionProvider"
TARGETS = {
    "NeuralNetwork": (COREML_FORMATS[0], False),
    "MLProgram": (COREML_FORMATS[1], False),
    "union": (COREML_FORMATS[1], True),
}
CASES = [
    pytest.param(
        path,
        name,
        id=f"{path.stem}-{name}",
        marks=[pytest.mark.slow] if path in FOUND and name != "union" else slow(path),
    )
    for path in MODELS
    for name in TARGETS
]


def one_by_one(graph: Graph, form: str, union: bool) -> dict[str, object]:
    """What the targets take one after the other: the description of every node taken, by its first output."""
    taken = {}
    for target in [Target()] * union + [Target("coreml", coreml_format=form)]:
        found = partition(graph, target)
        assign(graph, found)
        taken.update({n.out.name: n for p in found.partitions for n in p.nodes})
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), CASES)
def test_taken_nodes_are_unchanged_in_the_file(path, name, tmp_path):
    form, union = TARGETS[name]
    model = load(path, fixed(path))
    optimize(model, make("basic", nnapi=union))
    before = one_by_one(model.graph, form, union)
    out = tmp_path / "model.ort"
    settings = {"optimization_level": "extended", "fix_dims": fixed(path), "validate": False}
    result = convert(path, out, use_nnapi=union, use_coreml=True, coreml_format=form, **settings)
    assert sorted(n for p in result.partitions for n in p.nodes) == sorted(n.name or key for key, n in before.items())
    graph = load(out).graph
    written = {n.out.name: n for n in graph}
    own = {v.name for n in before.values() for v in n.outputs if v is not None}
    for key, node in before.items():
        assert described(written[key], own) == described(node, own)
        assert written[key].ep == node.ep
    if not union:
        # Fusions of what was refused can make operators that are taken, so partitions may join, but not fall apart.
        for node in graph:
            node.ep = ""
        after = [set(p) for p in places(partition(graph, Target("coreml", coreml_format=form)))]
        model.graph.prune()
        for node in model.graph:
            node.ep = ""
        for part in places(partition(model.graph, Target("coreml", coreml_format=form))):
            assert any(set(part) <= other for other in after)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), CASES)
def test_onnxruntime_runs_the_file(path, name, tmp_path):
    form, union = TARGETS[name]
    out = tmp_path / "model.ort"
    convert(path, out, use_nnapi=union, use_coreml=True, coreml_format=form, fix_dims=fixed(path), validate=False)
    model = load(path, fixed(path))
    feeds = next(iter(candidates(model.graph, seed=3)))
    want, got = (session(p).run(None, feeds) for p in (path, out))
    allowed = limit(model.graph, [v.dtype for v in model.graph.outputs])
    assert all(strict_gap(a, b).within(allowed) for a, b in zip(want, got, strict=True))


def aware(**settings):
    def convert_mnist(tmp_path):
        path, out = tmp_path / "m.onnx", tmp_path / "m.ort"
        path.write_bytes(mnist("raw").SerializeToString())
        result = convert(path, out, optimization_level="extended", validate=False, **settings)
        return result, {n.out.name: n for n in load(out).graph}

    return convert_mnist


def test_conversion_that_is_not_aware_fuses(tmp_path):
    _, written = aware()(tmp_path)
    assert {n.op for n in written.values()} & {"FusedConv"}
    result, written = aware(use_coreml=True)(tmp_path)
    assert not {n.op for n in written.values()} & {"FusedConv"}
    assert {n.ep for n in written.values()} == {COREML}
    assert [p.provider for p in result.partitions] == ["CoreML"]


def test_the_first_provider_has_what_both_take(tmp_path):
    stop = {"nnapi_partitioning_stop_ops": ("Reshape",)}
    result, written = aware(use_nnapi=True, use_coreml=True, **stop)(tmp_path)
    assert [n.ep for n in written.values()] == [NNAPI] * 6 + [COREML] * 2
    assert [p.provider for p in result.partitions] == ["NNAPI", "CoreML"]
    assert result.refusals == []
    result, written = aware(use_nnapi=True, **stop)(tmp_path)
    assert [n.ep for n in written.values()].count(NNAPI) == 6
    assert {row.rule for row in result.refusals} == {"stop-op"}


def test_bodies_are_protected_on_request(tmp_path):
    path = SAMPLES / "if_branch.onnx"
    found = {}
    for on in (False, True):
        out = tmp_path / f"{on}.ort"
        result = convert(path, out, use_coreml=True, coreml_on_subgraphs=on, optimization_level="extended")
        inside = [n for node in load(out).graph for sub in node.subgraphs for n in sub.walk()]
        found[on] = {n.op: n.ep for n in inside}
        assert result.validation is not None
    assert COREML not in found[False].values()
    assert COREML in found[True].values()


def test_dynamic_inputs_can_be_refused(tmp_path):
    path = SAMPLES / "bert_tiny.onnx"
    counts = {}
    for static in (False, True):
        result = convert(
            path,
            tmp_path / "b.ort",
            use_coreml=True,
            coreml_format="MLProgram",
            coreml_static_inputs=static,
            validate=False,
        )
        counts[static] = sum(len(p.nodes) for p in result.partitions)
    assert counts[True] <= counts[False]
    assert counts[False] > 0


HALF = """<ir_version: 8, opset_import: ["" : 21]> g (float16[1,4,8,8] x) => (float16[1,4,8,8] y) <float16[4] s = {1, 2, 3, 4}> {
    a = Relu (x)  b = GroupNormalization <num_groups = 2> (a, s, s)  y = Neg (b) }"""


def test_nodes_without_cpu_kernel_stay_and_are_counted(tmp_path):
    path, out = tmp_path / "m.onnx", tmp_path / "m.ort"
    path.write_bytes(onnx.parser.parse_model(HALF).SerializeToString())
    counts = []
    for form in COREML_FORMATS:
        result = convert(path, out, use_coreml=True, coreml_format=form)
        assert result.validation is not None
        counts.append(result.without_fallback)
        taken = [(n.op, n.out.dtype) for n in load(out).graph if n.ep == COREML]
    assert counts == [0, 2]
    assert taken == [("Relu", DType.FLOAT16), ("GroupNormalization", DType.FLOAT16)]
    convert(path, out)
    session(out)


def test_nothing_taken_changes_nothing(tmp_path):
    _, plain = aware()(tmp_path)
    _, written = aware(use_coreml=True, coreml_version=2)(tmp_path)
    assert [n.op for n in written.values()] == [n.op for n in plain.values()]
    assert [n.ep for n in written.values()] == [n.ep for n in plain.values()]
