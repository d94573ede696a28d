"""Models with partitions on LiteRT, and their export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantized_models import quantized

import ortconv
from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions
from ortconv.cli import main
from ortconv.errors import GateError, UnsupportedError, UsageError
from ortconv.runtime.session import Session
from tests import text_models

RNG = np.random.default_rng(0)


def network(refused: bool = False) -> ModelProto:
    """Two convolutions, with an operator between them that NNAPI does not have if `refused`."""
    middle = "Ceil" if refused else "Abs"
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node(middle, ["a"], ["m"], "middle"),
        helper.make_node("Conv", ["m", "w2", "b"], ["out"], "second", pads=[0, 0, 1, 1], strides=[2, 2]),
    ]
    constants = {
        "w1": RNG.standard_normal((4, 3, 3, 3)), "w2": RNG.standard_normal((4, 4, 3, 3)), "b": RNG.standard_normal(4)
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def litert() -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")


@pytest.mark.usefixtures("litert")
@pytest.mark.parametrize("settings", ["", ":reference", ":default"])
@pytest.mark.parametrize("refused", [False, True])
def test_the_backend(settings: str, refused: bool) -> None:
    model = network(refused).SerializeToString()
    session = Session(model, [f"litert{settings}"])
    feeds = {"image": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)}
    assert [name for name, _ in session.regions].count("litert") == (2 if refused else 1)
    want = Session(model, [Nnapi(NnapiOptions(cpu_only=True))]).run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("litert")
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_models_have_the_bits_of_nnapi(per_channel: bool, tmp_path: Path) -> None:
    model = quantized(tmp_path, per_channel)
    ready = ortconv.load(model)
    feeds = {v.name: RNG.standard_normal(v.static_shape).astype(np.float32) for v in ready.graph.inputs}
    session = Session(ready, ["litert:reference"])
    assert "litert" in [name for name, _ in session.regions]
    want = Session(ready, [Nnapi(NnapiOptions(cpu_only=True))]).run(None, feeds)
    assert [a.tobytes() for a in session.run(None, feeds)] == [a.tobytes() for a in want]


@pytest.mark.usefixtures("litert")
def test_partitions_are_files_of_their_own(tmp_path: Path) -> None:
    result = ortconv.export_tflite(network(refused=True), tmp_path)
    assert [Path(f.file).name for f in result.files] == ["model.0.tflite", "model.1.tflite"]
    assert [f.inputs + f.outputs for f in result.files] == [("image", "a"), ("m", "out")]
    assert (result.taken, result.nodes, len(result.refusals)) == (2, 3, 1)
    assert result.validation is not None
    assert result.validation.backend == "litert"


@pytest.mark.usefixtures("litert")
def test_an_app_runs_the_whole_by_its_signature(tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    source = network()
    ortconv.export_tflite(source, tmp_path, whole=True)
    run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner("serving_default")
    image = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    want = Session(source.SerializeToString(), ["numpy"]).run(None, {"image": image})
    np.testing.assert_allclose(run(image=image)["out"], want[0], rtol=1e-4, atol=1e-4)


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    source = network()
    for folder in ("a", "b"):
        ortconv.export_tflite(source, tmp_path / folder, whole=True, validate=False)
    assert (tmp_path / "a/model.tflite").read_bytes() == (tmp_path / "b/model.tflite").read_bytes()


def test_the_whole_needs_all_nodes(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="1 of 3 nodes cannot go to LiteRT: Ceil 'middle'"):
        ortconv.export_tflite(network(refused=True), tmp_path, whole=True, validate=False)
    assert list(tmp_path.iterdir()) == []


def test_a_condition_that_holds_prevents_the_files(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="partitions is 2"):
        ortconv.export_tflite(network(refused=True), tmp_path, validate=False, fail_on="partitions>1")
    assert list(tmp_path.iterdir()) == []


def test_the_output_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.tflite: the output is a folder"):
        ortconv.export_tflite(network(), tmp_path / "x.tflite", validate=False)


def test_without_litert_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("no module")

    monkeypatch.setattr("ortconv.backends.litert.backend.interpreter", missing)
    with pytest.raises(UnsupportedError, match="the files cannot be checked: ai-edge-litert cannot be imported"):
        ortconv.export_tflite(network(), tmp_path)
    assert list(tmp_path.iterdir()) == []
    found = ortconv.export_tflite(network(), tmp_path, allow_unchecked=True)
    assert found.validation is not None
    assert found.validation.skipped is not None


def test_a_model_without_nodes_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no node can go to LiteRT: the model has none"):
        ortconv.export_tflite(text_models.parse("g (float[2] x) => (x) {}"), tmp_path, validate=False)


@pytest.mark.usefixtures("litert")
def test_nothing_is_put_in_place_that_computes_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortconv.backends.litert.runtime import LiteRtModel

    right = LiteRtModel.run
    monkeypatch.setattr(LiteRtModel, "run", lambda self, inputs: [a * 1.01 for a in right(self, inputs)])
    with pytest.raises(ortconv.MismatchError, match="on LiteRT"):
        ortconv.export_tflite(network(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(network(), source)
    code = main(["nnapi", "export", str(source), "-o", str(tmp_path / "out"), "--whole", "--no-validate"])
    assert not code
    assert "net.tflite" in capsys.readouterr().out
    assert (tmp_path / "out/net.tflite").read_bytes()[4:8] == b"TFL3"
