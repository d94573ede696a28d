"""Conditions of nodes on the shapes that they read: channels of weights, inner dimensions of products, images no smaller than
windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import axes_of, ints, stated_ints
from ortconv.ir.operators import MICROSOFT, Trait, named

Numbers = tuple[int | None, ...]
"""A shape; None for an unknown dimension."""

Shapes = Mapping[Value, Numbers]


class Extent(NamedTuple):
    """A dimension of a value, or, without an axis, its number of elements."""

    value: Value
    axis: int | None = None


class Demand(NamedTuple):
    """A condition: the size `have` of `place` must equal `want`, be at least `want`, or be a multiple of it. `partner`
    is the dimension whose size is `want`, or that of a window, from which `want` follows.
    """

    place: Extent
    have: int
    want: int
    kind: str = "equal"
    partner: Extent | None = None

    @property
    def is_met(self) -> bool:
        if self.kind == "at least":
            return self.have >= self.want
        return self.have % self.want == 0 if self.kind == "multiple" else self.have == self.want


DemandsOf = Callable[[Node, Shapes], Iterator[Demand]]


def demands(node: Node, shapes: Shapes, held: Mapping[Value, Sequence[int]] = MappingProxyType({})) -> Iterator[Demand]:
    """Every demand of a node for which both sizes are known, met or not. The order depends only on the node.

    `held` maps inputs that contain shapes to their elements.
    """
    if node.domain == "" and node.op in TO_SHAPE:
        value = node.input(1)
        target = held[value] if value is not None and value in held else _target(node, shapes)
        if target is not None:
            yield from TO_SHAPE[node.op](node, target, shapes)
    elif found := ROWS.get(node.domain, {}).get(node.op):
        yield from found(node, shapes)


def _shape(node: Node, slot: int, shapes: Shapes) -> Numbers | None:
    value = node.input(slot)
    return None if value is None else shapes.get(value)


def _dim(node: Node, slot: int, axis: int, shapes: Shapes) -> int | None:
    shape = _shape(node, slot, shapes)
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _wanted(node: Node, slot: int, axis: int, want: int, shapes: Shapes, kind: str = "equal") -> Iterator[Demand]:
    """A dimension of an input must be `want`."""
    value, have = node.input(slot), _dim(node, slot, axis, shapes)
    if value is not None and have is not None:
        yield Demand(Extent(value, axis), have, want, kind)


def _same(node: Node, a: tuple[int, int], b: tuple[int, int], shapes: Shapes, factor: int = 1) -> Iterator[Demand]:
    """Dimension a = (slot, axis) must equal dimension b times a factor."""
    have, want = _dim(node, *a, shapes), _dim(node, *b, shapes)
    first, second = node.input(a[0]), node.input(b[0])
    if have is not None and want is not None and first is not None and second is not None:
        yield Demand(Extent(first, a[1]), have, want * factor, partner=Extent(second, b[1]) if factor == 1 else None)


def _broadcast(a: Value | None, b: Value | None, shapes: Shapes, skip: int = 0) -> Iterator[Demand]:
    """Aligned dimensions must be equal or 1, except for the last `skip` ones."""
    x, y = (None if v is None else shapes.get(v) for v in (a, b))
    if x is None or y is None or a is None or b is None:
        return
    for axis in range(-min(len(x), len(y)), -skip):
        p, q, first, second = x[axis], y[axis], Extent(a, axis), Extent(b, axis)
        if p is not None and q is not None and not _stretches(first, p, second, q):
            yield Demand(second, q, p, partner=first) if a.const is not None else Demand(first, p, q, partner=second)


def _stretches(first: Extent, p: int, second: Extent, q: int) -> bool:
    """True if one of two sizes is 1 and is meant to broadcast. A size that the model leaves free is not, beside a constant."""
    if _may_grow(first, p) and second.value.const is not None:
        return False
    return 1 in (p, q) and not (_may_grow(second, q) and first.value.const is not None)


def _may_grow(place: Extent, size: int) -> bool:
    """True if the size is 1 but the model allows others: then it is not meant to broadcast against a constant."""
    return size == 1 and not isinstance(place.value.dim(place.axis or 0), int)


def _elementwise(node: Node, shapes: Shapes) -> Iterator[Demand]:
    for value in node.inputs[1:]:
        yield from _broadcast(node.inputs[0], value, shapes)
    if len(node.inputs) == 3:
        yield from _broadcast(node.inputs[1], node.inputs[2], shapes)


def _windows(node: Node, shapes: Shapes, slot: int | None = None) -> Iterator[Demand]:
    """The padded image must be at least as large as the window, which is that of the weights in a slot, if they are given."""
    image, shape = node.input(0), _shape(node, 0, shapes)
    if image is None or shape is None or node.attr("auto_pad", "NOTSET").startswith("SAME"):
        return
    weights = None if slot is None else node.input(slot)
    kernel = node.attr("kernel_shape", ()) if slot is None else (_static(_shape(node, slot, shapes)) or ())[2:]
    count = len(kernel)
    pads = node.attr("pads", ()) or (0,) * 2 * count
    dilations = node.attr("dilations", ()) or (1,) * count
    if len(pads) < 2 * count or len(dilations) < count:  # an invalid node: its run says so
        return
    for i in range(min(count, len(shape) - 2)):
        have = shape[2 + i]
        if have is not None:
            room = (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + count]
            partner = None if weights is None or dilations[i] != 1 else Extent(weights, 2 + i)
            yield Demand(Extent(image, 2 + i), have, max(room, 1), "at least", partner)


def _conv(node: Node, shapes: Shapes) -> Iterator[Demand]:
    slot = 3 if node.op == "QLinearConv" else 1
    yield from _same(node, (0, 1), (slot, 1), shapes, node.attr("group", 1))
    if node.op == "Conv":
        yield from _same(node, (1, 0), (2, 0), shapes)
    yield from _windows(node, shapes, slot)


def _conv_transpose(node: Node, shapes: Shapes) -> Iterator[Demand]:
    yield from _same(node, (0, 1), (1, 0), shapes)
    channels, group = node.dim(2, 0), node.attr("group", 1)
    if isinstance(channels, int):
        yield from _wanted(node, 1, 1, channels // max(group, 1), shapes)
    else:
        yield from _same(node, (2, 0), (1, 1), shapes, group)


def _matmul(node: Node, shapes: Shapes) -> Iterator[Demand]:
    slot = 3 if node.op == "QLinearMatMul" else 1
    x, y = _shape(node, 0, shapes), _shape(node, slot, shapes)
    if not x or not y:
        return
    yield from _same(node, (0, -1), (slot, -2 if len(y) > 1 else -1), shapes)
    if len(x) > 2 and len(y) > 2:
        yield from _broadcast(node.input(0), node.input(slot), shapes, 2)


def _packed(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """MatMulNBits: the inner dimension is given by an attribute."""
    if "K" in node.attrs:
        yield from _wanted(node, 0, -1, node.attr("K", 0), shapes)


def _gemm(node: Node, shapes: Shapes) -> Iterator[Demand]:
    rows, columns = (1 if node.attr("transA", 0) else 0), (0 if node.attr("transB", 0) else 1)
    yield from _same(node, (0, 1 - rows), (1, 1 - columns), shapes)
    bias = _shape(node, 2, shapes) or ()
    for axis, other in ((-1, (1, columns)), (-2, (0, rows))):
        if len(bias) >= -axis and bias[axis] != 1:
            yield from _same(node, other, (2, axis), shapes)


def _einsum(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """Dimensions with the same label must be equal."""
    terms = node.attr("equation", "").replace(" ", "").split("->")[0].split(",")
    first: dict[str, tuple[int, int]] = {}
    for slot, term in enumerate(terms if "." not in "".join(terms) else ()):
        for axis, label in enumerate(term):
            if label in first:
                yield from _same(node, (slot, axis), first[label], shapes)
            first.setdefault(label, (slot, axis))


def _concat(node: Node, shapes: Shapes) -> Iterator[Demand]:
    rank = max((len(_shape(node, slot, shapes) or ()) for slot in range(len(node.inputs))), default=0)
    joined = node.attr("axis", 0) % max(rank, 1)
    known: dict[int, int] = {}  # the first slot in which an axis has a known size
    for slot, axis in product(range(len(node.inputs)), range(rank)):
        is_known = axis != joined and _dim(node, slot, axis, shapes) is not None
        if is_known and (first := known.setdefault(axis, slot)) != slot:
            yield from _same(node, (slot, axis), (first, axis), shapes)


def _labels(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """Labels must have the shape of the scores without the class dimension."""
    yield from _same(node, (1, 0), (0, 0), shapes)
    for axis in range(1, len(_shape(node, 1, shapes) or ())):
        yield from _same(node, (1, axis), (0, axis + 1), shapes)


def _layer_norm(node: Node, shapes: Shapes) -> Iterator[Demand]:
    for slot in (1, 2):
        yield from _broadcast(node.input(0), node.input(slot), shapes)


def _recurrent(node: Node, shapes: Shapes) -> Iterator[Demand]:
    yield from _same(node, (0, 2), (1, 2), shapes)
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    hidden = node.attr("hidden_size", 0)
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op] * hidden
    for slot, shape in ((1, (directions, rows)), (2, (directions, rows, hidden)), (3, (directions, 2 * rows))):
        for axis, want in enumerate(shape):
            yield from _wanted(node, slot, axis, want, shapes) if want else ()
    states = ((0, 0), (1, 0), (2, 2)) if node.attr("layout", 0) else ((1, 0), (0, 1), (2, 2))
    for slot, (axis, other) in product((5, 6), enumerate(states)):
        yield from _same(node, (slot, axis), other, shapes)


def _target(node: Node, shapes: Shapes) -> Sequence[int] | None:
    """The elements of a constant target; instead of a computed target of a Reshape, the inferred shape of the output."""
    target, made = ints(node.input(1)), shapes.get(node.out, ())
    return _static(made) if target is None and node.op == "Reshape" and made and 0 not in made else target


def _reshape_to(node: Node, target: Sequence[int], shapes: Shapes) -> Iterator[Demand]:
    value, numbers = node.input(0), _static(_shape(node, 0, shapes))
    if value is None or numbers is None:
        return
    kept = numbers if not node.attr("allowzero", 0) else []
    target = [n or size for n, size in zip_longest(target, kept[: len(target)], fillvalue=0)]
    known, open_count = math.prod(n for n in target if n != -1), target.count(-1)
    if open_count > 1:
        yield Demand(Extent(value), open_count, 1)
    elif known > 0:
        yield Demand(Extent(value), math.prod(numbers), known, "multiple" if open_count else "equal")


def _static(shape: Numbers | None) -> list[int] | None:
    """The dimensions; None unless all are known."""
    known = [d for d in shape or () if d is not None]
    return None if shape is None or len(known) < len(shape) else known


def _split(node: Node, shapes: Shapes) -> Iterator[Demand]:
    parts = stated_ints(node, "split")
    count = node.attr("num_outputs", 0) or len(node.outputs)
    want, kind = (sum(parts), "equal") if parts else (count, "multiple")
    yield from _wanted(node, 0, node.attr("axis", 0), want, shapes, kind)


FEW_INDICES = 64
"""Up to this number, the indices of a Gather are read."""


def _gather(node: Node, shapes: Shapes) -> Iterator[Demand]:
    chosen = node.constant(1)
    if chosen is not None and 0 < chosen.size <= FEW_INDICES:
        least = max(max(n + 1, -n) for n in chosen.numpy().reshape(-1).tolist())
        yield from _wanted(node, 0, node.attr("axis", 0), least, shapes, "at least")


def _scatter_elements(node: Node, shapes: Shapes) -> Iterator[Demand]:
    for axis in range(len(_shape(node, 1, shapes) or ())):
        yield from _same(node, (2, axis), (1, axis), shapes)


def _scatter_nd(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """Updates [...indices without the last axis, ...data without the axes that an index consists of]."""
    leading, depth = len(_shape(node, 1, shapes) or ()) - 1, _dim(node, 1, -1, shapes)
    for axis in range(leading):
        yield from _same(node, (2, axis), (1, axis), shapes)
    if depth is not None:
        for axis in range(depth, len(_shape(node, 0, shapes) or ())):
            yield from _same(node, (0, axis), (2, leading + axis - depth), shapes)


def _frames(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """STFT: the signal is at least as long as a frame."""
    length = ints(node.input(3)) or [_dim(node, 2, 0, shapes) or 1]
    yield from _wanted(node, 0, 1, length[0], shapes, "at least")


def _pad(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """An axis that is reflected is longer than its pads; one that negative pads crop keeps an element."""
    pads = stated_ints(node, "pads") or ()
    count = len(pads) // 2
    reflects = node.attr("mode", "constant") == "reflect"
    for axis, before, after in zip(ints(node.input(3), tuple(range(count))) or (), pads, pads[count:]):
        want = max(1 - before - after, 1 + max(before, after) if reflects else 0)
        if want > 1:
            yield from _wanted(node, 0, axis, want, shapes, "at least")


def _squeeze(node: Node, shapes: Shapes) -> Iterator[Demand]:
    for axis in axes_of(node) or ():
        yield from _wanted(node, 0, axis, 1, shapes)


def _blocks(node: Node, shapes: Shapes) -> Iterator[Demand]:
    block = max(node.attr("blocksize", 1), 1)
    for axis in (1,) if node.op == "DepthToSpace" else (2, 3):
        yield from _wanted(node, 0, axis, block * block if axis == 1 else block, shapes, "multiple")


def _expand_to(node: Node, target: Sequence[int], shapes: Shapes) -> Iterator[Demand]:
    value, shape = node.input(0), _shape(node, 0, shapes)
    if value is None or shape is None:
        return
    for axis in range(-min(len(shape), len(target)), 0):
        have, want = shape[axis], target[axis]
        if have not in (None, 1) and want > 1:
            yield Demand(Extent(value, axis), have or 0, want)


def _attention(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """com.microsoft's Attention: input [batch, length, width], weights [width, hidden], mask [batch, past length + length], past
    [2, batch, heads, past length, head size].
    """
    heads = node.attr("num_heads", 1) or 1
    sizes = node.attr("qkv_hidden_sizes", ())
    yield from _wanted(node, 1, 1, sum(sizes) or 3 * heads, shapes, "equal" if sizes else "multiple")
    for a, b in (((0, -1), (1, 0)), ((2, 0), (1, 1)), ((4, 1), (0, 0))):
        yield from _same(node, a, b, shapes)
    hidden = sizes[1] if len(sizes) > 1 else (_dim(node, 1, 1, shapes) or 0) // 3
    for axis, want in ((0, 2), (2, heads), (4, hidden // heads or 1)):
        yield from _wanted(node, 4, axis, want, shapes)
    yield from _attention_mask(node, shapes)


def _attention_mask(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """A mask of rank 2 covers the past and the present keys."""
    length, past = _dim(node, 0, 1, shapes), _dim(node, 4, 3, shapes) if node.input(4) is not None else 0
    if length is not None and past is not None and len(_shape(node, 3, shapes) or ()) == 2:
        yield from _same(node, (3, 0), (0, 0), shapes)
        yield from _wanted(node, 3, 1, length + past, shapes)


def _heads(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """The past of com.microsoft's other attention operators: [..., heads, length, head size]. Queries of GroupQueryAttention are
    packed with keys and values if there is no input for keys. Its past may be a buffer for a window.
    """
    heads = node.attr("num_heads", 0)
    kept = node.attr("kv_num_heads", heads)
    is_packed = node.op == "GroupQueryAttention" and node.input(1) is None
    hidden, parts = _dim(node, 0, -1, shapes), heads + 2 * kept if is_packed else heads
    for slot in (6, 7) if node.op == "MultiHeadAttention" else (3, 4):
        if heads and hidden and hidden >= parts > 0:
            yield from _wanted(node, slot, -3, kept, shapes)
            yield from _wanted(node, slot, -1, hidden // parts, shapes)
        if node.attr("sliding_window_cache", 0):
            yield from _wanted(node, slot, -2, node.attr("local_window_size", 1), shapes, "at least")


def _condition(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """The condition of an If has one element."""
    for axis in range(len(_shape(node, 0, shapes) or ())):
        yield from _wanted(node, 0, axis, 1, shapes)


def _carried(node: Node, shapes: Shapes) -> Iterator[Demand]:
    """The inputs of a Loop or Scan have the shapes that its body declares, except along the axes on which a Scan iterates."""
    inputs = node.subgraphs[0].inputs
    if len(inputs) != len(node.inputs):
        return
    scanned = node.attr("num_scan_inputs", 0)
    axes = (None,) * (len(inputs) - scanned) + (node.attr("scan_input_axes", ()) or (0,) * scanned)
    for slot, (inner, axis) in enumerate(zip(inputs, axes)):
        wanted = list(inner.shape or ())
        if axis is not None:
            wanted.insert(axis if axis >= 0 else len(wanted) + 1 + axis, None)
        for i, want in enumerate(wanted):
            if isinstance(want, int):
                yield from _wanted(node, slot, i, want, shapes)


TO_SHAPE = {"Reshape": _reshape_to, "Expand": _expand_to}
"""Demands of operators whose input 1 is a shape with these elements."""

ROWS: dict[str, dict[str, DemandsOf]] = {
    "": {
        **dict.fromkeys(named(Trait.BROADCASTS), _elementwise),
        **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
        "ConvTranspose": _conv_transpose,
        **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _windows),
        **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
        "Gemm": _gemm,
        "Einsum": _einsum,
        "Concat": _concat,
        **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _labels),
        **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), lambda node, shapes: _same(node, (0, 1), (1, 0), shapes)),
        **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"), _layer_norm),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
        "Split": _split,
        "Gather": _gather,
        "Squeeze": _squeeze,
        **dict.fromkeys(("Scatter", "ScatterElements"), _scatter_elements),
        "ScatterND": _scatter_nd,
        "STFT": _frames,
        "Pad": _pad,
        **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
        "If": _condition,
        **dict.fromkeys(("Loop", "Scan"), _carried),
    },
    MICROSOFT: {
        **dict.fromkeys(named(Trait.BROADCASTS, domain=MICROSOFT), _elementwise),
        **dict.fromkeys(("FusedConv", "QLinearConv"), _conv),
        "MatMulNBits": _packed,
        "SimplifiedLayerNormalization": _layer_norm,
        "Attention": _attention,
        **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), _heads),
    },
}  # fmt: skip
"""Demands by domain and operator."""
