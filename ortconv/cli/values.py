"""The values of a command's options: as Python objects, and as words of its command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import DIGITS, named_size
from ortconv.cli.options import Role, is_output, role_of
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.pipeline.options import Options


def sizes_in(texts: Iterable[str]) -> dict[str, int]:
    """The numbers of --fix-dim NAME=N, by name."""
    fixed = {}
    for text in texts:
        name, size = named_size(text) or ("", 0)
        if not size:
            raise UsageError(
                f"--fix-dim '{text[:80]}' is not NAME=N with a positive number of at most {DIGITS} digits",
                hint="write --fix-dim batch=1",
            )
        fixed[name] = size
    return fixed


def read_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a command. Options of a conversion have lists, sizes and the contents of files in place of texts and paths."""
    from ortconv.pipeline.options import OPTIONS

    values = {**flags, **({"fix_dims": sizes_in(flags["fix_dims"])} if "fix_dims" in flags else {})}
    return {
        name: value if value is None or name not in OPTIONS else OPTIONS[name].kind.open(value, Path())
        for name, value in values.items()
    }


def options_of(flags: Mapping[str, Any], **settings: Any) -> Options:
    """The options of a conversion among the flags of a command, with `settings`."""
    from ortconv.pipeline.options import OPTIONS, Options

    pipeline = flags.get("pipeline")
    if pipeline is not None:
        for option, _ in on_command_line():
            if option.name in OPTIONS and OPTIONS[option.name].in_pipeline:
                raise UsageError(f"--pipeline and {option.opts[0]} exclude each other", hint="change the file instead")
    values = read_values({name: value for name, value in flags.items() if name in OPTIONS})
    try:
        return Options(**values, **settings)
    except UsageError as error:
        raise (error.at(file=pipeline) if pipeline else error) from None


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


def given_words() -> list[str]:
    """The words of the options on the command line, without those that name output files or change only what is printed."""
    kept = (pair for pair in on_command_line() if role_of(pair[0]) is not Role.VIEW and not is_output(pair[0]))
    return [word for option, value in kept for word in words(option, value)]


def given_options() -> dict[str, str]:
    """The options on the command line with their values, for the page of a result. Paths are reduced to the file's name."""
    kept = (pair for pair in on_command_line() if role_of(pair[0]) not in (Role.VIEW, Role.PICTURE))
    return {_flag(option, value): _shown(value) for option, value in kept}


def _flag(option: click.Option, value: object) -> str:
    off = value is False and option.secondary_opts
    return max(option.secondary_opts if off else option.opts, key=len)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return "" if isinstance(value, bool) else value.name if isinstance(value, Path) else str(value)
