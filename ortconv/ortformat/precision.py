"""Inserts Casts around float16 operators that ONNX Runtime's CPU provider supports only in float32.

Loading an .ort file inserts no Casts, so this must happen before writing. Values between such operators stay float32, as they do
when ONNX Runtime inserts the Casts.
"""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.ir.casts import add_cast, return_instead
from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import has_kernel
from ortconv.ir.model import Model
from ortconv.ir.schema import schema_of
from ortconv.ir.types import DType, TensorType

MADE_OF_FLOAT16 = frozenset({"Cast", "ConstantOfShape"})
"""Operators that can return float16 without a float16 input."""

TYPE_ATTRIBUTES = ("dtype", "output_datatype")
"""Attributes that state the type of the result."""


def insert_casts(model: Model, release: int | None = None) -> int:
    """Compute every node without a float16 kernel in float32, in subgraphs too. Return the number of Casts.

    `release` must have the kernels; the default is the newest release.
    """
    return sum(_widen(graph, release) for graph in model.graph.graphs())


def needs_provider(node: Node) -> bool:
    """True for a node that is assigned to an execution provider and has no kernel in the CPU provider."""
    return bool(node.ep) and not has_kernel(node)


def _widen(graph: Graph, release: int | None) -> int:
    nodes = {node for node in graph if _is_float16(node) and _lacks_kernel(node, release)}
    if not nodes:
        return 0
    nodes |= _enclosed(graph, nodes)
    wide: dict[Value, Value] = {}
    results: list[Value] = []
    for node in [n for n in graph if n in nodes]:
        if node.is_op("Cast") and node.inputs[0] is not None:
            graph.replace(node.out, node.inputs[0])
            graph.remove(node)
            continue
        for slot, value in enumerate(node.inputs):
            if value is not None and value.dtype is DType.FLOAT16:
                if value not in wide:
                    wide[value] = _unrounded(value) or add_cast(graph, value, DType.FLOAT, node)
                graph.set_input(node, slot, wide[value])
        for name in TYPE_ATTRIBUTES:
            if node.attrs.get(name) == DType.FLOAT16:
                node.attrs[name] = int(DType.FLOAT)
        for value in node.outputs:
            if value is not None and value.dtype is DType.FLOAT16:
                value.retype(TensorType(DType.FLOAT, value.shape))
                results.append(value)
    rounded = [value for value in wide if _unrounded(value) is not None]
    for value in rounded:
        cast = value.producer
        if cast is not None and cast.graph is not None and not value.uses and not value.is_output:
            cast.graph.remove(cast)
    return len(wide) - len(rounded) + sum(_narrow(graph, value, nodes) for value in results)


def _unrounded(value: Value) -> Value | None:
    """The float32 constant that a Cast rounds to this value; None for other values.

    Where ONNX Runtime computes in float32 it leaves out this Cast, so that attributes of functions may be beyond float16.
    """
    cast = value.producer
    source = cast.inputs[0] if cast is not None and cast.is_op("Cast") else None
    return source if source is not None and source.dtype is DType.FLOAT and source.constant is not None else None


def _float16_values(node: Node) -> Iterator[Value]:
    return (v for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is DType.FLOAT16)


def _is_float16(node: Node) -> bool:
    return not node.ep and any(True for _ in _float16_values(node))


def _lacks_kernel(node: Node, release: int | None) -> bool:
    return not node.subgraphs and schema_of(node) is not None and not has_kernel(node, release)


def _enclosed(graph: Graph, nodes: set[Node]) -> set[Node]:
    """Nodes that have a float16 kernel but lie between nodes that have none. Computing them in float32 too saves Casts."""
    able = [n for n in graph if n not in nodes and _is_float16(n) and not n.subgraphs and _follows(n)]
    regions = DisjointSets(able)
    for node in able:
        for value in node.outputs:
            for user in value.consumers if value is not None and value.dtype is DType.FLOAT16 else ():
                if user in regions:
                    regions.join(node, user)
    return {
        n for region in regions.sets() if all(_is_enclosed(node, nodes, regions) for node in region) for n in region
    }


def _follows(node: Node) -> bool:
    """True if the output of a node becomes float32 when its float16 inputs do. Of Casts, this holds only for float16 to float16,
    which round nothing.
    """
    if node.is_op("Cast"):
        return all(v is not None and v.dtype is DType.FLOAT16 for v in (*node.inputs, *node.outputs))
    return node.op not in MADE_OF_FLOAT16


def _is_enclosed(node: Node, nodes: set[Node], others: DisjointSets[Node]) -> bool:
    """True if all float16 producers and consumers of a node are in `nodes` or `others`, and no float16 output is a graph output.

    Constants do not count, nor do inputs of the graph, unless the node reads nothing else.
    """
    reads = [v for v in node.inputs if v is not None and v.dtype is DType.FLOAT16 and v.constant is None]
    makes = [v for v in node.outputs if v is not None and v.dtype is DType.FLOAT16]
    producers = [v.producer for v in reads if v.producer is not None]
    if any(v.is_output for v in makes) or (reads and not producers):
        return False
    neighbors = (*producers, *(user for v in makes for user in v.consumers))
    return all(other in nodes or other in others for other in neighbors)


def _narrow(graph: Graph, value: Value, nodes: set[Node]) -> int:
    """Cast a value that has become float32 back to float16 for the readers that need it. Return the number of Casts.

    If only Casts read the value, they read float32: ONNX Runtime leaves out the rounding between two Casts that it inserts.
    """
    returned = value.is_output
    readers = [(user, slot) for user, slot in value.uses if user not in nodes]
    for user, slot in list(readers):
        if user.is_op("Cast") and user.attrs.get("to") == DType.FLOAT:
            readers.remove((user, slot))
            if user.graph is graph and not (user.out.is_output and value.is_output):
                graph.replace(user.out, value)
                graph.remove(user)
    if not returned and all(user.is_op("Cast") and user.graph is graph for user, _ in readers):
        return 0
    producer = value.producer
    assert producer is not None
    narrow = add_cast(graph, value, DType.FLOAT16, producer.next)
    if returned:
        return_instead(graph, value, narrow, value.name)
    for user, slot in readers:
        assert user.graph is not None
        user.graph.set_input(user, slot, narrow)
    return 1
