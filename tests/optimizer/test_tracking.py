"""A pass that runs again looks near changes only, and finds what it would find anywhere."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random
from unittest import mock

import pytest
import random_examples
from typed_graphs import ImpossibleError

from ortconv.ir.graph import Node
from ortconv.models import load
from ortconv.optimizer.engine import Context, apply, find
from ortconv.optimizer.levels import passes_of, run_passes
from ortconv.pipeline import optimize
from tests.batches import slow_except

TRIES = 6
"""Rules tried at each node of a sample on average, at most."""


def missed(source: Path | bytes) -> list[str]:
    """Matches at nodes that a pass passes over when it runs again."""
    model, context, found = load(source), Context(), list[str]()
    for passes in (passes_of("basic"), passes_of("extended")):
        seen: set[str] = set()
        for p, _ in run_passes(model.graph, passes, context):
            following = passes[(passes.index(p) + 1) % len(passes)]
            seen.add(p.name)
            tracker = context.tracker
            if tracker is None or following.name not in seen:
                continue
            since = tracker._ran.get(following, 0)
            found += [
                f"{r.name} at {node.label}"
                for graph in model.graph.graphs()
                for node in graph
                if node.touched < since
                for r in following.rules
                if (node.domain, node.op) in {(r.pattern.domain, op) for op in r.pattern.ops}
                and find(r, node, context) is not None
            ]
    return found


@pytest.mark.parametrize("first", slow_except([0], range(0, 60, 10)))
def test_nothing_is_missed_in_random_models(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            proto = random_examples.example(Random(seed)).proto
        except ImpossibleError:
            continue
        assert not missed(proto.SerializeToString()), seed


@pytest.mark.parametrize("name", ["mnist", "bert_tiny", "mobilenet_v2_small"])
def test_nothing_is_missed_in_samples(samples: Path, name: str) -> None:
    assert not missed(samples / f"{name}.onnx")


@pytest.mark.parametrize("name", ["mnist", "bert_tiny", "mobilenet_v2_small"])
def test_few_rules_are_tried(samples: Path, name: str) -> None:
    model = load(samples / f"{name}.onnx")
    nodes = sum(1 for _ in model.graph.walk())
    with mock.patch("ortconv.optimizer.passes.apply", wraps=apply) as tried:
        optimize(model)
    assert 0 < tried.call_count <= TRIES * nodes


def test_operators_that_are_not_there_cost_nothing(samples: Path) -> None:
    model, context = load(samples / "mnist.onnx"), Context()
    absent = next(p for p in passes_of("extended") if p.name == "GeluFusion")
    with mock.patch("ortconv.optimizer.passes.apply", wraps=apply) as tried:
        assert all(count == 0 for _, count in run_passes(model.graph, (absent,), context))
    assert tried.call_count == 0
    assert context.tracker is None
    assert model.graph.journal is None


@pytest.mark.slow
def test_removed_nodes_are_freed_without_a_garbage_collection(samples: Path) -> None:
    model, context = load(samples / "bert_tiny.onnx"), Context()
    before = len(model.graph)
    gc.collect()
    gc.disable()
    try:
        others = count_nodes() - before
        for _ in run_passes(model.graph, passes_of("basic"), context):
            pass
        assert len(model.graph) < before
        assert count_nodes() - others == len(model.graph)
    finally:
        gc.enable()


def count_nodes() -> int:
    """The nodes in memory, of any graph."""
    return sum(type(found) is Node for found in gc.get_objects())
