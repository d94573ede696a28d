"""External data: what is read, and what is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortconv.errors import FormatError, GraphError, ModelError, OrtconvError, UnsafeInputError
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto, load

posix = pytest.mark.skipif(os.name != "posix", reason="makes links, pipes and sockets")

WEIGHTS = np.arange(20000, dtype=np.float32)


@pytest.fixture(autouse=True, params=["below open directories", "by path, as on Windows"])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How files are opened."""
    if request.param == "by path, as on Windows":
        monkeypatch.setattr(os, "supports_dir_fd", set())


def model(entries: dict[str, str], shape: list[int] = [20000], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:  # noqa: B006
    tensor = TensorProto(name="w", data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    y = helper.make_tensor_value_info("y", dtype, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [y], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loaded(directory: Path, entries: dict[str, str], shape: list[int] | None = None) -> Model:
    onnx.save(model(entries, shape or [20000]), directory / "m.onnx")
    return load(directory / "m.onnx")


def weight(made: Model) -> np.ndarray:
    tensor = made.graph.initializers["w"].constant
    assert tensor is not None
    return tensor.numpy()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    for path in (inside / "w.bin", inside / "sub" / "w.bin", tmp_path / "outside.bin"):
        path.write_bytes(WEIGHTS.tobytes())
    return inside


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "sub/w.bin", "sub//w.bin"])
def test_whole_file(directory: Path, location: str) -> None:
    np.testing.assert_array_equal(weight(loaded(directory, {"location": location})), WEIGHTS)


def test_offset_and_length(directory: Path) -> None:
    made = loaded(directory, {"location": "w.bin", "offset": "400", "length": "40", "checksum": "no matter"}, [10])
    np.testing.assert_array_equal(weight(made), WEIGHTS[100:110])


def test_missing_length_takes_what_the_shape_needs(directory: Path) -> None:
    np.testing.assert_array_equal(
        weight(loaded(directory, {"location": "w.bin", "offset": "8"}, [2, 3])).ravel(), WEIGHTS[2:8]
    )


def test_several_tensors_share_one_map(directory: Path) -> None:
    proto = model({"location": "w.bin"})
    second = proto.graph.initializer.add()
    second.CopyFrom(proto.graph.initializer[0])
    second.name = "second"
    onnx.save(proto, directory / "m.onnx")
    graph = load(directory / "m.onnx").graph
    first, other = (graph.initializers[name].constant for name in ("w", "second"))
    assert first is not None and other is not None  # noqa: PT018
    assert first.data.obj is other.data.obj  # type: ignore[union-attr]


def test_onnx_itself_wrote_it(tmp_path: Path) -> None:
    proto = model({"location": "unused"})
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(weight(load(tmp_path / "m.onnx")), WEIGHTS)


def test_shape_inference_sees_small_external_tensors(directory: Path) -> None:
    (directory / "shape.bin").write_bytes(np.array([5, 2], np.int64).tobytes())
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[10] x) => (float[A, B] y) { r = Reshape(x, s) y = Relu(r) }'
    )
    shape = proto.graph.initializer.add(name="s", data_type=7, dims=[2], data_location=TensorProto.EXTERNAL)
    shape.external_data.add(key="location", value="shape.bin")
    onnx.save(proto, directory / "m.onnx")
    assert next(iter(load(directory / "m.onnx").graph)).out.static_shape == (5, 2)


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = OneHot(c, d, v)", 9),
        (f"{', '.join(f'p{i}' for i in range(200))} = Split<axis=0>(x, c) y = Relu(p0)", 13),
        ("p = SplitToSequence<axis=0>(x, c) z = Constant<value_int=0>() y = SequenceAt(p, z)", 17),
    ],
)
def test_shape_inference_sees_long_constants_whose_elements_it_reads(
    directory: Path, body: str, opset: int, as_node: bool
) -> None:
    text = f"g (float[200] x, int64[1] d, float[2] v) => (y) {{ {body} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    long = onnx.numpy_helper.from_array(np.ones(200, np.int64), "c")
    if as_node:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=long))
    else:
        proto.graph.initializer.append(long)
    onnx.save(proto, directory / "m.onnx")
    assert load(directory / "m.onnx").graph.outputs[0].dtype is not None


@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "sub/../../outside.bin",
        "sub/../w.bin",
        "/etc/passwd",
        "C:/w.bin",
        "sub\\w.bin",
        "..",
        "w\0.bin",
    ],
)
def test_paths_that_lead_elsewhere(directory: Path, location: str) -> None:
    with pytest.raises(UnsafeInputError) as caught:
        loaded(directory, {"location": location})
    assert caught.value.exit_code == 6
    assert caught.value.hint


def refused(directory: Path, location: str, match: str) -> None:
    with pytest.raises(UnsafeInputError, match=match) as caught:
        loaded(directory, {"location": location})
    assert caught.value.exit_code == 6
    assert str(directory / "m.onnx") in str(caught.value)


@posix
def test_symbolic_link(directory: Path) -> None:
    (directory / "link.bin").symlink_to("w.bin")
    refused(directory, "link.bin", "symbolic link")


@posix
def test_symbolic_link_to_nowhere(directory: Path) -> None:
    (directory / "link.bin").symlink_to("nowhere")
    refused(directory, "link.bin", "symbolic link")


@posix
def test_symbolic_link_in_the_middle(directory: Path) -> None:
    (directory / "dir").symlink_to("sub")
    refused(directory, "dir/w.bin", "'dir' is a symbolic link")


def test_hard_link(directory: Path) -> None:
    os.link(directory.parent / "outside.bin", directory / "hard.bin")
    refused(directory, "hard.bin", "hard link")


@posix
def test_fifo(directory: Path) -> None:
    os.mkfifo(directory / "fifo")
    refused(directory, "fifo", "not a regular file")


def test_directory(directory: Path) -> None:
    refused(directory, "sub", "not a regular file")


@posix
def test_socket(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        refused(directory, "s", "not a regular file")


@pytest.mark.parametrize(
    ("entries", "shape"),
    [
        ({"offset": "80001"}, [0]),
        ({"offset": "4"}, [20000]),
        ({"length": "80004"}, [20001]),
        ({"offset": "9" * 19, "length": "40"}, [10]),
        ({}, [1 << 40, 1 << 22]),
    ],
)
def test_bytes_beyond_the_file(directory: Path, entries: dict[str, str], shape: list[int]) -> None:
    with pytest.raises(UnsafeInputError, match="which has 80000"):
        loaded(directory, {"location": "w.bin", **entries}, shape)


@pytest.mark.parametrize("number", ["-4", "4.0", "0x4", "٤", "9" * 30, " 4"])
def test_numbers_that_are_none(directory: Path, number: str) -> None:
    with pytest.raises(FormatError, match="not a number"):
        loaded(directory, {"location": "w.bin", "offset": number})


def test_length_that_does_not_fit_the_shape(directory: Path) -> None:
    with pytest.raises(GraphError, match="44 bytes"):
        loaded(directory, {"location": "w.bin", "length": "44"}, [10])


@pytest.mark.parametrize("location", ["gone.bin", "gone/w.bin", "w.bin/w.bin"])
def test_missing_file(directory: Path, location: str) -> None:
    with pytest.raises(ModelError, match="does not exist") as caught:
        loaded(directory, {"location": location})
    assert caught.value.hint


@pytest.mark.parametrize(
    "entries", [{}, {"location": ""}, {"location": "."}, {"location": "\0" + "7"}, {"location": "\0x"}]
)
def test_no_location(directory: Path, entries: dict[str, str]) -> None:
    with pytest.raises(OrtconvError) as caught:
        loaded(directory, entries)
    assert caught.value.exit_code == 3


def test_a_model_from_no_file_has_no_external_data() -> None:
    with pytest.raises(GraphError, match="comes from no file"):
        from_proto(model({"location": "w.bin"}))
