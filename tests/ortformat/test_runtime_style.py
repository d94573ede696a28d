"""Runtime style: the basic graph with saved fusions, as onnxruntime itself saves them, which it replays on demand."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import runtime_nets as nets
from onnx import TensorProto, helper, numpy_helper
from qdq_net import PER_CHANNEL, Net
from rewriting import Feeds, parse, random_feeds, run

from ortconv.cli import main
from ortconv.errors import ModelError
from ortconv.ir.model import Arity, Model, SavedFusion
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.ortformat import reader, writer
from ortconv.ortformat.check import check
from ortconv.ortformat.writer import save, serialize
from ortconv.pipeline import convert, optimize
from tests.batches import slow_except
from tests.conftest import SHARED_MODELS

PLATFORMS = ("arm", "amd64")


def runtime_model(proto: onnx.ModelProto, platform: str = "arm", level: str = "all") -> Model:
    model = from_proto(proto)
    optimize(model, level, context=Context(PassSettings(optimization_style="Runtime", target_platform=platform)))
    return model


def both(proto: onnx.ModelProto, folder: Path, platform: str = "arm") -> tuple[Path, Path]:
    """The files that onnxruntime and ortconv write."""
    theirs, ours = folder / "theirs.ort", folder / "ours.ort"
    nets.save_by_onnxruntime(proto, theirs, platform)
    save(runtime_model(proto, platform), ours)
    return theirs, ours


def outputs(path: Path, feeds: Feeds, *, replaying: bool) -> tuple[list[np.ndarray], Counter[str]]:
    session, ops = nets.session(path, replaying=replaying)
    return session.run(None, dict(feeds)), ops


def assert_same(got: list[np.ndarray], want: list[np.ndarray], atol: float = 0) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# ---------------------------------------------------------------------- the same as onnxruntime's


SOME = ("leaky_relu", "reshape", "resize", "add", "where", "conv_relu", "gemm_bias", "shared")
"""One network of each kind, for the fast tests."""


@pytest.mark.parametrize(
    ("kind", "platform"),
    [
        pytest.param(kind, platform, marks=[] if (kind, platform) == ("uint8", "arm") else [pytest.mark.slow])
        for kind in ("uint8", "int8")
        for platform in PLATFORMS
    ],
)
@pytest.mark.parametrize("name", slow_except(SOME, nets.QUANTIZED))
def test_quantized_as_onnxruntime(name: str, kind: str, platform: str, tmp_path: Path) -> None:
    net = nets.QUANTIZED[name](kind)
    proto = net.proto()
    feeds = random_feeds(proto)
    theirs, ours = both(proto, tmp_path, platform)
    assert nets.saved(ours) == nets.saved(theirs)
    assert nets.type_strings(ours) == nets.type_strings(theirs)
    assert not check(ours).findings
    got, made = outputs(ours, feeds, replaying=True)
    want, made_by_them = outputs(theirs, feeds, replaying=True)
    assert made == made_by_them
    assert_same(got, want)
    plain, basic = outputs(ours, feeds, replaying=False)
    assert basic == Counter(nets.ops(nets.decode(ours.read_bytes()).model.graph))
    assert (basic != made) is bool(nets.saved(ours))
    assert_same(plain, run(proto, feeds), atol=1e-6)
    assert_same(got, plain, atol=1.01 * net.step + 1e-5)


def test_cases_are_of_every_kind() -> None:
    actions = Counter()
    for case in (*nets.QUANTIZED.values(), *nets.UNREPLAYABLE.values()):
        actions.update(fusion.action for fusion in runtime_model(case("uint8").proto()).saved)
    assert set(actions) == {
        "drop", "drop_no_int16_support", "drop_no_int16_support_and_positive_scale", "dropDQ", "dropSplitQDQ", "1DQ",
        "1DQ_CPU", "2DQ", "*DQ", "Where", "Conv", "Gemm", "MatMul", "ConvAct",
    }  # fmt: skip


@pytest.mark.parametrize("name", nets.UNREPLAYABLE)
def test_records_that_onnxruntime_saves_but_cannot_replay(name: str, tmp_path: Path) -> None:
    proto = nets.UNREPLAYABLE[name]("uint8").proto()
    feeds = random_feeds(proto)
    theirs, ours = both(proto, tmp_path)
    assert [row[:-1] for row in nets.saved(ours)] == [row[:-1] for row in nets.saved(theirs)]
    assert [row[-1] for row in nets.saved(theirs)] == [()]
    with pytest.raises(Exception, match="Not enough produced nodes"):
        nets.session(theirs, replaying=True)
    assert [f.message for f in check(theirs).findings if "saved" in f.message] == [
        f"saved optimization '{nets.saved(theirs)[0][1]}' of 'QDQSelectorActionTransformer': it names 0 operators of the 1 "
        "that it makes, which onnxruntime refuses to replay"
    ]
    assert not check(ours).findings
    got, made = outputs(ours, feeds, replaying=True)
    assert made & Counter(("QLinearMatMul", "com.microsoft:MatMulIntegerToFloat", "Split"))
    assert_same(got, run(proto, feeds), atol=1e-6)
    nets.save_by_onnxruntime(proto, tmp_path / "applied.ort", "arm", "apply")
    applied = nets.decode((tmp_path / "applied.ort").read_bytes()).model.graph
    assert made == Counter(nets.ops(applied))


@pytest.mark.parametrize("name", slow_except([name for name in nets.FLOAT if name != "clips"], nets.FLOAT))
def test_float_as_onnxruntime(name: str, tmp_path: Path) -> None:
    proto = nets.FLOAT[name]
    feeds = random_feeds(proto)
    theirs, ours = both(proto, tmp_path)
    assert nets.saved(ours) == nets.saved(theirs)
    assert len(nets.saved(ours)) == (0 if name == "none" else 2)
    assert not check(ours).findings
    assert nets.type_strings(ours) == nets.type_strings(theirs)
    got, made = outputs(ours, feeds, replaying=True)
    want, made_by_them = outputs(theirs, feeds, replaying=True)
    assert made == made_by_them
    assert made["com.microsoft:FusedConv"] == len(nets.saved(ours))
    assert_same(got, want)
    assert_same(outputs(ours, feeds, replaying=False)[0], run(proto, feeds), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "if_branch_ts13",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (
            "zoo_squeezenet", "mobilenetv2_qdq_u8s8_pertensor", "resnet18_qdq_u8s8_perchannel", "hf_mobilenetv1_ts13"
        )),
    ],
)  # fmt: skip
def test_shared_models(name: str, tmp_path: Path) -> None:
    path = SHARED_MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip("needs the shared models")
    theirs, ours = both(onnx.load(path), tmp_path)
    assert [row[:2] for row in nets.saved(ours)] == [row[:2] for row in nets.saved(theirs)]
    mine, others = (fused(nets.session(path, replaying=True)[1]) for path in (ours, theirs))
    assert mine == others


def fused(ops: Counter[str]) -> Counter[str]:
    return Counter({op: count for op, count in ops.items() if "QLinear" in op or op.startswith("com.microsoft")})


# ---------------------------------------------------------------------- where onnxruntime's differ


def test_zero_points_are_stated(tmp_path: Path) -> None:
    """onnxruntime 1.31 cannot convert this: it gives the nodes a third input, but does not count it."""
    net = Net("uint8")
    scale = net.const(np.float32(0.03))
    x = net.add("DequantizeLinear", net.add("QuantizeLinear", net.input(*nets.PICTURE), scale), scale)
    w = net.add(
        "DequantizeLinear", net.const(net.rng.integers(-9, 9, (6, 4, 3, 3)).astype(np.int8)),
        net.const(PER_CHANNEL.astype(np.float32)), axis=0,
    )  # fmt: skip
    unit = net.const((np.float32(0.03) * PER_CHANNEL).astype(np.float32))
    b = net.add("DequantizeLinear", net.const(np.arange(6, dtype=np.int32)), unit, axis=0)
    y = net.add("QuantizeLinear", net.add("Conv", x, w, b), net.const(np.float32(0.05)))
    proto = net.returned(net.add("DequantizeLinear", y, net.const(np.float32(0.05)))).proto()
    with pytest.raises(Exception, match="input arg count"):
        nets.save_by_onnxruntime(proto, tmp_path / "theirs.ort", "arm")
    save(runtime_model(proto), tmp_path / "ours.ort")
    assert not check(tmp_path / "ours.ort").findings
    feeds = random_feeds(proto)
    got, made = outputs(tmp_path / "ours.ort", feeds, replaying=True)
    assert made["QLinearConv"] + made["com.microsoft:QLinearConv"] == 1
    assert_same(got, run(proto, feeds), atol=0.0501)


def test_weights_of_8_bits_alone_stay(tmp_path: Path) -> None:
    """onnxruntime's MatMulNBits quantizes the activations when it replays them, which changes the numbers."""
    net = Net()
    proto = net.returned(net.add("MatMul", net.input(3, 32), net.weights(32, 6, axis=1))).proto()
    theirs, ours = both(proto, tmp_path)
    assert [row[1] for row in nets.saved(theirs)] == ["DQMatMulToMatMulNBits"]
    assert nets.saved(ours) == []
    feeds = random_feeds(proto)
    assert np.abs(outputs(theirs, feeds, replaying=True)[0][0] - run(proto, feeds)[0]).max() > 1e-3


def nbits(kind: int) -> onnx.ModelProto:
    """x @ DQ(w) + b with a weight of 4 bits."""
    rng = np.random.default_rng(0)
    w = helper.make_tensor("w", kind, (32, 6), rng.integers(0, 8, 32 * 6))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 32))]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, 6))]
    constants = [w, numpy_helper.from_array(rng.random((2, 6)).astype(np.float32), "s"),
                 numpy_helper.from_array(rng.random(6).astype(np.float32), "b")]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, result, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_weights_of_4_bits_are_packed_at_once(tmp_path: Path) -> None:
    proto = nbits(TensorProto.INT4)
    model = runtime_model(proto)
    assert [node.op for node in model.graph] == ["MatMulNBits", "Add"]
    assert [(s.optimizer, s.action, s.produced) for s in model.saved] == [("MatMulNBitsFusion", "FuseBias", ())]
    save(model, tmp_path / "ours.ort")
    feeds = random_feeds(proto)
    got, made = outputs(tmp_path / "ours.ort", feeds, replaying=True)
    assert made == {"com.microsoft:MatMulNBits": 1}
    assert_same(got, run(proto, feeds), atol=1e-4)
    source = onnx.load_from_string(_onnx_of(model))
    nets.save_by_onnxruntime(source, tmp_path / "theirs.ort", "arm")
    assert nets.saved(tmp_path / "theirs.ort") == nets.saved(tmp_path / "ours.ort")


def _onnx_of(model: Model) -> bytes:
    from ortconv.onnxio.proto import model_proto

    return model_proto(model).SerializeToString()


def test_what_must_not_be_saved() -> None:
    proto = nets.QUANTIZED["conv"]("uint8").proto()
    for level in ("disable", "basic"):
        assert runtime_model(proto, level=level).saved == []
    assert len(runtime_model(proto, level="extended").saved) == 1
    assert [s.action for s in runtime_model(nets.QUANTIZED["conv"]("int8").proto(), "amd64").saved] == []
    pool = nets.unary("AveragePool", opset=19, kernel_shape=[2, 2], dilations=[1, 1])("uint8")
    assert runtime_model(pool.proto()).saved == [], (
        "the action would hand on the dilations, which QLinearAveragePool lacks"
    )
    model = from_proto(nets.FLOAT["activations"])
    for node in model.graph:
        node.ep = "NnapiExecutionProvider"
    optimize(model, "all", context=Context(PassSettings(optimization_style="Runtime")))
    assert model.saved == []


def test_a_fusion_of_which_a_node_is_gone_is_left_out() -> None:
    model = runtime_model(nets.FLOAT["activations"])
    first = model.saved[0].target
    relu = first.out.consumers[0]
    model.graph.replace(relu.out, first.out)
    model.graph.remove(relu)
    assert len(reader.parse(b"".join(serialize(model))).saved) == 1


# ---------------------------------------------------------------------- files and configs


@pytest.mark.slow
def test_files_of_both_styles_as_the_tool(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.tools.ort_format_model")
    for name, proto in (("a", nets.QUANTIZED["conv_per_channel"]("uint8").proto()), ("b", nets.FLOAT["clips"])):
        onnx.save(proto, tmp_path / f"{name}.onnx")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    flags = ["--optimization_style", "Fixed", "Runtime", "--enable_type_reduction", "--target_platform", "arm"]
    tool = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort"]
    subprocess.run([*tool, str(tmp_path), "--output_dir", str(theirs), *flags], check=True, capture_output=True)
    assert main(["convert", *flags, str(tmp_path), "--output_dir", str(ours)]) == 0
    assert names(ours) == names(theirs) == [
        "a.ort", "a.with_runtime_opt.ort", "b.ort", "b.with_runtime_opt.ort", "required_operators_and_types.config",
        "required_operators_and_types.with_runtime_opt.config",
    ]  # fmt: skip
    config = "required_operators_and_types.with_runtime_opt.config"
    assert lines(ours / config) == lines(theirs / config)
    assert any("FusedConv" in line for line in lines(ours / config))
    assert any("QLinearConv" in line for line in lines(ours / config))
    alone = tmp_path / "alone"
    more = ["--output_dir", str(alone), "--optimization_level", "extended", "--save_optimized_onnx_model"]
    assert main(["convert", *flags, str(tmp_path / "a.onnx"), *more]) == 0
    assert names(alone) == [
        "a.extended.optimized.onnx", "a.extended.ort", "a.extended.with_runtime_opt.optimized.onnx",
        "a.extended.with_runtime_opt.ort", "a.required_operators_and_types.extended.config",
        "a.required_operators_and_types.extended.with_runtime_opt.config",
    ]  # fmt: skip
    shown = onnx.load(alone / "a.extended.with_runtime_opt.optimized.onnx")
    assert "QLinearConv" in {node.op_type for node in shown.graph.node}


def names(folder: Path) -> list[str]:
    """The files of a folder but for the hidden ones, such as the journal of a batch."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def test_two_styles_do_not_fit_into_one_file(tmp_path: Path) -> None:
    onnx.save(nets.FLOAT["clips"], tmp_path / "b.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "ortconv", "convert", "--optimization_style", "Runtime", "Fixed", str(tmp_path / "b.onnx"),
         "-o", str(tmp_path / "b.ort")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "two styles" in done.stderr
    assert not (tmp_path / "b.ort").exists()


def test_nodes_of_nnapi_are_not_saved(tmp_path: Path) -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,6,6] y) <float[2,3,3,3] w = {WEIGHTS}> { a = Conv (x, w)  y = Relu (a) }"""
    weights = ", ".join(f"{v:.2f}" for v in np.linspace(-1, 1, 54))
    onnx.save(parse(text.replace("WEIGHTS", weights)), tmp_path / "x.onnx")
    found = {
        use: convert(tmp_path / "x.onnx", tmp_path / "x.ort", optimization_style="Runtime", use_nnapi=use).saved_fusions
        for use in (False, True)
    }
    assert found == {False: 1, True: 0}


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["conv_redundant_relu", "concat"])
def test_what_is_read_is_what_was_written(name: str) -> None:
    model = runtime_model(nets.QUANTIZED[name]("uint8").proto())
    data = b"".join(serialize(model))
    again = reader.parse(data)
    assert [_plain(s) for s in again.saved] == sorted(map(_plain, model.saved), key=lambda row: row[0])
    assert again.saved[0].target.op in ("Conv", "Concat")
    assert b"".join(serialize(again)) == data


def _plain(saved: SavedFusion) -> tuple[object, ...]:
    nodes = [None if n is None else n.label for n in saved.nodes]
    return saved.optimizer, saved.action, nodes, saved.inputs, saved.outputs, saved.produced


FAULTS = {
    "fewer nodes": (lambda s: s._replace(inputs=Arity(9)), "6 node_indices are not 9, a target, 1"),
    "more nodes": (lambda s: s._replace(nodes=(*s.nodes, None, None)), "8 node_indices are not 3, a target, 1"),
    "no formal": (lambda s: s._replace(outputs=Arity(0, 2)), "it has 0 outputs, the last one for 2 nodes"),
    "no actual": (lambda s: s._replace(outputs=Arity(1, 0)), "it has 1 outputs, the last one for 0 nodes"),
    "no target": (lambda s: s._replace(inputs=Arity(2), nodes=(*s.nodes[:2], None, *s.nodes[3:5])), "it has no target"),
    "twice": (lambda s: s._replace(nodes=(s.nodes[0], *s.nodes[:-1])), "a node is given twice"),
    "too many made": (lambda s: s._replace(produced=s.produced * 7), "it makes 7 nodes of 6"),
    "no version": (lambda s: s._replace(produced=(":QLinearConv",)), "is not domain:operator:since_version"),
    "no number": (lambda s: s._replace(produced=(":QLinearConv:x",)), "is not domain:operator:since_version"),
    "large number": (lambda s: s._replace(produced=(":Conv:" + "9" * 20,)), "is not domain:operator:since_version"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit, message = FAULTS[fault]
    model = runtime_model(nets.QUANTIZED["conv_redundant_relu"]("uint8").proto())
    monkeypatch.setattr("ortconv.ortformat.runtime.by_graph", lambda saved: {model.graph: saved})
    monkeypatch.setattr("ortconv.ortformat.writer.schema_of_id", lambda text: None)
    model.saved = [edit(model.saved[0])]
    with pytest.raises(ModelError, match=message) as caught:
        reader.parse(b"".join(serialize(model)))
    assert "saved optimization 0, 'Conv' of 'QDQSelectorActionTransformer'" in str(caught.value)


def test_edited_bytes_are_refused() -> None:
    model = runtime_model(nets.FLOAT["activations"])
    data = b"".join(serialize(model))
    order = {node: i for i, node in enumerate(model.graph)}
    pair = [order[node] for node in model.saved[0].nodes if node is not None]
    at = data.index(struct.pack("<3I", 2, *pair)) + 4
    for word, message in (
        (99, "node 99 does not exist"),
        (pair[1], "a node is given twice"),
        (0xFFFFFFFF, "no target"),
    ):
        with pytest.raises(ModelError, match=message):
            reader.parse(data[:at] + struct.pack("<I", word) + data[at + 4 :])


@pytest.mark.slow
def test_any_edited_byte_is_refused_or_harmless() -> None:
    data = b"".join(serialize(runtime_model(nets.FLOAT["activations"])))
    refused = [_refusal(data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :]) for i in range(0, len(data), 3)]
    assert len(list(filter(None, refused))) > len(data) // 10
    assert any("saved optimization" in text for text in refused)


def _refusal(data: bytes) -> str:
    """What is said against a file; nothing if it is read. Other errors than ours are raised."""
    try:
        reader.parse(data)
    except ModelError as error:
        return str(error)
    return ""


def test_optimizers_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = runtime_model(nets.QUANTIZED["conv_relu"]("uint8").proto())
    model.saved = [s._replace(optimizer=name) for s in model.saved for name in ("AAAA", "BBBB")]
    data = b"".join(serialize(model))
    assert reader.parse(data)
    with pytest.raises(ModelError, match="the saved optimizations of 'AAAA' are given twice"):
        reader.parse(data.replace(b"BBBB", b"AAAA"))


def test_more_records_than_there_can_be() -> None:
    model = runtime_model(nets.FLOAT["activations"])
    model.saved *= 9
    with pytest.raises(ModelError, match=r"saved optimization 16, .*: 34 mentions of nodes are too many for 4 nodes"):
        reader.parse(b"".join(serialize(model)))


def test_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = runtime_model(nets.FLOAT["activations"])
    model.saved = [model.saved[0]._replace(action="ConvSwish", produced=("com.microsoft:FusedConv:2",))]
    save(model, tmp_path / "x.ort")
    found = list(map(str, check(tmp_path / "x.ort").findings))
    where = "saved optimization 'ConvSwish' of 'ConvActivationFusion'"
    assert f"{where}: onnxruntime knows no such action" in found
    assert f"{where}: no operator 'com.microsoft:FusedConv:2' exists" in found
    model.saved = [s._replace(action="ConvAct", produced=("com.microsoft:FusedConv:1",)) for s in model.saved]
    del model.graph.opsets["com.microsoft"]
    monkeypatch.setattr(writer, "ALWAYS_IMPORTED", {})
    save(model, tmp_path / "y.ort")
    (message,) = map(str, check(tmp_path / "y.ort").findings)
    assert "no version is imported of the operator set 'com.microsoft'" in message
