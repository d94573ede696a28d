"""The outputs of a source model on each engine, and the judgment of a result against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.compare.budget import Budget, Clock
from ortconv.compare.consumer import Opened, message_of, open_file, run_of, runtime_name
from ortconv.compare.feeds import Feeds
from ortconv.compare.reasons import Deviation, Reasons
from ortconv.compare.shrink import can_shrink, shrink
from ortconv.compare.tolerance import Difference
from ortconv.compare.trials import BeyondBudgetError, CannotTryError, Run, TooLargeError, TooSlowError, Trial, trials
from ortconv.compare.verdict import (
    accepts,
    gap,
    has_no_rows,
    has_same_form,
    is_numeric,
    random_outputs,
    tolerances,
)
from ortconv.compare.widen import is_narrow
from ortconv.errors import BackendError, MismatchError, OrtconvError
from ortconv.executor.algorithms.steps import EndlessLoopError
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.runtime.deadline import within
from ortconv.runtime.session import Session

HEAVY = 100 << 20
"""Sessions of models with more bytes are not kept, because each holds a copy of the weights."""

MANY = 5000
"""For models with more nodes, onnxruntime's own result is computed only if it is needed to explain a difference: the optimization
takes long.
"""

Outputs = list[Any]


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Settings of a validation: engines, inputs and budget."""

    engines: tuple[str, ...] = ("numpy", "onnxruntime")
    given: tuple[Mapping[str, Any], ...] = ()
    budget: Budget = field(default_factory=Budget)
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    custom_op_library: Path | None = None
    numpy: str = "numpy"
    """The backend for the engine numpy. `numpy:reference` keeps the rounding of accelerated kernels out of the difference."""
    fixed_point: bool = False
    """True if quantized parts of the result are computed in fixed point, which rounds sums earlier than the source does."""
    error_budget: float | None = None
    """Permitted error of float outputs, for a result in float16. With it, generated inputs are only in the usual range."""


class Reference:
    """The outputs of a source model for some sets of inputs, on each engine that runs it."""

    def __init__(self, model: Model, source: Path, settings: ValidationSettings) -> None:
        self.source, self.settings, self.clock = source, settings, Clock(settings.budget)
        graph = model.graph
        self.names = [v.name for v in graph.outputs]
        self.tolerances = tolerances(graph, settings.error_budget)
        self.limit = max((t.limit for t in self.tolerances), default=0.0)
        self.random = random_outputs(graph)
        self.stacked = {k for k, v in enumerate(graph.outputs) if v.producer is not None and v.producer.is_op("Loop")}
        self._reasons = Reasons(self)
        self.is_narrow = is_narrow(graph)
        self.trials: list[Trial] = []
        self.outputs: dict[str, list[Outputs | None]] = {}
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.is_shrunk = False
        self._obstacle: Exception | None = None
        self._late: Future[None] | None = None
        self._own: dict[int, Outputs | None] = {}
        self._opened: Opened | None = None
        self._own_file: Opened | None = None
        self.is_heavy = heavy = model.file_bytes > HEAVY
        external = [source.parent / name for name in model.external]
        self.open_file = partial(
            open_file, custom_op_library=settings.custom_op_library, light=heavy, external=external
        )
        self.run_of = partial(run_of, light=heavy)
        self._shows_own = sum(1 for _ in graph.walk()) <= MANY
        self._pool = ThreadPoolExecutor(1, "onnxruntime")
        asked = "onnxruntime" in settings.engines
        opening = self._pool.submit(self._open) if asked else None
        with self.clock:
            self._run_numpy(model)
        if opening is not None:
            self._run_onnxruntime(graph, opening)
        if isinstance(self._obstacle, TooSlowError) and not self.trials and can_shrink(graph):
            self.clock.reserve(0.25)
            with self.clock:
                self._run_shrunk()
        self._pool.shutdown(wait=False)

    @property
    def backend(self) -> str:
        """The engine whose outputs are available without waiting; empty if there is none."""
        return "numpy" if "numpy" in self.outputs else "onnxruntime" if "onnxruntime" in self.outputs else ""

    @property
    def feeds(self) -> Feeds:
        return self.trials[0].feeds

    @property
    def unstable(self) -> set[int]:
        """Indices of outputs accepted because rounding alone moves the source's own outputs as far."""
        return self._reasons.unstable

    @property
    def skipped(self) -> str | None:
        """The reason why the source runs on no engine; None if it runs."""
        self.wait()
        return None if self.outputs else "; ".join(dict.fromkeys(self.reasons.values())) or "no engine was asked"

    def wait(self) -> None:
        """Wait for the run that takes place during the conversion."""
        if self._late is not None:
            self._late.result()

    # ------------------------------------------------------------------ running the source

    def _collect(self, engine: str, graph: Graph, run: Run) -> None:
        """Select the inputs that an engine accepts, and store its outputs."""
        try:
            for trial, results in trials(graph, run, self.settings.given, self.clock, self.notes):
                if trial.is_large and self.settings.error_budget is not None:
                    continue
                self.trials.append(trial)
                self.outputs.setdefault(engine, []).append(results)
        except CannotTryError as error:
            self.reasons[engine] = str(error)
            self._obstacle = error
        except OrtconvError as error:
            if self.settings.given and error.exit_code == 2:
                raise
            self._obstacle = error
            self.reasons[engine] = error.message if isinstance(error, BackendError) else f"{engine}: {error}"
        except MemoryError:
            self.reasons[engine] = f"{engine}: a run needs more memory than there is"

    def _run_numpy(self, model: Model) -> None:
        if "numpy" not in self.settings.engines:
            return
        try:
            session = Session(model, [self.settings.numpy])
        except OrtconvError as error:
            self._obstacle = error
            self.reasons[self.settings.numpy] = f"numpy: {error}"
        except MemoryError:
            self.reasons[self.settings.numpy] = "numpy: the constants alone need more memory than there is"
        else:
            self._collect("numpy", model.graph, self.run_of(session))
        if isinstance(self._obstacle, TooLargeError) and can_shrink(model.graph):
            self._run_shrunk()

    def _run_shrunk(self) -> None:
        """Run the source on smaller inputs than it declares. onnxruntime would refuse these."""
        declared = self.reasons["numpy"]
        self.is_shrunk = True
        model = self.loaded()
        session = Session(model, [self.settings.numpy])
        self._collect("numpy", model.graph, lambda feeds: session.run(None, feeds))
        self.is_shrunk = bool(self.trials)
        if self.trials:
            self.reasons = {"onnxruntime": f"onnxruntime: {declared}"}
            self.notes.append(f"compared on smaller inputs than declared: {declared}")

    def _run_onnxruntime(self, graph: Graph, opening: Future[None]) -> None:
        """Run the source on onnxruntime: during the conversion if the inputs are selected already, else now."""
        if self.is_shrunk or (not self.trials and _is_hopeless(self._obstacle)):
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
                with within(self.clock.left / 2):
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
        """The source opened by onnxruntime; None, with the reason stored, if that fails."""
        try:
            self._opened = self.open_file(self.source, False)
        except BackendError as error:
            self.reasons.setdefault("onnxruntime", f"{runtime_name()} does not load the source: {message_of(error)}")

    def own_outputs(self, i: int) -> Outputs | None:
        """onnxruntime's outputs of the source with the session options of an app; None if the run fails."""
        if i not in self._own:
            self._own[i] = None
            with suppress(BackendError), within(self.clock.left / 2):
                if self._own_file is None:
                    self._own_file = self.open_file(self.source, True)
                self._own[i] = self._own_file.run(self.trials[i].feeds)
                if self.is_heavy:
                    self._own_file = None
        return self._own[i]

    # ------------------------------------------------------------------ judging results

    def judge(self, engine: str, results: Sequence[Outputs | None], where: str, hint: str, excused: bool) -> Difference:
        """Compare outputs with those of the source on the same engine. Raises MismatchError if a
        difference is more than rounding.
        """
        worst = Difference()
        for found in (found for i, outputs in enumerate(results) for found in self._compared(engine, i, outputs)):
            difference = self._difference(found)
            is_excused = excused and difference.mismatch is None
            if not (accepts(found.tolerance, found.gap) or is_excused or self._reasons.explain(found)):
                raise self._mismatch(found, difference, where, hint)
            worst = worst.worse(difference if difference.mismatch is None else Difference())
        return worst

    def is_within_budget(self, i: int, results: Outputs, share: float) -> tuple[bool, float]:
        """(True if numpy's outputs for set `i` of inputs use at most `share` of the error budget, their largest error)."""
        fits, error = True, 0.0
        for found in self._compared("numpy", i, results):
            difference = self._difference(found)
            error = max(error, np.inf if difference.mismatch is not None else difference.scaled)
            fits = fits and accepts(replace(found.tolerance, limit=share * found.tolerance.limit), found.gap)
        return fits, error

    def _compared(self, engine: str, i: int, results: Outputs | None) -> Iterator[Deviation]:
        """The outputs of a result beside those of the source. Outputs that the model leaves open are omitted."""
        self._widen_tolerances()
        wanted = self.outputs[engine][i]
        for k, want in enumerate(wanted or () if results is not None else ()):
            assert results is not None
            if not self._is_open(k, want, results[k]):
                yield Deviation(engine, i, k, want, results[k], gap(want, results[k]), self.tolerances[k])

    def _is_open(self, k: int, want: Any, got: Any) -> bool:
        """True if an output contains random numbers, or is a Loop output of zero iterations, whose shape the model leaves open."""
        if k in self.random:
            return has_same_form(want, got)
        return k in self.stacked and has_no_rows(want) and has_no_rows(got) and want.dtype == got.dtype

    def _difference(self, found: Deviation) -> Difference:
        """A gap as a difference; its scaled value is relative to the range of the output if the tolerance is."""
        difference, size = found.gap.difference(), max(found.gap.magnitude, found.tolerance.range)
        if difference.mismatch is not None or not size:
            return difference
        return replace(difference, scaled=found.gap.largest / size)

    def _widen_tolerances(self) -> None:
        """With an error budget, make limits relative to the range of each output over all inputs."""
        if self.settings.error_budget is not None and not any(t.range for t in self.tolerances):
            self.tolerances = [replace(t, range=self._range(k)) for k, t in enumerate(self.tolerances)]

    def _range(self, k: int) -> float:
        """The largest finite magnitude of an output over all inputs; 0 if it is not an array of numbers.

        Only one engine counts: the other one may still run, and the result must not depend on its speed.
        """
        found = (outputs[k] for outputs in self.outputs.get(self.backend, ()) if outputs is not None)
        arrays = (np.abs(a[np.isfinite(a)]) for a in found if is_numeric(a))
        return float(max((a.max(initial=0) for a in arrays), default=0.0))

    def loaded(self) -> Model:
        """The source, read again."""
        model = load(self.source, self.settings.fix_dims, only_to_run=True)
        if self.is_shrunk:
            shrink(model.graph)
        return model

    def _mismatch(self, found: Deviation, difference: Difference, where: str, hint: str) -> MismatchError:
        text = difference.mismatch or f"max abs {difference.max_abs:.3g}, scaled {difference.scaled:.3g}"
        own = self.own_difference(found.i, found.k) if found.engine == "onnxruntime" else None
        beside = "" if own is None else f"; onnxruntime's own result differs by {own.mismatch or f'{own.scaled:.3g}'}"
        what = f"the source's on {found.engine}, {self.trials[found.i].what}"
        return MismatchError(
            f"{where}output '{self.names[found.k]}' differs from {what}: {text}, allowed {found.tolerance.limit:.1e}{beside}",
            hint=hint,
        )

    def own_difference(self, i: int, k: int) -> Difference | None:
        """The difference between the source and onnxruntime's result of it with default options."""
        want, own = self.outputs["onnxruntime"][i], self.own_outputs(i)
        return None if want is None or own is None else gap(want[k], own[k]).difference()

    def own_scaled(self) -> float | None:
        """The largest of these differences over the inputs with known results. Those of the first set are computed if needed,
        unless the model has more than MANY nodes.
        """
        if self._shows_own:
            self.own_outputs(0)
        own = [
            self.own_difference(i, k) for i in list(self._own) for k in range(len(self.names)) if k not in self.random
        ]
        return max((d.scaled for d in own if d is not None and d.mismatch is None), default=None)


def _is_hopeless(obstacle: Exception | None) -> bool:
    """True if a model that does not run on one engine for this reason is not tried on another one."""
    cause = getattr(obstacle, "__cause__", None)
    return isinstance(obstacle, BeyondBudgetError | EndlessLoopError) or isinstance(cause, EndlessLoopError)
