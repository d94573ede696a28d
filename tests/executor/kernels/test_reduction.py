"""Reductions against onnxruntime."""

import numpy as np
import pytest
from single_node import compare, run_kernel

from tests.batches import batched, sampled

F16, F32, F64, I8, I32, I64, U8 = np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(F32)
AXES = [None, (0,), (1, 2), (-1,), (2, 3), (0, 1, 2, 3), (0, 2), (1, -3, 1)]
OPS = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip
TYPES = {op: [F32, F64, I32, I64] if op in ("ReduceSum", "ReduceMax", "ReduceMin") else [F32, I32] for op in OPS}
TYPES["ReduceLogSumExp"] = [F32, F64]
TYPES["ReduceMax"] = TYPES["ReduceMin"] = [F32, F64, I8, I32, I64, U8, bool]


def _values(op, dtype):
    return (np.abs(X) * 3 + 1 if op == "ReduceLogSum" else X * 3).astype(dtype)


@sampled(4)
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op in OPS for dtype in TYPES[op]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(op, dtype, keepdims):
    x = _values(op, dtype)
    for axes in AXES:
        inputs = [x] if axes is None else [x, np.array(axes)]
        compare(op, inputs, {"keepdims": keepdims}, opset=20, rtol=1e-4)
        if dtype in (F32, I32):
            attributes = {"keepdims": keepdims} if axes is None else {"keepdims": keepdims, "axes": axes}
            compare(op, [x], attributes, opset=11, rtol=1e-4)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_sums_in_any_memory_order(order, keepdims):
    x = np.random.default_rng(1).standard_normal([(3, 24, 16, 20)[i] for i in order]).astype(F32)
    x = x.transpose(np.argsort(order))
    for axes in [*AXES[1:], (1,), (2,), (1, 2, 3), (0, 1), (3, 2)]:
        compare("ReduceMean", [x, np.array(axes)], {"keepdims": keepdims}, opset=20, rtol=1e-5, atol=1e-6)


@batched
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("op", OPS)
def test_no_axes(op, noop):
    x = _values(op, F32)
    compare(op, [x], {"noop_with_empty_axes": noop}, opset=20, rtol=1e-4)
    compare(op, [x, np.zeros(0, I64)], {"noop_with_empty_axes": noop}, opset=20, rtol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_scalars_and_empty_tensors(op):
    compare(op, [np.array(3, F32)], opset=20)
    compare(op, [np.zeros((2, 0, 4), F32), np.array([0])], opset=20)
    if op not in ("ReduceMax", "ReduceMin"):
        compare(op, [np.zeros((2, 0, 4), F32), np.array([1])], opset=20)


@pytest.mark.parametrize(
    ("op", "dtype", "want"),
    [("ReduceMax", F32, -np.inf), ("ReduceMin", F32, np.inf), ("ReduceMax", U8, 0), ("ReduceMin", I32, 2**31 - 1)],
)
def test_extremes_of_nothing(op, dtype, want):
    [got] = run_kernel(op, [np.zeros((2, 0), dtype), np.array([1])], {"keepdims": 0}, opset=20)
    assert got.dtype == dtype
    assert got.tolist() == [want, want]


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2"])
@pytest.mark.parametrize("numbers", [[-(2**31)], [50000, 50000], [2**30, 2**30, 2**30]])
def test_norms_of_large_integers(op, numbers):
    compare(op, [np.array(numbers, I32)], opset=20)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceL2"])
def test_long_rows_infinities_and_float16(op):
    rng = np.random.default_rng(0)
    inf = np.inf
    rows = [[inf, 1], [-inf, 1], [np.nan, 2], [-inf, -inf]]
    compare(op, [np.array(rows, F32), np.array([1])], opset=20)
    compare(op, [rng.standard_normal((3, 10000)).astype(F32), np.array([1])], opset=20, rtol=1e-4, atol=1e-3)
    half = np.abs(rng.standard_normal((3, 100))).astype(F16)
    [got] = run_kernel(op, [half, np.array([1])], opset=20)
    [wide] = run_kernel(op, [half.astype(F32), np.array([1])], opset=20)
    assert got.dtype == F16
    assert got.tolist() == wide.astype(F16).tolist()


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_memory_order_does_not_matter(op):
    [got] = run_kernel(op, [X.transpose(0, 3, 1, 2), np.array([2, 3])], opset=20)
    [want] = run_kernel(op, [np.ascontiguousarray(X.transpose(0, 3, 1, 2)), np.array([2, 3])], opset=20)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@batched
@pytest.mark.parametrize("select_last", [0, 1])
@pytest.mark.parametrize("dtype", [F32, F64, I8, I32, U8])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg(op, dtype, select_last):
    x = np.random.default_rng(0).integers(-2, 3, (3, 4, 5)).astype(dtype)
    for axis in (0, 1, -1):
        for keepdims in (0, 1):
            compare(op, [x], {"axis": axis, "keepdims": keepdims, "select_last_index": select_last})
