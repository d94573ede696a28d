"""The command line: one module per verb, imported when the verb is used. Errors become one message and an exit code here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from ortconv import __version__
from ortconv.errors import InternalError, OrtconvError, how_to_report

VERBS = {
    "convert": ("ortconv.cli.convert", "Convert .onnx models to optimized, NNAPI-aware .ort files."),
    "partition": ("ortconv.cli.partition", "Say which nodes an accelerator takes, and why not the others."),
    "run": ("ortconv.cli.run", "Run an .onnx or .ort model on this machine."),
    "compare": ("ortconv.cli.compare", "Say how far models are from each other, and where they part."),
    "devices": ("ortconv.cli.devices", "List NNAPI devices: the CPU, and simulated ones."),
    "nnapi": ("ortconv.cli.nnapi", "Look into NNAPI models: dump them, compare devices."),
    "passes": ("ortconv.cli.passes", "Say what the optimizer's passes do."),
    "ops": ("ortconv.cli.ops", "Make, merge and check operator configs for reduced builds."),
    "verify": ("ortconv.cli.verify", "Check an .ort file: structure, and what a minimal build would trust."),
}
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


class Verbs(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(VERBS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])


@click.group(cls=Verbs, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="ortconv")
def cli() -> None:
    """Convert ONNX models to NNAPI-aware ORT format, run them here, and prove them right.

    Exit codes: 0 ok, 1 a bug in ortconv, 2 usage, 3 model invalid or unsupported, 4 numbers differ, 5 a gate failed, 6 unsafe input
    refused, 7 part of a batch failed, 130 interrupted.
    """


def main(arguments: Sequence[str]) -> int:
    """Run a command line; its exit code. Nothing but a bug of ours ends in a traceback, and that only with ORTCONV_DEBUG set."""
    try:
        cli.main(list(arguments), prog_name="ortconv", standalone_mode=False)
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OrtconvError as error:
        if isinstance(error, InternalError) and os.environ.get("ORTCONV_DEBUG"):
            raise
        fail(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        return 3
    except Exception as error:
        if os.environ.get("ORTCONV_DEBUG"):
            raise
        fail(InternalError(f"{type(error).__name__}: {error}"))
        return 1


def fail(error: OrtconvError) -> None:
    """Print an error and its hint to stderr."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {printable(str(error))}", err=True, color=color())
    if isinstance(error, InternalError):
        click.echo(how_to_report(), err=True)
    if error.hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {printable(error.hint)}", err=True, color=color())


def printable(text: str) -> str:
    """The text with control characters escaped: names come from model files and must not move the cursor."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def color() -> bool | None:
    """What click is told about colors: never with NO_COLOR, else as the stream is."""
    return False if os.environ.get("NO_COLOR") else None
