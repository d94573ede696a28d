"""The operator config of converted models: its name and contents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.pipeline.options import Options

if TYPE_CHECKING:
    from ortconv.ortformat.opconfig import RequiredOperators
    from ortconv.validation.reference import Reference

STAMP = "ortconv"
"""The key of a stamp among the metadata of a model: the short form of its manifest."""

LONGEST_NAME = 255
"""Maximum length of a file name, in bytes, on common file systems."""


def suffix(level: str, style: str) -> str:
    """The infix of ONNX Runtime's file names: the level unless it is all, and one for Runtime style."""
    return ("" if level == "all" else f".{level}") + (".with_runtime_opt" if style == "Runtime" else "")


def ort_name(source: PurePath, level: str, style: str = "Fixed") -> str:
    """ONNX Runtime's name for a converted file: x.ort, x.LEVEL.ort if the level is not all, x.with_runtime_opt.ort."""
    return f"{source.stem}{suffix(level, style)}.ort"


def config_name(options: Options) -> str:
    """ONNX Runtime's name for an operator config; for a single model, the model's name comes first."""
    types = "_and_types" if options.enable_type_reduction else ""
    return f"required_operators{types}{suffix(options.optimization_level, options.optimization_style)}.config"


def config_beside(output: Path, options: Options) -> Path:
    """The path of the operator config for a converted file."""
    stem = output.stem.removesuffix(suffix(options.optimization_level, options.optimization_style))
    return beside(output, stem, config_name(options))


def beside(output: Path, stem: str, ending: str) -> Path:
    """The path STEM.ENDING beside a converted file. The stem is shortened if the name would be too long for the file system."""
    while len(os.fsencode(f"{stem}.{ending}")) > LONGEST_NAME:
        stem = stem[:-1]
    return output.with_name(f"{stem}.{ending}")


def lines_of(config: str) -> list[str]:
    """The lines of an operator config, without the comments that name models."""
    return [line for line in config.splitlines() if not line.startswith("#")]


def required_by(ort_files: Sequence[Path], *, types: bool, options: Options | None = None) -> RequiredOperators:
    """The operators that .ort files need in a build. Without `options`, the origin of the files is unknown."""
    from ortconv.ortformat.opconfig import RequiredOperators

    required = RequiredOperators(types=types)
    for path in ort_files:
        require(required, load(path), options)
    required.labels = list(map(str, ort_files))
    return required


def require(
    required: RequiredOperators, model: Model, options: Options | None = None, expected: Reference | None = None
) -> None:
    """Add the operators that a model needs, in Runtime style also after onnxruntime has applied the saved fusions.

    Without `options`, the model has the style that its fusions show.
    In Runtime style, the model is left with the fusions applied. Raises MismatchError if its outputs then differ from those
    expected.
    """
    required.add(model)
    options = options or Options(optimization_style="Runtime" if model.saved else "Fixed")
    if options.optimization_style == "Fixed":
        return
    from ortconv.optimizer.runtime_style import replay

    replay(model, options.recipe(), options.target_platform)
    required.add(model)
    if expected is not None and expected.backend == "numpy":
        from ortconv.validation.validate import validate_stage

        validate_stage(
            expected, model, "the replay of saved fusions", hint="--optimization-style Fixed makes them at once"
        )
