"""Expands operators that onnxruntime runs only through their function bodies.

An .ort file cannot hold a function, and functions are not expanded when it is loaded, so this must happen before writing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ortconv.errors import UnsupportedError
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import first_release_of, has_kernel, lacks_kernel, releases, type_text
from ortconv.ir.model import Model
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import default_attributes, since_version
from ortconv.ir.types import DType

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

SMALL_CONSTANT = 1024
"""Shape inference sees the contents of constants of up to this number of elements."""

DOUBLE_BODIES = {
    "FastGelu": """ (x) => (y) {
        half = Constant<value = double {0.5}>()  one = Constant<value = double {1.0}>()
        slope = Constant<value = double {0.797885}>()  cubic = Constant<value = double {0.035677}>()
        square = Mul(x, x)  bend = Mul(cubic, square)  sum = Add(slope, bend)  inner = Mul(x, sum)
        bounded = Tanh(inner)  shifted = Add(one, bounded)  product = Mul(x, shifted)  y = Mul(half, product) }""",
    "QuickGelu": """ <alpha> (x) => (y) {
        float = Constant<value_float: float = @alpha>()  factor = Cast<to: int = 11>(float)
        scaled = Mul(factor, x)  gate = Sigmoid(scaled)  y = Mul(x, gate) }""",
}
"""Bodies that ONNX Runtime has for its own operators (core/graph/contrib_ops: bert_defs.cc, contrib_defs.cc), for doubles: other
types have kernels.
"""

DEEPEST = 8
"""Maximum nesting depth of functions in function bodies."""


def expand_functions(model: Model, release: int | None = None) -> int:
    """Replace each node that has a function body but no CPU kernel for its types, in subgraphs too. Return the number of replaced
    nodes.

    Nodes assigned to an execution provider need no CPU kernel and stay. `release` must have the kernels; the default is the newest
    release.

    Raises UnsupportedError, with the node, if onnx has no body for it, or if the release does not run its body.
    """
    expanded, known = _add_biases(model.graph, release), set[Node]()
    for _ in range(DEEPEST):
        found = _unsupported(model.graph, release)
        if not found:
            if known and release is not None:
                _refuse_newer(model.graph, known, release)
            return expanded
        known = known or set(model.graph.walk())
        for node in reversed(found):
            _expand(node)
        expanded += len(found)
    raise UnsupportedError(
        "the function body refers to functions again and again", node=_unsupported(model.graph, release)[0].label
    )


def _refuse_newer(graph: Graph, known: Collection[Node], release: int) -> None:
    """Raise UnsupportedError for the first node that is not known and needs a newer release."""
    for node in graph.walk():
        first = None if node.ep or node in known else first_release_of(node, cast=True)
        if first is not None and first > release:
            raise too_new(releases()[first], releases()[release], "this node of a function body").at(node=node.label)


def too_new(oldest: str, target: str, reason: str) -> UnsupportedError:
    """The error for a source that needs a newer release than the target."""
    return UnsupportedError(
        f"the model itself needs onnxruntime {oldest} or later, and the target is {target}: {reason}",
        hint=f"choose --target-ort {oldest}, or export the model with an older operator set",
    )


def _add_biases(root: Graph, release: int | None) -> int:
    """FastGelu(x, bias)  ->  FastGelu(x + bias) where there is no kernel for the types, unless the bias is a row of x or
    the types are double. Return the number of changed nodes.

    The kernel for float, which also serves float16 between Casts, takes a row; the function body takes any bias that broadcasts.
    """
    nodes = [n for n in root.walk() if n.is_op("FastGelu", MICROSOFT) and n.input(1) is not None and not n.ep]
    found = [n for n in nodes if not has_kernel(n, release) and (n.dtype(0) is DType.DOUBLE or not _takes_row(n))]
    for node in found:
        from ortconv.onnxio.infer import update_types

        total = node.parent.add_node("Add", node.inputs, before=node)
        update_types(total)
        node.parent.set_inputs(node, [total.out])
    return len(found)


def _takes_row(node: Node) -> bool:
    bias, columns = node.input(1), node.dim(0, -1)
    return bias is not None and columns is not None and bias.shape == (columns,)


def without_kernel(graph: Graph) -> list[Node]:
    """Nodes that no execution provider runs and for which the CPU provider has no kernel of this operator, version and types."""
    return [node for node in graph.walk() if not node.ep and not has_kernel(node)]


def refuse_without_kernel(graph: Graph) -> None:
    """Raise UnsupportedError for the first node that onnxruntime cannot run without expansion."""
    for node in without_kernel(graph):
        types = ", ".join(type_text(v.type) or "a type that is not known" for v in node.present_inputs)
        raise UnsupportedError(
            f"onnxruntime has no CPU kernel for this operator with {types or 'no inputs'}, nor a function body",
            node=node.label,
            hint="compute it in another type, such as float, between Casts; --allow-unchecked writes the file all the same",
        )


def _unsupported(graph: Graph, release: int | None) -> list[Node]:
    return [node for node in graph.walk() if not node.ep and lacks_kernel(node, release) and has_body(node)]


def has_body(node: Node) -> bool:
    """True if ONNX defines the node's operator by a function, or ONNX Runtime does so for its types."""
    if node.domain == MICROSOFT:
        return node.op in DOUBLE_BODIES and node.dtype(0) is DType.DOUBLE
    from ortconv.onnxlib import get_schema

    found = get_schema(node.op, since_version(node), node.domain)
    return found is not None and bool(found.has_function or found.has_context_dependent_function)


def _expand(node: Node) -> None:
    from ortconv.onnxio.infer import update_types

    graph = node.parent
    body = _body(node)
    made = list(body)
    results = graph.absorb(body, node)
    for inner in made:
        inner.name = inner.name or graph.fresh(f"{node.name or node.out.name}/{inner.op}")
        update_types(inner)
    for old, new in zip(node.present_outputs, results, strict=True):
        graph.replace(old, new)
    graph.remove(node)


def _body(node: Node) -> Graph:
    """The function body as a graph without inputs, which reads the values of the node's graph."""
    from ortconv.onnxio.build import GraphBuilder
    from ortconv.onnxio.infer import infer_model, read_type

    proto = infer_model(_inlined(node).SerializeToString())
    graph = node.parent
    del proto.graph.input[:]
    del proto.graph.initializer[:]
    body = Graph(parent=graph)
    body.owner = node
    builder = GraphBuilder(body, _visible(graph), lambda tensor: memoryview(b""), overridable=True, read_type=read_type)
    builder.fill(proto.graph)
    return body


def _inlined(node: Node) -> ModelProto:
    """A model of this node alone, with the node replaced by its function body."""
    proto = _model_of(node)
    try:
        proto = _inline_calls(proto, node)
    except Exception as error:
        raise _refusal(node, str(error).strip().splitlines()[0]) from error
    if _calls(proto, node):
        raise _refusal(node, "onnx has no function body for this use of it")
    return proto


def _model_of(node: Node) -> ModelProto:
    from ortconv.onnxio.proto import region_proto, value_info

    reads = list(dict.fromkeys(node.present_reads))
    unknown = [v.name for v in reads if v.type is None] if node.op == "SequenceMap" else []
    if unknown:  # onnx's inliner would end the process
        raise _refusal(node, f"the type of '{unknown[0]}' is not known")
    inputs = [v for v in reads if v.constant is None or v.constant.size > SMALL_CONSTANT]
    proto = region_proto(node.parent, [node], inputs, node.present_outputs)
    proto.graph.value_info.extend(value_info(v) for v in reads if v not in inputs)
    return proto


def _calls(proto: ModelProto, node: Node) -> list[NodeProto]:
    return [n for n in proto.graph.node if n.op_type == node.op and n.domain == node.domain]


def _inline_calls(proto: ModelProto, node: Node) -> ModelProto:
    from onnx.inliner import inline_local_functions, inline_selected_functions

    from ortconv.onnxio.proto import attribute_proto

    (call,) = _calls(proto, node)
    # The inliner leaves attributes without a value out of the body, too.
    call.attribute.extend(attribute_proto(name, value) for name, value in default_attributes(node).items())
    if node.domain == MICROSOFT or None in node.inputs:  # whose types the inliner asks for in vain
        proto.functions.append(_function(call, node))
        return inline_local_functions(proto)
    return inline_selected_functions(proto, [(node.domain, node.op)], inline_schema_functions=True)


def _function(call: NodeProto, node: Node) -> FunctionProto:
    """The function body for this use of the operator."""
    from onnx import FunctionProto, TypeProto

    from ortconv.onnxio.proto import value_info
    from ortconv.onnxlib import get_schema

    if node.domain == MICROSOFT:
        from onnx.parser import parse_function

        head = f'<domain: "{MICROSOFT}", opset_import: ["": {node.parent.opset()}]> {node.op}'
        return parse_function(head + DOUBLE_BODIES[node.op])
    schema = get_schema(node.op, since_version(node), node.domain)
    if schema.has_function:
        found: FunctionProto = schema.function_body
        return found
    types = [TypeProto() if v is None else value_info(v).type for v in node.inputs]
    body = schema.get_context_dependent_function(call.SerializeToString(), [t.SerializeToString() for t in types])
    return FunctionProto.FromString(body)


def _refusal(node: Node, reason: str) -> UnsupportedError:
    types = ", ".join(dict.fromkeys(filter(None, (type_text(v.type) for v in node.present_inputs))))
    return UnsupportedError(
        f"onnxruntime has no kernel for this operator{f' of {types}' if types else ''}, and it cannot be expanded: {reason}",
        node=node.label,
        hint="convert the model to another operator set version, export it with other types, or replace the node",
    )


def _visible(graph: Graph) -> dict[str, Value]:
    """Values by name that nodes of a graph can read, or whose names they must not reuse."""
    values: dict[str, Value] = {} if graph.parent is None else _visible(graph.parent)
    values.update((v.name, v) for v in graph.inputs)
    values.update(graph.initializers)
    values.update((v.name, v) for n in graph for v in n.present_outputs)
    return values
