"""A verb on a folder: a batch that runs the verb on each model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ortconv.choices import comma_separated
from ortconv.cli import VerbResult
from ortconv.cli.batch_view import BatchView
from ortconv.cli.github import check_github
from ortconv.cli.values import sizes_in
from ortconv.errors import UsageError
from ortconv.models import files_below

MODELS = (".onnx", ".ort")
STOP_OPS = "nnapi_partitioning_stop_ops"


Verb = Callable[[Mapping[str, Any]], VerbResult]
"""A verb as a function of its parameters."""


@dataclass(frozen=True, slots=True)
class FolderItem:
    """A model of a folder: the verb, a label for the model, and the verb's parameters."""

    verb: Verb
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


def over_folder(
    done: str, verb: Verb, each: Iterable[Mapping[str, Any]], line: Callable[[dict[str, Any]], str]
) -> None:
    """Run the verb of the present command on each item, with its parameters. `line` formats a result as one line.

    BatchError if an item fails. `done` is the verb in the counts, such as verified.
    """
    from ortconv.batch.conversions import check_names
    from ortconv.batch.crew import crew_of
    from ortconv.batch.engine import Batch, Failure

    given = click.get_current_context().params
    check_github(given["github"])
    items = [FolderItem(verb, _name(values), {**given, **values}) for values in each]
    view = BatchView(done, len(items), given["as_json"], given["quiet"])
    with crew_of(given["cluster"], given["jobs"], given["timeout"], given["memory"], isolated=True) as crew:
        models = list(dict.fromkeys(item.parameters["model"] for item in items))
        check_names(sizes_in(given.get("fix_dims", ())), _stop_ops(given), models, crew)
        batch = Batch(run_item, items, crew, lambda item: item.name)
        with view.shown(batch.busy):
            for item, outcome in batch:
                if isinstance(outcome, Failure):
                    view.fail(outcome)
                else:
                    view.show(f"{click.style(item.name, bold=True)}: {line(outcome)}", {"source": item.name, **outcome})
    view.end(given["summary"], given["github"])
    view.refuse(given["model"])


def _name(values: Mapping[str, Any]) -> str:
    more = f" with {values['check'].name}" if "check" in values else ""
    return f"{values['model']}{more}"


def _stop_ops(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    return comma_separated(parameters.get(STOP_OPS) or "")


def run_item(item: FolderItem) -> dict[str, Any]:
    """The JSON document of a verb on one model. Dimensions to fix and stop operators that the model lacks are left out."""
    from ortconv.watch import note_file

    note_file(str(item.parameters["model"]))
    found = item.verb(_fitting(item.parameters))
    found.refuse()
    return found.document()


def _fitting(parameters: Mapping[str, Any]) -> dict[str, Any]:
    from ortconv.batch.work import absent_names

    fixed, stop_ops = parameters.get("fix_dims", ()), _stop_ops(parameters)
    no_dims, no_ops = absent_names(parameters["model"], sizes_in(fixed), stop_ops)
    changed = {"fix_dims": tuple(text for text in fixed if text.rpartition("=")[0] not in no_dims)} if no_dims else {}
    more = {STOP_OPS: ",".join(op for op in stop_ops if op not in no_ops)} if no_ops else {}
    return {**parameters, **changed, **more, "as_json": True, "quiet": False}
