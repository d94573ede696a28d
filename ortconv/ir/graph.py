"""The graph: nodes, values, and the only functions that change them.

Contract (checked by `ortconv.ir.verify`):

* A value is a graph input, an initializer, both (an overridable initializer), or one output of one node.
* A value knows its uses: every (node, slot) that reads it, in order of insertion, including nodes in subgraphs.
* A node belongs to one graph. The nodes of a graph form a list, which is in topological order before and after each pass.
* A subgraph (an attribute of type Graph) reads outer values by having them as inputs of its nodes. Its outputs are
  always values of its own.
* Names are unique along every chain of nested graphs, and a name from `fresh` is unique in the whole model. The one exception: if
  a node refers to inputs and outputs of its subgraph by name, they may have the name of an outer value that nothing inside reads.
* Iteration over a graph survives insertion and removal of nodes, even of the node just visited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ortconv.errors import GraphError
from ortconv.ir.attributes import Attribute, Floats, Graphs, Ints, Strings, Tensors, Types
from ortconv.ir.links import Links
from ortconv.ir.names import Names
from ortconv.ir.order import is_topological, producers, topological
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import Dim, DType, TensorType, ValueType
from ortconv.ir.value import Value

if TYPE_CHECKING:
    from ortconv.ir.journal import Edits

__all__ = [
    "Attribute", "Floats", "Graph", "Graphs", "Ints", "Node", "Strings", "Tensors", "Types", "Value", "captures",
]  # fmt: skip

T = TypeVar("T")


class Node:
    """One application of an operator. Only Graph creates and changes nodes, except for attributes and `ep`."""

    __slots__ = (
        "attrs", "doc", "domain", "ep", "graph", "inputs", "name", "next", "op", "outputs", "place", "prev", "touched",
    )  # fmt: skip

    def __init__(self, op: str, domain: str = "", name: str = "", attrs: dict[str, Attribute] | None = None) -> None:
        self.op = op
        self.domain = domain
        self.name = name
        self.attrs: dict[str, Attribute] = {} if attrs is None else attrs
        self.inputs: tuple[Value | None, ...] = ()
        self.outputs: tuple[Value | None, ...] = ()
        self.ep = ""
        """The execution provider that the node is assigned to; empty for the CPU."""
        self.doc = ""
        self.graph: Graph | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.place = 0
        """Position in its graph when `ortconv.optimizer.tracking` last counted."""
        self.touched = 0
        """The pass run, as numbered by `ortconv.optimizer.tracking`, in which something near the node last changed."""

    def attr(self, name: str, default: T) -> T:
        """An attribute's value, or the default. The caller guarantees that it has the type of the default."""
        return self.attrs.get(name, default)  # type: ignore[return-value]

    @property
    def present_inputs(self) -> list[Value]:
        """The inputs without those that are absent."""
        return [v for v in self.inputs if v is not None]

    @property
    def present_outputs(self) -> list[Value]:
        """The outputs without those that are absent."""
        return [v for v in self.outputs if v is not None]

    def input(self, slot: int) -> Value | None:
        """An input; None if it is absent."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def output(self, slot: int) -> Value | None:
        """An output; None if it is absent."""
        return self.outputs[slot] if slot < len(self.outputs) else None

    def constant(self, slot: int) -> Tensor | None:
        """The constant that an input always has; None if it has none, or is absent."""
        value = self.input(slot)
        return None if value is None else value.constant

    def dtype(self, slot: int) -> DType | None:
        """The element type of an input; None if it is unknown, or if the input is absent."""
        value = self.input(slot)
        return None if value is None else value.dtype

    def dim(self, slot: int, axis: int) -> Dim:
        """A dimension of an input; None if it is unknown, or if the input is absent."""
        value = self.input(slot)
        return None if value is None else value.dim(axis)

    @property
    def out(self) -> Value:
        """The first output."""
        value = self.outputs[0] if self.outputs else None
        assert value is not None
        return value

    @property
    def parent(self) -> Graph:
        """The graph of a node that is in one."""
        assert self.graph is not None
        return self.graph

    @property
    def opset(self) -> int:
        """The version of the operator set to which its operator belongs; 0 if the model does not import it."""
        assert self.graph is not None
        return self.graph.opsets.get(self.domain, 0)

    def is_op(self, op: str, domain: str = "") -> bool:
        return self.op == op and self.domain == domain

    @property
    def subgraphs(self) -> list[Graph]:
        return [sub for value in self.attrs.values() for sub in graphs_in(value)]

    @property
    def reads(self) -> tuple[Value | None, ...]:
        """The inputs, and the outer values that subgraphs read."""
        return (*self.inputs, *captures(self)) if self.attrs and self.subgraphs else self.inputs

    @property
    def present_reads(self) -> list[Value]:
        """The inputs that are present, and the outer values that subgraphs read."""
        return [v for v in self.reads if v is not None]

    @property
    def used_output(self) -> Value | None:
        """The first output that a node reads or the graph returns; None if the node is dead."""
        return next((v for v in self.outputs if v is not None and v.is_used), None)

    @property
    def operator(self) -> str:
        """The operator, after its domain unless that is ONNX's."""
        return f"{self.domain}:{self.op}" if self.domain else self.op

    @property
    def label(self) -> str:
        """The node as messages call it: operator and name, or its first output if it has no name."""
        name = self.name or next((v.name for v in self.outputs if v is not None), "?")
        return f"{self.operator} '{name}'"

    def __repr__(self) -> str:
        return f"{listed(self.outputs)} = {self.op}({listed(self.inputs)})"


class Graph(Links):
    """Nodes in order, inputs, outputs and initializers. All changes go through this class.

    `initializers` holds the constants of this graph by name, and `opsets` the operator set versions of the model (one dict, shared
    with all subgraphs). `owner` is the node that has this graph as an attribute, None for the main graph. `journal`, if set, is
    notified of every change.
    """

    def __init__(self, name: str = "", *, parent: Graph | None = None) -> None:
        super().__init__()
        self.name = name
        self.doc = ""
        self.owner: Node | None = None
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self._places: dict[Value, int] = {}
        self.initializers: dict[str, Value] = {}
        self.opsets: dict[str, int] = {} if parent is None else parent.opsets
        self.journal: Edits | None = None if parent is None else parent.journal
        self._names: Names = Names() if parent is None else parent._names
        self._subgraphs: list[None] = [] if parent is None else parent._subgraphs
        """One entry for each subgraph that the model has ever had. Most models have none, so no search for subgraphs is needed."""
        if parent is not None:
            self._subgraphs.append(None)

    # ------------------------------------------------------------------ reading

    @property
    def parent(self) -> Graph | None:
        return self.owner.graph if self.owner is not None else None

    def opset(self, domain: str = "") -> int:
        """The version of an operator set that the model imports; 0 if it imports none."""
        return self.opsets.get(domain, 0)

    def walk(self) -> Iterator[Node]:
        """Every node of this graph and its subgraphs; outer nodes come before those inside them."""
        if not self._subgraphs:
            yield from self
            return
        for node in self:
            yield node
            for sub in node.subgraphs:
                yield from sub.walk()

    def graphs(self) -> Iterator[Graph]:
        """This graph and all its subgraphs, at any depth."""
        yield self
        for node in self if self._subgraphs else ():
            for sub in node.subgraphs:
                yield from sub.graphs()

    @property
    def overridable(self) -> list[Value]:
        """The inputs with a default value."""
        return [value for value in self.inputs if value.const is not None]

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants, including those in subgraphs."""
        consts = (value.const for graph in self.graphs() for value in graph.initializers.values())
        return sum(const.nbytes for const in consts if const is not None)

    def encloses(self, other: Graph | None) -> bool:
        """True if `other` is this graph or one of its subgraphs, at any depth."""
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False

    # ------------------------------------------------------------------ names

    def fresh(self, hint: str) -> str:
        """Return a name like `hint` that no value or node of the model has, and reserve it."""
        return self._names.fresh(hint)

    def rename(self, value: Value, name: str) -> None:
        """Rename a value. The caller guarantees that no other value in scope has the new name."""
        assert value.graph is self
        if value.name in self.initializers and self.initializers[value.name] is value:
            del self.initializers[value.name]
            self.initializers[name] = value
        self._names.add(name)
        value.name = name

    # ------------------------------------------------------------------ making

    def add_input(self, name: str, type: ValueType | None = None) -> Value:
        """Append a graph input with exactly this name."""
        self._names.add(name)
        value = Value(name, type, self)
        value.is_input = True
        self.inputs.append(value)
        return value

    def add_initializer(self, name: str, const: Tensor | SparseTensor, input: Value | None = None) -> Value:
        """Add a constant with exactly this name. An input of this name, looked up unless given, becomes overridable."""
        value = input
        if value is None and name in self._names:
            value = next((v for v in self.inputs if v.name == name), None)
        if value is None:
            dtype = const.values.dtype if isinstance(const, SparseTensor) else const.dtype
            value = Value(name, TensorType(dtype, const.shape), self)
            self._names.add(name)
        value.const = const
        self.initializers[name] = value
        return value

    def constant(self, tensor: Tensor, hint: str) -> Value:
        """Add a constant with a fresh name like `hint`."""
        return self.add_initializer(self.fresh(hint), tensor)

    def add_node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[str | None] = 1,
        attrs: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
        name: str = "",
        types: Sequence[ValueType | None] = (),
        before: Node | None = None,
    ) -> Node:
        """Create a node and insert it before the node `before`, by default at the end.

        `outputs` is the number of outputs, which get fresh names, or a list of their exact names (None for an absent output).
        """
        node = Node(op, domain, name, dict(attrs) if attrs else {})
        self._names.add(name)
        if isinstance(outputs, int):
            base = name or op
            outputs = [self.fresh(f"{base}_out" if i == 0 else f"{base}_out{i}") for i in range(outputs)]
        self._add_outputs(node, outputs, types)
        self._link(node, before)
        if attrs:
            for sub in node.subgraphs:
                sub.owner = node
        if inputs:
            self.set_inputs(node, inputs)
        return node

    def _add_outputs(self, node: Node, names: Sequence[str | None], types: Sequence[ValueType | None]) -> None:
        made: list[Value | None] = []
        for i, name in enumerate(names):
            if name is None:
                made.append(None)
                continue
            self._names.add(name)
            value = Value(name, types[i] if i < len(types) else None, self)
            value.producer, value.index = node, i
            made.append(value)
        node.outputs = tuple(made)

    def set_outputs(self, outputs: Iterable[Value]) -> None:
        """Set the values that the graph returns. They must be distinct values of this graph."""
        before = self.outputs
        for value in self.outputs:
            value.is_output = False
        self.outputs = list(outputs)
        self._places = {value: i for i, value in enumerate(self.outputs)}
        for value in self.outputs:
            assert value.graph is self
            value.is_output = True
        if self.journal is not None:
            self.journal.values_changed((*before, *self.outputs))

    # ------------------------------------------------------------------ changing

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Replace all inputs of a node of this graph."""
        if self.journal is not None:
            self.journal.node_changed(node, (*node.inputs, *inputs))
        for slot, value in enumerate(node.inputs):
            if value is not None:
                value.drop_use(node, slot)
        node.inputs = tuple(inputs)
        for slot, value in enumerate(node.inputs):
            if value is not None:
                value.add_use(node, slot)

    def set_input(self, node: Node, slot: int, value: Value | None) -> None:
        """Replace one input of a node; its list of inputs is extended if the slot is beyond the end."""
        inputs = list(node.inputs) + [None] * (slot + 1 - len(node.inputs))
        old = inputs[slot]
        if self.journal is not None:
            self.journal.node_changed(node, (old, value))
        if old is not None:
            old.drop_use(node, slot)
        inputs[slot] = value
        node.inputs = tuple(inputs)
        if value is not None:
            value.add_use(node, slot)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every reader of `old`, in this graph and its subgraphs, read `new`. Graph outputs are unchanged."""
        for node, slot in list(old.uses):
            node.parent.set_input(node, slot, new)

    def replace(self, old: Value, new: Value) -> None:
        """Replace `old` by `new` everywhere. If `old` is a graph output, `new` becomes the output and gets its name.

        If `new` cannot take over the name (it is an input, a constant, already an output, or from an outer graph), an Identity is
        inserted before the producer of `old`.
        """
        if self.journal is not None:
            self.journal.value_replaced(new, old)
        self.replace_uses(old, new)
        if not old.is_output:
            return
        name = old.name
        assert old.graph is self
        if new.graph is not self or new.producer is None or new.is_output:
            node = self.add_node("Identity", [new], 1, types=[old.type], before=old.producer)
            new = node.out
        elif new.type is None or (new.shape is None and old.shape is not None):
            new.retype(old.type)
        self.rename(old, self.fresh(name))
        self.rename(new, name)
        old.is_output, new.is_output = False, True
        place = self._places[new] = self._places.pop(old)
        self.outputs[place] = new

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs are unused. It keeps its link to the next node, so that loops over the graph continue."""
        used = node.used_output
        if used is not None:
            raise GraphError(f"cannot remove: output '{used.name}' is in use", node=node.label)
        assert node.graph is self
        for sub in node.subgraphs:
            sub._release()
        self.set_inputs(node, ())
        self._unlink(node)

    def remove_dead(self, node: Node) -> int:
        """Remove a node if its outputs are unused, then likewise its producers in this graph. Return how many were removed."""
        removed, stack = 0, [node]
        while stack:
            node = stack.pop()
            if node.graph is self and node.used_output is None:
                stack += producers(self, node)
                self.remove(node)
                removed += 1
        return removed

    def move(self, node: Node, before: Node | None) -> None:
        """Move a node of this graph before the node `before`, or to the end if it is None."""
        self._unlink(node)
        self._link(node, before)

    def drop_initializer(self, value: Value) -> None:
        """Remove an unused constant. An overridable one becomes a plain input."""
        assert not value.uses
        assert not value.is_output
        del self.initializers[value.name]
        value.const = None

    def absorb(self, sub: Graph, before: Node) -> list[Value]:
        """Move all nodes and constants of a subgraph without inputs into this graph, before a node. Return the subgraph's former
        outputs.

        Names that already exist here are replaced by fresh ones. The subgraph is empty afterward.
        """
        outputs = list(sub.outputs)
        sub.set_outputs(())
        for value in list(sub.initializers.values()):
            del sub.initializers[value.name]
            value.graph, value.name = self, self.fresh(value.name)
            self.initializers[value.name] = value
        for node in list(sub):
            sub._unlink(node)
            self._link(node, before)
            for made in node.outputs:
                if made is not None:
                    made.graph, made.name = self, self.fresh(made.name)
        return outputs

    def prune(self) -> int:
        """Remove unused constants, in subgraphs too. Overridable ones stay. Return the number of removed constants."""
        dropped = 0
        for graph in self.graphs():
            for value in list(graph.initializers.values()):
                if not value.uses and not value.is_output and not value.is_input:
                    graph.drop_initializer(value)
                    dropped += 1
        return dropped

    def sort(self) -> None:
        """Sort the nodes topologically; nodes that are in order already keep it. Raises GraphError if there is a cycle."""
        if not is_topological(self):
            self._relink(topological(self))

    def _link(self, node: Node, before: Node | None) -> None:
        node.graph = self
        if self.journal is not None:
            self.journal.node_added(node)
        super()._link(node, before)

    def _unlink(self, node: Node) -> None:
        super()._unlink(node)
        node.graph = None
        if self.journal is not None:
            self.journal.node_removed(node)

    def attributes_changed(self, node: Node) -> None:
        """Notify the journal that attributes of a node were changed."""
        if self.journal is not None:
            self.journal.node_changed(node, node.outputs)

    def _release(self) -> None:
        """Remove all uses of values by nodes in this graph and its subgraphs."""
        for node in self.walk():
            if self.journal is not None:
                self.journal.values_changed(node.inputs)
            for slot, value in enumerate(node.inputs):
                if value is not None and (node, slot) in value.uses:
                    value.drop_use(node, slot)


def captures(node: Node) -> list[Value]:
    """The outer values that the subgraphs of a node read, at any depth, in order of first use."""
    inside = {g for sub in node.subgraphs for g in sub.graphs()}
    read = (value for sub in node.subgraphs for inner in sub.walk() for value in inner.inputs)
    return list(dict.fromkeys(v for v in read if v is not None and v.graph not in inside))


def listed(values: Iterable[Value | None]) -> str:
    """The names of values as text; "_" for an absent one."""
    return ", ".join("_" if value is None else value.name for value in values)


def graphs_in(attribute: Attribute) -> Sequence[Graph]:
    """The subgraphs that an attribute holds."""
    return (attribute,) if isinstance(attribute, Graph) else attribute if isinstance(attribute, Graphs) else ()
