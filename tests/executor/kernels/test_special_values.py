"""NaN, infinities, -0, no elements and no axes in every family of kernels, against onnxruntime.

Where the two differ, `DIFFERENCES` says why, and onnx's reference implementation or arithmetic itself is on the side of the kernel.
"""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from single_node import _value_info, run_kernel, run_onnxruntime
from special import NODES

from tests.batches import sampled

MAXIMUM = "a maximum of NaN and a number is NaN, as in the reference; onnxruntime gives either"
CONSTANT = "a constant less its mean is zero, and zero over a small number is zero; onnxruntime gives NaN"
WEIGHT_ZERO = "an axis that keeps its size is not interpolated; onnxruntime adds NaN times zero"
NO_PRODUCTS = "a sum of no products is zero; onnxruntime leaves the memory as it is"
SIGN = "the sign of zero"

DIFFERENCES = {
    "ReduceMax": MAXIMUM, "ReduceMin": MAXIMUM, "ArgMax": MAXIMUM, "ArgMin": MAXIMUM, "Hardmax": MAXIMUM,
    "MaxPool": MAXIMUM, "GlobalMaxPool": MAXIMUM, "ScatterElements": MAXIMUM, "Normalizer": MAXIMUM,
    "MatMulInteger": NO_PRODUCTS, "MeanVarianceNormalization": CONSTANT, "Resize": WEIGHT_ZERO,
    "Elu": SIGN, "Where": SIGN, "NegativeLogLikelihoodLoss": SIGN,
}  # fmt: skip

WITHOUT_REFERENCE = {"MaxPool", "Normalizer"}
"""Where the reference implementation passes over NaN, unlike in its other maxima."""

ALL = [pytest.param(node, id=f"{family}-{node!r}") for family, nodes in NODES.items() for node in nodes]
FLOATS = "fV"


def same(got, want, signs):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind not in FLOATS:
        return np.array_equal(got, want)
    g, w = got.astype(np.float64), want.astype(np.float64)
    if not np.allclose(g, w, 1e-5, 1e-6, equal_nan=True):
        return False
    zeros = (w == 0) & (g == 0) & signs
    return bool((np.signbit(g) == np.signbit(w))[zeros].all())


def reference(node):
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(node.inputs)]
    outputs = [f"y{i}" for i in range(node.n_outputs)]
    graph = helper.make_graph(
        [helper.make_node(node.op, names, outputs, domain=node.domain, **node.attributes)],
        "g",
        [_value_info(n, x) for n, x in zip(names, node.inputs) if n],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, node.opset)])
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, {n: x for n, x in zip(names, node.inputs) if n})


@sampled(4)
@pytest.mark.parametrize("node", ALL)
def test_special_values(node):
    options = {"domain": node.domain, "opset": node.opset, "n_outputs": node.n_outputs}
    got = run_kernel(node.op, node.inputs, node.attributes, **options)
    want = run_onnxruntime(node.op, node.inputs, node.attributes, **options)
    reason = DIFFERENCES.get(node.op)
    if all(same(g, w, reason is not SIGN) for g, w in zip(got, want, strict=True)):
        return
    assert reason is not None
    if node.op in WITHOUT_REFERENCE:
        assert np.isnan(got[0][~np.isclose(got[0], want[0], 1e-5, 1e-6, equal_nan=True)]).all()
    elif reason is MAXIMUM:
        for g, w in zip(got, reference(node), strict=True):
            assert same(g, np.asarray(w), False)
    elif reason is WEIGHT_ZERO:
        assert same(got[0][:, :, ::2], np.ones_like(got[0][:, :, ::2]), True)
    elif reason in (CONSTANT, NO_PRODUCTS):
        assert same(got[0], np.zeros_like(got[0]), True)


@pytest.mark.parametrize("op", sorted(DIFFERENCES))
def test_differences_are_of_nodes_that_are_tested(op):
    assert any(node.op == op for nodes in NODES.values() for node in nodes)
