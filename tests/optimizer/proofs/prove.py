"""Rewrites held against what they replace, in exact arithmetic: one rewrite at a time, at several points and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from golden import Case, passes_in
from mpmath import mp, mpf

from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context
from ortconv.optimizer.levels import run_passes
from tests.model_inputs import drawn

from .evaluate import outputs
from .real import DIGITS, Real

SIZES = (3, 2, 4, 1, 6)
"""What every symbol of an input's shape becomes, in turn."""

POINTS = 2
"""Random points for each shape."""


@dataclass(frozen=True)
class Step:
    """One rewrite of a case: the rules that made it, usually one, and how far its results are from those before it."""

    case: str
    rules: tuple[str, ...]
    digits: float
    """Decimal digits that all float outputs share with those before; infinite where they are equal."""
    steps: int
    """The largest difference of an integer output."""
    runs: int
    """Points at which both sides were evaluated."""


def states(case: Case) -> Iterator[tuple[tuple[str, ...], Graph]]:
    """The graph of a case as it is, then after each of its rewrites, with the rules that made the last of them."""
    limit, before, total = 0, 0, 1
    while limit <= total:
        model, context = after(case, limit)
        if limit and len(context.trace) <= before:
            break
        yield tuple(r.rule for r in context.trace[before:]), model.graph
        before = len(context.trace)
        total, limit = before + 1, before + 1


def after(case: Case, limit: int) -> tuple[Model, Context]:
    """The model of a case after at most `limit` rewrites; a pass that cannot stop in its middle makes more."""
    model, context = from_proto(case.proto()), case.context(limit)
    for _ in run_passes(model.graph, case.passes(), context):
        pass
    model.graph.prune()
    return model, context


def prove(case: Case, alter: Callable[[Graph], None] = lambda graph: None) -> list[Step]:
    """Every rewrite of a case, held against the graph before it. AssertionError where no point can be evaluated.

    The shapes that propagation finds in each graph are held against those of the values.

    `alter` changes the graph that the last rewrite makes, to see whether that is noticed.
    """
    source = case.proto()
    found = list(states(case))
    for _, graph in found:
        for _ in run_passes(graph, passes_in("propagation"), Context()):
            pass
    alter(found[-1][1])
    results = list(_evaluations(source, [graph for _, graph in found]))
    assert results, f"{case.id}: no point can be evaluated"
    steps = []
    for i, (rules, _) in enumerate(found[1:]):
        compared = [difference(run[i], run[i + 1]) for run in results]
        digits, apart = min(d for d, _ in compared), max(s for _, s in compared)
        steps.append(Step(case.id, rules, digits, apart, len(results)))
    return steps


def _evaluations(source: onnx.ModelProto, graphs: list[Graph]) -> Iterator[list[list[Any]]]:
    """At each point, the outputs of all graphs. A shape that the source refuses is left out."""
    free = any(d.dim_value == 0 for v in source.graph.input for d in v.type.tensor_type.shape.dim)
    for index in range((len(SIZES) if free else 1) * POINTS):
        feeds = drawn(source, _numbers, index, SIZES[index // POINTS])
        try:
            first = outputs(graphs[0], feeds)
        except (ValueError, IndexError, AssertionError):
            if index < POINTS:
                raise
            continue
        yield [first, *(outputs(graph, feeds) for graph in graphs[1:])]


def _numbers(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Floats have few digits, of which no type loses any."""
    if dtype.itemsize == 1 and dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape)
    bits = {"float64": 40, "float32": 16}.get(dtype.name, 6)
    return np.asarray(rng.integers(-3 << bits, 3 << bits, shape) / (1 << bits))


def difference(before: list[Any], after: list[Any]) -> tuple[float, int]:
    """The digits that floats share, in terms of the largest of each output, and how far integers are apart."""
    digits, steps = float("inf"), 0
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        if isinstance(a, list):
            inner = difference(a, b)
            digits, steps = min(digits, inner[0]), max(steps, inner[1])
            continue
        if np.shape(a) != np.shape(b):
            return -1.0, steps
        if a.dtype != b.dtype:
            return -1.0, steps
        if a.dtype != object or (a.size and isinstance(a.flat[0], str)):
            if a.dtype.kind in "iu":
                steps = max(steps, int(np.abs(a.astype(object) - b.astype(object)).max(initial=0)))
            else:
                steps = max(steps, int((a != b).any()))
            continue
        digits = min(digits, _digits(a.reshape(-1).tolist(), b.reshape(-1).tolist()))
    return digits, steps


def _digits(before: list[Real], after: list[Real]) -> float:
    largest, error = mpf(0), mpf(0)
    for x, y in zip(before, after, strict=True):
        if x == y or (x != x and y != y):
            largest = max(largest, _finite(x))
            continue
        gap = (x - y).value
        gap = mpf(gap.numerator) / gap.denominator if hasattr(gap, "numerator") else gap
        if not mp.isfinite(gap):
            return -1.0
        largest, error = max(largest, _finite(x)), max(error, abs(gap))
    if not error:
        return float("inf")
    shared = float(-mp.log10(error / largest)) if largest else -1.0
    return float("inf") if shared > DIGITS else shared


def _finite(x: Real) -> mpf:
    value = abs(x).value
    value = mpf(value.numerator) / value.denominator if hasattr(value, "numerator") else value
    return value if mp.isfinite(value) else mpf(0)
