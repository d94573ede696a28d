"""Passes: functions and ordered lists of rules, which are run on a graph until nothing changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Union

from ortconv.ir.graph import Graph, Node
from ortconv.optimizer.engine import Context, Rule, apply, rules_in
from ortconv.optimizer.pattern import Kind, kinds, may_fit
from ortconv.optimizer.tracking import Operator

MOST_KNOWN = 4096
"""Maximum number of kinds of nodes for which a pass remembers its rules."""

Run = Callable[[Graph, Context], int]
"""Works on one graph without its subgraphs, and returns the number of changes."""

Source = Union[str, Sequence[Rule], Run]


class Pass:
    """A row in the table of a level: a function, or rules in their order, and the operators that it needs.

    `source` names an attribute of a module in this package, as "extended.gelu:fuse_gelu", or a module all of whose rules it runs.
    The module is imported when the pass first runs. The source may also be the function or the rules themselves.

    The pass can change nothing in a model without one of `roots`, operators of ONNX or pairs with a domain, nor without one of
    `also`. Without `roots`, these are the roots of the rules; a function always runs. With `once`, the pass is not repeated. A pass
    `for_cpu` runs after nodes are assigned, on those left to the CPU. One `for_nnapi` runs only for NNAPI, just before nodes are
    assigned, and again after the passes for the CPU. An `inexact` one changes the numbers by more than rounding.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        *roots: str | Operator,
        also: tuple[Operator, ...] = (),
        once: bool = False,
        for_cpu: bool = False,
        for_nnapi: bool = False,
        inexact: bool = False,
    ) -> None:
        self.name = name
        self.source = source
        self.also = also
        self.once = once
        self.for_cpu = for_cpu
        self.for_nnapi = for_nnapi
        self.inexact = inexact
        self._roots = tuple(("", root) if isinstance(root, str) else root for root in roots)

    @cached_property
    def _content(self) -> Run | tuple[Rule, ...]:
        content = self.source
        if isinstance(content, str):
            name, _, attribute = content.partition(":")
            module = import_module(f"{__package__}.{name}")
            content = getattr(module, attribute) if attribute else rules_of(module)
        return content if callable(content) else tuple(content)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules; empty if the pass is a function."""
        return () if callable(self._content) else self._content

    @cached_property
    def run(self) -> Run:
        return self._content if callable(self._content) else Worklist(self._content).run

    @cached_property
    def roots(self) -> tuple[Operator, ...]:
        """Operators without which the pass can change nothing; empty if it always runs."""
        return self._roots or tuple(by_root(self.rules))

    def with_rules(self, rules: Sequence[Rule]) -> Pass:
        """The pass with some of its rules only."""
        flags = {"for_cpu": self.for_cpu, "for_nnapi": self.for_nnapi, "inexact": self.inexact}
        return Pass(self.name, rules, also=self.also, once=self.once, **flags)

    @property
    def doc(self) -> str:
        """The docstring of the function."""
        return self._content.__doc__ or ""


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """The rules of a module: its RULES or, if it has none, all that it defines, in the order of their definition."""
    return getattr(module, "RULES", None) or rules_in(vars(module))


def by_root(rules: Iterable[Rule]) -> dict[Operator, list[Rule]]:
    """The rules by the operator of their root, in their order."""
    found: dict[Operator, list[Rule]] = {}
    for r in rules:
        for op in r.pattern.ops:
            found.setdefault((r.pattern.domain, op), []).append(r)
    return found


class Worklist:
    """Applies rules at the nodes of a graph, and again at the nodes around each change."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_root = by_root(rules)
        self._widths = {root: max(len(r.pattern.inputs) for r in found) for root, found in self._by_root.items()}
        self._known: dict[tuple[Operator, tuple[Kind, ...]], tuple[Rule, ...]] = {}

    def run(self, graph: Graph, context: Context) -> int:
        """Apply the rules until none matches, or the limit of the context is reached. Return the number of rewrites."""
        since, roots = context.since, self._by_root
        queue = deque(context.nodes(graph, roots))
        queued = set(queue)
        changes = 0
        while queue and not context.exhausted:
            node = queue.popleft()
            queued.discard(node)
            if node.graph is not graph or node.touched < since:
                continue
            for r in self._candidates(node):
                touched = apply(r, node, context)
                if touched is None:
                    continue
                changes += 1
                context.mark_touched(touched)
                again = [n for n in touched if n.graph is graph and n not in queued and (n.domain, n.op) in roots]
                again = list(dict.fromkeys(again))
                queue.extend(again)
                queued.update(again)
                if node.graph is not graph:
                    break
        return changes

    def _candidates(self, node: Node) -> tuple[Rule, ...]:
        """The rules that may match at a node, judged by operators alone."""
        root = node.domain, node.op
        found = kinds(node, self._widths[root])
        rules = self._known.get((root, found))
        if rules is None:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            rules = tuple(r for r in self._by_root[root] if may_fit(r.pattern, found))
            self._known[root, found] = rules
        return rules
