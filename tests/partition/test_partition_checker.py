"""Where ONNX Runtime's mobile usability checker answers something else, and that it is for what it leaves out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime.tools.mobile_helpers.usability_checker import check_nnapi_partitions
from partition_graphs import SCALE, ZERO, f32, make, taken_ops
from usability import check_case, unexplained

from ortconv.ir.model import Model
from ortconv.onnxio.proto import model_proto
from ortconv.partition import Target, partition
from tests.arrays import i64
from tests.partition.test_partition_aware import MODELS, slow

# Inputs, nodes, outputs, constants; operators that the checker's partitions have, and ours; the rule that makes the difference.
CASES = {
    "it does not look at ranks": (
        "float[1,3,8] x", "a = Conv (x, w)  y = Relu (a)", "y", {"w": f32(4, 3, 3)},
        [["Conv", "Relu"]], [["Relu"]], {"Conv": "rank"},
    ),
    "it does not ask for constants": (
        "float[1,3,8,8] x, float[4,3,3,3] w", "a = Conv (x, w)  y = Relu (a)", "y", {},
        [["Conv", "Relu"]], [["Relu"]], {"Conv": "constant"},
    ),
    "it does not look at types": (
        "int64[2,3] x", "a = Reshape (x, shape)  y = Concat <axis = 0> (a, a)", "y", {"shape": i64(3, 2)},
        [["Reshape", "Concat"]], [], {"Reshape": "dtype", "Concat": "dtype"},
    ),
    "it does not look at attributes": (
        "float[1,4] x", "a = Clip (x, lo, hi)  y = Relu (a)", "y", {"lo": np.float32(0), "hi": np.float32(5)},
        [["Clip", "Relu"]], [["Relu"]], {"Clip": "attribute"},
    ),
    "it does not keep QDQ groups together": (
        "uint8[1,4] x", "a = DequantizeLinear (x, s, z)  b = Tanh (a)  y = QuantizeLinear (b, s, z)", "y", {"s": SCALE, "z": ZERO},
        [["DequantizeLinear", "Tanh", "QuantizeLinear"]], [],
        {"DequantizeLinear": "qdq", "Tanh": "qdq", "QuantizeLinear": "qdq"},
    ),
    "it does not stop at stop ops": (
        "float[1,4,4] x, float[1,1,4] v",
        "n = NonMaxSuppression (x, v, k)  c = Shape (n)  f = Cast <to = 1> (c)  y = Neg (f)  w = Neg (x)",

        "y w", {"k": i64(3)}, [["Neg", "Cast", "Neg"]], [["Neg"]], {"Cast": "stop-op"},
    ),
    "it keeps partitions that only relabel memory": (
        "float[1,4] x", "a = Erf (x)  b = Reshape (a, shape)  y = Erf (b)", "y", {"shape": i64(4)},
        [["Reshape"]], [], {"Reshape": "trivial"},
    ),
    "it takes an input that is left out for one of unknown shape": (
        "float[1,3,4,4] x",
        'a = Relu (x)  y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (a, , scales)', "y",
        {"scales": np.array([1, 1, 2, 2], np.float32)}, [["Relu"]], [["Relu", "Resize"]], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_checker_leaves_out(name):
    inputs, nodes, outputs, constants, theirs, ours, rules = CASES[name]
    check_case(make(inputs, nodes, outputs, **constants), Target(), check_nnapi_partitions, theirs, ours, rules)


def test_it_fails_at_a_transpose_without_attributes():
    graph = make("float[2,3] x", "a = Transpose (x)  y = Relu (a)")
    with pytest.raises(IndexError):
        check_nnapi_partitions(onnx.shape_inference.infer_shapes(model_proto(Model(graph))), True)
    assert taken_ops(partition(graph)) == [["Transpose", "Relu"]]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=slow(path)) for path in MODELS])
def test_whole_models_differ_only_by_what_the_checker_leaves_out(path):
    assert list(unexplained(path, Target(), check_nnapi_partitions, {})) == []
