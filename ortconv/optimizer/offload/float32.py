"""Computes a float16 model in float32, the only float type that NNAPI's provider supports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES, add_cast, read_instead, return_instead
from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.kernels import type_text
from ortconv.ir.schema import Formal, schema_of
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
    values = [v for v in _values(graph) if _is_half(v)]
    if not any(map(_computes_in_half, graph.walk())) or not all(map(_may_widen, graph.walk())):
        return None
    if any(isinstance(v.const, SparseTensor) for v in values):
        return None
    attributes = ((n, name, a) for n in graph.walk() for name, a in n.attrs.items() if _is_half_attribute(name, a))
    done = Widened({}, {}, {(node, name): attribute for node, name, attribute in attributes})
    for (node, name), attribute in done.attributes.items():
        node.attrs[name] = _wide(attribute) if isinstance(attribute, Tensor) else int(DType.FLOAT)
    for value in values:
        done.types[value] = value.type
        if isinstance(value.const, Tensor):
            done.contents[value] = value.const
            value.const = _wide(value.const)
        value.retype(TensorType(DType.FLOAT, value.shape))
    return done


def undo(done: Widened) -> None:
    """Undo the changes of `widen`."""
    for (node, name), attribute in done.attributes.items():
        node.attrs[name] = attribute
    for value in done.types:
        _restore(value, done)


def complete(graph: Graph, done: Widened, context: Context) -> int:
    """Give inputs and outputs of the graph their float16 back, with Casts, and remove the Casts that became superfluous. Return the
    number of nodes that were changed.
    """
    changed = [n for n in graph.walk() if not done.types.keys().isdisjoint((*n.present_inputs, *n.present_outputs))]
    first = next(iter(graph), None)
    for value in [v for v in graph.inputs if v in done.types]:
        readers = list(value.uses)
        _restore(value, done)
        if readers:
            read_instead(readers, add_cast(graph, value, DType.FLOAT, first))
    for value in [v for v in graph.outputs if v in done.types and not v.is_input]:
        return_instead(graph, value, add_cast(graph, value, DType.FLOAT16, None), f"{value.name}_float")
    for node in changed:
        if node.is_op("Cast") and node.dtype(0) is node.out.dtype:
            node.parent.replace(node.out, node.present_inputs[0])
            node.parent.remove_dead(node)
        context.record(NAME, node.label, 0)
    return len(changed)


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


def _is_half(value: Value) -> bool:
    return value.dtype is DType.FLOAT16


def _is_half_attribute(name: str, attribute: Attribute) -> bool:
    if isinstance(attribute, Tensor):
        return attribute.dtype is DType.FLOAT16
    return name in TYPE_ATTRIBUTES and attribute == DType.FLOAT16


def _wide(tensor: Tensor) -> Tensor:
    return Tensor.of(tensor.numpy().astype(np.float32))


def _restore(value: Value, done: Widened) -> None:
    if value in done.contents:
        value.const = done.contents[value]
    value.retype(done.types[value])


def _computes_in_half(node: Node) -> bool:
    return not node.is_op("Cast") and any(map(_is_half, (*node.present_inputs, *node.present_outputs)))


def _may_widen(node: Node) -> bool:
    """True if a node may read and return float32 instead of float16."""
    values = (*node.present_inputs, *node.present_outputs)
    if any("float16" in type_text(v.type) and not isinstance(v.type, TensorType) for v in values):
        return False
    if not any(map(_is_half, values)):
        return True
    schema = schema_of(node)
    if schema is None or node.ep or node.op in SIZE_OF_TYPE:
        return False
    formals = [schema.formal_input(i) for i, v in enumerate(node.inputs) if v is not None and _is_half(v)]
    return all(formal is not None and _accepts_float(formal, schema.allowed.get(formal.type)) for formal in formals)


def _accepts_float(formal: Formal, allowed: frozenset[str] | None) -> bool:
    return "tensor(float)" in (allowed if allowed is not None else (formal.type,))
