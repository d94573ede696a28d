"""What a plan remembers from a run must hold for every other run with the same shapes."""

import numpy as np
import onnx
import pytest

from ortconv.errors import OrtconvError
from ortconv.runtime.session import Session

REPEATED = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, m] x) => (float[k] y) {
    s = Shape(x)
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    n = Gather(s, zero)
    two = Add(one, one)
    rest = Slice(s, one, two)
    size = Mul(n, rest)
    y = Reshape(x, size)
}"""


def _run(session, *shape):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x.reshape(-1))


def test_shapes_are_computed_once_per_shape(tmp_path):
    onnx.save(onnx.parser.parse_model(REPEATED), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    ((program, *_),) = session._main.programs
    _run(session, 2, 3)
    ((_, steps),) = program._remembered.values()
    assert [node.op for *_, node in steps] == ["Reshape"]
    for shape in ((2, 3), (4, 5), (2, 3), (0, 7)):
        _run(session, *shape)


def test_remembers_few_signatures(tmp_path):
    onnx.save(onnx.parser.parse_model(REPEATED), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for n in range(1, 40):
        _run(session, n, 2)
    assert len(session._main.programs[0][0]._remembered) == 16


def test_constants_are_computed_once(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[1, 2] w = {1, 2}> {
        t = Transpose(w)
        u = Squeeze(t)
        y = Add(x, u)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    assert [step.node.op for step in session._main.programs[0][0].steps] == ["Add"]


def test_a_constant_step_that_fails_fails_in_the_run(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[n] y) <float[2] w = {1, 2}, int64[1] s = {3}> {
        t = Reshape(w, s)
        y = Concat<axis = 0>(x, t)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    with pytest.raises(OrtconvError, match="Reshape"):
        session.run(None, {"x": np.zeros(2, np.float32)})
