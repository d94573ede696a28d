"""onnx's node cases in a session that has run before: what its plan remembers and records must hold for other inputs of the same
shapes.
"""

import numpy as np
import onnx
import pytest
from node_cases import RANDOM, node_cases, plain
from onnx import helper, numpy_helper
from single_node import assert_same

from ortconv.errors import OrtconvError
from ortconv.runtime.session import Session

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
        numpy_helper.from_array(np.asarray(plain(x)), n) for n, x in zip(rest, inputs[1:], strict=True)
    )
    del graph.input[1:]
    for value in list(graph.output):
        graph.node.append(helper.make_node("Shape", [value.name], [f"{value.name}/shape"]))
        graph.output.append(helper.make_tensor_value_info(f"{value.name}/shape", I64, [None]))
    return model, fed, np.asarray(plain(inputs[0]))


def _usable(case):
    return not any(n.op_type in RANDOM | {"Dropout", "ImageDecoder"} for n in case.model.graph.node)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in node_cases() if _usable(c) and c.data_sets[0][0]])
def test_later_runs_are_right(case, tmp_path):
    asking = _asking_for_shapes(case)
    if asking is None:
        pytest.skip("not tensors alone")
    model, name, x = asking
    path = tmp_path / "case.onnx"
    onnx.save(model, path)
    try:
        warm = Session(path)
        other = np.zeros_like(x) if x.dtype != object else x
        fresh = [Session(path).run(None, {name: given}) for given in (x, other)]
        warm.run(None, {name: x})
    except (OrtconvError, ValueError):
        pytest.skip("does not run with these inputs")
    for given, want in ((other, fresh[1]), (x, fresh[0]), (other, fresh[1]), (x, fresh[0])):
        for a, b in zip(warm.run(None, {name: given}), want, strict=True):
            assert_same(a, b, 0, 0)
