"""Checks of a model message before onnx's C++ code and the graph builder use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ortconv.errors import FormatError, GraphError, UnsupportedError
from ortconv.ir.schema import plain_domain, schema
from ortconv.ir.signature import STANDARD, check_counts
from ortconv.onnxio.build import check_text
from ortconv.onnxio.messages import domain_of, graphs, label, subgraphs, walk
from ortconv.onnxio.shield import MARK
from ortconv.onnxlib import InferenceError, infer_shapes, newest_opsets
from ortconv.onnxproto import IR_VERSION, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

OLDEST_IR = 3

_FOREIGN = [
    (4, b"ORTM", "is an ORT-format model, not an ONNX model", "name it .ort"),
    (4, b"TFL3", "is a TensorFlow Lite model", "convert it with tflite2onnx or tf2onnx first"),
    (0, b"version https://git-lfs", "is a Git LFS pointer, not the model itself", "run: git lfs pull"),
    (0, b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint, perhaps)", "unpack it, or export the model to ONNX"),
    (0, b"\x80\x02", "is a Python pickle", "export it to ONNX first"),
    (0, b"\x1f\x8b", "is compressed with gzip", "unpack it first"),
    (0, b"\x89HDF", "is an HDF5 file (a Keras model, perhaps)", "convert it with tf2onnx first"),
    (0, b"<", "is HTML, XML or ONNX text", "download the raw file; parse text with onnx.parser"),
    (0, b"ir_version:", "is the text form of protobuf", "read it with onnx.load(PATH, format='textproto')"),
    (0, b"{", "is JSON or another text", "download the raw file"),
]
"""(offset, bytes at it, name of the format that they identify, advice)."""

_HINT = "the file is damaged or not an ONNX model: export or download it again; tf2onnx converts a TensorFlow .pb"


def not_onnx(data: memoryview, reason: str) -> FormatError:
    """The error for bytes that are no ONNX model. It names the actual format if it is recognized."""
    return foreign(data) or FormatError(f"not a valid ONNX model: {reason}", hint=_HINT)


def foreign(data: memoryview) -> FormatError | None:
    """The error for bytes in a recognized format other than ONNX."""
    head = bytes(data[:512])
    for offset, magic, what, hint in _FOREIGN:
        if (head if offset else head.lstrip())[offset:].startswith(magic):
            return FormatError(f"the file {what}", hint=hint)
    return None


def check_versions(proto: ModelProto, oldest_opset: int) -> None:
    """Raise UnsupportedError for IR and operator set versions that are too old, or newer than the onnx package knows."""
    if proto.ir_version < OLDEST_IR:
        raise UnsupportedError(f"IR version {proto.ir_version}, the oldest supported is {OLDEST_IR}", hint=_RAISE_IR)
    if proto.ir_version > IR_VERSION:
        raise UnsupportedError(
            f"IR version {proto.ir_version}, onnx {version_of_onnx()} knows {IR_VERSION}", hint=_UPGRADE
        )
    if not proto.opset_import:
        raise GraphError("the model imports no operator set", hint=_IMPORT)
    _check_opsets(proto.opset_import, oldest_opset)
    for function in proto.functions:
        _check_opsets(function.opset_import, oldest_opset)


def version_of_onnx() -> str:
    from importlib.metadata import version

    return version("onnx")


def _check_opsets(imports: Iterable[OperatorSetIdProto], oldest_opset: int) -> None:
    versions: dict[str, int] = {}
    for entry in imports:
        check_text(entry.domain)
        domain, version = plain_domain(entry.domain), entry.version
        if versions.setdefault(domain, version) != version:
            raise GraphError(f"operator set '{domain}' is imported twice, as {versions[domain]} and {version}")
        _check_opset(domain, version, oldest_opset if domain == "" else 0)


def _check_opset(domain: str, version: int, oldest: int) -> None:
    limit = newest_opsets().get(domain)
    if limit is not None and version > limit:
        raise UnsupportedError(
            f"opset {version} of '{domain or 'ai.onnx'}', onnx {version_of_onnx()} knows {limit}", hint=_UPGRADE
        )
    if not 0 <= version < 1 << 31:
        raise GraphError(f"opset {version} of '{domain or 'ai.onnx'}' is not a version", hint=_IMPORT)
    if version < oldest:
        raise UnsupportedError(
            f"opset {version} of '{domain or 'ai.onnx'}', the oldest supported is {oldest}", hint=_CONVERT
        )


# ---------------------------------------------------------------------- rules of operators


def check_rules(message: bytes) -> None:
    """Raise GraphError for a node that onnxruntime refuses in type and shape inference.

    Declared types are ignored, and so are values of shape computations. A node is not refused if the type of one of its inputs is
    unknown: it may follow a custom operator.
    """
    proto = ModelProto.FromString(message)
    nodes = _undeclare(proto.graph)
    del proto.graph.output[:]
    bare = proto.SerializeToString()
    try:
        infer_shapes(bare, data_prop=False, strict=True)
    except InferenceError as error:
        typed = _typed(ModelProto.FromString(infer_shapes(bare, data_prop=False)).graph)
        for op, name, why in _located(str(error)):
            node = nodes.get((op, name))
            if node is not None and all(i in typed for i in node.input if i):
                raise broken_rule(op, name, why) from error


_OF_ELEMENTS = ("ConcatFromSequence", "SequenceAt", "SequenceMap")
"""Operators that read the elements of a sequence, whose shapes onnxruntime does not infer."""


def _undeclare(graph: GraphProto) -> dict[tuple[str, str], NodeProto]:
    """Remove the declared types of node outputs, and name the nodes without a name. Return all nodes by (operator, name).

    Nodes that read elements of sequences are hidden: otherwise onnx would find faults in shapes that onnxruntime does not know.
    """
    nodes = {}
    del graph.value_info[:]
    for output in graph.output:
        output.ClearField("type")
    for node in graph.node:
        node.name = node.name or next(filter(None, node.output), "?")
        nodes[node.op_type, node.name] = node
        if node.op_type in _OF_ELEMENTS:
            node.op_type = MARK + node.op_type
        for sub in subgraphs(node):
            nodes |= _undeclare(sub)
    return nodes


def _typed(graph: GraphProto) -> set[str]:
    """Names of values with a known type, those in subgraphs included."""
    names: set[str] = set()
    for part in graphs(graph):
        names.update(v.name for v in (*part.input, *part.value_info, *part.output) if v.type.WhichOneof("value"))
        names.update((*(t.name for t in part.initializer), *(t.values.name for t in part.sparse_initializer)))
    return names


_NO_COMPLAINT = ("Inference error(s):", "expected to have type but instead is null", "declared=0", " was 0")
"""Ends of messages that are no fault of the node: faults inside it, an input that a later node makes, no declaration, an unknown
type of a body's output.
"""

_UNKNOWN_BRANCH = r"then=0 else=\d+$|else=0$"
"""End of the message on an If whose branches have different types, where one is unknown."""

_HEAD = r"\(op_type:([^,()]+)(?:, node name: (.*?))?\): "


def _located(text: str) -> Iterator[tuple[str, str, str]]:
    """(operator, node name, reason) of each fault in a message from onnx's inference."""
    heads = list(re.finditer(_HEAD, text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        why = text[head.end() : end].strip()
        if head[1] != "Constant" and not why.endswith(_NO_COMPLAINT) and not re.search(_UNKNOWN_BRANCH, why):
            yield head[1], head[2] or "", why


class UnimportedError(GraphError):
    """The model does not import an operator set that its nodes use."""


def broken_rule(op: str, name: str, why: str) -> GraphError:
    """The error for a node that breaks a rule of its operator. `why` is the reason from onnx's inference."""
    why = re.sub(r"^\[\w+\] ", "", why.removesuffix(f" in node {op} ({name})."))
    kind, hint = (UnimportedError, _IMPORT) if _UNIMPORTED in why else (GraphError, _RULES)
    return kind(f"breaks a rule of the operator: {why}", node=f"{op} '{name or '?'}'", hint=hint)


def inference_error(text: str, message: bytes) -> GraphError:
    """The error for a serialized model with whose nodes onnx's inference failed, for the reason in `text`."""
    if _UNIMPORTED in text:
        return UnimportedError(f"shape inference: {text}", hint=_IMPORT)
    proto = ModelProto.FromString(message)
    versions = {plain_domain(entry.domain): entry.version for entry in proto.opset_import}
    try:
        for node in walk(proto.graph.node):
            domain = domain_of(node)
            found = schema(domain, node.op_type, versions.get(domain, 0)) if domain in STANDARD else None
            if found is not None:
                check_counts(label(node), node.input, node.output, found)
    except GraphError as error:
        return error
    located = next(_located(text), None)
    return GraphError(f"shape inference: {text}") if located is None else broken_rule(*located)


_UNIMPORTED = "No opset import for domain"
_RULES = "onnxruntime refuses the model as well: mend it where it is exported"
_IMPORT = "opset_import must name the versions it uses"
_RAISE_IR = f"load the model with onnx.load, set its ir_version to {OLDEST_IR}, and save it"
_CONVERT = "raise it with onnx.version_converter.convert_version"
_UPGRADE = "upgrade the onnx package (pip install --upgrade onnx), or export with an older version"
