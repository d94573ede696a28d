"""The outputs of a source model on each engine that runs it: numpy, and onnxruntime with and without optimizations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any

from ortconv.compare.gap import gap
from ortconv.errors import BackendError, OrtconvError
from ortconv.executor.algorithms.steps import EndlessLoopError
from ortconv.inputs.budget import BeyondBudgetError, Budget, CannotTryError, Clock, TooLargeError, TooSlowError
from ortconv.inputs.feeds import Choice, Feeds, Outputs
from ortconv.inputs.size_search import choices
from ortconv.inputs.trials import Run, Trial, trials
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.schema import overwritten_inputs, unknown_operators
from ortconv.models import load
from ortconv.runtime.deadline import within
from ortconv.runtime.session import Session
from ortconv.validation.engines import Opened, message_of, open_file, run_in_process, runner_of, runtime_name
from ortconv.validation.shrink import can_shrink, shrink
from ortconv.validation.widen import is_narrow
from ortconv.watch import is_watched

HEAVY = 100 << 20
"""Sessions of models with more bytes are not kept, because each holds a copy of the weights."""

MANY = 5000
"""For models with more nodes, onnxruntime's own result is computed only if it is needed to explain a difference: the optimization
takes long.
"""


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Settings of a validation: engines, inputs and budget."""

    engines: tuple[str, ...] = ("numpy", "onnxruntime")
    given: tuple[Mapping[str, Any], ...] = ()
    budget: Budget = field(default_factory=Budget)
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    freeze_initializers: bool = False
    custom_op_library: Path | None = None
    numpy: str = "numpy"
    """The backend for the engine numpy. `numpy:reference` keeps the rounding of accelerated kernels out of the difference."""
    after_each_pass: bool = False
    """True if numpy has accepted the result of each pass before the file is validated."""
    fixed_point: bool = False
    """True if quantized parts of the result are computed in fixed point, which rounds sums earlier than the source does."""
    error_budget: float | None = None
    """Permitted error of float outputs, for a result in float16. With it, generated inputs are only in the usual range."""


class SourceRuns:
    """The outputs of a source model for some sets of inputs, on each engine that runs it."""

    def __init__(self, model: Model, source: Path, settings: ValidationSettings) -> None:
        self.source, self.settings, self.clock = source, settings, Clock(settings.budget)
        graph = model.graph
        self.names = [v.name for v in graph.outputs]
        self.is_narrow = is_narrow(graph)
        self.unknown = unknown_operators(graph)
        self.trials: list[Trial] = []
        self.outputs: dict[str, list[Outputs | None]] = {}
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.is_shrunk = False
        self._choices: dict[Graph, Iterator[Choice]] = {}
        self._obstacles: dict[str, Exception] = {}
        self._late: Future[None] | None = None
        self._own: dict[int, Outputs | None] = {}
        self._opened: Opened | None = None
        self._own_file: Opened | None = None
        self.is_heavy = heavy = model.file_bytes > HEAVY
        external = [source.parent / name for name in model.external]
        self.overwrites = any(map(overwritten_inputs, graph.walk()))
        self.open_file = partial(
            open_file,
            custom_op_library=settings.custom_op_library,
            light=heavy,
            external=external,
            afresh=self.overwrites,
        )
        self.runner_of = partial(runner_of, light=heavy)
        self._shows_own = is_watched() and sum(1 for _ in graph.walk()) <= MANY
        self._pool = ThreadPoolExecutor(1, "onnxruntime")
        opening = self._pool.submit(self._open) if "onnxruntime" in settings.engines else None
        with self.clock:
            self._run_numpy(model)
        if opening is not None:
            self._run_onnxruntime(graph, opening)
        if isinstance(self._obstacles.get("numpy"), TooSlowError) and not self.trials and can_shrink(graph):
            self.clock.reserve(0.25)
            with self.clock:
                self._run_shrunk()
        self._choices.clear()
        self._pool.shutdown(wait=False)

    @property
    def backend(self) -> str:
        """The engine whose outputs are available without waiting; empty if there is none."""
        return "numpy" if "numpy" in self.outputs else "onnxruntime" if "onnxruntime" in self.outputs else ""

    @property
    def why_not_numpy(self) -> str:
        """The reason why the source does not run on numpy."""
        return self.reasons.get("numpy", "numpy was not requested")

    def wait(self) -> None:
        """Wait for the run that takes place during the conversion."""
        if self._late is not None:
            self._late.result()

    def results_of(self, run: Run) -> list[Outputs]:
        """The outputs of another model's run for each set of inputs, within the time that is left."""
        found = []
        for trial in self.trials:
            with within(self.clock.left, cpu=True):
                found.append(run(trial.feeds))
        return found

    # ------------------------------------------------------------------ running the source

    def _collect(self, engine: str, graph: Graph, run: Run) -> None:
        """Select the inputs that an engine accepts, and store its outputs."""
        if graph not in self._choices:
            (self._choices[graph],) = tee(choices(graph, self.clock), 1)
        tried = copy(self._choices[graph])  # each engine begins with the first
        try:
            for trial, results in trials(graph, run, self.settings.given, self.clock, self.notes, tried):
                if trial.is_large and self.settings.error_budget is not None:
                    continue
                self.trials.append(trial)
                self.outputs.setdefault(engine, []).append(results)
        except CannotTryError as error:
            self.reasons[engine] = str(error)
            self._obstacles[engine] = error
        except OrtconvError as error:
            if self.settings.given and error.exit_code == 2:
                raise
            self._obstacles[engine] = error
            self.reasons[engine] = error.message if isinstance(error, BackendError) else f"{engine}: {error}"
        except MemoryError:
            self.reasons[engine] = f"{engine}: a run needs more memory than there is"

    def _run_numpy(self, model: Model) -> None:
        if "numpy" not in self.settings.engines:
            return
        try:
            session = Session(model, [self.settings.numpy])
        except OrtconvError as error:
            self._obstacles["numpy"] = error
            self.reasons["numpy"] = f"numpy: {error}"
        except MemoryError:
            self.reasons["numpy"] = "numpy: the constants alone need more memory than there is"
        else:
            self._collect("numpy", model.graph, self.runner_of(session))
        if isinstance(self._obstacles.get("numpy"), TooLargeError) and can_shrink(model.graph):
            self._run_shrunk()

    def _run_shrunk(self) -> None:
        """Run the source on smaller inputs than it declares. onnxruntime would refuse these."""
        declared = self.reasons["numpy"]
        self.is_shrunk = True
        model = self.loaded()
        session = Session(model, [self.settings.numpy])
        self._collect("numpy", model.graph, partial(session.run, None))
        self.is_shrunk = bool(self.trials)
        if self.trials:
            self.reasons = {"onnxruntime": f"onnxruntime: {declared}"}
            self.notes.append(f"compared on smaller inputs than declared: {declared}")

    def _run_onnxruntime(self, graph: Graph, opening: Future[None]) -> None:
        """Run the source on onnxruntime: during the conversion if the inputs are selected already, else now."""
        if self.is_shrunk or (not self.trials and _is_hopeless(self._obstacles.get("numpy"))):
            return
        if self.trials:
            self._late = self._pool.submit(self._run_beside)
            return
        opening.result()
        if self._opened is not None:
            self.clock.reserve(0.5)
            with self.clock:
                self._collect("onnxruntime", graph, self._opened.run)
            self._opened = None

    def _run_beside(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        found: list[Outputs | None] = []
        for trial in self.trials:
            try:
                with within(self.clock.left / 2, cpu=True):
                    found.append(opened.run(trial.feeds))
            except BackendError as error:
                self.reasons.setdefault("onnxruntime", f"{runtime_name()} does not run the source: {message_of(error)}")
                found.append(None)
        if all(outputs is None for outputs in found) and self.own_outputs(0) is not None:
            found = [self.own_outputs(i) for i in range(len(self.trials))]  # it runs only if it is optimized
        if any(outputs is not None for outputs in found):
            self.outputs["onnxruntime"] = found
            del opened
            if self._shows_own:
                self.own_outputs(0)  # here it runs during the conversion

    def _open(self) -> None:
        """Open the source in onnxruntime. If that fails, store the reason."""
        try:
            self._opened = self.open_file(self.source, default=False)
        except BackendError as error:
            self.reasons.setdefault("onnxruntime", f"{runtime_name()} does not load the source: {message_of(error)}")

    def own_outputs(self, i: int) -> Outputs | None:
        """onnxruntime's outputs of the source with the session options of an app; None if the run fails.

        onnxruntime's optimizations crash on some models. So they run in another process unless this one is watched. Its start takes
        longer than the runs, so it runs the source on all inputs.
        """
        if i not in self._own:
            is_alone = is_watched() or self.is_heavy
            others = [] if is_alone else [k for k in range(len(self.trials)) if k not in {i, *self._own}]
            for chosen in ([i, *others], [i]) if others else ([i],):
                with suppress(OrtconvError), within(self.clock.left / 2):
                    self._own.update(zip(chosen, self._run_own([self.trials[k].feeds for k in chosen]), strict=True))
                    break
            self._own.setdefault(i, None)
        return self._own[i]

    def _run_own(self, feeds: Sequence[Feeds]) -> Sequence[Outputs | None]:
        open_own = partial(self.open_file, self.source, True)
        if not is_watched():
            return run_in_process(open_own, feeds)
        if self._own_file is None:
            self._own_file = open_own()
        outputs = [self._own_file.run(one) for one in feeds]
        if self.is_heavy:
            self._own_file = None
        return outputs

    def drifts(self, file: Path, i: int, *, default: bool, apart: bool = False) -> bool:
        """True if a second run for set `i` of inputs in one session of onnxruntime has other outputs than the first. False if it
        does not run; `apart`: in another process, since it may crash.
        """
        with suppress(OrtconvError), within(self.clock.left / 2):
            open_once = partial(self.open_file, file, default, afresh=False)
            feeds = [deepcopy(self.trials[i].feeds) for _ in range(2)]
            runs = run_in_process(open_once, feeds) if apart else [*map(open_once().run, feeds)]
            gaps = [gap(a, b) for a, b in zip(runs[0] or (), runs[1] or (), strict=True)]
            return any(found.mismatch or found.largest or found.strays for found in gaps)
        return False

    def loaded(self) -> Model:
        """The source, read again."""
        frozen = self.settings.freeze_initializers
        model = load(self.source, self.settings.fix_dims, freeze_initializers=frozen, only_to_run=True)
        if self.is_shrunk:
            shrink(model.graph)
        return model


def _is_hopeless(obstacle: Exception | None) -> bool:
    """True if a model that does not run on one engine for this reason is not tried on another one."""
    cause = getattr(obstacle, "__cause__", None)
    return isinstance(obstacle, BeyondBudgetError | EndlessLoopError) or isinstance(cause, EndlessLoopError)
