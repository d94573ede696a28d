"""Candidates are converted, validated and measured in stages. Each stage works on those that the one before has left."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple, Unpack

from ortconv.backends.onnxruntime_app import SessionSettings, can_be_direct
from ortconv.batch.journal import key
from ortconv.choices import TARGETS
from ortconv.documents import read_as
from ortconv.errors import OrtconvError, UnsupportedError, UsageError
from ortconv.files import digest, temporary_folder
from ortconv.inputs.candidates import run_on_first
from ortconv.inputs.feeds import Feeds
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.partition.cost import ASSUMPTIONS
from ortconv.partition.profile import DeviceProfile
from ortconv.pipeline.config import ort_name
from ortconv.pipeline.conversion import options_of
from ortconv.pipeline.options import Options
from ortconv.pipeline.settings import Settings
from ortconv.process import usable_cores
from ortconv.public import public
from ortconv.tuning.axes import NONE, SESSION, Form, chosen, command, file_name, forms
from ortconv.tuning.candidate import Candidate
from ortconv.tuning.contest import Contest
from ortconv.tuning.making import ConversionTask, Proof, UncheckedFile, draft, prove, target_of
from ortconv.tuning.measuring import Entrant
from ortconv.tuning.ranking import Goal, goal_named, ranked
from ortconv.tuning.result import Machine, Recommendation, Row, Tuning
from ortconv.tuning.workshop import Job, Memo, Notify, Workshop, as_it_is, key_of
from ortconv.wording import counted, installed

FINALISTS = 3
"""Number of files that are also measured with other session settings."""

SHARE = 0.5
"""The share of a time budget after which no further candidate is converted."""

LATE = "not tried: the time was up"


@public
def tune(
    source: ModelSource,
    *,
    goal: str = "latency",
    target: str = TARGETS[0],
    only: Mapping[str, Sequence[str]] | None = None,
    output_dir: str | Path | None = None,
    budget: float | None = None,
    exhaustive: bool = False,
    jobs: int | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    notify: Notify | None = None,
    more_flags: Mapping[str, Sequence[str]] | None = None,
    options: Options | None = None,
    **settings: Unpack[Settings],
) -> Tuning:
    """Convert an ONNX model in many ways, validate and measure the results, and rank them for a goal.

    `only` restricts axes to values: see `ortconv.tuning.axes`. `target` is the accelerator whose time is estimated, for the device
    of the options. `options` or `settings` hold for all conversions, except those that an axis sets. `more_flags` are the same as
    arguments for the recommended command line, by accelerator, "" for any. If `exhaustive`, every candidate is measured to the end,
    with all session settings.

    Conversions run `jobs` at a time, measurements alone. After `budget` seconds, the remaining candidates have no rank. With
    `output_dir`, files and results stay there, and the next tuning continues where this one was interrupted. Ctrl-C ends the tuning
    with the results so far. Raises UnsupportedError if no candidate could be measured.
    """
    shared = replace(options_of(options, settings), details=False, save_optimized_onnx_model=False)
    if target not in TARGETS:
        raise UsageError(f"target '{target}' is not one of {', '.join(TARGETS)}")
    values = chosen({"aware": (NONE, target), **(only or {})}, usable_cores())
    if not can_be_direct(shared.custom_op_library):
        values["direct"] = ("no",)
    plan = TuningPlan(goal_named(goal), target, values, forms(values), exhaustive, more_flags or {})
    with as_file(source) as (path, label), ExitStack() as resources:
        if is_ort(path):
            raise UsageError("tune reads .onnx models", file=path, hint="tune the .onnx model that it was made from")
        kept = None if output_dir is None else Path(output_dir)
        folder = kept or resources.enter_context(temporary_folder())
        jobs = jobs or usable_cores()
        workshop = Workshop(Memo(kept), jobs, seconds=budget, timeout=timeout, memory=memory, notify=notify)
        resources.enter_context(workshop)
        tuner = Tuner(path, label, folder, shared, plan, workshop, is_kept=kept is not None)
        with suppress(KeyboardInterrupt):
            tuner.run()
            tuner.is_done = True
        return tuner.result()


class TuningPlan(NamedTuple):
    """The candidates to try, and the goal."""

    goal: Goal
    target: str
    values: Mapping[str, tuple[str, ...]]
    forms: Sequence[Form]
    exhaustive: bool
    more_flags: Mapping[str, Sequence[str]]


class Start(NamedTuple):
    """The facts before any conversion: inputs, the backend that runs the source with them, and the source's files with weights."""

    feeds: Feeds
    engine: str
    external: tuple[str, ...]


def begin(source: Path, options: Options) -> Start:
    """Inputs for the measurement: the user's first set, or generated ones that the model accepts."""
    given = options.validate_with
    arrays = given if isinstance(given, Mapping) else (given or ({},))[0]
    model = load(source, options.fix_dims, freeze_initializers=options.freeze_initializers)
    backends, library = ("onnxruntime", "numpy"), options.custom_op_library
    engine, feeds, _ = run_on_first(model, backends, arrays, custom_op_library=library)
    return Start(feeds, engine, model.external)


@dataclass
class Tuner:
    """A tuning in progress. `result` is valid at any time. If `is_kept`, the folder with the files stays."""

    source: Path
    label: str
    folder: Path
    shared: Options
    plan: TuningPlan
    workshop: Workshop
    is_kept: bool
    is_done: bool = False
    _failed: list[Row] = field(default_factory=list)
    _files: list[Candidate] = field(default_factory=list)
    _variants: list[Candidate] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _contest: Contest | None = None
    _source_key: str = ""

    def run(self) -> None:
        start = self.workshop.run_alone("preparing", Job("", begin, (self.source, self.shared)), as_it_is)
        self._source_key = key(self.source, start.external, self.shared)
        self._convert()
        self._prove()
        if not self._files:
            return
        contest = self._contest = self._contest_with(start)
        goal, exhaustive = self.plan.goal, self.plan.exhaustive
        self._variants = self._with_settings(self._files) if exhaustive else []
        entrants = [*self._files, *self._variants]
        contest.measure_peaks([contest.base, *entrants])
        self._measure(contest, entrants, "measuring")
        if exhaustive or self.workshop.is_late():
            return
        finalists = [c for c in ranked(self._files, goal) if not c.is_stopped][:FINALISTS]
        self._variants = self._with_settings(finalists)
        if self._variants:
            contest.measure_peaks(self._variants)
            self._measure(contest, [*finalists, *self._variants], "measuring session settings")

    def _measure(self, contest: Contest, entrants: Sequence[Candidate], stage: str) -> None:
        """Measure the candidates. If an error ends the measurement early, it is raised, or noted if there are results already."""
        try:
            contest.run(entrants, self.plan.goal, stage, exhaustive=self.plan.exhaustive)
        except OrtconvError as error:
            if not any(c.logs for c in self._files):
                raise
            self._notes.append(f"{stage} ended early: {error.message}")

    # ------------------------------------------------------------------ stages

    def _convert(self) -> None:
        """A candidate for each different file; rows for the refused ones."""
        by_key = {self._key("draft", form): form for form in self.plan.forms}
        jobs = [Job(k, draft, (self._task(form),)) for k, form in by_key.items()]
        done = self.workshop.each("converting", jobs, partial(read_as, UncheckedFile), share=SHARE)
        found = {by_key[job.key]: outcome for job, outcome in done}
        usual = self._usual()
        by_digest: dict[str, Candidate] = {}
        for form in by_key.values():
            outcome = found.get(form)
            if isinstance(outcome, UncheckedFile) and outcome.digest in by_digest:
                by_digest[outcome.digest].row.same.append(form.label)
                continue
            row = self._row(form, usual)
            if not isinstance(outcome, UncheckedFile):
                row.error = LATE if outcome is None else outcome.message
                self._failed.append(row)
                continue
            row.nodes, row.oldest_onnxruntime = outcome.nodes, outcome.oldest_onnxruntime
            entrant = Entrant(str(self._task(form).output), usual)
            by_digest[outcome.digest] = Candidate(
                row, entrant, outcome.digest, outcome.bytes, holds_fusions=outcome.saved_fusions > 0
            )
        self._files = list(by_digest.values())

    def _prove(self) -> None:
        """Validate each file and estimate its time. Files that fail drop out."""
        by_key = {self._key("proof", c.row.form): c for c in self._files}
        for k, c in by_key.items():
            output = Path(c.entrant.file)
            if not (output.exists() and digest(output) == c.digest):
                self.workshop.memo.forget(k)
            c.row.error = LATE
        jobs = [Job(k, prove, (self._task(c.row.form),)) for k, c in by_key.items()]
        for job, found in self.workshop.each("validating", jobs, partial(read_as, Proof)):
            self._note(found, by_key[job.key])
        self._failed += [c.row for c in self._files if c.row.error is not None]
        self._files = [c for c in self._files if c.row.error is None]

    def _note(self, found: Proof | OrtconvError, candidate: Candidate) -> None:
        """Enter a validation into a candidate's row."""
        row = candidate.row
        row.error = found.message if isinstance(found, OrtconvError) else None
        if isinstance(found, Proof):
            row.scaled, row.limit, row.unchecked = found.scaled, found.limit, found.unchecked
            row.estimated = found.estimated
            row.file = candidate.entrant.file if self.is_kept else None

    def _contest_with(self, start: Start) -> Contest:
        """Ratios are relative to the source if onnxruntime runs it, else to the file with the fewest unusual options."""
        version = _onnxruntime()
        base, what = self._files[0], f"{self._files[0].row.label}, since onnxruntime {version} does not run the source"
        if start.engine == "onnxruntime":
            threads = self._usual().threads
            entrant = Entrant(str(self.source), SessionSettings(threads), is_source=True)
            size = sum(p.stat().st_size for p in (self.source, *(self.source.parent / n for n in start.external)))
            base = Candidate(self._row(Form(), entrant.settings), entrant, "source", size)
            count = counted(threads, "thread")
            what = f"the source, optimized by onnxruntime {version} at level extended as it opens it, {count}"
        about = key_of(self._source_key, platform.node(), platform.machine(), os.cpu_count())
        return Contest(self.workshop, base, what, start.feeds, self.shared.custom_op_library, about)

    def _with_settings(self, files: Sequence[Candidate]) -> list[Candidate]:
        """The files with all session settings that can make a difference and are not measured yet."""
        found = []
        for c in files:
            saved = self.plan.values["saved"] if c.holds_fusions else (self.plan.values["saved"][0],)
            for threads, direct, kept in product(self.plan.values["threads"], self.plan.values["direct"], saved):
                settings = _settings(threads, direct, kept)
                if settings == c.entrant.settings:
                    continue
                label = _label(c.row.form, settings)
                row = replace(c.row, label=label, settings=settings, same=[], measured=None)
                found.append(Candidate(row, replace(c.entrant, settings=settings), c.digest, c.bytes, c.holds_fusions))
        return found

    # ------------------------------------------------------------------ small things

    def _usual(self) -> SessionSettings:
        return _settings(*(self.plan.values[name][0] for name in SESSION))

    def _row(self, form: Form, settings: SessionSettings) -> Row:
        return Row(_label(form, settings), form, settings, command(self.label, form, self.plan.more_flags))

    def _task(self, form: Form) -> ConversionTask:
        output = self.folder / file_name(self.source, form)
        return ConversionTask(self.source, output, form.options(self.shared), target_of(self.shared, self.plan.target))

    def _key(self, kind: str, form: Form) -> str:
        return key_of(kind, self._source_key, asdict(form), self.plan.target)

    # ------------------------------------------------------------------ the result

    def result(self) -> Tuning:
        """The present result. UnsupportedError if the tuning has ended and nothing could be measured."""
        every = [*self._files, *self._variants]
        best = ranked(every, self.plan.goal)
        rows = [c.row for c in (*best, *(c for c in every if c.row.rank is None))] + self._failed
        if self.is_done and not best:
            raise self._nothing_measured(rows)
        is_late = self.workshop.is_late() or any(row.error == LATE for row in rows)
        return Tuning(
            model=self.label,
            goal=self.plan.goal.name,
            target=self.plan.target,
            base=None if self._contest is None else self._contest.described(),
            machine=_machine(),
            device=(self.shared.device or DeviceProfile()).name,
            assumptions=list(ASSUMPTIONS),
            rows=rows,
            recommended=self._choice(best[0]) if best else None,
            candidates=sum(1 + len(row.same) for row in rows),
            files=len(self._files),
            seconds=self.workshop.elapsed,
            stages=dict(self.workshop.stages),
            is_complete=self.is_done and not is_late and not self._notes,
            is_interrupted=not self.is_done,
            notes=list(self._notes),
        )

    def _nothing_measured(self, rows: Sequence[Row]) -> UnsupportedError:
        if any(c.logs for c in (*self._files, *self._variants)):
            return UnsupportedError(
                "no candidate could be measured: this system does not report the memory of a process"
            )
        reason = next((row.error for row in rows if row.error not in (None, LATE)), None)
        if reason is None:
            hint = "allow more time with --budget"
            return UnsupportedError("no candidate could be measured: the time was up", hint=hint)
        return UnsupportedError(f"no candidate could be measured: {reason}")

    def _choice(self, best: Candidate) -> Recommendation:
        row, goal, provider = best.row, self.plan.goal, "cpu"
        if (
            goal.name == "accelerator"
            and row.estimated is not None
            and row.estimated.seconds < row.estimated.cpu_seconds
        ):
            provider = self.plan.target
        return Recommendation(
            row.label,
            row.command,
            ort_name(Path(self.label), row.form.level, row.form.style),
            row.settings,
            best.holds_fusions,
            provider,
            provider_options(self.shared) if provider == "coreml" else {},
            f"best by {goal.what}",
        )


def provider_options(shared: Options) -> dict[str, str]:
    """The options of the CoreML provider in the estimate."""
    found = {"ModelFormat": shared.coreml_format}
    found |= {"RequireStaticInputShapes": "1"} if shared.coreml_static_inputs else {}
    return found | ({"EnableOnSubgraphs": "1"} if shared.coreml_on_subgraphs else {})


def _settings(threads: str, direct: str, saved: str) -> SessionSettings:
    return SessionSettings(int(threads), direct == "yes", saved == "yes")


def _label(form: Form, settings: SessionSettings) -> str:
    """Such as: all nnapi, 2 threads, direct."""
    words = [form.label]
    words += [f"{settings.threads} threads"] if settings.threads > 1 else []
    words += ["direct"] if settings.direct else []
    words += ["saved fusions unused"] if not settings.saved else []
    return ", ".join(words)


def _machine() -> Machine:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Machine(platform.processor() or platform.machine(), usable_cores(), _onnxruntime(), load)


def _onnxruntime() -> str:
    return installed(["onnxruntime"])["onnxruntime"]
