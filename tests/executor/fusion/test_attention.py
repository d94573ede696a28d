"""Which operators become one step of attention, and that the step computes what they do."""

import numpy as np
import onnx
import pytest

from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.batches import batched

MODEL = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,2,3,4] q, float[1,2,4,5] k, float[1,2,5,4] v, float[1,1,3,5] m) => (float[B,2,3,4] y)
<float f = {0.5}, float zero = {0}, float[5] row = {1, 2, 3, 4, 5}>
{ a = MatMul(q, k) b = Mul(a, f) c = Add(b, m) p = Softmax(c) y = MatMul(p, v) }"""

# (a part of MODEL, the text that replaces it, whether one step then computes the attention)
CASES = [
    ("", "", True),
    ("Mul(a, f)", "Mul(f, a)", True),
    ("Mul(a, f)", "Div(a, f)", True),
    ("Mul(a, f)", "Add(a, row)", True),
    ("Mul(a, f)", "Div(f, a)", False),
    ("Mul(a, f)", "Div(a, zero)", False),
    ("Mul(a, f)", "Sub(a, f)", False),
    ("Mul(a, f)", "Mul(a, row)", False),
    ("Mul(a, f)", "Mul(a, m)", False),
    ("Mul(a, f)", "Relu(a)", False),
    ("Mul(a, f) c = Add(b, m)", "Add(a, m) c = Mul(b, f)", False),
    ("Add(b, m)", "Add(m, b)", True),
    ("Add(b, m)", "Add(b, b)", False),
    ("Softmax(c)", "Softmax<axis = 3>(c)", True),
    ("Softmax(c)", "Softmax<axis = 2>(c)", False),
    ("Softmax(c)", "LogSoftmax(c)", False),
    ('"": 13', '"": 12', False),
    ("float", "double", False),
    ("[1,", "[", False),
    ("[B,2,3,4] y", "[B,2,3,4] y, float[1,2,3,5] c", False),
    ("[B,2,3,4] y", "[B,2,3,4] y, float[1,2,3,5] p", False),
    ("MatMul(p, v)", "Mul(p, m)", False),
    ("[1,1,3,5] m", "[2,1,3,5] m", True),  # the step leaves it to the operators
]


@batched
@pytest.mark.parametrize(("old", "new", "one_step"), CASES)
def test_operators_of_attention(old, new, one_step):
    text = MODEL.replace(old, new)
    model = from_proto(onnx.parser.parse_model(text))
    rng, names = np.random.default_rng(1), [v.name for v in model.graph.outputs]
    dtype = np.float64 if new == "double" else np.float32
    feeds = {v.name: rng.standard_normal(v.static_shape).astype(dtype) for v in model.graph.inputs if not v.const}
    fused = Session(model)
    with np.errstate(all="ignore"):
        want, got = (s.run(names, feeds) for s in (Session(model, ["numpy:reference"]), fused))
    assert (len(fused._main.programs[0][0].steps) == 1) is one_step
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)
