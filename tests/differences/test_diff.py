"""Planted changes are found, each of them and nothing else; other names and another order are no change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

import ortconv
from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.models import load
from ortconv.ortformat.writer import write
from tests.batches import slow_except
from tests.conftest import FAST_NAMES, SAMPLES
from tests.differences.scrambled import scrambled
from tests.optimizer import golden

Graph = onnx.GraphProto
Planted = Callable[[onnx.ModelProto], None]

TEXT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1], producer_name: "maker">
g (float[1,4,8,8] x, bool flag, float[4] scale) => (float[1,10] y, float[1,4,8,8] z)
<float[4] scale = {1, 1, 1, 1}, float[4] spare = {9, 9, 9, 9}>
{
    c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    r1 = Relu (c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
    r2 = Relu (c2)
    s = Add (r1, r2)
    k = Constant <value = float {2.0}> ()
    m = Mul (s, k)
    t1 = Sigmoid (m)
    t2 = Tanh (m)
    u = Mul (t1, t2)
    v = If (flag) <
        then_branch = yes () => (float[1,4,8,8] p) { p1 = Neg (u) p = Abs (p1) },
        else_branch = no () => (float[1,4,8,8] q) { q1 = Sub (u, s) q = LeakyRelu <alpha = 0.1> (q1) }>
    z = InstanceNormalization (v, scale, b1)
    a = GlobalAveragePool (z)
    f = Flatten (a)
    l = MatMul (f, w3)
    y = Softmax <axis = 1> (l)
}"""


def model() -> onnx.ModelProto:
    """Two convolutions with a residual, a gate, an If, and a classifier. All nodes have names."""
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 4, 3, 3), "b1": (4,), "w2": (4, 4, 3, 3), "w3": (4, 10)}
    for name, shape in shapes.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    for node in proto.graph.node:
        node.name = f"n_{node.output[0]}"
    proto.metadata_props.add(key="task", value="digits")
    return proto


def node(proto: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(n for n in proto.graph.node if output in n.output)


def branch(proto: onnx.ModelProto, name: str) -> Graph:
    return next(a.g for a in node(proto, "v").attribute if a.name == name)


def attribute(output: str, **values: object) -> Planted:
    """Give a node these attributes; None takes one away."""

    def plant(proto: onnx.ModelProto) -> None:
        target = node(proto, output)
        for name, value in values.items():
            kept = [a for a in target.attribute if a.name != name]
            del target.attribute[:]
            target.attribute.extend([*kept, helper.make_attribute(name, value)] if value is not None else kept)

    return plant


def reads(output: str, slot: int, name: str) -> Planted:
    def plant(proto: onnx.ModelProto) -> None:
        inputs = [*node(proto, output).input]
        inputs[slot:] = [name, *inputs[slot + 1 :]]
        node(proto, output).input[:] = inputs

    return plant


def operator(output: str, op: str, domain: str = "") -> Planted:
    def plant(proto: onnx.ModelProto) -> None:
        node(proto, output).op_type, node(proto, output).domain = op, domain

    return plant


def inserted(before: str, slot: int, op: str) -> Planted:
    """Put a node of one input between a node and what it reads."""

    def plant(proto: onnx.ModelProto) -> None:
        reader = node(proto, before)
        made = helper.make_node(op, [reader.input[slot]], ["fresh"], "n_fresh")
        place = list(proto.graph.node).index(reader)
        reader.input[slot] = "fresh"
        proto.graph.node.insert(place, made)

    return plant


def bypassed(output: str) -> Planted:
    """Take a node out; its readers read its first input."""

    def plant(proto: onnx.ModelProto) -> None:
        gone = node(proto, output)
        for other in proto.graph.node:
            other.input[:] = [gone.input[0] if name == output else name for name in other.input]
        proto.graph.node.remove(gone)

    return plant


def weights(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Planted:
    def plant(proto: onnx.ModelProto) -> None:
        tensor = next(t for t in proto.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))

    return plant


def bumped(array: np.ndarray) -> np.ndarray:
    array.flat[0] += 0.5
    return array


def both(*plants: Planted) -> Planted:
    def plant(proto: onnx.ModelProto) -> None:
        for one in plants:
            one(proto)

    return plant


def extra(nodes: Sequence[onnx.NodeProto], output: str) -> Planted:
    """Append nodes, and return what the last one makes."""

    def plant(proto: onnx.ModelProto) -> None:
        proto.graph.node.extend(nodes)
        proto.graph.output.append(helper.make_tensor_value_info(output, 1, [1, 4, 8, 8]))

    return plant


def no_output(proto: onnx.ModelProto) -> None:
    del proto.graph.output[1]


def swapped_outputs(proto: onnx.ModelProto) -> None:
    first, second = (helper.make_tensor_value_info(v.name, 1, [d.dim_value for d in v.type.tensor_type.shape.dim])
                     for v in proto.graph.output)  # fmt: skip
    del proto.graph.output[:]
    proto.graph.output.extend([second, first])


def renamed_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = node(proto, "y").output[0] = "probabilities"


def renamed_input(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].name = node(proto, "c1").input[0] = "image"


def new_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("more", 1, [1]))


def inner(name: str, place: int, op: str) -> Planted:
    def plant(proto: onnx.ModelProto) -> None:
        branch(proto, name).node[place].op_type = op

    return plant


def inner_alpha(proto: onnx.ModelProto) -> None:
    branch(proto, "else_branch").node[1].attribute[0].f = 0.2


def inner_capture(proto: onnx.ModelProto) -> None:
    branch(proto, "then_branch").node[0].input[0] = "r1"


def inner_node(proto: onnx.ModelProto) -> None:
    graph = branch(proto, "then_branch")
    graph.node[1].input[0] = "p2"
    graph.node.insert(1, helper.make_node("Exp", ["p1"], ["p2"]))


def opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 16


def metadata(proto: onnx.ModelProto) -> None:
    proto.metadata_props[0].value = "letters"


def producer(proto: onnx.ModelProto) -> None:
    proto.producer_name = "another"


IN = "If 'n_v' "

PLANTED: dict[str, tuple[Planted, list[tuple[str, str]]]] = {
    "attribute changed": (attribute("c1", dilations=[2, 2], pads=[2, 2, 2, 2]),
                          [("attribute", "Conv 'n_c1' dilations"), ("attribute", "Conv 'n_c1' pads")]),
    "attribute added": (attribute("f", axis=0), [("attribute", "Flatten 'n_f' axis")]),
    "attribute removed": (attribute("c2", pads=None, auto_pad="SAME_UPPER"),
                          [("attribute", "Conv 'n_c2' auto_pad"), ("attribute", "Conv 'n_c2' pads")]),
    "default stated": (attribute("f", axis=1), []),
    "operator changed": (operator("t1", "HardSigmoid"), [("operator", "Sigmoid 'n_t1'")]),
    "operator of another domain": (operator("t2", "Gelu", "com.microsoft"), [("operator", "Tanh 'n_t2'")]),
    "first operator changed": (operator("r1", "Elu"), [("operator", "Relu 'n_r1'")]),
    "last operator changed": (operator("y", "LogSoftmax"), [("operator", "Softmax 'n_y'")]),
    "rewired to another node": (reads("t2", 0, "s"), [("rewired", "Tanh 'n_t2' input 0")]),
    "rewired to an input": (reads("c2", 0, "x"), [("rewired", "Conv 'n_c2' input 0")]),
    "rewired to a constant": (reads("u", 1, "k"), [("rewired", "Mul 'n_u' input 1")]),
    "operands exchanged": (both(reads("s", 0, "r2"), reads("s", 1, "r1")),
                           [("rewired", "Add 'n_s' input 0"), ("rewired", "Add 'n_s' input 1")]),
    "optional input added": (reads("c2", 2, "b1"), [("rewired", "Conv 'n_c2' input 2")]),
    "node inserted": (inserted("s", 0, "Exp"), [("node added", "Exp 'n_fresh'")]),
    "node inserted first": (inserted("c1", 0, "Neg"), [("node added", "Neg 'n_fresh'")]),
    "node inserted of the same operator": (inserted("s", 1, "Relu"), [("node added", "Relu 'n_fresh'")]),
    "node bypassed": (bypassed("r2"), [("node removed", "Relu 'n_r2'")]),
    "node with a constant bypassed": (bypassed("m"), [("node removed", "Mul 'n_m'")]),
    "node replaced, its reader moved": (both(bypassed("r2"), reads("s", 1, "x")),
                                        [("node removed", "Relu 'n_r2'"), ("rewired", "Add 'n_s' input 1")]),
    "node inserted behind another value": (both(inserted("s", 1, "Exp"), reads("fresh", 0, "x")),
                                           [("node added", "Exp 'n_fresh'"), ("rewired", "Add 'n_s' input 1")]),
    "branch added": (extra([helper.make_node("Exp", ["v"], ["e"], "n_e")], "e"),
                     [("output added", "e"), ("node added", "Exp 'n_e'")]),
    "weights": (weights("w2", bumped), [("constant", "w2")]),
    "bias read twice": (weights("b1", bumped), [("constant", "b1")]),
    "weights of another shape": (weights("w3", lambda a: np.concatenate([a, a], 1)),
                                 [("constant", "w3"), ("type", "y output")]),
    "default of an input": (weights("scale", bumped), [("constant", "scale")]),
    "constant that nothing reads": (weights("spare", bumped), [("constant", "spare"), ("constant", "spare")]),
    "input added": (new_input, [("input added", "more")]),
    "input renamed": (renamed_input, [("input renamed", "x")]),
    "output removed": (no_output, [("output removed", "z")]),
    "output renamed": (renamed_output, [("output renamed", "y")]),
    "outputs exchanged": (swapped_outputs, [("order", "outputs")]),
    "operator in a branch": (inner("then_branch", 1, "Sqrt"), [("operator", IN + "then_branch: Abs 'p'")]),
    "attribute in a branch": (inner_alpha, [("attribute", IN + "else_branch: LeakyRelu 'q' alpha")]),
    "branch reads another value": (inner_capture, [("rewired", IN + "then_branch: Neg 'p1' input 0")]),
    "node in a branch": (inner_node, [("node added", IN + "then_branch: Exp 'p2'")]),
    "operator set": (opset, [("opset", "ai.onnx")]),
    "metadata": (metadata, [("metadata", "'task'")]),
    "producer": (producer, [("metadata", "producer")]),
    "three at once": (both(operator("r1", "Elu"), weights("w3", bumped), inserted("u", 0, "Exp")),
                      [("operator", "Relu 'n_r1'"), ("constant", "w3"), ("node added", "Exp 'n_fresh'")]),
}  # fmt: skip


def found(a: onnx.ModelProto, b: onnx.ModelProto) -> list[tuple[str, str]]:
    """Kind and subject of each change; with the place inside, and the attribute or input of a node."""
    shown = []
    for change in ortconv.diff(a, b).changes:
        detail = f" {change.detail}" if change.kind in ("attribute", "rewired", "type") and change.detail else ""
        shown.append((change.kind, f"{change.place and change.place + ': '}{change.subject}{detail}"))
    return sorted(shown)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_found_and_nothing_else(name: str) -> None:
    plant, expected = PLANTED[name]
    changed = model()
    plant(changed)
    assert found(model(), changed) == sorted(expected)


@pytest.mark.parametrize("name", slow_except([*PLANTED][::8], PLANTED))
def test_a_planted_change_is_found_under_other_names(name: str) -> None:
    plant, expected = PLANTED[name]
    changed = model()
    plant(changed)
    for seed in range(3):
        kinds = [kind for kind, _ in found(model(), scrambled(changed, seed))]
        assert kinds == sorted(kind for kind, _ in expected), seed


@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_other_names_and_another_order_are_no_change(sample: Path) -> None:
    proto = onnx.load(sample)
    result = ortconv.diff(proto, scrambled(proto, 7))
    assert (result.equal, result.changes) == (True, [])
    assert result.nodes_in_both == ortconv.inspect(proto).nodes
    assert result.renamed


@pytest.mark.parametrize("start", slow_except([0], range(4)))
def test_golden_cases_are_equal_under_other_names(start: int) -> None:
    cases = list(golden.cases())[start::32]
    assert len(cases) > 10
    for case in cases:
        assert ortconv.diff(case.proto(), scrambled(case.proto(), start)).changes == [], case.id


def test_twins_are_told_apart_by_their_readers() -> None:
    """Nodes that compute the same are interchangeable: only their number counts."""
    text = "g (float[2] x) => (float[2] y, float[2] z) {{ a = Exp (x) b = Exp (x) y = Neg (a) z = {op} ({of}) }}"
    a, b, c = (
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text.format(op=op, of=of)}')
        for op, of in (("Abs", "b"), ("Abs", "a"), ("Sqrt", "b"))
    )
    assert [change.kind for change in ortconv.diff(a, b).changes] == []
    assert [change.kind for change in ortconv.diff(a, c).changes] == ["operator"]


def shared_layers(bias: float) -> onnx.ModelProto:
    """Six layers with the same weights, each through Identity nodes of its own, as exporters of shared modules make them."""
    lines = []
    for i in range(6):
        lines += [
            f"i{i} = Identity (w)",
            f"j{i} = Identity (v)",
            f"q{i} = MatMul (y{i}, i{i})",
            f"k{i} = MatMul (y{i}, j{i})",
        ]
        lines += [f"s{i} = Mul (q{i}, k{i})", f"m{i} = Add (s{i}, mask)", f"y{i + 1} = Add (m{i}, b)"]
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[2,2] y0, float[2,2] mask) => (float[2,2] y6)
    <float[2,2] w = {{1, 2, 3, 4}}, float[2,2] v = {{4, 3, 2, 1}}, float[2] b = {{0, {bias}}}> {{ {" ".join(lines)} }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("seed", range(4))
def test_layers_that_share_their_weights_stay_apart(seed: int) -> None:
    assert found(shared_layers(1), shared_layers(1)) == []
    assert [kind for kind, _ in found(shared_layers(1), scrambled(shared_layers(2), seed))] == ["constant"]


def test_a_declared_type_is_a_change_where_it_begins() -> None:
    """Only the file says what an operator of another domain makes. Of what follows, the type of the output is a change."""

    def custom(size: int) -> onnx.ModelProto:
        text = f"""<ir_version: 8, opset_import: ["": 17, "test.ops": 1]>
        g (float[2] x) => (float[m] y) <float[{size}] a> {{ a = test.ops.Own (x) b = Relu (a) y = Neg (b) }}"""
        return onnx.parser.parse_model(text)

    assert found(custom(2), custom(2)) == []
    changes = ortconv.diff(custom(2), custom(3)).changes
    assert [(c.kind, c.subject, c.before, c.after, c.detail) for c in changes] == [
        ("type", "y", "float[2]", "float[3]", "output"),
        ("type", "a", "float[2]", "float[3]", ""),
    ]


def test_constants_of_other_types_and_strings() -> None:
    def with_constant(tensor: onnx.TensorProto) -> onnx.ModelProto:
        graph = helper.make_graph([helper.make_node("Shape", ["c"], ["s"])], "g", [], [
            helper.make_tensor_value_info("s", 7, None)], [tensor])  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    texts = [numpy_helper.from_array(np.array(words, object), "c") for words in (["a", "b"], ["a", "c"])]
    (change,) = ortconv.diff(*map(with_constant, texts)).changes
    assert (change.kind, change.detail) == ("constant", "1 of 2 elements differ")
    numbers = [numpy_helper.from_array(np.float32(row), "c") for row in ([1, 2], [np.nan, np.nan])]
    (change,) = ortconv.diff(*map(with_constant, numbers)).changes
    assert change.detail == "2 of 2 elements differ"
    floats = [numpy_helper.from_array(np.array([1, np.nan], kind), "c") for kind in (np.float32, np.float64)]
    assert ortconv.diff(with_constant(floats[0]), with_constant(floats[0])).equal
    (change,) = ortconv.diff(*map(with_constant, floats)).changes
    assert (change.kind, change.before.split("[")[0], change.after.split("[")[0]) == ("constant", "float", "double")


# ---------------------------------------------------------------------- conversions


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def convert(name: str, **settings: object) -> Path:
        target = tmp_path_factory.mktemp("converted") / f"{name}.ort"
        ortconv.convert(SAMPLES / f"{name}.onnx", target, validate=False, **settings)  # type: ignore[arg-type]
        return target

    return convert


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimization_level": "basic"},
        {"use_nnapi": True},
        {"optimization_style": "Runtime"},
        {"float16": True},
        {"use_nnapi": True, "maximize_offload": True, "optimization_level": "basic"},
    ],
    ids=["all", "basic", "nnapi", "runtime", "float16", "offload"],
)
@pytest.mark.parametrize("name", slow_except(["if_branch"], ("qdq_cnn", "if_branch", "loop_accumulate")))
def test_a_conversion_is_found_out_and_replayed(
    name: str, settings: dict[str, object], converted: Callable[..., Path]
) -> None:
    result = ortconv.diff(SAMPLES / f"{name}.onnx", converted(name, **settings))
    replay = result.replay
    assert result.equal == (replay is None)
    if replay is not None:
        assert (replay.ends_at_b, replay.left, replay.failure) == (True, [], None)
        assert sum(replay.rewrites.values()) == len(replay.steps)


@pytest.mark.slow
def test_fixed_dimensions_are_read_from_the_file(converted: Callable[..., Path]) -> None:
    file = converted("bert_tiny", fix_dims={"batch": 1, "sequence": 16})
    replay = ortconv.diff(SAMPLES / "bert_tiny.onnx", file).replay
    assert replay is not None
    assert replay.ends_at_b
    assert replay.options == ["--fix-dim=batch=1", "--fix-dim=sequence=16"]


def test_frozen_initializers_are_seen_in_the_file(tmp_path: Path) -> None:
    source, file = tmp_path / "m.onnx", tmp_path / "m.ort"
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x, float[4] w = {1, 2, 3, 4}) => (float[4] y) { v = Neg(w) y = Add(x, v) }"""
    onnx.save(onnx.parser.parse_model(text), source)
    ortconv.convert(source, file, freeze_initializers=True)
    replay = ortconv.diff(source, file).replay
    assert replay is not None
    assert (replay.ends_at_b, replay.options) == (True, ["--freeze-initializers"])


def test_a_stamp_gives_the_options(converted: Callable[..., Path]) -> None:
    settings = {"disable_passes": ["ConvActivationFusion"], "target_platform": "arm"}
    replay = ortconv.diff(SAMPLES / "qdq_cnn.onnx", converted("qdq_cnn", stamp=True, **settings)).replay
    assert replay is not None
    assert replay.ends_at_b
    assert replay.options == ["--target-platform=arm", "--disable-pass=ConvActivationFusion"]


@pytest.mark.parametrize(
    "stamp", slow_except(['{"options": [1]}'], ['{"options": [1]}', '{"options": {"a": 1}}', "[" * 200_000, "no JSON"])
)
def test_a_damaged_stamp_is_none(stamp: str, converted: Callable[..., Path]) -> None:
    file = converted("loop_accumulate", optimization_level="basic")
    model = load(file)
    model.metadata["ortconv"] = stamp
    write(model, file)
    replay = ortconv.diff(SAMPLES / "mnist.onnx", file).replay
    assert replay is not None
    assert replay.options == []


def test_a_rewrite_names_the_nodes_that_it_removed_and_made(converted: Callable[..., Path]) -> None:
    replay = ortconv.diff(SAMPLES / "mobilenet_v2_small.onnx", converted("mobilenet_v2_small")).replay
    assert replay is not None
    step = next(step for step in replay.steps if step.rule == "ConvActivationFusion")
    assert [label.split()[0] for label in step.removed] == ["Clip", "Conv"]
    assert [label.split()[0] for label in step.made] == ["com.microsoft:FusedConv"]


def test_a_replay_with_other_options_says_what_is_left(converted: Callable[..., Path]) -> None:
    file = converted("qdq_cnn")
    replay = ortconv.diff(SAMPLES / "qdq_cnn.onnx", file, optimization_level="basic").replay
    assert replay is not None
    assert not replay.ends_at_b
    assert {"node added", "node removed"} <= {change.kind for change in replay.left}
    same = ortconv.diff(SAMPLES / "qdq_cnn.onnx", file, optimization_level="extended").replay
    assert same is not None
    assert same.level == "extended"


def test_a_conversion_that_cannot_be_replayed_is_a_plain_difference(
    converted: Callable[..., Path], tmp_path: Path
) -> None:
    old = onnx.load(SAMPLES / "mnist.onnx")
    old.opset_import[0].version = 6
    result = ortconv.diff(old, converted("mnist"))
    assert result.replay is not None
    assert result.replay.failure is not None
    assert result.changes


def test_options_of_a_conversion_need_one() -> None:
    with pytest.raises(UsageError, match=r"explain an \.ort file"):
        ortconv.diff(SAMPLES / "mnist.onnx", SAMPLES / "mnist.onnx", use_nnapi=True)


def test_options_that_no_conversion_has(converted: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="there is no pass 'NoFusion'"):
        ortconv.diff(SAMPLES / "mnist.onnx", converted("mnist"), disable_passes=["NoFusion"])


def test_ort_files_are_compared_as_onnx_models_are(converted: Callable[..., Path], tmp_path: Path) -> None:
    file = converted("bert_tiny")
    ortconv.export(file, tmp_path / "back.onnx")
    assert ortconv.diff(file, tmp_path / "back.onnx").equal
    runtime = ortconv.diff(
        converted("qdq_cnn", optimization_level="basic"), converted("qdq_cnn", optimization_style="Runtime")
    )
    assert set(runtime.counts) == {"saved fusion"}
    assert all(change.before == "none" for change in runtime.changes)
    nnapi = ortconv.diff(converted("mnist", optimization_level="basic"), converted("mnist", use_nnapi=True))
    assert "provider" in nnapi.counts


# ---------------------------------------------------------------------- the command


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["diff", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_the_exit_code_is_4_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "c.onnx"
    changed = model()
    PLANTED["three at once"][0](changed)
    for path, proto in ((a, model()), (b, changed), (c, scrambled(model(), 0))):
        path.write_bytes(proto.SerializeToString())
    assert shown(capsys, a, b)[0] == 0
    code, text = shown(capsys, a, b, "--exit-code")
    assert code == 4
    assert "Relu 'n_r1': Relu -> Elu" in text
    assert "1 of 40 elements differ, by at most 0.5" in text
    assert shown(capsys, a, b, "--exit-code", "--quiet") == (4, "")
    code, text = shown(capsys, a, c, "--exit-code")
    assert code == 0
    assert "no change" in text


@pytest.mark.slow
def test_the_command_repeats_a_conversion_with_a_pipeline(
    converted: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = tmp_path / "pipeline.txt"
    assert main(["passes", "list", "--level", "extended", "--disable-pass", "ConvActivationFusion", "--as-text"]) == 0
    pipeline.write_text(capsys.readouterr().out)
    source, file = SAMPLES / "mobilenet_v2_small.onnx", converted("mobilenet_v2_small", pipeline=pipeline.read_text())
    assert (
        "lead to this file" in shown(capsys, source, file, "--pipeline", pipeline, "--optimization-style", "Fixed")[1]
    )
    assert "do not lead" in shown(capsys, source, file, "--optimization-level", "extended", "--fold-limit", "0")[1]
    assert main(["diff", str(source), str(file), "--pipeline", str(pipeline), "--fold-limit", "0"]) == 2
    assert "--pipeline and --fold-limit exclude each other" in capsys.readouterr().err
    pipeline.write_text("level: nothing")
    assert main(["diff", str(source), str(file), "--pipeline", str(pipeline)]) == 2
    assert str(pipeline) in capsys.readouterr().err


def test_the_command_lists_rewrites(converted: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = converted("mobilenet_v2_small")
    source = SAMPLES / "mobilenet_v2_small.onnx"
    text = shown(capsys, source, file)[1]
    assert "at level all lead to this file" in text
    assert "more (-v lists them)" in text
    assert "nodes removed\n  " not in text
    everything = shown(capsys, source, file, "-v")[1]
    assert "more (-v lists them)" not in everything
    assert "ConvActivationFusion at Clip" in everything
    markdown = shown(capsys, source, file, "--markdown", "--optimization-level", "basic")[1]
    assert "do not lead to this file" in markdown
    assert "| rule | rewrites |" in markdown
