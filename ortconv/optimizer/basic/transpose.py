"""The transpose optimizer: moves Transposes toward the outputs if that lets them cancel, merge or shrink.

It sweeps in topological order. A Transpose moves past a node if the cost is less than the savings. The cost is one
Transpose for each other input and for each output that needs one, unless the output leads to a later Transpose; the
savings are the Transposes that vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import ints, only_reader, own_producer
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.basic.transpose_handlers import HANDLERS, Handlers, Push, absorbs, carries, dequantizer, push
from ortconv.optimizer.conditions import same_dim, with_open, with_shape
from ortconv.optimizer.engine import Context, constant, insert_node
from ortconv.optimizer.insertion import insert
from ortconv.optimizer.permutation import (
    Perm,
    compose,
    identity,
    inverse,
    moves_only_ones,
    permuted_type,
    transpose_perm,
)
from ortconv.optimizer.quantizers import scaled_axes

NAME = "TransposeOptimizer"
MAX_SWEEPS = 8
UNKNOWN_RANK = 5
SMALL = 1024
"""A shared constant of at most this number of bytes may be transposed into a copy."""
MOST_READERS = 16
"""A value with more readers is not searched for a Transpose that reads it."""


def optimize_transposes(graph: Graph, context: Context, handlers: Handlers = HANDLERS, name: str = NAME) -> int:
    """Move, merge and cancel the Transposes of one graph.

    They move past the operators that have a handler. The trace has the rewrites by `name`. Returns the number of changes.

    Counterpart: TransposeOptimizer
    Differs: correct for a Pad with axes, which ONNX Runtime turns into a graph that fails.
    """
    changes = 0
    for _ in range(MAX_SWEEPS):
        sweep = Sweep(graph, context, handlers, name)
        for node in graph:
            sweep.visit(node)
        for node in graph:
            sweep.unlock_quantization(node)
        if sweep.out_of_order:
            graph.sort()
        changes += sweep.changes
        if not sweep.changes:
            break
    return changes


class _Transpose(NamedTuple):
    """A Transpose, its input and its permutation."""

    node: Node
    x: Value
    perm: Perm


class Sweep:
    def __init__(self, graph: Graph, context: Context, handlers: Handlers, name: str) -> None:
        self.graph = graph
        self.context = context
        self.handlers = handlers
        self.name = name
        self.changes = 0
        self.out_of_order = False
        self.leads = _leading_to_transpose(graph, handlers)
        self.removable: dict[Value, bool] = {}
        self.constants: dict[tuple[Value, Perm], Value] = {}

    def visit(self, node: Node) -> None:
        perm = transpose_perm(node)
        if perm is not None:
            self.simplify(node, perm)
            return
        for slot, value in enumerate(node.inputs):
            before = self.transpose_before(value)
            if before is None or not self.context.may_touch(node, before.node):
                continue
            if before.x.dtype is DType.STRING:  # onnxruntime loses strings in a Transpose behind Gather
                continue
            if self.drop_before_reshape(node, slot, before):
                return
            if node.is_op("Shape"):
                self.push_through_shape(node, before)
                return
            found = push(node, slot, before.perm, self.handlers)
            if found is not None and self.cost(node, found, before.perm) < (0, 0):
                self.apply(node, found, before.perm)
                return

    def transpose_before(self, value: Value | None) -> _Transpose | None:
        """The Transpose in this graph that produces a value."""
        node = None if value is None or value.graph is not self.graph else value.producer
        perm = transpose_perm(node)
        return None if node is None or perm is None else _Transpose(node, node.present_inputs[0], perm)

    # ------------------------------------------------------------------ a Transpose by itself

    def simplify(self, node: Node, perm: Perm) -> None:
        """Merge a Transpose with the one before it, and remove it if it has no effect."""
        x = node.present_inputs[0]
        first = self.transpose_before(x)
        if first is not None and self.context.may_touch(node, first.node):
            self.replace(node, 0, self.transposed(first.x, compose(first.perm, perm), node))
        elif self.context.may_touch(node) and _does_nothing(x.shape, perm):
            self.replace(node, 0, x)
        else:
            self.merge_into_reshape(node, perm)

    def merge_into_reshape(self, node: Node, perm: Perm) -> None:
        """Transpose(Reshape(x)) that only moves axes of size 1  ->  another Reshape(x)."""
        reshape = own_producer(node.inputs[0], "Reshape")
        if reshape is None or not self.context.may_touch(node, reshape):
            return
        target = ints(reshape.input(1))
        dims = _without_copies(target, reshape.out.shape, reshape) if moves_only_ones(target, perm) else None
        if dims is not None:
            shape = constant(node, np.array([dims[axis] for axis in perm], np.int64))
            inputs = [reshape.inputs[0], shape]
            self.replace(node, 1, insert("Reshape", inputs, node.out.type, node, name=reshape.name))

    def drop_before_reshape(self, node: Node, slot: int, before: _Transpose) -> bool:
        """Reshape(Transpose(x)) in which only axes of size 1 move  ->  Reshape(x)."""
        if not node.is_op("Reshape") or slot != 0 or not moves_only_ones(before.x.shape, before.perm):
            return False
        dims = _without_copies(ints(node.input(1)), node.out.shape, node)
        if dims is None:
            return False
        shape = node.inputs[1] if dims == ints(node.input(1)) else constant(node, np.array(dims, np.int64))
        self.graph.set_inputs(node, [before.x, shape])
        self.record(node.label, self.graph.remove_dead(before.node), 0)
        return True

    # ------------------------------------------------------------------ moving

    def cost(self, node: Node, found: Push, perm: Perm) -> tuple[float, float]:
        """The cost of the move minus its savings: first in Transposes, then in axes along which data moves.

        A Transpose with several readers is saved only by all of them together. An output that leads to a later
        Transpose costs nothing, and neither does one whose readers need no Transpose.
        """
        values = dict.fromkeys(v for slot in found.slots if (v := node.inputs[slot]) is not None)
        costs = [self.cost_of_input(value, inverse(perm), node) for value in values]
        for output, after in zip(node.outputs, found.perms, strict=True):
            if output is not None and after is not None:
                saved = self.saved_after(output, after)
                change = -saved if saved is not None else int(output not in self.leads)
                costs.append((change, change * _size(output.shape)))
        return sum(count for count, _ in costs), sum(size for _, size in costs)

    def cost_of_input(self, value: Value, perm: Perm, node: Node) -> tuple[float, float]:
        """The cost of transposing an input of a node, negative if this cancels a Transpose."""
        readers, size = len(value.uses), _size(value.shape)
        if value.constant is not None:
            return 0, 0 if readers == 1 or value.constant.nbytes <= SMALL else size
        first = self.transpose_before(value)
        if first is None:
            return (1, size) if dequantizer(value, node) is None else (0, 0)
        cancels = compose(first.perm, perm) == identity(len(perm)) and self.is_removable(value, first.perm)
        return (-1 / readers, -size / readers) if cancels else (0, 0)

    def saved_after(self, output: Value, perm: Perm) -> int | None:
        """The number of Transposes that undo one of an output; None if another node reads it that needs it.

        One that leads to a later Transpose does not count: another move might restore it.
        """
        saved = 0
        for user, slot in output.uses:
            later = transpose_perm(user)
            undone = later is not None and compose(perm, later) == identity(len(perm)) and user.out not in self.leads
            if user.graph is not self.graph or not (undone or absorbs(user, slot, perm, self.handlers)):
                return None
            saved += undone
        return None if output.is_output else saved

    def is_removable(self, value: Value, perm: Perm) -> bool:
        """True if every reader of a Transpose's output can read its input instead."""
        known = self.removable.get(value)
        if known is None:
            known = not value.is_output and all(
                user.graph is self.graph
                and (user.is_op("Transpose") or user.is_op("Shape") or push(user, slot, perm, self.handlers))
                for user, slot in value.uses
            )
            self.removable[value] = known
        return known

    def apply(self, node: Node, found: Push, perm: Perm) -> None:
        """Push the Transposes of a node's inputs through it: the new node reads their sources, and its outputs are transposed."""
        before = len(self.graph)
        inputs = self.moved_inputs(node, found, inverse(perm))
        types = [
            None if v is None else v.type if p is None else permuted_type(v.type, inverse(p))
            for v, p in zip(node.outputs, found.perms, strict=True)
        ]
        names = [None if v is None else self.graph.fresh(v.name) for v in node.outputs]
        made = insert_node(node.op, inputs, names, types, node, found.attrs, domain=node.domain, name=node.name)
        made.doc = node.doc
        results = [
            v if v is None or p is None or _does_nothing(v.shape, p) else add_transpose(v, p, node)
            for v, p in zip(made.outputs, found.perms, strict=True)
        ]
        self.replace(node, len(self.graph) - before, *results)

    def moved_inputs(self, node: Node, found: Push, back: Perm) -> list[Value | None]:
        """The inputs of a node after a move, with Transpose<back> before those that need it."""
        inputs = list(node.inputs)
        for slot in found.slots:
            value = inputs[slot]
            assert value is not None
            inputs[slot] = self.transposed(value, back, node)
        for slot, array in found.constants.items():
            inputs += [None] * (slot + 1 - len(inputs))
            inputs[slot] = constant(node, array)
        for slot, places in found.picks.items():
            value = inputs[slot]
            inputs[slot] = insert("Gather", [value, constant(node, places)], value.type if value else None, node)
        return inputs

    def push_through_shape(self, node: Node, before: _Transpose) -> None:
        """Shape(Transpose(x))  ->  Shape(x) in another order; Gathers that read it select other elements."""
        perm = before.perm
        if not self.is_removable(before.node.out, perm):
            return
        order = np.array(perm[slice(node.attr("start", 0), node.attr("end", len(perm)))], np.int64)
        picks = self.picks(node, len(order))
        vector = with_shape(node.out, (len(perm),))
        made = self.existing(before.x, node, lambda user: user.is_op("Shape") and not user.attrs)
        made = made or insert("Shape", [before.x], vector, node, name=node.name)
        if picks is None:
            picked = insert("Gather", [made, constant(node, order)], node.out.type, node, {"axis": 0})
            self.replace(node, 2, picked)
            return
        for user, pick in picks.items():
            self.graph.set_inputs(user, [made, constant(user, np.asarray(order[pick], pick.dtype))])
        self.record(node.label, self.graph.remove_dead(node), 1)

    def picks(self, shape: Node, size: int) -> dict[Node, Array] | None:
        """The readers of a Shape with `size` elements if all are Gathers of constant indices, with these indices; else None."""
        found: dict[Node, Array] = {}
        for user, slot in shape.out.uses:
            index = _constant_index(user) if slot == 0 and user.graph is self.graph else None
            fits = index is not None and np.all((-size <= index) & (index < size))
            if index is None or not fits or not self.context.may_touch(user, shape):
                return None
            found[user] = index
        return None if shape.out.is_output else found

    def unlock_quantization(self, node: Node) -> None:
        """Move a Transpose from between QuantizeLinear and DequantizeLinear to before the first, so that the pair stays a pair."""
        perm = transpose_perm(node)
        quantize = None if perm is None else self.quantizer_before(node)
        if perm is None or quantize is None:
            return
        source, found = quantize.inputs[0], push(quantize, 0, inverse(perm), self.handlers)
        if source is not None and found is not None:
            inputs = [self.transposed(source, perm, quantize), *quantize.inputs[1:]]
            domain, name = quantize.domain, quantize.name
            made = insert(quantize.op, inputs, node.out.type, node, found.attrs, domain=domain, name=name)
            self.replace(node, 2, made)

    def quantizer_before(self, node: Node) -> Node | None:
        """The QuantizeLinear before a Transpose, if it has no other reader, and only DequantizeLinear nodes follow."""
        x, readers = node.inputs[0], {(user.op, slot) for user, slot in node.out.uses}
        quantize = None if x is None or only_reader(x) is None else x.producer
        if quantize is None or quantize.op != "QuantizeLinear" or node.out.is_output:
            return None
        return quantize if readers == {("DequantizeLinear", 0)} and self.context.may_touch(node, quantize) else None

    # ------------------------------------------------------------------ values

    def transposed(self, value: Value, perm: Perm, node: Node) -> Value:
        """The value under a permutation; if a Transpose is needed, it is inserted before the node."""
        if perm == identity(len(perm)):
            return value
        if value.constant is not None:
            return self.transposed_constant(value, perm, node)
        first = self.transpose_before(value)
        if first is not None and self.context.may_touch(first.node, node):
            return self.transposed(first.x, compose(first.perm, perm), node)
        made = self.dequantized(value, perm, node)
        made = made or self.existing(value, node, lambda user: transpose_perm(user) == perm)
        return made or add_transpose(value, perm, node)

    def dequantized(self, value: Value, perm: Perm, node: Node) -> Value | None:
        """A dequantized constant under a permutation: the constant itself is transposed. None for other values."""
        dq = dequantizer(value, node)
        data = None if dq is None else dq.inputs[0]
        if dq is None or data is None or data.rank is None:
            return None
        lead = len(perm) - data.rank
        attrs = dq.attrs
        if scaled_axes(dq):
            attrs = {**attrs, "axis": inverse(perm)[lead + dq.attr("axis", 1) % data.rank]}
        inputs = [self.transposed_constant(data, perm, node), *dq.inputs[1:]]
        wide = None if value.shape is None else with_shape(value, (1,) * lead + value.shape)
        return insert(dq.op, inputs, permuted_type(wide, perm), node, attrs, domain=dq.domain)

    def existing(self, value: Value, node: Node, fits: Callable[[Node], bool]) -> Value | None:
        """The output of a reader of this value that fits and has the provider of the node, unless the value has many readers."""
        for user in value.consumers if len(value.uses) <= MOST_READERS else ():
            if user is not node and user.graph is self.graph and user.ep == node.ep and fits(user):
                self.out_of_order = True
                return user.out
        return None

    def transposed_constant(self, value: Value, perm: Perm, node: Node) -> Value:
        """A constant with its axes permuted; made once for each permutation. Missing leading axes have size 1."""
        const = value.constant
        assert const is not None
        if const.shape == (1,) * len(perm):
            return value
        known = self.constants.get((value, perm))
        if known is None or known.const is None:
            array = const.numpy()
            array = array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(perm)
            known = constant(node, Tensor.of(np.ascontiguousarray(array), const.dtype))
            self.constants[value, perm] = known
        return known

    # ------------------------------------------------------------------ replacing

    def replace(self, node: Node, added: int, *results: Value | None) -> None:
        """Replace a node's outputs by values, which take over the names if they were created for that."""
        label, rename = node.label, []
        for old, new in zip(node.outputs, results, strict=True):
            if old is None or new is None:
                continue
            if old in self.leads:
                self.leads.add(new)
            if not new.uses and not old.is_output and new.producer is not None and not new.is_output:
                rename.append((new, old.name))
            self.graph.replace(old, new)
        before = len(self.graph)
        self.graph.remove_dead(node)
        for new, name in rename:
            self.graph.rename(new, name)
        self.record(label, before - len(self.graph), added)

    def record(self, label: str, removed: int, added: int) -> None:
        self.context.record(self.name, label, removed, added)
        self.changes += 1


def _leading_to_transpose(graph: Graph, handlers: Handlers) -> set[Value]:
    """The values from which a Transpose could move down to a later one."""
    leads: set[Value] = set()
    for node in reversed(graph):
        if node.is_op("Transpose"):
            slots: tuple[int, ...] = (0,)
        elif any(v in leads for v in node.present_outputs):
            slots = tuple(i for i in range(len(node.inputs)) if carries(node, i, handlers))
        else:
            continue
        leads.update(v for i in slots if (v := node.inputs[i]) is not None and v.graph is graph)
    return leads


def _constant_index(gather: Node) -> Array | None:
    """The index of a Gather if it is a constant number or list; None for any other node."""
    index = gather.input(1) if gather.is_op("Gather") else None
    const = None if index is None or ints(index) is None else index.constant
    return None if const is None else const.numpy()


def _size(shape: Shape | None) -> int:
    """Number of axes with more than one element."""
    return UNKNOWN_RANK if shape is None else sum(d != 1 for d in shape)


def _does_nothing(shape: Shape | None, perm: Perm) -> bool:
    if perm == identity(len(perm)):
        return True
    if shape is None or not moves_only_ones(shape, perm):
        return False
    return all(same_dim(shape[axis], dim) for axis, dim in zip(perm, shape, strict=True))


def _without_copies(target: tuple[int, ...] | None, shape: Shape | None, reshape: Node) -> tuple[int, ...] | None:
    """A Reshape's target in which no 0 copies a dimension of the input; None if there is no such target."""
    if target is None or 0 not in target:
        return target
    if reshape.attr("allowzero", 0) or shape is None or len(shape) != len(target):
        return None
    dims = tuple(t or d for t, d in zip(target, with_open(shape), strict=True))
    return dims if dims.count(-1) < 2 and math.prod(dims) != 0 else None


def add_transpose(value: Value, perm: Perm, before: Node) -> Value:
    """Transpose<perm> of a value, inserted before a node."""
    name = before.parent.fresh(f"{value.name}/Transpose")
    return insert("Transpose", [value], permuted_type(value.type, perm), before, {"perm": Ints(perm)}, name=name)
