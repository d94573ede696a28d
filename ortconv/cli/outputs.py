"""An output of a command must not be one of its inputs. One check for all verbs, based on the roles of their options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ortconv.cli.options import is_output
from ortconv.errors import UsageError

MODELS = (".onnx", ".ort", ".pb")
IN_PLACE = ("configs",)
"""Arguments that may also be the output: `ops merge` adds one config to another."""


def check_outputs(ctx: click.Context) -> None:
    """UsageError for an output that is also an input or another output of the command, that has a model's suffix, or that is -.

    An option that may be a directory is convert's output, which is a model.
    """
    outputs = list(_written(ctx))
    if not outputs:
        return
    inputs = [(p, path) for p in ctx.command.params if not is_output(p) for path in _read_by(p, ctx)]
    seen: dict[str, str] = {}
    for param, path in outputs:
        _check_output(param, path, inputs)
        name = f"{param.opts[0]} {path}"
        twin = seen.setdefault(os.path.realpath(path), name)
        if twin != name:
            raise UsageError(f"{name} and {twin} are the same file")


def _written(ctx: click.Context) -> Iterator[tuple[click.Parameter, Path]]:
    """The outputs of a command that are not directories, with their options."""
    for param in filter(is_output, ctx.command.params):
        yield from ((param, path) for path in map(Path, _values(param, ctx)) if not path.is_dir())


def _check_output(param: click.Parameter, path: Path, inputs: Sequence[tuple[click.Parameter, Path]]) -> None:
    """UsageError for an output that is one of the inputs, has a model's suffix, or is -, which means stdout elsewhere."""
    name = f"{param.opts[0]} {path}"
    if str(path) == "-":
        raise UsageError(f"{name}: results are written to files, not to stdout", hint="name a file")
    for other, source in inputs:
        if _is_same(path, source) and other.name not in IN_PLACE:
            raise UsageError(f"{name} is {_title(other)} of this command", hint="choose another name for it")
    if isinstance(param.type, click.Path) and not param.type.dir_okay and path.suffix.lower() in MODELS:
        raise UsageError(f"{name} is the name of a model, which it would not hold", hint="choose another suffix")


def _read_by(param: click.Parameter, ctx: click.Context) -> Iterator[Path]:
    """The files that a parameter can name: a path, or a path in a text such as NAME=FILE:LOW..HIGH or FILE@BACKEND."""
    for value in _values(param, ctx):
        if isinstance(param.type, click.Path):
            yield Path(value)
        elif isinstance(value, str):
            rest = value.partition("=")[2]
            yield from map(Path, (value, value.rpartition("@")[0], rest, rest.rpartition(":")[0]))


def _values(param: click.Parameter, ctx: click.Context) -> Iterator[Any]:
    """The values of a parameter that may be repeated, or its only one; none if it is not given."""
    value = ctx.params.get(param.name or "")
    yield from value if isinstance(value, tuple | list) else () if value is None else (value,)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them does not exist
        return False


def _title(param: click.Parameter) -> str:
    return f"the {param.human_readable_name}" if isinstance(param, click.Argument) else f"the {param.opts[0]}"
