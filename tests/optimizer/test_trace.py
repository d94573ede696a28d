"""What the trace says of every rewrite, held against counting the whole model anew."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from golden import Case, cases
from rewriting import parse

import ortconv
from ortconv.ir.graph import Graph
from ortconv.ir.journal import Journal
from ortconv.ir.model import Model
from ortconv.ir.tensor import Tensor
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.basic.fold_constants import fold
from ortconv.optimizer.engine import Context
from ortconv.optimizer.levels import run_passes
from tests.batches import sampled


def nodes(graph: Graph) -> int:
    return sum(1 for _ in graph.walk())


def held(graph: Graph) -> int:
    values = {v for g in graph.graphs() for v in g.initializers.values() if v.uses or v.is_output}
    return sum(v.const.nbytes for v in values if isinstance(v.const, Tensor))


class Recounting(Context):
    """Compares every entry of the trace with the model as it is then."""

    graph: Graph

    def record(self, rule: str, root: str, removed: int = 1, added: int = 0) -> None:
        super().record(rule, root, removed, added)
        change = self.trace[-1].change
        assert change is not None
        assert (change.nodes_after, change.bytes_after) == (nodes(self.graph), held(self.graph)), rule
        if not any(label.partition(" ")[0] in ("If", "Loop", "Scan") for label in change.consumed):
            assert change.nodes_after - change.nodes_before == len(change.made) - len(change.consumed), rule


def recounted(model: Model) -> Recounting:
    context = Recounting(journal=Journal(model.graph))
    context.graph = model.graph
    return context


def hold_together(context: Context, before: tuple[int, int], after: tuple[int, int]) -> None:
    """Every rewrite begins where the one before it ended."""
    changes = [rewrite.change for rewrite in context.trace if rewrite.change is not None]
    assert len(changes) == len(context.trace)
    assert (changes[0].nodes_before, changes[0].bytes_before) == before
    assert (changes[-1].nodes_after, changes[-1].bytes_after) == after
    assert all(a.nodes_after == b.nodes_before and a.bytes_after == b.bytes_before for a, b in pairwise(changes))
    assert all(change.seconds >= 0 for change in changes)
    assert all(rewrite.removed >= 0 and rewrite.added >= 0 for rewrite in context.trace)


@pytest.mark.parametrize("use_nnapi", [False, True], ids=["cpu", "nnapi"])
def test_every_rewrite_of_the_samples(sample: Path, use_nnapi: bool) -> None:
    from ortconv.partition import Target

    model = ortconv.load(sample)
    before = nodes(model.graph), held(model.graph)
    context = recounted(model)
    ortconv.optimize(model, target=Target() if use_nnapi else None, context=context)
    if sample.stem != "loop_accumulate":
        hold_together(context, before, (nodes(model.graph), held(model.graph)))


FIRING = [case for case in cases() if case.fires]


@sampled(8)
@pytest.mark.parametrize("case", FIRING, ids=[case.id for case in FIRING])
def test_every_rewrite_of_the_golden_cases(case: Case) -> None:
    model = from_proto(case.proto())
    before = nodes(model.graph), held(model.graph)
    context = recounted(model)
    context.settings = case.context().settings._replace(release=None)
    for _ in run_passes(model.graph, case.passes(), context):
        pass
    hold_together(context, before, (nodes(model.graph), held(model.graph)))


def test_a_branch_that_is_inlined_or_dropped() -> None:
    text = """g (float[2] x) => (float y) <bool c = {1}, float[3] outer = {1, 2, 3}> {
        z = If(c) <then_branch = t () => (float[2] a) <float[2] k = {1, 2}> { a = Add(x, k) },
                   else_branch = e () => (float[2] b) <float[9] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
                       s = ReduceSum<keepdims = 0>(w) u = ReduceSum<keepdims = 0>(outer) v = Mul(s, u) b = Mul(x, v) }>
        y = Relu(z) }"""
    model = from_proto(parse(text))
    before = nodes(model.graph), held(model.graph)
    context = recounted(model)
    fold(model.graph, context)
    hold_together(context, before, (nodes(model.graph), held(model.graph)))
    assert held(model.graph) == 8
    assert nodes(model.graph) == 2


def test_the_trace_as_data(samples: Path) -> None:
    model = ortconv.load(samples / "mnist.onnx")
    optimized = ortconv.optimize(model, context=recounted(model))
    first = optimized.trace[0].to_dict()
    assert (first["rule"], first["operator"], first["name"]) == ("ConvAddFusion", "Add", "Plus30")
    assert set(first["consumed"]) == {"Add 'Plus30'", "Conv 'Convolution28'"}
    assert first["made"] == ("Conv 'Convolution28'",)
    assert first["nodes_after"] == first["nodes_before"] - 1


def test_a_closed_journal_hears_nothing(samples: Path) -> None:
    model = ortconv.load(samples / "loop_accumulate.onnx")
    journal = Journal(model.graph)
    assert all(g.journal is journal for g in model.graph.graphs())
    count = journal.nodes
    journal.close()
    assert all(g.journal is None for g in model.graph.graphs())
    ortconv.optimize(model)
    assert journal.take().nodes_after == count


def test_no_journal_unless_asked_for(samples: Path) -> None:
    model = ortconv.load(samples / "mnist.onnx")
    optimized = ortconv.optimize(model)
    assert optimized.trace
    assert all(rewrite.change is None for rewrite in optimized.trace)
    assert model.graph.journal is None
