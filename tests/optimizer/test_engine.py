"""What the engine sees to itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import onnx
import pytest

from ortconv.ir.operators import operators
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, Rule, apply, find
from ortconv.optimizer.extended.gelu import fuse_quick_gelu
from ortconv.optimizer.levels import STAGES, opt_in_passes, passes_of
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import P
from tests.batches import batched


def test_a_rule_that_is_found_but_not_applied_imports_nothing() -> None:
    graph = from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { s = Sigmoid (x) y = Mul (x, s) }'
        )
    ).graph
    before = dict(graph.opsets)
    root = next(node for node in graph if node.op == "Mul")
    rule = next(r for r in fuse_quick_gelu if find(r, root, Context()) is not None)
    assert graph.opsets == before
    assert apply(rule, root, Context()) is not None
    assert graph.opsets == before | {"com.microsoft": 1}


def test_a_new_node_has_a_name_of_its_own() -> None:
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { s = Sigmoid(x) m = Mul(x, s) y = Neg(m) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.node[2].name = "m/QuickGelu"
    graph = from_proto(proto).graph
    root = next(node for node in graph if node.op == "Mul")
    assert apply(next(iter(fuse_quick_gelu)), root, Context()) is not None
    assert [node.op for node in graph] == ["QuickGelu", "Neg"]
    assert len({node.name for node in graph}) == 2


EVERY = [p for stage in STAGES for p in (*passes_of(stage), *opt_in_passes(stage))]
LATER = [p for p in EVERY if isinstance(p.source, str) and p._roots]
"""The passes whose modules are imported only for models with their operators."""


ALSO_IN_CODE = ("BatchFirstFusion", "ClipBoundFolding", "QDQSelectorActionTransformer")
"""Passes whose rules look for some of the operators in their functions."""


def nodes_of(pattern: P) -> Iterator[P]:
    yield pattern
    for operand in pattern.inputs:
        if isinstance(operand, P):
            yield from nodes_of(operand)


@batched
@pytest.mark.parametrize("p", EVERY, ids=lambda p: p.name)
def test_a_pass_has_rules_or_a_function_with_a_description(p: Pass) -> None:
    assert all(isinstance(r, Rule) for r in p.rules)
    assert all(r.doc for r in p.rules) if p.rules else p.doc


@batched
@pytest.mark.parametrize("p", LATER, ids=lambda p: p.name)
def test_rules_that_are_imported_later_need_the_operators_of_their_pass(p: Pass) -> None:
    also = () if p.name in ALSO_IN_CODE else p.also
    for rule in p.rules:
        parts = [{(part.domain, op) for op in part.ops} for part in nodes_of(rule.pattern)]
        assert any(part <= {*p.roots} for part in parts), rule
        assert not also or any(part <= {*also} for part in parts), rule


def test_operators_of_passes_exist() -> None:
    assert [(p.name, op) for p in LATER for domain, op in (*p.roots, *p.also) if op not in operators(domain)] == []


@pytest.mark.slow
def test_passes_are_imported_when_a_model_has_their_operators() -> None:
    """Convolutional networks need neither attention nor recurrent networks."""
    always = {r.build.__module__ for p in EVERY if not isinstance(p.source, str) for r in p.rules}
    named = (f"ortconv.optimizer.{str(p.source).partition(':')[0]}" for p in LATER)
    modules = [name for name in dict.fromkeys(named) if name not in always]
    assert len(modules) > 12
    code = f"""
import sys
from onnx import parser
from ortconv.ir.operators import operators
from ortconv.onnxio.load import from_proto
from ortconv.pipeline import optimize
text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ y = OP(x) }}'
for op in ("Relu", "Tanh"):
    optimize(from_proto(parser.parse_model(text.replace("OP", op))))
    print([name for name in {modules!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tanh = ["ortconv.optimizer.basic.layer_norm", "ortconv.optimizer.extended.gelu"]
    assert done.stdout.splitlines() == ["[]", str(tanh)]
