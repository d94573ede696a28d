"""Sparse initializers: to every kernel they are the dense arrays that they stand for."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortconv.errors import GraphError
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.model_inputs import drawn

DENSE = np.array([[1, 0, 0, 0], [2, 0, 0, 3]], np.float32)


def sparse(name, array, coordinates=False):
    """The elements of an array that are not zero."""
    index = np.argwhere(array) if coordinates else np.flatnonzero(array)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(array[array != 0], name), numpy_helper.from_array(index.astype(np.int64)), array.shape
    )


def model(nodes, inputs, outputs=("y",), arrays=None, coordinates=False, dtype=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs],
        [helper.make_tensor_value_info(n, dtype, None) for n in outputs],
    )
    graph.sparse_initializer.extend(
        sparse(n, a, coordinates) for n, a in ({"w": DENSE} if arrays is None else arrays).items()
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(proto):
    return drawn(proto, lambda rng, shape, dtype: np.ones(shape) if dtype.kind == "i" else rng.standard_normal(shape))


OPERATORS = {
    "MatMul": (["x", "w"], (4, 2), {}),
    "MatMul of it": (["w", "x"], (4, 2), {}),
    "Add": (["x", "w"], (2, 4), {}),
    "Gemm": (["x", "w"], (4, 2), {}),
    "Gemm plus it": (["x", "u", "w"], (2, 3), {}),
    "Mul": (["x", "w"], (2, 4), {}),
    "Concat": (["x", "w"], (2, 4), {"axis": 0}),
    "Where": (["c", "x", "w"], (2, 4), {}),
    "Transpose": (["w"], (2, 4), {}),
    "Identity": (["w"], (2, 4), {}),
    "Relu": (["w"], (2, 4), {}),
}
MORE = {"u": np.eye(3, 4, dtype=np.float32)}


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operands(name, coordinates):
    inputs, shape, attributes = OPERATORS[name]
    fed = [("x", TensorProto.FLOAT, shape), ("c", TensorProto.BOOL, (2, 4))]
    node = helper.make_node(name.split()[0], inputs, ["y"], **attributes)
    arrays = {"w": DENSE} | ({"u": MORE["u"]} if "u" in inputs else {})
    proto = model([node], [f for f in fed if f[0] in inputs], arrays=arrays, coordinates=coordinates)
    given = feeds(proto)
    session = Session(from_proto(proto))
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, given)[0], unoptimized.run(proto, given)[0], 1e-6)


def test_what_operators_must_know_beforehand():
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Slice", ["b", "from", "to"], ["c"]),
        helper.make_node("Pad", ["c", "p"], ["d"]),
        helper.make_node("Tile", ["d", "r"], ["y"]),
    ]
    arrays = {
        "w": DENSE, "i": np.array([0, 1, 1]), "s": np.array([4, 3]), "from": np.array([1]), "to": np.array([4]),
        "p": np.array([0, 1, 2, 0]), "r": np.array([1, 2]),
    }  # fmt: skip
    proto = model([*nodes, helper.make_node("Add", ["x", "y"], ["z"])], [("x", TensorProto.FLOAT, (1,))], ["z"], arrays)
    np.testing.assert_allclose(
        Session(from_proto(proto)).run(None, feeds(proto))[0], unoptimized.run(proto, feeds(proto))[0]
    )


def test_outputs_and_subgraphs():
    """As an output of the graph, read and returned by the branches of an If, and their own."""
    kind = [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    then = helper.make_graph([helper.make_node("Add", ["own", "w"], ["t"])], "then", [], kind)
    then.sparse_initializer.append(sparse("own", DENSE))
    other = helper.make_graph([], "else", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, [2, 4])])
    other.sparse_initializer.append(sparse("e", 2 * DENSE))
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    loaded = from_proto(model([node], [("c", TensorProto.BOOL, ())]))
    loaded.graph.set_outputs([*loaded.graph.outputs, loaded.graph.initializers["w"]])
    session = Session(loaded)
    for taken in (True, False):
        y, w = session.run(None, {"c": np.array(taken)})
        np.testing.assert_array_equal(y, 2 * DENSE)
        np.testing.assert_array_equal(w, DENSE)


def test_constant_nodes_and_types():
    for dtype in (np.float16, np.float64, np.int32):
        array = DENSE.astype(dtype)
        value = sparse("", array)
        nodes = [
            helper.make_node("Constant", [], ["w"], sparse_value=value),
            helper.make_node("Mul", ["x", "w"], ["y"]),
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        proto = model(nodes, [("x", kind, (2, 4))], arrays={"unused": DENSE}, dtype=kind)
        x = np.full((2, 4), 3, dtype)
        np.testing.assert_array_equal(Session(from_proto(proto)).run(None, {"x": x})[0], 3 * array)


@pytest.mark.parametrize("backend", ["nnapi", "onnxruntime"])
def test_other_backends(backend):
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    proto = model(nodes, [("x", TensorProto.FLOAT, (2, 4))])
    session = Session(from_proto(proto), [backend])
    assert [name for name, _ in session.regions] == [backend]
    np.testing.assert_allclose(session.run(None, feeds(proto))[0], unoptimized.run(proto, feeds(proto))[0], 1e-5)


@pytest.mark.parametrize(
    ("values", "indices", "dims", "reason"),
    [
        ([], [0, 4, 7], [2, 4], "do not fit"),
        ([1, 2], [0, 4, 7], [2, 4], "do not fit"),
        ([[1], [2]], [0, 4], [2, 4], "do not fit"),
        ([1], [[0, 1, 2]], [2, 4], "do not fit"),
        ([1], [[]], [], "do not fit"),
        ([1, 2], [0, 8], [2, 4], r"outside \[8\]"),
        ([1, 2], [0, -1], [2, 4], r"outside \[8\]"),
        ([1], [[1, 4]], [2, 4], r"outside \[2, 4\]"),
        ([1], [0], [-2, 4], "negative dimension"),
        ([1], [0.0], [2, 4], "not integers"),
    ],
)
def test_contradictions_are_refused(values, indices, dims, reason):
    index = np.array(indices)
    constant = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32), "w"), numpy_helper.from_array(index), dims
    )
    proto = model([helper.make_node("Identity", ["w"], ["y"])], [], arrays={})
    proto.graph.sparse_initializer.append(constant)
    with pytest.raises(GraphError, match=f"sparse constant 'w': .*{reason}|tensor 'w' .*{reason}"):
        Session(from_proto(proto))
