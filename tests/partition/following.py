"""Following advice: the node is refused with the advice, and taken where the graph is as advised."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from partition_graphs import make

from ortconv.ir.graph import Graph, Value
from ortconv.ir.model import Model
from ortconv.ir.types import DType
from ortconv.partition import Target, partition
from ortconv.partition.checks import CHANGED
from ortconv.runtime.session import Session

F = np.float32


def graph_of(inputs: str, nodes: str, constants: Mapping[str, object]) -> Graph:
    """A graph with the outputs y, and z where its nodes make one."""
    made = "y z" if "z = " in nodes or "y, z" in nodes else "y"
    return make(inputs, nodes, made, **constants)  # type: ignore[arg-type]


def follow(
    before: Graph,
    target: Target,
    text: str,
    after: Graph,
    instead: Target,
    left: Collection[str] = (),
    *,
    numbers: bool = True,
) -> None:
    """Assert that a graph gets advice with this text, and that the graph that follows it is taken, but for operators `left`.

    With `numbers` it also computes the same, unless the advice says that it does not.
    """
    advice = [o.advice for v in partition(before, target).verdicts.values() for o in v.objections]
    assert any(text in given for given in advice), advice
    verdicts = partition(after, instead).verdicts
    refused = {n.op for n, v in verdicts.items() if not v.taken}
    assert refused <= set(left), [o for v in verdicts.values() for o in v.objections]
    found = next(given for given in advice if text in given)
    if numbers and CHANGED not in found and "end the model" not in found:
        assert_equal(before, after)


def assert_equal(before: Graph, after: Graph) -> None:
    """Both compute the same, on inputs that mean the same."""
    results = []
    for graph in (before, after):
        feeds = {v.name: fed(v, before.inputs[0].dtype) for v in graph.inputs}
        results.append(Session(Model(graph), ["numpy"]).run(None, feeds))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want.astype(got.dtype), rtol=1e-4, atol=1e-5)


def fed(value: Value, source: DType | None) -> np.ndarray:
    """Small numbers for an input, which mean the same in each type."""
    assert value.static_shape is not None
    assert value.dtype is not None
    numbers = np.arange(int(np.prod(value.static_shape))).reshape(value.static_shape) % 7
    if value.dtype is DType.FLOAT and source is DType.FLOAT:
        return (numbers.astype(F) - 3) / 2 + F(0.1)
    if source is DType.BOOL:
        numbers = np.minimum(numbers, 1)
    if value.dtype is DType.UINT8 and source is DType.INT8:
        return (numbers + 128).astype(np.uint8)
    return numbers.astype(value.dtype.numpy)
