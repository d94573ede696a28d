"""Activation kernels against onnxruntime."""

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel, run_onnxruntime

from ortconv.ir.types import DType
from tests.batches import batched

F16, F32, F64 = np.float16, np.float32, np.float64
MICROSOFT = "com.microsoft"
X = np.concatenate([np.random.default_rng(0).standard_normal(200) * 5, [0, -0.0, 60, -60, np.inf, -np.inf, np.nan]])
ROWS = (np.random.default_rng(1).standard_normal((2, 3, 8)) * 4).astype(F32)
BIAS = np.random.default_rng(2).standard_normal(8).astype(F32)

ACTIVATIONS = [
    ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("Softplus", {}), ("Softsign", {}), ("HardSwish", {}), ("Mish", {}),
    ("LeakyRelu", {}), ("LeakyRelu", {"alpha": 0.3}), ("LeakyRelu", {"alpha": 2.0}), ("LeakyRelu", {"alpha": -0.5}),
    ("Elu", {}), ("Elu", {"alpha": 0.3}), ("Celu", {}), ("Celu", {"alpha": 0.3}),
    ("Selu", {}), ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("HardSigmoid", {}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.1}),
    ("ThresholdedRelu", {}), ("ThresholdedRelu", {"alpha": 2.0}),
    ("Shrink", {}), ("Shrink", {"lambd": 1.0, "bias": 0.5}),
    ("Gelu", {}), ("Gelu", {"approximate": "tanh"}),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("op", "attributes"), ACTIVATIONS)
def test_activation(op, attributes):
    x = X[np.isfinite(X)] if op in ("Gelu", "HardSwish", "Softsign", "Mish") else X
    for values in (x, np.array(-0.3), np.zeros((2, 0))):
        compare(op, [values.astype(F32)], attributes, atol=1e-5)


@batched
@pytest.mark.parametrize(("op", "attributes"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", [F16, DType.BFLOAT16.numpy])
def test_narrow_floats_are_computed_in_float32(op, attributes, dtype):
    x = ROWS.astype(dtype)
    [wide] = run_kernel(op, [x.astype(F32)], attributes)
    [got] = run_kernel(op, [x], attributes)
    assert_same(got, wide.astype(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("slope", [[[0.1], [0.2], [0.3]], 0.1, [[0.5], [2.0], [-1.0]]])
def test_prelu(slope):
    compare("PRelu", [ROWS, np.array(slope, F32)])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Gelu", [ROWS], {}),
        ("BiasGelu", [ROWS, BIAS], {}),
        ("FastGelu", [ROWS], {}),
        ("FastGelu", [ROWS, BIAS], {}),
        ("QuickGelu", [ROWS], {}),
        ("QuickGelu", [ROWS], {"alpha": 1.5}),
    ],
)
def test_microsoft(op, inputs, attributes):
    compare(op, inputs, attributes, domain=MICROSOFT, atol=1e-5)


@pytest.mark.parametrize("opset", [8, 11, 12, 13, 22])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_axes(op, opset):
    rng = np.random.default_rng(0)
    for shape in [(3, 4), (2, 3, 4, 5), (2, 0, 3), (1, 7, 1, 1)]:
        x = (rng.standard_normal(shape) * 10).astype(F32)
        compare(op, [x], opset=opset)
        for axis in range(-len(shape) if opset >= 11 else 0, len(shape)):
            compare(op, [x], {"axis": axis}, opset=opset)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_special_values(op):
    inf = np.inf
    compare(op, [np.array([[-inf, 0, 1], [-inf, -inf, -inf], [inf, 1, 2], [np.nan, 1, 2], [1e4, 0, -1e4]], F32)])


@pytest.mark.parametrize("special", [0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("rows", "axis"), [(3, 1), (3, -1), (40, 1)])
def test_softmax_of_many_rows(rows, axis, special):
    x = np.random.default_rng(0).standard_normal((2, rows, 30, 50)).astype(F32)
    x[0, :2, 3, 4] = special
    x = x if axis == 1 else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    [want] = run_onnxruntime("Softmax", [x], {"axis": axis})
    memory = x if axis == -1 else np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    assert_same(run_kernel("Softmax", [memory], {"axis": axis})[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_float64(op):
    compare(op, [np.random.default_rng(0).standard_normal((3, 4))], rtol=1e-12)


def test_swiglu_is_swish_times_value():
    [gate] = run_kernel("Swish", [ROWS], {"alpha": 1.7}, opset=24)
    [got] = run_kernel("SwiGLU", [ROWS, ROWS[::-1].copy()], {"alpha": 1.7}, opset=28)
    compare("QuickGelu", [ROWS], {"alpha": 1.7}, domain=MICROSOFT)
    assert_same(got, gate * ROWS[::-1])
