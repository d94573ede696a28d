"""Replaces calls of model-local functions by their bodies.

This follows ONNX Runtime: an operator has priority over a function of the same name, and bodies use the operator sets of the model.
Only bodies that are invalid there, which ONNX Runtime refuses, are converted by onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ortconv.errors import GraphError, UnsupportedError
from ortconv.ir.names import Names
from ortconv.ir.schema import plain_domain, schema
from ortconv.onnxio.build import check_text
from ortconv.onnxio.infer import first_line
from ortconv.onnxio.messages import domain_of, subgraphs, value_names, walk
from ortconv.onnxlib import get_schema
from ortconv.onnxproto import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

MAX_NODES = 1_000_000
"""Maximum number of nodes after inlining."""

MAX_NESTING = 64
"""Maximum nesting of subgraphs through calls of functions."""


class FunctionKey(NamedTuple):
    """Identifies a function. The overload is used from IR version 10 on."""

    domain: str
    name: str
    overload: str

    def __str__(self) -> str:
        return f"{self.domain}:{self.name}" + (f":{self.overload}" if self.overload else "")


def inline_functions(proto: ModelProto, warn: Callable[[str], None]) -> None:
    """Replace all calls of functions in a model by their bodies, and remove the functions.

    Raises GraphError if a function is recursive, defined twice or called with too many arguments, UnsupportedError if it cannot be
    inlined. `warn` is called with messages for the user.
    """
    _check_texts(proto)
    _import_domains(proto)
    opsets = {plain_domain(entry.domain): entry.version for entry in proto.opset_import}
    functions = _functions(proto, opsets)
    sizes = _sizes(functions)
    total = sum(sizes.get(_key(node), 1) for node in walk(proto.graph.node))
    if total > MAX_NODES:
        raise UnsupportedError(f"inlining the model's functions would give {total} nodes, the limit is {MAX_NODES}")
    foreign = {key for key, function in functions.items() if not _fits(key, function, opsets, warn)}
    inliner = _Inliner(functions, foreign, value_names(proto.graph))
    inliner.graph(proto.graph)
    del proto.functions[:]
    if inliner.left:
        _convert(proto, inliner)


def _check_texts(proto: ModelProto) -> None:
    for function in proto.functions:
        check_text(function.domain, function.name, function.overload, *function.input, *function.output)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in walk(nodes):
            check_text(node.domain, node.op_type, node.overload, node.name, *node.input, *node.output)
            check_text(*(text for attribute in node.attribute for text in (attribute.name, attribute.ref_attr_name)))


def _functions(proto: ModelProto, opsets: Mapping[str, int]) -> dict[FunctionKey, FunctionProto]:
    """The model's functions, without those that an operator replaces. Raises GraphError if two have the same key."""
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in proto.functions:
        key = FunctionKey(plain_domain(function.domain), function.name, function.overload)
        if functions.setdefault(key, function) is not function:
            raise GraphError(f"the model has two functions {key}")
    return {k: f for k, f in functions.items() if schema(k.domain, k.name, opsets.get(k.domain, 1)) is None}


def _import_domains(proto: ModelProto) -> None:
    """Make the model import the operator sets that only its functions import."""
    known = {plain_domain(entry.domain) for entry in proto.opset_import}
    for function in proto.functions:
        for entry in function.opset_import:
            if plain_domain(entry.domain) not in known:
                known.add(plain_domain(entry.domain))
                proto.opset_import.add(domain=entry.domain, version=entry.version)


# ---------------------------------------------------------------------- operator sets


def _fits(key: FunctionKey, function: FunctionProto, opsets: Mapping[str, int], warn: Callable[[str], None]) -> bool:
    """True if the operators of a function are valid under the model's operator sets.

    Warns if the model's version of an operator has other attribute defaults than the function's.
    """
    own = {plain_domain(entry.domain): entry.version for entry in function.opset_import}
    for domain, version in own.items():
        if version == opsets[domain]:
            continue
        for node in walk(function.node):
            if domain_of(node) == domain and not _valid(node, domain, version, opsets[domain]):
                return False
    for node in walk(function.node):
        domain = domain_of(node)
        if own.get(domain, opsets.get(domain)) != opsets.get(domain) and _defaults_differ(
            node, domain, own[domain], opsets[domain]
        ):
            warn(
                f"function {key} is of opset {own[domain]}, the model of opset {opsets[domain]}: its {node.op_type} has the"
                " model's defaults, as in ONNX Runtime"
            )
    return True


def _valid(node: NodeProto, domain: str, version: int, target: int) -> bool:
    """True if a node written for one version of an operator set has valid attributes and inputs in another version."""
    before, found = (get_schema(node.op_type, each, domain) for each in (version, target))
    if before is None or found is None:
        return before is None
    if found.since_version == before.since_version:
        return True
    given = {attribute.name for attribute in node.attribute}
    required = {name for name, attribute in found.attributes.items() if attribute.required}
    return (
        not found.deprecated
        and required <= given <= set(found.attributes)
        and found.min_input <= len(node.input) <= found.max_input
        and found.min_output <= len(node.output) <= found.max_output
    )


def _defaults_differ(node: NodeProto, domain: str, version: int, target: int) -> bool:
    before, after = schema(domain, node.op_type, version), schema(domain, node.op_type, target)
    if before is None or after is None or before.since == after.since:
        return False
    given = {attribute.name for attribute in node.attribute}
    names = (before.defaults.keys() & after.defaults.keys()) - given
    return any(before.defaults[name] != after.defaults[name] for name in names)


def _convert(proto: ModelProto, inliner: _Inliner) -> None:
    """Convert and inline, with onnx, the functions that are invalid under the model's operator sets."""
    from onnx.inliner import inline_local_functions

    done: set[FunctionKey] = set()
    while (key := next((key for key in inliner.left if key not in done), None)) is not None:
        done.add(key)
        function, added = inliner.left[key], proto.functions.add()
        added.CopyFrom(function)
        del added.node[:]
        added.node.extend(inliner.nodes(function.node))
        added.name, added.overload = inliner.unique(key), ""
        del added.attribute_proto[:]
        added.attribute.extend(a.name for a in function.attribute_proto)
    reason = ""
    inlined = proto
    try:
        inlined = inline_local_functions(proto, convert_version=True)
    except Exception as error:
        reason = f" ({first_line(error)})"
    keys = {inliner.unique(key): key for key in inliner.left}
    left = next((node for node in walk(inlined.graph.node) if node.op_type in keys), None)
    if left is not None:
        raise UnsupportedError(
            f"function {keys[left.op_type]} uses another operator set version than the model, and cannot be converted{reason}",
            node=left.name or None,
            hint="export all of the model with one operator set version",
        )
    proto.CopyFrom(inlined)
    del proto.functions[:]


# ---------------------------------------------------------------------- inlining


class _Inliner:
    """Copies bodies of functions to their calls. `names` holds those of existing values."""

    def __init__(self, functions: Mapping[FunctionKey, FunctionProto], foreign: set[FunctionKey], names: Names) -> None:
        self.functions = functions
        self.foreign = foreign
        self.names = names
        self.left: dict[FunctionKey, FunctionProto] = {}
        """The functions of `foreign` that are called; these calls are left for onnx."""

    def graph(self, graph: GraphProto, depth: int = 0) -> None:
        """Inline all calls in a graph and in its subgraphs."""
        if depth > MAX_NESTING:
            raise UnsupportedError(f"functions nest subgraphs deeper than {MAX_NESTING} levels")
        if any(_key(node) in self.functions or subgraphs(node) for node in graph.node):
            nodes = self.nodes(graph.node, depth)
            del graph.node[:]
            graph.node.extend(nodes)

    def nodes(self, nodes: Iterable[NodeProto], depth: int = 0) -> list[NodeProto]:
        """Copies of nodes, with calls replaced by the bodies of functions."""
        made: list[NodeProto] = []
        pending = [iter(nodes)]
        while pending:
            node = next(pending[-1], None)
            if node is None:
                pending.pop()
                continue
            key = _key(node)
            if key in self.functions and key not in self.foreign:
                pending.append(iter(self.body(self.functions[key], node)))
                continue
            copy = NodeProto()
            copy.CopyFrom(node)
            if key in self.foreign:
                self._leave(copy, key)
            for sub in subgraphs(copy):
                self.graph(sub, depth + 1)
            made.append(copy)
        return made

    def body(self, function: FunctionProto, call: NodeProto) -> list[NodeProto]:
        """Copies of a function's nodes for one call."""
        for kind, formal, actual in (("inputs", function.input, call.input), ("outputs", function.output, call.output)):
            if len(actual) > len(formal):
                raise GraphError(
                    f"{len(actual)} {kind}, but the function has {len(formal)}", node=f"{_key(call)} '{call.name}'"
                )
        names = dict(zip(function.input, [*call.input, *[""] * len(function.input)], strict=False))
        aliases = _name_outputs(names, function, call)
        attributes = _arguments(function, call)
        made = []
        self._define(names, function.node)
        for node in function.node:
            copy = NodeProto()
            copy.CopyFrom(node)
            self._rewrite(copy, names, attributes)
            if call.name and copy.name:
                copy.name = f"{call.name}/{copy.name}"
            made.append(copy)
        return made + aliases

    def unique(self, key: FunctionKey) -> str:
        """A name for a function that is unique among its overloads."""
        return f"{key.name}__{key.overload}" if key.overload else key.name

    def _leave(self, call: NodeProto, key: FunctionKey) -> None:
        function = self.left[key] = self.functions[key]
        arguments = list(_arguments(function, call).values())
        del call.attribute[:]
        call.attribute.extend(arguments)
        call.op_type, call.overload = self.unique(key), ""

    def _define(self, names: dict[str, str], nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            for name in node.output:
                if name and name not in names:
                    names[name] = self.names.fresh(name)

    def _rewrite(self, node: NodeProto, names: Mapping[str, str], attributes: Mapping[str, AttributeProto]) -> None:
        """Rename the values of a node and resolve references to the function's attributes, in its subgraphs too."""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        if any(attribute.ref_attr_name for attribute in node.attribute):
            resolved = [_resolved(attribute, attributes) for attribute in node.attribute]
            del node.attribute[:]
            node.attribute.extend(attribute for attribute in resolved if attribute is not None)
        for sub in subgraphs(node):
            self._rewrite_graph(sub, dict(names), attributes)

    def _rewrite_graph(
        self, graph: GraphProto, names: dict[str, str], attributes: Mapping[str, AttributeProto]
    ) -> None:
        own = [*graph.input, *graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        holders = (*own, *graph.output, *graph.value_info)
        check_text(*(holder.name for holder in holders))
        made = (name for node in graph.node for name in node.output)
        for name in dict.fromkeys(filter(None, (*(holder.name for holder in own), *made))):
            names[name] = self.names.fresh(name)
        for holder in holders:
            holder.name = names.get(holder.name, holder.name)
        for node in graph.node:
            self._rewrite(node, names, attributes)


def _name_outputs(names: dict[str, str], function: FunctionProto, call: NodeProto) -> list[NodeProto]:
    """Add the names of a call's outputs to `names`. Return nodes for outputs that are inputs, or other outputs, of the function."""
    returned: dict[str, str] = {}
    aliases: list[NodeProto] = []
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual and (formal in names or formal in returned):
            source = returned.get(formal) or names[formal]
            aliases.append(NodeProto(op_type="Identity", input=[source], output=[actual]))
        elif actual:
            returned[formal] = actual
    names.update(returned)
    return aliases


def _arguments(function: FunctionProto, call: NodeProto) -> dict[str, AttributeProto]:
    """The attributes of a call, completed by the function's defaults."""
    found = {attribute.name: attribute for attribute in function.attribute_proto}
    found.update((attribute.name, attribute) for attribute in call.attribute)
    return found


def _resolved(attribute: AttributeProto, values: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """An attribute of a body with its reference resolved; None if the call omits the referenced attribute."""
    if not attribute.ref_attr_name:
        return attribute
    value = values.get(attribute.ref_attr_name)
    if value is None:
        return None
    copy = AttributeProto()
    copy.CopyFrom(value)
    copy.name = attribute.name
    return copy


# ---------------------------------------------------------------------- reading


def _sizes(functions: Mapping[FunctionKey, FunctionProto]) -> dict[FunctionKey, int]:
    """Number of nodes of each function after inlining. Raises GraphError if a function is recursive."""
    calls = {key: [_key(node) for node in walk(f.node)] for key, f in functions.items()}
    sizes: dict[FunctionKey, int] = {}
    active: dict[FunctionKey, None] = {}
    stack = [(key, False) for key in functions]
    while stack:
        key, done = stack.pop()
        if done:
            del active[key]
            sizes[key] = sum(sizes.get(called, 1) for called in calls[key])
        elif key in active:
            raise GraphError(f"function {key} calls itself")
        elif key not in sizes:
            active[key] = None
            stack.append((key, True))
            stack += [(called, False) for called in dict.fromkeys(calls[key]) if called in functions]
    return sizes


def _key(node: NodeProto) -> FunctionKey:
    return FunctionKey(domain_of(node), node.op_type, node.overload)
