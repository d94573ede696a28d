"""Options that several verbs have, and types of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click

from ortconv.choices import (
    ANALYSIS_LEVELS,
    COREML_FORMATS,
    COREML_VERSION,
    ERROR_BUDGET,
    FEATURE_LEVEL,
    FEATURE_LEVELS_TEXT,
    feature_level_of,
)
from ortconv.cli import completion
from ortconv.errors import UsageError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE_OR_FOLDER = click.Path(exists=True, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUTPUT = click.Path(path_type=Path)
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)
OUTPUT_FOLDER = click.Path(file_okay=False, path_type=Path)


class Number(click.IntRange):
    """A whole number, which is N in the help."""

    name = "whole number"

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return "N"


class Real(click.FloatRange):
    """A finite number, which is X in the help."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{value!r} is not a finite number", param, ctx)

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return "X"


class Seconds(Real):
    """A positive time, which is SECONDS in the help."""

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return "SECONDS"


Decorator = Callable[[Any], Any]
"""A decorator that gives a command an option."""


class Role(Enum):
    """What an option does that does not change the result."""

    VIEW = "selects what is printed or drawn"
    PICTURE = "names a file for a view of the result"
    OUTPUT = "names a file or a directory for results"
    BATCH = "is for directories of models"


class RoleOption(click.Option):
    """An option with a role, if it has one."""

    def __init__(self, *args: Any, role: Role | None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.role = role


def role_of(param: click.Parameter) -> Role | None:
    """The role of a parameter. None for those that may change the result."""
    return param.role if isinstance(param, RoleOption) else None


def is_output(param: click.Parameter) -> bool:
    """Whether a parameter names files that the command writes."""
    return role_of(param) in (Role.OUTPUT, Role.PICTURE)


NATURAL = Number(0)
COUNT = Number(1)
SECONDS = Seconds(0, min_open=True)


def option(*names: str, role: Role | None, **settings: Any) -> Decorator:
    return click.option(*names, cls=RoleOption, role=role, **settings)


def flag(*names: str, help: str, role: Role | None = None) -> Decorator:
    """An option without a value."""
    return option(*names, role=role, is_flag=True, help=help)


def view(*names: str, help: str) -> Decorator:
    """An option without a value that selects what is printed or drawn."""
    return flag(*names, help=help, role=Role.VIEW)


def written(*names: str, role: Role = Role.OUTPUT, type: click.Path = OUTPUT_FILE, **settings: Any) -> Decorator:
    """An option that names what the command writes."""
    return option(*names, role=role, type=type, **settings)


def output(help: str, *name: str, type: click.Path = OUTPUT, required: bool = False) -> Decorator:
    return written("-o", "--output", *name, type=type, required=required, help=help)


def jobs(help: str, role: Role | None = None) -> Decorator:
    return option("--jobs", role=role, type=COUNT, help=f"{help}  [default: the cores that ortconv may use]")


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A type whose values a function makes of texts. Its ValueError or UsageError is the message."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except UsageError as error:
            self.fail(f"{error.message}: {error.hint}", param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _bytes(text: str) -> int:
    from ortconv.files import byte_count

    return byte_count(text)


def _duration(text: str) -> float:
    from ortconv.inputs.budget import seconds_of

    seconds = seconds_of(text.strip().lower())
    if not seconds:
        raise ValueError(f"'{text}' is not a time: write 90s, 10min or 2h")
    return seconds


SIZE = Parsed("size", _bytes)
"""A number of bytes, optionally with a unit."""

DURATION = Parsed("time", _duration)
"""A time with its unit, in seconds."""

FEATURE_LEVEL_NUMBER = Parsed("level", feature_level_of)
"""A feature level of NNAPI, from 1 to 8 or by its number; the value is the number."""


class Location(click.Path):
    """A path, or a URL of fsspec, which stays a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            value = value.removeprefix("file://")
            if "://" in value:
                return value
        return super().convert(value, param, ctx)


class Library(click.Path):
    """A shared library of Linux, macOS or Windows."""

    MAGIC = (b"\x7fELF", b"\xfe\xed\xfa", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ortconv.files import opened

        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            with opened(path) as file:
                if file.read(4).startswith(self.MAGIC):
                    return path
        except UsageError as error:
            self.fail(str(error), param, ctx)
        self.fail(f"'{path}' is not a shared library", param, ctx)


def _passes(flag: str, name: str, help: str) -> Decorator:
    return click.option(flag, name, multiple=True, metavar="NAME", shell_complete=completion.passes, help=help)


PASS_CHOICE = (
    _passes("--enable-pass", "enable_passes", "Also run this opt-in pass; may be repeated."),
    _passes("--disable-pass", "disable_passes", "Leave out a pass; may be repeated. See: ortconv passes list."),
    _passes("--only-pass", "only_passes", "Run only the passes with this name; may be repeated."),
    click.option("--stop-after", type=NATURAL, help="Stop optimizing after N rewrites."),
)

PIPELINE = (
    *PASS_CHOICE,
    click.option(
        "--pipeline", type=FILE, help="Run exactly the passes in a file written by: ortconv passes list --as-text."
    ),
    click.option(
        "--fold-limit",
        type=SIZE,
        default="64MiB",
        help="Limit on the model's growth by constant folding, such as 64M, 1GiB or 0.",
    ),
)

PROFILE = click.option(
    "--device",
    type=FILE,
    help="TOML profile of a phone: the operators that it refuses, and its speeds (docs/cost.md). Not a name of ortconv devices.",
)

LIMITS = (
    PROFILE,
    click.option("--max-partitions", type=NATURAL, help="Keep only the N partitions that save most time."),
    click.option("--min-nodes", type=COUNT, default=1, help="Leave out partitions of fewer than N nodes."),
    flag("--only-worthwhile", help="Leave out partitions that are estimated to save no time."),
)

FLOAT16 = (
    flag(
        "--float16",
        help="Convert weights and activations to float16, except where the error budget or the operators do not allow it.",
    ),
    click.option(
        "--error-budget",
        type=Real(0, min_open=True),
        default=ERROR_BUDGET,
        help="Limit on the error of --float16, relative to the largest element of each output.",
    ),
    click.option(
        "--keep-float32",
        multiple=True,
        metavar="NAME",
        shell_complete=completion.operators,
        help="Keep a node, the node that computes a value, or all nodes of an operator in float32; may be repeated.",
    ),
)

FIX_DIM = click.option(
    "--fix-dim",
    "fix_dims",
    multiple=True,
    metavar="NAME=N",
    help="Set an input dimension without a size to a number, by its name or as INPUT[AXIS] if it has none; may be repeated.",
)

FREEZE = flag(
    "--freeze-initializers",
    help="Make constants of inputs that have a default value: rewrites and accelerators need constants. A caller can then no "
    "longer override them.",
)

INPUT_CHANGES = (FIX_DIM, FREEZE)
"""The options that change the inputs of a model."""

ANALYSIS_LEVEL = click.option(
    "--level",
    type=click.Choice(ANALYSIS_LEVELS),
    help="Level at which an .onnx model is optimized first; aware is the level of convert --use-nnapi.  [default: basic]",
)


def _limits(time: str, memory: str, prefix: str = "") -> tuple[Decorator, ...]:
    """The options of limits; a command with parameters of these names, without a prefix, is held to them."""
    return (
        click.option("--timeout", f"{prefix}timeout", type=SECONDS, help=time),
        click.option("--memory", f"{prefix}memory", type=SIZE, help=memory),
    )


_WORKER = "by default nine tenths of the machine's memory divided by the jobs"

TIME_AND_MEMORY = _limits("Time limit of the command.", "Memory limit of the command, such as 4GiB.")
"""Limits of a verb that works on one model."""

LIMITS_OF_MODELS = _limits(
    "Time limit. With a directory, it is the limit for each model, by default an hour.",
    f"Memory limit, such as 4GiB. With a directory, it is the limit for each worker, {_WORKER}.",
)
"""Limits of a verb that works on one model or a directory of models."""

LIMITS_OF_BUILDS = _limits(
    "Time limit for each model.  [default: an hour]",
    f"Memory limit for each worker, such as 4GiB, {_WORKER}.",
    prefix="worker_",
)

CHECK_MEMORY = click.option(
    "--check-memory", type=SIZE, help="Limit on the memory of the command, such as 4GiB (Linux only)."
)

BATCH = (
    jobs("With a directory: number of models to process at a time.", Role.BATCH),
    option(
        "--cluster",
        role=Role.BATCH,
        metavar="ADDRESS",
        help="With a directory: let a Dask cluster do the work, such as tcp://scheduler:8786, or local:4. Needs ortconv[dask].",
    ),
    written("--summary", metavar="FILE.md", help="With a directory: write the counts and failures as Markdown, too."),
    flag(
        "--github",
        role=Role.BATCH,
        help="With a directory: append the counts and failures to the summary of a GitHub Actions step, and annotate failures.",
    ),
)
"""Options of verbs that accept a directory of models."""

GITHUB = flag("--github", help="Append the result to the summary of a GitHub Actions step, and annotate failures.")

VALIDATION = (
    click.option(
        "--validate-with",
        type=FILE,
        multiple=True,
        help="Inputs for validation by name, as .npz; may be repeated.  [default: generated inputs]",
    ),
    click.option(
        "--validate-budget",
        metavar="BUDGET",
        help="Validation's limits: CPU time for all runs, memory for one run, such as 1min or 30s,4GiB.  [default: 20s,2GiB]",
    ),
)

NNAPI = (
    click.option(
        "--nnapi-feature-level",
        type=FEATURE_LEVEL_NUMBER,
        default=FEATURE_LEVEL,
        show_default=True,
        help=f"NNAPI feature level to assume: {FEATURE_LEVELS_TEXT}.",
    ),
    click.option(
        "--nnapi-partitioning-stop-ops",
        "--stop-ops",
        metavar="OPS",
        shell_complete=completion.operators,
        help="Stop operators, comma separated: NNAPI gets no such nodes and none downstream of them.  [default: NonMaxSuppression]",
    ),
)
"""The options of NNAPI, for every command that divides models."""

COREML = (
    click.option(
        "--coreml-format",
        type=click.Choice(COREML_FORMATS),
        default=COREML_FORMATS[0],
        help="Model format that the CoreML provider makes.",
    ),
    click.option(
        "--coreml-version", type=COUNT, default=COREML_VERSION, help="CoreML version to assume; 7 is that of iOS 17."
    ),
    flag(
        "--coreml-only-static-input-shapes",
        "coreml_static_inputs",
        help="Assign no node with dynamic shapes to CoreML, like the provider's flag of this name.",
    ),
    flag(
        "--coreml-enable-on-subgraph",
        "coreml_on_subgraphs",
        help="Also assign nodes inside If, Loop and Scan to CoreML.",
    ),
)
"""The options of CoreML, for every command that divides models."""


def accelerators(use_nnapi: str, use_coreml: str) -> tuple[Decorator, ...]:
    """The options of a conversion for accelerators and in float16. The arguments are the help of --use-nnapi and --use-coreml."""
    maximize = (
        "Rewrite nodes that the accelerator refuses into nodes that it supports, if that puts more nodes in partitions."
    )
    return (
        flag("--use-nnapi", help=use_nnapi),
        *NNAPI,
        flag("--use-coreml", help=use_coreml),
        *COREML,
        *LIMITS,
        flag("--maximize-offload", help=maximize),
        *FLOAT16,
    )


JSON = view("--json", "as_json", help="Print one JSON document.")
QUIET = view("-q", "--quiet", help="Print only errors.")
JSON_AND_QUIET = (JSON, QUIET)
JSON_LINES = view(
    "--json", "as_json", help="Print one JSON document; with a directory, one line for each model and one for all."
)
MARKDOWN = view("--markdown", help="Print Markdown, for a pull request.")
MARKDOWN_OF_MODEL = view("--markdown", help="Print Markdown, for a pull request. See --summary for directories.")


LIBRARY = Library(exists=True, dir_okay=False, path_type=Path)

CUSTOM_OP_LIBRARY = click.option(
    "--custom-op-library", type=LIBRARY, help="Shared library with your own operators, for onnxruntime."
)

BACKENDS = (
    click.option(
        "--backend",
        "backends",
        multiple=True,
        default=["numpy"],
        metavar="BACKEND",
        shell_complete=completion.backends,
        help="Backend to run on: numpy, numpy:reference, onnxruntime, nnapi, litert or an installed one. "
        "Repeat it in order of preference.",
    ),
    CUSTOM_OP_LIBRARY,
)


def fail_on(verb: str, example: str, more: str = "") -> Decorator:
    """The option --fail-on of a verb. Several lists of conditions are joined."""
    from ortconv.gates import metrics_of

    text = f'Exit with 5 if one of these conditions holds, such as "{example}"; may be repeated. {more}'.rstrip()
    return click.option(
        "--fail-on", multiple=True, metavar="CONDITIONS", help=f"{text} Metrics: {', '.join(metrics_of(verb))}."
    )


def add(*options: Decorator | Sequence[Decorator]) -> Decorator:
    """A decorator that gives a command several options and groups of options, in this order."""
    every = [option for one in options for option in (one if isinstance(one, Sequence) else (one,))]

    def decorate(function: Any) -> Any:
        for option in reversed(every):
            function = option(function)
        return function

    return decorate


PAGE = written("--html", role=Role.PICTURE, help="Write the result as an interactive page in one file.")


def drawing(help: str) -> tuple[Decorator, ...]:
    """The options --svg, with this help, and --dark."""
    return (written("--svg", role=Role.PICTURE, help=help), view("--dark", help="Use colors for dark pages in --svg."))
