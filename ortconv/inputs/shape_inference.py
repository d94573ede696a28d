"""Infers the shapes of all values for given sizes of free dimensions, with onnx."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ortconv.errors import BackendError, GraphError, OrtconvError
from ortconv.executor.kernels.evaluate import run_kernel
from ortconv.inputs.demands import Numbers
from ortconv.inputs.problem import Problem
from ortconv.inputs.shape_inputs import filled
from ortconv.inputs.shapes import made_by, shape_with
from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.ir.operators import MICROSOFT, Trait, traits
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import TensorType
from ortconv.onnxio.contrib_types import REMOVED
from ortconv.onnxio.infer import LARGEST_SHAPE_DATA, infer_model
from ortconv.onnxio.messages import subgraphs
from ortconv.onnxio.proto import empty_model, node_proto, tensor_proto, value_info
from ortconv.onnxio.shield import SliceBelowZeroError
from ortconv.onnxproto import IR_VERSION, AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto
from ortconv.watch import risky


def inferred_shapes(problem: Problem, sizes: Mapping[str, int], fed: Mapping[Value, Numbers]) -> dict[Value, Numbers]:
    """The shapes that onnx infers from those of constants and of the inputs `fed`, as far as they are known."""
    graph = problem.graph
    constants = (v for g in graph.graphs() for v in g.initializers.values())
    found: dict[Value, Numbers] = {v: v.static_shape for v in constants if v.static_shape is not None}
    found |= fed
    with suppress(GraphError, BackendError), risky(f"onnx inferring shapes for {dict(sizes)}"):
        _note_shapes(_infer(_model_with_sizes(problem, sizes, fed)), graph, found)
    for node in graph:
        found |= _encoder_shapes(problem, node, found)
    return found


def _encoder_shapes(problem: Problem, node: Node, found: Mapping[Value, Numbers]) -> dict[Value, Numbers]:
    """The shapes inside the encoder of a node that generates text. Its first input is that of the node."""
    encoder, x = node.attrs.get("encoder"), node.input(0)
    shape = None if x is None else found.get(x)
    if node.domain != MICROSOFT or not isinstance(encoder, Graph) or not encoder.inputs or shape is None:
        return {}
    if node not in problem.encoders:
        problem.encoders[node] = Problem(encoder, [], outer=tuple(captures(node)))
    return inferred_shapes(problem.encoders[node], {}, {encoder.inputs[0]: shape})


def _model_with_sizes(problem: Problem, sizes: Mapping[str, int], fed: Mapping[Value, Numbers]) -> ModelProto:
    """The model with these sizes, without its large constants, and without declared shapes where inference finds them."""
    graph = problem.graph
    message = empty_model(graph, IR_VERSION)
    message.graph.name = "sizes"
    held = _known_tensors(problem, sizes)
    message.graph.initializer.extend(tensor_proto(tensor, value.name) for value, tensor in held.items())
    for value in graph.inputs:
        if value not in held:
            _declare(message.graph.input.add(), value, fed[value] if value in fed else shape_with(value, sizes))
    large = (v for v in graph.initializers.values() if v not in held and not v.is_input)
    message.graph.input.extend(map(value_info, (*large, *(v for v in problem.outer if v not in held))))
    if not problem.messages:
        known = _constants(graph)
        problem.messages += (
            _constant(node, known) or _without_declared_shapes(_standard_equivalent(node) or node_proto(node))
            for node in graph
        )
    message.graph.node.extend(problem.messages)
    for made in _not_inferred(graph):
        _declare(message.graph.value_info.add(), made, shape_with(made, sizes))
    message.graph.output.extend(value_info(v) for v in graph.outputs if v.producer is None)
    return message


def _not_inferred(graph: Graph) -> Iterator[Value]:
    """The values of known types that nodes make for which onnx infers none."""
    others = (node for node in graph if node.domain not in ("", "ai.onnx.ml"))
    return (value for node in others for value in node.present_outputs if value.type is not None)


def _known_tensors(problem: Problem, sizes: Mapping[str, int]) -> dict[Value, Tensor]:
    """The elements that are known before a run, as far as shapes may depend on them: of targets, constants and defaults."""
    held = {value: Tensor.of(filled(value, numbers)) for value, numbers in problem.held(sizes).items()}
    for value in (*problem.graph.initializers.values(), *problem.outer):
        const, is_known = value.const, not value.is_input or value in problem.defaults
        if is_known and isinstance(const, Tensor) and const.size <= LARGEST_SHAPE_DATA:
            held[value] = const
    return held


ARRANGING = frozenset(
    ("Cast", "Concat", "ConstantOfShape", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)
"""The operators by which exporters compute the pads of a Pad from constants. onnx does not follow the values of all of them."""


def _constants(graph: Graph) -> dict[Value, Array]:
    """The elements of small constants that nodes of these operators compute."""
    known: dict[Value, Array] = {}
    for node in graph:
        if node.domain or node.op not in ARRANGING or not node.present_inputs:
            continue
        operands = [None if value is None else _elements(value, known) for value in node.inputs]
        found = [array for array in operands if array is not None]
        if len(found) < len(node.present_inputs):
            continue
        if node.op == "ConstantOfShape" and math.prod(map(int, found[0].flat)) > LARGEST_SHAPE_DATA:
            continue
        with suppress(OrtconvError, ArithmeticError, ValueError, TypeError, IndexError):
            result = np.asarray(run_kernel(node, operands))
            if result.size <= LARGEST_SHAPE_DATA:
                known[node.out] = result
    return known


def _elements(value: Value, known: Mapping[Value, Array]) -> Array | None:
    const = value.constant
    return known.get(value) if const is None or const.size > LARGEST_SHAPE_DATA else const.numpy()


def _constant(node: Node, known: Mapping[Value, Array]) -> NodeProto | None:
    """A Constant in place of a node whose result is known."""
    out = node.output(0)
    if out is None or out not in known:
        return None
    made = NodeProto(op_type="Constant", name=node.name, output=[out.name])
    made.attribute.add(name="value", type=AttributeProto.TENSOR, t=tensor_proto(Tensor.of(known[out], out.dtype), ""))
    return made


def _infer(message: ModelProto) -> GraphProto:
    """The inferred types; those before its Slices only if a Slice reads a value with a negative size."""
    try:
        return infer_model(message.SerializeToString()).graph
    except SliceBelowZeroError as error:
        return error.inferred


STANDARD_EQUIVALENTS = {
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), ("Identity", (0,))),
}
"""Operators of ONNX Runtime, with the standard operator whose result has the same shape, and the inputs that it reads."""


def _standard_equivalent(node: Node) -> NodeProto | None:
    """For an operator of ONNX Runtime, a standard node that onnx can infer and whose result has the same shape. Else None."""
    if node.domain != MICROSOFT or node.op not in STANDARD_EQUIVALENTS:
        return _cast_like(node)
    op, slots = STANDARD_EQUIVALENTS[node.op]
    names = [value.name for value in map(node.input, slots) if value is not None]
    return NodeProto(op_type=op, name=node.name, input=names, output=[node.out.name])


def _cast_like(node: Node) -> NodeProto | None:
    """A Cast, for an operator of ONNX Runtime whose result has the shape of its first input. Else None."""
    keeps_shape = node.domain == MICROSOFT and traits(node).has(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE)
    if len(node.outputs) != 1 or not (keeps_shape or (not node.domain and node.op in REMOVED)):
        return None
    x, dtype, graph = node.input(0), node.out.dtype, node.graph
    if x is None or dtype is None or graph is None or "" not in graph.opsets:
        return None
    made = NodeProto(op_type="Cast", name=node.name, input=[x.name], output=[node.out.name])
    made.attribute.add(name="to", type=AttributeProto.INT, i=int(dtype))
    return made


def _without_declared_shapes(message: NodeProto) -> NodeProto:
    """The node without the output shapes that its subgraphs declare."""
    for graph in subgraphs(message):
        del graph.value_info[:]
        for output in graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        for node in graph.node:
            _without_declared_shapes(node)
    return message


def _declare(info: ValueInfoProto, value: Value, shape: Numbers | None) -> None:
    """Fill the description of a value, with this shape if it is a tensor. onnx reads no dimension of 2^63 or more."""
    made = value_info(value)
    if isinstance(value.type, TensorType):
        made.type.CopyFrom(TypeProto())
        made.type.tensor_type.elem_type = int(value.type.dtype)
        if shape is not None:
            made.type.tensor_type.shape.SetInParent()
            for d in shape:
                dim = made.type.tensor_type.shape.dim.add()
                if d is not None and d < 1 << 63:
                    dim.dim_value = d
    info.CopyFrom(made)


def _note_shapes(message: GraphProto, graph: Graph, found: dict[Value, Numbers]) -> None:
    """Add the shapes of a graph's message to `found`, including those of its subgraphs."""
    infos = (info for info in (*message.value_info, *message.output) if info.type.tensor_type.HasField("shape"))
    shapes = {info.name: tuple(map(_known_size, info.type.tensor_type.shape.dim)) for info in infos}
    for value in (*graph.inputs, *made_by(graph)):
        if value.name in shapes:
            found[value] = shapes[value.name]
    for node, proto in zip(graph, message.node, strict=True):
        for sub, inner in zip(node.subgraphs, subgraphs(proto), strict=True):
            _note_shapes(inner, sub, found)


def _known_size(dim: Any) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
