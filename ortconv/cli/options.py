"""Options that several verbs have, and types of their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    natural,
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

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return "N"


class Seconds(click.FloatRange):
    """A positive time, which is SECONDS in the help."""

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return "SECONDS"


Option = Callable[[Any], Any]
"""A decorator that gives a command an option."""

NATURAL = Number(0)
COUNT = Number(1)
SECONDS = Seconds(0, min_open=True)


def flag(*names: str, help: str) -> Option:
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help)


def output(help: str, *name: str, type: click.Path = OUTPUT, required: bool = False) -> Option:
    """The option --output of a command."""
    return click.option("-o", "--output", *name, type=type, required=required, help=help)


def jobs(help: str) -> Option:
    """The option --jobs of a command."""
    return click.option("--jobs", type=COUNT, help=f"{help}  [default: the cores that ortconv may use]")


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
    from ortconv.compare.budget import seconds_of

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


def _passes(flag: str, name: str, help: str) -> Option:
    return click.option(flag, name, multiple=True, metavar="NAME", shell_complete=completion.passes, help=help)


PASS_CHOICE = (
    _passes("--enable-pass", "enable_passes", "Also run this opt-in pass; may be repeated."),
    _passes("--disable-pass", "disable_passes", "Leave out a pass; may be repeated. See: ortconv passes list."),
    _passes("--only-pass", "only_passes", "Run only the passes with this name; may be repeated."),
    click.option("--stop-after", type=NATURAL, help="Stop optimizing after N rewrites."),
)

PROFILE = click.option(
    "--device",
    type=FILE,
    help="Profile of a phone: a TOML file with the operators that it refuses, and its speeds (docs/cost.md).",
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
        type=click.FloatRange(0, min_open=True),
        default=ERROR_BUDGET,
        metavar="X",
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

ANALYSIS_LEVEL = click.option(
    "--level",
    type=click.Choice(ANALYSIS_LEVELS),
    help="Level at which an .onnx model is optimized first; aware is the level of convert --use-nnapi.  [default: basic]",
)


def _limits(time: str, memory: str) -> tuple[Option, ...]:
    return (click.option("--timeout", type=SECONDS, help=time), click.option("--memory", type=SIZE, help=memory))


_WORKER = "by default nine tenths of the machine's memory divided by the jobs"

TIME_AND_MEMORY = _limits("Time limit of the command.", "Memory limit of the command, such as 4GiB.")
"""Limits of a verb that works on one model."""

LIMITS_OF_MODELS = _limits(
    "Time limit. With a directory, it is the limit for each model, by default an hour.",
    f"Memory limit, such as 4GiB. With a directory, it is the limit for each worker, {_WORKER}.",
)
"""Limits of a verb that works on one model or a directory of models."""

LIMITS_OF_BUILDS = _limits(
    "Time limit for each model.  [default: an hour]", f"Memory limit for each worker, such as 4GiB, {_WORKER}."
)

CHECK_MEMORY = click.option(
    "--check-memory", type=SIZE, help="Limit on the memory of the command, such as 4GiB (Linux only)."
)

BATCH = (
    jobs("With a directory: number of models to process at a time."),
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="With a directory: let a Dask cluster do the work, such as tcp://scheduler:8786, or local:4. Needs ortconv[dask].",
    ),
    click.option(
        "--summary",
        type=OUTPUT_FILE,
        metavar="FILE.md",
        help="With a directory: write the counts and failures as Markdown, too.",
    ),
    flag(
        "--github",
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
        help="Validation's limits: time for all runs, memory for one run, such as 1min or 30s,4GiB.  [default: 20s,2GiB]",
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


def accelerators(use_nnapi: str, use_coreml: str) -> tuple[Option, ...]:
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


JSON = flag("--json", "as_json", help="Print one JSON document.")
QUIET = flag("-q", "--quiet", help="Print only errors.")
JSON_AND_QUIET = (JSON, QUIET)
JSON_LINES = flag(
    "--json", "as_json", help="Print one JSON document; with a directory, one line for each model and one for all."
)
MARKDOWN = flag("--markdown", help="Print Markdown, for a pull request.")


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


def fail_on(verb: str, example: str, more: str = "") -> Option:
    """The option --fail-on of a verb. Several lists of conditions are joined."""
    from ortconv.gates import metrics_of

    text = f'Exit with 5 if one of these conditions holds, such as "{example}"; may be repeated. {more}'.rstrip()
    return click.option(
        "--fail-on", multiple=True, metavar="CONDITIONS", help=f"{text} Metrics: {', '.join(metrics_of(verb))}."
    )


def add(*options: Option | Sequence[Option]) -> Option:
    """A decorator that gives a command several options and groups of options, in this order."""
    every = [option for one in options for option in (one if isinstance(one, Sequence) else (one,))]

    def decorate(function: Any) -> Any:
        for option in reversed(every):
            function = option(function)
        return function

    return decorate


PAGE = click.option("--html", type=OUTPUT_FILE, help="Write the result as an interactive page in one file.")


def drawing(help: str) -> tuple[Option, ...]:
    """The options --svg, with this help, and --dark."""
    return (
        click.option("--svg", type=OUTPUT_FILE, help=help),
        flag("--dark", help="Use colors for dark pages in --svg."),
    )


# --------------------------------------------------------------------------------------------------------------- values


def names_in(text: str) -> tuple[str, ...]:
    """The names of a comma separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def sizes_in(texts: Iterable[str]) -> dict[str, int]:
    """The numbers of --fix-dim NAME=N, by name."""
    fixed = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        size = natural(number)
        if not name or not size:
            raise UsageError(
                f"--fix-dim '{text[:80]}' is not NAME=N with a positive number", hint="write --fix-dim batch=1"
            )
        fixed[name] = size
    return fixed


def _profile(path: Path) -> Any:
    from ortconv.partition.profile import read_device

    return read_device(path)


def _arrays(paths: Sequence[Path]) -> Any:
    if not paths:
        return ()
    from ortconv.compare.arrays import read_npz

    return tuple(map(read_npz, paths))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "nnapi_partitioning_stop_ops": names_in,
    "fix_dims": sizes_in,
    "device": _profile,
    "validate_with": _arrays,
}


def read_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a command, with lists, sizes and the contents of files in place of their texts and paths."""
    return {
        name: _READERS[name](value) if name in _READERS and value is not None else value
        for name, value in flags.items()
    }


def on_command_line() -> Iterator[tuple[click.Option, Any]]:
    """The options on the present command line, with their values."""
    context = click.get_current_context()
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if isinstance(param, click.Option) and source is click.core.ParameterSource.COMMANDLINE:
            yield param, context.params[param.name or ""]


def words(option: click.Option, value: Any) -> list[str]:
    """An option of a command line as words. A flag has no value."""
    if option.is_flag:
        return [option.opts[0] if value else option.secondary_opts[0]]
    return [word for one in (value if isinstance(value, tuple) else (value,)) for word in (option.opts[0], str(one))]


NOT_SHOWN = ("as_json", "dark", "html", "quiet", "svg", "verbose")
"""Options that select the form of a result, not its content."""


def given_options() -> dict[str, str]:
    """The options on the command line with their values, for the page of a result. Paths are reduced to the file's name."""
    return {_flag(param, value): _shown(value) for param, value in on_command_line() if param.name not in NOT_SHOWN}


def _flag(option: click.Option, value: object) -> str:
    off = value is False and option.secondary_opts
    return max(option.secondary_opts if off else option.opts, key=len)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return "" if isinstance(value, bool) else value.name if isinstance(value, Path) else str(value)
