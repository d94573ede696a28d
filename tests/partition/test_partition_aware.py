"""NNAPI-aware conversion keeps exactly what NNAPI takes, and treats the rest as the extended level does."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from partition_graphs import mnist

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.schema import attribute, schema_of
from ortconv.ir.tensor import Tensor
from ortconv.ir.text import text
from ortconv.ir.types import Shape
from ortconv.models import load
from ortconv.optimizer.engine import Context
from ortconv.optimizer.levels import run_passes
from ortconv.optimizer.recipe import make as recipe_of
from ortconv.partition import Partitioning, Target, partition
from ortconv.pipeline import convert, optimize
from tests.conftest import NAMES, SAMPLES, SHARED_MODELS, SMALL

LARGE = ("stress_redundant_27k_op13", "stress_unrolled_lstm_ts13")
FIXED = {"batch": 1, "sequence": 16, "height": 64, "width": 64, "frames": 32, "time": 8, "unk__1": 1}
"""Numbers for the symbolic dimensions of the models, without which NNAPI supports no node."""
FOUND = sorted(SHARED_MODELS.glob("*.onnx")) if SHARED_MODELS.is_dir() else []
MODELS = [SAMPLES / f"{name}.onnx" for name in NAMES] + FOUND


def slow(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if path in FOUND and path.stem not in SMALL else []


CASES = [
    pytest.param(path, level, id=f"{path.stem}-{level}", marks=slow(path))
    for path in MODELS
    for level in ((31,) if path in FOUND else (27, 29, 31))
]
SLOW_CASES = [
    pytest.param(path, level, id=f"{path.stem}-{level}", marks=[pytest.mark.slow])
    for path in FOUND
    if path.stem not in LARGE
    for level in (27, 28, 29, 30)
]


def stored(shape: Shape | None) -> Shape | None:
    """A shape as files store it: without symbols that inference made up."""
    return None if shape is None else tuple(None if isinstance(d, str) and "?" in d else d for d in shape)


def described(node: Node, own: Collection[str] | None = None) -> tuple[object, ...]:
    """All that makes a node what it is; attributes with defaults filled in, as ORT format has them stated.

    With `own`, tensors that nodes of other names make go without name: the CPU's rewrites may give them another. So do constants,
    since the CPU's level shares equal ones; their content is listed.
    """

    def name(v: Value | None) -> str | None:
        if v is None or own is None or v.name in own:
            return None if v is None else v.name
        return "made by the CPU" if v.producer is not None else "constant" if v.constant is not None else v.name

    schema = schema_of(node)
    names = {*node.attrs, *(schema.defaults if schema else ())}
    attrs = {name: attribute(node, name) for name in names}
    values = [v.const for v in node.inputs if v is not None and v.constant is not None]
    return (
        node.op,
        node.domain,
        [name(v) for v in node.inputs],
        [None if v is None else (v.name, v.dtype, stored(v.shape)) for v in node.outputs],
        sorted((name, text(a) if isinstance(a, Graph) else str(a)) for name, a in attrs.items() if a is not None),
        [(c.dtype, c.shape, c.digest()) for c in values if isinstance(c, Tensor)],
    )


def fixed(path: Path) -> dict[str, int]:
    dims = {d for v in load(path).graph.inputs for d in v.shape or () if isinstance(d, str)}
    return {name: size for name, size in FIXED.items() if name in dims}


def basic(path: Path, target: Target) -> tuple[Graph, Partitioning]:
    graph = load(path, fixed(path))
    optimize(graph, recipe_of("basic", nnapi=True))
    return graph.graph, partition(graph.graph, target)


def places(partitioning: Partitioning) -> list[list[str]]:
    return [sorted(n.out.name for n in p.nodes) for p in partitioning.partitions]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "level"), CASES + SLOW_CASES)
def test_taken_nodes_are_unchanged_in_the_file(path, level, tmp_path):
    target = Target(feature_level=level)
    _, before = basic(path, target)
    out = tmp_path / "model.ort"
    settings = {"nnapi_feature_level": level, "optimization_level": "extended", "fix_dims": fixed(path)}
    convert(path, out, use_nnapi=True, validate=False, **settings)
    graph = load(out).graph
    for node in graph:
        node.ep = ""
    written = {n.out.name: n for n in graph}
    own = {v.name for p in before.partitions for n in p.nodes for v in n.outputs if v is not None}
    for part in before.partitions:
        for node in part.nodes:
            assert described(written[node.out.name], own) == described(node, own)
    divided = places(partition(graph, target))
    if any(o.rule == "qdq" for v in before.verdicts.values() for o in v.objections):
        # The extended level takes refused QDQ groups apart, and NNAPI may take what is left of them: that only joins partitions.
        assert all(any(set(part) <= set(other) for other in divided) for part in places(before))
    else:
        assert divided == places(before)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "level"), CASES + SLOW_CASES)
def test_the_rest_is_what_the_extended_level_makes(path, level):
    # The same by other means: what NNAPI accepts is of a domain that no rule knows while the level runs.
    target = Target(feature_level=level)
    aware = load(path, fixed(path))
    optimize(aware, "extended", target)
    graph, before = basic(path, target)
    taken = {n: n.domain for n, v in before.verdicts.items() if v.taken}
    for node in taken:
        node.domain = "opaque"
    for _ in run_passes(graph, recipe_of("extended").above_basic, Context(only_cpu=True)):
        pass
    graph.prune()
    for node, domain in taken.items():
        node.domain = domain
    assert {n.out.name: described(n) for n in graph} == {n.out.name: described(n) for n in aware.graph}


def test_conversion_that_is_not_aware_fails_this(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(mnist("raw").SerializeToString())
    out = tmp_path / "m.ort"
    convert(path, out, optimization_level="extended", validate=False)
    written = {n.out.name for n in load(out).graph}
    _, before = basic(path, Target())
    assert not {n.out.name for p in before.partitions for n in p.nodes} <= written
