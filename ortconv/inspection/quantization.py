"""The quantization of a model: its operators, what it computes in float, and which QDQ groups NNAPI and CoreML support."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ortconv.inspection.costs import type_names
from ortconv.ir.graph import Graph, Node
from ortconv.ir.operators import Trait, traits
from ortconv.ir.units import NodeUnit
from ortconv.optimizer.quantizers import BYTES, LIMITS
from ortconv.partition import Partitioning, Target, cost, partition
from ortconv.partition.partitioner import node_name
from ortconv.partition.units import groupable, units

Form = Literal["none", "QDQ", "QOperator", "dynamic", "weights only", "mixed"]

DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Operators that compute the scale of an activation at run time."""
WEIGHTS_ONLY = frozenset({"MatMulNBits", "GatherBlockQuantized", "DequantizeLinear"})
"""Operators that occur if only weights are quantized."""
STATIC = frozenset({"QGemm", "QAttention", "ConvInteger"})
"""Operators on quantized activations, in addition to those whose names begin with QLinear."""
INTEGER = STATIC | DYNAMIC | {"MatMulInteger", "MatMulIntegerToFloat"}
"""Operators on quantized values, in addition to those whose names begin with QLinear."""


@dataclass(frozen=True, slots=True)
class Range:
    """A quantized tensor with the real numbers that it can hold."""

    name: str
    type: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ModelQuantization:
    """The quantization of a model."""

    form: Form
    quantized_nodes: int
    """Number of nodes that compute on quantized activations, or that ONNX Runtime fuses so that they do."""
    activation_types: list[str]
    weight_types: list[str]
    per_channel: int
    """Number of weights with one scale for each channel."""
    per_tensor: int
    narrowest: Range | None
    widest: Range | None
    float_nodes: int
    """Number of nodes that compute in float without quantized neighbors. Nodes that only move elements do not count."""
    float_operators: dict[str, int]
    float_share: float
    """The share of multiply-adds in float, from 0 to 1."""


def quantization(graph: Graph) -> ModelQuantization:
    nodes = list(graph.walk())
    form = _form(nodes)
    computing = [] if form == "none" else list(filter(_computes, nodes))
    floats = [node for node in computing if _is_in_float(node)]
    total = sum(map(_multiply_adds, nodes))
    weights, activations = _tensors(nodes)
    ranges = sorted((r for n in activations if (r := _range(n)) is not None), key=lambda r: r.high - r.low)
    per_channel = sum(_scales(node) > 1 for node in weights)
    return ModelQuantization(
        form,
        len(computing) - len(floats),
        type_names(node.output(0) for node in activations),
        type_names(node.input(0) for node in weights),
        per_channel,
        len(weights) - per_channel,
        next(iter(ranges), None),
        next(reversed(ranges), None),
        len(floats),
        dict(Counter(node.operator for node in floats).most_common()),
        sum(map(_multiply_adds, floats)) / total if total else 0.0,
    )


def _multiply_adds(node: Node) -> int:
    return 0 if node.subgraphs else cost.multiply_adds(node)


def _form(nodes: Sequence[Node]) -> Form:
    ops = {node.op for node in nodes}
    signs: dict[Form, bool] = {
        "QDQ": "QuantizeLinear" in ops and any(map(_feeds_floats, nodes)),
        "QOperator": any(op in STATIC or op.startswith("QLinear") for op in ops),
        "dynamic": not ops.isdisjoint(DYNAMIC),
    }
    found = [form for form, has_sign in signs.items() if has_sign]
    if not found:
        return "none" if ops.isdisjoint(WEIGHTS_ONLY) else "weights only"
    return found[0] if len(found) == 1 else "mixed"


def _is_activation(node: Node) -> bool:
    """True for a DequantizeLinear of an activation: a computed value or an input."""
    return node.op == "DequantizeLinear" and node.inputs[0] is not None and node.inputs[0].constant is None


def _feeds_floats(node: Node) -> bool:
    """True for a DequantizeLinear of an activation if an operator computes on its result."""
    return _is_activation(node) and any(reader.op != "QuantizeLinear" for reader in node.out.consumers)


def _computes(node: Node) -> bool:
    """True for an operator on floats or quantized values that computes, and does not only move or convert elements."""
    dtype = node.dtype(0)
    if node.subgraphs or traits(node).has(Trait.MOVES) or dtype is None:
        return False
    if node.op in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"):
        return False
    return dtype.is_float or _is_integer_operator(node)


def _is_integer_operator(node: Node) -> bool:
    return node.op.startswith("QLinear") or node.op in INTEGER


def _is_in_float(node: Node) -> bool:
    """True for an operator on floats without a DequantizeLinear of an activation before it or a QuantizeLinear after it."""
    if _is_integer_operator(node):
        return False
    return not _quantizers(node) and not any(map(_is_activation, _dequantizers(node)))


def _dequantizers(node: Node) -> list[Node]:
    """The DequantizeLinear nodes that a node reads."""
    made = (v.producer for v in node.present_inputs)
    return [n for n in made if n is not None and n.op == "DequantizeLinear"]


def _quantizers(node: Node) -> list[Node]:
    """The QuantizeLinear nodes that read the results of a node."""
    return [n for v in node.present_outputs for n in v.consumers if n.op == "QuantizeLinear"]


def _tensors(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The DequantizeLinear nodes of constants, and the QuantizeLinear nodes of activations."""
    dequantizers = ((n, n.inputs[0]) for n in nodes if n.op == "DequantizeLinear")
    weights = [n for n, value in dequantizers if value is not None and value.const is not None]
    return weights, [n for n in nodes if n.op == "QuantizeLinear"]


def _scales(node: Node) -> int:
    scale = node.input(1)
    shape = None if scale is None else scale.static_shape
    return math.prod(shape) if shape else 1


def _range(node: Node) -> Range | None:
    """The range of an activation that is quantized to bytes by one constant, finite scale, else None."""
    scale, dtype = _number(node, 1), node.out.dtype
    zero = 0.0 if node.input(2) is None else _number(node, 2)
    if scale is None or zero is None or dtype not in BYTES or not math.isfinite(scale):
        return None
    low, high = LIMITS[dtype]
    return Range(node_name(node), dtype.name.lower(), (low - zero) * scale, (high - zero) * scale)


def _number(node: Node, slot: int) -> float | None:
    """A constant operand of one element."""
    const = node.constant(slot)
    return float(const.item()) if const is not None and const.size == 1 else None


# ---------------------------------------------------------------------- lint


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a target does not support a group, and what to change."""

    rule: str
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The verdict of one target on a group, or on an operator that is no group since a neighbor is missing."""

    node: str
    operator: str
    target: str
    taken: bool
    reasons: list[Refused]


def lint(graph: Graph) -> list[GroupVerdict]:
    """For each QDQ group of the main graph, whether NNAPI and CoreML support it; for other operators, the quantizers they lack."""
    found = [unit for unit in units(graph) if unit.is_group]
    members = {node for unit in found for node in unit.nodes}
    rows: list[GroupVerdict] = []
    for target in (Target("nnapi"), Target("coreml")):
        partitioning = partition(graph, target, anew=True)
        rows += [_verdict(unit, partitioning) for unit in found]
    rows += [
        GroupVerdict(node_name(node), node.operator, "both", taken=False, reasons=[missing])
        for node in graph
        if node not in members and (missing := _missing(node)) is not None
    ]
    return rows


def _verdict(unit: NodeUnit, partitioning: Partitioning) -> GroupVerdict:
    verdicts = [partitioning.verdicts[node] for node in unit.nodes]
    if not partitioning.target.provider.qdq_units:  # its verdict on the target follows from those on the others
        verdicts = [v for v in verdicts if v.node is not unit.target]
    reasons = {(o.rule, o.message): o for v in verdicts for o in v.objections}
    return GroupVerdict(
        node_name(unit.target),
        unit.target.operator,
        partitioning.target.provider.name,
        taken=all(v.taken for v in verdicts),
        reasons=[Refused(o.rule, o.message, o.advice) for o in reasons.values()],
    )


def _missing(node: Node) -> Refused | None:
    """The reason why an operator with a quantized neighbor is no group."""
    if not groupable(node):
        return None
    before, after = _dequantizers(node), _quantizers(node)
    if after:
        return next(_faults(node, before, after))
    if not any(map(_is_activation, before)):
        return None
    message = f"{node.label} reads dequantized values, and no QuantizeLinear follows it"
    return Refused("missing-pair", message, "quantize its output, too, or leave its inputs in float")


def _faults(node: Node, before: Sequence[Node], after: Sequence[Node]) -> Iterator[Refused]:
    """The reasons why an operator between these quantizers is no group. The last one holds if no other does."""
    for value in node.present_inputs:
        if value.dtype is not None and value.dtype.is_float and value.producer not in before:
            message = f"input '{value.name}' of {node.label} comes from no DequantizeLinear"
            yield Refused("missing-pair", message, "quantize that input, too")
    for made in (n.out for n in before):
        if len(made.uses) > 1 or made.is_output:
            message = f"'{made.name}' has {len(made.uses)} readers; a group needs a DequantizeLinear of its own"
            advice = "give each reader a DequantizeLinear of its own; ortconv convert does"
            yield Refused("shared-dequantizer", message, advice)
    if any(v.is_output or len(v.consumers) > len(after) for v in node.present_outputs):
        message = f"the output of {node.label} is also read in float"
        yield Refused("float-reader", message, "let those readers read a DequantizeLinear behind the QuantizeLinear")
    message = f"the types or parameters around {node.label} differ, or no integer kernel supports them"
    advice = "give its inputs and outputs one type, and operators that move elements the same scale and zero point"
    yield Refused("types", message, advice)
