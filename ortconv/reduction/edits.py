"""Edits that make a model smaller. Each one changes a model in place, and returns False if it does not apply.

Nodes are numbered in the order of `Graph.walk`, including subgraphs. An edited model may be invalid: the caller checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from ortconv.ir.graph import Graph, Graphs, Node, Value
from ortconv.ir.model import Model
from ortconv.ir.nesting import with_owners
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.onnxio.infer import infer_missing
from ortconv.optimizer.conditions import without_absent

Edit = Callable[[Model], bool]
"""An edit with all its arguments but the model."""

Values = Mapping[str, Array]
"""Computed inner values, by name."""

SHAPES_SIZE = 64
"""Integers up to this size and of at most one dimension are shapes or axes, which a model needs as constants."""


def keep_nodes(model: Model, kept: Collection[int], values: Values, *, constants: bool) -> bool:
    """Keep these nodes alone. Outputs of removed nodes become inputs, or with `constants` their computed values.

    Known shapes and axes become constants in any case. Values for removed nodes become outputs.
    """
    graph = model.graph
    removed = _removed_nodes(graph, kept)
    if removed is None:
        return False
    _return_what_is_left(graph, removed)
    outermost = [node for node in removed if not any(n in removed for n in with_owners(node) if n is not node)]
    read = [v for node in outermost for v in node.present_outputs if v.is_read_outside(removed)]
    instead = [_replacement(graph, value, values, constants=constants) for value in read]
    if None in instead:
        return False
    _remove(outermost)
    for value, new in zip(read, instead, strict=True):
        if new is not None and new.graph is not None:
            new.graph.rename(new, value.name)
    return bool(graph.outputs)


def _removed_nodes(graph: Graph, kept: Collection[int]) -> dict[Node, None] | None:
    """The nodes that are not kept themselves, or whose subgraph belongs to one that is not; None for all or no nodes."""
    numbers = {node: i for i, node in enumerate(graph.walk())}
    removed = {node: None for node in numbers if any(numbers[n] not in kept for n in with_owners(node))}
    return removed if 0 < len(removed) < len(numbers) else None


def _remove(nodes: Iterable[Node]) -> None:
    """Remove nodes that only read each other."""
    homes = [(node, node.graph) for node in nodes if node.graph is not None]
    for node, home in homes:
        home.set_inputs(node, ())
    for node, home in homes:
        home.remove(node)


def _return_what_is_left(graph: Graph, removed: Collection[Node]) -> None:
    """Let the graph return its former outputs that still exist, and the values that only removed nodes read."""
    outputs = [v for v in graph.outputs if v.producer is not None and v.producer not in removed]
    made = (v for node in graph if node not in removed for v in node.present_outputs)
    graph.set_outputs([*outputs, *(v for v in made if v.uses and not v.is_read_outside(removed))])


def _replacement(main: Graph, value: Value, values: Values, *, constants: bool) -> Value | None:
    """An input or a constant that replaces the output of a removed node for the kept ones; None if its type is unknown."""
    assert value.graph is not None
    if value.is_output:
        return _zeros_to_return(value)
    array = values.get(value.name) if value.graph is main else None
    if array is not None and (constants or _is_shape(array)):
        new = main.constant(Tensor.of(array), value.name)
    elif value.type is not None:
        new = main.add_input(main.fresh(value.name), value.type)
    else:
        return None
    value.graph.replace_uses(value, new)
    return new


def _is_shape(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= SHAPES_SIZE


def _zeros_to_return(value: Value) -> Value | None:
    """Zeros that replace an output of a subgraph; None if its shape is unknown."""
    graph = value.graph
    assert graph is not None
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else 1 for d in value.shape)
    if shape is None or value.dtype is None:
        return None
    zeros = graph.constant(Tensor.of(np.zeros(shape, value.dtype.numpy), value.dtype), value.name)
    graph.replace_uses(value, zeros)
    graph.set_outputs([zeros if v is value else v for v in graph.outputs])
    return zeros


def drop_unused_inputs(model: Model) -> None:
    """Remove inputs and constants that no node reads and the graph does not return."""
    graph = model.graph
    for value in [v for v in graph.inputs if not v.is_used]:
        graph.inputs.remove(value)
        value.is_input = False
    graph.prune()


# ------------------------------------------------------------------ single nodes


def bypass(model: Model, place: int, slot: int) -> bool:
    """Replace a node by one of its inputs of the same type."""
    node = _nth_node(model, place)
    read = node.input(slot)
    made = node.present_outputs
    if read is None or len(made) != 1 or read.type is None or read.type != made[0].type:
        return False
    graph = node.parent
    if made[0].is_output and (read.producer is None or read.is_output or read.graph is not graph):
        return False
    graph.replace(made[0], read)
    graph.remove(node)
    return True


def inline(model: Model, place: int, branch: str) -> bool:
    """Replace an If by the nodes of one of its branches."""
    node = _nth_node(model, place)
    sub = node.attrs.get(branch)
    if node.op != "If" or not isinstance(sub, Graph):
        return False
    graph = node.parent
    returned = graph.absorb(sub, node)
    for old, new in zip(node.outputs, returned, strict=True):
        if old is not None:
            graph.replace(old, new)
    graph.remove(node)
    return True


def drop_input(model: Model, place: int, slot: int) -> bool:
    """Leave out an optional input of a node, or the last of a variadic one."""
    node = _nth_node(model, place)
    if node.input(slot) is None:
        return False
    inputs = [None if i == slot else v for i, v in enumerate(node.inputs)]
    node.parent.set_inputs(node, without_absent(inputs))
    return True


def drop_attribute(model: Model, place: int, name: str) -> bool:
    """Remove an attribute that is not a subgraph."""
    node = _nth_node(model, place)
    if isinstance(node.attrs.get(name), (Graph, Graphs, type(None))):
        return False
    del node.attrs[name]
    return True


def _nth_node(model: Model, place: int) -> Node:
    return next(node for i, node in enumerate(model.graph.walk()) if i == place)


# ------------------------------------------------------------------ outputs, shapes, constants


def drop_output(model: Model, place: int) -> bool:
    """Remove an output of the graph, and the nodes that only it needs."""
    graph = model.graph
    if len(graph.outputs) < 2:
        return False
    value = graph.outputs[place]
    graph.set_outputs([v for v in graph.outputs if v is not value])
    if value.producer is not None:
        graph.remove_dead(value.producer)
    return True


def zeros_for_input(model: Model, place: int) -> bool:
    """Replace an input of the graph by a constant of zeros, unless it is the only one."""
    if len(model.graph.inputs) < 2:
        return False
    value = model.graph.inputs[place]
    shape, dtype = value.static_shape, value.dtype
    if shape is None or dtype is None or value.is_output or value.const is not None:
        return False
    zeros = model.graph.constant(Tensor.of(np.zeros(shape, dtype.numpy), dtype), value.name)
    model.graph.replace_uses(value, zeros)
    return True


def sizes(model: Model) -> list[int | str]:
    """The sizes of axes of inputs and constants, the largest first, then the symbols."""
    values = [v for graph in model.graph.graphs() for v in (*graph.inputs, *graph.initializers.values())]
    dims = {d for value in values for d in value.shape or ()}
    numbers = sorted(d for d in dims if isinstance(d, int) and d > 1)
    return [*sorted(d for d in dims if isinstance(d, str)), *reversed(numbers)]


def resize(model: Model, old: int | str, new: int) -> bool:
    """Cut every axis of this size or symbol, of inputs and constants, to the first `new` elements."""
    for graph in model.graph.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _cut(value, old, new)
        for node in graph:
            for made in node.present_outputs:
                made.retype(None)
    infer_missing(model.graph)
    return True


def _cut(value: Value, old: int | str, new: int) -> None:
    const, shape = value.const, value.shape
    if shape is None or old not in shape or not isinstance(value.type, TensorType):
        return
    if isinstance(const, Tensor):
        part = const.numpy()[tuple(slice(0, new) if d == old else slice(None) for d in const.shape)]
        value.const = Tensor.of(np.ascontiguousarray(part).reshape(part.shape), const.dtype)
    elif const is not None:
        return
    value.retype(TensorType(value.type.dtype, tuple(new if d == old else d for d in shape)))


def clear(model: Model, name: str) -> bool:
    """Replace the elements of a constant by zeros."""
    value = model.graph.initializers.get(name)
    if value is None or not isinstance(value.const, Tensor) or value.const.dtype is DType.STRING:
        return False
    array = value.const.numpy()
    if not array.any():
        return False
    value.const = Tensor.of(np.zeros_like(array), value.const.dtype)
    return True
