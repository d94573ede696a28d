"""Channels-last layout for 8-bit convolutions, and for the operators between them.

ONNX Runtime's integer convolution transposes its input and output itself if the channels come first. A region of nodes
that all support channels last needs Transposes only at its border.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operands import ints, producer_of
from ortconv.ir.operators import MICROSOFT, Trait, named
from ortconv.ir.resize import Resizing, resizing
from ortconv.ir.types import DType
from ortconv.optimizer.basic.transpose import add_transpose, optimize_transposes
from ortconv.optimizer.engine import Context, constant, insert_node
from ortconv.optimizer.permutation import (
    channels_to_first,
    channels_to_last,
    permuted_type,
    source_with_channels_last,
    transpose_perm,
)
from ortconv.optimizer.quantizers import BYTES, OPS, QUANTIZERS, is_single

NAME = "NhwcTransformer"
FEWEST = 3
"""Minimum rank of an image: one with a single spatial axis."""

Attributes = dict[str, Attribute]


class NhwcForm(NamedTuple):
    """The channels-last form of an operator: its operator, domain and attributes, and the slots of its images.

    `on_reals`: images may also be float32. `gains`: the form is faster even if it saves no Transpose. `vectors` are the
    inputs with one number per axis, `axes` the input that lists some.
    """

    op: str
    domain: str
    attrs: Callable[[Node], Attributes] = lambda node: node.attrs
    images: Callable[[Node], range] = lambda node: range(1)
    on_reals: bool = False
    gains: bool = False
    vectors: tuple[int, ...] = ()
    axes: int | None = None

    @property
    def types(self) -> frozenset[DType]:
        """The types that the images may have."""
        return BYTES | {DType.FLOAT} if self.on_reals else BYTES


def _channels_last(node: Node) -> Attributes:
    return {**node.attrs, "channels_last": 1}


def _last_axis(node: Node) -> Attributes:
    rank = node.out.rank or 0
    return {**node.attrs, "axis": channels_to_last(rank).index(int(node.attr("axis", 0)) % rank)}


def _without(*names: str) -> Callable[[Node], Attributes]:
    return lambda node: {k: v for k, v in node.attrs.items() if k not in names}


FORMS: dict[tuple[str, str], NhwcForm] = {
    ("", "QLinearConv"): NhwcForm("QLinearConv", MICROSOFT, _channels_last, gains=True),
    ("", "MaxPool"): NhwcForm("NhwcMaxPool", MICROSOFT, _without("storage_order"), gains=True),
    **{(MICROSOFT, op): NhwcForm(op, MICROSOFT, _channels_last, gains=True)
       for op in ("QLinearAveragePool", "QLinearGlobalAveragePool")},
    **{(MICROSOFT, op): NhwcForm(op, MICROSOFT) for op in ("QLinearSigmoid", "QLinearLeakyRelu")},
    **{(MICROSOFT, op): NhwcForm(op, MICROSOFT, images=lambda node: range(0, 4, 3)) for op in ("QLinearAdd", "QLinearMul")},
    (MICROSOFT, "QLinearConcat"): NhwcForm("QLinearConcat", MICROSOFT, _last_axis, lambda node: range(2, len(node.inputs), 3)),
    **{(domain, op): NhwcForm(op, domain, _without("axis"), on_reals=True) for domain, op in QUANTIZERS},
    **{("", op): NhwcForm(op, "", on_reals=True) for op in named(Trait.ELEMENTWISE)},
    ("", "Split"): NhwcForm("Split", "", _last_axis, on_reals=True),
    ("", "Slice"): NhwcForm("Slice", "", on_reals=True, axes=3),
    ("", "Resize"): NhwcForm("Resize", "", on_reals=True, vectors=(2, 3)),
    (MICROSOFT, "QLinearSoftmax"): NhwcForm("QLinearSoftmax", MICROSOFT, _last_axis, gains=True),
    **{("", op): NhwcForm(op, "", images=lambda node: range(len(node.inputs)), on_reals=True) for op in named(Trait.BROADCASTS)},
}  # fmt: skip
HALVES = ("half_pixel", "pytorch_half_pixel", "asymmetric")
"""Coordinate modes in which upsampling by 2 places samples at half pixels."""
TRANSPOSING = ("QLinearConv", "QLinearSoftmax")
"""Operators that transpose their input and output themselves if the channels come first."""


def _is_kept(node: Node) -> bool:
    """False for a Slice of unknown axes, a Softmax along another axis than the channels, and a Resize of other results or sizes."""
    if node.op == "Slice":
        return bool(ints(node.input(3)))
    if node.op == "QLinearSoftmax":
        return node.attr("axis", -1) in (1, 1 - (node.out.rank or 0)) and node.attr("opset", 0) >= 13
    return node.op != "Resize" or _is_same_resize(node)


def _is_same_resize(node: Node) -> bool:
    roi, does = node.input(1), resizing(node, ints)
    if "axes" in node.attrs or (roi and roi.static_shape != (0,)) or node.out.rank != 4:
        return False
    if does.scales is None and does.sizes is None:
        return False
    return does.mode == "nearest" or (does.mode == "linear" and _is_exact(node, does))


def _is_exact(node: Node, does: Resizing[int]) -> bool:
    """True for a linear Resize of images; for 8-bit images, only if its weights are exact in the kernel's 10 bits."""
    x = node.inputs[0]
    if x is None or does.antialias or not all(does.keeps(axis, x.dim(axis)) for axis in (0, 1)):
        return False
    factors = [f for axis in (2, 3) if (f := does.factor(axis, x.dim(axis), node.out.dim(axis))) is not None]
    if len(factors) < 2 or node.out.dtype is DType.FLOAT:
        return len(factors) == 2
    return does.coordinates in HALVES and all(np.frexp(f)[0] == 0.5 and f <= 512 for f in factors)


def _results(node: Node) -> list[Value]:
    """The outputs of a node that are images."""
    return node.present_outputs if node.op == "Split" else [node.out]


def convert_regions(graph: Graph, context: Context, always: bool = False) -> int:
    """Convert every region that gains from it to channels last; with `always`, all regions with convolutions.

    Returns the number of changed nodes.

    Counterpart: NhwcTransformer
    Differs: regions are selected as a whole, only if they gain; pools, Split, Resize and float operators between
        quantized ones are included; no float convolutions.
    """
    changes = 0
    for region in _regions(graph, context):
        chosen = _worthwhile(region, always)
        if chosen and not context.exhausted:
            _convert(graph, chosen)
            context.record(NAME, chosen[0].label, len(chosen), len(chosen))
            changes += len(chosen)
    return changes + (optimize_transposes(graph, context) if changes else 0)


def convert_all_regions(graph: Graph, context: Context) -> int:
    """Like onnxruntime's own transformer, which converts regions even if they do not gain."""
    return convert_regions(graph, context, always=True)


# ---------------------------------------------------------------------- regions


def _images(node: Node) -> list[Value]:
    """The images, without constants, among the inputs of a node that can take the form; empty if it cannot."""
    form = FORMS.get((node.domain, node.op))
    if form is None or node.attr("channels_last", 0) or not _makes_images(node, form.types):
        return []
    is_per_tensor = node.op not in OPS or all(map(is_single, node.inputs[1:]))
    if not (is_per_tensor and _is_kept(node)):
        return []
    images = [node.input(slot) for slot in form.images(node)]
    if not all(_may_be_image(v, node.out.rank, form.types) for v in images):
        return []
    return [v for v in images if v is not None and v.constant is None]


def _makes_images(node: Node, types: Collection[DType]) -> bool:
    """True if all results that have readers are images."""
    results = _results(node)
    if len(results) < len(node.outputs) and node.op == "Split":
        return False
    if (node.out.rank or 0) < FEWEST or any(v.rank != node.out.rank or v.dtype not in types for v in results):
        return False
    return not any(v.is_used for v in node.present_outputs if v not in results)


def _may_be_image(value: Value | None, rank: int | None, types: Collection[DType]) -> bool:
    """True if a value is an image, or a constant used as one."""
    if value is None or value.dtype not in types:
        return False
    return value.constant is not None or value.rank == rank


def _regions(graph: Graph, context: Context) -> list[list[Node]]:
    """The connected sets of nodes that can take the form, each in topological order."""
    able = {node: _images(node) for node in graph}
    able = {node: images for node, images in able.items() if images and context.may_touch(node)}
    regions = DisjointSets(able)
    for node, images in able.items():
        for value in images:
            producer = value.producer
            if producer is not None and producer in able and producer.ep == node.ep:
                regions.join(node, producer)
    return regions.sets()


def _worthwhile(region: list[Node], always: bool) -> list[Node]:
    """The part of a region that gains: without nodes at its border that cost more Transposes than they save.

    A region whose nodes transpose less by themselves is left unchanged, unless `always`.
    """
    chosen = dict.fromkeys(region)
    changed = True
    while changed:
        changed = False
        for node in list(chosen):
            if node.op not in TRANSPOSING and _cost(node, chosen) + (not FORMS[node.domain, node.op].gains) > 0:
                del chosen[node]
                changed = True
    gained = 2 * sum(node.op in TRANSPOSING for node in chosen)
    convolutions = any(node.op == "QLinearConv" for node in chosen)
    return list(chosen) if convolutions and (always or _border(chosen) < gained) else []


def _cost(node: Node, chosen: dict[Node, None]) -> int:
    """Number of edges from a node out of the set minus those into it or to a Transpose that vanishes."""
    outside = sum(not result.uses or _leaves(result, chosen) for result in _results(node))
    outside -= sum(any(_is_inside(user, chosen) for user in result.consumers) for result in _results(node))
    for value in set(_images(node)):
        if value.producer in chosen:
            outside -= 1
        elif source_with_channels_last(value) is None:
            outside += 1
        elif len(value.uses) == 1 and not value.is_output:
            outside -= 1
    return outside


def _is_inside(user: Node, chosen: Collection[Node]) -> bool:
    """True for a reader that needs no Transpose after the set."""
    return user in chosen or _puts_last(user)


def _leaves(result: Value, chosen: Collection[Node]) -> bool:
    """True if a value needs a Transpose after the set."""
    return result.is_output or not all(_is_inside(user, chosen) for user in result.consumers)


def _border(chosen: dict[Node, None]) -> int:
    """Number of Transposes around the set, without those that merge with the one before them."""
    entering = {value for node in chosen for value in _images(node) if value.producer not in chosen}
    leaving = [value for node in chosen for value in _results(node) if _leaves(value, chosen)]
    return sum(not _merges(value) for value in entering) + len(leaving)


# ---------------------------------------------------------------------- conversion


def _convert(graph: Graph, chosen: list[Node]) -> None:
    last: dict[Value, Value] = {}
    for node in chosen:
        form, results = FORMS[node.domain, node.op], _results(node)
        inputs = _inputs(node, form, last)
        types = [permuted_type(value.type, channels_to_last(node.out.rank or 0)) for value in results]
        attrs = form.attrs(node)
        made = insert_node(form.op, inputs, len(types), types, node, attrs, domain=form.domain, name=node.name)
        last |= {old: value for old, value in zip(results, made.outputs) if value is not None}
    for node in reversed(chosen):
        for result in _results(node):
            _leave(graph, node, result, last[result])
        graph.remove_dead(node)


def _inputs(node: Node, form: NhwcForm, last: dict[Value, Value]) -> list[Value | None]:
    """The inputs of a node in its channels-last form. Images that enter the set are added to `last`."""
    inputs = list(node.inputs)
    for slot in form.images(node):
        value = inputs[slot]
        assert value is not None
        inputs[slot] = last[value] if value in last else last.setdefault(value, _entering(node, value))
    perm = list(channels_to_last(node.out.rank or 0))
    for slot in form.vectors:
        vector = node.input(slot)
        if vector is not None and vector.constant is not None and vector.constant.size == len(perm):
            inputs[slot] = constant(node, vector.constant.numpy()[perm])
    if form.axes is not None:
        axes = ints(inputs[form.axes]) or ()
        inputs[form.axes] = constant(node, np.array([perm.index(axis % len(perm)) for axis in axes], np.int64))
    return inputs


def _entering(node: Node, value: Value) -> Value:
    """A value with its channels last, created before a node."""
    perm = channels_to_last(node.out.rank or 0)
    if value.constant is not None:
        array = value.constant.numpy()
        if array.size == 1:
            return value
        return constant(node, np.transpose(array.reshape((1,) * (len(perm) - array.ndim) + array.shape), perm))
    return source_with_channels_last(value) or add_transpose(value, perm, node)


def _merges(value: Value) -> bool:
    """True if a Transpose of a value merges with the Transpose that produces it."""
    alone = producer_of(value, "Transpose") is not None and len(value.uses) == 1 and not value.is_output
    return alone or source_with_channels_last(value) is not None


def _leave(graph: Graph, node: Node, old: Value, last: Value) -> None:
    """Make the readers outside the set, which need channels first, read the new form of a node's output."""
    for user in old.consumers:
        if user.graph is graph and _takes_either(user, last) and not user.out.is_output:
            if user.op == "Transpose":
                graph.replace_uses(user.out, last)
                graph.remove(user)
            else:
                graph.set_input(user, 0, last)
    if old.is_used:
        graph.replace(old, add_transpose(last, channels_to_first(last.rank or 0), node))


def _puts_last(user: Node) -> bool:
    return transpose_perm(user) == channels_to_last(user.out.rank or 0) and not user.ep


def _takes_either(user: Node, last: Value) -> bool:
    """True for a Transpose that moves the channels to the end, and for a Flatten of one-pixel images."""
    if user.is_op("Transpose"):
        return _puts_last(user)
    pixels = (last.shape or ())[1:-1]
    return user.is_op("Flatten") and user.attr("axis", 1) == 1 and all(d == 1 for d in pixels) and not user.ep
