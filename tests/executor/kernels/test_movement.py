"""Kernels that reshape, slice, join, pad and repeat, and those that create tensors, against onnxruntime."""

import numpy as np
import pytest
from single_node import accelerated, assert_same, compare, run_kernel

from ortconv.errors import GraphError
from tests.arrays import i64
from tests.batches import batched, slow_except

F32, F64, I32, I64, U8 = np.float32, np.float64, np.int32, np.int64, np.uint8
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(F32)
TEXT = np.array([["a", "bb"], ["ccc", "d"]], object)
SCALAR = np.array(1.0, F32)
MAX, MIN = np.iinfo(I64).max, np.iinfo(I64).min


def zeros(*shape):
    return np.zeros(shape, F32)


CASES = [
    *[("Reshape", [X, i64(*s)], {}) for s in [(6, 20), (-1,), (0, -1), (2, 0, 20), (0, 0, 0, 0), (2, 3, -1)]],
    ("Reshape", [zeros(0, 3), i64(3, 0)], {"allowzero": 1}),
    ("Reshape", [zeros(0, 3), i64(-1, 3)], {}),
    ("Reshape", [SCALAR, i64()], {}),
    ("Reshape", [SCALAR.reshape(1), i64()], {}),
    *[("Flatten", [X], {"axis": axis}) for axis in range(-4, 5)],
    ("Flatten", [SCALAR], {"axis": 0}),
    ("Squeeze", [zeros(1, 2, 1)], {}),
    ("Squeeze", [zeros(1, 2, 1), i64(-1)], {}),
    ("Squeeze", [zeros(1, 2, 1), i64(0, 0, -3)], {}),
    ("Squeeze", [zeros(1, 2, 1), i64()], {}),
    ("Unsqueeze", [X, i64(0, -1)], {}),
    ("Unsqueeze", [X, i64(5, 2)], {}),
    ("Transpose", [X], {}),
    ("Transpose", [X], {"perm": (0, 2, 3, 1)}),
    ("Transpose", [TEXT], {}),
    ("Transpose", [SCALAR], {}),
    *[("Concat", [X, X], {"axis": axis}) for axis in range(-4, 4)],
    ("Concat", [TEXT, TEXT], {"axis": 1}),
    ("Concat", [zeros(0, 3), np.ones((2, 3), F32)], {"axis": 0}),
    ("Slice", [X, i64(1, 0), i64(3, 2), i64(-1, 1)], {}),
    ("Slice", [X, i64(0, 1), i64(1, 2)], {}),
    ("Slice", [X, np.array([1], I32), np.array([3], I32), np.array([2], I32)], {}),
    ("Slice", [TEXT, i64(1), i64(2)], {}),
    ("Tile", [X, i64(1, 2, 1, 3)], {}),
    ("Tile", [TEXT, i64(2, 1)], {}),
    ("Tile", [X, i64(1, 0, 1, 1)], {}),
    ("Tile", [SCALAR, i64()], {}),
    ("Expand", [np.ones((3, 1), F32), i64(2, 1, 6)], {}),
    ("Expand", [np.ones((3, 1), F32), i64(1)], {}),
    ("Expand", [SCALAR, i64(2, 0)], {}),
    ("Expand", [TEXT, i64(2, 2, 2)], {}),
    ("DepthToSpace", [np.arange(96, dtype=F32).reshape(2, 8, 2, 3)], {"blocksize": 2}),
    ("DepthToSpace", [np.arange(96, dtype=F32).reshape(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [np.arange(144, dtype=F32).reshape(2, 3, 4, 6)], {"blocksize": 2}),
    ("CenterCropPad", [X, i64(5, 2)], {"axes": (1, 3)}),
    ("CenterCropPad", [X, i64(1, 4, 3, 8)], {}),
    ("CenterCropPad", [X, i64(4, 2)], {"axes": (-2, -1)}),
    ("CenterCropPad", [X[0], i64(6, 7, 2)], {}),
    ("ReverseSequence", [X.reshape(4, 3, 10), i64(4, 2, 1)], {}),
    ("ReverseSequence", [X.reshape(4, 3, 10), i64(3, 2, 1, 3)], {"batch_axis": 0, "time_axis": 1}),
    ("ReverseSequence", [X.reshape(4, 30), np.arange(30) % 5], {}),
    ("Identity", [X], {}),
    *[("Constant", [], {k: v}) for k, v in [
        ("value_int", 3), ("value_ints", (1, 2)), ("value_float", 1.5), ("value_floats", (1.0, 2.0)),
        ("value_string", "a"), ("value_strings", ("a", "b")), ("value", np.ones((2, 2), F32)),
    ]],
    ("ConstantOfShape", [i64(2, 3)], {}),
    ("ConstantOfShape", [i64()], {}),
    ("ConstantOfShape", [i64(0, 2)], {"value": np.array([7], I64)}),
    ("ConstantOfShape", [i64(2)], {"value": np.array([True])}),
    ("Size", [X], {}),
    ("Size", [SCALAR], {}),
    ("Shape", [SCALAR], {}),
    ("EyeLike", [zeros(3, 4)], {"k": 1}),
    ("EyeLike", [np.zeros((3, 4), I32)], {"k": -1, "dtype": 1}),
    ("EyeLike", [np.zeros((3, 4))], {"k": 9}),
    ("Range", [np.array(0, F32), np.array(1, F32), np.array(0.1, F32)], {}),
    ("Range", [np.array(0.5), np.array(2.0), np.array(0.3)], {}),
    ("Dropout", [X, np.array(0.3, F32)], {}),
    ("Dropout", [X, np.array(0, F32), np.array(True)], {}),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_against_onnxruntime(op, inputs, attributes):
    compare(op, inputs, attributes, rtol=1e-6)


OLD_CASES = [
    ("Squeeze", 11, [zeros(1, 2, 1)], {"axes": (0,)}, 1),
    ("Squeeze", 11, [zeros(1, 2, 1)], {}, 1),
    ("Unsqueeze", 11, [X], {"axes": (1, 0)}, 1),
    ("Split", 11, [X], {"axis": 3}, 5),
    ("Split", 11, [X], {"axis": -1, "split": (2, 3)}, 2),
    ("Split", 2, [X], {"axis": 0}, 2),
    ("Split", 13, [X, i64(1, 2)], {"axis": 1}, 2),
    ("Split", 13, [X], {"axis": 1}, 3),
    ("Split", 18, [X], {"axis": 3, "num_outputs": 2}, 2),
    ("Split", 18, [X, i64(0, 5)], {"axis": 3}, 2),
    ("Slice", 9, [X], {"starts": (0, 1), "ends": (1, -1), "axes": (0, 2)}, 1),
    ("Slice", 9, [X], {"starts": (0, 1), "ends": (1, 100)}, 1),
    ("Dropout", 10, [X], {}, 2),
    ("Dropout", 7, [X], {"ratio": 0.3}, 2),
    ("DepthToSpace", 10, [np.arange(96, dtype=F32).reshape(2, 8, 2, 3)], {"blocksize": 2}, 1),
    ("Pad", 2, [X[0, 0]], {"pads": (1, 1, 2, 1), "value": 3.0}, 1),
    ("Pad", 2, [X[0, 0]], {"pads": (1, 1, 2, 1), "mode": "reflect"}, 1),
    ("Pad", 2, [X[0, 0]], {"pads": (1, -1, 2, 1), "mode": "edge"}, 1),
]


@batched
@pytest.mark.parametrize(("op", "opset", "inputs", "attributes", "n_outputs"), OLD_CASES)
def test_attribute_forms(op, opset, inputs, attributes, n_outputs):
    compare(op, inputs, attributes, opset=opset, n_outputs=n_outputs)


@pytest.mark.parametrize("size", slow_except([5], [0, 1, 5]))
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slice_bounds(step, size):
    x = np.arange(size, dtype=F32)
    bounds = [0, 1, -1, 4, -3, -6, 7, MAX, MIN]
    for start in bounds:
        for end in bounds:
            compare("Slice", [x, i64(start), i64(end), i64(0), i64(step)])


@batched
@pytest.mark.parametrize("pads", [(1, 2, 0, 1), (0, 0, 0, 0), (2, 3, 2, 3), (-1, 1, 1, -1), (-1, -1, 0, 0)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_modes(mode, pads):
    # onnxruntime reflects by less than the cropped length only.
    x = np.arange(20, dtype=F32).reshape(4, 5)
    compare("Pad", [x, i64(*pads)], {"mode": mode}, opset=19)


@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, U8, bool])
def test_pad_types(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    compare("Pad", [x, i64(1, 2, 0, 1)])
    compare("Pad", [x, i64(1, 2, 0, 1), np.array(1, dtype)])


def test_pad_axes():
    compare("Pad", [X, i64(1, 2), None, i64(-1)], opset=18)
    compare("Pad", [X, i64(1, 2, 3, 4), np.array(2, F32), i64(1, -1)], opset=18)
    compare("Pad", [zeros(0, 3), i64(1, 1, 1, 1)])


def test_pad_wraps_more_than_once():
    compare("Pad", [np.arange(6, dtype=F32).reshape(1, 6), i64(0, 3, 0, 8)], {"mode": "wrap"}, opset=19)


@batched
@pytest.mark.parametrize("start", [None, 0, 1, -1, -9, 9])
@pytest.mark.parametrize("end", [None, 0, 1, -1, -9, 9])
def test_shape_range(end, start):
    compare("Shape", [X], {k: v for k, v in (("start", start), ("end", end)) if v is not None})


@batched
@pytest.mark.parametrize("bounds", [(0, 10, 1), (0, 10, 3), (10, 0, -3), (5, 5, 1), (5, 0, 1), (0, -4, -1)])
@pytest.mark.parametrize("dtype", [F32, F64, np.int16, I32, I64])
def test_range(dtype, bounds):
    compare("Range", [np.array(v, dtype) for v in bounds])


def test_uneven_split_leaves_the_last_piece_short():
    pieces = run_kernel("Split", [X], {"axis": 3, "num_outputs": 4}, opset=18, n_outputs=4)
    assert [p.shape[3] for p in pieces] == [2, 2, 1, 0]
    assert_same(np.concatenate(pieces, axis=3), X)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Reshape", [X, i64(-1)], {}),
        ("Transpose", [X], {}),
        ("Squeeze", [zeros(1, 2, 1)], {}),
        ("Unsqueeze", [X, i64(0)], {}),
        ("Flatten", [X], {}),
        ("Slice", [X, i64(1), i64(3), i64(3)], {}),
        ("Expand", [SCALAR, i64(2, 2)], {}),
        ("Split", [X], {"axis": 1, "num_outputs": 3}),
    ],
)
def test_views_share_memory(op, inputs, attributes):
    [got] = run_kernel(op, inputs, attributes)
    assert np.shares_memory(got, inputs[0])


def test_training_dropout_scales_what_it_keeps():
    inputs = [np.ones((100, 100), F32), np.array(0.25, F32), np.array(True)]
    y, mask = run_kernel("Dropout", inputs, {"seed": 7}, n_outputs=2)
    assert 0.7 < mask.mean() < 0.8
    assert_same(y, np.where(mask, F32(4 / 3), F32(0)))
    assert_same(run_kernel("Dropout", inputs, {"seed": 7})[0], y)


def test_space_to_depth_undoes_depth_to_space():
    x = np.arange(96, dtype=F32).reshape(2, 8, 2, 3)
    for mode in ("DCR", "CRD"):
        [wide] = run_kernel("DepthToSpace", [x], {"blocksize": 2, "mode": mode})
        [back] = run_kernel("SpaceToDepth", [wide], {"blocksize": 2, "mode": mode}, opset=28)
        assert_same(back, x)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_what_has_no_elements(mode):
    (got,) = run_kernel("Pad", [np.zeros((1 << 40, 3, 0), F32), np.array([1, 2, 0, 1, 0, 0])], {"mode": mode})
    assert got.shape == ((1 << 40) + 2, 5, 0)


@pytest.mark.parametrize("repeats", [(-(1 << 62), 1), (1, -1), (1 << 62, 1 << 62), (1 << 62, 1), (1 << 32, 1 << 31)])
def test_tiles_that_no_memory_holds(repeats):
    """numpy ends the process."""
    with pytest.raises((GraphError, MemoryError, ValueError)):
        run_kernel("Tile", [np.ones((2, 2), F32), np.array(repeats)])


def test_tiles_without_elements():
    (got,) = run_kernel("Tile", [np.ones((2, 3), F32), np.array([1 << 40, 0])])
    assert got.shape == (1 << 41, 0)


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (2, 3, 1, 5), (3, 4, 5)])
def test_what_concat_joins_has_one_shape_beside_the_axis(shape):
    """Inputs in channels-last memory are copied part by part, where a size of 1 would be repeated."""
    pixels = np.ascontiguousarray(X.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    with pytest.raises(ValueError, match=r"must match exactly|same number of dimensions"):
        accelerated("Concat", [pixels], {"axis": 0})(pixels, zeros(*shape))


@pytest.mark.parametrize("shape", [i64(1), np.array(1), i64(1, 2, 3, 4, 5)])
def test_center_crop_pad_takes_a_size_for_each_axis(shape):
    with pytest.raises(ValueError, match="argument 2"):
        run_kernel("CenterCropPad", [X, shape])


@pytest.mark.parametrize("last", [3, 9])
def test_reshape_keeps_joined_channels_last(last):
    """As behind the channel shuffle of a ShuffleNet."""
    x = np.arange(2 * 4 * 5 * last * 2, dtype=F32).reshape(2, 4, 5, last, 2).transpose(0, 4, 3, 1, 2)
    shape = i64(2, -1, 4, 5)
    got = accelerated("Reshape", [x, shape], known=[1])(x, shape)
    assert_same(got, np.ascontiguousarray(x).reshape(2, -1, 4, 5), rtol=0, atol=0)
    assert got.transpose(0, 2, 3, 1).flags.c_contiguous
