"""Ranks of values of unknown shape, from the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import axes_of, ints
from ortconv.ir.operators import MICROSOFT, Trait, traits
from ortconv.ir.tensor import LARGEST_RANK

RANKS: dict[str, dict[str, tuple[int | None, ...]]] = {
    "": {
        **dict.fromkeys(("DepthToSpace", "GlobalAveragePool", "GlobalMaxPool", "LRN", "SpaceToDepth"), (4,)),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), (3, 3, 3, 2, 1, 3, 3, 2)),
        **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger"), (2, 2)),
        "EyeLike": (2,),
        "NonMaxSuppression": (3, 3),
        "RoiAlign": (4, 2, 1),
    },
    MICROSOFT: {"Attention": (3, 2, 1, None, 5)},
}
"""The ranks of inputs that attributes and other inputs do not determine: the only possible or the usual ones."""

KEEP_RANK = ("Pad", "Slice", "Tile")
"""Operators whose result has the rank of input 0, but another shape."""

WITH_AXIS = ("ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "LogSoftmax", "Softmax", "Split", "TopK")
"""Operators whose attribute `axis` is an axis of input 0."""

WEIGHTS = {
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "MatMul", "MatMulInteger"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), 3),
}
"""The slot of the weights, which have the rank of input 0."""


def rank_of(value: Value) -> int | None:
    """The rank of a value: its own, or one that serves the later nodes."""
    known, least = list[int](), 0
    waiting = [(value, 0)]  # values, and the number of axes that each has beyond those of `value`
    for current, more in waiting:
        if current.rank is not None:
            known.append(current.rank - more)
            continue
        for node, slot in current.uses:
            needed = _rank_at(node, slot)
            known += [] if needed is None else [needed - more]
            least = max(least, _least_rank_at(node, slot) - more)
            added = _added_axes(node, slot)
            if added is not None:
                waiting.append((node.out, more + added))
    return max(least, *known[:1], 0) if known or least else None


def _added_axes(node: Node, slot: int) -> int | None:
    """The number of axes that the result has beyond those of an input; None if it is unknown."""
    if _keeps_rank(node, slot):
        return 0
    if slot == 0 and node.is_op("Unsqueeze"):
        return len(axes_of(node) or ())
    table = node.inputs[0] if slot == 1 and node.is_op("Gather") else None
    return table.rank - 1 if table is not None and table.rank else None


def _keeps_rank(node: Node, slot: int) -> bool:
    """True if the result has the rank of an input."""
    if slot == 0 and (traits(node).has(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE) or node.op in KEEP_RANK):
        return True
    others = (v for i, v in enumerate(node.inputs) if i != slot and v is not None)
    return traits(node).has(Trait.BROADCASTS) and all(v.rank == 0 for v in others)


def _least_rank_at(node: Node, slot: int) -> int:
    """The least rank of an input that has the axes that the node names; 0 if it names none."""
    if slot != 0 or node.domain:
        return 0
    if node.op == "Unsqueeze":
        added = axes_of(node) or ()
        return max(added, default=-1) + 1 - len(added)
    return max((axis + 1 if axis >= 0 else -axis for axis in _axes_named(node)), default=0)


def _axes_named(node: Node) -> Sequence[int]:
    """The axes of input 0 that a node names."""
    if node.op == "Shape":
        return [axis for reader, at in node.out.uses if at == 0 for axis in _elements_read(reader)]
    if node.op == "Squeeze" or node.op.startswith("Reduce"):
        return axes_of(node) or ()
    if node.op == "Slice":
        return node.attr("axes", ()) or ints(node.input(3)) or ()
    if node.op == "CumSum":
        return ints(node.input(1)) or ()
    return [node.attr("axis", 0)] if node.op in WITH_AXIS else []


def _elements_read(node: Node) -> Iterator[int]:
    """The elements of a list that a node is known to read."""
    if node.is_op("Gather"):
        yield from ints(node.input(1)) or ()
    elif node.is_op("Slice"):
        yield from ints(node.input(1)) or ()
        yield from (end - 1 for end in ints(node.input(2)) or () if 0 < end <= LARGEST_RANK)


def _rank_at(node: Node, slot: int) -> int | None:
    """The rank of an input, if the node's operator, attributes or other inputs determine it."""
    if node.op == "Transpose" and "perm" in node.attrs:
        return len(node.attr("perm", ()))
    if node.op in ("Pad", "Tile") and node.input(3) is None:
        return _rank_by_list(node)
    if slot == 0 and node.op.endswith("Pool") and "kernel_shape" in node.attrs:
        return len(node.attr("kernel_shape", ())) + 2
    if node.is_op("Scan"):
        return _scanned(node, slot)
    if node.is_op("Einsum"):
        return _by_equation(node, slot)
    usual = RANKS.get(node.domain, {}).get(node.op, ())[slot : slot + 1]
    return next((rank for rank in (*_ranks_of_peers(node, slot), *usual) if rank is not None), None)


def _rank_by_list(node: Node) -> int | None:
    """The rank of the input of a Pad or Tile: half the number of its pads, or the number of its repeats."""
    count = len(node.attr("pads", ())) or node.dim(1, 0)
    return None if not isinstance(count, int) else count // 2 if node.op == "Pad" else count


def _by_equation(node: Node, slot: int) -> int | None:
    """The rank of an Einsum's operand: the number of its letters in the equation. None if the operand has an ellipsis."""
    terms = node.attr("equation", "").split("->")[0].split(",")
    return None if slot >= len(terms) or "." in terms[slot] else len(terms[slot].replace(" ", ""))


def _ranks_of_peers(node: Node, slot: int) -> Iterator[int | None]:
    """The ranks of inputs that have the rank of this one."""
    if traits(node).has(Trait.JOINS):
        yield from (v.rank for i, v in enumerate(node.inputs) if i != slot and v is not None)
    weights = WEIGHTS.get(node.op)
    if weights is not None and slot in (0, weights):
        other = node.input(weights - slot)
        yield None if other is None else other.rank
        if "kernel_shape" in node.attrs:
            yield len(node.attr("kernel_shape", ())) + 2


def _scanned(node: Node, slot: int) -> int | None:
    """The rank of a Scan's input: the least one that the nodes of the body and the scanned axes allow."""
    body = node.attr("body", None)
    if not isinstance(body, Graph) or len(body.inputs) != len(node.inputs):  # version 8 has a batch axis
        return None
    states = len(node.inputs) - node.attr("num_scan_inputs", 0)
    needed = _needed(body.inputs[states:], node.attr("scan_input_axes", ()))
    needed |= _needed(body.outputs[states:], node.attr("scan_output_axes", ()))
    same = _combined_with(body.inputs[slot], dict(zip(body.outputs, body.inputs[:states], strict=False)))
    most = max(max(rank_of(value) or 0, needed.get(value, 0)) for value in same)
    return most + (slot >= states) if most else None


def _needed(values: list[Value], axes: tuple[int, ...]) -> dict[Value, int]:
    """The least ranks of values of a Scan's body: outside, each has one axis more, the given one."""
    return {value: max(axis, -axis - 1) for value, axis in zip(values, axes, strict=False)}


def _combined_with(value: Value, carried: dict[Value, Value]) -> list[Value]:
    """The values of a Scan's body that elementwise nodes combine with this one. `carried` has its states, after and before."""
    linked = {**carried, **{before: after for after, before in carried.items()}}
    found = {value: None}
    queue = [value]
    for current in queue:
        nodes = [node for node, _ in current.uses if node.graph is value.graph]
        nodes += [current.producer] if current.producer is not None else []
        beside = [v for node in nodes for v in _operands(node)] + ([linked[current]] if current in linked else [])
        fresh = dict.fromkeys(v for v in beside if v not in found)
        found |= fresh
        queue += fresh
    return queue


def _operands(node: Node) -> list[Value]:
    """The inputs and the output of a node that works by elements."""
    flags = traits(node)
    inputs = node.inputs if flags.has(Trait.BROADCASTS) else node.inputs[:1]
    works = flags.has(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE, Trait.BROADCASTS)
    return [v for v in (*inputs, node.output(0)) if v is not None] if works else []
