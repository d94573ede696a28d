"""The protocol of backends, and the search for installed backends.

A backend is an object with a `name` and three functions. Built-in backends and those of other packages are found through the same
entry point group, "ortconv.backends": name = "module:Class". The class is called without arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from ortconv.errors import BackendError, UsageError, nearest
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import RuntimeValue
from ortconv.ir.units import NodeUnit

GROUP = "ortconv.backends"

BUILT_IN = {
    "numpy": "ortconv.backends.numpy_cpu:Numpy",
    "onnxruntime": "ortconv.backends.onnxruntime_cpu:OnnxRuntime",
    "nnapi": "ortconv.backends.nnapi.backend:Nnapi",
    "litert": "ortconv.backends.litert.backend:LiteRt",
}
"""The entry points of ortconv itself. A table of them saves a search of all installed packages, which takes longer than loading a
small model.
"""


class Region(NamedTuple):
    """Nodes of one graph, in topological order, that one backend runs as a unit.

    `inputs` are the values fed to it, without constants; `outputs` are those that others read. `file` is the model file if the
    region is the whole unchanged model.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    file: Path | None = None
    custom_op_library: Path | None = None
    """A shared library with custom operators, for backends that can load it."""
    units: tuple[NodeUnit, ...] = ()
    """The units of the nodes as claimed by the backend; empty if it accepts nodes one by one."""
    threads: int = 1
    """Maximum number of threads for a run, for backends that support more than one."""


class Program(Protocol):
    """A compiled region."""

    def run(self, inputs: Sequence[RuntimeValue]) -> Sequence[RuntimeValue]:
        """The region's outputs for its inputs: arrays, lists for sequences, None for an empty optional.

        An output that the program never computes is also None; no other region may read it.
        """
        ...


class TimedStep(NamedTuple):
    """A step of a run: name, operator, backend, start time (seconds of time.perf_counter), duration
    in seconds, and output shapes.
    """

    name: str
    op: str
    backend: str
    start: float
    seconds: float
    shapes: tuple[tuple[int, ...] | None, ...] = ()


@runtime_checkable
class Profiled(Program, Protocol):
    """A program that can measure the time of each of its steps. Other programs count as one step."""

    def profile(self, inputs: Sequence[RuntimeValue]) -> tuple[Sequence[RuntimeValue], list[TimedStep]]:
        """Like `run`, but also return the steps in order."""
        ...


@runtime_checkable
class Closeable(Program, Protocol):
    """A program that holds resources other than memory."""

    def close(self) -> None:
        """Free the resources. The program cannot run again."""
        ...


@runtime_checkable
class Backend(Protocol):
    name: str

    def available(self) -> str | None:
        """None if the backend can be used here, else the reason why not."""
        ...

    def objections(self, node: Node) -> Iterator[str]:
        """Reasons why the backend does not run a node; empty if it does."""
        ...

    def compile(self, region: Region) -> Program:
        """A program for a region of nodes to which the backend has no objections."""
        ...


class Claim(NamedTuple):
    """The groups of units that a backend takes from a graph, each to run as one region, and the reason against each other node."""

    groups: tuple[tuple[NodeUnit, ...], ...]
    refused: Mapping[Node, str]


class Claiming(Backend, Protocol):
    """A backend that decides on whole groups of nodes, instead of node by node.

    No path leads from a group through another node back into the group. `fallback` names the backend for nodes that are in no group
    and that no other backend of the session takes.
    """

    fallback: str

    def claim(self, graph: Graph) -> Claim: ...


def claims(backend: Backend) -> TypeGuard[Claiming]:
    return hasattr(backend, "claim")  # isinstance would check every member of the protocol on each call


@runtime_checkable
class Accelerated(Backend, Protocol):
    """A backend whose results may differ in rounding if more values are requested."""

    def reference(self) -> Backend:
        """The backend of the same name whose programs compute each node by itself."""
        ...


def reference_of(backend: Backend) -> Backend:
    """The backend that computes observed values: its results do not depend on the set of observed values."""
    return backend.reference() if isinstance(backend, Accelerated) else backend


@runtime_checkable
class Configurable(Protocol):
    """A backend that can be configured by a text."""

    def configured(self, settings: str) -> Backend: ...


def get_backend(name: str) -> Backend:
    """A backend by name, or by NAME:SETTINGS if it is configurable. Raises UsageError for an unknown one, BackendError for one that
    cannot be used here.
    """
    base, _, settings = name.partition(":")
    if base not in BUILT_IN and base not in (found := discover()):
        hint = nearest(base, found) or f"known backends: {', '.join(sorted(found))}"
        raise UsageError(f"there is no backend '{base}'", hint=hint)
    backend = _load(base)
    if settings:
        if not isinstance(backend, Configurable):
            raise UsageError(f"the backend '{base}' has no settings, such as '{settings}'")
        backend = backend.configured(settings)
    reason = backend.available()
    if reason is not None:
        raise BackendError(reason, backend=name)
    return backend


def resolve(backends: str | Backend | Sequence[str | Backend]) -> tuple[Backend, ...]:
    """One backend or several, given by name or as objects, and the fallbacks of those that claim groups. UsageError for none."""
    several = (backends,) if isinstance(backends, str) or not isinstance(backends, Sequence) else backends
    found = [get_backend(b) if isinstance(b, str) else b for b in several]
    if not found:
        raise UsageError("a session needs at least one backend")
    for one in found:
        if not isinstance(one, Backend):
            raise UsageError(f"{one!r} is not a backend", hint=f"choose from {', '.join(sorted(discover()))}")
    names = [b.name for b in found]
    wanted = dict.fromkeys(b.fallback for b in found if claims(b) and b.fallback not in names)
    return (*found, *map(get_backend, wanted))


@cache
def discover() -> dict[str, str]:
    """The names of all backends, each with its "module:Class". Nothing is imported."""
    from importlib.metadata import entry_points

    found: dict[str, str] = {}
    for name, place in [*((e.name, e.value) for e in entry_points(group=GROUP)), *BUILT_IN.items()]:
        if found.setdefault(name, place) != place:
            message = f"two packages offer a backend named '{name}': {found[name]} and {place}"
            raise UsageError(message, hint="uninstall one of them")
    return found


@cache
def _load(name: str) -> Backend:
    place = BUILT_IN.get(name) or discover()[name]
    module, _, attribute = place.partition(":")
    try:
        backend = getattr(import_module(module), attribute)()
    except Exception as error:
        raise BackendError(f"cannot be loaded: {error}", backend=name) from error
    if not isinstance(backend, Backend):
        raise BackendError(f"{place} lacks a part of the backend protocol", backend=name)
    return backend
