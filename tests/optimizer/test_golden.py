"""Every golden case: the dump, the numbers in onnxruntime without its own optimizations, and that a second run finds nothing."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import onnx
import pytest
from golden import Case, cases, dump, feeds, optimize, optimized

from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from tests.batches import batched, sampled
from tests.unoptimized import session

CASES = list(cases())
FIRING, STAYING = [c for c in CASES if c.fires], [c for c in CASES if not c.fires]


@batched
@pytest.mark.parametrize("case", FIRING, ids=[c.id for c in FIRING])
def test_result(case: Case) -> None:
    check(case)


@sampled(4)
@pytest.mark.parametrize("case", STAYING, ids=[c.id for c in STAYING])
def test_what_stays(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    model, context = optimized(case)
    once = dump(model)
    if os.environ.get("UPDATE_GOLDEN"):
        case.update(once)
    else:
        assert once == case.expected
    assert bool(context.trace) == case.fires
    if not case.fires:
        return  # the model is unchanged
    same_numbers(case, model_proto(model))
    assert optimize(model, case.passes(), case.context()).trace == []
    assert dump(model) == once


REMOVERS = {
    "ConstantFolding", "IfInlining", "EliminateSlice", "ReshapeFusion", "UnusedNodeElimination", "FillElimination",
    "StackReduceFusion", "StackedSlicesElimination", "StackedStepsFusion", "StepProductFusion", "StoreFusion",
    "WhereElimination", "ZeroStateElimination",
}  # fmt: skip
"""Rewrites after which nobody reads nodes that they do not touch."""


@sampled(16)
@pytest.mark.parametrize("case", FIRING, ids=lambda case: case.id)
def test_nodes_of_another_provider_stay(case: Case) -> None:
    """Every other node is another provider's, and the pass is for the CPU."""
    for first in (0, 1):
        model, context = from_proto(case.proto()), case.context()
        for node in [*model.graph.walk()][first::2]:
            node.ep = "nnapi"
        before = Counter(node.op for node in model.graph.walk() if node.ep)
        with context.for_cpu():
            optimize(model, case.passes(), context)
        after = Counter(node.op for node in model.graph.walk() if node.ep)
        assert after <= before
        assert after == before or not REMOVERS.isdisjoint(context.counts())


def sized(case: Case, size: int) -> onnx.ModelProto:
    """The model with this size for every symbol in the shapes of its inputs."""
    proto = case.proto()
    for dim in (d for v in proto.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param):
        dim.dim_value = size
    for dim in (d for v in (*proto.graph.output, *proto.graph.value_info) for d in v.type.tensor_type.shape.dim):
        dim.Clear()
    return proto


def of_sizes() -> list[tuple[Case, int]]:
    """The cases with symbols, with the sizes 0 and 1, as far as onnxruntime runs them; its Einsum divides by the size."""
    found = [c for c in CASES if c.header.get("run") != "no" and sized(c, 1) != sized(c, 2)]
    return [(case, size) for case in found for size in (0, 1) if size or "Einsum" not in case.source]


@sampled(16)
@pytest.mark.parametrize(("case", "size"), of_sizes(), ids=lambda value: getattr(value, "id", str(value)))
def test_empty_and_single(case: Case, size: int) -> None:
    """Dimensions are 0, or equal by accident."""
    source = sized(case, size)
    try:
        session(source).run(None, feeds(source, 0, special=False))
    except Exception:  # such as shapes that do not fit together
        pytest.skip("the source does not run")
    model, context = from_proto(source), case.context()
    optimize(model, case.passes(), context)
    if context.trace:
        same_numbers(case, model_proto(model), source)


def same_numbers(case: Case, result: onnx.ModelProto, source: onnx.ModelProto | None = None) -> None:
    source = source or case.proto()
    assert [v.name for v in result.graph.output] == [v.name for v in source.graph.output]
    if case.header.get("run") == "no":
        return
    onnx.checker.check_model(result, full_check=True)
    before, after = session(source), session(result)
    for seed in range(3):
        inputs = feeds(source, seed, special=case.header.get("feeds") == "special")
        for expected, actual in zip(before.run(None, inputs), after.run(None, inputs), strict=True):
            compare(expected, actual, case.tolerance)


def compare(expected: np.ndarray, actual: np.ndarray, tolerance: float) -> None:
    assert expected.dtype == actual.dtype
    assert expected.shape == actual.shape
    if expected.tobytes() == actual.tobytes():
        return
    if expected.dtype.kind == "f":
        if tolerance == 0:
            assert np.array_equal(np.signbit(expected) & ~np.isnan(expected), np.signbit(actual) & ~np.isnan(actual))
        scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
    else:
        np.testing.assert_array_equal(actual, expected)
