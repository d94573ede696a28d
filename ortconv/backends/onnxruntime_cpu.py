"""The backend "onnxruntime": the CPU provider of the real runtime.

Its graph optimizations are switched off, so that it computes the model as written; "onnxruntime:default" keeps the default session
options of an app. Both run on one thread and log nothing. Where its products overflow on this processor, a copy of the model with
other weights runs, which computes what phones compute (see `onnxruntime_overflow`).
"""

from __future__ import annotations

import json
import re
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from ctypes import string_at
from functools import cache, partial
from math import prod
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any, NamedTuple

import numpy as np

from ortconv.backends import onnxruntime_overflow
from ortconv.errors import BackendError, UsageError
from ortconv.files import is_draft, temporary_folder
from ortconv.ir.graph import Node
from ortconv.ir.schema import Schema, overwritten_inputs, schema_of
from ortconv.ir.tensor import RuntimeValue
from ortconv.ir.types import DType
from ortconv.ortformat.functions import has_body
from ortconv.process import disable_telemetry, drop_mappings, private_mappings, repeatedly
from ortconv.runtime.backend import Program, Region, TimedStep
from ortconv.runtime.deadline import Deadline, TimeLimitError, deadline
from ortconv.watch import risky


def runtime() -> Any:
    """The package onnxruntime, with telemetry off. No other module imports it."""
    disable_telemetry()
    import onnxruntime

    return onnxruntime


def version() -> str:
    """The release of onnxruntime, such as 1.32.0."""
    return str(runtime().__version__)


DEFAULT = "default"
TYPE_NAMES = {DType.FLOAT: "float", DType.DOUBLE: "double"}


class OnnxRuntime:
    """Runs regions on onnxruntime. `settings` is empty, or "default" for the default session options of an app."""

    name = "onnxruntime"

    def __init__(self, settings: str = "") -> None:
        self._settings = settings

    def configured(self, settings: str) -> OnnxRuntime:
        if settings != DEFAULT:
            raise UsageError(f"the backend 'onnxruntime' has no setting '{settings}'", hint=f"onnxruntime:{DEFAULT}")
        return OnnxRuntime(settings)

    def available(self) -> str | None:
        try:
            runtime()
        except ImportError as error:
            return f"onnxruntime cannot be imported: {error}"
        return None

    def objections(self, node: Node) -> Iterator[str]:
        """Objections to operators without a kernel. All other problems are reported when a session is created."""
        for sub in (node, *(n for g in node.subgraphs for n in g.walk())):
            reason = _objection(sub)
            if reason is not None and not has_body(sub):
                yield reason

    def compile(self, region: Region) -> Program:
        return _Program(region, self._settings == DEFAULT)


def _objection(node: Node) -> str | None:
    """The reason why no kernel supports the node. Domains unknown to onnxruntime are left to custom operator libraries."""
    schema = schema_of(node)
    if schema is None or node.domain not in _domains():
        return None
    name = f"{node.domain + ':' if node.domain else ''}{node.op} version {schema.since}"
    kernels = _kernels().get((node.domain, node.op), ())
    fitting = [k.types for k in kernels if k.first <= schema.since <= k.last]
    if not fitting:
        return f"no kernel for {name}"
    for formal, type in _tensor_types(node, schema):
        fitting = [types for types in fitting if formal not in types or type in types[formal]]
        if not fitting:
            return f"no kernel for {name} on {type}"
    return None


def _tensor_types(node: Node, schema: Schema) -> Iterator[tuple[str, str]]:
    """The formal type and the type of each tensor that a node reads or makes. float16 is left out, since onnxruntime casts it to
    float32 if it has no float16 kernel.
    """
    formals = [schema.formal_input(slot) for slot in range(len(node.inputs))]
    for formal, value in zip((*formals, *schema.outputs), (*node.inputs, *node.outputs)):
        dtype = None if value is None else value.dtype
        if formal is not None and dtype is not None and dtype is not DType.FLOAT16:
            yield formal.type, f"tensor({TYPE_NAMES.get(dtype, dtype.name.lower())})"


class _Kernel(NamedTuple):
    """The versions of an operator that a kernel implements, and the types that it supports by formal type."""

    first: int
    last: int
    types: dict[str, list[str]]


@cache
def _kernels() -> dict[tuple[str, str], list[_Kernel]]:
    """The CPU provider's kernels by domain and operator; empty if onnxruntime does not list them."""
    kernel_defs = getattr(runtime().capi._pybind_state, "get_all_opkernel_def", None)
    if kernel_defs is None:
        return {}
    found: dict[tuple[str, str], list[_Kernel]] = {}
    for k in kernel_defs():
        if k.provider == "CPUExecutionProvider":
            first, last = k.version_range
            found.setdefault((k.domain, k.op_name), []).append(_Kernel(first, last, k.type_constraints))
    return found


@cache
def _domains() -> set[str]:
    """The domains of the CPU provider's kernels."""
    return {domain for domain, _ in _kernels()}


class ModelFile:
    """A model file opened by onnxruntime, with the session options of an app, or without optimizations.

    `entries` are further session entries. Pages of the `external` files leave the process's memory during runs. `notes` says so if
    a copy of the file runs. Raises BackendError with onnxruntime's message if it does not load or run the file.
    """

    def __init__(
        self, file: Path, *, default: bool, custom_op_library: Path | None = None, entries: Mapping[str, str] | None = None,
        external: Collection[Path] = (),
    ) -> None:  # fmt: skip
        self._name = _name(str(file), default)
        session, is_copy = _session(str(file), custom_op_library, default=default, entries=entries)
        self._call, self.notes = _runner(session), (onnxruntime_overflow.NOTE,) if is_copy else ()
        self._mappings = private_mappings(external) if external else []

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, in the order of the file."""
        frugal = repeatedly(partial(drop_mappings, self._mappings)) if self._mappings else nullcontext()
        with frugal, risky(f"onnxruntime running {self._name}"):
            return _run(self._call, None, feeds)


class _Program:
    def __init__(self, region: Region, default: bool) -> None:
        self._region, self._default = region, default
        self._has_run = False
        self._overwrites = any(map(overwritten_inputs, region.nodes))
        self._session = self._made()
        known = {i.name for i in (*self._session.get_inputs(), *self._session.get_overridable_initializers())}
        self._inputs = [v.name if v.name in known else None for v in region.inputs]
        self._outputs = [v.name for v in region.outputs]
        if region.file is not None:  # it may return one value twice, which in the graph has two names
            names = (output.name for output in self._session.get_outputs())
            self._outputs = [n for n, v in zip(names, region.graph.outputs, strict=True) if v.producer is not None]
        self._call = _runner(self._session)

    def _made(self, profile: str | None = None) -> Any:
        region = self._region
        if region.file is not None:
            model: str | bytes = str(region.file)
        else:
            from ortconv.onnxio.proto import region_proto

            model = region_proto(region.graph, region.nodes, region.inputs, region.outputs).SerializeToString()
        self._name = _name(model, self._default)
        return _session(model, region.custom_op_library, self._default, region.threads, profile)[0]

    def run(self, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        if self._has_run:  # crashes happen in the first run, and the protection would add to the time of each run
            return self._run(self._call, inputs)
        with risky(f"onnxruntime running {self._name}"):
            results = self._run(self._call, inputs)
        self._has_run = True
        return results

    def profile(self, inputs: Sequence[RuntimeValue]) -> tuple[list[RuntimeValue], list[TimedStep]]:
        """Like `run`, with the steps; it uses a separate session that has run once before."""
        with temporary_folder() as folder:
            session = self._made(f"{folder}/run")
            call = _runner(session)
            self._run(call, inputs)
            start = time.perf_counter()
            results = self._run(call, inputs)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return results, list(_events(events, start))

    def _run(self, call: _Call, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        feeds = {name: value for name, value in zip(self._inputs, inputs, strict=True) if name is not None}
        return _run(call, self._outputs, deepcopy(feeds) if self._overwrites else feeds)


_Call = Callable[[Sequence[str] | None, Mapping[str, Any], Any], Sequence[Any]]
"""What runs a session: names of outputs, inputs, run options."""

BYTES = {f"tensor({t.name.lower()})": t for t in DType if t is DType.BFLOAT16 or t.name.startswith("FLOAT8")}
"""Types that numpy does not have. onnxruntime takes and returns their bytes."""


def _runner(session: Any) -> _Call:
    """The method `run` of a session, also for inputs and outputs of these types."""
    if any(arg.type in BYTES for arg in (*session.get_inputs(), *session.get_outputs())):
        return partial(_run_on_bytes, session)
    run: _Call = session.run
    return run


def _run_on_bytes(session: Any, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any) -> list[Any]:
    values = {name: _value(fed) for name, fed in feeds.items()}
    return [_array(result) for result in session.run_with_ort_values(names, values, options)]


def _value(array: Any) -> Any:
    """An OrtValue with these elements."""
    make = runtime().OrtValue
    dtype = DType.of(array.dtype)
    if dtype in BYTES.values():
        return make.ortvalue_from_numpy_with_onnx_type(array.view(f"u{dtype.bits // 8}"), int(dtype))
    return make.ortvalue_from_numpy(array)


def _array(value: Any) -> Any:
    dtype = BYTES.get(value.data_type())
    if dtype is None:
        return value.numpy()
    shape = tuple(value.shape())
    size = prod(shape) * dtype.numpy.itemsize
    return np.frombuffer(string_at(value.data_ptr(), size) if size else b"", dtype.numpy).reshape(shape)


def _run(call: _Call, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
    options = runtime().RunOptions()
    try:
        with ending_in_time(partial(setattr, options, "terminate", True)):
            results = call(names, feeds, options)
    except TimeLimitError:
        raise
    except Exception as error:
        raise BackendError(_first_line(error), backend="onnxruntime") from error
    return [_dense(result) for result in results]


@contextmanager
def ending_in_time(end: Callable[[], object]) -> Iterator[None]:
    """Context manager for a run: at the deadline, if there is one, `end` makes it fail. Raises TimeLimitError then."""
    limit, over, late = deadline(), Event(), Event()
    if limit is None:
        yield
        return
    left = countdown(limit)

    def watch() -> None:
        while (seconds := left()) > 0:
            if over.wait(seconds):
                return
        late.set()
        end()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            raise TimeLimitError("the run exceeds its time limit", backend="onnxruntime") from error
        raise
    finally:
        over.set()
        watcher.join()


def countdown(limit: Deadline) -> Callable[[], float]:
    """A function that returns, in any thread, the seconds until a deadline of this thread."""
    if sys.platform == "linux":
        clock = time.pthread_getcpuclockid(get_ident())
        return lambda: min(limit.real - time.perf_counter(), limit.cpu - time.clock_gettime(clock))
    # Elsewhere, no thread can read the CPU time of another one.
    real = min(limit.real, time.perf_counter() + limit.cpu - time.thread_time())
    return lambda: real - time.perf_counter()


def _dense(result: Any) -> Any:
    """A result as an array: onnxruntime returns a sparse constant that is an output as a sparse tensor."""
    if not hasattr(result, "dense_shape"):
        return result
    try:
        values = result.values()
    except RuntimeError as error:
        reason = f"onnxruntime returns a {result.data_type()}, which its Python API cannot read"
        raise BackendError(reason, backend="onnxruntime") from error
    array = np.zeros(result.dense_shape(), values.dtype)
    array.flat[result.get_coo_data().indices()] = values
    return array


def _session(
    model: str | bytes,
    library: Path | None,
    default: bool,
    threads: int = 1,
    profile: str | None = None,
    entries: Mapping[str, str] | None = None,
) -> tuple[Any, bool]:
    """A session for a model, or for a copy of it whose products do not overflow here. The flag is true for a copy."""
    options = session_options(library, threads, {**onnxruntime_overflow.ENTRIES, **(entries or {})})
    name = _name(model, default)
    if not default:
        options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    session = opened(model, options, name)
    copy = onnxruntime_overflow.exact(model)
    return (session, False) if copy is None else (opened(copy, options, name), True)


def opened(model: str | bytes, options: Any, name: str) -> Any:
    """A session on the CPU. `name` is that of the model in messages."""
    with native(f"opening {name}"):
        return runtime().InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=False)


@contextmanager
def native(call: str) -> Iterator[None]:
    """Context manager for a call of onnxruntime that may crash. Raises BackendError with onnxruntime's message if it fails."""
    try:
        with risky(f"onnxruntime {call}"):
            yield
    except BackendError:
        raise
    except Exception as error:
        reason = _first_line(error)
        raise BackendError(reason, backend="onnxruntime", hint=remedy(reason)) from error


def _name(model: str | bytes, default: bool) -> str:
    """A name for messages that is the same in another process, where drafts have other file names."""
    if isinstance(model, bytes):
        name = f"a part of the model ({zlib.crc32(model):08x})"
    else:
        name = "the result" if is_draft(Path(model)) else Path(model).name
    return f"{name}, optimizing it" if default else name


def _events(records: list[dict[str, Any]], start: float) -> Iterator[TimedStep]:
    """The profiled nodes of the last run, without those in subgraphs; times are relative to `start`."""
    began = end = max(r["ts"] for r in records if r["name"] == "model_run")
    nodes = [r for r in records if r["cat"] == "Node" and r["ts"] >= began]
    for r in sorted(nodes, key=lambda r: (r["ts"], -r["dur"])):
        if r["ts"] < end:
            continue
        end = r["ts"] + r["dur"]
        op = r["args"].get("op_name", "")
        shapes = tuple(tuple(s) for entry in r["args"].get("output_type_shape", ()) for s in entry.values())
        name = r["name"].removesuffix("_kernel_time") or op
        yield TimedStep(name, op, "onnxruntime", start + (r["ts"] - began) * 1e-6, r["dur"] * 1e-6, shapes)


def _first_line(error: Exception) -> str:
    """The first line of onnxruntime's message, without places in its sources."""
    text = str(error).strip()
    return without_places(text.splitlines()[0]) if text else type(error).__name__


_PLACE = re.compile(r"(?<!\S)/\S+\.(?:cc|h):\d+ ")
"""A file of onnxruntime's sources and a line. The signature of a function follows."""

_END_OF_SIGNATURE = re.compile(r"(?: const)?(?: \[with .*?\])? ")


def without_places(message: str) -> str:
    """A message of onnxruntime without the names of files and functions of its sources."""
    place = _PLACE.search(message)
    opening = message.find("(", place.end()) if place else -1
    if place is None or opening < 0:
        return message
    depth = 0
    for at in range(opening, len(message)):
        depth += (message[at] == "(") - (message[at] == ")")
        if depth == 0 and (end := _END_OF_SIGNATURE.match(message, at + 1)):
            return message[: place.start()] + without_places(message[end.end() :])
    return message


_REMEDIES = (
    ("is not a registered function/op", "--custom-op-library FILE gives onnxruntime the library with this operator"),
    ("Could not find an implementation", "onnxruntime's CPU has no kernel for the node's types: export it with others"),
    (
        "Failed to construct locale",
        "this system lacks the locale of a StringNormalizer, by default en_US.UTF-8: install it",
    ),
)
"""(part of a message of onnxruntime, advice)."""


def remedy(message: str) -> str | None:
    """Advice on a message with which onnxruntime refuses a model, if there is any."""
    return next((advice for part, advice in _REMEDIES if part in message), None)


def session_options(library: Path | None, threads: int, entries: Mapping[str, str]) -> Any:
    """Session options with few messages and a library's operators. Raises UsageError if onnxruntime cannot use the library."""
    options = runtime().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if library is not None:
        try:
            options.register_custom_ops_library(str(library.absolute()))
        except Exception as error:
            message = f"onnxruntime cannot use the library of custom operators: {_first_line(error)}"
            hint = "build it for this system and this release of onnxruntime; it must export RegisterCustomOps"
            raise UsageError(message, file=library, hint=hint) from error
    return options
