"""Reasons for which a result beyond the limit is right: rounding, or a result that the model leaves undefined, explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.gap import (
    TIMES,
    Gap,
    beyond_last_bits,
    element_errors,
    gap,
    has_same_form,
    is_finite,
    is_numeric,
    is_stray,
    longer,
    near_overflow,
    widest,
)
from ortconv.compare.tolerance import UNEXPLAINED, OutputTolerance, accepts, is_nearer, within_errors
from ortconv.errors import OrtconvError
from ortconv.inputs.feeds import Feeds, Outputs
from ortconv.ir.graph import Graph
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.runtime.deadline import TimeLimitError, within
from ortconv.runtime.session import Session
from ortconv.validation.perturbation import MOST_RUNS, Perturbation, explains, near_poles, perturb, perturbed
from ortconv.validation.source_runs import SourceRuns
from ortconv.validation.undefined import flip_zeros, replace_undefined
from ortconv.validation.widen import NARROW, SINGLE, narrow, wide, widen


class Deviation(NamedTuple):
    """A result `got` of an engine for set `i` of inputs at output `k`, and the output `want` of the source."""

    engine: str
    i: int
    k: int
    want: Any
    got: Any
    gap: Gap
    tolerance: OutputTolerance


class Reasons:
    """Judges deviations by further runs of the source, each made when it is needed, and once."""

    def __init__(self, source: SourceRuns) -> None:
        self._source = source
        self._perturbed_runs: dict[int, list[Outputs]] = {}
        self._changed: dict[tuple[str, int], Outputs | None] = {}
        self.unstable: set[int] = set()
        """Indices of outputs accepted because rounding alone moves the source's own outputs as far."""
        self.lacks_time = False
        """True if there was no time for all runs under rounding errors that could have explained a deviation."""

    def explain(self, found: Deviation) -> bool:
        """True if a deviation is no fault of the result."""
        if found.gap.mismatch is not None and not found.gap.is_in_elements:
            return self._varies_in_length(found)
        if found.gap.strays:
            found = found._replace(gap=replace(found.gap, strays=self._strays(found)))
            if accepts(found.tolerance, found.gap):
                return True
        reason = next((reason for reason in _REASONS if reason(self, found)), None)
        if reason in _UNSTABLE:
            self.unstable.add(found.k)
        return reason is not None

    def _varies_in_length(self, found: Deviation) -> bool:
        """True if only the length of one axis differs, and that of the source's own results differs by not much less: they list the
        elements that pass a limit, some of them by rounding.
        """
        axis, more = longer(found.want, found.got)
        ran = chain(self._source_outputs(found), self._plain_and_own(found), self._perturbed(found))
        if axis is None or not any(
            at == axis and abs(more) <= TIMES * abs(n) for at, n in map(partial(longer, found.want), ran)
        ):
            return False
        self.unstable.add(found.k)
        return True

    def _strays(self, found: Deviation) -> int:
        """Number of elements that are infinite or NaN in only one of the two outputs, for which rounding is no explanation.

        Rounding explains all of them if the inputs are large and the source itself overflows on an engine: the order of operations
        then decides. It explains an element that is nearly the largest number in one output, or that rounding errors move through
        the whole range.
        """
        want, got, ran = found.want, found.got, self._source_outputs(found)
        if not is_numeric(want) or not is_numeric(got):
            return found.gap.strays
        if self._source.trials[found.i].is_large and not all(map(is_finite, ran)):
            return 0
        same = [a for a in (want, *ran, *self._perturbed(found)) if has_same_form(want, a)]
        return int(np.count_nonzero(is_stray(want, got) & ~near_overflow(want, got) & ~near_poles(same)))

    # ------------------------------------------------------------------ reasons

    def _is_like_own(self, found: Deviation) -> bool:
        """True if onnxruntime's own result of the source matches, or has as large a gap and the output is quantized."""
        plain, own = self._plain_and_own(found)
        if own is None:
            return False
        if accepts(found.tolerance, gap(own, found.got)):
            return True
        is_explained = found.tolerance.quantized and found.gap.explained_by(gap(plain, own))
        return is_explained and self._source_varies_there(found)

    def _is_nearer_to_wide(self, found: Deviation) -> bool:
        """True if a result is as near to the computation in float32 as the source on some engine, or within the limit."""
        truth = self._truth(found) if self._source.is_narrow else None
        if truth is None:
            return False
        ours, theirs = gap(truth, found.got), widest([gap(truth, outputs) for outputs in self._source_outputs(found)])
        if ours.mismatch is not None or theirs.mismatch is not None or ours.strays > theirs.strays:
            return False
        limit = found.tolerance.limit
        is_as_near = (
            ours.largest <= theirs.largest + limit * ours.magnitude + found.tolerance.floor
            and ours.rms <= theirs.rms + limit * ours.average
        )
        return accepts(found.tolerance, ours) or (is_as_near and self._source_varies_there(found, truth))

    def _is_as_rounded(self, found: Deviation) -> bool:
        """True if a result is as near to the computation that rounds each value to its type as the source on the engine is.

        The model demands these roundings. Engines round fewer values, but they round constants that are computed from others. The
        difference shows when a value just below an integer is converted to an integer.
        """
        if not self._source.is_narrow:
            return False
        outputs = self._run("rounded", found.i, lambda graph: None, backend="numpy:reference")
        if outputs is None:
            return False
        rounded = outputs[found.k]
        ours, theirs = gap(rounded, found.got), gap(rounded, found.want)
        if accepts(found.tolerance, ours):
            return True
        return ours.explained_by(theirs) and self._source_varies_there(found, rounded)

    def _is_within_errors(self, found: Deviation) -> bool:
        """True if each element is as near to the truth as the source on some engine, or is undefined by the model.

        The truth is the computation in float32 for narrow types, else the source's own output. If the source returns NaN, infinity
        is accepted: which of the two results depends on the order of operations.
        """
        want, got, ran = found.want, found.got, self._source_outputs(found)
        if not all(is_numeric(a) and a.shape == want.shape for a in (want, got, *ran)):
            return False
        exact = self._truth(found) if self._source.is_narrow else None
        truth, known = (want, [want]) if exact is None else (exact, ran)
        open_errors = np.where(np.isnan(want) & np.isinf(got), np.inf, self._left_open(found))
        if truth.shape != got.shape or (exact is None and not open_errors.any()):
            return False
        errors = np.max([element_errors(truth, a) for a in known], axis=0)
        return within_errors(found.tolerance, truth, got, np.maximum(errors, open_errors))

    def _is_near_to_numpy(self, found: Deviation) -> bool:
        """True if onnxruntime's result is as near to numpy's outputs of the source as onnxruntime's outputs of the source are.

        onnxruntime's approximations differ between kernels: a fused sigmoid of large negative numbers is computed differently.
        """
        exact = self._output_on("numpy", found) if found.engine == "onnxruntime" else None
        if exact is None or not gap(exact, found.got).explained_by(gap(exact, found.want)):
            return False
        return self._source_varies_there(found)

    def _is_moved_by_rounding(self, found: Deviation) -> bool:
        """True if the source's own output moves as far under rounding errors in its inputs and constants."""
        want = self._output_on(self._source.backend, found)
        if want is None or not explains(found.gap, want, self._perturbed(found), self._source_outputs(found)):
            return False
        return self._source_varies_there(found)

    def _is_nearer_to_double(self, found: Deviation) -> bool:
        """True if a float32 result is as near to the computation in float64 as the source on some engine."""
        source, tolerance = self._source, found.tolerance
        is_plain = tolerance.dtype is DType.FLOAT and not (source.is_narrow or tolerance.quantized or source.is_heavy)
        truth = self._truth(found) if is_plain else None
        return truth is not None and is_nearer(truth, found.want, found.got, self._source_outputs(found))

    def _source_varies_there(self, found: Deviation, truth: Any = None) -> bool:
        """True if the elements at which a result differs also differ, by not much less, between runs or engines of the source, or
        between these and the truth. The others must be few, or within the limit.
        """
        if not is_numeric(found.want) or not has_same_form(found.want, found.got):
            return True
        errors = beyond_last_bits(found.want, found.got)
        count = int(np.count_nonzero(errors))
        from_truth = ((truth, one) for one in self._source_outputs(found))
        for one, other in chain(from_truth, self._pairs_apart_by_rounding(found)):
            if has_same_form(found.want, one) and has_same_form(found.want, other):
                errors[errors <= TIMES * element_errors(one, other)] = 0
            rest = gap(found.want, np.where(errors > 0, found.got, found.want))
            if np.count_nonzero(errors) < UNEXPLAINED * max(count, 1) or accepts(found.tolerance, rest):
                return True
        return False

    def _pairs_apart_by_rounding(self, found: Deviation) -> Iterator[tuple[Any, Any]]:
        """Pairs of results of the source that differ by rounding."""
        yield self._output_on("numpy", found), self._output_on("onnxruntime", found)
        yield self._plain_and_own(found)
        first = self._output_on(self._source.backend, found)
        yield from ((first, moved) for moved in self._perturbed(found))

    # ------------------------------------------------------------------ further runs

    def _output_on(self, engine: str, found: Deviation) -> Any:
        """The source's output on an engine; None if it does not run there."""
        runs = self._source.outputs.get(engine)
        outputs = runs[found.i] if runs else None
        return None if outputs is None else outputs[found.k]

    def _source_outputs(self, found: Deviation) -> list[Any]:
        """The source's output on each engine that runs it."""
        runs = (runs[found.i] for runs in self._source.outputs.values())
        return [outputs[found.k] for outputs in runs if outputs is not None]

    def _plain_and_own(self, found: Deviation) -> tuple[Any, Any]:
        """onnxruntime's output of the source without and with optimizations; twice None if one is not known."""
        plain = self._output_on("onnxruntime", found)
        own = None if plain is None else self._source.own_outputs(found.i)
        return (None, None) if own is None else (plain, own[found.k])

    def _perturbed(self, found: Deviation) -> Iterator[Any]:
        """Up to MOST_RUNS outputs under rounding errors, computed when they are needed. The first failure ends the iteration."""
        made = self._perturbed_runs.setdefault(found.i, [])
        for n in range(MOST_RUNS):
            if n == len(made):
                try:
                    made.append(self._run_perturbed(found.i, n))
                except OrtconvError as error:
                    self.lacks_time |= isinstance(error, TimeLimitError)
                    return
            yield made[n][found.k]

    def _left_open(self, found: Deviation) -> Array:
        """The errors of an output's elements that the model permits: infinite if they depend on an undefined result, the distance
        to the result of the other sign if they depend on the sign of a zero.
        """
        plain, errors = self._output_on("numpy", found), np.zeros(found.want.shape)
        for change in (replace_undefined, flip_zeros) if has_same_form(plain, found.want) else ():
            settled = self._run(change.__name__, found.i, change)
            if settled is None or not has_same_form(plain, settled[found.k]):
                continue
            far = element_errors(plain, settled[found.k])
            exact = np.nan_to_num(plain.astype(np.float64), posinf=0, neginf=0)
            far[far <= found.tolerance.limit * np.abs(exact)] = 0
            errors = np.maximum(errors, far if change is flip_zeros else np.where(far > 0, np.inf, 0))
        return errors

    def _truth(self, found: Deviation) -> Any:
        """The output of the source computed in wider floats, converted to its own type; None if it does not run so."""
        wider = NARROW if self._source.is_narrow else SINGLE
        feeds = {name: wide(value, wider) for name, value in self._source.trials[found.i].feeds.items()}
        exact = self._run("wide", found.i, lambda graph: widen(graph, wider), feeds)
        return None if exact is None else narrow(exact[found.k], found.want)

    def _run(
        self, name: str, i: int, change: Callable[[Graph], int | None], feeds: Feeds | None = None, backend: str = ""
    ) -> Outputs | None:
        """numpy's outputs for set `i` of inputs after a change of the source; None if the change is 0, or if the run fails. `name`
        identifies the change.
        """
        if (name, i) not in self._changed:
            self._changed[name, i] = None
            with suppress(OrtconvError, MemoryError), within(self._source.clock.left / 2, cpu=True):
                model = self._source.loaded()
                if change(model.graph) != 0:
                    session = Session(model, [backend or self._source.settings.numpy])
                    self._changed[name, i] = session.run(None, feeds or self._source.trials[i].feeds)
        return self._changed[name, i]

    def _run_perturbed(self, i: int, number: int) -> Outputs:
        """The source's outputs for set `i` of inputs with rounding errors; on numpy, constants have such errors as well."""
        source = self._source
        feeds = {name: perturbed(value, Perturbation(number)) for name, value in source.trials[i].feeds.items()}
        if "numpy" not in source.outputs:
            run = source.open_file(source.source, default=False).run
        else:
            model = source.loaded()
            perturb(model.graph, Perturbation(number), source.settings.fixed_point)
            run = partial(Session(model, [source.settings.numpy]).run, None)
        with within(source.clock.left / 2, cpu=True):
            return run(feeds)


_REASONS = (
    Reasons._is_like_own,
    Reasons._is_nearer_to_wide,
    Reasons._is_as_rounded,
    Reasons._is_within_errors,
    Reasons._is_near_to_numpy,
    Reasons._is_moved_by_rounding,
    Reasons._is_nearer_to_double,
)
"""The cheapest first."""

_UNSTABLE = (Reasons._is_moved_by_rounding, Reasons._is_nearer_to_double)
"""The reasons that a validation reports with the outputs."""
