"""Moves Squeezes behind the nodes that read them, so that they meet Unsqueezes, and convolutions meet the nodes they can absorb.

TensorFlow and Keras compute a 1-D convolution as Squeeze(Conv(Unsqueeze(x))), and add its bias behind the Squeeze.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, reader_of
from ortconv.ir.operators import Trait, named
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Shape
from ortconv.optimizer.basic import transpose_handlers
from ortconv.optimizer.basic.transpose_handlers import axes_of_one, normal_axes, push
from ortconv.optimizer.conditions import RESHAPES, stated_pads, with_shape
from ortconv.optimizer.engine import Context, constant, insert_node
from ortconv.optimizer.insertion import insert, with_list
from ortconv.optimizer.quantizers import QUANTIZERS

ABSORBING = ("Conv", "ConvTranspose")
"""Operators into which nodes behind a Squeeze can be fused once the Squeeze has moved."""

FIRST_SPATIAL = 2
"""The first axis after batch and channels."""


class Axes(NamedTuple):
    """The axes that a Squeeze removes, counted from the front, and the rank of its input."""

    removed: tuple[int, ...]
    rank: int

    @property
    def kept(self) -> list[int]:
        """For each axis of the result, that of the input."""
        return [axis for axis in range(self.rank) if axis not in self.removed]

    def before(self, shape: Shape) -> Shape:
        """The shape of the input of a Squeeze with a result of this shape."""
        dims = iter(shape)
        return tuple(1 if axis in self.removed else next(dims) for axis in range(self.rank))


class Wide(NamedTuple):
    """The changes to a node that reads the inputs of Squeezes instead of their results."""

    slots: Sequence[int]
    """The inputs that are squeezed."""
    attrs: Mapping[str, Attribute]
    constants: Mapping[int, Tensor | Array] = MappingProxyType({})
    """Inputs that are replaced by constants, by slot."""


@dataclass(eq=False)
class Region:
    """Squeezes of the same axes, and the nodes that read only their results, constants and results of each other."""

    graph: Graph
    axes: Axes
    squeezes: list[Node]
    nodes: dict[Node, Wide] = field(default_factory=dict)

    def fits(self, axes: Axes, ep: str) -> bool:
        """True for a region of these axes, on this execution provider."""
        return self.axes == axes and self.squeezes[0].ep == ep

    def counts(self) -> tuple[int, int]:
        """The numbers of Squeezes and Unsqueezes that vanish, and of Squeezes that appear, if the Squeezes move."""
        vanishing = sum(not self._is_read_outside(node.out) for node in self.squeezes)
        vanishing += sum(1 for value in self.values() for _ in self._unsqueezes(value))
        left = [node.out for node in self.nodes if self._is_read_outside(node.out)]
        appearing = [
            value for value in left if reader_of(value, *RESHAPES) is None
        ]  # the others merge with their reader
        return vanishing, len(appearing)

    def meets_convolution(self) -> bool:
        """True if a node of the region will read the result of a convolution."""
        makers = ((squeeze, squeeze.present_inputs[0].producer) for squeeze in self.squeezes)
        behind = (squeeze for squeeze, maker in makers if maker is not None and maker.op in ABSORBING)
        return any(not self.nodes.keys().isdisjoint(squeeze.out.consumers) for squeeze in behind)

    def move(self) -> None:
        """Move the Squeezes behind the nodes."""
        wide = {node.out: node.present_inputs[0] for node in self.squeezes}
        for node, changes in self.nodes.items():
            wide[node.out] = self._widened(node, changes, wide)
        for value, x in wide.items():
            for unsqueeze in list(self._unsqueezes(value)):
                self.graph.replace(unsqueeze.out, x)
                self.graph.remove_dead(unsqueeze)
            if value.producer in self.nodes and self._is_read_outside(value):
                self._squeeze(value, x)
        for node in (*reversed(self.nodes), *self.squeezes):
            self.graph.remove_dead(node)

    def values(self) -> Iterator[Value]:
        return (node.out for node in (*self.squeezes, *self.nodes))

    def _is_read_outside(self, value: Value) -> bool:
        return value.is_output or any(user not in self.nodes and not self._undoes(user) for user in value.consumers)

    def _undoes(self, user: Node) -> bool:
        """True for an Unsqueeze of the same axes."""
        return user.graph is self.graph and user.is_op("Unsqueeze") and _axes(user, user.out) == self.axes

    def _unsqueezes(self, value: Value) -> Iterator[Node]:
        return (user for user in value.consumers if self._undoes(user))

    def _widened(self, node: Node, changes: Wide, wide: Mapping[Value, Value]) -> Value:
        """The result of a node before the Squeezes."""
        inputs = list(node.inputs)
        for slot in changes.slots:
            value = inputs[slot]
            inputs[slot] = value and wide[value]
        for slot, tensor in changes.constants.items():
            inputs += [None] * (slot + 1 - len(inputs))
            inputs[slot] = constant(node, tensor)
        names = [self.graph.fresh(node.out.name)]
        types = [with_shape(node.out, self.axes.before(node.out.shape or ()))]
        made = insert_node(node.op, inputs, names, types, node, changes.attrs, domain=node.domain, name=node.name)
        return made.out

    def _squeeze(self, value: Value, x: Value) -> None:
        """Let the readers of a value read Squeeze(x)."""
        assert value.producer is not None
        inputs, attrs = with_list(self.graph, "Squeeze", x, self.axes.removed)
        squeezed = insert("Squeeze", inputs, value.type, value.producer, attrs)
        name, is_output = value.name, value.is_output
        self.graph.replace(value, squeezed)
        if not is_output:
            self.graph.rename(value, self.graph.fresh(name))
            self.graph.rename(squeezed, name)


def propagate_squeezes(graph: Graph, context: Context) -> int:
    """f(Squeeze(x), constant)  ->  Squeeze(f(x, constant)), and Unsqueeze(Squeeze(x))  ->  x

    f is elementwise, Pad, Concat, Slice, BatchNormalization, a quantizer or a global pool. Applied to all nodes between Squeezes
    and Unsqueezes at once, if fewer of these remain, or equally many, and a Conv meets nodes that it can absorb.

    Counterpart: none: ONNX Runtime keeps Squeezes and Unsqueezes between convolutions
    """
    changes = 0
    for region in _regions(graph, context):
        vanishing, appearing = region.counts()
        pays = appearing < vanishing or (appearing == vanishing and region.meets_convolution())
        if region.nodes and pays and not context.exhausted:
            label = region.squeezes[0].label
            region.move()
            context.record("SqueezePropagation", label, vanishing, appearing)
            changes += 1
    return changes


def _regions(graph: Graph, context: Context) -> list[Region]:
    found: dict[Value, Region] = {}
    for node in graph:
        region = _region_of(graph, node, found) if context.may_touch(node) else None
        if region is not None:
            found[node.out] = region
    return list(dict.fromkeys(found.values()))


def _region_of(graph: Graph, node: Node, found: dict[Value, Region]) -> Region | None:
    """The region that a node begins, continues or joins; `found` has the regions of the values before it. None if there is none."""
    axes = _axes(node, node.present_inputs[0]) if node.is_op("Squeeze") else None
    if axes is not None:
        return Region(graph, axes, [node])
    around = list(dict.fromkeys(found[v] for v in node.present_inputs if v in found))
    changes = _changes(node, around, found) if around else None
    if changes is None:
        return None
    first, *others = sorted(around, key=lambda region: -len(region.nodes))
    for other in others:
        found.update((value, first) for value in other.values())
        first.squeezes += other.squeezes
        first.nodes |= other.nodes
    first.nodes[node] = changes
    return first


def _axes(node: Node, outer: Value) -> Axes | None:
    """The axes of a Squeeze or Unsqueeze, if they are constant; `outer` is the value that has them."""
    stated, rank = axes_of(node), outer.rank or 0
    axes = axes_of_one(outer) if stated == () else normal_axes(stated, rank)
    return Axes(tuple(sorted(axes)), rank) if axes else None


def _changes(node: Node, around: Sequence[Region], found: Container[Value]) -> Wide | None:
    """The changes to a node if it reads values squeezed along the same axes, and constants; None if it cannot change."""
    handler, axes, ep = HANDLERS.get((node.domain, node.op)), around[0].axes, around[0].squeezes[0].ep
    if handler is None or len(node.present_outputs) != 1 or node.out.rank != len(axes.kept) or node.ep != ep:
        return None
    changes = handler(node, axes) if all(region.fits(axes, ep) for region in around) else None
    return changes if changes is not None and all(node.inputs[slot] in found for slot in changes.slots) else None


# ---------------------------------------------------------------------- handlers


def _along_axes(node: Node, axes: Axes) -> Wide | None:
    """The changes that a Transpose would need, too: its permutation tells where the axes of the result are in the input."""
    found = push(node, 0, tuple(axes.kept), transpose_handlers.HANDLERS)
    return found and Wide(found.slots, found.attrs, found.constants)


def _broadcast(node: Node, axes: Axes) -> Wide | None:
    slots: list[int] = []
    constants: dict[int, Tensor | Array] = {}
    rank = len(axes.kept)
    for slot, value in enumerate(node.inputs):
        const = None if value is None else value.constant
        if const is None:
            slots.append(slot)
        elif const.rank > rank:
            return None
        elif any(dim != 1 for dim in const.shape):
            shape = axes.before((*(1,) * (rank - const.rank), *const.shape))
            constants[slot] = Tensor.of(const.numpy().reshape(shape), const.dtype)
    return Wide(slots, node.attrs, constants)


def _pad(node: Node, axes: Axes) -> Wide | None:
    pads = stated_pads(node, len(axes.kept))
    if pads is None:
        return None
    wide = np.zeros((2, axes.rank), np.int64)
    wide[:, axes.kept] = np.reshape(pads, (2, -1))
    if "pads" in node.attrs:
        return Wide((0,), {**node.attrs, "pads": Ints(wide.reshape(-1).tolist())})
    every = {} if node.input(3) is None else {3: np.arange(axes.rank)}
    return Wide((0,), node.attrs, {1: wide.reshape(-1), **every})


def _channels(node: Node, axes: Axes) -> Wide | None:
    """For operators on batch, channels and spatial axes. The statistics of a training step are of no use here."""
    if axes.removed[0] < FIRST_SPATIAL or node.attr("training_mode", 0) or not node.attr("spatial", 1):
        return None
    return Wide((0,), node.attrs)


Handler = Callable[[Node, Axes], Wide | None]

HANDLERS: Mapping[tuple[str, str], Handler] = {
    **{("", op): _along_axes for op in (*named(Trait.ELEMENTWISE), "Concat", "Slice")},
    **{("", op): _broadcast for op in named(Trait.BROADCASTS)},
    **{("", op): _channels for op in ("BatchNormalization", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")},
    **dict.fromkeys(QUANTIZERS, _along_axes),
    ("", "Pad"): _pad,
}
