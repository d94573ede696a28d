"""What ONNX Runtime's mobile usability checker says of whole models, node by node beside what the partitioner says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnxruntime.tools.mobile_helpers.usability_checker import PartitioningInfo
from partition_graphs import taken_ops

from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.onnxio.proto import model_proto
from ortconv.partition import Target, partition

Checker = Callable[[onnx.ModelProto, bool], PartitioningInfo]

NOT_LOOKED_AT = frozenset({
    "attribute", "constant", "constant-inputs", "dimension", "dtype", "inputs", "numbers", "qdq", "quantization",
    "rank", "runtime", "static-shape", "stop-op", "trivial",
})  # fmt: skip
"""Rules of the EPs that the checker, which reads names of operators and whether shapes are fixed, leaves out."""


def check_case(
    graph: Graph, target: Target, check: Checker, theirs: list[list[str]], ours: list[list[str]], rules: dict[str, str]
) -> None:
    """Assert which operators are in the checker's partitions and in ours, and by which rules nodes of an operator are refused."""
    checked = check(onnx.shape_inference.infer_shapes(model_proto(Model(graph))), True)
    assert [sorted(n.op_type for n in group) for group in checked.supported_groups] == list(map(sorted, theirs))
    result = partition(graph, target)
    assert list(map(sorted, taken_ops(result))) == list(map(sorted, ours))
    for op, rule in rules.items():
        found = [v for n, v in result.verdicts.items() if n.op == op and not v.taken]
        assert found
        assert all(rule in {o.rule for o in v.objections} for v in found)


def unexplained(path: Path, target: Target, check: Checker, listed: dict[str, str]) -> Iterator[str]:
    """Nodes of a model of which the checker says something else than the partitioner, unless for a simplification of its own.

    `listed` has the operators about which the checker's list is wrong, each with what is wrong about it.
    """
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    theirs, of_any_size = (
        {n.output[0] for g in check(proto, fixed).supported_groups for n in g} for fixed in (True, False)
    )
    graph = load(path).graph
    found = partition(graph, target)
    taken = {n for part in found.partitions for n in part.nodes}
    fixed = {
        v.name
        for v in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
        if v.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)
    } | {v.name for v in proto.graph.initializer}
    for node in graph:
        name = node.outputs[0].name if node.outputs and node.outputs[0] is not None else ""
        if node in taken and name not in theirs:
            open_input = any(v is not None and v.name not in fixed for v in node.inputs)
            if not (open_input if name in of_any_size else node.op in listed):
                yield f"taken only by us: {node.label}"
        elif node not in taken and name in theirs:
            rules = {o.rule for o in found.verdicts[node].objections} if node in found.verdicts else set()
            if not rules or not (rules <= NOT_LOOKED_AT or node.op in listed):
                yield f"refused only by us: {node.label}: {', '.join(sorted(rules))}"
