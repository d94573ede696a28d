"""What a plan remembers from a run must hold for every other run with the same shapes."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from single_node import assert_same
from test_node_cases import CASES, RANDOM, _plain

from ortconv.errors import OrtconvError
from ortconv.executor import foreseen
from ortconv.session import Session

I64 = onnx.TensorProto.INT64


def _asking_for_shapes(case):
    """The case with all inputs but the first made constants, returning the shapes of its tensors as well; None without tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph, (inputs, _) = model.graph, case.data_sets[0]
    if not all(v.type.HasField("tensor_type") for v in [*graph.input, *graph.output]) or len(graph.input) != len(
        inputs
    ):
        return None
    fed, *rest = [v.name for v in graph.input]
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(_plain(x)), n) for n, x in zip(rest, inputs[1:], strict=True)
    )
    del graph.input[1:]
    for value in list(graph.output):
        graph.node.append(helper.make_node("Shape", [value.name], [f"{value.name}/shape"]))
        graph.output.append(helper.make_tensor_value_info(f"{value.name}/shape", I64, [None]))
    return model, fed, np.asarray(_plain(inputs[0]))


def _usable(case):
    return not any(n.op_type in RANDOM | {"Dropout", "ImageDecoder"} for n in case.model.graph.node)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if _usable(c) and c.data_sets[0][0]])
def test_second_run_is_right(case, tmp_path):
    asking = _asking_for_shapes(case)
    if asking is None:
        pytest.skip("not tensors alone")
    model, name, x = asking
    path = tmp_path / "case.onnx"
    onnx.save(model, path)
    try:
        warm, fresh = Session(path), Session(path)
        warm.run(None, {name: x})
        other = np.zeros_like(x) if x.dtype != object else x
        want = fresh.run(None, {name: other})
    except (OrtconvError, ValueError):
        pytest.skip("does not run with these inputs")
    for a, b in zip(warm.run(None, {name: other}), want, strict=True):
        assert_same(a, b, 0, 0)


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
    ((program, *_),) = session._programs
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
    assert len(session._programs[0][0]._remembered) == 16


def test_constants_are_computed_once(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[1, 2] w = {1, 2}> {
        t = Transpose(w)
        u = Squeeze(t)
        y = Add(x, u)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    assert [node.op for *_, node in session._programs[0][0].steps] == ["Add"]


def test_a_constant_step_that_fails_fails_in_the_run(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[n] y) <float[2] w = {1, 2}, int64[1] s = {3}> {
        t = Reshape(w, s)
        y = Concat<axis = 0>(x, t)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    with pytest.raises(OrtconvError, match="Reshape"):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_every_operator_named_exists():
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert set(foreseen._SHAPED_BY_VALUES) <= known
    assert known >= foreseen._SHAPED_BY_DATA
