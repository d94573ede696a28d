"""Graphs compared value by value: whatever the order, wherever values were renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortconv.compare import layers as module
from ortconv.compare.comparison import Origin, Subject, compare
from ortconv.compare.layers import compare_layers, largest_loss
from ortconv.inputs.candidates import first_run
from ortconv.ir.graph import Graph
from ortconv.ir.journal import Journal
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, New, Replacement, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import Match, P
from ortconv.pipeline import optimize_traced
from ortconv.runtime.session import Session
from tests import text_models
from tests.conftest import FAST_NAMES


def model(text: str) -> Model:
    return from_proto(text_models.parse(text))


FORWARD = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(x) c = Sqrt(a) d = Abs(b) e = Add(c, d) y = Neg(e) }"
BACKWARD = "g (float[4] x) => (float[4] y) { b = Neg(x) d = Abs(b) a = Exp(x) c = Sqrt(a) e = Add(c, d) y = Neg(e) }"


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_the_order_of_the_nodes_does_not_matter(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", room)
    feeds = {"x": np.float32([1, -2, 3, 4])}
    for a, b in ((FORWARD, BACKWARD), (BACKWARD, FORWARD)):
        found = list(compare_layers(model(a).graph, model(b).graph, (["numpy"], ["numpy"]), feeds))
        assert sorted(layer.name for layer in found) == list("abcdey")
        assert all(layer.same and layer.found.max_abs == 0 for layer in found)


def test_the_first_value_that_differs() -> None:
    a, b = model(FORWARD), model(FORWARD.replace("Sqrt(a)", "Tanh(a)"))
    feeds = {"x": np.float32([1, -2, 3, 4])}
    found = list(compare_layers(a.graph, b.graph, (["numpy"], ["onnxruntime"]), feeds))
    assert [layer.name for layer in found if not layer.same] == ["c", "e", "y"]
    assert next(layer for layer in found if not layer.same).node.label == "Tanh 'c'"


def test_nan_is_the_largest_loss() -> None:
    a, b = model(FORWARD), model(FORWARD.replace("Exp(x)", "Tanh(x)").replace("Sqrt(a)", "Log(a)"))
    found = list(compare_layers(a.graph, b.graph, (["numpy"], ["numpy"]), {"x": np.float32([1, -2, 3, 4])}))
    assert [layer.name for layer in found if not layer.same] == ["a", "c", "e", "y"]
    loss = largest_loss(found)
    assert loss is not None
    assert loss.layer.name == "c"
    assert 0 < loss.before < np.inf


def test_values_of_another_shape_stand_for_something_else() -> None:
    a = model("g (float[2,3,4] x) => (float[2,3,4] y) { t = Neg(x) y = Exp(t) }")
    b = model("g (float[2,3,4] x) => (float[2,3,4] y) { t = Transpose(x) u = Neg(t) v = Transpose(u) y = Exp(v) }")
    feeds = {"x": np.ones((2, 3, 4), np.float32)}
    found = list(compare_layers(a.graph, b.graph, (["numpy"], ["numpy"]), feeds))
    assert [layer.name for layer in found] == ["y"]


def test_values_that_nothing_reads_do_not_count() -> None:
    a = model("g (float[2] x) => (float[2] y) { y = Neg(x) t = Exp(x) }")
    b = model("g (float[2] x) => (float[2] y) { y = Neg(x) t = Abs(x) }")
    found = list(compare_layers(a.graph, b.graph, (["numpy"], ["numpy"]), {"x": np.float32([1, 2])}))
    assert [layer.name for layer in found] == ["y"]


def test_values_in_another_order_are_said_to_be_so() -> None:
    a = model("g (float[3,3,3] x) => (float[3,3,3] y) { t = Neg(x) y = Exp(t) }")
    b = model("g (float[3,3,3] x) => (float[3,3,3] y) { u = Transpose(x) t = Neg(u) v = Transpose(t) y = Exp(v) }")
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 3, 3)).astype(np.float32)}
    t, y = compare_layers(a.graph, b.graph, (["numpy"], ["numpy"]), feeds)
    assert (t.name, t.permuted, t.same) == ("t", True, True)
    assert (y.permuted, y.found.max_abs) == (False, 0)


QUANTIZED = """g (float[4] x) => (float[4] y) {
    s = Constant <value_float: float = 0.125> ()
    t = Exp(x) q = QuantizeLinear(t, s) d = DequantizeLinear(q, s) e = DequantizeLinear(q, s) y = Add(d, e)
}"""


def test_what_is_only_quantized_is_compared_as_it_is_read() -> None:
    clipped = model(
        "g (float[4] x) => (float[4] y) { two = Constant <value_float: float = 2.0> () u = Exp(x) t = Min(u, two) y = Add(t, t) }"
    )
    coarse, fine = model(QUANTIZED), model(QUANTIZED.replace("0.125", "0.0078125"))
    feeds = {"x": np.float32([0, 0.5, 2, 9])}
    t, _ = compare_layers(clipped.graph, fine.graph, (["numpy"], ["numpy"]), feeds)
    assert (t.name, t.other, t.node.op) == ("t", "t", "Exp")
    assert t.found.max_abs < 0.01
    both = {layer.name: layer for layer in compare_layers(coarse.graph, fine.graph, (["numpy"], ["numpy"]), feeds)}
    assert both["t"].found.max_abs == 0 < both["d"].found.max_abs


def nodes(graph: Graph) -> set[str]:
    return {v.name for node in graph for v in node.outputs if v is not None}


@pytest.mark.parametrize(
    "level", [*(pytest.param(level, marks=pytest.mark.slow) for level in ("basic", "extended")), "all"]
)
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_renamed_values_are_followed_through_the_rewrites(sample: Path, level: str) -> None:
    source, result = load(sample), load(sample)
    before = nodes(source.graph)
    _, names = optimize_traced(result, level)
    assert set(names) <= before
    assert set(names.values()) <= nodes(result.graph)
    feeds, _ = first_run(Session(source))
    found = list(compare_layers(source.graph, result.graph, (["numpy"], ["numpy"]), feeds, names))
    assert [layer for layer in found if not layer.same] == []
    unchanged = compare_layers(source.graph, result.graph, (["numpy"], ["numpy"]), feeds)
    assert len(found) >= len(list(unchanged))


def test_most_values_of_a_fused_model_are_found_again(samples: Path) -> None:
    model = load(samples / "mobilenet_v2_small.onnx")
    _, names = optimize_traced(model, "extended")
    assert set(names.values()) == nodes(model.graph)


@rule("WrongFusion", P("Sqrt", P("Exp", "x")))
def wrong(m: Match) -> Replacement:
    """Sqrt(Exp(x)) -> Sigmoid(x)"""
    return New("Sigmoid", [m.x], {})


@rule("RightFusion", P("Abs", P("Neg", "x")))
def right(m: Match) -> Replacement:
    """Abs(Neg(x)) -> Abs(x)"""
    return New("Abs", [m.x], {})


def test_the_rewrite_at_fault_is_named() -> None:
    source, result = model(FORWARD), model(FORWARD)
    journal = Journal(result.graph)
    context = Context(journal=journal)
    Pass("Rules", right + wrong).run(result.graph, context)
    rewrites = {label: r.rule for r in context.trace if r.change is not None for label in r.change.made}
    origin = Origin(journal.names(), rewrites)
    subjects = [Subject("a", source, ("numpy",)), Subject("b", result, ("numpy",), None, origin)]
    _, (found,) = compare(subjects, {"x": np.float32([1, -2, 3, 4])}, layers=True)
    assert not found.same
    assert found.first is not None
    assert (found.first.name, found.first.node.op) == ("c", "Sigmoid")
    assert found.suspects == ["WrongFusion"]
    assert [layer.name for layer in found.layers or () if layer.same] == ["d"]
