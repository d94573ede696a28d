"""All values of a graph, in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ortconv.inputs.candidates import first_run
from ortconv.models import load
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from ortconv.stream import NODES_PER_PIECE, stream
from tests import text_models
from tests.conftest import FAST_NAMES


@pytest.mark.parametrize("backends", [["numpy:reference"], ["onnxruntime"]])
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_a_stream_holds_what_a_run_computes(sample: Path, backends: list[str]) -> None:
    loaded = load(sample)
    session = Session(loaded, backends, keep=[v.name for n in loaded.graph for v in n.outputs if v is not None])
    names = [v.name for v in session.kept]
    feeds, values = first_run(session, names)
    found = {v.name: result for v, result in stream(loaded.graph, backends, feeds)}
    assert list(found) == names
    for name, want in zip(names, values, strict=True):
        np.testing.assert_array_equal(found[name], want)


def test_a_stream_lets_go_of_what_nobody_needs() -> None:
    chain = " ".join(f"v{i + 1} = Exp(v{i})" for i in range(80))
    graph = from_proto(text_models.parse(f"g (float[n] v0) => (float[n] y) {{ {chain} y = Neg(v80) }}")).graph
    x = np.zeros(100_000, np.float32)
    tracemalloc.start()
    count = sum(1 for _ in stream(graph, ["numpy"], {"v0": x}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 81
    assert peak < 3 * NODES_PER_PIECE * x.nbytes
