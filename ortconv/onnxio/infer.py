"""Infers types and shapes of values with onnx. Own rules are used only for operators that onnx does not know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

from ortconv.errors import GraphError, OrtconvError
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.schema import Schema, schema_of
from ortconv.ir.types import DType, SequenceType, TensorType, ValueType
from ortconv.onnxio import shield
from ortconv.onnxio.build import Symbol, TypeReader, merge
from ortconv.onnxio.check import inference_error
from ortconv.onnxio.contrib_types import CONTRIB_TYPES
from ortconv.onnxio.imports import opset_of
from ortconv.onnxio.messages import NAMELESS, Contents, contents
from ortconv.onnxio.proto import empty_model, node_proto, tensor_proto, value_info
from ortconv.onnxio.scopes import INFERRED_BODIES, rename, rename_clashes
from ortconv.onnxlib import InferenceError, infer_shapes
from ortconv.onnxproto import IR_VERSION, GraphProto, ModelProto
from ortconv.process import memory_limit, trim

LARGEST_SHAPE_DATA = 1024
"""Shape inference sees the contents of constants of up to this number of elements."""

LONGEST_VECTOR = 1 << 20
"""Elements of vectors are followed only if none is longer: sums and products take 100 bytes for each element."""


ATTENTION = b'"\x09Attention'
"""The operator of a serialized node."""


class ContradictionError(GraphError):
    """A declared type differs from the inferred one."""


def infer_model(source: bytes, *, strict: bool = False, on_errors: Callable[[bytes], None] | None = None) -> ModelProto:
    """Return a serialized model with all value types that onnx infers. Raises GraphError if the model contradicts itself.

    Unknown dimensions that are known to be equal get a name of the form INVENTED. Values of shape computations are propagated
    unless that needs too much memory, as for ranges and shapes of millions of elements. Declared types are trusted; with `strict`,
    ContradictionError is raised if one differs from the inferred type. `on_errors` is called with the serialized model if onnx
    finds nodes that break the rules of their operators.
    """
    shielded = _shielded(source)
    message = shielded.message
    for follow_values in (False,) if shielded.has_long_vectors else (True, False):
        try:
            with memory_limit(_allowance(message)):
                inferred = ModelProto.FromString(_inferred(message, follow_values, strict, on_errors))
        except OrtconvError:
            raise
        except Exception as error:
            if strict:
                if "existing" in str(error):
                    raise ContradictionError(first_line(error)) from error
                return infer_model(source)
            if not follow_values or not (isinstance(error, MemoryError) or "bad_alloc" in str(error)):
                raise inference_error(first_line(error), message) from error
            trim()  # the next limit allows as much again
        else:
            shielded.restore(inferred.graph)
            if any(op in message for op in (b"Einsum", ATTENTION)):
                shown = ModelProto.FromString(source)
                if shield.hide_misjudged(contents(shown.graph), inferred.graph):
                    return infer_model(shown.SerializeToString(), strict=strict, on_errors=on_errors)
            return inferred
    raise AssertionError


def _has_long_vectors(found: Contents) -> bool:
    """True if vectors are declared as so long that following their elements takes onnx seconds and gigabytes."""
    graph = found.graphs[0]
    declared = (v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info))
    if any(len(dims) == 1 and dims[0].dim_value > LONGEST_VECTOR for dims in declared):
        return True
    constants = chain.from_iterable(node.attribute for node in found.nodes.get("Constant", ()))
    sparse = (a.sparse_tensor for a in constants if a.name == "sparse_value")
    return any(len(t.dims) == 1 and t.dims[0] > LONGEST_VECTOR for t in (*graph.initializer, *sparse))


class _Shielded(NamedTuple):
    """A serialized model without the parts on which onnx's inference crashes or errs. `restore` puts them back into the graph."""

    message: bytes
    has_long_vectors: bool
    restore: Callable[[GraphProto], None]


def _shielded(source: bytes) -> _Shielded:
    proto = ModelProto.FromString(source)
    found, opset = contents(proto.graph), opset_of(proto)
    hidden = shield.hide(found, opset)
    renamed = {} if INFERRED_BODIES.isdisjoint(found.nodes) else rename_clashes(proto.graph)
    message = proto.SerializeToString() if hidden or renamed else source
    hides_slices = False
    if "Slice" in found.nodes:
        message, hides_slices = _checked_slices(message, opset, shield.shortening(found))

    def restore(graph: GraphProto) -> None:
        if hidden or hides_slices:
            shield.reveal(graph)
        if renamed:
            rename(graph, renamed)

    return _Shielded(message, _has_long_vectors(found), restore)


def _checked_slices(message: bytes, opset: int, shortening: int) -> tuple[bytes, bool]:
    """Hide the Slices whose shapes onnx infers wrongly. Return the message, and True if there are any.

    No node after the first `shortening` ones makes a negative size. Raises SliceBelowZeroError if onnx would abort the process in a
    Slice.
    """
    keeps_symbols = opset == shield.KEEPS_SYMBOLS
    if not keeps_symbols and not (shortening and shield.may_be_below_zero(_without_slices(message, shortening))):
        return message, False
    trial = ModelProto.FromString(_without_slices(message))
    shield.refuse_slices_below_zero(trial.graph)
    wrong = shield.slices_of_symbols(trial.graph) if keeps_symbols else set()
    if not wrong:
        return message, False
    shown = ModelProto.FromString(message)
    shield.hide_slices(contents(shown.graph), wrong)
    return shown.SerializeToString(), True


def _without_slices(message: bytes, count: int | None = None) -> bytes:
    """The model of the first `count` nodes, by default all, with the types that onnx infers while all Slices are hidden."""
    trial = ModelProto.FromString(message)
    if count is not None:
        del trial.graph.node[count:]
    found = contents(trial.graph)
    shield.hide_slices(found)
    inferred: bytes = trial.SerializeToString()
    with suppress(InferenceError, MemoryError, ValueError), memory_limit(_allowance(message)):
        inferred = infer_shapes(inferred, data_prop=not _has_long_vectors(found))
    return inferred


def _inferred(message: bytes, follow_values: bool, strict: bool, on_errors: Callable[[bytes], None] | None) -> bytes:
    if on_errors is not None:
        try:
            return infer_shapes(message, data_prop=follow_values, strict=True)
        except InferenceError:
            on_errors(message)
    return infer_shapes(message, data_prop=follow_values, strict=strict)


def _allowance(message: bytes) -> int:
    return MEMORY_BASE + MEMORY_FACTOR * len(message)


MEMORY_BASE = 256 << 20
MEMORY_FACTOR = 64
"""Shape inference may allocate MEMORY_BASE bytes plus MEMORY_FACTOR bytes for each byte of the message."""


INVENTED = re.compile(r"unk__\d+")

read_type = TypeReader(lambda name: None if INVENTED.fullmatch(name) else name)
"""Reads types in which the symbols that `infer_model` invents are unknown dimensions."""


def anonymous_symbols(source: bytes) -> Symbol:
    """Renames the dimensions invented by `infer_model` to ?0, ?1, ... Names in the message stay, except those that say nothing."""
    own = {name.decode() for name in re.findall(rb"\x12[\x06-\x18](unk__\d+)", source)}
    first = 1 + max((int(n) for n in re.findall(rb"\x12[\x02-\x10]\?(\d{1,15})", source)), default=-1)

    def symbol(name: str) -> str | None:
        if name in NAMELESS:
            return None
        if name in own or not INVENTED.fullmatch(name):
            return name
        return f"?{first + int(name[5:])}"

    return symbol


def first_line(error: Exception) -> str:
    """The first line of an onnx exception's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


Infer = Callable[[Node], list[ValueType | None]]
"""Returns the types of a node's outputs, None for unknown ones."""


def infer_missing(graph: Graph, infer_custom: Infer | None = None) -> None:
    """Infer types that onnx's inference of the whole model could not find: those downstream of operators that it does not know.

    `infer_custom` is called for operators without a schema.
    """
    _infer_missing(graph, set(), infer_custom)


def _infer_missing(graph: Graph, learned: set[Value], infer_custom: Infer | None) -> None:
    for node in graph:
        for sub in node.subgraphs if node.attrs else ():
            _infer_missing(sub, learned, infer_custom)
        learned.update(_updated(node, learned, infer_custom))


def _updated(node: Node, learned: set[Value], infer_custom: Infer | None) -> Iterable[Value]:
    """Infer a node's output types if a rank is unknown, or an input is among the `learned`. Return the outputs with new types."""
    made = node.present_outputs
    lacks_ranks = any(lacks_rank(v.type) for v in made)
    if lacks_ranks and infer_custom is not None and schema_of(node) is None:
        return _retyped(node, infer_custom(node))
    is_due = (lacks_ranks and _is_unknown_to_onnx(node)) or not learned.isdisjoint(node.inputs) or _is_misstated(node)
    return made if is_due and update_types(node) else ()


def _is_misstated(node: Node) -> bool:
    """True if a stated shape of a standard operator for which we have a rule contradicts the rule: onnx may have inferred it, and
    written it into the file.
    """
    if node.domain != "" or ("", node.op) not in CONTRIB_TYPES:
        return False
    pairs = zip(node.outputs, infer_node(node), strict=False)
    return any(v is not None and type is not None and _contradict(v.type, type) for v, type in pairs)


def _retyped(node: Node, types: Iterable[ValueType | None]) -> Iterator[Value]:
    """Set the known types of a node's outputs, and return these outputs."""
    for value, type in zip(node.outputs, types, strict=True):
        if value is not None and type is not None:
            value.retype(type)
            yield value


def _is_unknown_to_onnx(node: Node) -> bool:
    """True if a rule of ours infers the outputs, or onnx found no type for one."""
    is_ours = bool(node.subgraphs) or (node.domain, node.op) in CONTRIB_TYPES
    return is_ours or any(v is not None and v.type is None for v in node.outputs)


def update_types(node: Node) -> bool:
    """Infer the output types of one node again and keep the more exact ones. Return True if anything new was found.

    A declared shape that inference could not check before is dropped if it turns out to be wrong.
    """
    changed = False
    for value, inferred in zip(node.outputs, infer_node(node), strict=False):
        if value is None or inferred is None:
            continue
        later = lacks_rank(value.type) or _contradict(value.type, inferred)
        merged = merge(inferred, value.type) if later else merge(value.type, inferred)
        if merged != value.type:
            changed = True
            value.retype(merged)
    return changed


def lacks_rank(type: ValueType | None) -> bool:
    """True for an unknown type, and for that of a tensor of unknown rank."""
    return type is None or (isinstance(type, TensorType) and type.shape is None)


def _contradict(a: ValueType | None, b: ValueType) -> bool:
    """True if these are tensors of different ranks, or with different numbers as one dimension."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.shape is None or b.shape is None:
        return False
    pairs = zip(a.shape, b.shape, strict=False)
    return len(a.shape) != len(b.shape) or any(isinstance(i, int) and isinstance(j, int) and i != j for i, j in pairs)


def infer_node(node: Node) -> list[ValueType | None]:
    """The types of a node's outputs, as far as they follow from the types and constants of its inputs.

    If inputs or attributes are invalid, all types are unknown.
    """
    rule = CONTRIB_TYPES.get((node.domain, node.op))
    special = _CONTROL_FLOW.get(node.op) if node.domain == "" else None
    try:
        if rule is not None:
            return _completed(node, rule(node))
        if special is not None:
            for sub in node.subgraphs:
                infer_missing(sub)
            return special(node)
        return _infer_by_onnx(node)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return [None] * len(node.outputs)


def _completed(node: Node, types: Iterable[ValueType | None]) -> list[ValueType | None]:
    """The types of a node's outputs. The schema gives the missing ones."""
    given = [*types, *[None] * len(node.outputs)]
    return [
        None if value is None else type or declared_type(node, value.index)
        for value, type in zip(node.outputs, given, strict=False)
    ]


def _infer_by_onnx(node: Node) -> list[ValueType | None]:
    """Output types from onnx's inference of this node alone, else from the schema."""
    model = _model_of(node, node.parent)
    try:
        if shield.hide(contents(model.graph), node.parent.opset()):
            return [None] * len(node.outputs)
        inferred = ModelProto.FromString(infer_shapes(model.SerializeToString(), data_prop=False))
    except Exception:  # the C++ code may raise any class; the types are unknown then
        return [None] * len(node.outputs)
    types = {info.name: read_type(info.type) for info in inferred.graph.value_info}
    return [None if v is None else types.get(v.name) or declared_type(node, v.index) for v in node.outputs]


def _model_of(node: Node, graph: Graph) -> ModelProto:
    """A model of one node, with its small constants."""
    model = empty_model(graph, IR_VERSION)
    model.graph.node.append(node_proto(node))
    for value in dict.fromkeys(node.inputs):
        if value is None or value.type is None:
            continue
        const = value.constant
        if const is not None and const.size <= LARGEST_SHAPE_DATA:
            model.graph.initializer.append(tensor_proto(const, value.name))
        else:
            model.graph.input.append(value_info(value))
    return model


def declared_type(node: Node, slot: int) -> ValueType | None:
    """The tensor type of an output, without shape, if the schema or the input types determine it; else None."""
    found = schema_of(node)
    if found is None or slot >= len(found.outputs):
        return None
    declared = found.outputs[slot].type
    like = (v for i, v in enumerate(node.inputs) if (formal := found.formal_input(i)) and formal.type == declared)
    dtype = next((v.dtype for v in like if v is not None and v.dtype is not None), None)
    return TensorType(dtype) if dtype is not None else _only_type(found, declared)


def _only_type(found: Schema, declared: str) -> ValueType | None:
    """The tensor type of a fixed type, or of a type parameter that permits only one type."""
    if declared in found.type_parameters:
        allowed = found.allowed[declared]
        declared = next(iter(allowed)) if len(allowed) == 1 else ""
    element = re.fullmatch(r"tensor\((\w+)\)", declared)
    return TensorType(DType[element[1].upper()]) if element else None


def _if(node: Node) -> list[ValueType | None]:
    branches = [[value.type for value in sub.outputs] for sub in node.subgraphs]
    types = ([types[i] for types in branches if i < len(types)] for i in range(len(node.outputs)))
    return [reduce(_common, found) if found else None for found in types]


def _loop(node: Node) -> list[ValueType | None]:
    carried = len(node.inputs) - 2
    return [without_dims(t) if i < carried else _stacked(t) for i, t in enumerate(_of_body(node, first=1))]


def _scan(node: Node) -> list[ValueType | None]:
    states = len(node.inputs) - node.attr("num_scan_inputs", 0)
    return [t if i < states else without_dims(_stacked(t)) for i, t in enumerate(_of_body(node, first=0))]


def _of_body(node: Node, first: int) -> list[ValueType | None]:
    """For each output of the node, the type of the body's output, of which `first` is the first; None if there is none."""
    body: Any = node.attrs["body"]
    types = [value.type for value in body.outputs[first : first + len(node.outputs)]]
    return types + [None] * (len(node.outputs) - len(types))


_CONTROL_FLOW: dict[str, Callable[[Node], list[ValueType | None]]] = {"If": _if, "Loop": _loop, "Scan": _scan}


def _common(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """A type that is valid for values of both types; if these are no tensors of one element type, the first known one."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
        return a or b
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype)
    return TensorType(a.dtype, tuple(i if i == j else None for i, j in zip(a.shape, b.shape, strict=True)))


def without_dims(type: ValueType | None) -> ValueType | None:
    """The type of a tensor with its rank alone; any other type as it is."""
    if isinstance(type, TensorType) and type.shape is not None:
        return TensorType(type.dtype, (None,) * len(type.shape))
    return type


def _stacked(type: ValueType | None) -> ValueType | None:
    if isinstance(type, TensorType):
        return TensorType(type.dtype, None if type.shape is None else (None, *type.shape))
    return None if type is None else SequenceType(type)
