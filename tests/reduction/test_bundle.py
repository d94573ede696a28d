"""A bundle holds what a report needs and nothing private, and the same bundle has the same bytes."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ortconv
from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.files import write_bytes
from ortconv.ir.tensor import Tensor
from ortconv.reduction.bundle import scrubbed
from ortconv.reduction.strip import made_up
from tests.conftest import SAMPLES

PYTHON = f'"{sys.executable}" -ISc'
CLIP = f"""{PYTHON} "import sys
print('opened', sys.argv[1])
sys.exit(3 * (b'Clip' in open(sys.argv[1], 'rb').read()))" {{}}"""


def private(path: Path) -> Path:
    """A model with texts that its author would not send to others."""
    proto = onnx.load(SAMPLES / "mobilenet_v2_small.onnx")
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "/home/somebody/secret.py"
    proto.metadata_props.add(key="author", value="somebody")
    path.write_bytes(proto.SerializeToString())
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}


def test_a_bundle_holds_what_a_report_needs(tmp_path: Path) -> None:
    source = private(tmp_path / "m.onnx")
    found = ortconv.bundle(source, tmp_path / "b.zip", command=CLIP, strip_weights=True)
    files = members(tmp_path / "b.zip")
    assert found.files == {name: len(content) for name, content in files.items()}
    assert sorted(files) == ["inputs.npz", "model.onnx", "output.txt", "report.md"]
    assert (found.exit_code, files["output.txt"].decode().split()) == (3, ["opened", "model.onnx"])
    report = files["report.md"].decode()
    assert "exit code 3" in report
    assert f"| ortconv | {ortconv.__version__} |" in report
    assert b"somebody" not in b"".join(files.values())
    assert str(tmp_path).encode() not in b"".join(files.values())
    feeds = dict(np.load(io.BytesIO(files["inputs.npz"])))
    (logits,) = ortconv.Session(files["model.onnx"]).run(None, feeds)
    assert np.isfinite(logits).all()


def test_the_same_bundle_has_the_same_bytes(tmp_path: Path) -> None:
    source = private(tmp_path / "m.onnx")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ortconv.bundle(source, tmp_path / name / "x.zip", command=CLIP, strip_weights=True)
    assert (tmp_path / "a/x.zip").read_bytes() == (tmp_path / "b/x.zip").read_bytes()


def test_stripped_weights_have_the_same_statistics(tmp_path: Path) -> None:
    source = SAMPLES / "mobilenet_v2_small.onnx"
    found = ortconv.bundle(source, tmp_path / "b", strip_weights=True)
    before, after = (ortconv.load(path).graph.initializers for path in (source, tmp_path / "b/model.onnx"))
    changed = 0
    for name, value in before.items():
        old, new = value.constant, after[name].constant
        assert old is not None
        assert new is not None
        a, b = old.numpy(), new.numpy()
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not np.array_equal(a, b):
            changed += 1
            assert a.min() <= b.min()
            assert b.max() <= a.max()
            assert abs(float(a.mean()) - float(b.mean())) <= 0.2 * float(a.std()) + 1e-6
            assert 0.6 * float(a.std()) <= float(b.std()) + 1e-6 <= 1.4 * float(a.std()) + 2e-6
    assert 0 < changed <= found.stripped
    shape = next(name for name, v in before.items() if v.constant is not None and v.constant.size < 5)
    assert before[shape].const.same(after[shape].const)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100, dtype=np.int8) - 50,
        np.arange(100) % 2 == 0,
        np.full(100, np.nan, np.float32),
        np.array([np.inf, 1, 2, *([3] * 30)], np.float64),
        np.array([f"name {i}" for i in range(40)], object),
        np.arange(40) * 1j,
        np.full(50, 7, np.uint64),
    ],
    ids=lambda array: str(array.dtype),
)
def test_constants_of_all_types_are_made_up(array: np.ndarray) -> None:
    old = Tensor.of(array)
    new = made_up(old, 1)
    assert (new.dtype, new.shape) == (old.dtype, old.shape)
    assert new.same(made_up(old, 1))
    if array.dtype.kind in "iu":
        assert array.min() <= new.numpy().min() <= new.numpy().max() <= array.max()
    if array.dtype == object:
        assert "name" not in "".join(new.numpy())


def test_made_up_inputs_are_such_as_the_model_accepts(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,1,h,w] x) => (float[1,1,n,m] y) { y = AveragePool <kernel_shape = [5, 5]> (x) }"""
    ortconv.bundle(onnx.parser.parse_model(text), tmp_path / "b")
    feeds = dict(np.load(tmp_path / "b/inputs.npz"))
    (y,) = ortconv.Session(tmp_path / "b/model.onnx").run(None, feeds)
    assert y.size >= 1


def test_an_ort_file_stays_one(tmp_path: Path) -> None:
    ortconv.convert(SAMPLES / "qdq_cnn.onnx", tmp_path / "m.ort", validate=False)
    found = ortconv.bundle(tmp_path / "m.ort", tmp_path / "b", strip_weights=True)
    assert found.stripped > 0
    assert ortconv.verify(tmp_path / "b/model.ort")
    assert ortconv.inspect(tmp_path / "b/model.ort").operators == ortconv.inspect(tmp_path / "m.ort").operators


def test_weights_that_matter_are_not_replaced(tmp_path: Path) -> None:
    source = SAMPLES / "mnist.onnx"
    weights = next(t for t in onnx.load(source).graph.initializer if len(t.raw_data or t.float_data) > 100)
    piece = onnx.numpy_helper.to_array(weights).tobytes()[:24]
    command = f"{PYTHON} \"import sys; sys.exit({piece!r} in open(sys.argv[1], 'rb').read())\" {{}}"
    with pytest.raises(UsageError, match="with other weights, the command ends with 0 and not 1"):
        ortconv.bundle(source, tmp_path / "b", command=command, strip_weights=True)
    assert not (tmp_path / "b").exists()
    assert ortconv.bundle(source, tmp_path / "b", command=command).exit_code == 1


def test_a_model_whose_texts_matter_stays_as_it_is(tmp_path: Path) -> None:
    source = private(tmp_path / "m.onnx")
    command = f"{PYTHON} \"import sys; sys.exit(b'somebody' in open(sys.argv[1], 'rb').read())\" {{}}"
    found = ortconv.bundle(source, tmp_path / "b", command=command)
    assert (tmp_path / "b/model.onnx").read_bytes() == source.read_bytes()
    assert found.exit_code == 1
    assert "the model is as it was" in found.notes[0]


def test_a_model_that_cannot_be_read_is_bundled_as_it_is(tmp_path: Path) -> None:
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"\x08\x07nonsense")
    found = ortconv.bundle(broken, tmp_path / "b", command="exit 3")
    assert (tmp_path / "b/model.onnx").read_bytes() == broken.read_bytes()
    assert len(found.notes) == 2
    assert str(tmp_path) not in (tmp_path / "b/report.md").read_text("utf-8")


def test_paths_of_this_machine_are_left_out(tmp_path: Path) -> None:
    root = Path(*tmp_path.parts[:2])  # without the spaces that other parts may have
    text = f"File \"{root}/deep/er/x.py\", line 3: Conv '/layer/conv/Conv' of {root}/m.onnx, see https://a.b/c and 1/2"
    assert scrubbed(text, {}) == "File \"x.py\", line 3: Conv '/layer/conv/Conv' of m.onnx, see https://a.b/c and 1/2"


def test_the_command_prints_what_it_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bundle", str(SAMPLES / "mnist.onnx"), "-o", str(tmp_path / "b.zip"), "--check", "exit 4"]
    assert main([*line, "--expect-exit", "5"]) == 2
    assert "ends with 4 and not 5" in capsys.readouterr().err
    np.savez(tmp_path / "x.npz", Input3=np.ones((1, 1, 28, 28), np.float32))
    assert main([*line, "--inputs", str(tmp_path / "x.npz"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], "inputs.npz" in document["files"]) == (4, True)
    packed = np.load(io.BytesIO(members(tmp_path / "b.zip")["inputs.npz"]))
    assert packed["Input3"].sum() == 784
    assert main(line) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(target: Path, data: bytes) -> None:
        if target.name == "report.md":
            raise UsageError("cannot write: No space left on device", file=target)
        write_bytes(target, data)

    monkeypatch.setattr("ortconv.reduction.bundle.write_bytes", write)
    with pytest.raises(UsageError, match="No space left"):
        ortconv.bundle(SAMPLES / "mnist.onnx", tmp_path / "report")
    assert list(tmp_path.iterdir()) == []
