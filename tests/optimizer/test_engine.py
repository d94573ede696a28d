"""What the engine sees to itself."""

from __future__ import annotations

import onnx

from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, apply, find
from ortconv.optimizer.extended.gelu import fuse_quick_gelu


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
