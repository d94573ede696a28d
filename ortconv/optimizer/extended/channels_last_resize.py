"""Moves Transposes past Resize and Upsample, which ONNX Runtime's CPU kernels compute with channels first or last.

Accelerators have them with channels first only, so this runs after nodes are assigned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from ortconv.ir.graph import Attribute, Floats, Graph, Ints, Node, Value
from ortconv.ir.kernels import CUBIC_LAST, first_release_of_form
from ortconv.ir.operands import constant_of
from ortconv.ir.resize import Resizing, has_sizes, resizing
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.transpose import optimize_transposes
from ortconv.optimizer.basic.transpose_handlers import HANDLERS, Push
from ortconv.optimizer.conditions import same_dim
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.cubic_resize import enlarges
from ortconv.optimizer.permutation import Perm, channels_to_first, inverse
from ortconv.optimizer.shapes import Element, dim_of, elements

NAME = "ChannelsLastResize"
OPERATORS = (("", "Resize"), ("", "Upsample"))

RANKS = {"nearest": (3, 4), "volume": (5,), "linear": (3, 4), "antialias": (4,), "cubic": (4,)}
"""The ranks for which each kernel has both layouts."""

FEW_PIXELS, FEW_DOUBLED = 256, 32
"""Up to this number of pixels in the result, a Resize takes less time than with two Transposes, whatever the layout."""

FEWEST_CHANNELS = {
    "nearest": (2, 2, 2), "volume": (8, 8, 8), "linear": (5, 4, 2), "antialias": (3, 3, 3), "cubic": (1, 1, 1),
}  # fmt: skip
"""Minimum number of channels for which each kernel is faster with channels last than between two Transposes: if it enlarges images,
if it shrinks them, and if it shrinks them to at most 1/SHRUNK of their pixels.
"""

SHRUNK = 6

QUADS = (4, DType.FLOAT)
"""Pixels of four floats, which Transpose moves with one instruction each."""

DOUBLED, SLOW_TO_TRANSPOSE = 48, 256
"""To double floats, channels first have a loop of their own. With two Transposes, it is slower only for at least this number of
channels, each with a multiple of this number of pixels: then accesses compete for the same lines of the cache.
"""


def resize_channels_last(graph: Graph, context: Context) -> int:
    """Transpose(Resize(Transpose(x)))  ->  Resize(x) with channels last; also Upsample, and with other nodes in between

    The time after over that before, in onnxruntime 1.32 on one thread, for float images of 32 x 32 pixels that double:

        channels                  3     4     6     8     16    64
        linear                    1.38  1.07  0.85  0.63  0.35  0.17
        linear with antialias     0.83  0.85  0.78  0.78  0.72  0.62
        nearest, half_pixel       0.93  1.07  0.94  1.03  0.89  0.44
        nearest, asymmetric       1.35  1.84  1.71  2.15  1.90  0.66
        cubic                     0.04  0.04  0.04  0.04  0.03  0.03

    Kinds above 1 stay as they are, except some near 1 that depend on the machine. Up to 256 pixels, most are below 1. The more an
    image shrinks, the more is saved: to 1/4 of its pixels, linear with 3 channels takes 1.06, to 1/16 0.6. Cubic Resizes move only
    if they enlarge, and for onnxruntime 1.22 and later. tests/bench/resize.py measures more.

    Counterpart: TransposeOptimizer
    Differs: only if it is faster, and only in exact forms; also for 1 or 3 dimensions, Upsample, and Resize with axes. ONNX Runtime
        moves all Transposes of images, and computes 8-bit images in fixed point.
    """
    if not context.nodes(graph, OPERATORS):
        return 0
    handler = partial(_resize, context)
    return optimize_transposes(graph, context, {**HANDLERS, **dict.fromkeys(OPERATORS, handler)}, NAME)


def _resize(context: Context, node: Node, slot: int, perm: Perm) -> Push | None:
    first, x, does = channels_to_first(len(perm)), node.inputs[0], resizing(node, elements)
    if x is None or perm not in (first, inverse(first)):
        return None
    axis = _channels(node, does, x, perm)
    if axis is None or not _has_both_layouts(does, node.out, context):
        return None
    if does.mode == "cubic" and not does.antialias and not enlarges(node, x):
        return None
    return _moved(node, perm) if _gains(does, x, node.out, axis) is (axis == 1) else None


# ---------------------------------------------------------------------- which


def _channels(node: Node, does: Resizing[Element], x: Value, perm: Perm) -> int | None:
    """The axis of the channels of a Resize behind Transpose<perm>; None if it is unknown, or may be interpolated."""
    rank = len(perm)
    if rank == 3:
        kept = [axis for axis in (1, 2) if _is_kept(node, does, x, axis)]
        return kept[0] if len(kept) == 1 and _is_kept(node, does, x, 0) else None
    axis = 1 if perm == channels_to_first(rank) else rank - 1
    known = does.mode == "nearest" or (_is_kept(node, does, x, axis) and _is_kept(node, does, x, 0))
    return axis if known else None


def _is_kept(node: Node, does: Resizing[Element], x: Value, axis: int) -> bool:
    """True if a Resize is known to leave an axis as it is."""
    stated = does.keeps(axis, dim_of(x, axis))
    return stated or (does.scales is None and same_dim(x.dim(axis), node.out.dim(axis)))


def _kind(does: Resizing[Element], rank: int) -> str:
    """The kernel that computes a Resize."""
    if does.mode == "nearest":
        return "volume" if rank > 4 else "nearest"
    return "antialias" if does.antialias else does.mode


def _has_both_layouts(does: Resizing[Element], out: Value, context: Context) -> bool:
    """True if a Resize has the same result in both layouts, in the release that must run it and in all later ones."""
    rank = out.rank or 0
    kind, crops = _kind(does, rank), does.coordinates == "tf_crop_and_resize"
    if rank not in RANKS[kind] or kind in ("nearest", "volume"):
        return rank in RANKS[kind]
    if out.dtype is not DType.FLOAT or (crops and kind != "linear"):
        return False
    release = context.settings.release
    return kind != "cubic" or release is None or first_release_of_form(CUBIC_LAST) <= release


def _gains(does: Resizing[Element], x: Value, out: Value, axis: int) -> bool | None:
    """True if a Resize is faster with channels last than with channels first between two Transposes; None if it is unknown."""
    kind, channels, pixels = _kind(does, x.rank or 0), x.dim(axis), _pixels(out, axis)
    if not isinstance(channels, int):
        return None
    if kind == "nearest" and _doubles(does, x, out, axis):
        slow = _pixels(x, axis) % SLOW_TO_TRANSPOSE == 0
        return pixels <= FEW_DOUBLED or (out.dtype is DType.FLOAT and channels >= DOUBLED and slow)
    if pixels <= FEW_PIXELS:
        return True
    ratio = _shrinkage(does, x, out, axis)
    fewest = FEWEST_CHANNELS[kind][(ratio >= 1) + (ratio >= SHRUNK)]
    return channels >= fewest and (kind != "nearest" or ratio >= 1 or (channels, out.dtype) != QUADS)


def _shrinkage(does: Resizing[Element], x: Value, out: Value, axis: int) -> float:
    """How many pixels become one. Images of unknown size count as large if the result has a fixed size, and as small if not."""
    if does.scales is not None and all(s > 0 for s in does.scales.values()):
        return 1 / math.prod(does.scales.values())
    before, after = _pixels(x, axis), _pixels(out, axis)
    return 0 if math.isinf(after) else before / max(after, 1)


def _pixels(image: Value, axis: int) -> float:
    """Number of pixels of each image; infinite if it is unknown."""
    dims = [d for i, d in enumerate(image.shape or (None,)) if i not in (0, axis)]
    return math.prod(d if isinstance(d, int) else math.inf for d in dims)


def _doubles(does: Resizing[Element], x: Value, out: Value, axis: int) -> bool:
    """True for a Resize that repeats every pixel twice in both directions."""
    if x.rank != 4 or does.antialias or (does.coordinates, does.rounding) != ("asymmetric", "floor"):
        return False
    return all(does.factor(i, x.dim(i), out.dim(i)) == 2 for i in range(x.rank) if i not in (0, axis))


# ---------------------------------------------------------------------- moving


def _moved(node: Node, perm: Perm) -> Push | None:
    """The changes with which a Resize reads the source of Transpose<perm>."""
    order = inverse(perm)
    attrs: dict[str, Attribute] = dict(node.attrs)
    if "axes" in attrs:
        attrs["axes"] = Ints(perm[a] for a in node.attr("axes", Ints()))
        return Push((0,), (perm,), attrs)
    if "scales" in attrs:
        scales = node.attr("scales", Floats())
        attrs["scales"] = Floats(scales[i] for i in order)
    constants: dict[int, Array] = {}
    picks: dict[int, Array] = {}
    for slot, places in _vectors(node, order).items():
        value = node.input(slot)
        const = constant_of(value)
        if value is None or value.static_shape == (0,):
            continue
        if const is not None and const.size == len(places):
            constants[slot] = const.numpy().reshape(-1)[places]
        elif const is None and value.static_shape == (len(places),):
            picks[slot] = places
        else:
            return None
    return Push((0,), (perm,), attrs, constants, picks)


def _vectors(node: Node, order: Perm) -> Mapping[int, Array]:
    """The inputs with one number for each axis, or two, with the new order of their elements."""
    if "scales" in node.attrs:
        return {}
    places = np.array(order, np.int64)
    if not has_sizes(node):
        return {1: places}
    crops = attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    region = {1: np.concatenate((places, places + len(order)))} if crops else {}
    return {**region, 2: places, 3: places}
