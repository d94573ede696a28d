"""Conversion of many models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Unpack

from ortconv.batch.crew import WARM, WARM_TO_CONVERT, Crew, crew_of
from ortconv.batch.engine import Batch, Engine, Failure
from ortconv.batch.journal import BatchJournal
from ortconv.batch.locations import Location, below, check_reach, common_folder, fetch, find_urls, location, write_far
from ortconv.batch.remote import FarJournal, convert_anywhere
from ortconv.batch.work import Conversion, Journaling, Outcome, unknown_operators
from ortconv.errors import OrtconvError, UsageError, nearest
from ortconv.files import remove_dead_drafts, temporary_folder, write_text
from ortconv.ir.schema import operators
from ortconv.models import find_models
from ortconv.onnxio.load import Names, names_in
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.pipeline.config import config_name, lines_of, ort_name, required_by
from ortconv.pipeline.conversion import options_of
from ortconv.pipeline.options import Options
from ortconv.pipeline.result import Result
from ortconv.pipeline.settings import Settings
from ortconv.pipeline.stages import Observer
from ortconv.public import public
from ortconv.watch import Activity

PathLike = str | os.PathLike[str]
Journal = BatchJournal | FarJournal


@public
def convert_all(
    sources: PathLike | Sequence[PathLike],
    output_dir: PathLike | None = None,
    *,
    options: Options | None = None,
    jobs: int | None = None,
    executor: Executor | str | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    resume: bool | None = None,
    observer: Observer | None = None,
    **settings: Unpack[Settings],
) -> Conversions:
    """Convert the .onnx files below a directory, or those of a list; yield a Result or Failure for each, as they finish.

    Sorted by `source`, they are in the order in which the work began. Results go to `output_dir`, in the folders that the sources
    have below the directory or below the folder that a list has in common; without it, beside the sources. One operator config
    for all files that are in place is written at the end.

    Sources and `output_dir` may be URLs of fsspec, such as s3://bucket/models.

    Work is done by `jobs` processes of this machine, one for each core by default, or by an executor: one of concurrent.futures, or
    the address of a Dask cluster such as "tcp://scheduler:8786" or "local:4". A single model is converted in this process unless a
    number of jobs or a limit is given. With an `observer`, all models are converted in this process. In a worker, each model may
    use `timeout` seconds (an hour by default) and `memory` bytes (by default nine tenths of the machine's memory, divided by the
    jobs). If a worker dies, only its model fails.

    With `resume` not None, the output folder has a journal. True skips the models whose files the journal proves to be unchanged.

    UsageError before any work for options that are wrong, for no models, for two models with the same output, for a dimension to
    fix or a stop operator that no model has, and if another batch is writing to the folder.
    """
    options = options_of(options, settings)
    options.recipe()
    root, paths = _found(sources)
    folder = root if output_dir is None else location(output_dir)
    targets = _targets(paths, root, folder, options)
    with ExitStack() as resources:
        isolated = not (observer is not None or (len(paths) == 1 and jobs is timeout is memory is None))
        check_reach((folder, *paths), in_process=isinstance(executor, Executor) or not isolated)
        warm = WARM if options.validate or options.float16 else WARM_TO_CONVERT
        crew = resources.enter_context(crew_of(executor, jobs, timeout, memory, isolated=isolated, warm=warm))
        check_names(options.fix_dims, options.nnapi_partitioning_stop_ops or (), paths, crew)
        kept: Journal | None = None
        if resume is not None:
            kept = BatchJournal(folder) if isinstance(folder, Path) else FarJournal(folder)
            resources.callback(kept.close)
        known = kept.records() if kept is not None and resume else {}
        is_near = crew.is_local and isinstance(folder, Path)
        who = Journaling.NONE if kept is None else Journaling.WORKER if is_near else Journaling.CALLER
        items = (Conversion(path, folder, out, options, who, known.get(out)) for out, path in targets.items())
        batch = Batch(partial(convert_anywhere, observer=observer), items, crew, lambda item: str(item.source))
        return Conversions(batch, targets, folder, options, kept, resources.pop_all())


def _targets(paths: Iterable[Location], root: Location, folder: Location, options: Options) -> dict[str, Location]:
    """The sources by the paths of their results below the folder. UsageError if two have the same."""
    targets: dict[str, Location] = {}
    for path in paths:
        inner = PurePosixPath(
            path.relative_to(root).as_posix() if isinstance(path, Path) else path[len(str(root)) + 1 :]
        )
        target = str(inner.with_name(ort_name(inner, options.optimization_level, options.optimization_style)))
        if target in targets:
            message = f"{targets[target]} and {path} would both become {below(folder, target)}"
            raise UsageError(message, hint="rename one")
        targets[target] = path
    return targets


class Conversions(Iterator[Result | Failure]):
    """The result or failure of each model of a batch, as soon as the model is done.

    `total` is the number of models. `config` is the operator config: None until it is written, when all models are done.
    """

    config: Location | None

    def __init__(
        self,
        batch: Batch[Conversion, Outcome],
        targets: Mapping[str, Location],
        folder: Location,
        options: Options,
        kept: Journal | None,
        resources: ExitStack,
    ) -> None:
        self.total, self.config = len(targets), None
        self._batch, self._targets, self._folder, self._options = batch, targets, folder, options
        self._journal, self._resources = kept, resources
        self._required: dict[str, None] = {}
        self._in_place: set[str] = set()
        self._results: Iterator[Result | Failure] | None = None

    def __del__(self) -> None:
        self._resources.close()

    def __next__(self) -> Result | Failure:
        if self._results is None:  # made late, since a generator keeps this object alive
            self._results = self._run()
        return next(self._results)

    def busy(self) -> list[tuple[str, Activity, float]]:
        """The models in progress, each with its current activity and the seconds since it began."""
        return self._batch.busy()

    def close(self) -> None:
        """Stop the batch. Models that are not converted yet are left out."""
        self._resources.close()
        if isinstance(self._folder, Path):
            for folder in {(self._folder / target).parent for target in self._targets}:
                remove_dead_drafts(folder)

    def _run(self) -> Iterator[Result | Failure]:
        try:
            for item, outcome in self._batch:
                if isinstance(outcome, Failure):
                    yield outcome
                    continue
                result, record = outcome
                if self._journal is not None and record is not None and item.journaling is Journaling.CALLER:
                    self._journal.append(record)
                self._in_place.add(item.output)
                self._required["\n".join(lines_of(result.required))] = None
                yield result
            if self._options.write_config:
                self._write_config()
        finally:
            self.close()

    def _write_config(self) -> None:
        """Write the operator config of all files in place. This includes files of an earlier batch whose model failed now."""
        types = self._options.enable_type_reduction
        required = RequiredOperators(types=types)
        for text in self._required:
            required.merge(RequiredOperators.parse(text))
        for output in self._targets.keys() - self._in_place:
            with suppress(OrtconvError):
                target = below(self._folder, output)
                if isinstance(target, Path) and target.is_file():
                    required.merge(required_by([target], types=types, options=self._options))
                    self._in_place.add(output)
        if not self._in_place:
            return
        text = required.text([str(below(self._folder, output)) for output in self._in_place])
        self.config = below(self._folder, config_name(self._options))
        if isinstance(self.config, Path):
            write_text(self.config, text)
        else:
            write_far(self.config, text)


def check_names(fix_dims: Iterable[str], stop_ops: Iterable[str], paths: Sequence[Location], crew: Crew) -> None:
    """UsageError for a dimension to fix, or a stop operator, that occurs in no model. Models are read until each name is found."""
    dims, ops = set(fix_dims), unknown_operators(stop_ops)
    known_dims, known_ops = _names(paths, crew, dims, ops) if dims or ops else (set(), set())
    for name in sorted(dims - known_dims):
        every = f"symbolic dimensions of the inputs: {', '.join(sorted(known_dims)) or 'none'}"
        hint = nearest(name, known_dims) or every
        raise UsageError(f"--fix-dim {name}: no input of any model has a dimension of that name", hint=hint)
    for name in sorted(ops - known_ops):
        hints = {*known_ops, *operators("")}
        raise UsageError(f"there is no operator '{name}' to stop at", hint=nearest(name, hints))


def _names(paths: Sequence[Location], crew: Crew, dims: set[str], ops: set[str]) -> tuple[set[str], set[str]]:
    """The symbolic dimensions and operators of the models, read until all of `dims` and `ops` are found."""
    known_dims: set[str] = set()
    known_ops: set[str] = set()
    for _, names in Engine(_names_at, crew).run(paths):
        if not isinstance(names, OrtconvError):
            known_dims |= names.dims
            known_ops |= names.operators
            if dims <= known_dims and ops <= known_ops:
                break
    return known_dims, known_ops


def _names_at(place: Location) -> Names:
    """The names in a model."""
    if isinstance(place, Path):
        return names_in(place)
    with temporary_folder() as folder:
        copy = folder / "m.onnx"
        fetch(place, copy)
        return names_in(copy)


def _found(sources: PathLike | Sequence[PathLike]) -> tuple[Location, Sequence[Location]]:
    """The nearest folder above all models, and the models."""
    root: Location
    paths: Sequence[Location]
    if isinstance(sources, str | os.PathLike):
        root = location(sources)
        if isinstance(root, str):
            root, paths = find_urls(root)
        else:
            paths = find_models(root)
            root = root if root.is_dir() else root.parent
    else:
        paths = list(map(location, sources))
        root = common_folder(paths) if paths else Path()
    if not paths:
        raise UsageError("there is no .onnx file to convert", file=str(root))
    return root, paths
