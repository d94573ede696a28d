"""Pictures of NNAPI models: frames of steps and of control flow, in SVG and DOT."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from nnapi_models import Builder, chain, choosing, compiled, counting_to, device, tensor

from ortconv import nnapi
from ortconv.nnapi import Operation
from ortconv.report.blocks import Frame, dot, svg
from ortconv.report.nnapi.picture import model_frame, plan_frame
from ortconv.report.outline import Box

NASTY = 'a"\\N\n<b>&\x1b[0m\x00]'


def tree(item: Box | Frame) -> object:
    """Labels of frames with what is in them, and the first lines of boxes."""
    return {item.label: [tree(one) for one in item.items]} if isinstance(item, Frame) else item.lines[0]


def joined(frame: Frame) -> list[tuple[object, object]]:
    """The lines of a frame as first lines of their ends."""
    names = [one.label if isinstance(one, Frame) else one.lines[0] for one in frame.items]
    return [(names[line.source], names[target]) for line in frame.lines for target in line.targets]


def split(*codes: Operation) -> Frame:
    """A chain whose additions run on an accelerator, the rest on the CPU."""
    with nnapi.registered(device("npu", "ADD")):
        return plan_frame(compiled(chain(*codes)).plan, "m", {0: "x"})


def test_a_model_on_one_device() -> None:
    frame = split(Operation.ADD, Operation.ADD)
    assert tree(frame) == {"m": ["x", "ADD", "ADD", "%4"]}
    assert joined(frame) == [("x", "ADD"), ("ADD", "ADD"), ("ADD", "%4")]
    assert [one.kind for one in frame.items] == ["input", "accelerator", "accelerator", "output"]
    box = frame.items[1]
    assert isinstance(box, Box)
    assert box.lines == ("ADD", "4")
    assert "in: %0 TENSOR_FLOAT32[4]  # x" in box.title.splitlines()


def test_steps_are_frames_with_operands_of_the_whole_model() -> None:
    frame = split(Operation.ADD, Operation.RELU)
    assert tree(frame) == {
        "m": ["x", {"step 0 on npu": ["x", "ADD", "%2"]}, {"step 1 on nnapi-reference": ["%2", "RELU", "%3"]}, "%3"]
    }
    assert joined(frame) == [
        ("x", "step 0 on npu"),
        ("step 0 on npu", "step 1 on nnapi-reference"),
        ("step 1 on nnapi-reference", "%3"),
    ]
    assert [one.kind for one in frame.items] == ["input", "accelerator", "cpu", "output"]


CHOOSING = [{"then": ["%0", "ADD", "%2"]}, {"else": ["%0", "MUL", "%2"]}]
COUNTING = [{"condition": ["%0", "LESS", "%2"]}, {"body": ["%0", "ADD", "%3"]}]


@pytest.mark.parametrize(
    ("model", "label", "inside"),
    [(choosing(tensor(2)), "IF", CHOOSING), (counting_to(5), "WHILE", COUNTING)],
    ids=["IF", "WHILE"],
)
def test_control_flow_has_the_models_in_it(model: nnapi.Model, label: str, inside: object) -> None:
    frame = model_frame(model, "m", {})
    (flow,) = (one for one in frame.items if isinstance(one, Frame))
    assert tree(flow) == {label: inside}
    assert ("%0", label) in joined(frame)


def test_control_flow_in_steps() -> None:
    with nnapi.registered(device("npu", "ADD")):
        frame = plan_frame(compiled(choosing(tensor(2))).plan, "m", {})
    assert tree(frame) == {
        "m": [
            "%0",
            "%1",
            {
                "step 0: IF": [
                    {"then": ["%0", {"step 1 on npu": ["%0", "ADD", "%2"]}, "%2"]},
                    {"else": ["%0", {"step 3 on nnapi-reference": ["%0", "MUL", "%2"]}, "%2"]},
                ]
            },
            "%4",
        ]
    }


def test_names_are_escaped() -> None:
    b = Builder()
    x = b.operand(tensor(4))
    frame = model_frame(b.finish([x], [b.operation(Operation.RELU, [x], tensor(4))]), NASTY, {0: NASTY})
    for dark in (False, True):
        texts = [one.text or "" for one in ElementTree.fromstring(svg(frame, dark=dark)).iter()]
        assert any('a"\\N' in text and "<b>&" in text for text in texts)
    written = dot(frame)
    assert 'label="a\\"\\\\N\\n<b>&\ufffd[0m\ufffd]"' in written
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", written + svg(frame))


def test_dot_has_clusters_and_lines_between_them() -> None:
    written = dot(split(Operation.ADD, Operation.RELU))
    assert written.count("{") == written.count("}") == 4
    assert "n_1_0 -> n_2_0 [ltail=cluster_n_1, lhead=cluster_n_2, tooltip=" in written
    assert "n_0 -> n_1_0 [lhead=cluster_n_1, tooltip=" in written
    nodes, ends = set(re.findall(r"^ *(n_\w+) \[", written, re.M)), re.findall(r"(n_\w+) -> (n_\w+)", written)
    assert {end for pair in ends for end in pair} <= nodes


def test_frames_hold_what_is_in_them() -> None:
    root = ElementTree.fromstring(svg(split(Operation.ADD, Operation.RELU, Operation.ADD)))
    rects = [
        {key: float(r.get(key, 0)) for key in ("x", "y", "width", "height")}
        for r in root.iter()
        if r.get("class", "").startswith("area")
    ]
    outer, *inner = rects
    assert len(inner) == 3
    for one in inner:
        assert outer["x"] < one["x"]
        assert one["x"] + one["width"] < outer["x"] + outer["width"]
        assert outer["y"] < one["y"]
        assert one["y"] + one["height"] < outer["y"] + outer["height"]
    assert all(one["y"] + one["height"] < below["y"] for one, below in pairwise(inner))


@pytest.mark.slow
def test_a_model_of_many_operations() -> None:
    frame = model_frame(chain(*[Operation.RELU] * 2000), "m", {})
    assert svg(frame).count("<title>RELU") == 2000
    assert dot(frame).count(" -> ") == 2001
