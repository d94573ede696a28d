"""ortconv run: what it can be fed, what it shows, and how it checks."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import ortconv
from ortconv.cli import images, main
from ortconv.errors import FormatError
from ortconv.inputs.candidates import first_run
from ortconv.ir.types import DType
from ortconv.runtime.session import Session
from tests import text_models, unoptimized
from tests.cli.conftest import Printed
from tests.conftest import examples

NET = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3,4,5] x, int64[n,2] i) => (float[n,m] y, float[n,2] z) <float[2] k = {1, 2}, float[60,10] w = {W}> {
    [shrink] a = Relu(x)  b = Flatten(a)  f = Cast<to=1>(i)  z = Mul(f, k)  y = MatMul(b, w) }"""
NET = NET.replace("{W}", "{" + ", ".join(str(v % 7 - 3) for v in range(600)) + "}")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    path.write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    return path


def model(tmp_path: Path, text: str, opset: int = 17) -> Path:
    return text_models.save(tmp_path / "m.onnx", text, opset)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    assert main(["run", *map(str, arguments)]) == code
    shown = capsys.readouterr()
    assert shown.err.count("error:") == 1
    return shown.err


# ---------------------------------------------------------------------- made-up inputs


def test_shapes_and_ranges(net: Path, printed: Printed) -> None:
    inputs = ["--input", "x:2x3x4x5:-1..0.5", "--input", "i:5..7"]
    found = printed("run", net, *inputs)
    x, i = found["inputs"]["x"], found["inputs"]["i"]
    assert (x["shape"], i["shape"]) == ([2, 3, 4, 5], [2, 2])  # one symbol, one number
    assert -1 <= x["min"] < -0.8 < 0.3 < x["max"] <= 0.5
    assert 5 <= i["min"] <= i["max"] <= 7
    assert found["made_up"] == ["x", "i"]
    assert printed("run", net, *inputs)["outputs"] == found["outputs"]
    assert printed("run", net, *inputs, "--seed", 1)["outputs"] != found["outputs"]


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_threads(
    backend: str, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    make = Session.__init__

    def noted(self: Session, *args: Any, **options: Any) -> None:
        asked.append(options["threads"])
        make(self, *args, **options)

    monkeypatch.setattr(Session, "__init__", noted)
    inputs = ["--input", "x:2x3x4x5", "--input", "i:5..7", "--backend", backend, "-q"]
    assert main(["run", str(net), *inputs, "--save", str(tmp_path / "one.npz")]) == 0
    assert main(["run", str(net), *inputs, "--threads", "2", "--check", str(tmp_path / "one.npz")]) == 0
    assert asked == [1, 2]
    assert main(["run", str(net), "--threads", "0"]) == 2
    assert "--threads" in capsys.readouterr().err


def test_constant_inputs_and_names_with_colons(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "m.onnx"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x:0"
    path.write_bytes(proto.SerializeToString())
    found = printed("run", path, "--input", "x:0:4:2.5")
    assert found["outputs"]["y"] == {"type": "float32", "shape": [4], "min": -2.5, "max": -2.5, "mean": -2.5}
    assert printed("run", path, "--input", "x:0:3")["inputs"]["x:0"]["shape"] == [3]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("q:1x2", "there is no such input"),
        ("x:1xx2", "'1xx2' is not a shape or range"),
        ("x:3..1", "3 is above 1"),
        ("i:0.2..0.7", "no integer lies in 0.2..0.7"),
        ("x:1x3x4", r"'x' must be float[n,3,4,5], got float[1,3,4]"),
        ("x:1x3x4x6", r"got float[1,3,4,6]"),
        ("x=missing.npy", "there is no file missing.npy"),
    ],
)
def test_wishes_that_cannot_be_granted(spec: str, words: str, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, net, "--input", spec)


# ---------------------------------------------------------------------- files


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((1, 3, 4, 5)).astype(np.float32), "i": np.int64([[3, 4]])}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"i": None}, "input 'i' is missing"),
        ({"j": np.zeros(1)}, "there is no input 'j'"),
        ({"x": np.zeros((1, 3, 4, 5))}, "'x' must be float[n,3,4,5], got double[1,3,4,5]"),
        ({"x": np.zeros((3, 4, 5), np.float32)}, "got float[3,4,5]"),
        ({"x": np.zeros((1, 3, 4, 6), np.float32)}, "got float[1,3,4,6]"),
    ],
)
def test_wrong_feeds_get_one_clear_message(
    changed: dict[str, Any], words: str, net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "f.npz", **{k: v for k, v in (feeds() | changed).items() if v is not None})
    assert words in refused(capsys, net, "--inputs", tmp_path / "f.npz")


def test_npz_and_single_files(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    given = feeds()
    np.savez(tmp_path / "all.npz", **given)
    np.save(tmp_path / "x.npy", given["x"])
    (tmp_path / "i.pb").write_bytes(numpy_helper.from_array(given["i"]).SerializeToString())
    together = printed("run", net, "--inputs", tmp_path / "all.npz")
    single = ["--input", f"x={tmp_path / 'x.npy'}", "--input", f"i={tmp_path / 'i.pb'}"]
    assert printed("run", net, *single)["outputs"] == together["outputs"]
    assert together["made_up"] == []
    mixed = printed("run", net, "--input", f"x={tmp_path / 'x.npy'}", "--input", "i")
    assert mixed["made_up"] == ["i"]
    assert "input 'i' is missing" in refused(capsys, net, *single[:2])
    assert "2 inputs: x, i" in refused(capsys, net, "--inputs", tmp_path / "x.npy")


@pytest.mark.parametrize("type", ["bfloat16", "float8e5m2", "int4"])
def test_files_of_types_that_numpy_lacks(type: str, tmp_path: Path, printed: Printed) -> None:
    dtype, given, out = DType[type.upper()], tmp_path / "x.npz", tmp_path / "y.npz"
    nodes = f"z = Cast<to=1>(x) y = Cast<to={dtype}>(z)"
    path = model(tmp_path, f"g ({type}[2,3] x) => ({type}[2,3] y, float[2,3] z) {{ {nodes} }}", 21)
    x = np.asfortranarray([[1, 2, 3], [-4, 0, 1]], dtype.numpy)
    np.savez(given, x=x.view(f"V{x.itemsize}"))
    np.save(tmp_path / "x.npy", x.view(f"V{x.itemsize}"))
    printed("run", path, "--inputs", given, "--save", out)
    assert np.load(out)["z"].tolist() == [[1, 2, 3], [-4, 0, 1]]
    assert printed("run", path, "--input", f"x={tmp_path / 'x.npy'}", "--check", out)["check"]["expected"] == ["y", "z"]
    validation = ortconv.convert(path, tmp_path / "m.ort", validate_with=[dict(np.load(given))]).validation
    assert validation is not None
    assert validation.skipped is None


def test_a_data_set_of_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    text = "g (seq(float[2]) s, float[2] x) => (seq(float[2]) t, float[2] y) { t = SequenceInsert(s, x) y = Neg(x) }"
    path, folder = model(tmp_path, text), tmp_path / "test_data_set_0"
    folder.mkdir()
    x = np.float32([1, 2])
    for name, value in {"input_0": [x, x + 1], "output_0": [x, x + 1, x]}.items():
        (folder / f"{name}.pb").write_bytes(numpy_helper.from_list(value).SerializeToString())
    for name, value in {"input_1": x, "output_1": -x}.items():
        (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())
    found = printed("run", path, "--inputs", folder, "--check", folder)
    assert found["check"] == {"expected": ["t", "y"], "differences": {}}
    (folder / "output_0.pb").write_bytes(numpy_helper.from_list([x, x + 1, x + 1]).SerializeToString())
    message = refused(capsys, path, "--inputs", folder, "--check", folder, code=4)
    assert "'t' differs: element 2: 2 of 2 elements differ, first at [0]: 2.0 expected, 1.0 found" in message
    assert "no input_0.pb" in refused(capsys, path, "--inputs", tmp_path)
    (folder / "input_2.pb").write_bytes(b"")
    assert "so none for input_2.pb" in refused(capsys, path, "--inputs", folder)


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("x.pb", b"\xff\xff", 3, "not a valid TensorProto"),
        ("x.npy", b"nothing", 3, "not a valid .npy file"),
        ("x.npy", b"\x93NUMPY\x01\x00\x10\x00[object()]      ", 3, "the header of 'x' is damaged"),
        ("x.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': lambda", 3, "the header of 'x' is damaged"),
        ("x.txt", b"nothing", 2, "cannot read arrays from '.txt' files"),
        ("x.ppm", b"P6 1 1", 3, "not a ppm image"),
        ("x.pgm", b"P2 2 1 255 0 300", 3, "a value is outside of 0 to 255, the maximum in the header"),
        ("x.pgm", b"P2 2 1 255 0 -1", 3, "a value is outside of 0 to 255"),
        ("x.pgm", b"P5 2 1 3 \x00\x09", 3, "a value is outside of 0 to 3"),
        ("x.bmp", b"BM", 3, "not a bmp image: the file ends too early"),
    ],
)
def test_damaged_files(
    name: str, content: bytes, code: int, words: str, net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in refused(capsys, net, "--input", f"x={tmp_path / name}", "--input", "i", code=code)


def test_files_that_reach_out_are_refused(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = numpy_helper.from_array(feeds()["x"])
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, words in {"x.pb": "another file", "x.npy": "pickled objects"}.items():
        assert words in refused(capsys, net, "--input", f"x={tmp_path / name}", "--input", "i", code=6)


# ---------------------------------------------------------------------- images

PIXELS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) * 4


def bmp(pixels: np.ndarray, bits: int, top_down: bool) -> bytes:
    height, width = pixels.shape[:2]
    palette = b""
    if bits == 8:
        palette = b"".join(
            bytes([*pixels.reshape(-1, 3)[i][::-1], 0]) if i < width * height else bytes(4) for i in range(256)
        )
        rows = np.arange(width * height, dtype=np.uint8).reshape(height, width, 1)
    else:
        rows = (
            pixels[:, :, ::-1] if bits == 24 else np.dstack([pixels[:, :, ::-1], np.full((height, width), 9, np.uint8)])
        )
    rows = rows if top_down else rows[::-1]
    body = b"".join(row.tobytes() + bytes(-row.nbytes % 4) for row in np.ascontiguousarray(rows))
    start = 54 + len(palette)
    head = struct.pack("<IiiHHIIiiII", 40, width, -height if top_down else height, 1, bits, 0, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + head + palette + body


@pytest.mark.parametrize("top_down", [True, False])
@pytest.mark.parametrize("bits", [8, 24, 32])
def test_bmp(bits: int, top_down: bool, tmp_path: Path) -> None:
    (tmp_path / "p.bmp").write_bytes(bmp(PIXELS, bits, top_down))
    np.testing.assert_array_equal(images.read_image(tmp_path / "p.bmp"), PIXELS)


@examples(100)
@given(
    st.sampled_from(["bmp", "P6", "P5", "P3"]),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=6)), max_size=4),
    st.integers(0, 300),
)
def test_damaged_images_give_one_error(kind: str, edits: list[tuple[int, bytes]], end: int) -> None:
    whole = bmp(PIXELS, 24, False) if kind == "bmp" else f"{kind} 5 4 255 ".encode() + PIXELS.tobytes()
    data = bytearray(whole[:end])
    for at, new in edits:
        data[at : at + len(new)] = new
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("p.bmp" if kind == "bmp" else "p.ppm")
        path.write_bytes(bytes(data))
        try:
            pixels = images.read_image(path)
        except FormatError:
            return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3


def test_numbers_that_json_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    path = model(tmp_path, "g (float[3] x) => (float[3] y) { y = Log(x) }")
    np.savez(tmp_path / "x.npz", x=np.float32([0, -1, 1]))
    found = printed("run", path, "--inputs", tmp_path / "x.npz", "--top", 1)
    assert found["outputs"]["y"] == {"type": "float32", "shape": [3], "min": None, "max": None, "mean": None}
    assert main(["run", str(path), "--inputs", str(tmp_path / "x.npz"), "--top", "3"]) == 0
    assert "min not finite" in capsys.readouterr().out


def test_types_that_numpy_lacks(tmp_path: Path, printed: Printed) -> None:
    text = "g (bfloat16[2] b, string[3] s) => (bfloat16[2] a, string[3] t) { a = Relu(b)  t = Identity(s) }"
    found = printed("run", model(tmp_path, text), "--input", "b:1..2")
    assert found["outputs"]["t"] == {"type": "string", "shape": [3]}
    a = found["outputs"]["a"]
    assert a["type"] == "bfloat16"
    assert 1 <= a["min"] <= a["mean"] <= a["max"] <= 2


def test_pnm(tmp_path: Path) -> None:
    gray = PIXELS[:, :, :1]
    files = {
        "a.ppm": (b"P6\n# made by hand\n5 4\n255\n" + PIXELS.tobytes(), PIXELS),
        "b.ppm": (b"P3 5 4 255\n" + b" ".join(str(v).encode() for v in PIXELS.ravel()), PIXELS),
        "c.pgm": (b"P5 5 4 255 " + gray.tobytes(), gray),
        "d.pgm": (b"P2 2 1 3\n0 3", np.uint8([[[0], [255]]])),
    }
    for name, (content, expected) in files.items():
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(images.read_image(tmp_path / name), expected)


def test_images_become_inputs(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    (tmp_path / "p.ppm").write_bytes(b"P6 5 4 255 " + PIXELS.tobytes())
    wide = tmp_path / "wide.ppm"
    wide.write_bytes(b"P6 4 5 255 " + PIXELS.tobytes())
    kept = tmp_path / "out.npz"
    arguments = ["--input", "i", "--nodes", "shrink", "--save", kept]
    printed("run", net, "--input", f"x={tmp_path / 'p.ppm'}", *arguments)
    np.testing.assert_array_equal(np.load(kept)["a"], PIXELS.transpose(2, 0, 1)[None].astype(np.float32))
    printed("run", net, "--input", f"x={tmp_path / 'p.ppm'}:0..1", *arguments)
    np.testing.assert_allclose(np.load(kept)["a"], PIXELS.transpose(2, 0, 1)[None] / 255, rtol=1e-6)
    message = refused(capsys, net, "--input", f"x={wide}", "--input", "i")
    assert "an image of 4x5 pixels and 3 channels does not fit float[n,3,4,5]" in message
    np.save(tmp_path / "x.npy", feeds()["x"])
    assert "only images are scaled" in refused(capsys, net, "--input", f"x={tmp_path / 'x.npy'}:0..1", "--input", "i")


@pytest.mark.parametrize(
    ("type", "shape"),
    [("uint8[4,5,3]", (4, 5, 3)), ("uint8[1,4,5,3]", (1, 4, 5, 3)), ("uint8[h,w]", (4, 5)), ("uint8[b,1,h,w]", (1, 1, 4, 5)),
     ("uint8[3,h,w]", (3, 4, 5)), ("float[b,h,w,1]", (1, 4, 5, 1))],
)  # fmt: skip
def test_layouts_of_images(type: str, shape: tuple[int, ...], tmp_path: Path, printed: Printed) -> None:
    path = model(tmp_path, f"g ({type} x) => ({type} y) {{ y = Identity(x) }}")
    (tmp_path / "p.ppm").write_bytes(b"P6 5 4 255 " + PIXELS.tobytes())
    found = printed("run", path, "--inputs", tmp_path / "p.ppm", "--save", tmp_path / "y.npz")
    y = np.load(tmp_path / "y.npz")["y"]
    assert y.shape == shape == tuple(found["outputs"]["y"]["shape"])
    gray = np.rint(PIXELS @ np.array([0.299, 0.587, 0.114]))
    expected = gray if 3 not in shape else PIXELS if shape[-1] == 3 else PIXELS.transpose(2, 0, 1)
    np.testing.assert_array_equal(y.ravel(), expected.ravel())


@pytest.mark.skipif(importlib.util.find_spec("PIL") is not None, reason="Pillow is there")
def test_without_pillow_the_message_says_what_to_do(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.png").write_bytes(b"")
    message = refused(capsys, net, "--input", f"x={tmp_path / 'p.png'}", "--input", "i")
    assert "pip install 'ortconv[image]'" in message


def test_png_with_pillow(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(PIXELS).save(tmp_path / "p.png")
    np.testing.assert_array_equal(images.read_image(tmp_path / "p.png"), PIXELS)


def test_16_bits_of_gray_with_pillow(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.uint16([[0, 255, 257, 32896, 65535]])).save(tmp_path / "p.png")
    assert images.read_image(tmp_path / "p.png").ravel().tolist() == [0, 1, 1, 128, 255]
    pillow.fromarray(np.float32([[0, 0.5, 1]])).save(tmp_path / "f.tif")
    with pytest.raises(FormatError, match="its values have 32 bits"):
        images.read_image(tmp_path / "f.tif")


# ---------------------------------------------------------------------- what comes out


def test_outputs_and_nodes(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    found = printed("run", net, "--outputs", "z", "--nodes", "b", "--nodes", "shrink", "--save", tmp_path / "o.npz")
    assert list(found["outputs"]) == ["z", "b", "a"]
    assert sorted(np.load(tmp_path / "o.npz").files) == ["a", "b", "z"]
    assert "there is no output 'w'" in refused(capsys, net, "--outputs", "w")
    assert "no node makes a value 'shrunk'" in refused(capsys, net, "--nodes", "shrunk")


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_inner_values_are_those_of_the_model_cut_there(
    backend: str, samples: Path, tmp_path: Path, printed: Printed
) -> None:
    path = samples / "bert_tiny.onnx"
    proto = onnx.load(path)
    names = [node.output[0] for node in proto.graph.node][::7]
    proto.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in {o.name for o in proto.graph.output}
    )
    nodes = [part for name in names for part in ("--nodes", name)]
    printed("run", path, *nodes, "--save", tmp_path / "o.npz", "--backend", backend, "--input", "input_ids")
    got = np.load(tmp_path / "o.npz")
    fed, _ = first_run(Session(path))
    theirs = unoptimized.session(proto)
    for name, want in zip(names, theirs.run(names, fed), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-3, atol=1e-4)


def test_check(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    given, out = tmp_path / "f.npz", tmp_path / "o.npz"
    np.savez(given, **feeds())
    arguments = [net, "--inputs", given, "--nodes", "f"]
    printed("run", *arguments, "--save", out)
    assert printed("run", *arguments, "--check", out)["check"]["expected"] == ["f", "y", "z"]
    wrong = dict(np.load(out))
    wrong["y"][0, 3] += 0.5
    np.savez(out, **wrong)
    assert "'y' differs: 1 of 10 elements differ, first at [0, 3]" in refused(
        capsys, *arguments, "--check", out, code=4
    )
    assert main(["run", *map(str, arguments), "--check", str(out), "--atol", "0.6", "-q"]) == 0
    np.savez(out, y=wrong["y"].astype(np.float64), z=wrong["z"][:, :1])
    message = refused(capsys, *arguments, "--check", out, code=4)
    assert "'y' differs: float64[1, 10] expected, float32[1, 10] found; so do 1 more of 2 outputs" in message
    np.savez(out, q=wrong["y"])
    assert "--check expects 'q', which is not a result of this run" in refused(capsys, *arguments, "--check", out)
    np.savez(out)
    assert "it holds no outputs to check" in refused(capsys, *arguments, "--check", out)


def test_classes(net: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    found = printed("run", net, "--top", 3, "--input", "x:2x3x4x5")
    rows = found["top"]["y"]
    assert [r["row"] for r in rows] == [0, 0, 0, 1, 1, 1]
    assert rows[0]["value"] >= rows[1]["value"] >= rows[2]["value"]
    assert max(r["value"] for r in rows) == found["outputs"]["y"]["max"]
    assert main(["run", str(net), "--top", "2"]) == 0
    shown = capsys.readouterr().out
    assert "class" in shown
    assert {"y", "z"} <= {line.partition(" ")[0] for line in shown.splitlines()}


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_profile(
    backend: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    trace = tmp_path / "trace.json"
    found = printed("run", samples / "mnist.onnx", "--profile", trace, "--backend", backend, "--repeat", 3)
    assert found["runs"] == 3
    assert found["p90_seconds"] >= found["median_seconds"] > 0
    assert found["peak_bytes"] > 1 << 20
    steps = {s["op"]: s["steps"] for s in found["profile"]}
    apart = {"Conv": 2, "MaxPool": 2, "Relu": 2}
    together = {"Conv+Add+Relu": 2, "MaxPool": 2}
    assert (together if backend == "numpy" else apart).items() <= steps.items()
    assert sum(s["share"] for s in found["profile"]) == pytest.approx(1)
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == sum(steps.values())
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert events[-1]["ts"] + events[-1]["dur"] >= sum(e["dur"] for e in events) * 0.99  # one after the other
    conv = next(e for e in events if e["cat"].startswith("Conv"))
    assert conv["args"]["outputs"] == [[1, 8, 28, 28]]
    assert main(["run", str(samples / "mnist.onnx"), "--profile", str(trace), "--backend", backend]) == 0
    assert "operator" in capsys.readouterr().out


def test_steps_inside_a_loop_count_once(samples: Path, tmp_path: Path, printed: Printed) -> None:
    path = samples / "loop_accumulate.onnx"
    for backend in ("numpy", "onnxruntime"):
        found = printed("run", path, "--profile", tmp_path / "t.json", "--backend", backend)
        assert sum(s["steps"] for s in found["profile"] if s["op"] == "Loop") == 1
        assert "Add" not in {s["op"] for s in found["profile"]} or backend == "numpy"


def test_plan(net: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    found = printed("run", net, "--backend", "onnxruntime", "-v")
    assert {p["backend"] for p in found["plan"]} == {"onnxruntime"}
    assert main(["run", str(net), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "Relu 'shrink'" in shown
    assert "MatMul 'y'" in shown
