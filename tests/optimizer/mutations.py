"""Small random changes to a model: each may take it out of a rule's pattern, or into what a rule must not touch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from typed_graphs import SPECIAL

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


class UnchangedError(Exception):
    """A mutation has nothing to act on."""


def pick(rng: Random, options: Any) -> Any:
    found = list(options)
    if not found:
        raise UnchangedError
    return found[rng.randrange(len(found))]


def fresh(graph: onnx.GraphProto, hint: str) -> str:
    taken = {v for n in graph.node for v in (*n.input, *n.output)} | {
        v.name for v in (*graph.input, *graph.initializer)
    }
    return next(name for i in range(10_000) if (name := f"{hint}_{i}") not in taken)


def inner_values(graph: onnx.GraphProto) -> list[str]:
    returned = {v.name for v in graph.output}
    return [v for n in graph.node for v in n.output if v and v not in returned]


def output_type(proto: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    try:
        infos = onnx.shape_inference.infer_shapes(proto).graph.value_info
    except Exception:
        raise UnchangedError from None
    found = next((v for v in infos if v.name == name), None)
    if found is None or not found.type.HasField("tensor_type"):
        raise UnchangedError
    return helper.make_tensor_value_info(name, found.type.tensor_type.elem_type, None)


# ---------------------------------------------------------------------- who sees a value


def return_inner(proto: onnx.ModelProto, rng: Random) -> None:
    name = pick(rng, inner_values(proto.graph))
    proto.graph.output.append(output_type(proto, name))


def read_again(proto: onnx.ModelProto, rng: Random) -> None:
    graph = proto.graph
    name = pick(rng, inner_values(graph))
    info = output_type(proto, name)
    if info.type.tensor_type.elem_type not in FLOATS:
        raise UnchangedError
    info.name = fresh(graph, "again")
    graph.node.append(helper.make_node("Abs", [name], [info.name]))
    graph.output.append(info)


def capture(proto: onnx.ModelProto, rng: Random) -> None:
    """An If that returns an inner value from a branch."""
    graph = proto.graph
    name = pick(rng, inner_values(graph))
    info = output_type(proto, name)
    kind = info.type.tensor_type.elem_type
    if kind not in FLOATS:
        raise UnchangedError
    condition = fresh(graph, "condition")
    graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    branches = []
    for op in ("Abs", "Neg"):
        out = fresh(graph, f"inner_{op}")
        branches.append(
            helper.make_graph(
                [helper.make_node(op, [name], [out])], op, [], [helper.make_tensor_value_info(out, kind, None)]
            )
        )
    info.name = fresh(graph, "chosen")
    graph.node.append(
        helper.make_node("If", [condition], [info.name], then_branch=branches[0], else_branch=branches[1])
    )
    graph.output.append(info)


# ---------------------------------------------------------------------- constants


def make_overridable(proto: onnx.ModelProto, rng: Random) -> None:
    inputs = {v.name for v in proto.graph.input}
    tensor = pick(rng, [t for t in proto.graph.initializer if t.name not in inputs])
    proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def make_input(proto: onnx.ModelProto, rng: Random) -> None:
    scales = {n.input[1] for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    tensor = pick(rng, [t for t in proto.graph.initializer if t.data_type in FLOATS and t.name not in scales])
    if all(v.name != tensor.name for v in proto.graph.input):
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    proto.graph.initializer.remove(tensor)


def make_node(proto: onnx.ModelProto, rng: Random) -> None:
    inputs = {v.name for v in proto.graph.input}
    tensor = pick(rng, [t for t in proto.graph.initializer if t.name not in inputs])
    proto.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    proto.graph.initializer.remove(tensor)


def change_elements(proto: onnx.ModelProto, rng: Random) -> None:
    tensor = pick(rng, [t for t in proto.graph.initializer if t.data_type in FLOATS])
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        raise UnchangedError
    kind = rng.randrange(4)
    with np.errstate(all="ignore"):
        if kind == 0:
            array.reshape(-1)[rng.randrange(array.size)] = SPECIAL[rng.randrange(len(SPECIAL))]
        elif kind == 1:
            array = -array
        elif kind == 2:
            array = np.full_like(array, (0, 1, 2, -1)[rng.randrange(4)])
        else:
            array = array * array.dtype.type(1.5)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def change_integers(proto: onnx.ModelProto, rng: Random) -> None:
    tensor = pick(rng, [t for t in proto.graph.initializer if t.data_type in (6, 7, 2, 3)])
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        raise UnchangedError
    place = rng.randrange(array.size)
    array.reshape(-1)[place] = pick(rng, (0, 1, 2, 3, array.reshape(-1)[place] // 2))
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def change_shape(proto: onnx.ModelProto, rng: Random) -> None:
    """One element in the place of a constant, in another rank; or a leading axis of 1."""
    tensor = pick(rng, [t for t in proto.graph.initializer if t.data_type in FLOATS])
    array = numpy_helper.to_array(tensor)
    if array.size == 1:
        array = array.reshape((1,) * rng.randrange(5))
    elif rng.randrange(2) and array.size:
        array = array.reshape(-1)[:1].reshape((1,) * rng.randrange(3))
    else:
        array = array[None]
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def change_integer_rank(proto: onnx.ModelProto, rng: Random) -> None:
    """A scalar becomes a list of one element, or the other way round."""
    tensor = pick(rng, [t for t in proto.graph.initializer if t.data_type in (6, 7) and list(t.dims) in ([], [1])])
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(array.reshape(() if array.ndim else (1,)), tensor.name))


# ---------------------------------------------------------------------- nodes


def swap_operands(proto: onnx.ModelProto, rng: Random) -> None:
    node = pick(rng, [n for n in proto.graph.node if len(n.input) == 2])
    first, second = node.input
    node.input[0], node.input[1] = second, first


def insert(proto: onnx.ModelProto, rng: Random) -> None:
    """A node or two in front of one operand."""
    graph = proto.graph
    place = rng.randrange(len(graph.node)) if graph.node else pick(rng, ())
    node = graph.node[place]
    slot = pick(rng, [i for i, v in enumerate(node.input) if v])
    chain = pick(
        rng,
        (("Identity",), ("Relu",), ("Neg", "Neg"), ("Transpose",), ("Transpose", "Transpose"), ("Dropout",), ("Abs",)),
    )
    value = node.input[slot]
    for op in chain:
        name = fresh(graph, f"put_{op}")
        graph.node.insert(place, helper.make_node(op, [value], [name]))
        place, value = place + 1, name
    graph.node[place].input[slot] = value


def insert_constant(proto: onnx.ModelProto, rng: Random) -> None:
    """Arithmetic with one number, of any rank, in front of one operand."""
    graph = proto.graph
    place = rng.randrange(len(graph.node)) if graph.node else pick(rng, ())
    node = graph.node[place]
    slot = pick(rng, [i for i, v in enumerate(node.input) if v])
    names = fresh(graph, "number"), fresh(graph, "put")
    number = np.full((1,) * rng.randrange(3), pick(rng, (0.5, 1.0, -2.0, 0.0)), np.float32)
    graph.initializer.append(numpy_helper.from_array(number, names[0]))
    operands = [node.input[slot], names[0]]
    if rng.randrange(2):
        operands.reverse()
    graph.node.insert(place, helper.make_node(pick(rng, ("Mul", "Mul", "Add", "Div", "Sub")), operands, [names[1]]))
    graph.node[place + 1].input[slot] = names[1]


def duplicate(proto: onnx.ModelProto, rng: Random) -> None:
    """One reader of a value reads an equal value instead, which a copy of the node computes."""
    graph = proto.graph
    place = rng.randrange(len(graph.node)) if graph.node else pick(rng, ())
    node = onnx.NodeProto()
    node.CopyFrom(graph.node[place])
    old = pick(rng, [v for v in node.output if v])
    node.output[:] = [v and fresh(graph, f"copy_{v}") for v in node.output]
    node.name = fresh(graph, "copy")
    new = node.output[list(graph.node[place].output).index(old)]
    reader = pick(rng, [n for n in graph.node[place + 1 :] if old in n.input])
    reader.input[list(reader.input).index(old)] = new
    graph.node.insert(place + 1, node)


def bypass(proto: onnx.ModelProto, rng: Random) -> None:
    """Let the readers of a node read its first operand."""
    node = pick(rng, [n for n in proto.graph.node if n.input and n.input[0]])
    for other in proto.graph.node:
        for i, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[i] = node.input[0]


def reconnect(proto: onnx.ModelProto, rng: Random) -> None:
    """Let an operand be another value that is made before."""
    graph = proto.graph
    place = rng.randrange(len(graph.node)) if graph.node else pick(rng, ())
    node = graph.node[place]
    slot = pick(rng, range(len(node.input)))
    known = [v.name for v in (*graph.input, *graph.initializer)] + [
        v for n in graph.node[:place] for v in n.output if v
    ]
    node.input[slot] = pick(rng, known)


def change_attribute(proto: onnx.ModelProto, rng: Random) -> None:
    attribute = pick(rng, [a for n in proto.graph.node for a in n.attribute])
    if attribute.name == "num_outputs":  # fewer than there are end the process, in onnx and onnxruntime alike
        attribute.i += 1
    elif attribute.type == onnx.AttributeProto.INT:
        choices = (
            (1 - attribute.i,)
            if attribute.i in (0, 1) and "axis" not in attribute.name
            else (0, 1, -1, 2, attribute.i + 1)
        )
        attribute.i = pick(rng, choices)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = pick(rng, (0.0, 1.0, attribute.f * 2, -attribute.f))
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        order = list(attribute.ints)
        first, second = rng.randrange(len(order)), rng.randrange(len(order))
        order[first], order[second] = order[second], order[first]
        if rng.randrange(2):
            order[first] += pick(rng, (1, -1))
        attribute.ints[:] = order
    else:
        raise UnchangedError


def drop_attribute(proto: onnx.ModelProto, rng: Random) -> None:
    node = pick(rng, [n for n in proto.graph.node if n.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def drop_operand(proto: onnx.ModelProto, rng: Random) -> None:
    node = pick(rng, [n for n in proto.graph.node if len(n.input) > 2])
    node.input.pop()


# ---------------------------------------------------------------------- the whole


def change_type(proto: onnx.ModelProto, rng: Random) -> None:
    """float32 becomes another type everywhere."""
    kind = pick(rng, (TensorProto.DOUBLE, TensorProto.FLOAT16))
    retype(proto.graph, kind)


def retype(graph: onnx.GraphProto, kind: int) -> None:
    """Make all that is float32 another type."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    tensors = [*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.HasField("t"))]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(all="ignore"):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = kind
            if attribute.HasField("g"):
                retype(attribute.g, kind)


def change_opset(proto: onnx.ModelProto, rng: Random) -> None:
    opset = pick(rng, (9, 11, 12, 13, 15, 17, 18, 20, 21, 22, 23))
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = opset
    proto.ir_version = max(proto.ir_version, 10)


def change_dims(proto: onnx.ModelProto, rng: Random) -> None:
    """Another size, a symbol or nothing for a dimension of an input."""
    constants = {t.name for t in proto.graph.initializer}
    dims = [d for v in proto.graph.input if v.name not in constants for d in v.type.tensor_type.shape.dim]
    dim = pick(rng, dims)
    kind = rng.randrange(4)
    dim.Clear()
    if kind < 2:
        dim.dim_param = pick(rng, ("s", "t"))
    elif kind == 2:
        dim.dim_value = pick(rng, (1, 2, 3))


def change_length(proto: onnx.ModelProto, rng: Random) -> None:
    """Everything that has one length gets another one, which may be the length of something else."""
    graph = proto.graph
    dims = [d for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_value]
    old = pick(rng, dims).dim_value
    new = pick(rng, (*(d.dim_value for d in dims if d.dim_value != old), 1, old + 1))
    for dim in dims:
        if dim.dim_value == old:
            dim.dim_value = new
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.data_type == TensorProto.INT64:
            array = np.where(array == old, new, array)
        elif old in array.shape and array.size:
            array = np.resize(array, tuple(new if d == old else d for d in array.shape))
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    return_inner, read_again, capture, make_overridable, make_input, make_node, change_elements, change_elements, change_integers,
    change_integer_rank, change_shape, swap_operands, insert, insert, insert_constant, duplicate, bypass, reconnect,
    change_attribute, change_attribute, drop_attribute, drop_operand, change_type, change_opset, change_dims, change_length,
)  # fmt: skip


def mutated(proto: onnx.ModelProto, rng: Random, count: int) -> onnx.ModelProto:
    """The model after so many changes; some of them may have found nothing to act on."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for value in result.graph.output:
        value.type.tensor_type.ClearField("shape")
    for _ in range(count):
        try:
            MUTATIONS[rng.randrange(len(MUTATIONS))](result, rng)
        except UnchangedError:
            continue
    return result
