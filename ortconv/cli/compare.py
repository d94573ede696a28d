"""ortconv compare"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import LEVELS
from ortconv.cli import completion, present
from ortconv.cli import inputs as given
from ortconv.cli.again import add_reduce_line
from ortconv.cli.options import BACKENDS, JSON, MARKDOWN, QUIET, TIME_AND_MEMORY, add, fail_on, flag, view
from ortconv.cli.values import given_words
from ortconv.errors import GateError, MismatchError, OrtconvError, UsageError

if TYPE_CHECKING:
    from ortconv.compare.comparison import Comparison, Subject


@click.command()
@click.argument(
    "models", nargs=-1, required=True, metavar="A[@BACKEND] B[@BACKEND]...", shell_complete=completion.model_on_backend
)
@add(given.OPTIONS, BACKENDS)
@click.option(
    "--convert-with", "level", type=click.Choice(LEVELS), help="Also compare A with A optimized at this level."
)
@flag(
    "--layers",
    help="Compare the values inside both graphs; name the first that differs and the layer that loses most precision.",
)
@fail_on("compare", "max_abs>1e-3,cosine<0.999", "The limits for rounding then do not apply.")
@add(TIME_AND_MEMORY, MARKDOWN, JSON)
@view("-v", "--verbose", help="With --layers, show all values, not only the first that differ.")
@QUIET
def command(models: tuple[str, ...], backends: tuple[str, ...], custom_op_library: Path | None, **flags: Any) -> None:
    """Run A and others on the same inputs, and show how far each one is from A.

    Models are .onnx or .ort files. Backends follow an @, such as model.ort@onnxruntime; the same file may run on two backends.
    Exits with 4 if outputs differ by more than rounding explains.
    """
    from ortconv.compare.comparison import compare, metrics
    from ortconv.gates import check_gates, parse_gates
    from ortconv.report.compare import document, sections

    conditions = parse_gates(flags["fail_on"], "compare")
    subjects = _subjects(models, backends, flags["level"])
    wanted = given.read_inputs(subjects[0].model.graph, flags["inputs"], flags["texts"])
    _, found = compare(
        subjects,
        wanted.arrays,
        wanted.draws,
        flags["seed"],
        layers=flags["layers"],
        custom_op_library=custom_op_library,
    )
    reference = subjects[0]
    present(lambda: document(reference, found), lambda: sections(reference, found, everything=flags["verbose"]))
    try:
        check_gates(conditions, metrics(found))
        _refuse(found, bool(conditions))
    except (GateError, MismatchError) as error:
        if flags["layers"]:
            _add_reduce_line(error, subjects, models, found)
        raise


def _add_reduce_line(
    error: OrtconvError, subjects: Sequence[Subject], models: Sequence[str], found: Sequence[Comparison]
) -> None:
    commands = _again(subjects, models)
    if commands and subjects[0].file is not None:
        kinds = (o.found.mismatch for one in found for o in one.outputs if o.found.mismatch)
        add_reduce_line(error, subjects[0].file, *commands, output=next(kinds, None))


def _again(subjects: Sequence[Subject], models: Sequence[str]) -> list[list[str]]:
    """Commands that repeat the comparison on a model {}; none unless the files are one model, or one and its conversion."""
    first, *others = [one.file for one in subjects if one.file is not None]
    files = dict.fromkeys((file for file in others if file.suffix.lower() == ".ort"), "{}.ort") | {first: "{}"}
    if any(file not in files for file in others) or len(files) > (2 if first.suffix.lower() == ".onnx" else 1):
        return []
    on = ["" if Path(text).exists() else f"@{text.rpartition('@')[2]}" for text in models]
    named = [f"{files[file]}{backends}" for file, backends in zip((first, *others), on, strict=True)]
    comparison = ["compare", *named, *given_words()]
    conversion = ["convert", "{}", "-o", "{}.ort", "--no-validate", "--quiet"]
    return [conversion, comparison] if len(files) > 1 else [comparison]


def _subjects(models: Sequence[str], backends: Sequence[str], level: str | None) -> list[Subject]:
    """A, then what it is compared with: the other models, and A optimized at a level. UsageError if there is only A."""
    from ortconv.compare.comparison import subject

    subjects = [subject(text, backends) for text in models]
    if level is not None:
        subjects.append(_converted(subjects[0], level))
    if len(subjects) < 2:
        raise UsageError(
            "there is nothing to compare A with", hint="name another model or backend, or give --convert-with"
        )
    return subjects


def _converted(source: Subject, level: str) -> Subject:
    """The optimized model, with the record of its rewrites."""
    from ortconv.compare.comparison import Origin, Subject
    from ortconv.models import load
    from ortconv.pipeline import optimize_traced

    assert source.file is not None
    model = load(source.file)
    trace, names = optimize_traced(model, level)
    rewrites = {label: f"{r.rule} at {r.root}" for r in trace if r.change is not None for label in r.change.made}
    return Subject(f"{source.label} optimized ({level})", model, source.backends, None, Origin(names, rewrites))


LOSS = "if you expect a loss, as by float16, set a limit of your own, such as --fail-on 'scaled>0.01'"


def _refuse(found: Sequence[Comparison], gated: bool) -> None:
    """MismatchError for outputs that differ. If gates decide, only for outputs that cannot be compared at all."""
    wrong = [(one, o) for one in found for o in one.outputs if not o.same and (o.found.mismatch or not gated)]
    if not wrong:
        return
    one, output = wrong[0]
    measure = output.found
    difference = (
        measure.mismatch or f"max abs {measure.max_abs:.3g}, scaled {measure.scaled:.3g} of {output.limit:.1e} allowed"
    )
    more = f"; {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
    hints = [] if one.layers is not None else ["--layers finds the first value that differs"]
    hints += [] if measure.mismatch else [LOSS]
    raise MismatchError(
        f"output '{output.name}' of {one.subject.label} differs: {difference}{more}", hint="; ".join(hints) or None
    )
