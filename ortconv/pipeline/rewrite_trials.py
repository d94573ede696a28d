"""Tries rewrites of refused nodes on copies in a graph of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.journal import FEW
from ortconv.ir.operands import only_reader
from ortconv.optimizer.engine import Context, Rule, apply
from ortconv.optimizer.pattern import Match
from ortconv.partition import Target
from ortconv.partition.partitioner import Grouping

Rules = dict[tuple[str, str], list[Rule]]
"""Rules by the domain and operator of the nodes at which they match."""

ROUNDS = 8
"""Maximum rounds of rewrites of rewritten nodes, and of the search for partitions that are not worthwhile."""


def refused_units(work: Grouping) -> list[Sequence[Node]]:
    """The nodes of each refused unit."""
    return [work.units[u].nodes for u in work.against]


def roots_around(node: Node) -> Iterator[Node]:
    """The readers of a node, if they are few, each behind the only reader of its limited result, then the node itself."""
    for value in node.present_outputs:
        for reader in value.consumers if len(value.uses) <= FEW else ():
            if reader.op in ("Clip", "Relu") and (behind := only_reader(reader.out)) is not None:
                yield behind
            if reader.graph is node.graph:
                yield reader
    yield node


class RewriteTrial:
    """Copies of matched nodes in a separate graph; they read values of the real one."""

    def __init__(self, m: Match) -> None:
        self.root = m.root
        self.matched = _in_order({m.root, *(n for n, _ in m.nodes)})
        self.graph = Graph()
        self.graph.opsets = m.graph.opsets
        self._copies: dict[Value, Value] = {}
        self.root_copy = [self._add_copy(node) for node in self.matched][-1]
        self.returned = [v for v in m.root.outputs if v is not None]
        self.graph.set_outputs([self._copies[v] for v in self.returned])

    def _add_copy(self, node: Node) -> Node:
        made = self.graph.add_node(
            node.op,
            [self._copies.get(v, v) if v is not None else None for v in node.inputs],
            [None if v is None else v.name for v in node.outputs],
            node.attrs,
            domain=node.domain,
            name=node.name,
            types=[None if v is None else v.type for v in node.outputs],
        )
        made.ep = node.ep
        self._copies |= {a: b for a, b in zip(node.outputs, made.outputs) if a is not None and b is not None}
        return made

    def discard(self) -> None:
        """Remove all reads of values of the real graph."""
        for node in self.graph:
            self.graph.set_inputs(node, ())

    def move_in(self, r: Rule, context: Context) -> None:
        """Replace the root by the nodes of the trial."""
        graph, root, label = self.root.parent, self.root, self.root.label
        before, added = len(graph), list(self.graph)
        for old, new in zip(self.returned, graph.absorb(self.graph, root), strict=True):
            graph.replace(old, new)
        graph.remove_dead(root)
        removed = {node.name for node in self.matched if node.graph is not graph}
        for node in added:
            if node.name not in removed:
                node.name = graph.fresh(node.name)
        context.record(r.name, label, before + len(added) - len(graph), len(added))


def _in_order(nodes: set[Node]) -> list[Node]:
    """The nodes in topological order: the root of a match, which no other of them reads, comes last."""
    done: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for v in node.present_inputs:
            if v.producer in nodes:
                visit(v.producer)
        done.setdefault(node)

    last = [n for n in nodes if not any(user in nodes for v in n.present_outputs for user, _ in v.uses)]
    for node in last:
        visit(node)
    return list(done)


def try_rewrite(m: Match, r: Rule, rules: Rules, target: Target) -> RewriteTrial | None:
    """Apply a rule, and further rules to its result, in a separate graph. None unless the target supports all new nodes."""
    trial = RewriteTrial(m)
    scratch = Context()
    if apply(r, trial.root_copy, scratch) is not None:
        for _ in range(ROUNDS):
            left = refused_units(Grouping(trial.graph, target))
            if not left:
                return trial
            if not rewrite_each(left, rules, scratch):
                break
    trial.discard()
    return None


def rewrite_each(units: Iterable[Sequence[Node]], rules: Rules, context: Context) -> bool:
    """Apply one rule at each refused unit that matches one. Return False if none matches."""
    changes = [_apply_one(nodes, rules, context) for nodes in units]
    return any(changes)


def _apply_one(nodes: Sequence[Node], rules: Rules, context: Context) -> bool:
    """Apply the first rule that matches at one of these nodes. Return False if none matches."""
    roots = (root for node in nodes if node.graph is not None for root in roots_around(node))
    return any(apply(r, root, context) is not None for root in roots for r in rules.get((root.domain, root.op), ()))
