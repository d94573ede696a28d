"""Convolutions, pooling, and moves between depth and space in forms that NNAPI supports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Node
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.tensor import Array
from ortconv.ir.types import INT32_MAX
from ortconv.optimizer import standard_forms
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import integers, is_float, op, reshape, shape_of, sliced, transpose
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import with_axes

IMAGE = 2
"""Number of spatial axes of an image."""


_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


@rule("Conv1DToConv2D", P("Conv", "x", C("w"), "b?"), P(_POOLS, "x"))
def images_of_one_row(m: Match) -> Replacement:
    """Conv(x, w, b) along one axis  ->  Squeeze(Conv(Unsqueeze(x), w, b)) on images of one row; also pooling

    Opt-in: two more nodes; useful only if an accelerator supports only images.
    """
    node = m.root
    if not is_float(m.x) or m.x.rank != 3 or len(node.outputs) != 1 or not _states_one_axis(node):
        return None
    inputs: list[NewInput] = [with_axes("Unsqueeze", m.x, (2,), m.graph)]
    if node.op == "Conv":
        weights = m.tensor("w").numpy()
        inputs += [np.expand_dims(weights, 2), *([m.b] if m.b is not None else [])]
    return with_axes("Squeeze", New(node.op, inputs, attributes_of_one_row(node), like=node), (2,), m.graph)


def _states_one_axis(node: Node) -> bool:
    """False for the attributes of images, which PyTorch's exporter states even if the batch is missing. Such models are invalid."""
    single = all(len(node.attr(name, Ints((1,)))) == 1 for name in ("kernel_shape", "strides", "dilations"))
    return single and len(node.attr("pads", Ints((0, 0)))) == 2


def attributes_of_one_row(node: Node) -> dict[str, Attribute]:
    """The attributes of a convolution or pooling along one axis, on images of one row."""
    attrs: dict[str, Attribute] = dict(node.attrs)
    for name in ("kernel_shape", "strides", "dilations"):
        if name in attrs:
            attrs[name] = Ints((1, *node.attr(name, Ints())))
    if "pads" in attrs:
        begin, end = node.attr("pads", Ints((0, 0)))
        attrs["pads"] = Ints((0, begin, 0, end))
    return attrs


MOST_GROUPS = 64
"""Maximum number of convolutions into which one is split."""


@rule("ConvToGroups", P("Conv", "x", C("w"), C("b", optional=True)))
def one_conv_per_group(m: Match) -> Replacement:
    """Dilated Conv with groups of several channels  ->  Concat of one Conv per group, each on a Slice of x

    Opt-in: more nodes; useful only if an accelerator does not support dilation with groups.
    """
    node, weights = m.root, m.tensor("w").numpy()
    groups = node.attr("group", 1)
    dilated = any(d != 1 for d in node.attr("dilations", Ints()))
    if not dilated or not 1 < groups <= MOST_GROUPS or weights.shape[1] == 1:
        return None
    if not is_float(m.x) or m.graph.opset() < 10:
        return None
    attrs = dict(node.attrs)
    del attrs["group"]
    channels, filters = weights.shape[1], weights.shape[0] // groups
    parts: list[NewInput] = []
    for g in range(groups):
        x = sliced(m.x, (g * channels,), ((g + 1) * channels,), (1,))
        own = slice(g * filters, (g + 1) * filters)
        bias = [] if m.b is None else [m.tensor("b").numpy()[own]]
        parts.append(New("Conv", [x, weights[own], *bias], attrs))
    return op("Concat", *parts, axis=1)


class _Axis(NamedTuple):
    """One spatial axis of a ConvTranspose: input and output size, dilated kernel size, padding at the start, and taps."""

    size: int
    out: int
    kernel: int
    begin: int
    taps: int

    def missing(self, stride: int) -> int:
        """Number of rows to add at the end, in steps of the stride, so that the wanted output lies inside."""
        return max(0, -(-(self.begin + self.out - (self.size + self.taps - 1) * stride) // stride))

    def is_whole(self, stride: int) -> bool:
        """True if all rows that are computed belong to the output."""
        return self.begin == 0 and self.out == (self.size + self.taps - 1 + self.missing(stride)) * stride


def _axes(node: Node, weights: Array, stride: int) -> list[_Axis] | None:
    """The spatial axes of a ConvTranspose in float32; None if a size is unknown."""
    source, result = shape_of(node.inputs[0]), shape_of(node.out)
    rank = weights.ndim - 2
    if source is None or result is None or len(source) != rank + 2:
        return None
    dilations, extra = (node.attr(name, Ints((d,) * rank)) for name, d in (("dilations", 1), ("output_padding", 0)))
    found = []
    for i in range(rank):
        kernel = (weights.shape[2 + i] - 1) * dilations[i] + 1
        size, out = source[2 + i], result[2 + i]
        begin = _begin(node, i, rank, stride * (size - 1) + extra[i] + kernel - out)
        found.append(_Axis(size, out, kernel, begin, -(-kernel // stride)))
    return None if any(a.begin < 0 for a in found) else found


def _begin(node: Node, axis: int, rank: int, total: int) -> int:
    """The padding at the start of an axis: that of the attribute, or the first half of the total."""
    pads = spatial_pads(node, rank) if "output_shape" not in node.attrs else None
    if pads is not None:
        return pads[axis]
    return total // 2 if node.attr("auto_pad", "NOTSET") == "SAME_UPPER" else total - total // 2


_ROW = _Axis(size=1, out=1, kernel=1, begin=0, taps=1)
"""The first axis of an image of one row."""


def _phases(weights: Array, axes: Sequence[_Axis], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Filters of a Conv that computes each phase of a ConvTranspose's output as separate channels, phases first."""
    channels, filters = weights.shape[:2]
    high, wide = axes
    spread = np.zeros((channels, filters, high.taps * strides[0], wide.taps * strides[1]), np.float32)
    spread[:, :, : high.kernel : dilations[0], : wide.kernel : dilations[1]] = weights
    split = spread.reshape(channels, filters, high.taps, strides[0], wide.taps, strides[1])[:, :, ::-1, :, ::-1]
    return split.transpose(3, 5, 1, 0, 2, 4).reshape(math.prod(strides) * filters, channels, high.taps, wide.taps)


@rule("ConvTransposeToConv", P("ConvTranspose", "x", C("w"), C("b", optional=True)))
def conv_transpose(m: Match) -> Replacement:
    """ConvTranspose<stride s>(x, w, b)  ->  Slice(DepthToSpace<s>(Conv(x, w', b'))); w' has one filter for each of s * s phases

    Along one axis, the Conv is one of images of one row, and a Transpose of its phases replaces DepthToSpace. If the kernel size
    is not a multiple of s, the filters are padded with zeros; the results are then equal for finite x only.

    Opt-in: more nodes, and more products if filters are padded; useful only if an accelerator has no ConvTranspose.
    """
    node, weights = m.root, m.tensor("w").numpy()
    rank = weights.ndim - 2
    strides, dilations = (node.attr(name, Ints((1,) * rank)) for name in ("strides", "dilations"))
    axes = _axes(node, weights, strides[0]) if rank in (1, IMAGE) and len({*strides}) == 1 else None
    if axes is None or node.attr("group", 1) != 1 or m.graph.opset() < 10:
        return None
    y = _computed_phases(m, [_ROW] * (IMAGE - rank) + axes, strides[0], dilations)
    if all(a.is_whole(strides[0]) for a in axes):
        return y
    return sliced(y, [a.begin for a in axes], [a.begin + a.out for a in axes], range(2, 2 + rank))


def _computed_phases(m: Match, axes: list[_Axis], stride: int, dilations: Sequence[int]) -> New:
    """The phases of a ConvTranspose by a Conv, in their places."""
    weights, is_row = m.tensor("w").numpy(), len(dilations) < IMAGE
    strides = (1, stride) if is_row else (stride, stride)
    if is_row:
        weights, dilations = np.expand_dims(weights, 2), (1, *dilations)
    added = [a.missing(stride) for a in axes]
    pads = Ints((*(a.taps - 1 for a in axes), *(a.taps - 1 + more for a, more in zip(axes, added))))
    filters = np.ascontiguousarray(_phases(weights, axes, strides, dilations))
    bias = [] if m.b is None else [np.tile(m.tensor("b").numpy(), math.prod(strides))]
    x: NewInput = with_axes("Unsqueeze", m.x, (2,), m.graph) if is_row else m.x
    y = New("Conv", [x, filters, *bias], {"kernel_shape": Ints(filters.shape[2:]), "pads": pads}, like=m.root)
    if is_row:
        width, channels = axes[1].size + axes[1].taps - 1 + added[1], len(filters) // stride
        phases = transpose(reshape(y, (-1, stride, channels, width)), (0, 2, 3, 1))
        return reshape(phases, (-1, channels, width * stride))
    return op("DepthToSpace", y, blocksize=stride) if stride > 1 else y


_CONV = P("Conv", "x", C("w"), C("b", optional=True), name="conv")


@rule("DepthToSpaceToDCR", P("DepthToSpace", _CONV), P("DepthToSpace", "x"))
def depth_first(m: Match) -> Replacement:
    """DepthToSpace<CRD>(Conv(x, w, b))  ->  DepthToSpace<DCR>(Conv(x, w', b')), with reordered filters; without a Conv,
    a Gather reorders the channels

    Opt-in: useful only for an accelerator that supports only one mode.
    """
    block, channels = m.root.attr("blocksize", 1), m.root.dim(0, 1)
    conv = m.optional_node("conv")
    if m.root.attr("mode", "DCR") != "CRD" or not is_float(m.x) or not isinstance(channels, int):
        return None
    if conv is not None and conv.attr("group", 1) != 1:
        return None
    order = np.arange(channels).reshape(-1, block * block).T.reshape(-1)  # the channels of CRD, in the order of DCR
    if conv is None:
        source = op("Gather", m.x, order.astype(np.int64), axis=1)
    else:
        parts = [m.tensor(name).numpy()[order] for name in ("w", "b") if m.optional(name) is not None]
        source = New("Conv", [m.x, *parts], like=conv)
    return New("DepthToSpace", [source], {"blocksize": block, "mode": "DCR"}, like=m.root)


@rule("SpaceToDepthToSlices", P("SpaceToDepth", "x"))
def space_to_depth(m: Match) -> Replacement:
    """SpaceToDepth<b>(x)  ->  Concat of b * b Slices of every b-th row and column

    Counterpart: none: SliceConcatToSpaceToDepthFusion is the reverse
    """
    block = m.root.attr("blocksize", 1)
    if not is_float(m.x) or m.x.rank != 4 or m.graph.opset() < 10 or not 1 < block <= math.isqrt(MOST_GROUPS):
        return None
    ends = [d if isinstance(d, int) else INT32_MAX for d in (m.x.dim(2), m.x.dim(3))]
    phases = [(i, j) for i in range(block) for j in range(block)]
    return op("Concat", *(sliced(m.x, phase, ends, (2, 3), (block, block)) for phase in phases), axis=1)


@rule("PoolToPlainPool", P(("MaxPool", "AveragePool"), "x"))
def plain_pool(m: Match) -> Replacement:
    """MaxPool or AveragePool with ceil_mode, count_include_pad or storage_order  ->  the same without it, with padding if needed

    Opt-in: useful only for an accelerator that has only the plain form.
    """
    node = m.root
    unneeded = {k for k in ("ceil_mode", "count_include_pad", "storage_order") if node.attr(k, 0)}
    kernel, pads = node.attr("kernel_shape", ()), spatial_pads(node, IMAGE)
    if not unneeded or len(node.outputs) != 1 or len(kernel) != IMAGE or pads is None:
        return None
    ends = _ends(m, kernel, pads)
    if ends is None:
        return None
    attrs = {k: v for k, v in node.attrs.items() if k not in (*unneeded, "auto_pad", "pads")}
    x: NewInput = m.x
    padded = (*pads[:IMAGE], *ends)
    if "count_include_pad" in unneeded and any(padded):
        if tuple(ends) != tuple(pads[IMAGE:]) or m.graph.opset() < 11:
            return None
        x = op("Pad", x, integers((0, 0, *pads[:IMAGE], 0, 0, *ends)), 0)
        padded = (0,) * len(padded)
    return New(node.op, [x], {**attrs, "pads": Ints(padded)}, like=node)


def _ends(m: Match, kernel: Sequence[int], pads: Sequence[int]) -> list[int] | None:
    """The padding at the end of both axes up to which windows reach; None if a size is unknown."""
    source, result = shape_of(m.x), shape_of(m.root.out)
    if source is None or result is None:
        return None
    strides, dilations = (m.root.attr(name, Ints((1, 1))) for name in ("strides", "dilations"))
    ends = []
    for i in range(IMAGE):
        last = (result[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        ends.append(max(pads[2 + i], last - source[2 + i] - pads[i]))
    return ends


@rule("FusedConvToConv", P("FusedConv", "x", "w", "b?", "z?", domain=MICROSOFT))
def fused_conv(m: Match) -> Replacement:
    """FusedConv(x, w, b, z)  ->  Conv(x, w, b) + z and its activation

    Counterpart: none: ConvActivationFusion and ConvAddActivationFusion are the reverse
    Opt-in: undoes a fusion in models that were optimized for the CPU earlier.
    """
    return standard_forms.fused_conv(m.root)
