"""The rewrite engine: rules return replacements, and only the engine changes the graph.

    @rule("ConvAddFusion", P("Add", P("Conv", "x", C("w"), C("b", optional=True), name="conv"), C("k")))
    def fuse_conv_add(m: Match) -> Replacement:
        "Conv(x, w, b) + k  ->  Conv(x, w, b + k)"
        if not ...:
            return None
        return New("Conv", [m.x, m.w, bias], like=m.node("conv"))

A rule returns None (no rewrite), a Value or a New for the root's first output, or a tuple with one of them for every
output. Inputs of a New are values, other News, constants (Tensor or array), or None. The engine itself refuses a match if
an inner value has another reader, is returned or captured, or if nodes are assigned to different providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Union

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.journal import FEW, Journal, NodeChanges
from ortconv.ir.kernels import UNKNOWN, KernelUse, first_release, type_text
from ortconv.ir.schema import Schema, schema
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import TensorType, ValueType
from ortconv.optimizer.pattern import Match, P, matches
from ortconv.optimizer.tracking import Operator, Tracker, producers


class New:
    """A node to be created, by default with the output types of the root if it replaces the root.

    `like` provides the name and, unless `attrs` is given, the attributes; `types` are the known output types.
    """

    __slots__ = ("attrs", "domain", "inputs", "like", "node", "op", "outputs", "types")

    def __init__(
        self,
        op: str,
        inputs: Sequence[NewInput],
        attrs: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        types: Sequence[ValueType | None] = (),
        like: Node | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = dict(like.attrs) if attrs is None and like is not None else dict(attrs or {})
        self.domain = domain
        self.outputs = outputs
        self.types = tuple(types)
        self.like = like
        self.node: Node | None = None


class Out:
    """One output of a New other than the first."""

    __slots__ = ("index", "new")

    def __init__(self, new: New, index: int) -> None:
        self.new = new
        self.index = index


NewInput = Union[Value, New, Out, Tensor, Array, None]
Replacement = Union[None, Value, New, Out, Tensor, Array, tuple[Union[Value, New, Out, Tensor, Array, None], ...]]


class Rule(NamedTuple):
    """A rewrite rule. If `pattern` matches and `build` returns a replacement, the engine puts it in place of the root."""

    name: str
    pattern: P
    build: Callable[[Match], Replacement]

    @property
    def doc(self) -> str:
        return (self.build.__doc__ or "").strip()


def in_place_of(node: Node, new: New) -> Replacement:
    """The outputs of a new node for those of another one; None for absent ones."""
    return tuple(None if v is None else Out(new, i) if i else new for i, v in enumerate(node.outputs))


def rule(name: str, *patterns: P) -> Callable[[Callable[[Match], Replacement]], tuple[Rule, ...]]:
    """Decorator that makes one rule for each pattern. All have the same name and function."""

    def made(build: Callable[[Match], Replacement]) -> tuple[Rule, ...]:
        return tuple(Rule(name, pattern, build) for pattern in patterns)

    return made


def rules_in(namespace: Mapping[str, Any]) -> tuple[Rule, ...]:
    """All rules that a module, with these globals, has defined, in the order of their definition."""
    groups = [value for value in namespace.values() if isinstance(value, tuple)]
    found = (r for r in chain.from_iterable(groups) if isinstance(r, Rule))
    return tuple(dict.fromkeys(r for r in found if r.build.__module__ == namespace["__name__"]))


class Rewrite(NamedTuple):
    """One entry of the trace. `root` is the label of the node; `change` is set if the context has a journal."""

    rule: str
    root: str
    removed: int
    added: int
    change: NodeChanges | None = None

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain data, for JSON."""
        operator, _, name = self.root.partition(" ") if self.root.endswith("'") else ("", "", self.root)
        found = {"rule": self.rule, "operator": operator, "name": name.strip("'")}
        return {**found, "removed": self.removed, "added": self.added, **(self.change._asdict() if self.change else {})}


FOLD_LIMIT = 64 << 20
"""Default limit in bytes on the growth of a model by constant folding."""


class PassSettings(NamedTuple):
    """Settings that rewrites depend on."""

    fold_limit: int = FOLD_LIMIT
    """Maximum growth of the model by constant folding in bytes, over all folds; shapes fold regardless of it."""
    limit: int | None = None
    """Stop after this number of rewrites."""
    release: int | None = None
    """Create only nodes that this release, a position in `ortconv.ir.kernels.releases()`, supports; None: any node."""
    target_platform: str | None = None
    """The target platform, arm or amd64, if rewrites may depend on it."""
    optimization_style: str = "Fixed"
    """Fixed: fusions above the basic level are applied. Runtime: they are recorded in the model, and onnxruntime applies them."""


@dataclass
class Context:
    """A run of passes: its settings, and what they have done so far."""

    settings: PassSettings = field(default_factory=PassSettings)
    journal: Journal | None = None
    """If set, records the changes of each rewrite."""
    only_cpu: bool = False
    """Do not change nodes that are assigned to an execution provider other than the CPU."""
    trace: list[Rewrite] = field(default_factory=list)
    grown: int = 0
    """Growth of the model by constant folding in bytes."""
    folds: list[tuple[int, str]] = field(default_factory=list)
    """(growth in bytes, node label) of each fold that increased the size."""
    tracker: Tracker | None = None
    """If set, limits a pass to nodes near changes; without it, a pass visits all nodes."""

    def record(self, rule: str, root: str, removed: int = 1, added: int = 0) -> None:
        """Add a rewrite that has just been made to the trace."""
        change = None if self.journal is None else self.journal.take()
        self.trace.append(Rewrite(rule, root, removed, added, change))

    def forget(self) -> None:
        """Leave the edits since the last rewrite out of the trace."""
        if self.journal is not None:
            self.journal.take()

    def amend(self) -> None:
        """Add the edits since the last rewrite to that rewrite."""
        if self.journal is not None and self.trace and (change := self.trace[-1].change) is not None:
            self.trace[-1] = self.trace[-1]._replace(change=change.then(self.journal.take()))

    @contextmanager
    def for_cpu(self) -> Iterator[None]:
        """Context manager: within the block, passes do not change nodes that are assigned to another execution provider."""
        before, self.only_cpu = self.only_cpu, True
        try:
            yield
        finally:
            self.only_cpu = before

    def may_touch(self, *nodes: Node) -> bool:
        """True if a pass may rewrite these nodes together."""
        ep = nodes[0].ep
        return not (self.only_cpu and ep) and all(n.ep == ep for n in nodes) and not self.exhausted

    def may_make(self, graph: Graph, new: New) -> bool:
        """True if the release, and every later one, can run a node that is about to be created in a graph.

        Nodes without a kernel in any release are allowed: they are expanded or cast later.
        """
        release = self.settings.release
        if release is None:
            return True
        found = schema(new.domain, new.op, max(1, graph.opset(new.domain)))
        return found is None or (first_release(_use(new, found)) or 0) <= release

    def nodes(self, graph: Graph, operators: Collection[Operator]) -> list[Node]:
        """The nodes of these operators in a graph, in the graph's order."""
        if self.tracker is not None:
            return self.tracker.nodes(graph, operators)
        return [node for node in graph if (node.domain, node.op) in operators]

    @property
    def since(self) -> int:
        """The first run of a pass whose changes are new to the present pass; compared with `Node.touched`."""
        return 0 if self.tracker is None else self.tracker.since

    def mark_touched(self, others: Iterable[Node] = ()) -> None:
        """Make the present changes, and `others`, visible to a pass that has run before."""
        if self.tracker is not None and self.tracker.since:
            self.tracker.mark_touched(others)

    @property
    def exhausted(self) -> bool:
        limit = self.settings.limit
        return limit is not None and len(self.trace) >= limit

    def counts(self) -> dict[str, int]:
        """Number of rewrites for each rule, in order of first use."""
        return rule_counts(self.trace)


def rule_counts(trace: Iterable[Rewrite]) -> dict[str, int]:
    """Number of rewrites for each rule, in order of first use."""
    return dict(Counter(rewrite.rule for rewrite in trace))


def apply(r: Rule, root: Node, context: Context) -> list[Node] | None:
    """Try one rule at one node. Return None if it does not apply, else the nodes around the change, which must be tried again."""
    try:
        found = find(r, root, context)
        return None if found is None else _rewrite(r, *found, context)
    except Exception as error:
        error.add_note(f"{r.name} at {root.label}")  # for the error message
        raise


def find(r: Rule, root: Node, context: Context) -> tuple[Match, Replacement] | None:
    """The match of one rule at one node with its replacement; None if the rule does not apply."""
    for m in matches(r.pattern, root):
        if context.may_touch(root, *(node for node, _ in m.nodes)) and _is_closed(m):
            replacement = r.build(m)
            if replacement is None:
                continue
            _state_types(replacement, root)
            if all(context.may_make(m.graph, new) for new in _new_nodes(replacement)):
                return m, replacement
    return None


def _state_types(replacement: Replacement, root: Node) -> None:
    """Give the nodes that replace the root the types of its outputs, unless they state their own."""
    parts = replacement if isinstance(replacement, tuple) else (replacement,)
    for part, old in zip(parts, root.outputs, strict=False):
        if isinstance(part, New) and not part.types and old is not None:
            part.types = (old.type,)


def _new_nodes(source: Replacement) -> Iterator[New]:
    """The nodes that a replacement creates."""
    if isinstance(source, tuple):
        for part in source:
            yield from _new_nodes(part)
    elif isinstance(source, (New, Out)):
        new = source if isinstance(source, New) else source.new
        yield new
        for part in new.inputs:
            yield from _new_nodes(part)


def _type(source: NewInput) -> ValueType | None:
    """The type of an input of a node that is about to be created; None if it is unknown."""
    if isinstance(source, Value):
        return source.type
    if isinstance(source, (New, Out)):
        new, index = (source, 0) if isinstance(source, New) else (source.new, source.index)
        return new.types[index] if index < len(new.types) else None
    if isinstance(source, np.ndarray):
        source = Tensor.of(source)
    return None if source is None else TensorType(source.dtype, source.shape)


def _use(new: New, found: Schema) -> KernelUse:
    """The kernel that a node about to be created needs."""
    types = [_type(source) for source in new.inputs]
    inputs = tuple([None if source is None else type_text(t) for source, t in zip(new.inputs, types)])
    outputs = tuple([type_text(new.types[i]) if i < len(new.types) else UNKNOWN for i in range(new.outputs)])
    shapes = [t.shape if isinstance(t, TensorType) else None for t in (*types, *new.types[:1])]
    return KernelUse(found, inputs, outputs, new.attrs, shapes[: len(types)], shapes[-1] if new.types else None)


def _rewrite(r: Rule, m: Match, replacement: Replacement, context: Context) -> list[Node]:
    root, graph, label = m.root, m.graph, m.root.label
    parts = replacement if isinstance(replacement, tuple) else (replacement,)
    added: list[Node] = []
    results = [_materialize(part, root, added) for part in parts]
    matched = [root, *(node for node, _ in m.nodes)]
    around = [*producers(matched), *_replace_outputs(root, results, graph)]
    before = len(graph)
    graph.remove_dead(root)
    for node in added:
        if not graph.remove_dead(node) and any(n.name == node.name for n in matched if n.graph is graph):
            node.name = graph.fresh(node.name)
    context.record(r.name, label, before - len(graph), len(added))
    return [*added, *around, *chain.from_iterable(map(_neighbors, filter(None, results)))]


def _neighbors(value: Value) -> list[Node]:
    """The producer of a value, and its readers unless there are many."""
    found = [] if value.producer is None else [value.producer]
    return found + value.consumers if len(value.uses) <= FEW else found


def _replace_outputs(root: Node, results: Sequence[Value | None], graph: Graph) -> list[Node]:
    """Make the readers of a node's outputs read other values, which get the types of these outputs. Return the readers."""
    readers: list[Node] = []
    for old, new in zip(root.outputs, results, strict=False):
        if old is None or new is None or old is new:
            continue
        if new.type is None:
            new.retype(old.type)
        readers += old.consumers
        graph.replace(old, new)
    return readers


def _is_closed(m: Match) -> bool:
    """True if nothing outside the match uses an inner value that the rewrite would remove."""
    inside = {node for node, _ in m.nodes} | {m.root}
    for node, shared in m.nodes:
        for value in () if shared else node.outputs:
            if value is not None and value.is_read_outside(inside):
                return False
    return True


def _materialize(source: NewInput, root: Node, added: list[Node]) -> Value | None:
    if source is None or isinstance(source, Value):
        return source
    if isinstance(source, (Tensor, np.ndarray)):
        return constant(root, source)
    new, out = (source.new, source.index) if isinstance(source, Out) else (source, 0)
    if new.node is None:
        new.node = _make(new, root, added)
    return new.node.outputs[out]


def _make(new: New, root: Node, added: list[Node]) -> Node:
    from ortconv.onnxio.infer import update_types

    graph = root.parent
    inputs = [_materialize(source, root, added) for source in new.inputs]
    name = new.like.name if new.like is not None else graph.fresh(f"{root.name or root.out.name}/{new.op}")
    node = insert_node(new.op, inputs, new.outputs, new.types, root, new.attrs, domain=new.domain, name=name)
    added.append(node)
    if any(v is not None and v.type is None for v in node.outputs):
        update_types(node)
    return node


def insert_new(new: New, before: Node) -> Node:
    """The node of a New, inserted before another one, to which it relates as to the root of a rule."""
    return _make(new, before, [])


def insert_node(
    op: str,
    inputs: Sequence[Value | None],
    outputs: int | Sequence[str | None],
    types: Sequence[ValueType | None],
    before: Node,
    attrs: Mapping[str, Attribute] | None = None,
    *,
    domain: str = "",
    name: str = "",
) -> Node:
    """A new node, which is inserted before another one and assigned to its provider. `outputs` is as for Graph.add_node.

    Version 1 of its domain is imported unless the model already imports the domain.
    """
    graph = before.parent
    graph.opsets.setdefault(domain, 1)
    node = graph.add_node(op, inputs, outputs, attrs, domain=domain, name=name, types=types, before=before)
    node.ep = before.ep
    return node


def constant(near: Node, content: Tensor | Array | Any) -> Value:
    """A new constant with a name derived from the node that it is created for."""
    tensor = content if isinstance(content, Tensor) else Tensor.of(content)
    return near.parent.constant(tensor, f"{near.out.name}_const")
