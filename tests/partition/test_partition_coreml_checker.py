"""Where ONNX Runtime's mobile usability checker answers something else for CoreML, and that it is for what it leaves out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from onnxruntime.tools.mobile_helpers.usability_checker import check_coreml_partitions
from partition_graphs import f32, make
from usability import check_case, unexplained

from ortconv.choices import COREML_FORMATS
from ortconv.partition import Target
from tests.arrays import i64
from tests.partition.test_partition_aware import MODELS, slow

NN, MLP = COREML_FORMATS
LISTS = {NN: "coreml_supported_neuralnetwork_ops.md", MLP: "coreml_supported_mlprogram_ops.md"}
LISTED = {
    NN: {
        "Cast": "has no layer in this format",
        "HardSigmoid": "is missing",
        "Identity": "is missing",
        "ReduceMean": "is missing, ReduceSum stands there with a dot",
        "Tile": "is missing",
    },
    MLP: {"Gather": "is missing", "BatchNormalization": "is missing"},
}
X = "float[1,4,8,8] x"

# Format, inputs, nodes, outputs, constants; operators of the checker's partitions and of ours; the rule that makes the difference.
CASES = {
    "it does not look at ranks": (
        NN, "float[1,4,8] x", "a = MaxPool <kernel_shape = [2]> (x)  y = Relu (a)", "y", {},
        [["MaxPool", "Relu"]], [["Relu"]], {"MaxPool": "rank"},
    ),
    "it does not ask for constants": (
        NN, "float[2,4] x, float[4,3] b", "a = MatMul (x, b)  y = Relu (a)", "y", {},
        [["MatMul", "Relu"]], [["Relu"]], {"MatMul": "constant"},
    ),
    "it does not look at types": (
        NN, "int64[2,3] x", "a = Add (x, x)  y = Mul (a, x)", "y", {}, [["Add", "Mul"]], [], {"Add": "dtype", "Mul": "dtype"},
    ),
    "it does not look at attributes": (
        NN, X, "a = AveragePool <kernel_shape = [2, 2], ceil_mode = 1> (x)  y = Relu (a)", "y", {},
        [["AveragePool", "Relu"]], [["Relu"]], {"AveragePool": "attribute"},
    ),
    "it does not look at the size of dimensions": (
        NN, "float[1,1,20000] x", "y = Conv (x, w)", "y", {"w": f32(1, 1, 1)}, [["Conv"]], [], {"Conv": "dimension"},
    ),
    "it casts in a format without casts": (
        NN, "int64[2] x", "a = Cast <to = 1> (x)  y = Relu (a)", "y", {}, [["Cast", "Relu"]], [["Relu"]], {"Cast": "operator"},
    ),
    "its list has ReduceSum with a dot": (
        NN, "float[2,3] x", "a = ReduceSum (x)  y = Relu (a)", "y", {}, [["Relu"]], [["ReduceSum", "Relu"]], {},
    ),
    "its list has Argmax with a small letter": (
        MLP, "float[2,3] x", "a = ArgMax (x)  y = Cast <to = 6> (a)", "y", {}, [["Cast"]], [["ArgMax", "Cast"]], {},
    ),
    "its list lacks Gather": (
        MLP, "float[2,3] x", "a = Gather (x, i)  y = Relu (a)", "y", {"i": i64(0)}, [["Relu"]], [["Gather", "Relu"]], {},
    ),
    "its list lacks BatchNormalization": (
        MLP, X, "a = BatchNormalization (x, k, k, k, k)  y = Relu (a)", "y", {"k": f32(4)},
        [["Relu"]], [["BatchNormalization", "Relu"]], {},
    ),
    "its list lacks Pad": (
        MLP, X, "a = Pad (x, p)  y = Relu (a)", "y", {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)}, [["Relu"]], [["Pad", "Relu"]], {},
    ),
    "it keeps partitions that compute next to nothing": (
        MLP, "float[2,3] x", "a = Ceil (x)  y = Identity (a)", "y", {}, [["Ceil", "Identity"]], [],
        {"Ceil": "trivial", "Identity": "trivial"},
    ),
    "it refuses an input that is left out": (
        NN, X, 'a = Relu (x)  y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (a, , scales)', "y",
        {"scales": np.array([1, 1, 2, 2], np.float32)}, [["Relu"]], [["Relu", "Resize"]], {},
    ),
}  # fmt: skip


def checker(form):
    return partial(check_coreml_partitions, config_filename=LISTS[form])


@pytest.mark.parametrize("name", CASES)
def test_what_the_checker_leaves_out(name):
    form, inputs, nodes, outputs, constants, theirs, ours, rules = CASES[name]
    graph, target = make(inputs, nodes, outputs, **constants), Target("coreml", coreml_format=form)
    check_case(graph, target, checker(form), theirs, ours, rules)


@pytest.mark.parametrize("form", COREML_FORMATS)
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=slow(path)) for path in MODELS])
def test_whole_models_differ_only_by_what_the_checker_leaves_out(path, form):
    assert list(unexplained(path, Target("coreml", coreml_format=form), checker(form), LISTED[form])) == []
