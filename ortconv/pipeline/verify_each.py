"""Finds the first pass, and the first rewrite in it, that changes the outputs of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.errors import MismatchError, OrtconvError, UsageError
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.optimizer.engine import Context
from ortconv.optimizer.recipe import Recipe
from ortconv.pipeline.options import Options
from ortconv.pipeline.stages import Observer, excused, notify, optimize_as_asked

if TYPE_CHECKING:
    from ortconv.validation.reference import Reference


def watching(
    source: Path,
    options: Options,
    recipe: Recipe,
    expected: Reference | None,
    context: Context,
    observer: Observer | None,
) -> Observer | None:
    """With `verify_each`, an observer that also runs and compares the model after every pass; else `observer` unchanged."""
    if not options.verify_each:
        return observer
    if expected is None or expected.backend != "numpy":
        why = "validation is switched off" if expected is None else expected.why_not_numpy
        raise UsageError(f"--verify-each needs a run of the source on numpy to compare with: {why}")
    from ortconv.validation.validate import validate_stage

    good = 0

    def check(count: int) -> None:
        model = load(source, options.fix_dims, freeze_initializers=options.freeze_initializers)
        done = Context(context.settings._replace(limit=count))
        optimize_as_asked(model, options, recipe, done)
        validate_stage(expected, model, "", excused(done, recipe))

    def watch(stage: str, model: Model) -> None:
        nonlocal good
        try:
            validate_stage(expected, model, stage, excused(context, recipe))
        except MismatchError as error:
            count = _first_wrong(check, good, len(context.trace))
            if not count:
                raise
            rewrite = context.trace[count - 1]
            message = f"{error.message}; rewrite {count} is the first to do so: {rewrite.rule} at {rewrite.root}"
            raise MismatchError(message, hint=f"leave it out with --disable-pass {rewrite.rule}") from error
        good = len(context.trace)
        notify(observer, stage, model)

    return watch


def _first_wrong(check: Callable[[int], None], good: int, bad: int) -> int:
    """Find by bisection the smallest number of rewrites after which `check` fails; 0 if no rewrite was made since `good`."""
    if bad == good:
        return 0
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            check(middle)
            good = middle
        except OrtconvError:
            bad = middle
    return bad
