"""Inserts Casts around float16 operators that ONNX Runtime's CPU provider supports only in float32.

Loading an .ort file inserts no Casts, so this must happen before writing. Values between such operators stay float32, as they do
when ONNX Runtime inserts the Casts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ortconv.ir.casts import TYPE_ATTRIBUTES, add_cast, exact_source, read_instead, return_instead
from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import has_kernel, lacks_kernel
from ortconv.ir.model import Model
from ortconv.ir.schema import schema_of
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType

MADE_OF_FLOAT16 = frozenset({"Cast", "ConstantOfShape"})
"""Operators that can return float16 without a float16 input."""

PACKS_CONSTANTS = frozenset({"MatMulNBits"})
"""Operators whose kernels arrange constants when the file is loaded. With scales that a Cast makes, onnxruntime's MatMulNBits
(contrib_ops/cpu/quantization/matmul_nbits.cc) computes wrong numbers at accuracy level 4.
"""


def insert_casts(model: Model, release: int | None = None) -> int:
    """Compute every node without a float16 kernel in float32, in subgraphs too. Return the number of Casts.

    `release` must have the kernels; the default is the newest release.
    """
    return sum(_widen(graph, release) for graph in model.graph.graphs())


def needs_provider(node: Node) -> bool:
    """True for a node that is assigned to an execution provider and has no kernel in the CPU provider."""
    return bool(node.ep) and not has_kernel(node)


def _widen(graph: Graph, release: int | None) -> int:
    lacking = {node for node in graph if _is_float16(node) and _lacks_kernel(node, release)}
    if not lacking:
        return 0
    nodes = lacking | _enclosed(graph, lacking)
    wide: dict[Value, Value] = {}
    results: list[Value] = []
    for node in [n for n in graph if n in nodes]:
        if node.is_op("Cast") and node.inputs[0] is not None:
            graph.replace(node.out, node.inputs[0])
            graph.remove(node)
        else:
            _read_wide(graph, node, wide)
            results += _return_wide(node)
    for value in wide:
        _remove_unread_cast(value)
    added = sum(value.producer is not None for value in wide.values())
    return added + sum(_narrow(graph, value, nodes) for value in results)


def _remove_unread_cast(value: Value) -> None:
    cast = value.producer
    if cast is not None and cast.is_op("Cast") and cast.graph is not None:
        cast.graph.remove_dead(cast)


def _read_wide(graph: Graph, node: Node, wide: dict[Value, Value]) -> None:
    """Let a node read float32 instead of float16. `wide` holds the values in float32."""
    for slot, value in enumerate(node.inputs):
        if value is not None and value.dtype is DType.FLOAT16:
            if value not in wide:
                wide[value] = _unrounded(value) or _as_float32(graph, value, node)
            graph.set_input(node, slot, wide[value])


def _as_float32(graph: Graph, value: Value, node: Node) -> Value:
    """A float16 value as float32: a Cast before the node, or a wide constant if the node needs a constant.

    A value that was a bool or a small integer is cast from there, since onnxruntime's Cast to float16 is slow.
    """
    const = value.constant
    if node.op in PACKS_CONSTANTS and isinstance(const, Tensor):
        return graph.constant(Tensor.of(const.numpy().astype(np.float32)), f"{value.name}_float")
    return add_cast(graph, exact_source(value) or value, DType.FLOAT, node)


def _return_wide(node: Node) -> list[Value]:
    """Let a node return float32 instead of float16. Return the outputs that change."""
    for name in TYPE_ATTRIBUTES:
        if node.attrs.get(name) == DType.FLOAT16:
            node.attrs[name] = int(DType.FLOAT)
    changed = list(_float16(node.outputs))
    for value in changed:
        value.retype(TensorType(DType.FLOAT, value.shape))
    return changed


def _unrounded(value: Value) -> Value | None:
    """The float32 constant that a Cast rounds to this value; None for other values.

    Where ONNX Runtime computes in float32 it leaves out this Cast, so that attributes of functions may be beyond float16.
    """
    cast = value.producer
    source = cast.inputs[0] if cast is not None and cast.is_op("Cast") else None
    return source if source is not None and source.dtype is DType.FLOAT and source.constant is not None else None


def _float16(values: Iterable[Value | None]) -> Iterator[Value]:
    return (v for v in values if v is not None and v.dtype is DType.FLOAT16)


def _is_float16(node: Node) -> bool:
    return not node.ep and any(True for _ in _float16((*node.inputs, *node.outputs)))


def _lacks_kernel(node: Node, release: int | None) -> bool:
    """True if a float32 kernel has to replace that for float16."""
    lacks = not node.subgraphs and schema_of(node) is not None and not has_kernel(node, release)
    return lacks and not lacks_kernel(node, release)


def _enclosed(graph: Graph, nodes: set[Node]) -> set[Node]:
    """Nodes that have a float16 kernel but lie between nodes that have none. Computing them in float32 too saves Casts."""
    able = [n for n in graph if n not in nodes and _is_float16(n) and not n.subgraphs and _follows(n)]
    regions = DisjointSets(able)
    for node in able:
        for value in _float16(node.outputs):
            for user in filter(regions.__contains__, value.consumers):
                regions.join(node, user)
    inside = nodes.union(able)
    closed = (region for region in regions.sets() if all(_is_enclosed(node, inside) for node in region))
    return {node for region in closed for node in region}


def _follows(node: Node) -> bool:
    """True if the output of a node becomes float32 when its float16 inputs do. Of Casts, this holds only for float16 to float16,
    which round nothing.
    """
    if node.is_op("Cast"):
        return len(list(_float16((*node.inputs, *node.outputs)))) == 2
    return node.op not in MADE_OF_FLOAT16


def _is_enclosed(node: Node, inside: set[Node]) -> bool:
    """True if all float16 producers and consumers of a node are in `inside`, and no float16 output is a graph output.

    Constants do not count, nor do inputs of the graph, unless the node reads nothing else.
    """
    makers = [value.producer for value in _float16(node.inputs) if value.constant is None]
    if makers and not any(makers):
        return False
    makes = list(_float16(node.outputs))
    if any(value.is_output or not inside.issuperset(value.consumers) for value in makes):
        return False
    return all(maker is None or maker in inside for maker in makers)


def _narrow(graph: Graph, value: Value, nodes: set[Node]) -> int:
    """Cast a value that has become float32 back to float16 for the readers that need it. Return the number of Casts.

    If only Casts read the value, they read float32: ONNX Runtime leaves out the rounding between two Casts that it inserts.
    """
    returned = value.is_output
    readers = _skip_casts(graph, value, [(user, slot) for user, slot in value.uses if user not in nodes])
    if not returned and all(user.is_op("Cast") and user.graph is graph for user, _ in readers):
        return 0
    producer = value.producer
    assert producer is not None
    narrow = add_cast(graph, value, DType.FLOAT16, producer.next)
    if returned:
        return_instead(graph, value, narrow, value.name)
    read_instead(readers, narrow)
    return 1


def _skip_casts(graph: Graph, value: Value, readers: Sequence[tuple[Node, int]]) -> list[tuple[Node, int]]:
    """Replace the Casts to float32 among the readers by the value itself. Return the other readers."""
    others = []
    for user, slot in readers:
        if not user.is_op("Cast") or user.attrs.get("to") != DType.FLOAT:
            others.append((user, slot))
        elif user.graph is graph and not (user.out.is_output and value.is_output):
            graph.replace(user.out, value)
            graph.remove(user)
    return others
