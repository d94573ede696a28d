"""Blocked channels (NCHWc) for float32 convolutions on x86-64, and for the operators between them.

The result depends on the block length of this machine's CPU, so it is produced only for `--target_platform amd64`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.nchwc import DOMAIN, block_length, filters_to_blocks, padded
from ortconv.ir.operands import constant_of, ints, own_producer
from ortconv.ir.operators import MICROSOFT, Trait, named
from ortconv.ir.resize import Resizing, has_sizes, resizing
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.conditions import array_of, channels_of, equal_shapes, without_absent
from ortconv.optimizer.engine import Context, constant, insert_node
from ortconv.optimizer.extended.fuse_conv import ACTIVATION_PARAMETERS, activation_attributes
from ortconv.optimizer.insertion import insert
from ortconv.optimizer.permutation import channels_to_last, source_with_channels_last, transpose_perm

NAME = "NchwcTransformer"
TO_LAST = channels_to_last(4)
CONV_ATTRIBUTES = (
    "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "activation", "activation_params",
)  # fmt: skip
STEP = 4
"""An image converted to blocks must have a multiple of this number of channels."""


Attributes = dict[str, Attribute]
Inputs = list[Value | None]


class Blocked(NamedTuple):
    """A value with blocked channels, and its shape without the padding channels of the last block."""

    value: Value
    shape: Shape

    @property
    def channels(self) -> int:
        channels = self.shape[1]
        assert isinstance(channels, int)
        return channels


class BlockedValues:
    """The blocked values of a graph; creates more of them on demand."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.block = block_length()
        self.of: dict[Value, Blocked] = {}
        self.replaced: list[Node] = []
        self.constants: dict[tuple[Value, str], Value] = {}

    def make(
        self, node: Node, op: str, inputs: Inputs, attrs: Attributes, domain: str = DOMAIN, shape: Shape | None = None
    ) -> None:
        """Replace a node by an operator on blocks. `shape` is the shape of its result if it is known more exactly."""
        shape = shape or node.out.shape
        assert shape is not None
        self.put(node, self.add(node, op, inputs, attrs, self.filled(shape), domain), shape)

    def put(self, node: Node, value: Value, shape: Shape) -> None:
        """Replace the result of a node by a blocked value."""
        self.of[node.out] = Blocked(value, shape)
        self.replaced.append(node)

    def add(self, node: Node, op: str, inputs: Inputs, attrs: Attributes, shape: Shape, domain: str = "") -> Value:
        """Insert a new node before another one, with a name derived from it. Return its output."""
        name = self.graph.fresh(node.name or op)
        return insert(op, inputs, TensorType(DType.FLOAT, shape), node, attrs, domain=domain, name=name)

    def filled(self, shape: Shape) -> Shape:
        channels = shape[1]
        assert isinstance(channels, int)
        return (shape[0], padded(channels, self.block), *shape[2:])

    def may_enter(self, value: Value) -> bool:
        """True for a value that is a blocked image, or can be converted to one."""
        return value in self.of or (_is_image(value) and _channels(value) % STEP == 0)

    def entering(self, value: Value | None, node: Node) -> Value | None:
        """A blocked image. If there is none yet, it is created before the node; None if that is impossible."""
        if value is None or value in self.of or not self.may_enter(value):
            return self.of[value].value if value in self.of else None
        shape = value.shape or ()
        last = source_with_channels_last(value) if own_producer(value, "Transpose") is not None else None
        attrs: Attributes = {"channels_last": int(last is not None)}
        made = self.add(node, "ReorderInput", [last or value], attrs, self.filled(shape), DOMAIN)
        self.of[value] = Blocked(made, shape)
        return made

    def constant(self, near: Node, source: Value, kind: str, make: Callable[[], Array]) -> Value:
        """A constant derived from another one, created once for all nodes that need it."""
        key = source, kind
        if key not in self.constants:
            self.constants[key] = constant(near, make())
        return self.constants[key]


def _is_image(value: Value | None) -> bool:
    """True for float32 images: rank 4, a known number of channels, and not constant."""
    return value is not None and value.constant is None and value.dtype is DType.FLOAT and _channels(value) > 0


def _channels(image: Value) -> int:
    """The number of channels of an image; 0 if the value is none, or the number is unknown. onnxruntime divides by the number of
    rows of a blocked pool, so an empty image is none.
    """
    return channels_of(image) if image.rank == 4 and 0 not in (image.shape or ()) else 0


def _makes_images(node: Node) -> bool:
    return all(v is None or (v.dtype is DType.FLOAT and _channels(v)) for v in node.outputs)


# ---------------------------------------------------------------------- operators


class ConvForm(NamedTuple):
    """The form in which a blocked convolution reads its input: an image in ONNX's layout, one channel per filter, or blocks."""

    direct: bool = False
    depthwise: bool = False


def _conv(node: Node, blocks: BlockedValues) -> bool:
    x, w, b, z = (node.input(i) for i in range(4))
    filters = constant_of(w)
    if x is None or w is None or filters is None or not _fits(node, x, filters, b):
        return False
    form = _conv_form(node, x, filters.shape, blocks)
    if form is None or not (z is None or blocks.may_enter(z)):
        return False
    image, total = x if form.direct else blocks.entering(x, node), blocks.entering(z, node)
    if image is None:
        return False
    inner = not form.direct and not form.depthwise
    block = partial(filters_to_blocks, array_of(w), blocks.block, inputs=inner)
    weights = blocks.constant(node, w, f"filters {inner}", block)
    inputs = without_absent([image, weights, _filled_bias(node, b, blocks), total])
    group = {"group": padded(node.attr("group", 1), blocks.block)} if form.depthwise else {}
    blocks.make(node, "Conv", inputs, {**node.attrs, **group})
    return True


def _fits(node: Node, x: Value, filters: Tensor, b: Value | None) -> bool:
    """True if a convolution reads images, and has matching filters and a constant bias that match."""
    if not _is_image(x) or set(node.attrs) - set(CONV_ATTRIBUTES) or filters.rank != 4 or not all(filters.shape):
        return False
    if b is not None and (b.constant is None or b.constant.shape != filters.shape[:1]):
        return False
    return x.dim(1) == filters.shape[1] * node.attr("group", 1)


def _conv_form(node: Node, x: Value, filters: Sequence[int], blocks: BlockedValues) -> ConvForm | None:
    """The form in which a convolution reads its input; None if its groups are not whole blocks."""
    group, block = node.attr("group", 1), blocks.block
    out, inner = filters[:2]
    if group == 1:
        return ConvForm(direct=inner < block and (x not in blocks.of or _pays_to_leave(x, inner, block)))
    if inner == 1 and out == group:
        return None if group % STEP else ConvForm(depthwise=True)
    return None if inner % block or (out // group) % block else ConvForm()


def _pays_to_leave(x: Value, channels: int, block: int) -> bool:
    """True for an image whose channels fill at most half of a block, unless it is a single pixel."""
    return 2 * channels <= block and x.shape is not None and x.shape[2:] != (1, 1)


def _filled_bias(node: Node, b: Value | None, blocks: BlockedValues) -> Value | None:
    const = constant_of(b)
    if b is None or const is None:
        return None
    more = padded(const.size, blocks.block) - const.size
    return blocks.constant(node, b, "bias", lambda: np.pad(const.numpy(), (0, more))) if more else b


def _batch_norm(node: Node, blocks: BlockedValues) -> bool:
    """Rewrite BatchNormalization in inference mode to a depthwise convolution with one pixel."""
    from ortconv.optimizer.basic.fold_conv import batch_norm

    x, affine = node.inputs[0], batch_norm(node)
    if x not in blocks.of or affine is None or node.out.rank != 4 or len(affine.scale) != blocks.of[x].channels:
        return False
    scale, shift = (a.astype(np.float32) for a in affine)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return False
    more = padded(scale.size, blocks.block)
    weights = constant(node, filters_to_blocks(scale.reshape(-1, 1, 1, 1), blocks.block, inputs=False))
    bias = constant(node, np.pad(shift, (0, more - shift.size)))
    attrs: Attributes = {"group": more, "kernel_shape": Ints((1, 1))}
    blocks.make(node, "Conv", [blocks.of[x].value, weights, bias], attrs)
    return True


def _pool(node: Node, blocks: BlockedValues) -> bool:
    x = node.inputs[0]
    if x is None or not _is_image(x) or any(node.outputs[1:]):
        return False
    if node.op == "AveragePool" and not _averages_alike(node):
        return False
    if x not in blocks.of and not _leads_to_blocks(node, _channels(x), blocks):
        return False
    blocks.make(node, node.op, [blocks.entering(x, node)], dict(node.attrs))
    return True


def _averages_alike(pool: Node) -> bool:
    """False for windows with gaps, and for those that may reach beyond padding that counts: blocked pools count that, too."""
    if any(d != 1 for d in pool.attr("dilations", Ints())):
        return False
    return not pool.attr("count_include_pad", 0) or (not pool.attr("ceil_mode", 0) and _lies_inside(pool))


def _lies_inside(pool: Node) -> bool:
    """False for a window larger than the padded image."""
    pads, kernel = spatial_pads(pool, 2), pool.attr("kernel_shape", Ints())
    if pads is None:
        return True
    sizes = zip((pool.dim(0, 2), pool.dim(0, 3)), kernel, pads, pads[2:])
    return all(not isinstance(size, int) or size + before + behind >= k for size, k, before, behind in sizes)


def _leads_to_blocks(pool: Node, channels: int, blocks: BlockedValues) -> bool:
    """True for a pool of whole blocks before a convolution."""
    if pool.op.startswith("Global") or channels % blocks.block:
        return False
    return any(user.op in ("Conv", "FusedConv") for user in pool.out.consumers)


_NOT_FINITE = ("Acos", "Acosh", "Asin", "Atanh", "Cosh", "Exp", "Log", "Reciprocal", "Sinh", "Sqrt", "Tan")
"""Elementwise operators that may return infinities or NaN for padding channels, which are zeros at first."""


def _unary(node: Node, blocks: BlockedValues) -> bool:
    x = node.inputs[0]
    if x not in blocks.of or (node.op == "Clip" and any(v is not None and v.constant is None for v in node.inputs[1:])):
        return False
    source, shape = blocks.of[x]
    attrs = activation_attributes(node) if node.op in ("Clip", *ACTIVATION_PARAMETERS) else None
    conv = source.producer if len(x.uses) == 1 and not x.is_output else None
    if attrs is None or conv is None or not conv.is_op("Conv", DOMAIN) or "activation" in conv.attrs:
        blocks.make(node, node.op, [source, *node.inputs[1:]], dict(node.attrs), node.domain, shape)
        return True
    conv.attrs.update(attrs)
    blocks.graph.attributes_changed(conv)
    blocks.put(node, source, shape)
    return True


def _elementwise(node: Node, blocks: BlockedValues) -> bool:
    """Operands may be blocked images of the same shape and scalars, or an image and one number per channel."""
    shapes = [blocks.of[v].shape for v in node.inputs if v in blocks.of]
    inputs = [blocks.of[v].value if v in blocks.of else v if _is_number(v) else None for v in node.inputs]
    if shapes and None not in inputs and all(equal_shapes(s, shapes[0]) for s in shapes):
        blocks.make(node, node.op, inputs, dict(node.attrs), node.domain, shapes[0])
        return True
    return len(node.inputs) == 2 and _scaled(node, blocks)


def _is_number(value: Value | None) -> bool:
    const = constant_of(value)
    return const is not None and const.size == 1 and const.rank <= 4 and bool(np.isfinite(const.numpy()).all())


def _scaled(node: Node, blocks: BlockedValues) -> bool:
    """Rewrite the product of one image and a number per channel to a depthwise convolution with one pixel."""
    pair = [blocks.of[v] for v in node.inputs if v in blocks.of]
    if node.op != "Mul" or len(pair) != 2:
        return False
    image, factors = pair if pair[1].shape[2:] == (1, 1) else reversed(pair)
    shape = image.shape
    if shape[0] != 1 or factors.shape != (1, shape[1], 1, 1):
        return False
    filled = blocks.filled(shape)[1]
    assert isinstance(filled, int)
    spec = constant(node, np.array((filled, 1, 1, 1), np.int64))
    weights = blocks.add(node, "Reshape", [factors.value, spec], {}, (filled, 1, 1, 1))
    attrs: Attributes = {"group": filled, "kernel_shape": Ints((1, 1))}
    blocks.make(node, "Conv", [image.value, weights], attrs, shape=shape)
    return True


def _whole_blocks(node: Node, values: tuple[Value | None, ...], blocks: BlockedValues) -> bool:
    """True for an operator along the channels if the channels of all its operands and results are whole blocks."""
    channels = [None if v is None else v.dim(1) for v in values]
    whole = all(isinstance(c, int) and c > 0 and c % blocks.block == 0 for c in channels)
    return whole and node.attr("axis", 0) in (1, -3)


def _concat(node: Node, blocks: BlockedValues) -> bool:
    parts: list[Value | None] = [blocks.of[v].value for v in node.inputs if v in blocks.of]
    if len(parts) < len(node.inputs) or not parts or not _whole_blocks(node, node.inputs, blocks):
        return False
    blocks.make(node, "Concat", parts, {"axis": 1}, "")
    return True


def _split(node: Node, blocks: BlockedValues) -> bool:
    x, results = node.inputs[0], node.present_outputs
    if x not in blocks.of or ints(node.input(1), ()) is None:
        return False
    if not _whole_blocks(node, (x, *node.outputs), blocks):
        return False
    types = [TensorType(DType.FLOAT, v.shape) for v in results]
    inputs, name = [blocks.of[x].value, *node.inputs[1:]], blocks.graph.fresh(node.name or "Split")
    made = insert_node("Split", inputs, len(types), types, node, {**node.attrs, "axis": 1}, name=name)
    for old, new in zip(results, made.outputs, strict=True):
        if old.shape is not None and new is not None:
            blocks.of[old] = Blocked(new, old.shape)
    blocks.replaced.append(node)
    return True


def _resize(node: Node, blocks: BlockedValues) -> bool:
    """Resize by whole factors, with nearest or linear interpolation."""
    x = node.inputs[0]
    does = resizing(node, ints)
    factors = _factors(does, blocks.of[x].shape, node.out) if x in blocks.of and _is_upsampling(node, does) else None
    if factors is None or x is None:
        return False
    attrs: Attributes = {"scales": factors, "mode": does.mode, "coordinate_transformation_mode": does.coordinates}
    blocks.make(node, "Upsample", [blocks.of[x].value], attrs)
    return True


UPSAMPLING = {"nearest": ("asymmetric",), "linear": ("asymmetric", "half_pixel", "align_corners")}
"""The coordinate transformations that Upsample supports, by mode."""


def _is_upsampling(node: Node, does: Resizing[int]) -> bool:
    """True for a Resize whose mode and coordinates Upsample supports."""
    if node.attrs.keys() & {"axes", "antialias", "keep_aspect_ratio_policy"} or node.out.rank != 4:
        return False
    if does.mode == "nearest" and does.rounding != "floor":
        return False
    return does.coordinates in UPSAMPLING.get(does.mode, ()) and (has_sizes(node) or does.mode == "nearest")


def _factors(does: Resizing[int], source: Shape, result: Value) -> Ints | None:
    """The whole factors by which a Resize multiplies the dimensions, 1 for batch and channels; else None."""
    dims = enumerate(zip(source, result.shape or ()))
    factors = [does.factor(axis, *pair) or 0 for axis, pair in dims]
    if factors[:2] != [1, 1] or any(f < 1 or f != int(f) for f in factors):
        return None
    return Ints(map(int, factors))


HANDLERS: dict[tuple[str, str], Callable[[Node, BlockedValues], bool]] = {
    ("", "Conv"): _conv,
    (MICROSOFT, "FusedConv"): _conv,
    ("", "BatchNormalization"): _batch_norm,
    ("", "Concat"): _concat,
    ("", "Split"): _split,
    ("", "Resize"): _resize,
    **{("", op): _pool for op in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")},
    **{("", op): _unary for op in named(Trait.ELEMENTWISE, but=_NOT_FINITE)},
    **{(MICROSOFT, op): _unary for op in named(Trait.ELEMENTWISE, domain=MICROSOFT)},
    **{("", op): _elementwise for op in ("Add", "Sub", "Mul", "Sum", "Max", "Min", "PRelu")},
}


# ---------------------------------------------------------------------- the pass


def _leave_used(node: Node, blocks: BlockedValues) -> None:
    for value in node.present_outputs:
        if value.is_used:
            _leave(node, value, blocks)


def block_channels(graph: Graph, context: Context) -> int:
    """Block the channels of convolutions and of the operators between them. Returns the number of changed nodes.

    Counterpart: NchwcTransformer
    Differs: Split, more elementwise operators and a product with a number per channel stay in blocks; no subgraphs.
    """
    if context.settings.target_platform != "amd64" or graph.owner is not None:
        return 0
    blocks = BlockedValues(graph, context)
    for node in list(graph):
        handler = HANDLERS.get((node.domain, node.op))
        if handler is not None and _makes_images(node) and context.may_touch(node) and handler(node, blocks):
            context.record(NAME, node.label, 1, 1)
    for node in reversed(blocks.replaced):
        _leave_used(node, blocks)
        graph.remove_dead(node)
    if blocks.replaced:
        context.amend()
    return len(blocks.replaced)


def _leave(node: Node, value: Value, blocks: BlockedValues) -> None:
    """Convert a blocked output of a node back for the readers that need ONNX's layout."""
    graph, blocked, last = blocks.graph, blocks.of[value], _all_to_last(value)
    attrs: Attributes = {"channels": blocked.channels, "channels_last": 0}
    if not last or not blocks.context.may_touch(*last):
        graph.replace(value, blocks.add(node, "ReorderOutput", [blocked.value], attrs, blocked.shape, DOMAIN))
        return
    shape = tuple(blocked.shape[i] for i in TO_LAST)
    made = blocks.add(node, "ReorderOutput", [blocked.value], attrs | {"channels_last": 1}, shape, DOMAIN)
    for user in last:
        graph.replace(user.out, made)
        graph.remove(user)


def _all_to_last(value: Value) -> list[Node]:
    """The readers of a value if all are Transposes in its graph that move the channels to the end; else none."""
    readers = value.consumers
    fit = all(transpose_perm(user) == TO_LAST and user.graph is value.graph for user in readers)
    return readers if fit and not value.is_output else []
