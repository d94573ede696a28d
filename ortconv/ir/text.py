"""A stable text form of graphs, for users, golden tests and error messages."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.ir.graph import Attribute, Floats, Graph, Graphs, Ints, Node, Strings, graphs_in, listed
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import DType

SHOWN_ELEMENTS = 8


def text(graph: Graph) -> str:
    """The graph as text: inputs, initializers, one line per node, and outputs. It is the same in every process."""
    return "\n".join(_lines(graph, "")) + "\n"


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    inputs = ", ".join(f"{v.name}: {v.type}{f' = {tensor_text(v.const)}' if v.const else ''}" for v in graph.inputs)
    yield f"{indent}graph ({inputs}) -> ({listed(graph.outputs)})"
    for value in graph.initializers.values():
        if not value.is_input:
            yield f"{indent}  {value.name} = {tensor_text(value.const)}"
    for node in graph:
        yield f"{indent}  {node_text(node)}"
        for name, attribute in node.attrs.items():
            for sub in graphs_in(attribute):
                yield f"{indent}    {name}:"
                yield from _lines(sub, indent + "    ")


def node_text(node: Node) -> str:
    """One node as one line: outputs, operator, attributes in order of name, inputs, and types of the outputs."""
    plain = ((k, v) for k, v in sorted(node.attrs.items()) if not isinstance(v, (Graph, Graphs)))
    attrs = ", ".join(f"{name}={attribute_text(value)}" for name, value in plain)
    types = ", ".join("_" if v is None else str(v.type) for v in node.outputs)
    op = f"{node.domain}.{node.op}" if node.domain else node.op
    ep = f" @{node.ep}" if node.ep else ""
    return f"{listed(node.outputs)} = {op}{f'<{attrs}>' if attrs else ''}({listed(node.inputs)}) : {types}{ep}"


def attribute_text(value: Attribute) -> str:
    """An attribute as text, on one line; of a long constant only the first elements."""
    if isinstance(value, (Tensor, SparseTensor)):
        return tensor_text(value)
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, (Ints, Floats, Strings)):
        return "[" + ", ".join(attribute_text(v) for v in value) + "]"
    return str(value)


def tensor_text(const: Tensor | SparseTensor | None) -> str:
    """Type and elements of a constant; of a long one only the first elements."""
    if const is None:
        return "?"
    if isinstance(const, SparseTensor):
        return f"sparse{list(const.shape)} {tensor_text(const.values)} at {tensor_text(const.indices)}"
    items = const.numpy().ravel()[:SHOWN_ELEMENTS].tolist()
    shown = ", ".join(
        f"{i:.9g}" if isinstance(i, float) else repr(i) if const.dtype is DType.STRING else str(i) for i in items
    )
    more = ", ..." if const.size > SHOWN_ELEMENTS else ""
    return f"{const.dtype.name.lower()}{list(const.shape)} {{{shown}{more}}}"
