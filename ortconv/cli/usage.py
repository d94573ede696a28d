"""Wrong arguments end in the form of all errors: one message, and a hint."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ortconv.errors import UsageError, known_names, nearest

LONGEST = 200
"""Characters of a command's summary in the help of its group."""


class Commands(click.Group):
    """A group that names the nearest commands, or all, if one is unknown, and prints its help if none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        name = args[0].replace("_", "-")
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"{ctx.command_path} has no command '{args[0]}'", hint=known_names(name, known))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(LONGEST)) for name, command in found if command])


OF_BATCHES = ("resume", "cluster", "summary", "github")
"""Options that have no effect on a single model, of verbs that also accept a directory of models."""


def refuse_options_of_batches(context: click.Context) -> None:
    """UsageError for an option that needs a directory of models."""
    if "cluster" in context.params:
        for name in OF_BATCHES:
            if context.params.get(name):
                raise UsageError(f"--{name} needs a directory of models")


EXCLUSIVE = (("--json", "--markdown"), ("--json", "--as-text"), ("--json", "--list"), ("--quiet", "--verbose"))
"""Pairs of views, of which a command can print only one."""


def refuse_two_views(context: click.Context) -> None:
    """UsageError for two options of which one would have no effect."""
    given = {name for param in context.command.params if context.params.get(param.name or "") for name in param.opts}
    for pair in EXCLUSIVE:
        if given.issuperset(pair):
            raise UsageError(f"{' and '.join(pair)} exclude each other", hint="leave one of them out")


def usage_error(error: click.ClickException) -> UsageError:
    """Click's error as ours. Its hint has the options nearest to an unknown one, or the usage of the command."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    near = None
    if isinstance(error, click.NoSuchOption) and context:  # dashes would make all short names alike
        known = [option.removeprefix("--") for option in _options(context) if option.startswith("--")]
        near = nearest(error.option_name.removeprefix("--"), known, prefix="--")
    return UsageError(_message(error), hint=near or (_usage(error, context) if context else None))


def _message(error: click.ClickException) -> str:
    """Click's sentence as ortconv writes messages, without the nearest names, which are a hint."""
    if isinstance(error, click.BadParameter) and error.param and not isinstance(error, click.MissingParameter):
        return f"{_name(error.param)}: {_plain(error.message)}"
    return _plain(" ".join((error.message or error.format_message()).split()))


def _plain(sentence: str) -> str:
    first = sentence[:1] if sentence[1:2].isupper() else sentence[:1].lower()
    return f"{first}{sentence[1:]}".removesuffix(".")


def _name(param: click.Parameter) -> str:
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def _options(context: click.Context) -> Iterator[str]:
    for param in context.command.params:
        if isinstance(param, click.Option):
            yield from (*param.opts, *param.secondary_opts)


def _usage(error: click.ClickException, context: click.Context) -> str | None:
    """The usage of the command. A wrong value has its own explanation."""
    from ortconv.cli.options import Role, role_of

    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return None
    pieces = " ".join(context.command.collect_usage_pieces(context))
    usage = f"usage: {context.command_path} {pieces}; see {context.command_path} --help"
    is_batch = any(role_of(param) is Role.BATCH for param in context.command.params)
    return f"{usage}. MODEL may be a directory of models" if is_batch else usage
