"""Protects the process from crashes and endless loops in onnx's C++ inference, which runs in it.

tests/onnxio/test_shield.py runs the inference of every ONNX operator on random nodes, each in a process of its own. This module
lists the crashes and hangs found there: operators that are hidden from onnx, with types from contrib_types.py instead, and nodes
that no runtime accepts. Nodes for which onnx infers a wrong shape are hidden, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache
from typing import Any

from ortconv.errors import GraphError, OrtconvError
from ortconv.ir.slices import WHOLE
from ortconv.onnxio.build import array
from ortconv.onnxio.messages import Contents, domain_of, graphs, label, walk
from ortconv.onnxio.type_rules import einsum_labels
from ortconv.onnxproto import AttributeProto, GraphProto, NodeProto, TensorProto

HIDDEN = frozenset(
    {
        ("", "EyeLike"), ("", "GatherND"), ("", "RegexFullMatch"), ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"), ("ai.onnx.ml", "TreeEnsemble"),
    }
)  # fmt: skip
"""Operators on which inference crashes if the type of their input is unknown; GatherND if a dimension is negative."""

MARK = "\1"
"""Prefix of the names of hidden operators."""

SIGNED_AXES = 11
"""The first opset for which onnx infers Squeeze and Unsqueeze with negative axes. Before, it ignores such axes."""

CEILS_EXACTLY = 22
"""The first opset for which onnx infers a pool with ceil_mode rightly. Before, it counts a window that begins in the padding."""

LENGTH_IS_RANK = 12
"""The last opset for which onnx gives an Expand as many dimensions as its shape is declared to have elements."""

SCORES = 3
"""The output of an Attention that holds the scores. onnx gives them 0 columns, or too few, if a length is unknown."""

MOST_DIMENSIONS = 64
"""No model has values with more dimensions. onnx needs memory for each."""

SCALE_DIGITS = 1 << 12
"""Scales that are multiples of the inverse have exact products with the sizes of images."""

_NAMES = {op for _, op in HIDDEN}
_POOLS = ("AveragePool", "LpPool", "MaxPool")


@cache
def _examined(opset: int) -> frozenset[str]:
    """The operators whose nodes `hide` may change or refuse, also as it renames them."""
    names = (
        *(*_NAMES, *_CHECKS, "ConvTranspose", "Resize", "STFT", "Slice", "Squeeze", "Upsample"),
        *(("Unsqueeze",) if opset < SIGNED_AXES else ()),
        *(("Expand",) if opset <= LENGTH_IS_RANK else ()),
        *(_POOLS if opset < CEILS_EXACTLY else ("Attention",)),
    )
    return frozenset((*names, *(MARK + op for op in names)))


def hide(found: Contents, opset: int) -> bool:
    """Rename the hidden operators of a graph with these contents. Return True if there are any, including those renamed by an
    earlier call. `opset` is the version of ONNX's operators.

    Raises GraphError for a node on which onnx would end the process.
    """
    examined = [op for op in found.nodes if op in _examined(opset)]
    if not examined:
        return False
    wrong = _inferred_wrongly(found, opset)
    hidden = False
    for op in examined:
        check, outputs = _CHECKS.get(op), wrong.get(op, frozenset())
        for node in found.nodes[op]:
            if check is not None and domain_of(node) == "" and (fault := check(node)):
                raise GraphError(fault, node=label(node))
            if _is_hidden(op, node, opset) or not outputs.isdisjoint(node.output):
                node.op_type = MARK + op
            hidden = hidden or node.op_type[:1] == MARK
    return hidden


def _is_hidden(op: str, node: NodeProto, opset: int) -> bool:
    if op in _NAMES:
        return (domain_of(node), op) in HIDDEN
    if domain_of(node) != "":
        return False
    if op == "STFT":  # onnx takes 0 for its default, 1
        return not _attribute(node, "onesided").name
    if op == "ConvTranspose":
        return _exceeds_same_padding(node)
    if op in _POOLS:
        return opset < CEILS_EXACTLY and _attribute(node, "ceil_mode").i != 0
    has_negative_axes = op in ("Squeeze", "Unsqueeze") and any(axis < 0 for axis in _attribute(node, "axes").ints)
    return has_negative_axes and opset < SIGNED_AXES


def _exceeds_same_padding(transposed: NodeProto) -> bool:
    """True if onnx adds output_padding to the size that SAME padding gives."""
    return any(_attribute(transposed, "output_padding").ints) and _attribute(transposed, "auto_pad").s[:4] == b"SAME"


def _inferred_wrongly(found: Contents, opset: int) -> dict[str, Set[str]]:
    """The outputs of the nodes for which onnx infers a wrong or endless shape, by operator."""
    attentions = _operators(found, "Attention")
    return {
        "Attention": {node.output[0] for node in attentions if len(node.output) > SCORES and domain_of(node) == ""},
        "Slice": _slices_of_shapes(found, _operators(found, "Slice", inputs=2))
        | _slices_back_to_the_start(found, _operators(found, "Slice", inputs=5)),
        "Squeeze": _squeezes_of_all_axes(found, _operators(found, "Squeeze")),
        "Expand": _expands_to_many_dimensions(found, _operators(found, "Expand", inputs=2), opset),
        "Upsample": _resizes_to_rounded_sizes(found, _operators(found, "Upsample", inputs=1)),
        "Resize": _resizes_to_rounded_sizes(found, _operators(found, "Resize", inputs=1))
        | _resizes_by_an_outer_constant(found),
    }


def _initializers(found: Contents) -> Iterator[TensorProto]:
    """The initializers of the graph and its subgraphs."""
    return (tensor for part in found.graphs for tensor in part.initializer)


def _operators(found: Contents, name: str, inputs: int = 0) -> list[NodeProto]:
    """The nodes of an operator that have an output and at least this number of inputs."""
    return [node for node in found.nodes.get(name, ()) if node.output and len(node.input) >= inputs]


def _resizes_to_rounded_sizes(found: Contents, resizes: Sequence[NodeProto]) -> set[str]:
    """The outputs of Resizes by scales of many digits, such as 0.7: onnx takes the integer below the exact product, onnxruntime
    that below the product rounded to float32, which may be greater.
    """
    scales = _vectors(found, {name for node in resizes for name in node.input[1:3]})
    wrong = set()
    for node in resizes:
        stated = [a.floats for a in node.attribute if a.name == "scales"]
        if any(map(_has_many_digits, [*stated, *(scales.get(name, ()) for name in node.input[1:3])])):
            wrong.add(node.output[0])
    return wrong


def _resizes_by_an_outer_constant(found: Contents) -> set[str]:
    """The outputs of Resizes in subgraphs that have scales and sizes, one of them empty: onnx does not see the length of a constant
    outside, and refuses to have both.
    """
    inner = found.graphs[1:]
    resizes = [node for part in inner for node in part.node if node.op_type == "Resize" and len(node.input) > 3]
    empty = _empty_vectors(found) if resizes else set()
    return {node.output[0] for node in resizes if node.output and not empty.isdisjoint(node.input[2:4])}


def _vectors(found: Contents, names: Set[str]) -> dict[str, list[Any]]:
    """The elements of the constants with these names that are short vectors."""
    if not names:
        return {}
    known = {tensor.name: _elements(tensor) for tensor in _initializers(found) if tensor.name in names}
    for node in found.nodes.get("Constant", ()):
        known.update(
            (name, [*a.floats, *a.ints, *_elements(a.t)])
            for name in node.output
            if name in names
            for a in node.attribute
        )
    return known


def _elements(tensor: TensorProto) -> list[Any]:
    """The elements of a short vector of float32 or integers; [] for another or a damaged tensor."""
    has_type = tensor.data_type in (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
    if not has_type or len(tensor.dims) != 1 or not 0 < tensor.dims[0] <= MOST_DIMENSIONS:
        return []
    with suppress(OrtconvError):
        return list(array(tensor).tolist())
    return []


def _has_many_digits(scales: Iterable[float]) -> bool:
    """True if the product of a scale and a size may need more digits than float32 has."""
    return any(scale * SCALE_DIGITS % 1 for scale in scales)


def _expands_to_many_dimensions(found: Contents, expands: Sequence[NodeProto], opset: int) -> set[str]:
    """The outputs of Expands whose shapes are declared longer than any shape is."""
    if not expands or opset > LENGTH_IS_RANK:
        return set()
    declared = (v for part in found.graphs for v in (*part.input, *part.value_info))
    long = {v.name for v in declared if any(d.dim_value > MOST_DIMENSIONS for d in v.type.tensor_type.shape.dim[:1])}
    return {node.output[0] for node in expands if node.input[1] in long}


def _squeezes_of_all_axes(found: Contents, squeezes: Sequence[NodeProto]) -> set[str]:
    """The outputs of Squeezes with an empty list of axes. onnx keeps all axes, onnxruntime removes those of size 1."""
    empty = _empty_vectors(found) if squeezes else set()
    return {node.output[0] for node in squeezes if _has_empty_axes(node, empty)}


def _empty_vectors(found: Contents) -> set[str]:
    """The names of the constants that are empty vectors."""
    constants = found.nodes.get("Constant", ())
    empty = {t.name for t in _initializers(found) if t.dims == [0]}
    empty.update(name for node in constants if any(map(_is_empty_list, node.attribute)) for name in node.output)
    return empty


def _is_empty_list(attribute: AttributeProto) -> bool:
    """True for the attribute of a Constant that is an empty vector."""
    is_list = attribute.name in ("value_ints", "value_floats")
    return not (attribute.ints or attribute.floats) if is_list else attribute.t.dims == [0]


def _has_empty_axes(node: NodeProto, empty: Container[str]) -> bool:
    axes = _attribute(node, "axes")
    return not axes.ints if axes.name else len(node.input) > 1 and node.input[1] in empty


def _slices_of_shapes(found: Contents, slices: Sequence[NodeProto]) -> set[str]:
    """The outputs of Slices of shapes that begin at a computed index, which onnx takes for 0 when it follows elements."""
    if not slices:
        return set()
    known = {name for node in found.nodes.get("Constant", ()) for name in node.output}
    known.update(t.name for t in _initializers(found) if len(t.dims) < 2)
    computed = [node for node in slices if node.input[1] not in known]
    for node in walk(found.graphs[0].node) if computed else ():
        if node.op_type in ("Shape", "Size") or (node.input and known.issuperset(filter(None, node.input))):
            known.update(node.output)
    return {node.output[0] for node in computed if node.input[0] in known}


def _slices_back_to_the_start(found: Contents, slices: Sequence[NodeProto]) -> set[str]:
    """The outputs of Slices backward to an end that for onnxruntime is before the first element, and for onnx after the last."""
    steps = _vectors(found, {node.input[4] for node in slices})
    backward = [node for node in slices if any(step < 0 for step in steps.get(node.input[4], ()))]
    ends = _vectors(found, {node.input[2] for node in backward})
    return {node.output[0] for node in backward if not WHOLE.isdisjoint(ends.get(node.input[2], ()))}


def _stated_dims(inferred: GraphProto) -> dict[str, Sequence[Any]]:
    """The dimensions of inputs and inner values, by name."""
    values = (v for part in graphs(inferred) for v in (*part.input, *part.value_info))
    return {v.name: v.type.tensor_type.shape.dim for v in values}


def _sizes(inferred: GraphProto) -> dict[str, list[int | str]]:
    """The dimensions of inputs, inner values and constants, by name: numbers, symbols, or 0 for unknown ones."""
    sizes = {name: [d.dim_value or d.dim_param for d in dims] for name, dims in _stated_dims(inferred).items()}
    sizes.update((t.name, list(t.dims)) for part in graphs(inferred) for t in part.initializer)
    return sizes


def hide_misjudged(found: Contents, inferred: GraphProto) -> bool:
    """Rename the Einsums for which onnx infers the size of an axis that is broadcast, and the Attentions whose results are given 0
    columns because the size of the heads is unknown. Return True if there are any.
    """
    einsums, attentions = (found.nodes.get(op, ()) for op in ("Einsum", "Attention"))
    if not (*einsums, *attentions):
        return False
    sizes, stated = _sizes(inferred), _stated_dims(inferred)
    stated.update((v.name, v.type.tensor_type.shape.dim) for part in graphs(inferred) for v in part.output)
    wrong = [node for node in einsums if _takes_first_size(node, sizes)]
    wrong += [node for node in attentions if _has_no_columns(node, stated)]
    for node in wrong:
        node.op_type = MARK + node.op_type
    return bool(wrong)


def _has_no_columns(node: NodeProto, stated: Mapping[str, Sequence[Any]]) -> bool:
    dims = stated.get(node.output[0], ()) if node.output and domain_of(node) == "" else ()
    return len(dims) > 0 and dims[-1].HasField("dim_value") and dims[-1].dim_value == 0


def _takes_first_size(node: NodeProto, sizes: Mapping[str, Sequence[int | str]]) -> bool:
    """True if a label has size 1 or a symbol in one operand and another size in a later one: onnx only looks at the first."""
    equation = _attribute(node, "equation")
    if domain_of(node):
        return False
    terms = equation.s.decode().replace(" ", "").partition("->")[0].split(",")
    first: dict[str | int, int | str] = {}
    for name, term in zip(node.input, terms, strict=False):
        dims = sizes.get(name, ())
        for axis, size in zip(einsum_labels(term, len(dims)), dims, strict=False):
            taken = first.setdefault(axis, size)
            if taken != size and (taken == 1 or isinstance(taken, str)):
                return True
    return False


def reveal(graph: GraphProto) -> None:
    """Undo `hide`."""
    for node in walk(graph.node):
        if node.op_type[:1] == MARK:
            node.op_type = node.op_type[1:]


_SHORTENING = ("Conv", "Pool", "Pad")
"""Parts of names of operators to whose results onnx gives a negative size for a long window or a negative pad."""

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""Operators whose attributes may show that the window fits. Other operators with such names always count as shortening."""


def shortening(found: Contents) -> int:
    """The number of the outermost graph's nodes up to the last one that may make a negative size, or has such a node inside."""
    names = {op for op in found.nodes if op == "Split" or any(part in op for part in _SHORTENING)}
    shown = (node for op in names for node in found.nodes[op] if node.op_type == op)
    if not any(map(_may_shorten, shown)):
        return 0
    nodes = found.graphs[0].node
    count = len(nodes)
    while not any(n.op_type in names and _may_shorten(n) for n in walk((nodes[count - 1],))):
        count -= 1
    return count


def _may_shorten(node: NodeProto) -> bool:
    """True for a Split, Pad or window that may make a negative size. A window fits into its own padding and one element more."""
    if node.op_type == "Split":
        return _parts(node) > 2
    if node.op_type not in _WINDOWED:
        return not node.op_type.startswith("Global")
    names = ("kernel_shape", "pads", "dilations", "strides")
    kernel, pads, dilations, strides = (tuple(_attribute(node, name).ints) for name in names)
    mode, rank = _attribute(node, "auto_pad").s or b"NOTSET", len(kernel)
    is_plain = rank and len(pads) == 2 * rank and len(dilations) in (0, rank) and mode == b"NOTSET"
    if not is_plain or any(not 0 <= n < 1 << 16 for n in (*kernel, *pads, *dilations, *strides)) or 0 in strides:
        return True
    steps = dilations or (1,) * rank
    return any((k - 1) * d > a + b for k, d, a, b in zip(kernel, steps, pads[:rank], pads[rank:], strict=True))


_BELOW_ZERO = re.compile(rb"\x0a[^\0]{1,2}\x08[\x80-\xff]{9}\x01")
"""A serialized dimension of a shape, with a negative number. Other fields seldom look the same."""


def may_be_below_zero(message: bytes) -> bool:
    """False if no value of a serialized model has a negative size."""
    return _BELOW_ZERO.search(message) is not None


def hide_slices(found: Contents, outputs: Container[str] | None = None) -> None:
    """Rename the Slice nodes with one of these outputs, by default all."""
    for node in found.nodes.get("Slice", ()):
        if outputs is None or any(name in outputs for name in node.output):
            node.op_type = MARK + "Slice"


KEEPS_SYMBOLS = 10
"""The opset in which onnx gives the result of a Slice along a symbolic dimension the same dimension."""


def slices_of_symbols(inferred: GraphProto) -> set[str]:
    """The outputs of the hidden Slices along an axis whose size is not known. In opset KEEPS_SYMBOLS, onnx infers them wrongly."""
    sizes = _stated_dims(inferred)
    held = {one.name: one for one in inferred.initializer} | dict(_constants(inferred))
    found = set()
    for node in walk(inferred.node):
        if node.op_type == MARK + "Slice" and node.input and node.input[0] not in held:
            dims = sizes.get(node.input[0])
            if not dims or any(not dims[axis].HasField("dim_value") for axis in _sliced_axes(node, held, len(dims))):
                found.update(node.output)
    return found


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """The tensors of Constant nodes, by name."""
    for node in walk(graph.node):
        if node.op_type == "Constant" and node.output and node.attribute and node.attribute[0].HasField("t"):
            yield node.output[0], node.attribute[0].t


def _sliced_axes(node: NodeProto, held: Mapping[str, TensorProto], rank: int) -> Iterable[int]:
    """The axes of a Slice of opset 10; all of them if they are not constant, or the constant is damaged."""
    axes = held.get(node.input[3]) if len(node.input) > 3 else None
    if axes is not None and axes.data_type in (TensorProto.INT32, TensorProto.INT64):
        with suppress(OrtconvError):
            return [axis for axis in array(axes).reshape(-1).tolist() if -rank <= axis < rank]
    return range(rank)


def refuse_slices_below_zero(inferred: GraphProto) -> None:
    """Raise SliceBelowZeroError if a hidden Slice reads a value with a negative size: onnx and onnxruntime end the process."""
    values = [v for graph in graphs(inferred) for v in (*graph.value_info, *graph.output)]
    below = {v.name for v in values if any(d.dim_value < 0 for d in v.type.tensor_type.shape.dim)}
    slices = (node for node in walk(inferred.node) if node.op_type == MARK + "Slice")
    if all(below.isdisjoint(node.input) for node in slices):
        return
    reveal(inferred)
    node = next(node for node in walk(inferred.node) if not below.isdisjoint(node.output))
    raise SliceBelowZeroError(_too_small(node), inferred, node=label(node))


class SliceBelowZeroError(GraphError):
    """A Slice reads a value with a negative size. `inferred` has the types of all values that do not depend on a Slice."""

    def __init__(self, message: str, inferred: GraphProto, *, node: str) -> None:
        super().__init__(message, node=node)
        self.inferred = inferred


def _too_small(node: NodeProto) -> str:
    if _parts(node) > 2:
        return f"the dimension is too small for {_parts(node)} parts: the size of the last one is below 0"
    return "an input is too small: a size of the output is below 0"


def _parts(node: NodeProto) -> int:
    return _attribute(node, "num_outputs").i if node.op_type == "Split" and domain_of(node) == "" else 0


def _attribute(node: NodeProto, name: str) -> AttributeProto:
    """An attribute; an empty message if it is absent."""
    return next((a for a in node.attribute if a.name == name), AttributeProto())


def _split(node: NodeProto) -> str:
    parts = _attribute(node, "num_outputs")
    if not parts.name or parts.i >= len(node.output):
        return ""
    return f"num_outputs is {parts.i}, but there are {len(node.output)} outputs"


def _layer_normalization(node: NodeProto) -> str:
    axis = _attribute(node, "axis").i
    return "" if -(1 << 31) <= axis < 1 << 31 else f"axis {axis} is out of range"


def _gather_nd(node: NodeProto) -> str:
    batch = _attribute(node, "batch_dims").i
    return f"batch_dims is {batch}, must be at least 0" if batch < 0 else ""


_TERM = r"[A-Za-z ]*(?:\.\.\.)?[A-Za-z ]*"
_EQUATION = rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?".encode()


def _einsum(node: NodeProto) -> str:
    equation = _attribute(node, "equation").s
    if re.fullmatch(_EQUATION, equation):
        return ""
    return f"the equation '{equation.decode(errors='replace')[:80]}' is malformed"


_CHECKS: dict[str, Callable[[NodeProto], str]] = {
    "Einsum": _einsum, "GatherND": _gather_nd, "LayerNormalization": _layer_normalization, "Split": _split,
}  # fmt: skip
"""Checks by standard operator. Each returns the fault that would crash onnx's inference or onnxruntime, or an empty string."""
