"""The judgment of a result against the outputs of its source model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.compare.gap import Gap, gap, has_no_rows, has_same_form, is_numeric
from ortconv.compare.tolerance import accepts, permitted, random_outputs, tolerances
from ortconv.errors import MismatchError
from ortconv.inputs.feeds import Outputs
from ortconv.ir.model import Model
from ortconv.validation.reasons import Deviation, Reasons
from ortconv.validation.source_runs import SourceRuns, ValidationSettings

LACKS_TIME = "there was no time to measure if rounding moves the source as far: --validate-budget gives more"


class Reference(SourceRuns):
    """The outputs of a source model, against which results are judged."""

    def __init__(self, model: Model, source: Path, settings: ValidationSettings) -> None:
        super().__init__(model, source, settings)
        outputs = model.graph.outputs
        self.tolerances = tolerances(model.graph, settings.error_budget)
        self.limit = max((t.limit for t in self.tolerances), default=0.0)
        self.random = random_outputs(model.graph)
        self.stacked = {k for k, v in enumerate(outputs) if v.producer is not None and v.producer.is_op("Loop")}
        self._reasons = Reasons(self)
        self.unstable = self._reasons.unstable

    def judge(self, engine: str, results: Sequence[Outputs | None], where: str, hint: str, excused: bool) -> Gap:
        """Compare outputs with those of the source on the same engine. Raises MismatchError if a
        difference is more than rounding.
        """
        worst = Gap()
        for found in (found for i, outputs in enumerate(results) for found in self._compared(engine, i, outputs)):
            apart = _in_range(found)
            is_excused = excused and apart.reason is None
            if not (accepts(found.tolerance, found.gap) or is_excused or self._reasons.explain(found)):
                raise self._mismatch(found, apart, where, hint)
            if apart.reason is None:
                worst = max(worst, apart, key=lambda one: one.severity)
        return worst

    def is_within_budget(self, i: int, results: Outputs, share: float) -> tuple[bool, float]:
        """(True if numpy's outputs for set `i` of inputs use at most `share` of the error budget, their largest error)."""
        fits, error = True, 0.0
        for found in self._compared("numpy", i, results):
            apart = _in_range(found)
            error = max(error, np.inf if apart.reason is not None else apart.scaled)
            fits = fits and accepts(found.tolerance._replace(limit=share * found.tolerance.limit), found.gap)
        return fits, error

    def _compared(self, engine: str, i: int, results: Outputs | None) -> Iterator[Deviation]:
        """The outputs of a result beside those of the source. Outputs that the model leaves open are omitted."""
        self._widen_tolerances()
        wanted = self.outputs[engine][i]
        if wanted is None or results is None:
            return
        for k, (want, got) in enumerate(zip(wanted, results, strict=True)):
            if not self._is_open(k, want, got):
                yield Deviation(engine, i, k, want, got, gap(want, got), self.tolerances[k])

    def _is_open(self, k: int, want: Any, got: Any) -> bool:
        """True if an output contains random numbers, or is a Loop output of zero iterations, whose shape the model leaves open."""
        if k in self.random:
            return has_same_form(want, got)
        return k in self.stacked and has_no_rows(want) and has_no_rows(got) and want.dtype == got.dtype

    def _widen_tolerances(self) -> None:
        """With an error budget, make limits relative to the range of each output over all inputs."""
        if self.settings.error_budget is not None and not any(t.range for t in self.tolerances):
            self.tolerances = [t._replace(range=self._range(k)) for k, t in enumerate(self.tolerances)]

    def _range(self, k: int) -> float:
        """The largest finite magnitude of an output over all inputs; 0 if it is not an array of numbers.

        Only one engine counts: the other one may still run, and the result must not depend on its speed.
        """
        found = (outputs[k] for outputs in self.outputs.get(self.backend, ()) if outputs is not None)
        arrays = (np.abs(a[np.isfinite(a)]) for a in found if is_numeric(a))
        return float(max((a.max(initial=0) for a in arrays), default=0.0))

    def _mismatch(self, found: Deviation, apart: Gap, where: str, hint: str) -> MismatchError:
        text = apart.reason or f"max abs {apart.largest:.3g}, scaled {apart.scaled:.3g}"
        own = self._own_gap(found.i, found.k) if found.engine == "onnxruntime" else None
        beside = "" if own is None else f"; onnxruntime's own result differs by {own.reason or f'{own.scaled:.3g}'}"
        what = f"the source's on {found.engine}, {self.trials[found.i].what}"
        hint = f"{LACKS_TIME}; {hint}" if self._reasons.lacks_time else hint
        limit = permitted(found.tolerance, apart)
        return MismatchError(
            f"{where}output '{self.names[found.k]}' differs from {what}: {text}, allowed {limit}{beside}", hint=hint
        )

    def _own_gap(self, i: int, k: int) -> Gap | None:
        """The gap between the source and onnxruntime's result of it with default options."""
        want, own = self.outputs["onnxruntime"][i], self.own_outputs(i)
        return None if want is None or own is None else gap(want[k], own[k])

    def own_scaled(self) -> float | None:
        """The largest of these gaps, relative to the magnitude, over the inputs with known results; None if there are none.

        Those of the first set are computed in a watched process, unless the model has more than MANY nodes.
        """
        if self._shows_own:
            self.own_outputs(0)
        own = [self._own_gap(i, k) for i in list(self._own) for k in range(len(self.names)) if k not in self.random]
        return max((one.scaled for one in own if one is not None and one.reason is None), default=None)


def _in_range(found: Deviation) -> Gap:
    """The gap, relative to the range of the output if the tolerance is."""
    return replace(found.gap, magnitude=max(found.gap.magnitude, found.tolerance.range))
