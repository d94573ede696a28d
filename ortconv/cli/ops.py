"""ortconv ops"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import BUILD_PLATFORMS
from ortconv.cli import LINES, present, print_json, printable
from ortconv.cli.options import FILE, FILE_OR_FOLDER, JSON, JSON_AND_QUIET, OUTPUT_FILE, Number, add, flag, output, view
from ortconv.cli.usage import Commands
from ortconv.errors import GateError, UsageError, located
from ortconv.wording import command_line

if TYPE_CHECKING:
    from ortconv.ortformat.opconfig import RequiredOperators

CONFIG = output("The config to write.  [default: stdout]", type=OUTPUT_FILE)


@click.group(cls=Commands)
def command() -> None:
    """Make, merge and check operator configs: the lists of operators and types that a reduced build of ONNX Runtime has."""


@command.command()
@click.argument("configs", nargs=-1, required=True, type=FILE)
@CONFIG
def merge(configs: tuple[Path, ...], output: Path | None) -> None:
    """Merge CONFIGS into one.

    Types are united. An operator that one config lists without types keeps all types.
    """
    merged = _read(configs[0])
    for path in configs[1:]:
        with located(path):
            merged.merge(_read(path))
    _write(merged, output)


@command.command()
@click.argument("config", type=FILE)
@click.option("--model", "models", multiple=True, required=True, type=FILE, help="An .ort file; may be repeated.")
@add(JSON_AND_QUIET)
def lint(config: Path, models: tuple[Path, ...], **_: Any) -> None:
    """List the kernels and types that models need and a build with CONFIG lacks. Exits with 5 if there are any."""
    listed = _read(config)
    missing = listed.missing(_needed(models, types=True))
    found = {"version": 1, "config": str(config), "models": list(map(str, models))}
    present(
        lambda: {**found, "missing": [m._asdict() for m in missing]},
        lambda: printable("\n".join(map(str, missing)), LINES),
    )
    if missing:
        raise GateError(
            f"{len(missing)} missing, the first: {missing[0]}",
            file=config,
            hint="add what is missing: ortconv ops from DIR, then ortconv ops merge",
        )


@command.command("from")
@click.argument("folder", metavar="MODEL", type=FILE_OR_FOLDER)
@CONFIG
@flag("--types", "--enable-type-reduction", help="Also list the types of operators.")
def from_(folder: Path, output: Path | None, types: bool) -> None:
    """Write the config of MODEL, an .ort file or a directory of them."""
    from ortconv.models import files_below

    found = files_below(folder, (".ort",)) if folder.is_dir() else [folder]
    if not found:
        raise UsageError(f"there is no .ort file below {folder}", hint="convert the models first: ortconv convert")
    _write(_needed(tuple(found), types=types), output)


@command.command("build-command")
@click.argument("config", type=FILE)
@click.option("--platform", required=True, type=click.Choice(BUILD_PLATFORMS), help="The platform of the app.")
@flag("--use-nnapi", help="Build with the NNAPI execution provider.")
@flag("--use-coreml", help="Build with the CoreML execution provider.")
@click.option("--android-api", type=Number(21), default=27, help="Lowest Android API level that the app supports.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=FILE,
    help="An .ort file of the app; may be repeated. More types can then be left out.",
)
@JSON
@view("-q", "--quiet", help="Print only the command.")
def build_command(config: Path, models: tuple[Path, ...], as_json: bool, quiet: bool, **flags: Any) -> None:
    """Print the command that builds ONNX Runtime with only the operators of CONFIG, to be run in its source tree."""
    from ortconv.models import load
    from ortconv.ortformat.reduced_build import reduced_build

    found = reduced_build(str(config.absolute()), _read(config), models=tuple(map(load, models)), **flags)
    if as_json:
        print_json(found.to_dict())
        return
    script, *words = found.command
    between = " " if script.endswith(".bat") else " \\\n  "
    click.echo(between.join([script, *map(command_line, _grouped(words))]))
    if not quiet:
        share = f"{found.kernels} of the {found.all_kernels} CPU kernels of onnxruntime {found.release} are kept"
        for note in (share, *found.notes):
            click.echo(f"note: {note}", err=True)


def _grouped(words: list[str]) -> list[list[str]]:
    """Each flag with its values."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            groups.append([])
        groups[-1].append(word)
    return groups


def _needed(models: tuple[Path, ...], *, types: bool) -> RequiredOperators:
    from ortconv.models import is_ort
    from ortconv.pipeline import required_by

    for path in models:
        if not is_ort(path):
            raise UsageError("not an .ort file", file=path, hint="convert it first: ortconv convert")
    return required_by(models, types=types)


def _read(path: Path) -> RequiredOperators:
    from ortconv.ortformat.opconfig import RequiredOperators

    return RequiredOperators.read(path)


def _write(config: RequiredOperators, output: Path | None) -> None:
    if output is None:
        click.echo(config.text(), nl=False)
        return
    from ortconv.files import write_text

    write_text(output, config.text())
