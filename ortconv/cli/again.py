"""Command lines that repeat the present command on other models."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ortconv.errors import OrtconvError

SHOWN = ("as_json", "quiet", "verbose", "markdown")
"""Options that only change what a command prints."""


def options_given() -> list[str]:
    """The options on the present command line, without those that name output files."""
    context = click.get_current_context()
    return [
        word
        for param in context.command.params
        if isinstance(param, click.Option)
        and param.name is not None
        and param.name not in SHOWN
        and not _is_output(param)
        if context.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE
        for word in _words(param, context.params[param.name])
    ]


def _is_output(option: click.Option) -> bool:
    return isinstance(option.type, click.Path) and not option.type.exists


def _words(option: click.Option, value: object) -> Iterator[str]:
    if option.is_flag:
        yield option.opts[0] if value else option.secondary_opts[0]
        return
    for one in value if isinstance(value, tuple | list) else (value,):
        yield from (option.opts[0], str(one))


def add_reduce_line(error: OrtconvError, model: Path, *commands: Sequence[str], output: str | None = None) -> None:
    """Add the `ortconv reduce` line to an error's hint. It shrinks the model while these commands, in this order, end with the
    error.

    `output` is a text that distinguishes this failure from others with the same exit code.
    """
    check = " && ".join(" ".join(map(_quoted, ("ortconv", *words))) for words in commands)
    expected = ["--expect-exit", str(error.exit_code), *(["--expect-output", output] if output else [])]
    line = shlex.join(["ortconv", "reduce", str(model), *expected, "--check", check])
    error.hint = f"{error.hint}; or shrink the model: {line}" if error.hint else f"shrink the model: {line}"


def _quoted(word: str) -> str:
    """A word in the shell's syntax. {} stays unquoted, since `ortconv reduce` replaces it with a quoted path."""
    return shlex.quote(word.replace("{}", "@@")).replace("@@", "{}")
