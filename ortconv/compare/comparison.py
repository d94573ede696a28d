"""Compares models: their outputs on the same inputs, and the first inner value that differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ortconv.compare.layers import ComparedLayer, Loss, compare_layers, largest_loss
from ortconv.compare.measure import Measure, measure
from ortconv.compare.tolerance import allowance, random_outputs
from ortconv.errors import BackendError, ModelError, OrtconvError, UsageError
from ortconv.inputs.candidates import candidates
from ortconv.inputs.feeds import Draw, Feeds
from ortconv.ir.graph import Graph, Node
from ortconv.ir.model import Model
from ortconv.ir.types import Dim
from ortconv.models import load
from ortconv.public import public
from ortconv.runtime.backend import discover
from ortconv.runtime.session import Session

SUSPECTS = 3
"""Maximum number of suspected rewrites listed for a difference."""

WORST: Mapping[str, Callable[[list[float]], float]] = {
    "max_abs": max,
    "scaled": max,
    "ulp": max,
    "cosine": min,
    "snr": min,
}
"""The measures, and the choice of the worst value of each."""


class Origin(NamedTuple):
    """The relation of a model to the first one: names in the first model to names in this one, and rewrites by node label."""

    names: Mapping[str, str]
    rewrites: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, with backends in order of preference. `file` is its unchanged file."""

    label: str
    model: Model
    backends: tuple[str, ...]
    file: Path | None = None
    origin: Origin | None = None

    def session(self, custom_op_library: Path | None = None) -> Session:
        whole = self.file if self.file is not None and self.backends == ("onnxruntime",) else self.model
        try:
            return Session(whole, self.backends, custom_op_library=custom_op_library)
        except ModelError as error:
            error.at(file=self.label)
            raise


@dataclass(frozen=True, slots=True)
class Output:
    """An output of two models. If it `is_random`, only its type and shape have to be the same. `floor` is an absolute difference
    that does not matter.
    """

    name: str
    found: Measure
    limit: float
    floor: float
    is_random: bool = False

    @property
    def is_near(self) -> bool:
        return self.found.within(self.limit, self.floor)

    @property
    def same(self) -> bool:
        return self.is_near or (self.is_random and self.found.mismatch is None)


@dataclass
class Comparison:
    """The differences of a model from the first one, in outputs and, if requested, inner values."""

    subject: Subject
    outputs: list[Output]
    layers: list[ComparedLayer] | None = None
    suspects: list[str] = field(default_factory=list)
    """Rewrites between the first value that differs and the nearest values that do not."""

    def __repr__(self) -> str:
        same = sum(o.same for o in self.outputs)
        return f"<Comparison with {self.subject.label}: {same} of {len(self.outputs)} outputs the same>"

    @property
    def same(self) -> bool:
        return all(o.same for o in self.outputs)

    @property
    def first(self) -> ComparedLayer | None:
        """The first value that differs."""
        return next((layer for layer in self.layers or () if not layer.same), None)

    @property
    def loss(self) -> Loss | None:
        """The value that adds most to the distance."""
        return largest_loss(self.layers or ())


def metrics(found: Sequence[Comparison]) -> dict[str, float]:
    """The worst value of each measure over all outputs, and the number of outputs and, if they were compared, inner values that
    differ.
    """
    outputs = [o for one in found for o in one.outputs]
    numbers = {name: _worst(name, [getattr(o.found, name) for o in outputs]) for name in WORST}
    numbers["outputs"] = sum(not o.same for o in outputs)
    layers = [one.layers for one in found]
    if None not in layers:
        numbers["layers"] = sum(not layer.same for inner in layers for layer in inner or ())
    return numbers


def _worst(name: str, values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return float(WORST[name](known)) if known else math.nan


@public
def subject(text: str, backends: Sequence[str]) -> Subject:
    """Load the model of PATH or PATH@BACKEND[,BACKEND...]; backends in the text replace the given ones. Raises UsageError if there
    is no model.
    """
    path, at, names = text.rpartition("@")
    own = tuple(names.split(",")) if at and not Path(text).exists() else ()
    path = path if own else text
    if not path or not Path(path).exists():
        raise UsageError(f"there is no file '{path}'", hint=f"backends follow an @: {', '.join(sorted(discover()))}")
    if not Path(path).is_file():
        raise UsageError("not a regular file", file=path)
    return Subject(text, load(path, only_to_run=True), own or tuple(backends), Path(path))


@public
def compare(
    subjects: Sequence[Subject],
    arrays: Mapping[str, Any] | None = None,
    draws: Mapping[str, Draw] | None = None,
    seed: int = 0,
    *,
    layers: bool = False,
    custom_op_library: Path | None = None,
) -> tuple[Feeds, list[Comparison]]:
    """Run all models on the same inputs, and compare each with the first. Raises UsageError if their inputs or outputs do not
    match.

    Missing inputs are generated for the first model, such that all models accept them.
    """
    if seed < 0:
        raise UsageError(f"seed is {seed}", hint="it must be 0 or more")
    _check_all_alike(subjects)
    reference = subjects[0]
    sessions = [s.session(custom_op_library) for s in subjects]
    arrays, draws = arrays or {}, draws or {}
    if not arrays and all(draw.shape is None for draw in draws.values()):
        draws = _shaped(subjects, draws)
    feeds, results = _run_all(sessions, subjects, candidates(reference.model.graph, seed, arrays, draws))
    found = []
    for other, got in zip(subjects[1:], results[1:], strict=True):
        found.append(Comparison(other, _outputs(reference.model.graph, other.model.graph, results[0], got)))
        if layers:
            _look_inside(reference, found[-1], feeds, custom_op_library)
    return feeds, found


def _outputs(first: Graph, second: Graph, want: Sequence[Any], got: Sequence[Any]) -> list[Output]:
    """The outputs of two graphs, with their values in the order of the first graph."""
    dtypes, random = [v.dtype for v in first.outputs], random_outputs(first)
    one, other = allowance(first, dtypes), allowance(second, dtypes)
    limit, counterparts = max(one.limit, other.limit), {v.name: v for v in second.outputs}
    found = []
    for k, (value, a, b) in enumerate(zip(first.outputs, want, got, strict=True)):
        floor = max(one.floor(value), other.floor(counterparts[value.name]))
        found.append(Output(value.name, measure(a, b), limit, floor, k in random))
    return found


def _shaped(subjects: Sequence[Subject], draws: Mapping[str, Draw]) -> dict[str, Draw]:
    """The draws, with the shapes of inputs whose free dimensions other models fix, as a conversion with fixed sizes does."""
    found = dict(draws)
    graphs = [s.model.graph for s in subjects]
    for value in graphs[0].inputs:
        same = (v.shape for graph in graphs for v in graph.inputs if v.name == value.name)
        known = [shape for shape in same if shape is not None and len(shape) == value.rank]
        sizes = [size for axis in zip(*known, strict=True) if (size := _fixed_size(axis)) is not None]
        if value.const is None and len(sizes) == value.rank and value.shape != tuple(sizes):
            found[value.name] = draws.get(value.name, Draw())._replace(shape=tuple(sizes))
    return found


def _fixed_size(dims: Iterable[Dim]) -> int | None:
    return next((dim for dim in dims if isinstance(dim, int)), None)


def _run_all(
    sessions: Sequence[Session], subjects: Sequence[Subject], trials: Iterable[Feeds]
) -> tuple[Feeds, list[list[Any]]]:
    """The first set of inputs that all sessions accept, and the outputs of each session in the order of the first."""
    names = [a.name for a in sessions[0].get_outputs()]
    failure: OrtconvError | None = None
    for feeds in trials:
        results = []
        for session, subject in zip(sessions, subjects, strict=True):
            try:
                results.append(session.run(names, feeds))
            except UsageError as error:
                error.at(file=subject.label)
                raise
            except BackendError as error:
                failure = failure or error.at(file=subject.label)
                break
        else:
            return feeds, results
    assert failure is not None
    raise failure


def _check_all_alike(subjects: Sequence[Subject]) -> None:
    if not subjects:
        raise UsageError("subjects is empty", hint="give the models to compare, the first is the reference")
    for other in subjects[1:]:
        _check_alike(subjects[0], other)


def _check_alike(a: Subject, b: Subject) -> None:
    for kind in ("input", "output"):
        first, second = (
            {v.name for v in getattr(s.model.graph, f"{kind}s") if kind == "output" or v.const is None} for s in (a, b)
        )
        for here, there, names, others in ((a, b, first, second), (b, a, second, first)):
            missing = sorted(names - others)
            if missing:
                has = ", ".join(sorted(others)) or "none"
                message = f"{kind} '{missing[0]}' of {here.label} does not exist in {there.label}"
                raise UsageError(message, hint=f"{there.label} has the {kind}s {has}")


def _look_inside(reference: Subject, one: Comparison, feeds: Feeds, custom_op_library: Path | None) -> None:
    origin = one.subject.origin
    first, second = reference.model.graph, one.subject.model.graph
    names = None if origin is None else {**origin.names, **{v.name: v.name for v in first.outputs}}
    backends = reference.backends, one.subject.backends
    one.layers = list(compare_layers(first, second, backends, feeds, names, custom_op_library))
    if origin is not None and one.first is not None:
        good = {layer.other for layer in one.layers if layer.same}
        between = _between(second, one.first.node, good)
        one.suspects = list(dict.fromkeys(r for n in between if (r := origin.rewrites.get(n.label))))[:SUSPECTS]


def _between(graph: Graph, node: Node, good: Iterable[str]) -> list[Node]:
    """The node and its ancestors up to values in `good`, nearest first."""
    known, seen, stack = set(good), {node}, [node]
    for one in stack:
        for value in one.present_reads:
            producer = value.producer
            if producer is not None and producer not in seen and producer.graph is graph and value.name not in known:
                seen.add(producer)
                stack.append(producer)
    return stack
