"""The operator sets that a model imports: those left out are added, and an old one is raised where this changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import plain_domain, schema
from ortconv.onnxio.build import check_text
from ortconv.onnxio.messages import domain_of, value_names, walk
from ortconv.onnxproto import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

KNOWN = {"": 28, "ai.onnx.ml": 5, MICROSOFT: 1, "com.microsoft.nchwc": 1}
"""Operator sets that ONNX Runtime imports, with their version in the newest release that this table has been checked against."""


def opset_of(proto: ModelProto) -> int:
    """The version of ONNX's operators that a model imports; 0 without an import."""
    return max((e.version for e in proto.opset_import if plain_domain(e.domain) == ""), default=0)


def keep_last_imports(proto: ModelProto, warn: Callable[[str], None]) -> None:
    """Import each operator set once, in the last of its versions: ONNX Runtime reads a model with several so."""
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = plain_domain(entry.domain)
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
    a Reshape may be an attribute, as before version 5: it becomes an input. A Dropout loses the attribute that says if it trains.

    ONNX Runtime loads such a model: it lacks kernels only for older versions of operators that differ, and removes a Dropout.
    """
    old = [e for e in proto.opset_import if plain_domain(e.domain) == "" and 0 < e.version < oldest]
    if len(old) != 1 or proto.functions:
        return
    (entry,) = old
    changed = list(_changed(proto.graph, entry.version, oldest))
    shaped, dropouts = list(filter(_states_shape, changed)), list(filter(_is_dropout, changed))
    if len(shaped) + len(dropouts) == len(changed):
        but = ", but for the shape of Reshape, which becomes an input" if shaped else ""
        but += ", but for Dropout, which passes its input on" if dropouts else ""
        warn(f"opset {entry.version} of ai.onnx is read as {oldest}, in which the model's operators are the same{but}")
        _move_shapes(shaped, proto.graph)
        _end_training(dropouts)
        entry.version = oldest


def _changed(graph: GraphProto, old: int, new: int) -> Iterator[NodeProto]:
    """The nodes whose operators of ONNX differ between two versions."""
    for node in walk(graph.node):
        check_text(node.op_type)
        before, after = (schema("", node.op_type, version) for version in (old, new))
        if domain_of(node) == "" and (before is None or after is None or before.since != after.since):
            yield node


def _states_shape(node: NodeProto) -> bool:
    is_reshape = node.op_type == "Reshape" and len(node.input) == len(node.output) == 1
    return is_reshape and [a.type for a in node.attribute if a.name == "shape"] == [AttributeProto.INTS]


_OF_OLD_DROPOUTS = ("is_test", "consumed_inputs")


def _is_dropout(node: NodeProto) -> bool:
    return node.op_type == "Dropout" and {a.name for a in node.attribute} <= {"ratio", *_OF_OLD_DROPOUTS}


def _end_training(dropouts: list[NodeProto]) -> None:
    for node in dropouts:
        kept = [a for a in node.attribute if a.name not in _OF_OLD_DROPOUTS]
        del node.attribute[:]
        node.attribute.extend(kept)


def _move_shapes(nodes: list[NodeProto], graph: GraphProto) -> None:
    """Make the attribute `shape` of each Reshape its second input, an initializer of the main graph."""
    names = value_names(graph)
    for node in nodes:
        shape = next(a.ints for a in node.attribute if a.name == "shape")
        name = names.fresh(f"{node.output[0]}_shape")
        graph.initializer.add(name=name, data_type=TensorProto.INT64, dims=[len(shape)], int64_data=shape)
        node.input.append(name)
        del node.attribute[:]


def import_used(proto: ModelProto, message: bytes, warn: Callable[[str], None]) -> None:
    """Import operator sets of KNOWN that nodes use and the model does not import. `message` is the serialized model.

    ONNX's own set is imported by both of its names if one of them is written out: shape inference takes them for two.
    """
    imported = {plain_domain(entry.domain) for entry in proto.opset_import}
    missing = [d for d in KNOWN if d not in imported and (not d or d.encode() in message)]
    for domain, ops in _used(proto.graph, missing).items() if missing else ():
        version = _version_with(domain, ops)
        proto.opset_import.add(domain=domain, version=version)
        warn(f"the model uses operators of {domain or 'ai.onnx'} without importing it: version {version} is imported")
    own = [entry for entry in proto.opset_import if plain_domain(entry.domain) == ""]
    if len(own) == 1 and b"ai.onnx" in message:
        proto.opset_import.add(domain="" if own[0].domain else "ai.onnx", version=own[0].version)


def import_unknown(proto: ModelProto, warn: Callable[[str], None]) -> None:
    """Import version 1 of operator sets that nodes use and the model does not import. ONNX Runtime imports those of a library of
    custom operators.
    """
    imported = {plain_domain(entry.domain) for entry in proto.opset_import}
    for domain in dict.fromkeys(map(domain_of, walk(proto.graph.node))):
        if domain not in imported:
            check_text(domain)
            proto.opset_import.add(domain=domain, version=1)
            warn(f"the model uses operators of {domain} without importing it: version 1 is imported")


def _version_with(domain: str, ops: Iterable[str]) -> int:
    """The oldest version in which each of these operators has its newest definition, which is the one that ONNX Runtime uses."""
    newest = KNOWN[domain]
    return max((known.since for op in ops if (known := schema(domain, op, newest)) is not None), default=newest)


def _used(graph: GraphProto, domains: Collection[str]) -> dict[str, set[str]]:
    """The operators of these domains that a graph uses, by domain."""
    used: dict[str, set[str]] = {}
    for node in walk(graph.node):
        check_text(node.op_type, node.domain)
        domain = domain_of(node)
        if domain in domains:
            used.setdefault(domain, set()).add(node.op_type)
    return used
