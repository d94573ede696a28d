"""Node units, the elements of partitions. A unit is a single node, or a QDQ group with its target operator.

A QDQ group is an operator with its own DequantizeLinear and QuantizeLinear nodes, which nothing else uses. It is atomic: its nodes
are all assigned to the target, or none of them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.nesting import readers
from ortconv.ir.operands import clip_bounds, scalar
from ortconv.ir.operators import MICROSOFT, traits
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit, UnitOperand

DOMAINS = frozenset({"", MICROSOFT, "com.ms.internal.nhwc"})
"""Domains whose operators may be the target of a QDQ group."""


# ---------------------------------------------------------------------- selectors

Members = Sequence[Node]
GroupCondition = Callable[[Node, Members, Members], bool]
"""condition(target, DQ nodes, Q nodes), called once the numbers of DQ and Q nodes match."""


def _same_types(target: Node, dqs: Members, qs: Members) -> bool:
    return len({*(dq.dtype(0) for dq in dqs), *(q.out.dtype for q in qs)}) == 1


def _first_type_kept(target: Node, dqs: Members, qs: Members) -> bool:
    return all(dqs[0].dtype(0) is q.out.dtype for q in qs)


def _same_parameters(target: Node, dqs: Members, qs: Members) -> bool:
    """True if all types are equal, and scales and zero points on both sides are equal constants of one element."""
    parameters = ((dqs[0].constant(slot), qs[0].constant(slot)) for slot in (1, 2))
    return _same_types(target, dqs, qs) and all(_equal_scalars(*pair) for pair in parameters)


def _equal_scalars(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or not a.size == b.size == 1:
        return False
    return a.dtype is b.dtype and a.item() == b.item()


def _bias_is_int32(dqs: Members) -> bool:
    return all(dq.dtype(0) is DType.INT32 for dq in dqs[2:])


def _normalization(target: Node, dqs: Members, qs: Members) -> bool:
    return _first_type_kept(target, dqs, qs) and _bias_is_int32(dqs)


def _weighted(target: Node, dqs: Members, qs: Members) -> bool:
    """True if the type of input 0 is kept, and input 1 is int8 if input 0 is."""
    weights_fit = len(dqs) < 2 or dqs[0].dtype(0) is not DType.INT8 or dqs[1].dtype(0) is DType.INT8
    return weights_fit and _first_type_kept(target, dqs, qs)


def _conv(target: Node, dqs: Members, qs: Members) -> bool:
    return _weighted(target, dqs, qs) and _bias_is_int32(dqs)


def _gemm(target: Node, dqs: Members, qs: Members) -> bool:
    return _conv(target, dqs, qs) and (len(dqs) < 3 or target.attr("beta", 1.0) == 1.0)


def _known_parameters(target: Node, dqs: Members, qs: Members) -> bool:
    """True if scale and zero point of the only DQ node are constants of one element."""
    constants = [dqs[0].constant(slot) for slot in (1, 2)]
    return all(found is not None and found.size == 1 for found in constants)


class Selector(NamedTuple):
    """The condition under which an operator and its neighbors form a QDQ group.

    `dq` lists the accepted numbers of DQ inputs (empty: one for every input that is present). `q` states which outputs feed Q
    nodes: "all", "none", "first", or "optional" (all or none). `since` limits the target's versions (empty: any). `clip` states
    whether a redundant Clip or Relu may join the group.
    """

    ops: tuple[str, ...]
    dq: tuple[int, ...]
    q: str
    condition: GroupCondition
    since: tuple[int, ...] = ()
    clip: bool = True


SELECTORS = (
    Selector(("Gather", "GatherElements", "Reshape", "Expand", "Flatten", "Transpose", "Resize", "Squeeze", "Unsqueeze", "Tile"),
             (1,), "all", _same_parameters, clip=False),
    Selector(("MaxPool",), (1,), "all", _same_parameters, since=(12,), clip=False),
    Selector(("ArgMax", "ArgMin"), (1,), "none", _known_parameters, clip=False),
    Selector(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LeakyRelu", "ReduceMean", "ReduceMin", "ReduceMax",
              "ReduceProd", "ReduceSum", "Relu", "Gelu", "Elu", "HardSigmoid", "HardSwish", "Sigmoid", "Slice", "LogSoftmax",
              "Softmax", "Sqrt", "Atan", "Asin", "Sin", "Cos", "Sign", "Tanh", "Exp", "Log", "LRN", "Ceil", "Floor", "Round", "Abs",
              "Neg", "DepthToSpace", "SpaceToDepth", "Clip", "LpNormalization", "Reciprocal", "CumSum"),
             (1,), "all", _same_types),
    Selector(("Split",), (1,), "all", _same_types, clip=False),
    Selector(("Add", "Div", "Mul", "Pow", "Sub", "PRelu", "GridSample", "Where", "ScatterElements"), (2,), "all", _same_types),
    Selector(("Concat", "Max", "Min", "Einsum"), (), "all", _same_types),
    Selector(("Conv", "ConvTranspose"), (), "all", _conv),
    Selector(("MatMul",), (2,), "all", _weighted),
    Selector(("Gemm",), (), "optional", _gemm),
    Selector(("InstanceNormalization", "LayerNormalization"), (), "all", _normalization),
    Selector(("RMSNormalization",), (), "all", _first_type_kept),
    Selector(("BatchNormalization",), (3, 4, 5), "all", _weighted),
    Selector(("Pad",), (1, 2), "all", _same_types),
    Selector(("TopK",), (1,), "first", _same_parameters, clip=False),
    Selector(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), (2,), "none", _same_types),
)  # fmt: skip

_SELECTOR_OF = {op: selector for selector in SELECTORS for op in selector.ops}


# ---------------------------------------------------------------------- groups


def units(nodes: Iterable[Node]) -> list[NodeUnit]:
    """The units of a graph, or of nodes that split no unit, in topological order of their targets. Each node is in one of them."""
    nodes = list(nodes)
    tried = ((node, _group(node, _SELECTOR_OF[node.op])) for node in nodes if groupable(node))
    groups = {node: unit for node, unit in tried if unit is not None}
    members = {node for unit in groups.values() for node in unit.nodes}
    targets = [node for node in nodes if node in groups or node not in members]
    return [groups[node] if node in groups else single_unit(node) for node in targets]


def groupable(node: Node) -> bool:
    """True if a selector exists for this operator."""
    return node.op in _SELECTOR_OF and node.domain in DOMAINS


def plain_unit(node: Node) -> NodeUnit:
    """A node as a unit, with its inputs and outputs unchanged."""
    return NodeUnit(node, (node,), tuple(map(_plain, node.inputs)), tuple(map(_plain, node.outputs)))


def _is_quantizer(node: Node, op: str, graph: Graph | None) -> bool:
    return node.op == op and node.domain in ("", MICROSOFT) and node.graph is graph


def _group(target: Node, selector: Selector) -> NodeUnit | None:
    graph = target.parent
    by_slot = _dequantizers(target, graph)
    dqs = list(by_slot.values())
    if not _fits(target, selector, dqs) or any(_only_edge(dq.out, graph) is None for dq in dqs):
        return None
    outputs = _quantized_outputs(target, selector, graph)
    if outputs is None:
        return None
    clip, qs = outputs
    if not selector.condition(target, dqs, qs):
        return None
    nodes = (*dqs, target, *clip, *qs)
    inputs = tuple(_dequantized(by_slot[i]) if i in by_slot else _plain(v) for i, v in enumerate(target.inputs))
    made = [_with_parameters(q.out, q, 1) for q in qs]
    return NodeUnit(target, nodes, inputs, (*made, *(_plain(v) for v in target.outputs[len(made) :])))


def _dequantizers(target: Node, graph: Graph) -> dict[int, Node]:
    """The DQ nodes that feed a node, by input slot."""
    makers = ((slot, value.producer) for slot, value in enumerate(target.inputs) if value is not None)
    return {i: dq for i, dq in makers if dq is not None and _is_quantizer(dq, "DequantizeLinear", graph)}


def _fits(target: Node, selector: Selector, dqs: Members) -> bool:
    """True if the selector matches the target's version and the number of its DQ nodes."""
    expected = selector.dq or (len(target.present_inputs),)
    if not dqs or len(dqs) not in expected:
        return False
    return not selector.since or since_version(target) in selector.since


def _quantized_outputs(target: Node, selector: Selector, graph: Graph) -> tuple[list[Node], list[Node]] | None:
    """The redundant Clip or Relu after the target, if any, and the Q nodes; None if the outputs do not fit the selector."""
    watched = target.present_outputs
    clip = _following_clip(target, graph)
    if clip is not None:
        q = _quantizer_after_clip(target, clip, graph) if selector.clip else None
        return None if q is None else ([clip], [q])
    if selector.q == "none":
        users = (user for value in watched for user, _ in value.uses)
        return None if any(_is_quantizer(user, "QuantizeLinear", graph) for user in users) else ([], [])
    if selector.q == "first":
        watched = watched[:1]
    if selector.q == "optional" and not any(_quantizers(v, graph) for v in watched):
        return [], []
    qs = [_only_quantizer(v, graph) for v in watched]
    return None if None in qs else ([], list(filter(None, qs)))


def _quantizer_after_clip(target: Node, clip: Node, graph: Graph) -> Node | None:
    """The Q node after a target and a Clip or Relu that its rounding makes redundant; None if there is none."""
    if any(v.is_output for v in target.present_outputs):
        return None
    q = _only_quantizer(clip.out, graph)
    return q if q is not None and _is_redundant(clip, q) else None


def _quantizers(value: Value, graph: Graph) -> list[Node]:
    """The Q nodes that quantize a value."""
    return [n for n, slot in readers(value, graph) if slot == 0 and _is_quantizer(n, "QuantizeLinear", graph)]


def _only_edge(value: Value, graph: Graph) -> tuple[Node, int] | None:
    """The reader of a value and the slot where it reads it; None if there are several, or the graph returns the value."""
    edges = [] if value.is_output else readers(value, graph)
    return edges[0] if len(edges) == 1 else None


def _only_quantizer(value: Value, graph: Graph) -> Node | None:
    """The only reader of a value if it is a Q node."""
    found = _quantizers(value, graph)
    return found[0] if found and _only_edge(value, graph) is not None else None


def _following_clip(target: Node, graph: Graph) -> Node | None:
    """The Clip or Relu that alone reads outputs of a node, once, and whose own result is read once; else None."""
    found = [reader for value in target.present_outputs for reader, _ in readers(value, graph)]
    is_clip = len(found) == 1 and found[0].op in ("Clip", "Relu") and _only_edge(found[0].out, graph) is not None
    return found[0] if is_clip else None


def _is_redundant(clip: Node, q: Node) -> bool:
    """True if a per-tensor Q node limits values at least as much as the Clip or Relu before it. Source: IsClipMadeRedundantByQ in
    ONNX Runtime's core/optimizer/qdq_transformer/qdq_util.cc.
    """
    limits = _INTEGER_LIMITS.get(q.out.dtype)
    scale, zero = _element(q.input(1), 1), _element(q.input(2), 0)
    if limits is None or scale is None or zero is None:
        return False
    if clip.op == "Relu":
        return zero == limits[0]
    low, high = (_quantized(bound, scale, int(zero)) for bound in clip_bounds(clip, _LARGEST))
    return low is not None and low <= limits[0] and high is not None and high >= limits[1]


def _element(value: Value | None, absent: int) -> float | int | None:
    """The element of a constant scalar; `absent` for an absent operand, None for anything else."""
    return None if value is not None and value.rank != 0 else scalar(value, absent)


def _quantized(bound: float, scale: float, zero: int) -> int | None:
    """A bound in int32 arithmetic as on Arm: conversions saturate, additions wrap. None for NaN."""
    with np.errstate(all="ignore"):
        steps = float(np.rint(np.float32(bound) / np.float32(scale)))
    if math.isnan(steps):
        return None
    saturated = int(min(max(steps, -(2.0**31)), 2.0**31 - 1))
    return (saturated + zero + 2**31) % 2**32 - 2**31


_LARGEST = float(np.finfo(np.float32).max)

_INTEGER_LIMITS: dict[DType | None, tuple[int, int]] = {
    DType.UINT8: (0, 255), DType.INT8: (-128, 127), DType.UINT16: (0, 65535), DType.INT16: (-32768, 32767),
}  # fmt: skip


# ---------------------------------------------------------------------- views


def _plain(value: Value | None) -> UnitOperand | None:
    return None if value is None else UnitOperand(value)


def _dequantized(dq: Node) -> UnitOperand | None:
    return _with_parameters(dq.input(0), dq, 1)


def single_unit(node: Node) -> NodeUnit:
    """A node as a unit. Quantized operands carry their scales and zero points."""
    count = traits(node).quantized
    inputs = tuple(map(_plain, node.inputs))
    outputs = tuple(map(_plain, node.outputs))
    if count:
        at = 3 * count
        tensors = [_with_parameters(node.input(3 * i), node, 3 * i + 1) for i in range(count)]
        inputs = (*tensors, *map(_plain, node.inputs[at + 2 :]))
        outputs = (_with_parameters(node.output(0), node, at),)
    elif node.op == "DequantizeLinear":
        inputs = (_dequantized(node),)
    elif node.op == "QuantizeLinear":
        inputs = inputs[:1]
        outputs = (_with_parameters(node.output(0), node, 1),)
    return NodeUnit(node, (node,), inputs, outputs)


def _with_parameters(value: Value | None, node: Node, slot: int) -> UnitOperand | None:
    return None if value is None else UnitOperand(value, node.input(slot), node.input(slot + 1))
