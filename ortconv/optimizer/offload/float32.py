"""Computes a float16 model in float32, the only float type that NNAPI's provider supports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES, add_cast, read_instead, return_instead
from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.kernels import type_text
from ortconv.ir.schema import Schema, schema_of
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.optimizer.engine import Context

NAME = "Float16ToFloat32"

SIZE_OF_TYPE = frozenset({"BitCast"})
"""Operators whose result depends on the size of an element."""


class Widened(NamedTuple):
    """What was changed: the former types and contents of values, and former attributes by node and name."""

    types: dict[Value, ValueType | None]
    contents: dict[Value, Tensor]
    attributes: dict[tuple[Node, str], Attribute]


def widen(graph: Graph) -> Widened | None:
    """Make all float16 values of a graph float32, its inputs and outputs included. None if a node supports no float32, or if none
    computes in float16. `complete` or `undo` must follow.
    """
    values = [v for v in _values(graph) if v.dtype is DType.FLOAT16]
    if not any(map(_computes_in_half, graph.walk())) or not all(map(_may_widen, graph.walk())):
        return None
    contents = {v: v.const for v in values if isinstance(v.const, Tensor)}
    done = Widened({v: v.type for v in values}, contents, _half_attributes(graph))
    for (node, name), attribute in done.attributes.items():
        node.attrs[name] = _wide(attribute) if isinstance(attribute, Tensor) else int(DType.FLOAT)
    for value in values:
        if value in contents:
            value.const = _wide(contents[value])
        value.retype(TensorType(DType.FLOAT, value.shape))
    return done


def undo(done: Widened) -> None:
    """Undo the changes of `widen`."""
    for (node, name), attribute in done.attributes.items():
        node.attrs[name] = attribute
    for value in done.types:
        _restore(value, done)


def complete(graph: Graph, done: Widened, context: Context) -> int:
    """Give inputs and outputs their float16 back, with Casts, and remove superfluous Casts. Return the number of changed nodes."""
    changed = [node for node in graph.walk() if not done.types.keys().isdisjoint(_operands(node))]
    first = next(iter(graph), None)
    for value in filter(done.types.__contains__, graph.inputs):
        readers = list(value.uses)
        _restore(value, done)
        if readers:
            read_instead(readers, add_cast(graph, value, DType.FLOAT, first))
    for value in [v for v in graph.outputs if v in done.types and not v.is_input]:
        return_instead(graph, value, add_cast(graph, value, DType.FLOAT16, None), f"{value.name}_float")
    for node in changed:
        _remove_if_superfluous(node)
        context.record(NAME, node.label, 0)
    return len(changed)


def _remove_if_superfluous(node: Node) -> None:
    """Remove a Cast to the type that its input has."""
    if node.is_op("Cast") and node.dtype(0) is node.out.dtype:
        node.parent.replace(node.out, node.present_inputs[0])
        node.parent.remove_dead(node)


def compute_in_float32(graph: Graph, context: Context) -> int:
    """float16 model  ->  float32 model between Casts of its inputs and outputs

    Counterpart: none: the CPU provider gets Casts around single nodes
    Opt-in: larger weights, and the roundings to float16 in between are left out; useful only for an accelerator whose provider
        supports only float32, such as NNAPI's, which computes it in float16 with USE_FP16.
    """
    done = None if context.exhausted or graph.owner is not None else widen(graph)
    return 0 if done is None else complete(graph, done, context)


def _values(graph: Graph) -> Iterator[Value]:
    for part in graph.graphs():
        yield from dict.fromkeys((*part.inputs, *part.initializers.values()))
        for node in part:
            yield from node.present_outputs


def _operands(node: Node) -> tuple[Value, ...]:
    return (*node.present_inputs, *node.present_outputs)


def _half_attributes(graph: Graph) -> dict[tuple[Node, str], Attribute]:
    """The attributes that are float16, or select it as a type."""
    found: dict[tuple[Node, str], Attribute] = {}
    for node in graph.walk():
        for name, a in node.attrs.items():
            type = a.dtype if isinstance(a, Tensor) else a if name in TYPE_ATTRIBUTES else None
            if type == DType.FLOAT16:
                found[node, name] = a
    return found


def _wide(tensor: Tensor) -> Tensor:
    return Tensor.of(tensor.numpy().astype(np.float32))


def _restore(value: Value, done: Widened) -> None:
    if value in done.contents:
        value.const = done.contents[value]
    value.retype(done.types[value])


def _computes_in_half(node: Node) -> bool:
    return not node.is_op("Cast") and any(v.dtype is DType.FLOAT16 for v in _operands(node))


def _may_widen(node: Node) -> bool:
    """True if a node may read and return float32 instead of float16."""
    if any("float16" in type_text(v.type) and not isinstance(v.type, TensorType) for v in _operands(node)):
        return False
    return all(v.dtype is not DType.FLOAT16 for v in _operands(node)) or _has_float_form(node)


def _has_float_form(node: Node) -> bool:
    schema = schema_of(node)
    if schema is None or node.ep or node.op in SIZE_OF_TYPE:
        return False
    if any(isinstance(v.const, SparseTensor) for v in node.present_inputs):
        return False
    halves = (slot for slot in range(len(node.inputs)) if node.dtype(slot) is DType.FLOAT16)
    return all(_accepts_float(schema, slot) for slot in halves)


def _accepts_float(schema: Schema, slot: int) -> bool:
    formal = schema.formal_input(slot)
    return formal is not None and "tensor(float)" in schema.allowed.get(formal.type, (formal.type,))
