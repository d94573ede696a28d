"""Selects the nodes that compute in float16, by rounding operands and results in runs of the float32 model."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ortconv.errors import UnsupportedError, UsageError, nearest
from ortconv.executor.constants import shape_dataflow
from ortconv.executor.replay.work import as_tuple
from ortconv.ir.graph import Graph, Node
from ortconv.ir.model import Model
from ortconv.ir.tensor import Array
from ortconv.optimizer.float16 import LARGEST, Slots, candidates, lossy, to_float16

if TYPE_CHECKING:
    from ortconv.pipeline.options import Options
    from ortconv.validation.reference import Reference

SHARE = 0.9
"""Share of the error budget for simulated rounding. The converted model also rounds elsewhere."""

MOST_REASONS = 5

CHOOSERS = ("NonMaxSuppression", "TopK", "ArgMax", "ArgMin")
"""Operators whose results depend on the order of elements. Rounding may swap elements that are nearly equal."""

BUDGET = "error budget"
"""The reason for nodes that would exceed the error budget."""


Run = Callable[[int], list[Any]]
"""Returns the outputs for a set of inputs, given by its number."""


@dataclass(frozen=True, slots=True)
class Float16:
    """Result of a conversion to float16.

    `nodes` is the number of nodes that compute in float16, `kept` of those that stay float32 although the operator supports
    float16; `reasons` counts the kept ones by reason. `error` is the largest difference of the simulated outputs, relative to the
    largest element of each, and `budget` its limit.
    """

    nodes: int
    kept: int
    casts: int
    bytes_before: int
    bytes_after: int
    error: float
    budget: float
    reasons: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    advice: str | None = None
    """Advice on how more nodes could compute in float16; None if there is none."""


Kernel = Callable[..., Any]
"""The function that computes a node from its operands."""


@dataclass
class _Measuring:
    """Measures nodes as they run: the greatest magnitude of the values at each node, and the relative error of its results if only
    this node were rounded to float16.
    """

    slots: dict[Node, Slots]
    largest: dict[Node, float] = field(default_factory=dict)
    errors: dict[Node, float] = field(default_factory=dict)

    def watch(self, node: Node, function: Kernel) -> Kernel:
        slots = self.slots.get(node)
        if slots is None:
            return function

        def call(*operands: Any) -> Any:
            exact = function(*operands)
            rounded = as_tuple(_rounded_run(slots, function, operands))
            pairs = [(a, rounded[i]) for i, a in enumerate(as_tuple(exact)) if i in slots.outputs]
            seen = (*(operands[i] for i in slots.inputs), *(a for a, _ in pairs))
            self.largest[node] = max(self.largest.get(node, 0.0), *map(_magnitude, seen))
            self.errors[node] = max(self.errors.get(node, 0.0), *(_relative_error(a, b) for a, b in pairs), 0.0)
            return exact

        return call


@dataclass
class _SimulatedRounding:
    """Rounds operands and results of nodes to float16 as they run, except for nodes in `keep`.

    Without `between`, values between two rounded nodes are not rounded, since onnxruntime computes both in float32 on CPUs.
    """

    slots: dict[Node, Slots]
    keep: set[Node] = field(default_factory=set)
    between: bool = True

    def watch(self, node: Node, function: Kernel) -> Kernel:
        slots = self.slots.get(node)
        if slots is None:
            return function

        def call(*operands: Any) -> Any:
            if node in self.keep:
                return function(*operands)
            return _rounded_run(slots if self.between else self._outer(node, slots), function, operands)

        return call

    def _outer(self, node: Node, slots: Slots) -> Slots:
        """Only the operands that no other rounded node computes."""
        makers = ((i, v and v.producer) for i, v in enumerate(node.inputs) if i in slots.inputs)
        return Slots(tuple(i for i, maker in makers if maker not in self.slots or maker in self.keep), ())


def narrow(model: Model, expected: Reference, options: Options) -> Float16:
    """Convert a model to float16 in place, with as many nodes as the error budget permits.

    Raises UnsupportedError if the model does not run on numpy, so that the error cannot be measured.
    """
    graph = model.graph
    slots = candidates(graph)
    reasons = _fixed(graph, slots, options.keep_float32)
    measured = _Measuring(slots)
    run = _simulation(model, expected, measured.watch)
    for i in range(len(expected.trials)):
        run(i)
    for node, largest in measured.largest.items():
        if largest > LARGEST:
            reasons.setdefault(node, f"values beyond {LARGEST:g}")
    rounding = _SimulatedRounding(slots)
    error = _search(rounding, measured.errors, reasons, _simulation(model, expected, rounding.watch), expected)
    done = to_float16(graph, reasons.keys())
    counts = Counter(reason.partition(":")[0] for reason in reasons.values())
    counts["saves Casts"] = len(slots) - done.nodes - len(reasons)
    examples = [f"{node.label}: {reason}" for node, reason in list(reasons.items())[:MOST_REASONS]]
    return Float16(
        done.nodes,
        len(slots) - done.nodes,
        done.casts,
        done.bytes_before,
        done.bytes_after,
        error,
        options.error_budget,
        {reason: count for reason, count in counts.most_common() if count},
        examples,
        None if expected.settings.given or not counts[BUDGET] else _advice(graph),
    )


def _advice(graph: Graph) -> str | None:
    """Advice for models that choose by order, if inputs are generated: on noise, many candidates are nearly equal."""
    chooser = next((node for node in graph.walk() if node.op in CHOOSERS), None)
    if chooser is None:
        return None
    return f"{chooser.label} chooses by order, which rounding changes on generated inputs: give real ones with --validate-with"


def _fixed(graph: Graph, slots: dict[Node, Slots], names: Sequence[str]) -> dict[Node, str]:
    """Candidates that stay float32 regardless of the budget, each with the reason."""
    reasons = dict.fromkeys(_named(graph, names), "asked to stay float32")
    for part in graph.graphs():
        folding, following = shape_dataflow(list(part), part.inputs)
        for node in part:
            if node in folding or node in following:
                reasons.setdefault(node, "computed from shapes or constants")
    for node, loss in lossy(graph).items():
        reasons.setdefault(node, f"constants that float16 does not hold: {loss}")
    return {node: reason for node, reason in reasons.items() if node in slots}


def _named(graph: Graph, names: Sequence[str]) -> list[Node]:
    """The nodes selected by names of nodes, of their outputs, or of operators. UsageError for a name that matches nothing."""
    by_name: dict[str, list[Node]] = {}
    for node in graph.walk():
        for name in {node.name, node.op, *(v.name for v in node.present_outputs)} - {""}:
            by_name.setdefault(name, []).append(node)
    for name in names:
        if name not in by_name:
            hint = nearest(name, by_name) or "name a node, an output of a node or an operator of the optimized model"
            raise UsageError(f"--keep-float32 {name}: the model has no node of this name", hint=hint)
    return [node for name in names for node in by_name[name]]


def _simulation(model: Model, expected: Reference, watch: Callable[[Node, Kernel], Kernel]) -> Run:
    """A function that runs the model, with watched nodes, on a set of inputs."""
    from ortconv.backends.numpy_cpu import Numpy
    from ortconv.runtime.session import Session

    if "numpy" not in expected.outputs or expected.is_shrunk:
        why = "; ".join(expected.notes) if expected.is_shrunk else expected.why_not_numpy
        raise UnsupportedError(
            f"the error of float16 cannot be measured: {why}",
            hint="--validate-with gives inputs, --validate-budget more room",
        )
    session = Session(model, [Numpy(reference=True, watch=watch)])

    def run(i: int) -> list[Any]:
        return session.run(None, expected.trials[i].feeds)

    return run


def _search(
    rounding: _SimulatedRounding, alone: Mapping[Node, float], reasons: dict[Node, str], run: Run, expected: Reference
) -> float:
    """Add to `reasons` a small set of nodes that must stay float32 to meet the budget. Return the remaining error. `run` runs the
    model with `rounding`; `alone` are the errors of single nodes.

    Similar nodes of repeated blocks form one class. The class whose rounding alone causes the largest error stays float32 first.
    """
    classes: dict[Hashable, list[Node]] = {}
    for node in rounding.slots:
        if node not in reasons:
            classes.setdefault(_class(node), []).append(node)

    def tried(keep: Collection[Node], inputs: int, *, both: bool = True) -> tuple[bool, float]:
        rounding.keep, found = {*reasons, *keep}, []
        for between in (True, False) if both else (True,):
            rounding.between = between
            found += [expected.is_within_budget(i, run(i), SHARE) for i in range(inputs)]
        return all(fits for fits, _ in found), max((error for _, error in found), default=0.0)

    everything, count = [n for nodes in classes.values() for n in nodes], len(expected.trials)
    fits, error = tried((), count)
    if fits:
        return error
    of_class = {key: tried(set(everything).difference(nodes), 1, both=False) for key, nodes in classes.items()}
    ranked = sorted(classes, key=lambda key: (of_class[key][0], -of_class[key][1]))
    order = [n for key in ranked for n in sorted(classes[key], key=lambda n: -alone.get(n, 0.0))]
    sizes = range(1, len(order))  # none does not fit, and all fit
    kept = order[: 1 + bisect_left(sizes, True, key=lambda size: tried(order[:size], count)[0])]
    reasons.update((node, BUDGET) for node in kept)
    return tried(kept, count)[1]


def _class(node: Node) -> Hashable:
    """A key that is equal for similar nodes of repeated blocks: the same operator with the same neighboring operators."""
    makers = tuple(v.producer.op if v is not None and v.producer is not None else "" for v in node.inputs)
    readers = tuple(sorted({user.op for v in node.present_outputs for user, _ in v.uses}))
    return node.domain, node.op, makers, readers


def _rounded_run(slots: Slots, function: Kernel, operands: tuple[Any, ...]) -> Any:
    rounded = [_rounded(x) if i in slots.inputs else x for i, x in enumerate(operands)]
    results = as_tuple(function(*rounded))
    return tuple(_rounded(y) if i in slots.outputs else y for i, y in enumerate(results))


def _rounded(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _magnitude(x: Array) -> float:
    """The largest finite magnitude."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))


def _relative_error(exact: Array, rounded: Array) -> float:
    """RMS of the error divided by RMS of the exact values; infinite if an element is finite in only one of the two."""
    finite = np.isfinite(exact)
    if not np.array_equal(finite, np.isfinite(rounded)):
        return math.inf
    power = float(np.mean(np.square(exact[finite], dtype=np.float64))) if finite.any() else 0.0
    error = float(np.mean(np.square(exact[finite] - rounded[finite], dtype=np.float64))) if finite.any() else 0.0
    return math.sqrt(error / power) if power else math.inf if error else 0.0
