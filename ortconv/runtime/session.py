"""Sessions: a model prepared once on one or more backends, and run many times."""

from __future__ import annotations

import os
import reprlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ortconv.errors import BackendError, UsageError, nearest
from ortconv.executor.guard import SMALLER
from ortconv.executor.replay.numerics import kernel_settings
from ortconv.ir.graph import Graph, Value
from ortconv.ir.model import Model
from ortconv.ir.schema import draws
from ortconv.ir.symbols import is_stated
from ortconv.ir.tensor import Array, RuntimeValue, dense
from ortconv.ir.types import DType, TensorType, restored
from ortconv.models import ModelSource, load
from ortconv.public import public
from ortconv.runtime.backend import Backend, Closeable, Profiled, Program, Region, TimedStep, reference_of, resolve
from ortconv.runtime.placement import last_uses, place, split
from ortconv.wording import counted, listed

MOST_THREADS = 1024

SHOWN_NAMES = 4
"""Number of names in a hint."""

_Run = Callable[[Program, list[RuntimeValue]], Sequence[RuntimeValue]]
"""Runs a program on its inputs."""


class NodeArg(NamedTuple):
    """An input or output: its name, its type in ONNX's notation such as "tensor(float)", and the shape of a tensor, with None or a
    symbol for a variable dimension. An unknown type is empty.
    """

    name: str
    type: str
    shape: list[int | str | None] | None


class Session:
    """Runs a model. The interface is that of onnxruntime's InferenceSession.

    `model` is anything that `load` accepts or returns. `backends` are names or backend objects in order of preference, or a single
    one: a node runs on the first one that has no objection to it. UnsupportedError is raised for a node that no backend takes. A
    `custom_op_library` contains custom operators for onnxruntime. `threads` is the maximum number of threads for a run: the numpy
    backend uses them for matrix products. `close`, or the end of a `with` block, frees the resources of backends.

    `keep` names values of the graph, or nodes, whose results `run` can return in addition to the outputs. The outputs are the same,
    bit for bit, whatever is kept: values that are no output of a region are computed in a separate run, on `numpy:reference` if
    their nodes run on numpy. If nodes draw random numbers without a seed, that run computes the outputs too, so that all values are
    consistent.

    `plan` states for each node where it runs, and why not on an earlier backend; `regions` are the compiled regions in order.
    """

    @public
    def __init__(
        self,
        model: ModelSource | Model,
        backends: str | Backend | Sequence[str | Backend] = ("numpy",),
        *,
        keep: Collection[str] = (),
        custom_op_library: str | Path | None = None,
        threads: int = 1,
    ) -> None:
        library = None if custom_op_library is None else Path(custom_op_library)
        self._closed = False
        self.model = model if isinstance(model, Model) else load(model, only_to_run=True)
        self._file = _named_file(model)
        self._graph = self.model.graph
        self.backends = resolve(backends)
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
            raise UsageError(
                f"a session needs at least one thread and at most {MOST_THREADS}, not {reprlib.repr(threads)}"
            )
        self.kept = _kept(self._graph, (keep,) if isinstance(keep, str) else keep)
        self.plan = place(self._graph, self.backends)
        self.regions = tuple(split(self._graph, self.plan, (), self._file, library, threads))
        self._main = _Sequence(self._graph, self.regions, self.backends, self.kept)
        self._observed = {v for v in self.kept if v not in self._main.makes}
        self._observer = self._make_observer(library, threads) if self._observed else None

    def _make_observer(self, library: Path | None, threads: int) -> _Sequence:
        """The programs that compute observed values. Outputs are observed too if nodes draw random numbers without a seed."""
        regions = split(self._graph, self.plan, self._observed, None, library, threads)
        references = [reference_of(b) for b in self.backends]
        observer = _Sequence(self._graph, regions, references, self._observed)
        if any(draws(node) and "seed" not in node.attrs for node in self._graph.walk()):
            self._observed.update(self._graph.outputs)
        return observer

    def __repr__(self) -> str:
        name = self.model.path or self.model.graph.name or "a model"
        names = ", ".join(b.name for b in self.backends)
        return f"<Session of {name} on {names}{', closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [_node_arg(v) for v in self._graph.inputs if v.const is None]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default value."""
        return [_node_arg(v) for v in self._graph.overridable]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self._graph.outputs]

    @public
    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs or kept values with these names (None: all outputs).

        Raises UsageError if an input is missing, unknown, or of the wrong type or shape.
        """
        return self._run(output_names, input_feed, lambda program, inputs: program.run(inputs))

    @public
    def profile(self, input_feed: Mapping[str, Any]) -> list[TimedStep]:
        """The steps of one run with their times. A program that cannot measure steps counts as one step."""
        events: list[TimedStep] = []
        names = iter(self.regions)

        def run(program: Program, inputs: list[RuntimeValue]) -> Sequence[RuntimeValue]:
            name, region = next(names)
            start = time.perf_counter()
            if isinstance(program, Profiled):
                results, steps = program.profile(inputs)
                events.extend(steps)
                return results
            results = program.run(inputs)
            what = f"{counted(len(region.nodes), 'node')} from {region.nodes[0].label}"
            events.append(TimedStep(what, "region", name, start, time.perf_counter() - start))
            return results

        self._run((), input_feed, run)
        return events

    def close(self) -> None:
        """Free the resources of backends. Later runs raise UsageError."""
        if self._closed:
            return
        self._closed = True
        for sequence in (self._main, self._observer):
            if sequence is not None:
                sequence.close()

    def _run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run: _Run) -> list[RuntimeValue]:
        if self._closed:
            raise UsageError("the session is closed", hint="make another one")
        if not isinstance(input_feed, Mapping):
            raise UsageError(
                f"inputs are given by name, not as a {type(input_feed).__name__}", hint="run(None, {'x': array})"
            )
        wanted = self._wanted(output_names)
        values = check_feeds(self._graph, input_feed)
        fed = list(values.values())
        with kernel_settings():
            if self._observer is None:
                self._main.run(values, run)
            else:
                values = self._run_observed(self._observer, values, wanted, run)
        try:
            return [_result(values[v] if v in values else _default(v), fed) for v in wanted]
        except MemoryError as error:
            name = self.regions[-1][0] if self.regions else self.backends[0].name
            raise BackendError("the outputs need more memory than there is", backend=name, hint=SMALLER) from error

    def _run_observed(
        self, observer: _Sequence, values: dict[Value, RuntimeValue], wanted: Sequence[Value], run: _Run
    ) -> dict[Value, RuntimeValue]:
        """All wanted values: observed ones from the observer, the others from the main programs."""
        observed = self._observed.intersection(wanted)
        found = values.copy()
        if observed:
            observer.run(found, lambda program, inputs: program.run(inputs))
        if not wanted or not observed.issuperset(wanted):
            self._main.run(values, run)
        return values | {v: found[v] for v in observed if v in found}

    def _wanted(self, names: Sequence[str] | None) -> Sequence[Value]:
        if names is None:
            return self._graph.outputs
        return [self._output(name) for name in ((names,) if isinstance(names, str) else names)]

    def _output(self, name: str) -> Value:
        for value in (*self._graph.outputs, *self.kept):
            if value.name == name:
                return value
        raise UsageError(
            f"there is no output '{name}'", hint=f"outputs: {', '.join(v.name for v in self._graph.outputs)}"
        )


class _Sequence:
    """The programs of regions, in the order in which they run."""

    def __init__(
        self, graph: Graph, regions: Sequence[tuple[str, Region]], backends: Sequence[Backend], keep: Collection[Value]
    ) -> None:
        by_name = {b.name: b for b in backends}
        parts = [region for _, region in regions]
        self.makes = {v for region in parts for v in (*region.inputs, *region.outputs)}
        self._dead = last_uses(parts, (*graph.outputs, *graph.inputs, *keep))
        with np.errstate(all="ignore"):
            self.programs = [(by_name[name].compile(region), region) for name, region in regions]
        self._names = [name for name, _ in regions]

    def run(self, values: dict[Value, RuntimeValue], run: _Run) -> None:
        """Run the programs. Add the outputs of regions to `values`, and remove values that are no longer needed."""
        for (program, region), name, dead in zip(self.programs, self._names, self._dead, strict=True):
            try:
                results = run(program, [values[v] for v in region.inputs])
            except MemoryError as error:
                what = f"{counted(len(region.nodes), 'node')} from {region.nodes[0].label}"
                raise BackendError(f"{what} need more memory than there is", backend=name, hint=SMALLER) from error
            values.update(zip(region.outputs, results, strict=True))
            for value in dead:
                del values[value]

    def close(self) -> None:
        for program, _ in self.programs:
            if isinstance(program, Closeable):
                program.close()


def _named_file(model: ModelSource | Model) -> Path | None:
    """The file of a model if its suffix is one that onnxruntime recognizes, so that onnxruntime can open it itself."""
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    return path if path is not None and path.suffix.lower() in (".onnx", ".ort") else None


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> dict[Value, RuntimeValue]:
    """The value fed to every input of a graph, defaults included. Raises UsageError if a name, type or shape does not fit."""
    inputs = {v.name: v for v in graph.inputs}
    unknown = [name for name in feeds if name not in inputs]
    if unknown:
        raise UsageError(f"there is no input '{unknown[0]}'", hint=f"inputs: {', '.join(inputs)}")
    values: dict[Value, RuntimeValue] = {}
    for name, value in inputs.items():
        if name in feeds:
            values[value] = check_feed(value, feeds[name])
        elif value.const is None:
            raise UsageError(f"input '{name}' is missing", hint=f"feed {value.type}")
        else:
            values[value] = _default(value)
    return values


def check_feed(value: Value, fed: RuntimeValue) -> RuntimeValue:
    """The value fed to an input, as an array if the input is a tensor. Raises UsageError if type or shape do not fit."""
    if not isinstance(value.type, TensorType):
        return fed
    array = np.asarray(fed)
    if array.dtype.type is np.void:
        array = restored(array, value.dtype)
    dtype = check_type(value, array.dtype, array.shape)
    return array.astype(object) if dtype is DType.STRING and array.dtype != object else array


def check_type(value: Value, given: np.dtype[Any], dims: tuple[int, ...]) -> DType | None:
    """The element type of an array with this type and shape. Raises UsageError if it does not fit the input or output."""
    wanted = value.type
    if not isinstance(wanted, TensorType):
        return None
    try:
        dtype = DType.of(given)
    except KeyError:
        raise UsageError(f"input '{value.name}': numpy type {given} does not exist in ONNX") from None
    if dtype is not wanted.dtype or not _fits(dims, wanted.shape):
        known = wanted.dtype
        hint = None if known is None or known is dtype else f"convert it with .astype({known.numpy.name!r})"
        raise UsageError(f"input '{value.name}' must be {wanted}, got {TensorType(dtype, dims)}", hint=hint)
    return dtype


def _fits(dims: Sequence[int], shape: Sequence[int | str | None] | None) -> bool:
    if shape is None:
        return True
    return len(shape) == len(dims) and all(not isinstance(d, int) or d == n for d, n in zip(shape, dims))


def _kept(graph: Graph, names: Collection[str]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(v for name in names for v in _named(graph, name)))


def _named(graph: Graph, name: str) -> list[Value]:
    """The value, or the outputs of the node, with this name. Raises UsageError if there is none that a run can return."""
    if name in graph.initializers:
        return [graph.initializers[name]]
    values = {v.name: v for node in graph for v in node.present_outputs}
    if name in values:
        return [values[name]]
    for node in graph:
        if node.name == name:
            return node.present_outputs
    if any(v.name == name for n in graph.walk() for v in n.present_outputs):
        raise UsageError(f"'{name}' lies inside a subgraph", hint="keep an output of the node that holds the subgraph")
    hint = nearest(name, values) or f"the first values are {listed(list(values), SHOWN_NAMES)}"
    raise UsageError(f"no node makes a value '{name}', nor has that name", hint=hint)


def _default(value: Value) -> Array:
    const = value.const
    assert const is not None
    return dense(const)


def _result(value: RuntimeValue, fed: list[RuntimeValue]) -> RuntimeValue:
    """An output as arrays of its own: never a view of a weight, of an input, or of the memory of another output."""
    if value is None or isinstance(value, (list, dict)):
        return [_result(v, [v]) for v in value] if isinstance(value, list) else value
    array = np.asarray(value)
    is_own = array.flags.writeable and array.base is None and not any(array is f for f in fed)
    return array if is_own else array.copy()


def _node_arg(value: Value) -> NodeArg:
    shape = None if value.shape is None else [d if is_stated(d) else None for d in value.shape]
    return NodeArg(value.name, "" if value.type is None else value.type.notation, shape)
