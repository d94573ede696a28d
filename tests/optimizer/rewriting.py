"""Run passes over a small model and hold the result against the source, both run by onnxruntime without optimizations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.tensor import Array
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context
from ortconv.optimizer.passes import Pass
from tests import text_models
from tests.model_inputs import drawn
from tests.unoptimized import session

Feeds = Mapping[str, Array]


def parse(text: str, opset: int = 13) -> onnx.ModelProto:
    """A model from onnx's text form of a graph, whose outputs are of unknown shape whatever the text says."""
    proto = text_models.parse(text, opset, text_models.MICROSOFT)
    _forget_output_shapes(proto.graph)
    return proto


def _forget_output_shapes(graph: onnx.GraphProto) -> None:
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_output_shapes(attribute.g)


def run(proto: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    """The outputs according to onnxruntime with all optimizations off. Feeds that the model does not have are left out."""
    reference = session(proto)
    known = {i.name for i in (*reference.get_inputs(), *reference.get_overridable_initializers())}
    results: list[Array] = reference.run(None, {name: value for name, value in feeds.items() if name in known})
    return results


def random_feeds(proto: onnx.ModelProto, seed: int = 0, **dims: int) -> dict[str, Array]:
    """Random values for every input that is not an initializer; a symbol has 3 unless said."""
    return drawn(proto, _numbers, seed, **dims)


def _numbers(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100), min(info.max, 100), shape)
    return np.asarray(rng.standard_normal(shape) * 2)


def optimized(proto: onnx.ModelProto, passes: Iterable[Pass], context: Context | None = None) -> tuple[Model, Context]:
    """The model after the passes, verified after each; a second round must find nothing to do."""
    passes = tuple(passes)
    context = context or Context()
    model = from_proto(proto)
    graphs = list(model.graph.graphs())
    for p in passes:
        for graph in graphs:
            p.run(graph, context)
            verify(model.graph)
    for p in passes:
        assert sum(p.run(graph, context) for graph in graphs) == 0, f"{p.name} is not idempotent"
    model.graph.prune()
    verify(model.graph)
    return model, context


def check(
    source: onnx.ModelProto | str,
    passes: Iterable[Pass],
    *,
    opset: int = 13,
    feeds: Feeds | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> tuple[Graph, Context]:
    """The graph after the passes, which computes what the source computes: same names, types, shapes and numbers."""
    proto = parse(source, opset) if isinstance(source, str) else source
    feeds = random_feeds(proto) if feeds is None else feeds
    want = run(proto, feeds)
    model, context = optimized(proto, passes)
    result = model_proto(model)
    assert [o.name for o in result.graph.output] == [o.name for o in proto.graph.output]
    assert [i.name for i in result.graph.input] == [i.name for i in proto.graph.input]
    for name, a, b in zip((o.name for o in proto.graph.output), want, run(result, feeds), strict=True):
        assert a.dtype == b.dtype, name
        np.testing.assert_allclose(b, a, rtol=rtol, atol=atol, err_msg=name)
    return model.graph, context


def ops(graph: Graph) -> dict[str, int]:
    """How often each operator stands in the graph and below it."""
    return dict(Counter(f"{n.domain}.{n.op}" if n.domain else n.op for n in graph.walk()))
