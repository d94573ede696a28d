"""The transpose optimizer: moves Transposes toward the outputs if that lets them cancel, merge or shrink.

It sweeps in topological order. A Transpose moves past a node if the cost is less than the savings. The cost is one
Transpose for each other input and for each output that needs one, unless the output leads to a later Transpose; the
savings are the Transposes that vanish.
"""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Shape, TensorType, ValueType
from ortconv.optimizer.basic.transpose_handlers import (
    Perm,
    Push,
    carries,
    compose,
    identity,
    inverse,
    push,
    transpose_perm,
)
from ortconv.optimizer.conditions import ints, same_dim
from ortconv.optimizer.engine import Context, FunctionPass, constant

NAME = "TransposeOptimizer"
MAX_SWEEPS = 8
UNKNOWN_RANK = 5
SMALL = 1024
"""A shared constant of at most this number of bytes may be transposed into a copy."""


def optimize_transposes(graph: Graph, context: Context) -> int:
    """Move, merge and cancel the Transposes of one graph.

    Returns the number of changes.

    Counterpart: TransposeOptimizer
    Differs: correct for a Pad with axes, which ONNX Runtime turns into a graph that fails.
    """
    changes = 0
    for _ in range(MAX_SWEEPS):
        sweep = _Sweep(graph, context)
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


class _Sweep:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        self.changes = 0
        self.out_of_order = False
        self.leads = _leading_to_transpose(graph)
        self.removable: dict[Value, bool] = {}
        self.constants: dict[tuple[Value, Perm], Value] = {}

    def visit(self, node: Node) -> None:
        perm = transpose_perm(node)
        if perm is not None:
            self.simplify(node, perm)
            return
        for slot, value in enumerate(node.inputs):
            if value is None or value.graph is not self.graph:
                continue
            before = transpose_perm(value.producer)
            if before is None or value.producer is None or not self.context.may_touch(node, value.producer):
                continue
            if self.drop_before_reshape(node, slot, value.producer, before):
                return
            if node.is_op("Shape"):
                self.push_through_shape(node, value, before)
                return
            found = push(node, slot, before)
            if found is not None and self.cost(node, found, before) < (0, 0):
                self.apply(node, found, before)
                return

    # ------------------------------------------------------------------ a Transpose by itself

    def simplify(self, node: Node, perm: Perm) -> None:
        """Merge a Transpose with the one before it, and remove it if it has no effect."""
        x = node.inputs[0]
        if x is None:
            return
        first = transpose_perm(x.producer) if x.graph is self.graph else None
        if first is not None and x.producer is not None and self.context.may_touch(node, x.producer):
            source = x.producer.inputs[0]
            assert source is not None
            self.replace(node, self.transposed(source, compose(first, perm), node), 0)
        elif self.context.may_touch(node) and _does_nothing(x.shape, perm):
            self.replace(node, x, 0)
        else:
            self.merge_into_reshape(node, perm)

    def merge_into_reshape(self, node: Node, perm: Perm) -> None:
        """Transpose(Reshape(x)) that only moves axes of size 1  ->  another Reshape(x)."""
        x = node.inputs[0]
        reshape = None if x is None else x.producer
        if x is None or reshape is None or not reshape.is_op("Reshape") or x.graph is not self.graph:
            return
        target = ints(reshape.input(1))
        if target is None or len(target) != len(perm) or x.is_output or len(x.uses) != 1:
            return
        if not _moves_only_ones(target, perm) or not self.context.may_touch(node, reshape):
            return
        dims = _without_copies(target, x.shape, reshape)
        if dims is None:
            return
        shape = constant(node, np.array([dims[axis] for axis in perm], np.int64))
        made = self.graph.add_node(
            "Reshape", [reshape.inputs[0], shape], 1, name=reshape.name, types=[node.out.type], before=node
        )
        made.ep = node.ep
        self.replace(node, made.out, 1)

    def drop_before_reshape(self, node: Node, slot: int, transpose: Node, perm: Perm) -> bool:
        """Reshape(Transpose(x)) in which only axes of size 1 move  ->  Reshape(x)."""
        x = transpose.inputs[0]
        if (
            not node.is_op("Reshape")
            or slot != 0
            or x is None
            or x.shape is None
            or not _moves_only_ones(x.shape, perm)
        ):
            return False
        target = ints(node.input(1))
        dims = None if target is None else _without_copies(target, node.out.shape, node)
        if dims is None:
            return False
        shape = node.inputs[1] if dims == target else constant(node, np.array(dims, np.int64))
        self.graph.set_inputs(node, [x, shape])
        self.record(node, self.graph.remove_dead(transpose), 0)
        return True

    # ------------------------------------------------------------------ moving

    def cost(self, node: Node, found: Push, perm: Perm) -> tuple[float, float]:
        """The cost of the move minus its savings: first in Transposes, then in axes along which data moves.

        A Transpose with several readers is saved only by all of them together. An output that leads to a later
        Transpose costs nothing.
        """
        back = inverse(perm)
        count = size = 0.0
        for value in dict.fromkeys(v for slot in found.slots if (v := node.inputs[slot]) is not None):
            first = transpose_perm(value.producer) if value.graph is self.graph else None
            moved = _size(value.shape)
            if value.constant is not None:
                size += 0 if len(value.uses) == 1 or value.constant.nbytes <= SMALL else moved
            elif first is not None:
                if compose(first, back) == identity(len(back)) and self.is_removable(value, first):
                    count, size = count - 1 / len(value.uses), size - moved / len(value.uses)
            elif not _is_dequantized_constant(value):
                count, size = count + 1, size + moved
        for output, after in zip(node.outputs, found.perms, strict=True):
            if output is not None and after is not None and output not in self.leads:
                count, size = count + 1, size + _size(output.shape)
        return count, size

    def is_removable(self, value: Value, perm: Perm) -> bool:
        """True if every reader of a Transpose's output can read its input instead."""
        known = self.removable.get(value)
        if known is None:
            known = not value.is_output and all(
                user.graph is self.graph
                and (user.is_op("Transpose") or user.is_op("Shape") or push(user, slot, perm) is not None)
                for user, slot in value.uses
            )
            self.removable[value] = known
        return known

    def apply(self, node: Node, found: Push, perm: Perm) -> None:
        back = inverse(perm)
        inputs = list(node.inputs)
        before = len(self.graph)
        for slot in found.slots:
            value = inputs[slot]
            assert value is not None
            inputs[slot] = self.transposed(value, back, node)
        for slot, array in found.constants.items():
            inputs += [None] * (slot + 1 - len(inputs))
            inputs[slot] = constant(node, array)
        for slot, places in found.picks.items():
            inputs[slot] = self._picked(inputs[slot], places, node)
        types = [
            None if v is None else v.type if p is None else permuted(v.type, inverse(p))
            for v, p in zip(node.outputs, found.perms, strict=True)
        ]
        names = [None if v is None else self.graph.fresh(v.name) for v in node.outputs]
        made = self.graph.add_node(
            node.op, inputs, names, found.attrs, domain=node.domain, name=node.name, types=types, before=node
        )
        made.ep, made.doc = node.ep, node.doc
        results = [
            v if v is None or p is None or _does_nothing(v.shape, p) else self.add_transpose(v, p, node)
            for v, p in zip(made.outputs, found.perms, strict=True)
        ]
        self.substitute(node, results, len(self.graph) - before)

    def push_through_shape(self, node: Node, value: Value, perm: Perm) -> None:
        """Shape(Transpose(x))  ->  Shape(x) in another order; Gathers that read it select other elements."""
        x = value.producer.inputs[0] if value.producer is not None else None
        if x is None or not self.is_removable(value, perm):
            return
        order = perm[slice(node.attr("start", 0), node.attr("end", len(perm)))]
        readers = list(node.out.uses)
        picks = [ints(user.input(1)) if self.is_pick(user, slot, node) else None for user, slot in readers]
        made = self.graph.add_node("Shape", [x], 1, name=node.name, types=[_vector(node, len(perm))], before=node)
        made.ep = node.ep
        if not node.out.is_output and all(
            p is not None and all(-len(order) <= i < len(order) for i in p) for p in picks
        ):
            for (user, _), pick in zip(readers, picks, strict=True):
                index = user.inputs[1]
                assert index is not None
                assert index.constant is not None
                assert pick is not None
                moved = np.array([order[i] for i in pick], index.constant.dtype.numpy).reshape(index.constant.shape)
                self.graph.set_inputs(user, [made.out, constant(user, moved)])
            self.record(node, self.graph.remove_dead(node), 1)
            return
        indices = constant(node, np.array(order, np.int64))
        picked = self.graph.add_node("Gather", [made.out, indices], 1, {"axis": 0}, types=[node.out.type], before=node)
        picked.ep = node.ep
        self.replace(node, picked.out, 2)

    def is_pick(self, user: Node, slot: int, shape: Node) -> bool:
        return (
            user.is_op("Gather")
            and user.graph is self.graph
            and slot == 0
            and user.attr("axis", 0) in (0, -1)
            and self.context.may_touch(user, shape)
        )

    def unlock_quantization(self, node: Node) -> None:
        """Move a Transpose from between QuantizeLinear and DequantizeLinear to before the first, so that the pair stays a pair."""
        perm = transpose_perm(node)
        x = node.inputs[0] if perm is not None else None
        quantize = None if x is None or x.graph is not self.graph else x.producer
        if perm is None or x is None or quantize is None or quantize.op != "QuantizeLinear" or x.is_output:
            return
        pairs = all(user.op == "DequantizeLinear" and slot == 0 for user, slot in node.out.uses)
        found = push(quantize, 0, inverse(perm)) if len(x.uses) == 1 and node.out.uses and pairs else None
        source = quantize.inputs[0]
        if found is None or source is None or node.out.is_output or not self.context.may_touch(node, quantize):
            return
        moved = self.transposed(source, perm, quantize)
        made = self.graph.add_node(
            quantize.op, [moved, *quantize.inputs[1:]], 1, found.attrs, domain=quantize.domain, name=quantize.name,
            types=[node.out.type], before=node,
        )  # fmt: skip
        made.ep = node.ep
        self.replace(node, made.out, 2)

    # ------------------------------------------------------------------ values

    def transposed(self, value: Value, perm: Perm, node: Node) -> Value:
        """The value under a permutation; if a Transpose is needed, it is inserted before the node."""
        if perm == identity(len(perm)):
            return value
        if value.constant is not None:
            return self.transposed_constant(value, perm, node)
        producer = value.producer if value.graph is self.graph else None
        first = transpose_perm(producer)
        if producer is not None and first is not None and self.context.may_touch(producer, node):
            source = producer.inputs[0]
            assert source is not None
            return self.transposed(source, compose(first, perm), node)
        if producer is not None and _is_dequantized_constant(value) and self.context.may_touch(producer, node):
            found = push(producer, 0, inverse(perm))
            data = producer.inputs[0]
            assert data is not None
            if found is not None:
                inputs = [self.transposed_constant(data, perm, node), *producer.inputs[1:]]
                made = self.graph.add_node(
                    producer.op, inputs, 1, found.attrs, domain=producer.domain,
                    types=[permuted(value.type, perm)], before=node,
                )  # fmt: skip
                made.ep = node.ep
                return made.out
        if len(value.uses) <= 16:
            for user in value.consumers:
                if (
                    user.graph is self.graph
                    and transpose_perm(user) == perm
                    and user.ep == node.ep
                    and user is not node
                ):
                    self.out_of_order = True
                    return user.out
        return self.add_transpose(value, perm, node)

    def transposed_constant(self, value: Value, perm: Perm, node: Node) -> Value:
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

    def _picked(self, value: Value | None, places: Array, node: Node) -> Value:
        assert value is not None
        made = self.graph.add_node("Gather", [value, constant(node, places)], 1, types=[value.type], before=node)
        made.ep = node.ep
        return made.out

    def add_transpose(self, value: Value, perm: Perm, before: Node) -> Value:
        made = self.graph.add_node(
            "Transpose", [value], 1, {"perm": Ints(perm)}, name=self.graph.fresh(f"{value.name}/Transpose"),
            types=[permuted(value.type, perm)], before=before,
        )  # fmt: skip
        made.ep = before.ep
        return made.out

    # ------------------------------------------------------------------ replacing

    def replace(self, node: Node, new: Value, added: int) -> None:
        self.substitute(node, [new], added)

    def substitute(self, node: Node, results: list[Value | None], added: int) -> None:
        """Replace a node's outputs by values, which take over the names if they were created for that."""
        label, names = node.label, [None if v is None else v.name for v in node.outputs]
        rename = []
        for old, new, name in zip(node.outputs, results, names, strict=True):
            if old is None or new is None:
                continue
            if old in self.leads:
                self.leads.add(new)
            fresh = not new.uses and not old.is_output and new.producer is not None and not new.is_output
            self.graph.replace(old, new)
            if fresh and name is not None:
                rename.append((new, name))
        before = len(self.graph)
        self.graph.remove_dead(node)
        for new, name in rename:
            self.graph.rename(new, name)
        self.context.record(NAME, label, before - len(self.graph), added)
        self.changes += 1

    def record(self, node: Node, removed: int, added: int) -> None:
        self.context.record(NAME, node.label, removed, added)
        self.changes += 1


def _leading_to_transpose(graph: Graph) -> set[Value]:
    """The values from which a Transpose could move down to a later one."""
    leads: set[Value] = set()
    for node in reversed(graph):
        if node.is_op("Transpose"):
            slots: tuple[int, ...] = (0,)
        elif any(v in leads for v in node.outputs if v is not None):
            slots = tuple(i for i in range(len(node.inputs)) if carries(node, i))
        else:
            continue
        leads.update(v for i in slots if (v := node.inputs[i]) is not None and v.graph is graph)
    return leads


def _is_dequantized_constant(value: Value) -> bool:
    node = value.producer
    return (
        node is not None
        and node.op == "DequantizeLinear"
        and (data := node.inputs[0]) is not None
        and data.constant is not None
    )


def _size(shape: Shape | None) -> int:
    """Number of axes with more than one element."""
    return UNKNOWN_RANK if shape is None else sum(d != 1 for d in shape)


def _moves_only_ones(shape: Shape, perm: Perm) -> bool:
    axes = [axis for axis in perm if shape[axis] != 1]
    return len(shape) == len(perm) and axes == sorted(axes)


def _does_nothing(shape: Shape | None, perm: Perm) -> bool:
    if perm == identity(len(perm)):
        return True
    if shape is None or len(shape) != len(perm) or not _moves_only_ones(shape, perm):
        return False
    return all(same_dim(shape[axis], dim) for axis, dim in zip(perm, shape, strict=True))


def _without_copies(target: tuple[int, ...], shape: Shape | None, reshape: Node) -> tuple[int, ...] | None:
    """A Reshape's target in which no 0 copies a dimension of the input; None if there is no such target."""
    if 0 not in target:
        return target
    if reshape.attr("allowzero", 0) or shape is None or len(shape) != len(target):
        return None
    dims = tuple(t if t != 0 else d if isinstance(d, int) else -1 for t, d in zip(target, shape, strict=True))
    return dims if dims.count(-1) < 2 and math.prod(dims) != 0 else None


def _vector(node: Node, size: int) -> ValueType | None:
    return None if node.out.dtype is None else TensorType(node.out.dtype, (size,))


def permuted(type: ValueType | None, perm: Perm) -> ValueType | None:
    """The type of a value after Transpose<perm>."""
    if not isinstance(type, TensorType) or type.shape is None or len(type.shape) != len(perm):
        return type
    return TensorType(type.dtype, tuple(type.shape[axis] for axis in perm))


PASSES = (FunctionPass(NAME, optimize_transposes, once=True, operators=(("", "Transpose"),)),)
