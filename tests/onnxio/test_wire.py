"""Cutting payloads out of the wire format: skeleton and payloads together are the model again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ortconv.errors import FormatError
from ortconv.onnxio import wire
from tests.conftest import examples

CASES = examples(60)


def restore(skeleton: wire.Skeleton) -> onnx.ModelProto:
    """The message with every payload put back as raw_data."""
    model = onnx.ModelProto.FromString(skeleton.message)
    pending: list[object] = [model]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            location = message.external_data[0].value
            if location.startswith(wire.MARKER):
                message.raw_data = bytes(skeleton.payloads[int(location[1:])])
                message.ClearField("data_location")
                del message.external_data[:]
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            if field.message_type is not None:
                pending += list(value) if field.is_repeated else [value]
    return model


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    size = draw(st.integers(0, 60))
    kind = draw(st.sampled_from(["raw", "floats", "ints", "strings", "external"]))
    if kind == "raw":
        return helper.make_tensor("t", TensorProto.UINT8, [size], bytes(range(size)), raw=True)
    if kind == "floats":
        return helper.make_tensor("t", TensorProto.FLOAT, [size], np.arange(size, dtype=np.float32))
    if kind == "ints":
        return helper.make_tensor("t", TensorProto.INT64, [size], list(range(-2, size - 2)))
    if kind == "strings":
        return helper.make_tensor("t", TensorProto.STRING, [size], [b"s" * i for i in range(size)])
    made = TensorProto(name="t", data_type=1, dims=[size], data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="location", value="weights" * draw(st.integers(1, 20)))
    return made


@st.composite
def graphs(draw: st.DrawFn, depth: int = 0) -> onnx.GraphProto:
    graph = onnx.GraphProto(name="g" * draw(st.integers(0, 3)))
    graph.initializer.extend(draw(st.lists(tensors(), max_size=3)))
    for dense in draw(st.lists(tensors(), max_size=1)):
        graph.sparse_initializer.add(values=dense, indices=dense, dims=[1 << 40])
    for inner in draw(st.lists(tensors(), max_size=2)):
        node = graph.node.add(op_type="Constant", output=["c"])
        node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(inner)
        node.attribute.add(name="many", type=onnx.AttributeProto.TENSORS).tensors.extend([inner, inner])
    if depth < 2 and draw(st.booleans()):
        node = graph.node.add(op_type="If", doc_string="d" * draw(st.integers(0, 200)))
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(draw(graphs(depth + 1)))
        node.attribute.add(name="all", type=onnx.AttributeProto.GRAPHS).graphs.append(draw(graphs(depth + 1)))
    return graph


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=8, doc_string="x" * draw(st.integers(0, 300)), graph=draw(graphs()))
    if draw(st.booleans()):
        function = model.functions.add(name="f", domain="d")
        function.node.extend(model.graph.node)
        for node in model.graph.node:
            function.attribute_proto.extend(node.attribute)
    model.training_info.add(algorithm=draw(graphs(2)))
    return model


def float_data_as_raw(model: onnx.ModelProto) -> bytes:
    """The model's bytes with float_data as raw_data throughout, so that both notations compare equal."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    pending: list[object] = [copy]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto) and message.float_data:
            message.raw_data = np.array(message.float_data, "<f4").tobytes()
            del message.float_data[:]
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            if field.message_type is not None:
                pending += list(value) if field.is_repeated else [value]
    return copy.SerializeToString(deterministic=True)


@CASES
@given(models(), st.sampled_from([1, 16, 40, 1024]))
def test_skeleton_and_payloads_are_the_model(model: onnx.ModelProto, threshold: int) -> None:
    skeleton = wire.skeleton(memoryview(model.SerializeToString()), threshold)
    assert float_data_as_raw(restore(skeleton)) == float_data_as_raw(model)
    assert all(len(p) >= threshold for p in skeleton.payloads)


@CASES
@given(models())
def test_large_raw_data_is_cut_wherever_it_stands(model: onnx.ModelProto) -> None:
    marked = bytes(range(200, 256)) * 40
    big = helper.make_tensor("big", TensorProto.UINT8, [len(marked)], marked, raw=True)
    model.graph.initializer.append(big)
    for message in [model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.HasField("g"))]:
        message.node.add(op_type="Constant").attribute.add(name="value", type=4).t.CopyFrom(big)
        message.sparse_initializer.add(values=big, indices=big)
    skeleton = wire.skeleton(memoryview(model.SerializeToString()))
    assert marked not in skeleton.message
    assert float_data_as_raw(restore(skeleton)) == float_data_as_raw(model)


@CASES
@given(models(), st.data())
def test_damage_gives_a_format_error_or_a_message(model: onnx.ModelProto, data: st.DataObject) -> None:
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        skeleton = wire.skeleton(memoryview(bytes(content)), 8)
    except FormatError:
        return
    assert sum(map(len, skeleton.payloads)) <= len(content)


def test_payloads_are_views_and_nothing_big_is_copied() -> None:
    array = np.zeros(1 << 20, np.uint8)
    model = onnx.ModelProto(ir_version=8)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.UINT8, [array.size], array.tobytes(), raw=True))
    data = model.SerializeToString()
    skeleton = wire.skeleton(memoryview(data))
    (payload,) = skeleton.payloads
    assert payload.obj is data
    assert len(skeleton.message) < 200


def test_metadata_of_large_nodes_is_left_out() -> None:
    trace = onnx.StringStringEntryProto(key="pkg.torch.onnx.stack_trace", value="t" * wire.THRESHOLD)
    node = helper.make_node("Relu", ["x"], ["y"], name="n", doc_string="why", alpha=1)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    plain = model.SerializeToString()
    model.graph.node[0].metadata_props.append(trace)
    model.graph.metadata_props.append(trace)
    message = onnx.ModelProto.FromString(wire.skeleton(memoryview(model.SerializeToString())).message)
    assert message.graph.node == onnx.ModelProto.FromString(plain).graph.node
    assert list(message.graph.metadata_props) == [trace]


def test_numbers_of_an_attribute_count_as_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree ensemble has several numbers for each of its nodes, which may be millions."""
    monkeypatch.setattr(wire, "MAX_FIELDS", 100)
    ints, floats = [0, 1, -1, 127, 128, 1 << 62, -(1 << 62)] * 400, np.linspace(-9, 9, 3000).tolist()
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", ints=ints, floats=floats)
    data = helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString()
    assert wire.skeleton(memoryview(data)) == wire.Skeleton(data, [])
    value = wire.encode(1 << 3 | 2) + wire.encode(1000) + b"n" * 1000
    for cut_short in (b"\x40\xff", b"\x3d\0\0\0", b"\x40" + b"\xff" * 10 + b"\x01"):
        content = value + b"\x40\x05\x3d\0\0\0\0" * 5 + cut_short
        for field in (5, 1, 7):
            content = wire.encode(field << 3 | 2) + wire.encode(len(content)) + content
        with pytest.raises(FormatError, match="runs beyond the message"):
            wire.skeleton(memoryview(content))


def test_a_model_without_payloads_stays_as_it_is() -> None:
    data = onnx.ModelProto(ir_version=8, producer_name="p" * 5000).SerializeToString()
    assert wire.skeleton(memoryview(data)) == wire.Skeleton(data, [])


def test_messages_nested_too_deep_are_refused() -> None:
    content = b"\0" * 2000
    for level in range(120):
        field = 6 if level % 3 == 0 else 5 if level % 3 == 1 else 1
        content = wire.encode(field << 3 | 2) + wire.encode(len(content)) + content
    content = b"\x3a" + wire.encode(len(content)) + content
    with pytest.raises(FormatError, match="nested deeper than 100"):
        wire.skeleton(memoryview(content))


@pytest.mark.parametrize(
    "content",
    [b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a", b"\x08" + b"\xff" * 11, b"\x3b", b"\x0d\0\0", b"\x01\0"],
    ids=["length", "no length", "endless varint", "group", "fixed32", "field 0"],
)
def test_truncated_fields(content: bytes) -> None:
    with pytest.raises(FormatError):
        wire.skeleton(memoryview(content))
