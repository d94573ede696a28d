"""Loading .onnx files that are refused, and old ones that are not: one clear error for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import small_models
from onnx import helper, numpy_helper, parser

from ortconv.errors import FormatError, GraphError, OrtconvError, UnsupportedError, UsageError
from ortconv.ir.verify import verify
from ortconv.onnxio import wire
from ortconv.onnxio.load import from_proto, load
from tests.unoptimized import run

GRAPHS = {
    "y = Relu(nothing)": "Relu 'y': input 'nothing' is not defined",
    "y = Relu(a) a = Neg(y)": "cycle",
    "y = Relu(x) y = Neg(x)": "'y' is defined twice",
    "x = Relu(x) y = Neg(x)": "'x' is defined twice",
    "y = Relu(x) y = Constant<value_int = 1>()": "'y' is defined twice",
    "a, a = Split(x) y = Neg(a)": "'a' is defined twice",
    "z = Relu(x)": "graph output 'y' is not defined",
}


@pytest.mark.parametrize("body", GRAPHS)
def test_invalid_graphs(body: str) -> None:
    with pytest.raises(GraphError, match=GRAPHS[body]):
        small_models.parsed(f"g (float[2] x) => (float[2] y) {{ {body} }}")


def test_attribute_given_twice() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Elu<alpha = 1.0>(x) }'
    )
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    with pytest.raises(GraphError, match="Elu 'y': attribute 'alpha' is given twice"):
        from_proto(proto)


VERSIONS = [
    ('ir_version: 2, opset_import: ["" : 7]', "IR version 2"),
    ('ir_version: 99, opset_import: ["" : 7]', "IR version 99"),
    ('ir_version: 8, opset_import: ["" : 6]', "opset 6"),
    ('ir_version: 8, opset_import: ["" : 999]', "opset 999"),
    ('ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 99]', "opset 99 of 'ai.onnx.ml'"),
]


@pytest.mark.parametrize(("header", "message"), VERSIONS)
def test_versions_out_of_range(header: str, message: str) -> None:
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Add(x, x) }')
    ir, _, imports = header.partition(", opset_import: ")
    proto.ir_version = int(ir.removeprefix("ir_version: "))
    del proto.opset_import[:]
    for entry in imports.strip("[]").split(", "):
        domain, _, version = entry.partition(" : ")
        proto.opset_import.add(domain=domain.strip('"'), version=int(version))
    with pytest.raises(UnsupportedError, match=message) as caught:
        from_proto(proto)
    assert caught.value.hint


@pytest.mark.parametrize("ir", [-5, 0, 1, 2])
def test_an_old_ir_version_is_raised_as_the_hint_says(ir: int) -> None:
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Add(x, x) }')
    proto.ir_version = ir
    with pytest.raises(UnsupportedError, match=f"IR version {ir}") as refused:
        from_proto(proto)
    assert "set its ir_version to 3" in (refused.value.hint or "")
    proto.ir_version = 3
    from_proto(proto)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml", "own"])
def test_an_impossible_opset_is_no_old_one(domain: str) -> None:
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Add(x, x) }')
    del proto.opset_import[:]
    proto.opset_import.add(domain=domain, version=-3)
    with pytest.raises(GraphError, match=r"opset -3 of .* is not a version") as refused:
        from_proto(proto)
    assert refused.value.hint == "opset_import must name the versions it uses"


@pytest.mark.parametrize(("opset", "body"), [(1, "y = MatMul(x, x)"), (6, "r = Relu(x) y = Softmax(r)")])
def test_an_old_operator_set_with_the_same_operators(opset: int, body: str) -> None:
    model = small_models.parsed(
        f"g (float[2,2] x) => (float[2,2] y) {{ {body} }}", f'ir_version: 3, opset_import: ["" : {opset}]'
    )
    assert model.graph.opset() == 7
    assert model.warnings == [f"opset {opset} of ai.onnx is read as 7, in which the model's operators are the same"]


@pytest.mark.parametrize("opset", [1, 4])
def test_a_shape_that_is_an_attribute(opset: int) -> None:
    header = f'ir_version: 3, opset_import: ["" : {opset}]'
    text = "g (float[2,3] x, float y_shape) => (float[N,M] z) { y = Reshape<shape = [0, -1, 1]>(x) z = Reshape<shape = [3, 2]>(y) }"
    model = small_models.parsed(text, header)
    assert model.graph.opset() == 7
    assert [node.inputs[1].name for node in model.graph if node.inputs[1]] == ["y_shape_1", "z_shape"]
    assert [node.out.shape for node in model.graph] == [(2, 3, 1), (3, 2)]
    (warning,) = model.warnings
    assert warning.endswith("are the same, but for the shape of Reshape, which becomes an input")
    proto = parser.parse_model(f"<{header}> {text}")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run(proto, {"x": x, "y_shape": np.array(0, np.float32)})[0].tolist() == x.reshape(3, 2).tolist()


@pytest.mark.parametrize("attributes", ["is_test = 1, ratio = 0.5", "ratio = 0.5", "is_test = 0"])
def test_an_old_dropout_passes_its_input_on(attributes: str) -> None:
    header = 'ir_version: 3, opset_import: ["" : 6]'
    text = f"g (float[2,2] x) => (float[2,2] y) {{ d = Dropout<{attributes}>(x) y = Relu(d) }}"
    assert small_models.parsed(text, header).warnings == [
        "opset 6 of ai.onnx is read as 7, in which the model's operators are the same, but for Dropout, which passes its input on"
    ]
    x = np.array([[1, -2], [3, 4]], np.float32)
    session = onnxruntime.InferenceSession(parser.parse_model(f"<{header}> {text}").SerializeToString())
    assert session.run(None, {"x": x})[0].tolist() == np.maximum(x, 0).tolist()


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (5, "y = Relu(x) z = Add(x, y)"),
        (4, "y = Relu(x)"),
        (6, "y = Unknown(x)"),
        (1, "y = Reshape(x)"),
        (4, "y = Reshape<shape = 2>(x)"),
        (4, "s = Reshape<shape = [4]>(x) y = Relu(s)"),
        (6, "d = Dropout<is_test = 1>(x) y = Add(d, x)"),
        (6, "y = Dropout<training = 1>(x)"),
    ],
)
def test_an_old_operator_set_with_other_operators(opset: int, body: str) -> None:
    with pytest.raises(UnsupportedError, match=f"opset {opset} of 'ai.onnx', the oldest supported is 7"):
        small_models.parsed(
            f"g (float[2,2] x) => (float[2,2] y) {{ {body} }}", f'ir_version: 3, opset_import: ["" : {opset}]'
        )


def test_no_operator_set() -> None:
    proto = small_models.control_flow()
    del proto.opset_import[:]
    with pytest.raises(GraphError, match="imports no operator set"):
        from_proto(proto)


@pytest.mark.parametrize("versions", [(11, 13), (13, 11)])
def test_operator_set_imported_twice(versions: tuple[int, int]) -> None:
    """The last version is used, as in onnxruntime: before version 13, Softmax is over all axes from the given one."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {versions[0]}, "ai.onnx" : {versions[1]}]>
        g (float[1,2,2] x) => (float[1,2,2] y) {{ y = Softmax<axis = 1>(x) }}"""
    )
    model = from_proto(proto)
    assert model.graph.opset() == versions[1]
    assert model.warnings == [f"ai.onnx is imported as {versions[0]} and as {versions[1]}: the last version is used"]
    x = np.zeros((1, 2, 2), np.float32)
    (expected,) = run(proto, {"x": x})
    assert expected[0, 0, 0] == (0.25 if model.graph.opset() < 13 else 0.5)


FILES = {
    "empty": (b"", "is empty"),
    "ort": (b"\x18\0\0\0ORTM" + bytes(100), "ORT-format"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(100), "TensorFlow Lite"),
    "text": (b'ir_version: 8\ngraph { name: "g" }\n', "text form of protobuf"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    "html": (b"\n<!DOCTYPE html><html></html>", "HTML"),
    "json": (b'{"error": 404}', "JSON"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip"),
    "pickle": (b"\x80\x02}q\x00.", "pickle"),
    "noise": (bytes(range(255, 0, -1)), "not a valid ONNX model"),
    "zeros": (bytes(4096), "not a valid ONNX model"),
    "tensor": (numpy_helper.from_array(np.ones(3, np.float32), "t").SerializeToString(), "no.* ONNX model"),
}


@pytest.mark.parametrize("name", FILES)
def test_other_files(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        load(tmp_path / "m.onnx")
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert str(caught.value).startswith(str(tmp_path / "m.onnx"))


def test_truncated_files(tmp_path: Path) -> None:
    data = small_models.shapes().SerializeToString()
    for size in range(1, len(data), 13):
        (tmp_path / "m.onnx").write_bytes(data[:size])
        with pytest.raises(OrtconvError) as caught:
            load(tmp_path / "m.onnx")
        assert caught.value.exit_code == 3


def test_directory_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        load(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "gone.onnx")


def test_names_that_are_no_text() -> None:
    data = small_models.control_flow().SerializeToString().replace(b"Relu", b"Rel\xff")
    with pytest.raises(FormatError, match="not UTF-8"):
        from_proto(onnx.ModelProto.FromString(data))


def nested(levels: int) -> bytes:
    """A serialized model of nested Ifs, with this number of levels."""

    def field(number: int, content: bytes) -> bytes:
        return wire.encode(number << 3 | 2) + wire.encode(len(content)) + content

    def output(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, 1, [2])

    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y0"])], "g", [], [output("y0")]).SerializeToString()
    for level in range(1, levels + 1):
        other = helper.make_graph([helper.make_node("Neg", ["x"], [f"n{level}"])], "n", [], [output(f"n{level}")])
        node = helper.make_node("If", ["c"], [f"y{level}"], then_branch=other).SerializeToString()
        attribute = helper.make_attribute("else_branch", onnx.GraphProto()).SerializeToString()
        node += field(5, attribute + field(6, graph))
        graph = onnx.GraphProto(name="g", output=[output(f"y{level}")]).SerializeToString() + field(1, node)
    inputs = [output("x"), helper.make_tensor_value_info("c", 9, [])]
    graph += onnx.GraphProto(input=inputs).SerializeToString()
    model = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    return model.SerializeToString() + field(7, graph)


def test_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(nested(20))
    graph = load(tmp_path / "m.onnx").graph
    verify(graph)
    assert len(list(graph.graphs())) == 41
    for levels in (40, 400):
        (tmp_path / "m.onnx").write_bytes(nested(levels))
        with pytest.raises(FormatError, match=r"nested deeper|MaxDepth"):
            load(tmp_path / "m.onnx")
