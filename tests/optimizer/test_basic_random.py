"""The basic level as a whole on random models: the same numbers in onnxruntime, never more nodes, nothing left to do."""

from __future__ import annotations

import numpy as np
import onnx
from golden import dump, optimize
from hypothesis import HealthCheck, given, settings
from random_graphs import models

from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.levels import passes_of
from tests.conftest import examples
from tests.unoptimized import run


@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(models())
def test_same_numbers(example: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
    proto, feeds = example
    expected = run(proto, feeds)
    model = from_proto(proto)
    before = len(model.graph)
    optimize(model, passes_of("basic"))
    assert len(model.graph) <= before
    result = model_proto(model)
    assert [v.name for v in result.graph.output] == [v.name for v in proto.graph.output]
    for a, b in zip(expected, run(result, feeds), strict=True):
        assert a.shape == b.shape
        finite = np.isfinite(a)
        scale = np.max(np.abs(a[finite]), initial=1.0)
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-4 * scale, equal_nan=True)


@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(models())
def test_nothing_is_left_to_do(example: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
    model = from_proto(example[0])
    optimize(model, passes_of("basic"))
    once = dump(model)
    assert optimize(model, tuple(p for p in passes_of("basic") if not p.once)).trace == []
    assert dump(model) == once
