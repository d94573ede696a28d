"""Checks nodes against the schemas of their operators: numbers of operands, attributes, and their types."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import chain, repeat

from ortconv.errors import GraphError, nearest
from ortconv.ir.attributes import Floats, Graphs, Ints, Strings, Tensors, Types
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import UNKNOWN, type_text
from ortconv.ir.node_checks import fault
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import OPEN, Formal, Schema, operators, schema, schema_of
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import TensorType
from ortconv.wording import counted

STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", MICROSOFT})
"""Domains for which all operators have a schema here. Operators of other domains are custom."""

_KINDS: dict[type, str] = {
    bool: "INT", int: "INT", float: "FLOAT", str: "STRING", Tensor: "TENSOR", SparseTensor: "SPARSE_TENSOR",
    Graph: "GRAPH", Ints: "INTS", tuple: "INTS", Floats: "FLOATS", Strings: "STRINGS", Tensors: "TENSORS",
    Graphs: "GRAPHS", Types: "TYPE_PROTOS",
}  # fmt: skip
"""The ONNX type of an attribute by the Python type of its value; TYPE_PROTO for all others."""

FormalOperand = tuple[str, Formal, Value]
"""(operand as messages call it, formal parameter, value)."""


TOLERANT = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that onnxruntime also runs with unknown attributes, which it ignores."""


def check_signatures(graph: Graph) -> list[str]:
    """Raise GraphError for the first node, subgraphs included, that onnxruntime would refuse because of its operator's schema,
    or on which it would fail (see `node_checks`).

    Custom operators, and operator sets that the model does not import, are not checked. Attributes that onnxruntime ignores are
    removed; the result says which.
    """
    checked: set[Hashable] = set()
    removed: list[str] = []
    for node in graph.walk():
        if node.op in TOLERANT and node.attrs:
            removed += _remove_unknown(node)
        key = (
            node.domain, node.op, *node.attrs, *map(type, node.attrs.values()),
            *map(_type_key, node.inputs), *map(_type_key, node.outputs), len(node.inputs),
        )  # fmt: skip
        if key not in checked:
            _check(node)
            checked.add(key)
        if broken := fault(node):
            raise GraphError(broken, node=node.label)
    return removed


def _remove_unknown(node: Node) -> Iterator[str]:
    found = schema_of(node) if node.domain == "" else None
    known = node.attrs if found is None else found.attributes
    for name in [name for name in node.attrs if name not in known]:
        del node.attrs[name]
        hint = nearest(name, known)
        yield f"{node.label}: the attribute '{name}' is unknown and ignored{f'; {hint}' if hint else ''}"


def _type_key(value: Value | None) -> Hashable:
    type = None if value is None else value.type
    return type.dtype if isinstance(type, TensorType) else (value is None, type)


def _check(node: Node) -> None:
    if node.domain not in STANDARD or node.domain not in node.parent.opsets:
        return
    found = schema_of(node)
    if found is None:
        raise GraphError(_unknown(node), node=node.label, hint=_remedy(node))
    check_counts(node.label, node.inputs, node.outputs, found)
    _check_presence(node, found)
    _check_attributes(node, found)
    _check_types(node, found)


def _unknown(node: Node) -> str:
    version, domain = node.opset, node.domain or "ai.onnx"
    other = [v for v in range(1, version) if schema(node.domain, node.op, v) is not None]
    if other:
        return f"{node.op} was last defined in opset {other[-1]} of {domain}, the model imports opset {version}"
    return f"opset {version} of {domain} has no operator '{node.op}'"


def _remedy(node: Node) -> str | None:
    """Where there is an operator of the node's name: in a later version, or in another domain. Else, similar names."""
    newest = schema(node.domain, node.op, OPEN)
    if newest is not None:
        later = range(node.opset + 1, newest.since + 1)
        first = next(v for v in later if schema(node.domain, node.op, v) is not None)
        return (
            f"it exists since opset {first}: export with this version, or raise the model's with onnx.version_converter"
        )
    for domain in sorted(STANDARD - {node.domain}):
        if schema(domain, node.op, OPEN) is not None:
            return f"{domain or 'ai.onnx'} has it: set the domain of the node"
    return nearest(node.op, [op for op in operators(node.domain) if op != node.op])


def check_counts(label: str, inputs: Sequence[object], outputs: Sequence[object], found: Schema) -> None:
    """Raise GraphError for a node with fewer or more operands than its operator has."""
    for what, values, formals, least in (
        ("input", inputs, found.inputs, found.least[0]),
        ("output", outputs, found.outputs, found.least[1]),
    ):
        endless = bool(formals) and formals[-1].kind == "variadic"
        if len(values) < least or (len(values) > len(formals) and not endless):
            most = " or more" if endless else f" to {len(formals)}" if len(formals) > least else ""
            raise GraphError(
                f"{counted(len(values), what)}, {found.op} of opset {found.since} has {least}{most}", node=label
            )


def _check_presence(node: Node, found: Schema) -> None:
    for what, values, formals, required in (
        ("input", node.inputs, found.inputs, ("single", "variadic")),
        ("output", node.outputs, found.outputs, ("single",)),
    ):
        for slot, (value, formal) in enumerate(_paired(values, formals)):
            if value is None and formal.kind in required:
                raise GraphError(f"{what} {slot} ('{formal.name}') is left out, but is required", node=node.label)


def _paired(values: Sequence[Value | None], formals: Sequence[Formal]) -> Iterator[tuple[Value | None, Formal]]:
    """Each operand with its formal parameter; the last parameter is repeated."""
    return zip(values, chain(formals, repeat(formals[-1])), strict=False) if formals else iter(())


def _place(name: str, node: Node, found: Schema) -> str | None:
    """Where an operator has what a node states as an attribute: among its inputs, or in a later version."""
    slot = next((i for i, formal in enumerate(found.inputs) if formal.name.lower() == name.lower()), None)
    if slot is not None:
        return f"in opset {found.since} it is input {slot}: pass a tensor"
    newest = schema(node.domain, node.op, OPEN)
    later = range(found.since + 1, newest.since + 1 if newest is not None else 0)
    first = next((v for v in later if (one := schema(node.domain, node.op, v)) and name in one.attributes), None)
    return None if first is None else f"it exists since opset {first}: export with this version, or remove it"


def _check_attributes(node: Node, found: Schema) -> None:
    for name, value in node.attrs.items():
        if name.startswith("__"):  # an implementation's own, by ONNX's convention
            continue
        wanted, given = found.attributes.get(name), _KINDS.get(type(value), "TYPE_PROTO")
        if wanted is None:
            raise GraphError(
                f"{found.op} of opset {found.since} has no attribute '{name}'",
                node=node.label,
                hint=_place(name, node, found) or nearest(name, found.attributes) or "remove the attribute",
            )
        if wanted != given:
            raise GraphError(f"attribute '{name}' is of type {given}, must be {wanted}", node=node.label)
    missing = sorted(found.required - node.attrs.keys())
    if missing:
        raise GraphError(f"the required attribute '{missing[0]}' is missing", node=node.label)


def _check_types(node: Node, found: Schema) -> None:
    bound: dict[str, tuple[str, str]] = {}
    for name, formal, value in _operands(node, found):
        type = type_text(value.type)
        if type == UNKNOWN:
            continue
        allowed = found.allowed.get(formal.type, (formal.type,))
        if type not in allowed:
            raise GraphError(
                f"{name} is {type}, {found.op} of opset {found.since} takes {_listed(allowed, type)}",
                node=node.label,
                hint="insert a Cast, or export with another operator set version",
            )
        if formal.type in found.allowed and formal.homogeneous:
            first, known = bound.setdefault(formal.type, (name, type))
            if known != type:
                raise GraphError(
                    f"{first} is {known}, but {name} is {type}: both have the type parameter {formal.type} of {found.op}",
                    node=node.label,
                    hint="insert a Cast",
                )


def _listed(allowed: Collection[str], given: str) -> str:
    """The permitted types as text. If some are of the same kind as the given type, such as tensors, only these are listed."""
    kind = given.partition("(")[0]
    near = [type for type in allowed if type.startswith(f"{kind}(")] or allowed
    return ", ".join(sorted(near))


def _operands(node: Node, found: Schema) -> Iterator[FormalOperand]:
    for what, values, formals in (("input", node.inputs, found.inputs), ("output", node.outputs, found.outputs)):
        for value, formal in _paired(values, formals):
            if value is not None:
                yield f"{what} '{value.name}'", formal, value
