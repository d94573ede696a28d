"""Gather, scatter, selection, sorting and running totals against onnxruntime."""

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel, run_onnxruntime

from ortconv.ir.types import DType
from tests.arrays import i64
from tests.batches import batched

F32, F64, I32, I64, U8 = np.float32, np.float64, np.int32, np.int64, np.uint8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype(F32)
TEXT = np.array([["a", "bb"], ["ccc", "d"]], object)


@pytest.mark.parametrize("axis", range(-4, 4))
def test_gather_axes(axis):
    for indices in (i64(0, 1, -1), np.array(1, I32), np.zeros((2, 0), I64), np.array([[0, 1], [1, 0]])):
        compare("Gather", [X, indices], {"axis": axis})


def test_gather_strings():
    compare("Gather", [TEXT, i64(1, 0)], {"axis": 1})
    [got] = run_kernel("Gather", [TEXT[0], np.array(1)])
    assert got.shape == ()
    assert got.item() == "bb"


@pytest.mark.parametrize("axis", range(-4, 4))
def test_gather_elements(axis):
    rng = np.random.default_rng(0)
    for shape in [(2, 2, 3, 4), X.shape]:
        compare("GatherElements", [X, rng.integers(-2, 2, shape)], {"axis": axis})


def test_gather_elements_may_be_longer_than_the_data():
    compare("GatherElements", [X, np.random.default_rng(0).integers(0, 4, (2, 3, 7, 5))], {"axis": 2})
    compare("GatherElements", [np.arange(5, dtype=F32), i64(4, -5, 2, 2, 2, 1)])


@pytest.mark.parametrize(
    ("shape", "batch_dims"),
    [((3, 2, 1), 0), ((3, 2, 2), 0), ((3, 2, 3), 0), ((3, 2, 4), 0), ((0, 2), 0), ((1,), 0), ((2, 1), 1),
     ((2, 3, 2), 1), ((2, 3, 2), 2), ((2, 3, 6, 1), 2)],
)  # fmt: skip
def test_gather_nd(shape, batch_dims):
    compare("GatherND", [X, np.random.default_rng(0).integers(-2, 2, shape)], {"batch_dims": batch_dims})


def test_gather_nd_strings():
    compare("GatherND", [TEXT, np.array([[1, 0], [0, 1]])])


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements_reductions(axis, reduction):
    rng = np.random.default_rng(0)
    indices = rng.integers(-2, 2, (2, 2, 3, 4))
    updates = rng.standard_normal(indices.shape).astype(F32)
    compare("ScatterElements", [X, indices, updates], {"axis": axis, "reduction": reduction}, opset=18)


@pytest.mark.parametrize("op", ["Scatter", "ScatterElements"])
def test_scatter_elements(op):
    opset = 9 if op == "Scatter" else 22
    indices = np.broadcast_to(i64(0, 1, 4, 2), (2, 2, 3, 4)).copy()
    compare(op, [X, indices, np.ones(indices.shape, F32)], {"axis": 3}, opset=opset)
    compare(op, [np.arange(5), i64(1, 1), i64(7, 8)], opset=opset)


def test_scatter_elements_strings():
    compare("ScatterElements", [TEXT, i64(1, 0).reshape(1, 2), np.array([["x", "y"]], object)])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    rng = np.random.default_rng(0)
    attributes = {"reduction": reduction}
    indices = np.array([[0, 1], [1, -1], [0, 0]]) if reduction == "none" else rng.integers(-2, 2, (5, 2))
    updates = rng.standard_normal((len(indices), 4, 5)).astype(F32)
    compare("ScatterND", [X, indices, updates], attributes, opset=18)
    compare("ScatterND", [X.astype(I64), np.array([[0, 1, 2, 3]]), i64(9)], attributes, opset=18)
    compare("ScatterND", [X, np.zeros((0, 1), I64), np.zeros((0, 3, 4, 5), F32)], attributes, opset=18)
    compare("ScatterND", [X[0, 0], np.zeros((2, 0), I64), np.stack([X[0, 0], X[0, 1]])], attributes, opset=18)


@pytest.mark.parametrize(
    ("x", "condition", "axis"),
    [
        (X, [1, 0, 1], 1),
        (X, [1, 0], -1),
        (X, [1, 0, 1], None),
        (TEXT, [0, 1], 0),
        (X, X > 0, None),
        (X, [[1, 0, 1]], 1),
        (X[:2], [1, 0, 1, 1], 0),
    ],
)
def test_compress(x, condition, axis):
    compare("Compress", [x, np.array(condition, bool)], {} if axis is None else {"axis": axis})


@pytest.mark.parametrize("dtype", [F32, I64, bool, U8, I32])
@pytest.mark.parametrize("shape", [(3, 4), (5,), (0, 2)])
def test_non_zero(shape, dtype):
    compare("NonZero", [np.random.default_rng(0).integers(0, 2, shape).astype(dtype)])


@pytest.mark.parametrize("value", [0, 1])
def test_non_zero_scalar(value):
    compare("NonZero", [np.array(value, F32)])


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_one_hot(axis):
    indices = np.array([[0, 2], [-1, 5], [-4, -3]])
    compare("OneHot", [indices, np.array(3), np.array([2, 7], F32)], {"axis": axis})


def test_one_hot_strings():
    compare("OneHot", [i64(0, 2), np.array(3), np.array(["off", "on"], object)])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -1, 5, -5])
def test_trilu(k, upper):
    compare("Trilu", [X, None if k is None else np.array(k)], {"upper": upper})
    compare("Trilu", [X > 0, None if k is None else np.array(k)], {"upper": upper})


@batched
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64])
def test_cum_sum(dtype, reverse, exclusive):
    attributes = {"exclusive": exclusive, "reverse": reverse}
    for axis in (0, 1, -1):
        compare("CumSum", [(X * 5).astype(dtype), np.array(axis)], attributes)
    compare("CumSum", [np.zeros((0, 3), dtype), np.array(0)], attributes)


def test_cum_prod():
    x = np.array([[1, 2, 3], [4, 5, 6]], F32)
    [got] = run_kernel("CumProd", [x, np.array(1)], {"exclusive": 1, "reverse": 1}, opset=26)
    assert got.tolist() == [[6, 3, 1], [30, 6, 1]]


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest):
    rng = np.random.default_rng(0)
    attributes = {"largest": largest}
    for axis in (0, 1, -1):
        for k in (0, 1, 2):
            compare("TopK", [X, i64(k)], {"axis": axis, **attributes}, n_outputs=2)
    for dtype in (F32, F64, I32, I64):
        compare("TopK", [rng.integers(-3, 3, (3, 50)).astype(dtype), i64(7)], attributes, n_outputs=2)
    ties = rng.integers(-50, 50, 3000).astype(F32)
    for k in (1, 20, 3000):
        compare("TopK", [ties, i64(k)], attributes, n_outputs=2)
    compare("TopK", [rng.standard_normal((2, 2000)).astype(F32), i64(20)], attributes, n_outputs=2)


@pytest.mark.parametrize(("opset", "inputs", "attributes"), [(9, [X], {"k": 2}), (10, [X, i64(2)], {})])
def test_old_top_k(opset, inputs, attributes):
    compare("TopK", inputs, {"axis": 1, **attributes}, opset=opset, n_outputs=2)


def test_top_k_of_bfloat16():
    x = np.array([1, 3, 2, 3], F32).astype(DType.BFLOAT16.numpy)
    values, indices = run_kernel("TopK", [x, i64(3)], opset=24, n_outputs=2)
    assert values.dtype == x.dtype
    assert indices.tolist() == [1, 3, 2]


@pytest.mark.parametrize("sorted_", [0, 1])
@pytest.mark.parametrize("dtype", [F32, F64, I64])
def test_unique(dtype, sorted_):
    x = np.random.default_rng(0).integers(0, 3, (6, 3)).astype(dtype)
    cube = np.random.default_rng(0).integers(0, 2, (2, 6, 2)).astype(dtype)
    for values, axis in ((x, None), (x, 0), (x, 1), (cube, 1), (cube[:, :0], 1)):
        attributes = {"sorted": sorted_} if axis is None else {"sorted": sorted_, "axis": axis}
        compare("Unique", [values], attributes, n_outputs=4)


@pytest.mark.parametrize("sorted_", [0, 1])
def test_unique_strings(sorted_):
    compare("Unique", [np.array(["b", "a", "b"], object)], {"sorted": sorted_}, n_outputs=4)
    rows = np.array([["b", "a"], ["a", "c"], ["b", "a"]], object)
    compare("Unique", [rows], {"sorted": sorted_, "axis": 0}, n_outputs=4)


@pytest.mark.parametrize("start", [3, 2**63 - 1])
def test_tensor_scatter_wraps_in_circular_mode(start):
    past, update = np.zeros((2, 4, 3), F32), np.arange(1, 13, dtype=F32).reshape(2, 2, 3)
    [got] = run_kernel("TensorScatter", [past, update, i64(start, 1)], {"mode": "circular"}, opset=24)
    assert_same(got[0, [3, 0]], update[0])
    assert_same(got[1, 1:3], update[1])
    assert np.count_nonzero(got) == update.size


def test_inputs_are_left_alone():
    x = np.zeros(3, F32)
    run_kernel("ScatterElements", [x, i64(1), np.ones(1, F32)])
    assert_same(x, np.zeros(3, F32))
    assert_same(run_onnxruntime("ScatterElements", [x, i64(1), np.ones(1, F32)])[0], np.array([0, 1, 0], F32))
