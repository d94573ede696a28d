"""What a plan costs: its memory, its calls, and what it holds on to."""

import gc
import os
import tracemalloc
import weakref

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

from ortconv.executor import plan
from ortconv.executor.algorithms.conv import once
from ortconv.executor.constants import Constants
from ortconv.executor.fusion.elementwise_ops import Instruction, Literal, Temporary
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.kernels import evaluate
from ortconv.executor.replay.work import AT_ONCE
from ortconv.runtime.session import Session
from tests.counting import calls

RNG = np.random.default_rng(11)


def _session(path, text, **weights):
    graph = parse_graph(text)
    graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return Session(path)


def f32(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize(("kind", "dtype", "most"), [("int64", np.int64, 1000 + 60), ("float", np.float32, 1000)])
def test_a_step_costs_few_calls_and_a_fused_one_none(kind, dtype, most, tmp_path):
    nodes = " ".join(f"v{i + 1} = Add(v{i}, c)" for i in range(1000))
    session = _session(tmp_path / "m.onnx", f"g ({kind} v0) => ({kind} v1000) {{ {nodes} }}", c=np.array(1, dtype))
    feeds = {"v0": np.array(5, dtype)}
    for _ in range(3):
        assert session.run(None, feeds)[0] == 1005
    assert calls(lambda: session.run(None, feeds)) < most


def test_planning_looks_a_kernel_up_to_place_and_to_bind_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(evaluate, "lookup", lambda *key, old=evaluate.lookup: asked.append(key) or old(*key))
    nodes = " ".join(f"v{i + 1} = Sin(v{i})" for i in range(100))
    _session(tmp_path / "m.onnx", f"g (float[2] v0) => (float[2] v100) {{ {nodes} }}")
    assert len(asked) == 2 * 100


CONVOLUTION = """g (float[1, 256, 8, 8] x) => (float y) {
    a = Conv(x, w) b = Relu(a) c = GlobalAveragePool(b) d = Flatten(c) y = MatMul(d, m) }"""


@pytest.mark.parametrize("shift", range(4))
def test_weights_are_held_once(tmp_path, shift):
    w, m = f32(1024, 256, 1, 1), f32(1024, 512)
    session = _session(tmp_path / "m.onnx", CONVOLUTION.replace("g (", "g" * (1 + shift) + " ("), w=w, m=m)
    feeds = {"x": f32(1, 256, 8, 8)}
    session.run(None, feeds)
    del session
    tracemalloc.start()
    try:
        session = Session(tmp_path / "m.onnx")
        session.run(None, feeds)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    copies = 1.2 if os.name == "posix" else 2.2  # Windows holds the file as well
    assert held < copies * (w.nbytes + m.nbytes)


def test_memory_is_free_as_soon_as_the_session_goes(tmp_path):
    session = _session(tmp_path / "m.onnx", CONVOLUTION, w=f32(1024, 256, 1, 1), m=f32(1024, 64))
    session.run(None, {"x": f32(1, 256, 8, 8)})
    program = weakref.ref(session._main.programs[0][0].steps[0].function)
    gc.disable()
    try:
        del session
        assert program() is None
    finally:
        gc.enable()


def test_large_constants_are_aligned_only_on_request(tmp_path):
    w = f32(3, 40_000)
    found = set()
    for name in ("g", "gg", "ggg", "gggg"):
        session = _session(tmp_path / f"{name}.onnx", f"{name} (float[3] x) => (float y) {{ y = MatMul(x, w) }}", w=w)
        constants = Constants()
        (value,) = session.model.graph.initializers.values()
        found.add(constants(value).flags.aligned)
        assert constants.align(value).flags.aligned
        assert constants(value) is constants.align(value)
        np.testing.assert_array_equal(constants(value), w)
        constants.forget()
        np.testing.assert_array_equal(constants(value), w)
    assert found == {False, True}


def test_folded_constants_are_made_again_when_they_are_forgotten(tmp_path):
    text = "g (float[4] x) => (float y) { t = Transpose(w) u = Neg(t) y = MatMul(x, u) }"
    session = _session(tmp_path / "m.onnx", text, w=f32(3, 4))
    transpose, negate, _ = session.model.graph
    constants = Constants()
    for node in (transpose, negate):
        assert constants.fold(node, lambda n: plan._bind(constants, n))
    before = constants(negate.out)
    constants.forget()
    again = constants(negate.out)
    assert again is not before
    np.testing.assert_array_equal(again, before)


def test_once_makes_one_call_and_lets_go_of_its_arguments():
    made = []
    array = f32(3)
    gone = weakref.ref(array)
    result = once(lambda x: made.append(x.sum()) or len(made), array)
    del array
    assert gone() is not None
    assert [result(), result()] == [1, 1]
    assert gone() is None


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ((1, 58, 28, 28), 2842),
        ((2, 96, 56, 56), 2688),
        ((1, 7, 197, 3), 4137),
        ((1, 1, 300, 5), 0),
        ((3, 70_000, 1, 2), 0),
    ],
)
def test_numbers_per_channel_repeat_in_short_rows(shape, row):
    x, y = Temporary(), Temporary()
    factor, summand = f32(1, shape[1], 1, 1), f32(1)
    scaled = Instruction(np.multiply, (x, Literal(factor)), y)
    program = BlockProgram([scaled, Instruction(np.add, (y, Literal(summand)), Temporary())], x, [])
    image = f32(shape[0], *shape[2:], shape[1]).transpose(0, 3, 1, 2)
    expected = image * factor + summand
    np.testing.assert_array_equal(program.run(AT_ONCE, image, []), expected)
    assert program._layout(image, program._constants).row == row
