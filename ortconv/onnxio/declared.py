"""Checks declared types of inner values and outputs against inferred types; declared ones may be wrong.

Edited models often keep outdated shapes, such as a batch of 1. So inference first runs without declared types. If a declared type
contradicts its result, all declared dimensions are dropped, because others may be outdated, too. Otherwise the declared types
supply the facts that inference cannot find.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, filterfalse, repeat
from typing import NamedTuple

from ortconv.errors import GraphError
from ortconv.ir.types import Dim, SequenceType, Shape, TensorType, ValueType
from ortconv.onnxio.build import TypeReader, check_text
from ortconv.onnxio.check import check_rules
from ortconv.onnxio.imports import opset_of
from ortconv.onnxio.infer import ContradictionError, infer_model, lacks_rank, without_dims
from ortconv.onnxio.messages import contents, domain_of, input_symbols, label, walk
from ortconv.onnxio.misnamed import misnamed, without_doubtful
from ortconv.onnxio.proto import type_proto
from ortconv.onnxio.scopes import INFERRED_BODIES
from ortconv.onnxio.shield import hide, hide_misjudged
from ortconv.onnxlib import get_schema
from ortconv.onnxproto import GraphProto, ModelProto, NodeProto, SparseTensorProto, TypeProto

TypesByGraph = list[dict[str, ValueType]]
"""One dict per graph, in the order of `_graphs`: the types of values by name."""

_ADDED_AXES = {"Unsqueeze": 1, "Squeeze": -1, "Resize": 0, "Upsample": 0}
"""How many axes each element of input 1 adds to those of input 0. onnx does not infer the rank where these elements are computed,
and Resizes are hidden from it where it errs.
"""


class Bare(NamedTuple):
    """A serialized model, and what it lacks: the declared types of node outputs and the sparse constants, both by graph."""

    message: bytes
    declared: TypesByGraph
    sparse: list[list[SparseTensorProto]]
    read: TypeReader
    """The reader of the declared types."""


def bare(proto: ModelProto) -> Bare:
    """Take apart a message, which must not be used afterward.

    It should be freed: it has several times the size of the serialized model, and onnx's inference makes another one.
    """
    symbols = set(input_symbols(proto.graph))
    read, graphs = TypeReader(lambda name: _size(name, symbols)), list(_graphs(proto.graph))
    sparse = [_densify(graph, outermost=i == 0) for i, graph in enumerate(graphs)]
    declared = _take(graphs, read)
    return Bare(proto.SerializeToString(), declared, sparse, read)


def _size(name: str, symbols: Container[str]) -> int | str:
    """The number that is the name of a dimension, unless one of an input has this name. onnx-shape-inference writes "5" for 5."""
    return int(name) if name not in symbols and name.isdecimal() and len(name) < 19 else name


def infer_declared(model: Bare, warn: Callable[[str], None]) -> ModelProto:
    """Return the message with inferred types, and with declared types where they agree.

    Raises GraphError if a node's output has another element type than declared.
    """
    inferred, sparse = _infer(model, warn), model.sparse
    for i, (graph, tensors) in enumerate(zip(_graphs(inferred.graph), sparse, strict=True) if any(sparse) else ()):
        if tensors:
            del (graph.initializer if i else graph.input)[-len(tensors) :]
            graph.sparse_initializer.extend(tensors)
    return inferred


def _densify(graph: GraphProto, *, outermost: bool) -> list[SparseTensorProto]:
    """Remove and return sparse constants, and put dense values in their place. ONNX Runtime makes them dense, and onnx infers
    nothing or wrong shapes from sparse ones.

    In the outermost graph they become inputs, in subgraphs constants without content.
    """
    sparse = list(graph.sparse_initializer)
    for tensor in sparse:
        check_text(tensor.values.name)
        if not outermost:
            graph.initializer.add(name=tensor.values.name, data_type=tensor.values.data_type, dims=tensor.dims)
            continue
        dense = graph.input.add(name=tensor.values.name).type.tensor_type
        dense.elem_type = tensor.values.data_type
        dense.shape.SetInParent()
        for size in tensor.dims:
            dense.shape.dim.add(dim_value=size)
    del graph.sparse_initializer[:]
    return sparse


def _infer(model: Bare, warn: Callable[[str], None]) -> ModelProto:
    """The message with inferred types, and with declared types where they agree."""
    message, declared, _, read = model
    inferred = infer_model(message, on_errors=check_rules)
    typed = list(_graphs(inferred.graph))
    found = _found(typed, declared, read)
    merged, wrong = _compare(typed, declared, found, read)
    if not wrong and any(merged):
        if not any(merged[1:]) and merged[0].keys().isdisjoint(_operands(inferred.graph)):
            _state(typed, merged)  # no node reads these values, so the types of others do not depend on them
            return inferred
        wrong = _misnamed_outputs(message, inferred.graph, merged[0])
    if not wrong and any(merged):
        merged = _without_varying(message, merged, inferred.graph, read)
        try:
            checked = _infer_with(_stating(message, merged, inferred.graph))
        except ContradictionError as error:
            wrong = [str(error.message)]
        else:
            is_lost = _loses_symbol(checked.graph, merged, read)
            wrong = _numbers_for_symbols(message, merged, inferred.graph, read) if is_lost else []
            if not wrong:
                return checked
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        warn(f"declared shapes contradict the graph and are not used: {wrong[0]}{more}")
        merged = _only_ranks(declared, found)
    if not any(merged):
        return inferred
    return infer_model(_stating(message, merged, inferred.graph).SerializeToString())


def _compare(
    typed: Sequence[GraphProto], declared: TypesByGraph, found: TypesByGraph, read: TypeReader
) -> tuple[TypesByGraph, list[str]]:
    """As `_merge`, with all contradictions."""
    graph = typed[0]
    symbols = set(input_symbols(graph))
    wrong = list(_drop_wrong_ranks(typed, declared, read))
    merged, contradicted = _merge(graph, declared, found, symbols)
    wrong += contradicted
    if any(declared[1:]):
        wrong += _fed_otherwise(graph, iter(declared[1:]), {}, symbols)
    return merged, wrong


def _loses_symbol(graph: GraphProto, declared: TypesByGraph, read: TypeReader) -> bool:
    """True if a declared shape may have a number where the operand of its node has a symbol of the model's inputs."""
    symbols = set(input_symbols(graph))
    return bool(symbols) and any(
        _has_lost(x, shape, symbols)
        for sub, own in zip(_graphs(graph), declared, strict=True)
        for shape, operands in _with_examples(sub, own, symbols)
        for x in (_shape(read(type)) or () for type in operands)
    )


def _with_examples(
    graph: GraphProto, declared: Mapping[str, ValueType], symbols: set[str]
) -> Iterator[tuple[Shape, list[TypeProto]]]:
    """The declared shapes of results that have a number and lack a symbol, each with the types of the node's operands."""
    types = {info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}
    for node in graph.node:
        for shape in filter(None, (_shape(declared.get(name)) for name in node.output)):
            if any(map(_may_be_example, shape)) and not symbols.issubset(shape):
                yield shape, [types[name] for name in node.input if name in types]


def _has_lost(x: Shape, shape: Shape, symbols: set[str]) -> bool:
    """True if a result has a number in the place of a symbol of its operand x.

    A symbol that x does not have may replace another one, as the sum of two lengths does after a Concat.
    """
    more_numbers = sum(map(_may_be_example, shape)) - sum(map(_may_be_example, x))
    lost = symbols.intersection(x).difference(shape)
    new = {dim for dim in shape if isinstance(dim, str)}.difference(x)
    return len(x) <= len(shape) and more_numbers > len(shape) - len(x) and len(lost) > len(new)


def _may_be_example(dim: Dim) -> bool:
    """True for a size that an exporter may have seen for a free dimension; torch keeps no dimension of 1 free."""
    return isinstance(dim, int) and dim > 1


def _numbers_for_symbols(message: bytes, declared: TypesByGraph, inferred: GraphProto, read: TypeReader) -> list[str]:
    """Numbers declared for dimensions that are symbols of the model's inputs, as follows from the other declared dimensions.

    onnx takes the number wherever it infers the symbol.
    """
    others = [{name: _without_numbers(type) for name, type in own.items()} for own in declared]
    again = infer_model(_stating(message, others, inferred).SerializeToString())
    found = _found(list(_graphs(again.graph)), declared, read)
    return _merge(again.graph, declared, found, set(input_symbols(inferred)))[1]


def _without_numbers(type: ValueType) -> ValueType:
    if not isinstance(type, TensorType) or type.shape is None:
        return type
    return TensorType(type.dtype, tuple(None if isinstance(dim, int) else dim for dim in type.shape))


def _stating(message: bytes, types: TypesByGraph, inferred: GraphProto) -> ModelProto:
    """The serialized model with these declared types, and with the operators renamed that are hidden from onnx.

    `inferred` has the types that onnx infers without the declared ones.
    """
    proto = ModelProto.FromString(message)
    found = contents(proto.graph)
    hide(found, opset_of(proto))
    hide_misjudged(found, inferred)
    _state(list(_graphs(proto.graph)), types)
    return proto


def _infer_with(proto: ModelProto) -> ModelProto:
    """The model with its declared types and the inferred ones. Raises ContradictionError if they disagree."""
    known = _without_unknown(proto)
    checked = infer_model(known.SerializeToString(), strict=True)
    return checked if known is proto else infer_model(proto.SerializeToString())


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and those of its subgraphs for which onnx infers types, outer graphs first."""
    yield graph
    for _, body in _bodies(graph):
        yield from _graphs(body)


def _bodies(graph: GraphProto) -> Iterator[tuple[NodeProto, GraphProto]]:
    """(node, subgraph) for the graph's own nodes with subgraphs for which onnx infers types."""
    for node in graph.node:
        if node.op_type in INFERRED_BODIES and domain_of(node) == "":
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield node, attribute.g


def _take(graphs: Sequence[GraphProto], read: TypeReader) -> TypesByGraph:
    """Remove and return the declared types of node outputs, and the shapes of subgraph inputs and outputs.

    Element types of subgraph inputs and outputs stay: without them, onnx infers nothing for an If.
    """
    found: TypesByGraph = []
    symbols = input_symbols(graphs[0])
    for i, sub in enumerate(graphs):
        stated = _declared(sub, read, is_body=i > 0)
        found.append(without_doubtful(sub, stated, symbols, is_body=i > 0))
        del sub.value_info[:]
        for info in sub.output if i == 0 else ():
            info.ClearField("type")
        for info in (*sub.input, *sub.output):
            if info.type.HasField("tensor_type"):
                _forget(info.type.tensor_type, whole=i > 0)
    return found


def _declared(graph: GraphProto, read: TypeReader, *, is_body: bool) -> dict[str, ValueType]:
    """The declared types of node outputs, and of the inputs of a body."""
    given = {value.name for value in (*graph.initializer, *(() if is_body else graph.input))}
    given.update(name for node in graph.node if node.op_type == "Constant" for name in node.output)
    infos = (*graph.value_info, *graph.output, *(graph.input if is_body else ()))
    return {v.name: type for v in infos if v.name not in given and (type := read(v.type)) is not None}


def _forget(tensor: TypeProto.Tensor, whole: bool) -> None:
    """Remove the shape of a type if `whole`, else only its negative dimensions, which exporters write for unknown ones."""
    if whole:
        tensor.ClearField("shape")
    elif any(d.dim_value < 0 for d in tensor.shape.dim):
        for dim in tensor.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")


def _found(graphs: Sequence[GraphProto], declared: TypesByGraph, read: TypeReader) -> TypesByGraph:
    """The inferred types of the values that have declared types."""
    found: TypesByGraph = []
    for sub, stated in zip(graphs, declared, strict=True):
        own: dict[str, ValueType] = {}
        for infos in (sub.output, sub.input, sub.value_info):
            if len(own) == len(stated):
                break
            for info in infos:
                if info.name in stated and (type := read(info.type)) is not None:
                    own[info.name] = type
        found.append(own)
    return found


def _misnamed_outputs(message: bytes, graph: GraphProto, declared: Mapping[str, ValueType]) -> list[str]:
    """Descriptions of misnamed dimensions, see `misnamed`. Only of outputs that nodes read, since no other name has an effect."""
    outputs = {info.name for info in graph.output} & declared.keys() & set(_operands(graph))
    return list(misnamed(message, {name: declared[name] for name in outputs})) if outputs else []


def _operands(graph: GraphProto) -> Iterator[str]:
    """The names of all values that nodes read."""
    return chain.from_iterable(node.input for node in walk(graph.node))


def _state(graphs: Sequence[GraphProto], types: TypesByGraph) -> None:
    """Declare types: replace those of inputs and outputs, add those of other values."""
    for sub, own in zip(graphs, types, strict=True):
        left = dict(own)
        for infos in (sub.output, sub.input, sub.value_info) if own else ():
            for info in infos:
                if info.name in own:
                    info.type.CopyFrom(type_proto(own[info.name]))
                    left.pop(info.name, None)
        for name, type in left.items():
            sub.value_info.add(name=name).type.CopyFrom(type_proto(type))


def _merge(
    graph: GraphProto, declared: TypesByGraph, inferred: TypesByGraph, symbols: set[str]
) -> tuple[TypesByGraph, list[str]]:
    """Return the declared types that add something to the inferred ones, merged with them, and descriptions of contradictions.

    Raises GraphError, with the node of this graph or its subgraphs, for a wrong element type.
    """
    merged: TypesByGraph = []
    wrong: list[str] = []
    for stated, known in zip(declared, inferred, strict=True):
        own: dict[str, ValueType] = {}
        for name, type in stated.items():
            other = known.get(name)
            if other is type:
                continue
            if other is None:
                own[name] = type
                continue
            _check_element(graph, name, type, other)
            both = _merge_types(type, other, symbols)
            if both is None:
                wrong.append(f"'{name}' is declared as {type}, but is {other}")
            elif both != other:
                own[name] = both
        merged.append(own)
    return merged, wrong


def _drop_wrong_ranks(graphs: Sequence[GraphProto], declared: TypesByGraph, read: TypeReader) -> Iterator[str]:
    """Forget the declared shapes whose rank is not the one that follows from the shapes of a node's inputs, and say where."""
    types: dict[str, TypeProto] = {}
    ranked = [
        [node for node in sub.node if node.op_type in _ADDED_AXES] if stated else []
        for sub, stated in zip(graphs, declared, strict=True)
    ]
    for sub, stated, nodes in zip(graphs, declared, ranked, strict=True) if any(ranked) else ():
        types.update((info.name, info.type) for info in (*sub.input, *sub.value_info, *sub.output))
        for node in nodes:
            rank = _rank_by_inputs(node, types, read)
            type = None if rank is None else stated.get(node.output[0])
            if isinstance(type, TensorType) and type.shape is not None and len(type.shape) != rank:
                stated[node.output[0]] = TensorType(type.dtype)
                yield f"'{node.output[0]}' is declared as {type}, but has rank {rank}"


def _rank_by_inputs(node: NodeProto, types: Mapping[str, TypeProto], read: TypeReader) -> int | None:
    """The rank of the result of a Resize, or of a Squeeze or Unsqueeze whose axes are an input of known length; None for other
    nodes.
    """
    if domain_of(node) or not node.input or not node.output:
        return None
    x, *others = (_shape(read(types[name])) if name in types else None for name in node.input)
    added = _ADDED_AXES[node.op_type]
    if x is None or not added:
        return None if x is None else len(x)
    axes = others[0] if len(others) == 1 else None
    return len(x) + added * axes[0] if axes and isinstance(axes[0], int) else None


def _shape(type: ValueType | None) -> Shape | None:
    return type.shape if isinstance(type, TensorType) else None


def _without_varying(message: bytes, types: TypesByGraph, inferred: GraphProto, read: TypeReader) -> TypesByGraph:
    """The types without the sizes of values in Loops that the body does not keep: exporters declare those of the first turn."""
    while any(types[1:]) and any(map(any, _carried(inferred))):
        graph = infer_model(_stating(message, types, inferred).SerializeToString()).graph
        bodies = zip(_graphs(graph), types, _carried(graph), strict=True)
        kept = [_kept(body, own, carried, read) for body, own, carried in bodies]
        if kept == types:
            break
        types = kept
    return types


def _kept(
    body: GraphProto, types: Mapping[str, ValueType], carried: Sequence[tuple[str, str]], read: TypeReader
) -> dict[str, ValueType]:
    """The declared types of a body's values, without the dimensions of carried values that its results do not have."""
    kept, results = dict(types), {info.name: _shape(read(info.type)) for info in body.output}
    for before, after in carried:
        type, result = types.get(before), results.get(after)
        if isinstance(type, TensorType) and type.shape is not None:
            same = tuple(dim if dim == made else None for dim, made in zip(type.shape, result or (), strict=False))
            kept[before] = TensorType(type.dtype, None if result is None or len(result) != len(type.shape) else same)
    return kept


def _carried(graph: GraphProto, node: NodeProto | None = None) -> Iterator[list[tuple[str, str]]]:
    """For each graph of `_graphs`: the names of an input and an output for each value that a Loop carries from turn to turn."""
    is_loop = node is not None and node.op_type == "Loop"
    yield [(x.name, y.name) for x, y in zip(graph.input[2:], graph.output[1:], strict=False)] if is_loop else []
    for owner, body in _bodies(graph):
        yield from _carried(body, owner)


def _fed_otherwise(
    graph: GraphProto, declared: Iterator[dict[str, ValueType]], outer: dict[str, ValueType], symbols: set[str]
) -> Iterator[str]:
    """Declared shapes of a body's inputs that contradict the first values fed to it. onnx does not compare them."""
    infos, read = (*graph.input, *graph.value_info, *graph.output), TypeReader()
    known = outer | {info.name: type for info in infos if (type := read(info.type)) is not None}
    for node, body in _bodies(graph):
        stated = next(declared)
        for info, fed in zip(body.input, _fed(node, body, known)):
            type = stated.get(info.name)
            if not isinstance(type, TensorType) or fed is None or type.shape is None:
                continue
            if _merge_shapes(type.shape, fed, symbols) is None:
                name = f"'{info.name}' in the body of {node.op_type} '{node.name or ', '.join(node.output)}'"
                yield f"{name} is declared as {type}, but is fed {TensorType(type.dtype, fed)}"
        yield from _fed_otherwise(body, declared, known, symbols)


def _fed(node: NodeProto, body: GraphProto, known: dict[str, ValueType]) -> list[Shape | None]:
    """The shapes of the first values fed to a body's inputs; None if unknown."""
    shapes = [_shape(known.get(name)) for name in node.input]
    if node.op_type == "Loop":
        return [None, None, *shapes[2:]]
    if node.op_type != "Scan" or len(body.input) != len(shapes):  # version 1 has a batch axis and an input of lengths
        return []
    attributes = {a.name: a for a in node.attribute}
    count = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
    if not 0 <= count <= len(shapes):
        return []
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * count
    states = len(shapes) - count
    return [*shapes[:states], *map(_without_axis, shapes[states:], chain(axes, repeat(None)))]


def _without_axis(shape: Shape | None, axis: int | None) -> Shape | None:
    """The shape without one axis, unless this is out of range."""
    if shape is None or axis is None or not -len(shape) <= axis < len(shape):
        return shape
    return (*shape[: axis % len(shape)], *shape[axis % len(shape) + 1 :])


def _check_element(graph: GraphProto, name: str, declared: ValueType, inferred: ValueType) -> None:
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        stated, made = declared.dtype.name.lower(), inferred.dtype.name.lower()
    else:
        stated, made = declared.__class__.__name__, inferred.__class__.__name__
    if stated != made:
        raise GraphError(
            f"'{name}' is declared {stated}, but the operator makes {made}",
            node=next((label(node) for node in walk(graph.node) if name in node.output), None),
            hint="declare the type that the operator makes, or insert a Cast",
        )


def _merge_types(declared: ValueType, inferred: ValueType, symbols: set[str]) -> ValueType | None:
    """The combined type; None if the two contradict each other."""
    if isinstance(declared, SequenceType) and isinstance(inferred, SequenceType):
        element = _merge_types(declared.element, inferred.element, symbols)
        return None if element is None else SequenceType(element)
    if not isinstance(declared, TensorType) or not isinstance(inferred, TensorType) or declared.shape is None:
        return inferred
    shape = _merge_shapes(declared.shape, inferred.shape, symbols)
    return None if shape is None else TensorType(inferred.dtype, shape)


def _merge_shapes(declared: Shape, inferred: Shape | None, symbols: set[str]) -> Shape | None:
    """The combined shape; None if the two contradict, or if a symbol of the model's inputs is declared as a number."""
    if inferred is None:
        return declared
    pairs = list(zip(declared, inferred, strict=False))
    wrong = (isinstance(stated, int) and known != stated and _is_sure(known, symbols) for stated, known in pairs)
    if len(declared) != len(inferred) or any(wrong):
        return None
    return tuple(known if stated is None or _is_sure(known, symbols) else stated for stated, known in pairs)


def _is_sure(known: Dim, symbols: set[str]) -> bool:
    """True for numbers, and for symbols of the model's inputs."""
    return isinstance(known, int) or known in symbols


def _without_unknown(proto: ModelProto) -> ModelProto:
    """The model with inputs for nodes that are hidden from onnx or unknown to it: next to these, it misses contradictions."""
    is_known = partial(_is_known, opsets={entry.domain: entry.version for entry in proto.opset_import})
    unknown = list(filterfalse(is_known, proto.graph.node))
    if not unknown:
        return proto
    cut = ModelProto()
    cut.CopyFrom(proto)
    made = {name for node in unknown for name in node.output}
    infos = {info.name: info for info in (*proto.graph.value_info, *proto.graph.output) if info.name in made}
    cut.graph.input.extend(infos.values())
    del cut.graph.node[:]
    cut.graph.node.extend(filter(is_known, proto.graph.node))
    return cut


def _is_known(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    check_text(node.op_type, node.domain)
    return get_schema(node.op_type, opsets.get(node.domain, 1), domain_of(node)) is not None


def _only_ranks(declared: TypesByGraph, inferred: TypesByGraph) -> TypesByGraph:
    """For values without an inferred type or rank, the declared type, with its rank but without its dimensions."""
    return [
        {n: type for n, one in stated.items() if lacks_rank(known.get(n)) and (type := without_dims(one)) is not None}
        for stated, known in zip(declared, inferred, strict=True)
    ]
