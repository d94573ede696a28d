"""Conversion of many models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from ortconv.errors import OrtconvError, UnknownDimError, UsageError
from ortconv.models import find_models
from ortconv.pipeline.config import config_name, ort_name, write_config
from ortconv.pipeline.conversion import convert, options_of
from ortconv.pipeline.options import Options
from ortconv.pipeline.result import Result
from ortconv.pipeline.settings import Settings
from ortconv.pipeline.stages import Observer

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that could not be converted, and why."""

    source: str
    error: OrtconvError

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        error = self.error
        return {"source": self.source, "error": error.message, "exit_code": error.exit_code, "hint": error.hint}


def convert_all(
    sources: PathLike | Sequence[PathLike],
    output_dir: PathLike | None = None,
    *,
    options: Options | None = None,
    observer: Observer | None = None,
    **settings: Unpack[Settings],
) -> Iterator[Result | Failure]:
    """Convert the .onnx files below a directory, or those of a list, one after the other; yield what comes of each.

    Results go to `output_dir`, in the folders that the sources have below the directory or below the folder that a list has in
    common; without it, beside the sources. One operator config for all results is written behind the last of them. A dimension
    to fix is left out for models that do not have it. UsageError before the first model for options that are wrong, for no
    models, and for two models with the same output; UsageError behind the last one for a dimension that no model has.
    """
    options = options_of(options, settings)
    options.recipe()
    root, paths = _found(sources)
    folder = root if output_dir is None else Path(output_dir)
    targets: dict[Path, Path] = {}
    for path in paths:
        name = ort_name(path, options.optimization_level, options.optimization_style)
        target = folder / path.parent.relative_to(root) / name
        if target in targets:
            raise UsageError(f"{targets[target]} and {path} would both become {target}", hint="rename one of them")
        targets[target] = path
    return _converted(targets, folder, options, observer)


def _found(sources: PathLike | Sequence[PathLike]) -> tuple[Path, list[Path]]:
    """The folder that all models lie in, and the models."""
    if isinstance(sources, str | os.PathLike):
        root = Path(sources)
        paths = find_models(root)
        root = root if root.is_dir() else root.parent
    else:
        paths = list(map(Path, sources))
        root = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    if not paths:
        raise UsageError("there is no .onnx file to convert", file=root)
    return root, paths


def _converted(
    sources: dict[Path, Path], folder: Path, options: Options, observer: Observer | None
) -> Iterator[Result | Failure]:
    missing = dict.fromkeys(options.fix_dims)
    written: list[Path] = []
    for target, source in sources.items():
        try:
            result, dims = _convert_one(source, target, replace(options, write_config=False), observer)
        except OrtconvError as error:
            yield Failure(str(source), error)
            continue
        for name in dims:
            missing.pop(name, None)
        written.append(target)
        yield result
    if missing and len(written) == len(sources):
        raise UsageError(
            f"--fix-dim {next(iter(missing))}: no input of any model has a dimension of that name", file=folder
        )
    if written and options.write_config:
        write_config(written, folder / config_name(options), options)


def _convert_one(source: Path, target: Path, options: Options, observer: Observer | None) -> tuple[Result, list[str]]:
    """The result of one conversion, and the dimensions to fix that the model has."""
    while True:
        try:
            return convert(source, target, options=options, observer=observer), list(options.fix_dims)
        except UnknownDimError as error:
            if error.name not in options.fix_dims:
                raise
            options = replace(options, fix_dims={n: size for n, size in options.fix_dims.items() if n != error.name})
