"""Why eight of onnx's node cases are expected to fail: their softmax adds bfloat16 weights with a rounding after every addition.

ReduceSum, of which the function body of Softmax is made, is the sum of its elements, and a sum that is exact but for one rounding
is the closest there is to it. The reference implementation adds float16 so; bfloat16 it adds one by one, so that a sum of ones
never exceeds 256. The cases differ from what is computed here in nothing else.
"""

import ml_dtypes
import numpy as np
import onnx
import pytest
from node_cases import node_cases
from onnx.reference.ops import op_attention
from single_node import run_kernel

from ortconv.runtime.session import Session
from tests.executor.kernels.test_node_cases import BFLOAT16_SUM, EXPECTED_FAILURES

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = [name for name, reason in EXPECTED_FAILURES.items() if reason == BFLOAT16_SUM]
DIRECT = [name for name in NAMES if not name.endswith("_expanded")]


def summed_once(x, axis=-1):
    """The reference implementation's softmax but for its sum, which is rounded once."""
    top = np.max(x, axis=axis, keepdims=True)
    weights = np.exp(x - np.where(np.isneginf(top), x.dtype.type(0), top))
    total = np.sum(weights.astype(np.float64), axis=axis, keepdims=True).astype(x.dtype)
    return weights / np.where(total == 0, x.dtype.type(1), total)


def case_named(name):
    return next(case for case in node_cases() if case.name == name)


def feeds(case):
    return dict(zip([i.name for i in case.model.graph.input], case.data_sets[0][0]))


def reference(case):
    node, fed = case.model.graph.node[0], feeds(case)
    names = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    inputs = {slot: fed[n] for slot, n in zip(names, node.input) if n}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return op_attention._compute_attention(**inputs, **attributes)[0]


def test_a_sum_of_ones():
    ones = np.ones(1000, BFLOAT16)
    assert float(ones.sum()) == 256
    assert float(np.ones(1000, np.float16).sum()) == 1000
    assert float(run_kernel("ReduceSum", [ones[None], np.array([1])], {"keepdims": 0})[0][0]) == 1000
    np.testing.assert_array_equal(run_kernel("Softmax", [np.zeros((1, 1024), BFLOAT16)])[0].astype(float), 1 / 1024)


@pytest.mark.parametrize("name", DIRECT)
def test_only_the_sum_differs(name, tmp_path, monkeypatch):
    case = case_named(name)
    onnx.save(case.model, tmp_path / "case.onnx")
    got, want = Session(tmp_path / "case.onnx").run(None, feeds(case))[0], case.data_sets[0][1][0]
    assert not np.array_equal(got, want)
    np.testing.assert_array_equal(reference(case), want)
    monkeypatch.setattr(op_attention, "_softmax", summed_once)
    np.testing.assert_array_equal(reference(case), got)


def test_all_of_them_are_pairs():
    assert sorted(NAMES) == sorted(n for name in DIRECT for n in (name, f"{name}_expanded"))
