"""The command line: one module per verb, imported when the verb is used. Errors become one message and an exit code here."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ortconv import __version__
from ortconv.cli.usage import Commands, refuse_options_of_batches, refuse_two_views, usage_error
from ortconv.errors import InternalError, ModelError, OrtconvError, UsageError
from ortconv.public import by_system
from ortconv.wording import escaped

if TYPE_CHECKING:
    from ortconv.report.sections import Section

VERBS = {
    "convert": "Convert .onnx models to optimized, NNAPI-aware .ort files.",
    "partition": "Show which nodes an accelerator supports, and why it refuses the others.",
    "run": "Run an .onnx or .ort model on this machine.",
    "compare": "Compare the outputs of models and backends, and find where they differ.",
    "tune": "Find the conversion and session options that suit a model best.",
    "devices": "List NNAPI devices: the CPU and simulated ones.",
    "nnapi": "Show a model's NNAPI operations; compare NNAPI devices.",
    "inspect": "Show a model's operators, cost, memory, quantization, and unusual facts.",
    "diff": "Show the changes from one model to another, and the rewrites behind them.",
    "reduce": "Shrink a model while a command still fails on it.",
    "bundle": "Pack a model, a command and its output for a bug report.",
    "check": "Compare a model with an accepted one: the changes, and the gates that fail.",
    "init": "Write ortconv.toml for the models of a folder.",
    "build": "Convert the models of ortconv.toml, and check their gates.",
    "passes": "List and explain the optimizer's passes.",
    "ops": "Make, merge and check operator configs for reduced builds.",
    "export": "Turn an .ort file back into ONNX, or upgrade an old one.",
    "verify": "Check an .ort file: its structure, and everything that a minimal build trusts.",
}
"""The summary of each verb. Its module has the same name."""

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


class Verbs(Commands):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_of(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@cache
def command_of(name: str) -> click.Command:
    """A verb. Its commands check their output paths before they begin, and have the settings of the root even without it."""
    command: click.Command = import_module(f"ortconv.cli.{name}").command
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        assert one.callback is not None
        one.context_settings = {**SETTINGS, **one.context_settings}
        one.callback = _checked(one.callback)
    return command


class _ReaderGoneError(Exception):
    """The reader of stdout is gone. Click would turn the BrokenPipeError into exit code 1."""


def _checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(callback)
    def run(*args: Any, **flags: Any) -> Any:
        from ortconv.cli.outputs import check_outputs

        context = click.get_current_context()
        check_outputs(context)
        refuse_two_views(context)
        if not _is_batch(flags):
            refuse_options_of_batches(context)
        try:
            with _limited(flags):
                return callback(*args, **flags)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error
        except ModelError as error:
            model = flags.get("model")
            error.at(file=model if isinstance(model, Path) and not _is_batch(flags) else None)
            raise

    return run


def _limited(flags: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Set the limits of a command that works on one model. With a directory, each model has its own: see `ortconv.batch`."""
    from ortconv.watch import ProcessLimits, limited, note_file

    model = flags.get("model")
    if isinstance(model, Path):
        note_file(str(model))
    limits = ProcessLimits(flags.get("timeout"), flags.get("memory"))
    return nullcontext() if _is_batch(flags) or limits == ProcessLimits() else limited(limits)


def _is_batch(flags: Mapping[str, Any]) -> bool:
    """Whether the model of a command is a directory, or a URL, which may be one."""
    model = flags.get("model")
    return isinstance(model, str) or (isinstance(model, Path) and model.is_dir())


@click.group(cls=Verbs, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="ortconv")
def cli() -> None:
    """Convert ONNX models to NNAPI-aware ORT format, run them on this machine, and prove them right.

    Exit codes: 0 ok, 1 a bug in ortconv, 2 wrong option or file, 3 model invalid, unsupported or beyond a limit, 4 numbers differ,
    5 a gate failed, 6 unsafe input refused, 7 part of a batch failed, 130 interrupted.
    """


class Printed:
    """Whether the command must print one JSON document, and whether it has printed it."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.done = False


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Only a bug in ortconv ends in a traceback, and only with ORTCONV_DEBUG set."""
    printed = Printed("--json" in arguments)
    try:
        _check_text(arguments)
        code = cli.main(list(arguments), prog_name="ortconv", standalone_mode=False, obj=printed)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _failed(printed, usage_error(error))
    except OrtconvError as error:
        if isinstance(error, InternalError) and os.environ.get("ORTCONV_DEBUG"):
            raise
        return _failed(printed, error)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return _ended(printed, "interrupted", 130)
    except (BrokenPipeError, _ReaderGoneError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, OSError) as error:
        return _failed(printed, by_system(error))
    except Exception as error:
        if os.environ.get("ORTCONV_DEBUG"):
            raise
        return _failed(printed, InternalError(f"{type(error).__name__}: {error}"))


def report(arguments: Sequence[str], error: OrtconvError) -> int:
    """Print an error that was raised before the command began, and return its exit code."""
    return _failed(Printed("--json" in arguments), error)


def _check_text(arguments: Sequence[str]) -> None:
    """UsageError for an argument that cannot name a file, such as one with a NUL character."""
    for argument in arguments:
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            raise UsageError(f"argument {argument[:80]!a} is not text") from None
        if "\0" in argument:
            raise UsageError(f"argument {argument[:80]!a} has a zero character")


def print_json(document: Any, indent: int | None = 1) -> None:
    """Print the JSON document of a command, the last one if it prints several."""
    printed = click.get_current_context().find_root().obj
    if isinstance(printed, Printed):
        printed.done = True
    click.echo(json.dumps(document, indent=indent))


def present(
    document: Callable[[], Any], view: Callable[[], str | Sequence[Section]], page: Callable[[], str] | None = None
) -> None:
    """Print the result of the present command: its document with --json, nothing with --quiet, else its view, a text or sections.

    Sections are Markdown with --markdown. An empty text is not printed. With --html, the page is written first.
    """
    flags = click.get_current_context().params
    if page is not None and flags["html"] is not None:
        from ortconv.files import write_text

        write_text(flags["html"], page())
    if flags.get("as_json"):
        print_json(document())
    elif not flags.get("quiet"):
        shown = view()
        if not isinstance(shown, str):
            from ortconv.cli.tables import show

            show(shown, markdown=flags.get("markdown", False))
        elif shown:
            click.echo(shown, color=color())


class VerbResult(NamedTuple):
    """What a verb found about one model. `refuse` raises the error that the verb ends with, if there is one."""

    document: Callable[[], dict[str, Any]]
    view: Callable[[], str | Sequence[Section]]
    refuse: Callable[[], None]

    def end(self) -> None:
        """Print the result of the present command, and raise its error."""
        present(self.document, self.view)
        self.refuse()


def _failed(printed: Printed, error: OrtconvError) -> int:
    """Print an error, and its document with --json; return its exit code."""
    fail(error)
    return _ended(printed, error.message, error.exit_code, error)


def _ended(printed: Printed, message: str, code: int, error: OrtconvError | None = None) -> int:
    """The exit code of a failure. With --json, first print a document about it, unless the command has printed one."""
    if printed.wanted and not printed.done:
        places = {key: getattr(error, key, None) for key in ("file", "node", "hint")}
        click.echo(json.dumps({"version": 1, "error": message, **places, "exit_code": code}))
    return code


def fail(error: OrtconvError) -> None:
    """Print an error and its hint to stderr."""
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} {printable(str(error), kept=LINES)}", err=True, color=color()
    )
    if isinstance(error, InternalError):
        click.echo(_how_to_report(), err=True)
    if error.hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {printable(error.hint, kept=LINES)}", err=True, color=color())


def _how_to_report() -> str:
    """The facts for the report of a bug."""
    import platform

    from ortconv.wording import installed

    versions = ", ".join(map(" ".join, installed(("ortconv", "onnx", "onnxruntime", "numpy")).items()))
    return (
        "This is a bug in ortconv. Please report it to whoever gave you ortconv: the command line, the traceback that "
        f"ORTCONV_DEBUG=1 shows, the model or the node named above, and {versions}, Python {platform.python_version()}, "
        f"{platform.platform()}."
    )


def printable(text: str, kept: str = "") -> str:
    """The text with control characters, except those in `kept`, and beginnings of GitHub's commands escaped. Names come from model
    files and must control neither the terminal nor the workflow in whose log they are, nor look like lines of output.
    """
    return WORKFLOW_COMMAND.sub(lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):x}", escaped(text, kept))


LINES = "\n"
"""The control character in texts of several lines."""

WORKFLOW_COMMAND = re.compile(r"^\s*::|##(?=\[)", re.MULTILINE)
"""Where GitHub Actions sees a command in a line of a log."""


def color() -> bool | None:
    """The `color` argument of click: False with NO_COLOR or TERM=dumb, else None, which means as the stream supports."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
