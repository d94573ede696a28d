"""Model-local functions: checked, then inlined by onnx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ortconv.errors import GraphError, UnsupportedError
from ortconv.onnxio.infer import first_line
from ortconv.onnxlib import FunctionProto, ModelProto, NodeProto

MAX_NODES = 1_000_000
"""Nodes that a model may have after inlining."""

Key = tuple[str, str]


def inline_functions(proto: ModelProto) -> ModelProto:
    """The same model without functions. GraphError if they are recursive, UnsupportedError if they cannot be inlined."""
    functions = {(_domain(f.domain), f.name): f for f in proto.functions}
    if len(functions) < len(proto.functions):
        raise GraphError("two model-local functions have the same name")
    sizes = _sizes(functions)
    total = sum(sizes.get(_key(node), 1) for node in _walk(proto.graph.node))
    if total > MAX_NODES:
        raise UnsupportedError(f"inlining the model's functions would give {total} nodes, the limit is {MAX_NODES}")
    _import_domains(proto)
    own = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    convert = any(own[_domain(e.domain)] != e.version for f in proto.functions for e in f.opset_import)
    from onnx.inliner import inline_local_functions

    try:
        inlined = inline_local_functions(proto, convert_version=convert)
    except Exception as error:
        raise GraphError(f"inlining functions: {first_line(error)}") from error
    left = next((node for node in _walk(inlined.graph.node) if _key(node) in functions), None)
    if left is not None:
        raise UnsupportedError(
            f"function {left.domain}:{left.op_type} cannot be inlined",
            node=left.name or None,
            hint="it uses another operator set version than the model: export all of it with one",
        )
    del inlined.functions[:]
    return inlined


def _import_domains(proto: ModelProto) -> None:
    """Let the model import the operator sets that only its functions import."""
    known = {_domain(entry.domain) for entry in proto.opset_import}
    for function in proto.functions:
        for entry in function.opset_import:
            if _domain(entry.domain) not in known:
                known.add(_domain(entry.domain))
                proto.opset_import.add(domain=entry.domain, version=entry.version)


def _sizes(functions: dict[Key, FunctionProto]) -> dict[Key, int]:
    """By function: its number of nodes when everything in it is inlined. GraphError on recursion."""
    calls = {key: [_key(node) for node in _walk(f.node)] for key, f in functions.items()}
    sizes: dict[Key, int] = {}
    active: dict[Key, None] = {}
    stack = [(key, False) for key in functions]
    while stack:
        key, done = stack.pop()
        if done:
            del active[key]
            sizes[key] = sum(sizes.get(called, 1) for called in calls[key])
        elif key in active:
            raise GraphError(f"function {key[0]}:{key[1]} calls itself")
        elif key not in sizes:
            active[key] = None
            stack.append((key, True))
            stack += [(called, False) for called in dict.fromkeys(calls[key]) if called in functions]
    return sizes


def _walk(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g.node)
            for graph in attribute.graphs:
                yield from _walk(graph.node)


def _key(node: NodeProto) -> Key:
    return _domain(node.domain), node.op_type


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
