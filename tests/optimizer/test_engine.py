"""What the engine sees to itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import onnx
import pytest

from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, apply, find
from ortconv.optimizer.extended.gelu import fuse_quick_gelu
from ortconv.optimizer.levels import STAGES, opt_in_passes, passes_of
from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass
from ortconv.optimizer.pattern import P


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
LATER = [p for p in EVERY if isinstance(p, FunctionPass) and isinstance(p.run, LaterFunction)]
LATER_RULES = [p for p in EVERY if isinstance(p, LaterPass)]


@pytest.mark.parametrize("p", LATER, ids=lambda p: p.name)
def test_a_pass_that_is_imported_later_is_that_of_its_module(p: FunctionPass) -> None:
    assert isinstance(p.run, LaterFunction)
    module = sys.modules[p.run.function.__module__]
    assert [(q.name, q.operators, q.also, q.once, q.doc) for q in module.PASSES if q.name == p.name] == [
        (p.name, p.operators, p.also, p.once, p.doc)
    ]
    assert p.doc


def nodes_of(pattern: P) -> Iterator[P]:
    yield pattern
    for operand in pattern.inputs:
        if isinstance(operand, P):
            yield from nodes_of(operand)


@pytest.mark.parametrize("p", LATER_RULES, ids=lambda p: p.name)
def test_rules_that_are_imported_later_need_the_operators_of_their_pass(p: LaterPass) -> None:
    assert p.rules
    for rule in p.rules:
        assert rule.build.__module__.startswith("ortconv.optimizer.")
        assert any({(part.domain, op) for op in part.ops} <= {*p.operators} for part in nodes_of(rule.pattern)), rule


def test_passes_are_imported_when_a_model_has_their_operators() -> None:
    """Convolutional networks need neither attention nor recurrent networks."""
    modules = [p.run.function.__module__ for p in LATER if isinstance(p.run, LaterFunction)]
    modules += sorted({p.rules[0].build.__module__ for p in LATER_RULES})
    assert len(modules) > 12
    code = f"""
import sys
from onnx import parser
from ortconv.onnxio.load import from_proto
from ortconv.pipeline import optimize
text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ y = OP(x) }}'
for op in ("Relu", "Tanh"):
    optimize(from_proto(parser.parse_model(text.replace("OP", op))))
    print([name for name in {modules!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tanh = [
        "ortconv.optimizer.extended.recurrent.lstm",
        "ortconv.optimizer.basic.layer_norm",
        "ortconv.optimizer.extended.gelu",
    ]
    assert done.stdout.splitlines() == ["[]", str(tanh)]
