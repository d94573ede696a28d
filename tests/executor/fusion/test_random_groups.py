"""Units of steps on random graphs: what is fused computes what the plain kernels compute one by one, in every run."""

import numpy as np
import pytest
from draw import Draw
from random_groups import FLOATS, Graph

from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.batches import sampled

TOLERANCE = {np.float32: 1e-3, np.float64: 1e-6}
HALF = 2e-2
FLIPPED = 0.1
"""Of the elements of a quantized graph: sums in another order round to another code, here and there."""


def assert_close(got, want, dtype, quantized):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = got.astype(np.float64), want.astype(np.float64)
    tolerance = TOLERANCE.get(dtype, HALF)
    largest = np.abs(want[np.isfinite(want)]).max(initial=1.0)
    far = np.count_nonzero(~np.isclose(got, want, tolerance, tolerance * largest, equal_nan=True))
    assert far <= (max(2, FLIPPED * want.size) if quantized else 0)


@sampled(6)
@pytest.mark.parametrize("seed", range(240))
def test_units_compute_what_their_nodes_do(seed):
    d = Draw(seed)
    dtype = np.float32 if seed % 2 else d.pick(*FLOATS)
    quantized = dtype is np.float32 and seed % 4 < 2
    graph = Graph(d, dtype, quantized, dynamic=seed % 3 == 0)
    model = from_proto(graph.model())
    names = [v.name for v in model.graph.outputs]
    want = Session(model, ["numpy:reference"]).run(names, graph.inputs)
    session = Session(model)
    for _ in range(3):  # plainly, recorded, and by what was recorded
        for g, w in zip(session.run(names, graph.inputs), want, strict=True):
            assert_close(g, w, dtype, quantized)
