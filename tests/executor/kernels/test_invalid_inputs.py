"""Inputs that onnxruntime refuses when a node runs: the kernels must not compute something else from them."""

import numpy as np
import pytest

from ortconv.errors import GraphError
from tests.arrays import f32, i32, i64
from tests.executor.single_node import run_kernel, run_onnxruntime
from tests.executor.special import zeros

X = zeros(2, 3)
SCATTER_ND = [X, i64(0).reshape(1, 1)]
LSTM = [zeros(2, 1, 2), zeros(1, 8, 2), zeros(1, 8, 2), None]

CASES = [
    ("TopK", [X, i64(4)], {}, r"k is 4, the axis has 3 elements"),
    ("TopK", [X, i64(-1)], {}, r"k is -1"),
    ("Split", [X, i64(1, 1)], {"axis": 1}, r"3 elements cannot be split into \[1, 1\]"),
    ("Split", [X, i64(4, -1)], {"axis": 1}, r"into \[4, -1\]"),
    ("Split", [X, i64(2, 2)], {"axis": 1}, r"into \[2, 2\]"),
    ("SplitToSequence", [X, i64(1, 1)], {"axis": 1}, r"into \[1, 1\]"),
    ("OneHot", [i64(1), np.array(0), f32([0, 1])], {}, "the depth is 0"),
    ("OneHot", [i64(1), np.array(-2), f32([0, 1])], {}, "the depth is -2"),
    ("Resize", [X, None, f32([1, -1])], {}, r"cannot turn sizes \[2, 3\] into \[2, -3\]"),
    ("Resize", [X, None, None, i64(2, -1)], {}, r"into \[2, -1\]"),
    ("Resize", [X, None, f32([1, 0])], {}, r"into \[2, 0\]"),
    ("Pad", [X, i64(0, 3, 0, 0)], {"mode": "reflect"}, r"sizes \[2, 3\] are too small .* pads \[0, 3, 0, 0\]"),
    ("Pad", [X, i64(0, -1, 0, 2)], {"mode": "reflect"}, r"sizes \[2, 2\] are too small"),
    ("Dropout", [X, f32(1), np.array(True)], {}, "the ratio is 1, must be at least 0 and less than 1"),
    ("ScatterND", [*SCATTER_ND, zeros(1, 1)], {}, r"updates of shape \[1, 3\], they have shape \[1, 1\]"),
    ("ScatterElements", [X, i64(0, 0, 0, 0).reshape(2, 2), zeros(2, 1)], {"axis": 1}, r"updates of shape \[2, 2\]"),
    ("LSTM", [*LSTM, i32(3)], {"hidden_size": 2}, r"\[3\] are not 1 numbers of \[0, 2\]"),
    ("LSTM", LSTM, {"hidden_size": 3}, r"hidden_size is 3, .* \[1, 8, 2\]"),
    ("ReverseSequence", [X, i64(2)], {"batch_axis": 0, "time_axis": 1}, r"\[2\] are no lengths of 2 sequences"),
    ("ReverseSequence", [X, i64(-1, 2)], {"batch_axis": 0, "time_axis": 1}, r"\[-1, 2\] are no lengths"),
    ("RoiAlign", [zeros(1, 1, 2, 3), zeros(1, 4), i64(-1)], {}, r"\[-1\] must not be negative"),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "message"), CASES)
def test_invalid_inputs(op, inputs, attributes, message):
    n_outputs = 2 if op in ("Split", "TopK") else 1
    with pytest.raises(GraphError, match=message):
        run_kernel(op, inputs, attributes, n_outputs=n_outputs)
    with pytest.raises(Exception, match=r"."):
        run_onnxruntime(op, inputs, attributes, n_outputs=n_outputs)


def test_slice_takes_an_end_for_each_start():
    with pytest.raises(ValueError, match="argument 2"):
        run_kernel("Slice", [X, i64(0, 1), i64(2)])


def test_an_axis_without_elements_has_no_parts():
    assert run_kernel("SplitToSequence", [zeros(0, 3), np.array(2)]) == [[]]
