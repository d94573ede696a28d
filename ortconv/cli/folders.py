"""A verb on a folder: a batch that runs the verb on each model, as the command with --json does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ortconv.choices import names_in
from ortconv.cli.batch_view import BatchView
from ortconv.cli.github import check_github
from ortconv.cli.options import sizes_in
from ortconv.cli.usage import OF_BATCHES
from ortconv.errors import OrtconvError, UnknownDimError, UsageError
from ortconv.models import files_below

MODELS = (".onnx", ".ort")
STOP_OPS = "nnapi_partitioning_stop_ops"


@dataclass(frozen=True, slots=True)
class FolderItem:
    """A model of a folder: the verb, a label for the model, and the verb's parameters."""

    verb: str
    name: str
    parameters: Mapping[str, Any]


def models_in(folder: Path, suffixes: Sequence[str] = MODELS) -> list[Path]:
    """The model files below a folder, sorted, without hidden ones. UsageError if there are none."""
    paths = files_below(folder, suffixes)
    if not paths:
        raise UsageError(f"there is no {' or '.join(suffixes)} file below {folder}")
    return paths


def data_sets(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The models below a folder, each with the test_data_set folders next to it. UsageError if there are none."""
    found = [(m, d) for m in models_in(folder) for d in sorted(m.parent.glob("test_data_set_*")) if d.is_dir()]
    if not found:
        raise UsageError(f"no model below {folder} has a folder test_data_set_0 next to it")
    yield from found


def over_folder(done: str, each: Iterable[Mapping[str, Any]], line: Callable[[dict[str, Any]], str]) -> None:
    """Run the present verb on each item, with its parameters. `line` formats a result as one line.

    BatchError if an item fails. `done` is the verb in the counts, such as verified.
    """
    from ortconv.batch import Failure
    from ortconv.batch.conversions import check_names
    from ortconv.batch.crew import crew_of
    from ortconv.batch.engine import Engine

    context = click.get_current_context()
    given = context.params
    check_github(given["github"])
    items = [FolderItem(str(context.info_name), _name(values), {**given, **values}) for values in each]
    view = BatchView(done, len(items), given["as_json"], given["quiet"])
    with crew_of(given["cluster"], given["jobs"], given["timeout"], given["memory"], isolated=True) as crew:
        models = list(dict.fromkeys(item.parameters["model"] for item in items))
        check_names(sizes_in(given.get("fix_dims", ())), _stop_ops(given) or (), models, crew)
        engine = Engine(run_item, crew)
        with view.shown(lambda: [(item.name, activity, seconds) for item, activity, seconds in engine.busy()]):
            for item, outcome in engine.run(items):
                if isinstance(outcome, OrtconvError):
                    view.fail(Failure(item.name, outcome))
                else:
                    view.show(f"{click.style(item.name, bold=True)}: {line(outcome)}", {"source": item.name, **outcome})
    view.end(given["summary"], given["github"])
    view.refuse(given["model"])


def _name(values: Mapping[str, Any]) -> str:
    more = f" with {values['check'].name}" if "check" in values else ""
    return f"{values['model']}{more}"


def _stop_ops(parameters: Mapping[str, Any]) -> tuple[str, ...] | None:
    text = parameters.get(STOP_OPS)
    return None if text is None else names_in(text)


def run_item(item: FolderItem) -> dict[str, Any]:
    """The JSON document of a verb on one model. Dimensions to fix and stop operators that the model lacks are left out."""
    from ortconv.batch.work import fitting

    parameters = {**item.parameters, **dict.fromkeys(OF_BATCHES), "as_json": True, "quiet": False}
    stop_ops = _stop_ops(parameters)
    if stop_ops is not None and parameters["model"].suffix.lower() != ".ort":
        parameters[STOP_OPS] = ",".join(fitting(stop_ops, parameters["model"]))
    while True:
        try:
            return _document(item.verb, parameters)
        except UnknownDimError as error:
            fixed = parameters["fix_dims"]
            parameters["fix_dims"] = tuple(text for text in fixed if text.rpartition("=")[0] != error.name)
            if parameters["fix_dims"] == fixed:
                raise


def _document(verb: str, parameters: dict[str, Any]) -> dict[str, Any]:
    from ortconv.cli import Printed, command_of

    command = command_of(verb)
    printed = io.StringIO()
    context = click.Context(command, info_name=verb, obj=Printed(True))
    context.params = parameters
    with context, redirect_stdout(printed):
        assert command.callback is not None
        command.callback(**parameters)
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document
