"""Converts float32 constants and values to float16, with as few Casts as possible around nodes that stay float32.

Inputs and outputs of the model, and of subgraphs, keep their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES, add_cast, read_instead, return_instead
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import Formal, Schema, draws, schema_of
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.cut import minimum_cut
from ortconv.optimizer.tracking import producers

LARGEST = 65504.0
"""The largest finite float16."""

LOST = 2.0**-9
"""Maximum rounding error of a constant, relative to its largest element. If it is exceeded, the readers stay float32."""

INDIFFERENT = frozenset({"Cast", "Shape", "Size"})
"""Operators whose first input may have either type without a Cast."""

QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})

INTEGER_SUMS = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators whose int32 results a Cast and a Mul by the scale convert to numbers. The sums may be beyond float16."""

SCATTERS = frozenset({"ScatterElements", "ScatterND"})
"""Operators that throw on float16 with most values of `reduction` (onnxruntime's cpu/tensor/scatter.cc, scatter_nd.cc)."""

MAKERS = {"Cast": "to", "Constant": "value", "ConstantOfShape": "value"}
"""Operators whose result may be float16 although they have no float32 inputs, with the attribute that selects the type."""


class Slots(NamedTuple):
    """The inputs and outputs of a node that are float32 and may become float16."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Narrowed(NamedTuple):
    """Counts of a conversion: nodes in float16, Casts around the others, and bytes of constants before and after."""

    nodes: int
    casts: int
    bytes_before: int
    bytes_after: int


def candidates(graph: Graph) -> dict[Node, Slots]:
    """The nodes, including those in subgraphs, that may compute in float16, with the slots that would change their type."""
    return {node: slots for node in graph.walk() if (slots := _slots(node)) is not None}


def lossy(graph: Graph) -> dict[Node, str]:
    """Nodes that must stay float32 because float16 does not represent a constant well enough, each with the reason."""
    found: dict[Node, str] = {}
    known: dict[Value, str] = {}
    for node in graph.walk():
        for value in node.inputs:
            const = None if value is None or value.dtype is not DType.FLOAT else value.constant
            if value is None or const is None:
                continue
            if value not in known:
                known[value] = _loss(const.numpy())
            if known[value]:
                found.setdefault(node, f"constant '{value.name}' {known[value]}")
    return found


def to_float16(graph: Graph, keep: Set[Node]) -> Narrowed:
    """Convert a model's main graph in place, except for the nodes in `keep`. Only candidates are changed."""
    slots = _cheapest(graph, {node: found for node, found in candidates(graph).items() if node not in keep})
    before = _constant_bytes(graph)
    narrow = {v for node, found in slots.items() for i in found.outputs if (v := node.outputs[i]) is not None}
    for node in slots:
        _narrow_attributes(node)
    casts = 0
    for part in list(graph.graphs()):
        for value in list(part.initializers.values()):
            _narrow_constant(part, value, slots)
        for value in _floats(part):
            casts += _convert(part, value, value in narrow, slots)
    return Narrowed(len(slots), casts, before, _constant_bytes(graph))


def _floats(graph: Graph) -> list[Value]:
    """The float32 inputs and results of a graph."""
    made = (v for node in graph for v in node.present_outputs)
    return [v for v in (*graph.inputs, *made) if v.dtype is DType.FLOAT]


# ---------------------------------------------------------------------- choice of nodes


def _slots(node: Node) -> Slots | None:
    found = schema_of(node)
    if found is None or _is_fixed(node):
        return None
    slots = Slots(_allowed(node.inputs, found.inputs, found), _allowed(node.outputs, found.outputs, found))
    makes_floats = slots.outputs and MAKERS.get(node.op) in node.attrs
    return slots if slots.inputs or makes_floats else None


def _is_fixed(node: Node) -> bool:
    """True for nodes that this conversion leaves as they are, whatever their operator accepts."""
    if node.subgraphs or node.ep or draws(node) or _is_quantized(node):
        return True
    if node.op in SCATTERS and node.attrs.get("reduction", "none") != "none":
        return True
    # Other types are no concern of this conversion, and float64 indicates that precision is needed.
    return any(v.dtype in (None, DType.DOUBLE) for v in (*node.present_inputs, *node.present_outputs))


def _allowed(values: Iterable[Value | None], formals: Sequence[Formal], found: Schema) -> tuple[int, ...]:
    """The positions of the float32 values that an operator accepts in float16, too."""
    floats = [i for i, v in enumerate(values) if v is not None and v.dtype is DType.FLOAT]
    types = [found.allowed.get(formals[min(i, len(formals) - 1)].type, ()) for i in floats]
    return tuple(i for i, allowed in zip(floats, types) if "tensor(float16)" in allowed)


def _is_quantized(node: Node) -> bool:
    """True for a node that quantizes, dequantizes, or computes between two such nodes: a Cast would split the group."""
    if node.op in QUANTIZERS or traits(node).quantized or _reads_sums(node):
        return True
    readers = (user for v in node.present_outputs for user, _ in v.uses)
    return any(n.op in QUANTIZERS for n in (*producers([node]), *readers))


def _reads_sums(node: Node) -> bool:
    """True if a node reads the sums of integer products, or the Cast of such sums."""
    makers = list(producers([node]))
    makers += producers([n for n in makers if n.is_op("Cast")])
    return any(n.op in INTEGER_SUMS for n in makers)


def _loss(array: Array) -> str:
    """The reason why float16 does not represent a constant; empty if it does."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    largest = float(np.abs(finite).max(initial=0))
    if largest > LARGEST:
        return f"holds {largest:.3g}, beyond {LARGEST:g}"
    error = float(np.abs(finite.astype(np.float16).astype(np.float64) - finite).max(initial=0))
    return f"loses {error / largest:.2g} of its range" if error > LOST * largest else ""


def _cheapest(graph: Graph, slots: dict[Node, Slots]) -> dict[Node, Slots]:
    """The candidates that become float16. The others stay float32, which saves Casts.

    Nodes that sum products, or have constant operands of more than one element, always become float16: their constants
    are the bulk of the bytes.
    """
    number = {node: i for i, node in enumerate(slots)}
    groups = [_ends(value, slots, number) for part in graph.graphs() for value in _floats(part)]
    fixed = [i for node, i in number.items() if _holds_weights(node)]
    inner = minimum_cut(len(slots), [group for group in groups if group[1]], fixed)
    return {node: found for node, found in slots.items() if number[node] in inner}


WIDE = -1
"""The number of all nodes that stay float32."""


def _ends(value: Value, slots: dict[Node, Slots], number: dict[Node, int]) -> tuple[int, list[int]]:
    """The numbers of the node that produces a value and of its readers."""
    maker = value.producer
    is_free = maker is not None and maker in slots and value.index in slots[maker].outputs
    readers = [number[user] if wants else WIDE for user, _, wants in _readers(value, slots)]
    return number[maker] if maker is not None and is_free else WIDE, readers + [WIDE] * value.is_output


def _holds_weights(node: Node) -> bool:
    constants = [v.constant for v in node.present_inputs if v.dtype is DType.FLOAT]
    return any(const is not None and const.size > 1 for const in constants) or traits(node).has(Trait.SUMS)


# ---------------------------------------------------------------------- rewriting


def _narrow_attributes(node: Node) -> None:
    for name, attribute in node.attrs.items():
        if name in TYPE_ATTRIBUTES and attribute == DType.FLOAT:
            node.attrs[name] = int(DType.FLOAT16)
        elif isinstance(attribute, Tensor) and attribute.dtype is DType.FLOAT:
            node.attrs[name] = _narrowed(attribute)


def _narrowed(tensor: Tensor) -> Tensor:
    with np.errstate(over="ignore"):
        return Tensor.of(tensor.numpy().astype(np.float16))


def _readers(value: Value, slots: dict[Node, Slots]) -> Iterator[tuple[Node, int, bool]]:
    """(reader, slot, True if it becomes float16) for each use of a value. Uses that accept either type are omitted."""
    for user, slot in list(value.uses):
        if slot != 0 or user.domain != "" or user.op not in INDIFFERENT:
            yield user, slot, user in slots and slot in slots[user].inputs


def _narrow_constant(graph: Graph, value: Value, slots: dict[Node, Slots]) -> None:
    """Give the float16 readers of a constant a float16 copy. The float32 constant is removed if nothing else reads it."""
    wanting = [(user, slot) for user, slot, wants in _readers(value, slots) if wants]
    if not wanting or value.constant is None or value.dtype is not DType.FLOAT:
        return
    if len(wanting) == len(value.uses) and not value.is_output:
        value.const = _narrowed(value.constant)
        value.type = TensorType(DType.FLOAT16, value.shape)
        return
    narrow = graph.add_initializer(graph.fresh(f"{value.name}_float16"), _narrowed(value.constant))
    read_instead(wanting, narrow)


def _convert(graph: Graph, value: Value, is_narrow: bool, slots: dict[Node, Slots]) -> int:
    """Set the type of a value, and insert a Cast for the readers that need the other type. Return the number of Casts."""
    others = [(user, slot) for user, slot, wants in _readers(value, slots) if wants is not is_narrow]
    returned = is_narrow and value.is_output
    if is_narrow:
        value.type = TensorType(DType.FLOAT16, value.shape)
    if not others and not returned:
        return 0
    before = next(iter(graph), None) if value.producer is None else value.producer.next
    cast = add_cast(graph, value, DType.FLOAT if is_narrow else DType.FLOAT16, before)
    if returned:
        return_instead(graph, value, cast, f"{value.name}_float16")
    read_instead(others, cast)
    return 1


def _constant_bytes(graph: Graph) -> int:
    consts = (v.constant for part in graph.graphs() for v in part.initializers.values())
    return sum(const.nbytes for const in consts if const is not None)
