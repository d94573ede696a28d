"""Passes: functions and ordered lists of rules, which are run on a graph until nothing changes.

Modules with passes for rare operators are imported when a pass first runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from ortconv.ir.graph import Graph, Node
from ortconv.optimizer.engine import Context, Rule, apply
from ortconv.optimizer.pattern import Kind, kinds, may_fit
from ortconv.optimizer.tracking import Operator

MOST_KNOWN = 4096
"""Maximum number of kinds of nodes for which a pass remembers its rules."""


class LaterFunction:
    """The function of a pass in a module's PASSES. The module is imported when the pass first runs."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, graph: Graph, context: Context) -> int:
        return self.function(graph, context)

    @property
    def function(self) -> Callable[[Graph, Context], int]:
        found: Callable[[Graph, Context], int] = _pass_in(self._module, self._name).run
        return found


def _pass_in(module: str, name: str) -> Any:
    return next(p for p in import_module(module).PASSES if p.name == name)


class FunctionPass(NamedTuple):
    """A pass that is a function. It works on one graph without its subgraphs, and returns the number of changes.

    `operators`: it can change nothing without one of these. `also`: nor without one of these.
    """

    name: str
    run: Callable[[Graph, Context], int]
    once: bool = False
    operators: tuple[Operator, ...] = ()
    also: tuple[Operator, ...] = ()

    @property
    def doc(self) -> str:
        return (self.run.function if isinstance(self.run, LaterFunction) else self.run).__doc__ or ""


def later_function(
    module: str,
    name: str,
    *operators: str,
    domains: Sequence[str] = ("",),
    also: tuple[Operator, ...] = (),
    once: bool = False,
) -> FunctionPass:
    """A pass that is a function in a module which is imported when the pass first runs: few models have its operators."""
    wanted = tuple((domain, op) for domain in domains for op in operators)
    return FunctionPass(name, LaterFunction(module, name), once, wanted, also)


def by_root(rules: Iterable[Rule]) -> dict[Operator, list[Rule]]:
    """The rules by the operator of their root, in their order."""
    found: dict[Operator, list[Rule]] = {}
    for r in rules:
        for op in r.pattern.ops:
            found.setdefault((r.pattern.domain, op), []).append(r)
    return found


class RulePass:
    """A pass that is an ordered tuple of rules. A worklist drives it until no rule matches any more."""

    also: tuple[Operator, ...] = ()

    def __init__(self, name: str, *groups: Iterable[Rule]) -> None:
        self.name = name
        self.once = False
        self._groups = groups
        self._known: dict[tuple[Operator, tuple[Kind, ...]], tuple[Rule, ...]] = {}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(r for group in self._groups for r in group)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators without which the pass can change nothing."""
        return tuple(self._by_root)

    @cached_property
    def _by_root(self) -> dict[Operator, list[Rule]]:
        return by_root(self.rules)

    @cached_property
    def _widths(self) -> dict[Operator, int]:
        """The number of inputs that the patterns with each root have, at most."""
        return {root: max(len(r.pattern.inputs) for r in found) for root, found in self._by_root.items()}

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


def passes(*rules: Iterable[Rule]) -> tuple[RulePass, ...]:
    """One pass for each name of the rules, with all rules of that name."""
    by_name: dict[str, list[Rule]] = {}
    for r in chain.from_iterable(rules):
        by_name.setdefault(r.name, []).append(r)
    return tuple(RulePass(name, group) for name, group in by_name.items())


class LaterPass(RulePass):
    """A pass of rules in a module that is imported once the rules are needed: few models have its operators.

    Every rule of the pass matches one of `operators`, so it can change nothing without them, nor without one of `also`. The pass
    is in the module's PASSES.
    """

    def __init__(
        self, module: str, name: str, *operators: str, domains: Sequence[str] = ("",), also: tuple[Operator, ...] = ()
    ) -> None:
        super().__init__(name)
        self.operators = tuple((domain, op) for domain in domains for op in operators)
        self.also = also
        self._module = module

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = _pass_in(self._module, self.name).rules
        return rules
