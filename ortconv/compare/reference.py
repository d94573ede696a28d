"""The outputs of a source model on each engine, and the judgment of a result against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ortconv.compare.movement import Direction, Movements, nudge, swinging
from ortconv.compare.shrink import can_shrink, shrink
from ortconv.compare.tolerance import Difference
from ortconv.compare.trials import CannotTryError, Run, TooLargeError, Trial, trials
from ortconv.compare.unsettled import settle
from ortconv.compare.verdict import (
    Gap,
    Tolerance,
    accepts,
    apart,
    fits,
    gap,
    has_no_rows,
    has_same_form,
    is_finite,
    is_nearer,
    is_numeric,
    random_outputs,
    stray,
    tolerances,
    widest,
)
from ortconv.compare.widen import NARROW, SINGLE, is_narrow, narrow, wide, widen
from ortconv.errors import BackendError, MismatchError, OrtconvError
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
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
        self.unstable: set[int] = set()
        """Indices of outputs accepted because rounding alone moves the source's own outputs as far."""
        self.is_narrow = is_narrow(graph)
        self.trials: list[Trial] = []
        self.outputs: dict[str, list[Outputs | None]] = {}
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.is_shrunk = self._too_large = False
        self._late: Future[None] | None = None
        self._wide: dict[int, Outputs | None] = {}
        self._rounded: dict[int, Outputs | None] = {}
        self._settled: dict[int, Outputs | None] = {}
        self._movements = Movements(self._run_moved)
        self._own: dict[int, Outputs | None] = {}
        self._opened: Opened | None = None
        self._own_file: Opened | None = None
        self._is_heavy = heavy = model.file_bytes > HEAVY
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
        self._pool.shutdown(wait=False)

    @property
    def backend(self) -> str:
        """The engine whose outputs are available without waiting; empty if there is none."""
        return "numpy" if "numpy" in self.outputs else "onnxruntime" if "onnxruntime" in self.outputs else ""

    @property
    def feeds(self) -> Feeds:
        return self.trials[0].feeds

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
            self._too_large = isinstance(error, TooLargeError)
        except OrtconvError as error:
            if self.settings.given and error.exit_code == 2:
                raise
            self.reasons[engine] = error.message if isinstance(error, BackendError) else f"{engine}: {error}"
        except MemoryError:
            self.reasons[engine] = f"{engine}: a run takes more memory than there is"

    def _run_numpy(self, model: Model) -> None:
        if "numpy" not in self.settings.engines:
            return
        try:
            session = Session(model, [self.settings.numpy])
        except OrtconvError as error:
            self.reasons[self.settings.numpy] = f"numpy: {error}"
        except MemoryError:
            self.reasons[self.settings.numpy] = "numpy: constants alone take more memory than there is"
        else:
            self._collect("numpy", model.graph, self.run_of(session))
        if self._too_large and can_shrink(model.graph):
            self._run_shrunk()

    def _run_shrunk(self) -> None:
        """Run the source on smaller inputs than it declares. onnxruntime would refuse these."""
        declared = self.reasons[self.settings.numpy]
        self.is_shrunk = True
        model = self._loaded()
        session = Session(model, [self.settings.numpy])
        self._collect("numpy", model.graph, lambda feeds: session.run(None, feeds))
        self.is_shrunk = bool(self.trials)
        if self.trials:
            self.reasons = {"onnxruntime": f"onnxruntime: {declared}"}
            self.notes.append(f"compared on smaller inputs than declared: {declared}")

    def _run_onnxruntime(self, graph: Graph, opening: Future[None]) -> None:
        """Run the source on onnxruntime: during the conversion if the inputs are selected already, else now."""
        if self.is_shrunk or not (self.trials or _is_worth_trying(self.reasons.get("numpy"))):
            return
        if self.trials:
            self._late = self._pool.submit(self._run_beside)
            return
        opening.result()
        if self._opened is not None:
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
                if self._is_heavy:
                    self._own_file = None
        return self._own[i]

    # ------------------------------------------------------------------ judging results

    def judge(self, engine: str, results: Sequence[Outputs | None], where: str, hint: str, excused: bool) -> Difference:
        """Compare outputs with those of the source on the same engine. Raises MismatchError if a
        difference is more than rounding.
        """
        worst = Difference()
        self._widen_tolerances()
        for i, (trial, want, got) in enumerate(zip(self.trials, self.outputs[engine], results, strict=True)):
            if want is None or got is None:
                continue
            for k, name in enumerate(self.names):
                found = gap(want[k], got[k])
                difference = self._difference(k, found)
                if self._is_open(k, want[k], got[k]):
                    continue
                fine = accepts(self.tolerances[k], found) or (excused and difference.mismatch is None)
                if not fine and not self._is_explained(engine, i, k, got[k], found):
                    raise self._mismatch(engine, trial, name, difference, self.tolerances[k], (i, k), where, hint)
                worst = worst.worse(difference if difference.mismatch is None else Difference())
        return worst

    def is_within_budget(self, i: int, results: Outputs, share: float) -> tuple[bool, float]:
        """(True if numpy's outputs for set `i` of inputs use at most `share` of the error budget, their largest error)."""
        self._widen_tolerances()
        want = self.outputs["numpy"][i]
        fits, error = True, 0.0
        for k, got in enumerate(results if want is not None else ()):
            assert want is not None
            found = gap(want[k], got)
            if self._is_open(k, want[k], got):
                continue
            difference = self._difference(k, found)
            error = max(error, np.inf if difference.mismatch is not None else difference.scaled)
            tolerance = replace(self.tolerances[k], limit=share * self.tolerances[k].limit)
            fits = fits and accepts(tolerance, found)
        return fits, error

    def _is_open(self, k: int, want: Any, got: Any) -> bool:
        """True if an output contains random numbers, or is a Loop output of zero iterations, whose shape the model leaves open."""
        if k in self.random:
            return has_same_form(want, got)
        return k in self.stacked and has_no_rows(want) and has_no_rows(got) and want.dtype == got.dtype

    def _difference(self, k: int, found: Gap) -> Difference:
        """A gap as a difference; its scaled value is relative to the range of the output if the tolerance is."""
        difference, size = found.difference(), max(found.magnitude, self.tolerances[k].range)
        if difference.mismatch is not None or not size:
            return difference
        return replace(difference, scaled=found.largest / size)

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

    def _is_explained(self, engine: str, i: int, k: int, got: Any, found: Gap) -> bool:
        if found.mismatch is not None and "elements" not in found.mismatch:
            return False
        if found.strays:
            found = replace(found, strays=self._strays(engine, i, k, got, found))
            if accepts(self.tolerances[k], found):
                return True
        return (
            self._is_like_own(i, k, got, found)
            or (self.is_narrow and self._is_nearer_to_wide(engine, i, k, got))
            or (self.is_narrow and self._is_as_rounded(i, k, got))
            or self._is_within_errors(engine, i, k, got)
            or (engine == "onnxruntime" and self._is_near_to_numpy(i, k, got))
            or self._explains_by_movement(i, k, found)
            or self._is_nearer_to_double(engine, i, k, got)
        )

    def _strays(self, engine: str, i: int, k: int, got: Any, found: Gap) -> int:
        """Number of elements that are infinite or NaN in only one of the two outputs, without those that rounding explains.

        If the source itself overflows on large inputs, on some engine, the overflow depends on the order of operations. The same
        holds for an element that rounding moves through the whole range.
        """
        want = self.outputs[engine][i]
        if want is None or not is_numeric(want[k]) or not is_numeric(got):
            return found.strays
        if self.trials[i].is_large and not all(is_finite(outputs[k]) for outputs in self._ran(i)):
            return 0
        moved = self._movements.of(i, self.trials[i].feeds)
        runs = [outputs[k] for outputs in (want, *self._ran(i), *moved)]
        same = [a for a in runs if has_same_form(want[k], a)]
        return int(np.count_nonzero(stray(want[k], got) & ~swinging(same)))

    def _is_like_own(self, i: int, k: int, got: Any, found: Gap) -> bool:
        """True if onnxruntime's own result of the source matches, or has as large a gap and the output is quantized."""
        if "onnxruntime" not in self.outputs:
            return False
        want, own = self.outputs["onnxruntime"][i], self.own_outputs(i)
        if own is None or want is None:
            return False
        theirs = gap(want[k], own[k])
        as_far = self.tolerances[k].quantized and found.explained_by(theirs)
        return accepts(self.tolerances[k], gap(own[k], got)) or as_far

    def _is_nearer_to_wide(self, engine: str, i: int, k: int, got: Any) -> bool:
        """True if a result is as near to the computation in float32 as the source on some engine, or within the limit."""
        want, exact = self.outputs[engine][i], self._widened(i)
        if exact is None or want is None:
            return False
        truth = narrow(exact[k], want[k])
        ours, theirs = gap(truth, got), widest([gap(truth, outputs[k]) for outputs in self._ran(i)])
        if ours.mismatch is not None or theirs.mismatch is not None or ours.strays > theirs.strays:
            return False
        room = self.tolerances[k].limit * ours.magnitude + self.tolerances[k].floor
        return accepts(self.tolerances[k], ours) or (
            ours.largest <= theirs.largest + room and ours.rms <= theirs.rms + self.tolerances[k].limit * ours.average
        )

    def _is_as_rounded(self, i: int, k: int, got: Any) -> bool:
        """True if a result matches the computation that rounds each value to its type, as the model says.

        Engines round fewer values. An integer that is made of a value just below it shows the difference.
        """
        if i not in self._rounded:
            self._rounded[i] = None
            with suppress(OrtconvError, MemoryError), within(self.clock.left / 2):
                self._rounded[i] = Session(self._loaded(), ["numpy:reference"]).run(None, self.trials[i].feeds)
        rounded = self._rounded[i]
        return rounded is not None and accepts(self.tolerances[k], gap(rounded[k], got))

    def _is_nearer_to_double(self, engine: str, i: int, k: int, got: Any) -> bool:
        """True if a float32 result is as near to the computation in float64 as the source on some engine."""
        want, ran = self.outputs[engine][i], [outputs[k] for outputs in self._ran(i)]
        is_plain = self.tolerances[k].dtype is DType.FLOAT and not (self.is_narrow or self.tolerances[k].quantized)
        exact = self._widened(i) if is_plain and not self._is_heavy else None
        if exact is None or want is None or not is_nearer(narrow(exact[k], want[k]), want[k], got, ran):
            return False
        self.unstable.add(k)
        return True

    def _is_near_to_numpy(self, i: int, k: int, got: Any) -> bool:
        """True if onnxruntime's result is as near to numpy's outputs of the source as onnxruntime's outputs of the source are.

        onnxruntime's approximations differ between kernels: a fused sigmoid of large negative numbers is computed differently.
        """
        runs, others = (self.outputs.get(name) for name in ("numpy", "onnxruntime"))
        exact, want = runs[i] if runs else None, others[i] if others else None
        if exact is None or want is None:
            return False
        return gap(exact[k], got).explained_by(gap(exact[k], want[k]))

    def _is_within_errors(self, engine: str, i: int, k: int, got: Any) -> bool:
        """True if each element is as near to the truth as the source on some engine, or is undefined by the model.

        The truth is the computation in float32 for narrow types, else the source's own output. If the source returns NaN, infinity
        is accepted: which of the two results depends on the order of operations.
        """
        ran = [outputs[k] for outputs in self._ran(i)]
        want = self.outputs[engine][i]
        if want is None or not all(is_numeric(a) and a.shape == want[k].shape for a in (*ran, got)):
            return False
        exact = self._widened(i) if self.is_narrow else None
        truth = want[k] if exact is None else narrow(exact[k], want[k])
        is_open = self._left_open(i, k) | (np.isnan(want[k]) & np.isinf(got))
        if truth.shape != got.shape or (exact is None and not is_open.any()):
            return False
        errors = np.asarray(np.max([apart(truth, a) for a in (ran if exact is not None else [truth])], axis=0))
        errors[np.broadcast_to(is_open, errors.shape)] = np.inf
        return fits(self.tolerances[k], truth, got, errors)

    def _ran(self, i: int) -> list[Outputs]:
        """The source's outputs for set `i` of inputs, on each engine that runs it."""
        return [outputs for outputs in (runs[i] for runs in self.outputs.values()) if outputs is not None]

    def _left_open(self, i: int, k: int) -> Array:
        """Mask of an output's elements that depend on undefined results; a single False if there are none."""
        runs, none = self.outputs.get("numpy"), np.zeros((), bool)
        plain = None if runs is None else runs[i]
        if i not in self._settled:
            self._settled[i] = None
            with suppress(OrtconvError), within(self.clock.left / 2):
                model = self._loaded()
                if plain is not None and settle(model.graph):
                    self._settled[i] = Session(model, ["numpy"]).run(None, self.trials[i].feeds)
        settled = self._settled[i]
        if plain is None or settled is None or not is_numeric(settled[k]) or settled[k].shape != plain[k].shape:
            return none
        far = apart(plain[k], settled[k])
        rounding = far <= self.tolerances[k].limit * np.abs(
            np.nan_to_num(plain[k].astype(np.float64), posinf=0, neginf=0)
        )
        found: Array = ~rounding
        return found

    def _widened(self, i: int) -> Outputs | None:
        if i not in self._wide:
            try:
                model = self._loaded()
                wider = NARROW if self.is_narrow else SINGLE
                widen(model.graph, wider)
                with within(self.clock.left / 2):
                    feeds = {name: wide(value, wider) for name, value in self.trials[i].feeds.items()}
                    self._wide[i] = Session(model, [self.settings.numpy]).run(None, feeds)
            except (OrtconvError, MemoryError):
                self._wide[i] = None
        return self._wide[i]

    def _explains_by_movement(self, i: int, k: int, found: Gap) -> bool:
        """True if the source's own output moves as far under rounding errors in its inputs and constants."""
        want = self.outputs[self.backend][i]
        if want is None or not self._movements.explain(found, i, self.trials[i].feeds, want, k, self._ran(i)):
            return False
        self.unstable.add(k)
        return True

    def _run_moved(self, direction: Direction, feeds: Feeds) -> Outputs:
        """The source's outputs for moved inputs; on numpy, constants have rounding errors as well."""
        if "numpy" not in self.outputs:
            run = self.open_file(self.source, False).run
        else:
            model = self._loaded()
            nudge(model.graph, direction, self.settings.fixed_point)
            run = partial(Session(model, [self.settings.numpy]).run, None)
        with within(self.clock.left / 2):
            return run(feeds)

    def _loaded(self) -> Model:
        model = load(self.source, self.settings.fix_dims, only_to_run=True)
        if self.is_shrunk:
            shrink(model.graph)
        return model

    def _mismatch(
        self,
        engine: str,
        trial: Trial,
        name: str,
        found: Difference,
        tolerance: Tolerance,
        place: tuple[int, int],
        where: str,
        hint: str,
    ) -> MismatchError:
        text = found.mismatch or f"max abs {found.max_abs:.3g}, scaled {found.scaled:.3g}"
        own = self.own_difference(*place) if engine == "onnxruntime" else None
        beside = "" if own is None else f"; onnxruntime's own result differs by {own.mismatch or f'{own.scaled:.3g}'}"
        allowed = f"allowed {tolerance.limit:.1e}"
        return MismatchError(
            f"{where}output '{name}' differs from the source's on {engine}, {trial.what}: {text}, {allowed}{beside}",
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


def _is_worth_trying(reason: str | None) -> bool:
    """True if onnxruntime may run a model that numpy cannot run: not if the reason is a lack of memory or time."""
    return reason is None or (
        not reason.startswith(("a run needs", "one run takes", "Loop ")) and "turns" not in reason
    )
