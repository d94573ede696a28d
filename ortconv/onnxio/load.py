"""Loads .onnx files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ortconv.errors import FormatError, GraphError, OrtconvError, UsageError, located
from ortconv.files import drop_pages, map_file
from ortconv.ir.model import OLDEST_OPSET, Model
from ortconv.ir.signature import check_signatures
from ortconv.ir.symbols import stated_size
from ortconv.onnxio import wire
from ortconv.onnxio.build import PackedNodes, Resolve, begin
from ortconv.onnxio.check import UnimportedError, check_versions, not_onnx
from ortconv.onnxio.complete_types import keep_unknown, stated_types
from ortconv.onnxio.declared import bare, infer_declared
from ortconv.onnxio.external import ExternalData
from ortconv.onnxio.imports import import_unknown, import_used, keep_last_imports, raise_opset
from ortconv.onnxio.infer import anonymous_symbols, first_line, infer_missing
from ortconv.onnxio.messages import NAMELESS, contents, graphs, input_symbols, walk
from ortconv.onnxproto import GraphProto, ModelProto, TensorProto
from ortconv.process import return_freed_memory, without_collections

SMALL_EXTERNAL = 8 * wire.THRESHOLD
"""Shape inference sees external payloads of up to this number of bytes."""

LARGE = 1 << 20
"""After a message with more bytes, without weights, memory that onnx used is returned to the system: Python does not reuse it."""


Sizes = Mapping[str, int]
"""Numbers for symbolic dimensions, by name."""

Check = Callable[[GraphProto], None]
"""Raises an error to refuse a graph, before types are inferred and the model is built."""


class Reading(NamedTuple):
    """How a model is read: changes of its inputs, and conditions on it."""

    fix_dims: Sizes | None = None
    """Numbers for symbolic dimensions. UsageError is raised if no input has such a symbol."""
    freeze_initializers: bool = False
    """True if inputs with a default value become constants."""
    oldest_opset: int = OLDEST_OPSET
    check: Check | None = None


AS_IT_IS = Reading()


def load(path: str | Path, reading: Reading = AS_IT_IS) -> Model:
    """Load and check an .onnx file. Functions are inlined, types and shapes inferred, and weights left in the mapped file.

    Raises ModelError for a faulty file, UnsafeInputError for external data outside its directory.
    """
    with located(path):
        data = map_file(path)
        external = ExternalData(os.path.dirname(path))
        model = _load(data, external, reading)
        model.file_bytes = data.nbytes + external.nbytes
        model.external = external.names
        drop_pages(data)
    model.path = os.fspath(path)
    return model


def from_proto(proto: ModelProto) -> Model:
    """Build the model of a message that contains its weights."""
    return from_bytes(memoryview(proto.SerializeToString()))


def from_bytes(data: memoryview, reading: Reading = AS_IT_IS) -> Model:
    """Build the model of a serialized message that contains its weights."""
    model = _load(data, None, reading)
    model.file_bytes = data.nbytes
    return model


class Names(NamedTuple):
    """What an .onnx file names: open dimensions of its inputs, operators, external files, and inputs with a default value."""

    dims: set[str]
    operators: set[str]
    external: set[str]
    defaults: set[str]


def names_in(path: str | Path) -> Names:
    """The names in an .onnx file, without any checks."""
    with located(path):
        data = map_file(path)
        proto = _parse(data, _skeleton(data)[0])
    nodes = [*walk(proto.graph.node), *walk(chain.from_iterable(function.node for function in proto.functions))]
    tensors = chain(
        chain.from_iterable(part.initializer for part in graphs(proto.graph)),
        chain.from_iterable((a.t, *a.tensors) for node in nodes for a in node.attribute),
    )
    locations = {_location(tensor) for tensor in tensors if not _is_cut(tensor)}
    operators = {node.op_type for node in nodes}
    return Names(_symbols(proto.graph), operators, locations - {""}, _defaults(proto))


def _location(tensor: TensorProto) -> str:
    """The place of a payload outside the message; empty if it is inside."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _symbols(graph: GraphProto) -> set[str]:
    """The dimensions of the inputs that --fix-dim can set. Those without a name are called INPUT[AXIS]."""
    return {*input_symbols(graph), *_nameless(graph)}


def _nameless(graph: GraphProto) -> dict[str, Any]:
    """The dimensions of the inputs without size and name. Paddle's exporter may write -1 for them."""
    dims = ((f"{v.name}[{i}]", d) for v in graph.input for i, d in enumerate(v.type.tensor_type.shape.dim))
    return {name: d for name, d in dims if d.dim_value < 0 or (not d.HasField("dim_value") and d.dim_param in NAMELESS)}


def _load(data: memoryview, external: ExternalData | None, reading: Reading) -> Model:
    """The model. The hint of an error says so if only the fixed sizes are at fault."""
    try:
        return _built(data, external, reading)
    except UnimportedError:
        return _built(data, external, reading, has_library=True)
    except GraphError as error:
        if reading.fix_dims:
            with suppress(OrtconvError):
                _built(data, external, reading._replace(fix_dims=None))
                error.hint = "without the fixed sizes the model is valid: choose others for --fix-dim"
        raise


def _built(data: memoryview, external: ExternalData | None, reading: Reading, *, has_library: bool = False) -> Model:
    message, payloads = _skeleton(data)
    proto = _parse(data, message)
    if not proto.HasField("graph"):
        raise not_onnx(data, "there is no graph in it")
    resolve = _resolver(payloads, external)
    warnings: list[str] = []
    has_functions = bool(proto.functions)
    _standardize(proto, message, reading.oldest_opset, reading.check, warnings.append)
    if has_library:
        import_unknown(proto, warnings.append)
    is_changed = _change_inputs(proto.graph, reading)
    defaults = _hide_defaults(proto)
    shown = _show_small(proto.graph, resolve) | _show_read(proto.graph, message, resolve)
    if shown or has_functions or is_changed or defaults or warnings:
        message = proto.SerializeToString()
    symbol = anonymous_symbols(message)
    stated = {} if reading.fix_dims else stated_types(proto)
    is_large = len(message) > LARGE
    untyped = bare(proto)
    del message, proto
    with without_collections():
        proto = infer_declared(untyped, warnings.append)
        del untyped
        proto.graph.initializer.extend(defaults)
        nodes = proto.graph.node
        if is_large:
            nodes = PackedNodes(nodes)
            del proto.graph.node[:]
            proto = ModelProto.FromString(proto.SerializeToString())
            return_freed_memory()
        model, builder = begin(proto, resolve, symbol)
        del proto
        builder.finish(nodes)
        warnings += (f"output '{name}' is listed again; this copy is named '{new}'" for name, new in builder.copies)
        del builder, nodes
        if is_large:
            return_freed_memory()
        infer_missing(model.graph)
        keep_unknown(model.graph, stated)
    warnings += check_signatures(model.graph)
    model.warnings += dict.fromkeys(warnings)
    return model


def _standardize(
    proto: ModelProto, message: bytes, oldest_opset: int, check: Check | None, warn: Callable[[str], None]
) -> None:
    """Import the used operator sets, each in one supported version, and inline functions. `message` is the serialized model."""
    keep_last_imports(proto, warn)
    raise_opset(proto, oldest_opset, warn)
    check_versions(proto, oldest_opset)
    if proto.functions:
        from ortconv.onnxio.inline import inline_functions

        inline_functions(proto, warn)
    if check is not None:
        check(proto.graph)
    import_used(proto, message, warn)


def _skeleton(data: memoryview) -> wire.Skeleton:
    try:
        return wire.skeleton(data)
    except FormatError as error:
        raise not_onnx(data, error.message) from error


def _parse(data: memoryview, message: bytes) -> ModelProto:
    try:
        return ModelProto.FromString(message)
    except Exception as error:
        raise not_onnx(data, first_line(error)) from error


def _resolver(payloads: list[memoryview], external: ExternalData | None) -> Resolve:
    """A function that returns the payload of a tensor outside the message: one cut out of it, or one in a file."""

    def resolve(tensor: TensorProto) -> memoryview:
        location = _location(tensor)
        if not location:
            raise FormatError(f"tensor '{tensor.name}' is stored externally, but without a location")
        number = location.removeprefix(wire.MARKER)
        if number != location:
            if number.isascii() and number.isdecimal() and len(number) < 10 and int(number) < len(payloads):
                return payloads[int(number)]
            raise FormatError(f"tensor '{tensor.name}' has an external location that is not a file name")
        if external is None:
            raise GraphError(
                f"tensor '{tensor.name}' lies in '{location}', but the model comes from no file",
                hint="load it by its path, or call onnx.load_external_data_for_model first",
            )
        return external.payload(tensor)

    return resolve


def _defaults(proto: ModelProto) -> set[str]:
    """The initializers that a caller may override."""
    names = {value.name for value in proto.graph.input} if proto.ir_version >= 4 else set()
    return names and {tensor.name for tensor in proto.graph.initializer} & names


def _hide_defaults(proto: ModelProto) -> list[TensorProto]:
    """Remove and return initializers that a caller may override: shape inference would treat them as constants."""
    graph, names = proto.graph, _defaults(proto)
    if not names:
        return []
    tensors = list(graph.initializer)
    del graph.initializer[:]
    graph.initializer.extend(t for t in tensors if t.name not in names)
    return [t for t in tensors if t.name in names]


def _show_small(graph: GraphProto, resolve: Resolve) -> bool:
    """Copy small external payloads into the message, so that shape inference sees them. Return True if there were any."""
    found = False
    for tensor in graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL or _is_cut(tensor) or tensor.data_type == TensorProto.STRING:
            continue
        data = resolve(tensor)
        if data.nbytes <= SMALL_EXTERNAL:
            _show(tensor, data)
            found = True
    return found


def _show(tensor: TensorProto, data: memoryview) -> None:
    tensor.ClearField("data_location")
    del tensor.external_data[:]
    tensor.raw_data = bytes(data)


_READ_BY_INFERENCE = {"OneHot": 0, "Split": 1, "SplitToSequence": 1}
"""Operators with an input that may be long and whose elements onnx's inference reads, if it is constant: it refuses other places
than the message. The indices of OneHot count only before version 11.
"""


def _show_read(graph: GraphProto, message: bytes, resolve: Resolve) -> bool:
    """Copy the payloads that shape inference reads into the message. Return True if there were any."""
    if not any(op.encode() in message for op in _READ_BY_INFERENCE):
        return False
    found = contents(graph)
    readers = ((node, slot) for op, slot in _READ_BY_INFERENCE.items() for node in found.nodes.get(op, ()))
    names = {node.input[slot] for node, slot in readers if slot < len(node.input)}
    constants = (node for node in found.nodes.get("Constant", ()) if not names.isdisjoint(node.output))
    tensors = [attribute.t for node in constants for attribute in node.attribute]
    tensors += [tensor for one in found.graphs for tensor in one.initializer if tensor.name in names]
    hidden = [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]
    for tensor in hidden:
        _show(tensor, resolve(tensor))
    return bool(hidden)


def _change_inputs(graph: GraphProto, reading: Reading) -> bool:
    """Freeze initializers and fix dimensions. Return True if the graph may have changed."""
    if reading.fix_dims:
        _fix_dims(graph, reading.fix_dims)
    if not reading.freeze_initializers:
        return bool(reading.fix_dims)
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    return True


def _fix_dims(graph: GraphProto, fixed: Sizes) -> None:
    """Replace symbolic dimensions by numbers everywhere in the graph, also in expressions."""
    symbols = _symbols(graph)
    unknown = [name for name in fixed if name not in symbols]
    if unknown:
        known = ", ".join(sorted(symbols))
        hint = f"symbolic dimensions of the inputs: {known}" if known else "the inputs have no symbolic dimensions"
        raise UsageError(f"no input has a dimension named '{unknown[0]}'", hint=hint)
    for name, dim in _nameless(graph).items():
        if name in fixed:
            dim.dim_value = fixed[name]
    sizes: dict[str, int | None] = dict.fromkeys(symbols) | dict(fixed)
    for stated in graphs(graph):
        for value in (*stated.input, *stated.output, *stated.value_info):
            for dim in value.type.tensor_type.shape.dim:
                name = dim.dim_param
                size = sizes[name] if name in sizes else sizes.setdefault(name, stated_size(name, fixed))
                if size is not None:
                    dim.dim_value = size


def _is_cut(tensor: TensorProto) -> bool:
    """True for a payload that `wire.skeleton` has cut out of the message."""
    return _location(tensor).startswith(wire.MARKER)
