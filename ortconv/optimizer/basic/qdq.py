"""Removes redundant pairs of quantizers, adds pairs around nodes that move data, and gives each reader its own DQ."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import wide
from ortconv.optimizer.engine import Context, New, Replacement, constant, insert_node, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.quantizers import (
    DOMAINS,
    INTEGERS,
    LIMITS,
    OPS,
    Quantized,
    is_implied,
    is_quantizer,
    quantized,
    zero_points,
)

PER_AXIS = 13
"""The operator set from which a quantizer may have one scale for each slice along an axis."""

MOVES_DATA = ("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice")
"""Operators that commute with quantization: their results consist of elements of input 0."""

REDUCES_DATA = ("MaxPool", "Slice", "ReduceMax", "ReduceMin")
"""Operators of this kind whose results have fewer elements than input 0."""


def reversible(node: Node) -> Quantized | None:
    """The integers of a Q or DQ node with constant parameters; None unless quantization reverses dequantization exactly."""
    found = None if node.attr("output_dtype", 0) or node.attr("precision", 0) else quantized(node)
    if found is None or found.dtype not in INTEGERS or not found.is_constant:
        return None
    return found if found.zero_point is None or found.zero_point.dtype is found.dtype else None


def _per_tensor(node: Node) -> Quantized | None:
    found = reversible(node)
    return found if found is not None and found.is_per_tensor else None


# ---------------------------------------------------------------------- redundant pairs


def _pair(domain: str) -> P:
    dq = P("DequantizeLinear", "x", C("s"), C("z", optional=True), name="dq", domain=domain, shared=True)
    return P("QuantizeLinear", dq, C("t"), C("u", optional=True), domain=domain)


@rule("DoubleQDQPairsRemover", *map(_pair, DOMAINS))
def drop_dequantize_quantize(m: Match) -> Replacement:
    """QuantizeLinear(DequantizeLinear(x, s, z), s, z)  ->  x

    Counterpart: DoubleQDQPairsRemover
    Differs: only pairs with equal parameters, also per channel; pairs with different ones, which ONNX Runtime merges
        into a third range, are unchanged.
    """
    dq = m.node("dq")
    first, second = reversible(dq), reversible(m.root)
    if first is None or second is None or first.dtype is not second.dtype:
        return None
    scales, others = (wide(q.scale).reshape(-1) for q in (first, second))
    zeros, other_zeros = zero_points(first), zero_points(second)
    if zeros is None or other_zeros is None or not np.array_equal(scales, others):
        return None
    if not np.array_equal(zeros, other_zeros) and (zeros.any() or other_zeros.any()):
        return None
    return m.x if len(scales) == 1 or _axis(dq) == _axis(m.root) else None


class Steps(NamedTuple):
    """The multiples of a scale that a Q or DQ node can represent."""

    scale: float
    low: int
    high: int


def _steps(node: Node) -> Steps | None:
    """The steps of a Q or DQ node; None if they are not constant."""
    found = _per_tensor(node)
    zeros = None if found is None else zero_points(found)
    if found is None or zeros is None:
        return None
    zero, (low, high) = int(zeros[0]), LIMITS[found.dtype]
    return Steps(float(wide(found.scale).item()), low - zero, high - zero)


def _chain(domain: str, *, whole: bool) -> P:
    """Pattern for DQ -> Q -> DQ, or Q -> DQ -> Q."""
    first, last = reversed(OPS) if whole else OPS
    inner = P(first, "x", ..., name="first", domain=domain, shared=True)
    return P(first, P(last, inner, ..., name="second", domain=domain, shared=True), ..., domain=domain)


@rule("DoubleQDQPairsRemover", *(_chain(domain, whole=True) for domain in DOMAINS))
def drop_wider_pair(m: Match) -> Replacement:
    """DequantizeLinear(QuantizeLinear(DequantizeLinear(x)))  ->  DequantizeLinear(x), if the Q and the outer DQ have
    the scale and at least the range of the inner DQ
    """
    first = m.node("first")
    inner, between, outer = _steps(first), _steps(m.node("second")), _steps(m.root)
    return first.out if between == outer and _includes(between, inner) else None


@rule("DoubleQDQPairsRemover", *(_chain(domain, whole=False) for domain in DOMAINS))
def drop_wider_quantization(m: Match) -> Replacement:
    """QuantizeLinear(DequantizeLinear(QuantizeLinear(x)))  ->  QuantizeLinear(x), if the inner Q and the DQ have the
    scale and at least the range of the outer Q
    """
    inner, between, outer = _steps(m.node("first")), _steps(m.node("second")), _steps(m.root)
    if inner != between or not _includes(inner, outer) or m.x.dtype is not DType.FLOAT:
        return None
    return New("QuantizeLinear", [m.x, *m.root.inputs[1:]], domain=m.root.domain, like=m.root)


def _clamped(domain: str) -> P:
    dq = P("DequantizeLinear", "x", ..., name="dq", domain=domain, shared=True)
    return P("QuantizeLinear", P(("Relu", "Clip"), dq, ..., name="clamp"), ..., domain=domain)


@rule("DoubleQDQPairsRemover", *map(_clamped, DOMAINS))
def drop_clamped_pair(m: Match) -> Replacement:
    """QuantizeLinear(Clip(DequantizeLinear(x)))  ->  x, if their parameters are equal, and imply the bounds; also Relu"""
    steps = _steps(m.node("dq"))
    if steps is None or steps != _steps(m.root) or m.x.dtype is not m.root.out.dtype:
        return None
    return m.x if is_implied(m.root, m.node("clamp")) else None


def _includes(one: Steps | None, other: Steps | None) -> bool:
    """True if one node can represent all that another one can, with the same scale."""
    if one is None or other is None or one.scale != other.scale:
        return False
    return one.low <= other.low and other.high <= one.high


def _axis(node: Node) -> int:
    rank, axis = node.out.rank, node.attr("axis", 1)
    return axis if axis >= 0 or rank is None else axis + rank


# ---------------------------------------------------------------------- propagation


def propagate(graph: Graph, context: Context) -> int:
    """Put Q/DQ pairs around operators that only move data, so that they operate on integers, too.

    Counterpart: QDQPropagationTransformer
    """
    return propagate_past(graph, context, _feeds_units, _moves_data)


Moves = Callable[[Node, DType | None], bool]
"""True for a node that quantizers of a type are moved past."""


def propagate_past(graph: Graph, context: Context, forward: Moves, backward: Moves) -> int:
    """Put Q/DQ pairs behind nodes that read a DQ, and before nodes that a Q reads. Return the number of pairs."""
    changes = 0
    for node in list(graph):
        if not context.may_touch(node):
            continue
        if is_quantizer(node, "DequantizeLinear"):
            changes += _forward(node, context, forward)
        elif is_quantizer(node, "QuantizeLinear"):
            changes += _backward(node, context, backward)
    return changes


def _forward(dq: Node, context: Context, moves: Moves) -> int:
    """Rewrite DQ -> op -> other to DQ -> op -> Q -> DQ -> other, through all consecutive operators of this kind."""
    found, changes, value, dtype = None, 0, dq.out, dq.present_inputs[0].dtype
    while (mover := only_reader(value)) is not None and mover.inputs[0] is value and moves(mover, dtype):
        found = found or _per_tensor(dq)
        if found is None or mover.next is None or _is_end(mover.out) or not context.may_touch(dq, mover):
            break
        value = _insert_pair(dq, found, mover.out, mover.next, list(mover.out.uses))
        context.record("QDQPropagation", mover.label, 0, 2)
        changes += 1
    return changes


def _backward(q: Node, context: Context, moves: Moves) -> int:
    """Rewrite other -> op -> Q to other -> Q -> DQ -> op -> Q, through all consecutive operators of this kind."""
    found, changes, value = None, 0, q.present_inputs[0]
    while (mover := _mover_before(value, q)) is not None and moves(mover, q.out.dtype):
        found, source = found or _per_tensor(q), mover.present_inputs[0]
        if found is None or is_quantizer(source.producer, "DequantizeLinear") or not context.may_touch(q, mover):
            break
        _insert_pair(q, found, source, mover, [(mover, 0)])
        context.record("QDQPropagation", mover.label, 0, 2)
        changes += 1
        value = source
    return changes


def _is_end(value: Value) -> bool:
    """True if no pair is inserted behind a value: the graph returns it, or a node quantizes it, or a subgraph reads it."""
    readers = value.consumers
    if value.is_output or not readers or any(reader.graph is not value.graph for reader in readers):
        return True
    return any(is_quantizer(reader, "QuantizeLinear") and reader.inputs[0] is value for reader in readers)


def _mover_before(value: Value, q: Node) -> Node | None:
    """The producer of a value, if its input 0 is computed in the graph of q, and nothing else reads the value.

    If it returns only a part of data that other nodes read, too, quantizing the data would be more work.
    """
    mover = value.producer
    if mover is None or mover.graph is not q.graph or only_reader(value) is None:
        return None
    source = mover.input(0)
    if source is None or source.const is not None or source.graph is not q.graph:
        return None
    return None if mover.op in REDUCES_DATA and only_reader(source) is None else mover


def _feeds_units(node: Node, dtype: DType | None) -> bool:
    """True for a node that moves data to its only reader, or to several readers of which one may be a quantized unit."""
    return _moves_data(node) and (len(node.out.uses) == 1 or any(_may_be_unit(*use) for use in node.out.uses))


def _moves_data(node: Node, dtype: DType | None = None) -> bool:
    supported = node.op in MOVES_DATA and node.domain == "" and not any(node.outputs[1:])
    return supported and (node.op != "MaxPool" or node.opset >= 12)


def _insert_pair(like: Node, found: Quantized, value: Value, before: Node, uses: list[tuple[Node, int]]) -> Value:
    """Insert a Q/DQ pair behind a value, before a node, for these uses of the value."""
    graph, dtype = before.parent, found.dtype
    assert dtype is not None
    zero = found.zero_point
    if zero is None and dtype is not DType.UINT8:
        zero = constant(like, np.zeros((), dtype.numpy))
    operands = [found.scale] if zero is None else [found.scale, zero]
    types = (TensorType(dtype, value.shape), value.type)
    for op, type in zip(OPS, types, strict=True):
        names, name = [graph.fresh(f"{value.name}_{op}")], graph.fresh(f"{value.name}/{op}")
        value = insert_node(op, [value, *operands], names, [type], before, domain=like.domain, name=name).out
    for reader, slot in uses:
        reader.parent.set_input(reader, slot, value)
    return value


# ---------------------------------------------------------------------- one DQ for every reader


def give_each_reader_its_own(graph: Graph, context: Context) -> int:
    """Duplicate the DQ nodes that operators of quantized units share with other readers.

    A unit must own its DQ nodes. The original stays with the readers outside units, with graph outputs and subgraphs,
    or else with the first reader.

    Counterpart: EnsureUniqueDQForNodeUnit
    Differs: only for readers that can form a unit of integers.
    """
    copies = 0
    for dq in list(graph):
        if not is_quantizer(dq, "DequantizeLinear") or len(dq.out.uses) + dq.out.is_output < 2:
            continue
        edges = [(user, slot) for user, slot in dq.out.uses if user.graph is graph and _may_be_unit(user, slot)]
        if len(edges) == len(dq.out.uses) and not dq.out.is_output:
            edges = edges[1:]
        for user, slot in edges:
            if context.may_touch(dq, user):
                graph.set_input(user, slot, _duplicate(graph, dq))
                context.record("EnsureUniqueDQForNodeUnit", dq.label, 0, 1)
                copies += 1
    return copies


def _may_be_unit(node: Node, slot: int) -> bool:
    if node.domain != "":
        return False
    known = traits(node)
    if known.has(Trait.DQ) or (slot == 0 and _moves_data(node)):
        return True
    return known.has(Trait.QDQ) and any(v is not None and _is_quantized(v) for v in node.outputs)


def _is_quantized(value: Value) -> bool:
    """True if a Q node reads the value, possibly after an activation."""
    readers = value.consumers
    behind = [user for node in readers if node.op in ("Relu", "Clip") for user in node.out.consumers]
    return any(is_quantizer(user, "QuantizeLinear") for user in readers + behind)


def _duplicate(graph: Graph, dq: Node) -> Value:
    names, name = ([graph.fresh(f"{dq.out.name}/duplicated")], graph.fresh(f"{dq.name or dq.out.name}/duplicated"))
    node = insert_node(dq.op, dq.inputs, names, [dq.out.type], dq, dq.attrs, domain=dq.domain, name=name)
    node.doc = dq.doc
    return node.out


# ---------------------------------------------------------------------- bounds


_BOUND = (C("x", one=True), C("scale", one=True), C("zero", optional=True))


@rule("ClipBoundFolding", *(P("DequantizeLinear", *_BOUND, domain=domain) for domain in DOMAINS))
def fold_bound(m: Match) -> Replacement:
    """DequantizeLinear of a constant  ->  constant, for a bound of Clip, which no integer kernel reads

    AIMET quantizes bounds.
    """
    from ortconv.executor.kernels.evaluate import evaluate

    is_bound = all(user.is_op("Clip") and slot > 0 for user, slot in m.root.out.uses)
    return evaluate(m.root)[0] if is_bound and m.root.out.dtype is DType.FLOAT else None


# ---------------------------------------------------------------------- transposed weights


_WEIGHTS = [P("DequantizeLinear", C("w"), C("s"), C("z", optional=True), name="dq", domain=d) for d in DOMAINS]


@rule("TransposeOptimizer", *(P("Transpose", weights) for weights in _WEIGHTS))
def transpose_weight(m: Match) -> Replacement:
    """Transpose(DequantizeLinear(w))  ->  DequantizeLinear(w', along the axis where the scales went), for constants

    Counterpart: TransposeOptimizer
    """
    dq, weight = m.node("dq"), m.tensor("w")
    if dq.attr("block_size", 0) or len(m.w.uses) != 1 or weight.rank < 2:
        return None
    perm = transpose_perm(m.root)
    axis = dq.attr("axis", 1)
    if perm is None or not -weight.rank <= axis < weight.rank:
        return None
    moved = Tensor.of(np.ascontiguousarray(weight.numpy().transpose(perm)), weight.dtype)
    attrs = dict(dq.attrs)
    if m.tensor("s").rank and (dq.domain == "" and m.graph.opset() >= PER_AXIS):
        attrs["axis"] = perm.index(axis % weight.rank)
    elif m.tensor("s").rank:
        return None
    return New("DequantizeLinear", [moved, *dq.inputs[1:]], attrs, domain=dq.domain)


DOUBLE_PAIRS = drop_dequantize_quantize + drop_clamped_pair + drop_wider_pair + drop_wider_quantization
