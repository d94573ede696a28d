"""The operator sets that a model imports: those left out are added, and an old one is raised where this changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ortconv.ir.schema import schema
from ortconv.onnxio.build import check_text
from ortconv.onnxlib import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

KNOWN = {"": 28, "ai.onnx.ml": 5, "com.microsoft": 1, "com.microsoft.nchwc": 1}
"""Operator sets that ONNX Runtime imports, with their version in the newest release that this table has been checked against."""


def opset_of(proto: ModelProto) -> int:
    """The version of ONNX's operators that a model imports; 0 without an import."""
    return max((e.version for e in proto.opset_import if _domain(e.domain) == ""), default=0)


def keep_last_imports(proto: ModelProto, warn: Callable[[str], None]) -> None:
    """Import each operator set once, in the last of its versions: ONNX Runtime reads a model with several so."""
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = _domain(entry.domain)
        check_text(domain)
        before = versions.get(domain, entry.version)
        if before != entry.version:
            warn(f"{domain or 'ai.onnx'} is imported as {before} and as {entry.version}: the last version is used")
        versions[domain] = entry.version
    if len(versions) < len(proto.opset_import):
        del proto.opset_import[:]
        for domain, version in versions.items():
            proto.opset_import.add(domain=domain, version=version)


def raise_opset(proto: ModelProto, oldest: int, warn: Callable[[str], None]) -> None:
    """Import ONNX's operators in version `oldest` instead of an older one, if all used operators are the same in both. The shape of
    a Reshape may be an attribute, as before version 5: it becomes an input.

    ONNX Runtime loads such a model: kernels of other operators of older versions are what it lacks.
    """
    old = [e for e in proto.opset_import if _domain(e.domain) == "" and 0 < e.version < oldest]
    if len(old) != 1 or proto.functions:
        return
    (entry,) = old
    nodes = [node for node in walk(proto.graph) if _domain(node.domain) == ""]
    changed = [node for node in nodes if not _is_same(node, entry.version, oldest)]
    if all(_states_shape(node) for node in changed):
        but = ", but for the shape of Reshape, which becomes an input" if changed else ""
        warn(f"opset {entry.version} of ai.onnx is read as {oldest}, in which the model's operators are the same{but}")
        _move_shapes(changed, proto.graph)
        entry.version = oldest


def _states_shape(node: NodeProto) -> bool:
    is_reshape = node.op_type == "Reshape" and len(node.input) == len(node.output) == 1
    return is_reshape and [a.type for a in node.attribute if a.name == "shape"] == [AttributeProto.INTS]


def _move_shapes(nodes: list[NodeProto], graph: GraphProto) -> None:
    """Make the attribute `shape` of each Reshape its second input, an initializer of the main graph."""
    used = {name for node in walk(graph) for name in (*node.input, *node.output)}
    used |= {value.name for value in (*graph.input, *graph.initializer)}
    for node in nodes:
        shape = next(a.ints for a in node.attribute if a.name == "shape")
        name = f"{node.output[0]}_shape"
        while name in used:
            name += "_"
        used.add(name)
        graph.initializer.add(name=name, data_type=TensorProto.INT64, dims=[len(shape)], int64_data=shape)
        node.input.append(name)
        del node.attribute[:]


def _is_same(node: NodeProto, old: int, new: int) -> bool:
    check_text(node.op_type)
    before, after = (schema("", node.op_type, version) for version in (old, new))
    return before is not None and after is not None and before.since == after.since


def import_used(proto: ModelProto, message: bytes, warn: Callable[[str], None]) -> None:
    """Import operator sets of KNOWN that nodes use and the model does not import. `message` is the serialized model.

    The version is the oldest in which each used operator has its newest definition, which is the one that ONNX Runtime uses.
    """
    imported = {_domain(entry.domain) for entry in proto.opset_import}
    if all(domain in imported or (domain and domain.encode() not in message) for domain in KNOWN):
        return
    used: dict[str, set[str]] = {}
    for node in walk(proto.graph):
        check_text(node.op_type, node.domain)
        domain = _domain(node.domain)
        if domain not in imported and domain in KNOWN:
            used.setdefault(domain, set()).add(node.op_type)
    for domain, ops in used.items():
        found = [known.since for op in ops if (known := schema(domain, op, KNOWN[domain])) is not None]
        version = max(found, default=KNOWN[domain])
        proto.opset_import.add(domain=domain, version=version)
        warn(f"the model uses operators of {domain or 'ai.onnx'} without importing it: version {version} is imported")


def walk(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of all its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for sub in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from walk(sub)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
