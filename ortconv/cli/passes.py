"""ortconv passes"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import LEVELS
from ortconv.cli import completion, present
from ortconv.cli.options import JSON, PASS_CHOICE, SIZE, add, flag
from ortconv.cli.usage import Commands
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.optimizer.catalog import RewriteEntry
    from ortconv.optimizer.pattern import PatternInput
    from ortconv.optimizer.recipe import Recipe


OFFLOAD = "offload"
NAMED = ("enable_passes", "disable_passes", "only_passes", "stop_after")


@click.group(cls=Commands)
def command() -> None:
    """List and explain the optimizer's passes.

    convert accepts their names in --enable-pass, --disable-pass and --only-pass, and counts them in its summary.
    """


@command.command("list")
@click.option(
    "--level",
    type=click.Choice((*LEVELS, OFFLOAD)),
    help="List only the passes of this level, or those of --maximize-offload; with --as-text, those of all levels up to it.",
)
@flag("--as-text", help="Print the pipeline as text, for convert's --pipeline.")
@add(PASS_CHOICE)
@click.option("--fold-limit", type=SIZE, help="Limit on constant folding to write with --as-text.")
@JSON
def list_(level: str | None, as_text: bool, fold_limit: int | None, **names: Any) -> None:
    """List all passes in the order in which they run.

    Passes that run only on request are marked opt-in.
    """
    from ortconv.optimizer import recipe

    if as_text and level == OFFLOAD:
        raise UsageError("--as-text prints the passes of a conversion's level", hint=f"choose from {', '.join(LEVELS)}")
    limit: dict[str, Any] = {} if fold_limit is None else {"fold_limit": fold_limit}
    chosen = recipe.make(
        level if as_text and level else "all",
        enable=names["enable_passes"],
        disable=names["disable_passes"],
        only=names["only_passes"],
        stop_after=names["stop_after"],
        **limit,
    )
    if as_text:
        click.echo(recipe.text(chosen), nl=False)
        return
    shown = _entries(level, chosen if any(names[name] for name in NAMED) else None)
    present(lambda: {"version": 1, "passes": [entry._asdict() for entry in shown]}, lambda: "\n".join(_listed(shown)))


def _listed(shown: Sequence[RewriteEntry]) -> Iterator[str]:
    width = max((len(entry.name) for entry in shown), default=0)
    for entry in shown:
        mark = click.style("opt-in ", fg="yellow") if entry.opt_in else ""
        name = click.style(f"{entry.name:{width}}", bold=True)
        yield f"{entry.level:9} {name}  {mark}{entry.doc[0]}"


def _entries(level: str | None, chosen: Recipe | None) -> list[RewriteEntry]:
    """The passes of a level; with a recipe, those that it runs."""
    from ortconv.optimizer.catalog import entries
    from ortconv.optimizer.recipe import names_of

    found = [entry for entry in entries() if level in (None, "all", entry.level)]
    if chosen is None:
        return found
    running = {name for passes in chosen.stages.values() for p in passes for name in names_of(p)}
    return [entry for entry in found if entry.name in running]


@command.command()
@click.argument("name", shell_complete=completion.passes)
@JSON
def explain(name: str, **_: Any) -> None:
    """Explain the pass NAME: its patterns, and how it differs from ONNX Runtime's."""
    from ortconv.optimizer.catalog import find

    entry = find(name)
    present(lambda: {"version": 1, **entry._asdict()}, lambda: "\n".join(_explained(entry)))


def _explained(entry: RewriteEntry) -> Iterator[str]:
    from ortconv.optimizer.catalog import patterns_of

    yield _head(entry)
    yield from (f"  {line.replace(' -> ', f'{chr(10)}    -> ', 1)}" for line in entry.doc)
    facts = {
        "in ONNX Runtime:": entry.counterpart,
        "differs:": entry.differs,
        "opt-in because:": entry.why_opt_in,
        "reports also as:": entry.also,
    }
    yield from (f"{click.style(label, dim=True)} {text}" for label, texts in facts.items() for text in texts)
    patterns = patterns_of(entry.name)
    if patterns:
        yield click.style("patterns" if len(patterns) > 1 else "pattern", dim=True)
    for pattern in patterns[:SHOWN_PATTERNS]:
        yield from _tree(pattern)
    if len(patterns) > SHOWN_PATTERNS:
        yield f"and {len(patterns) - SHOWN_PATTERNS} more like these; see --json"


SHOWN_PATTERNS = 4


def _head(entry: RewriteEntry) -> str:
    name = click.style(entry.name, bold=True)
    where = f", group {entry.group}" if entry.group != entry.name else ""
    switch = f"--enable-pass {entry.name}" if entry.opt_in else f"--disable-pass {entry.name}"
    return f"{name}, level {entry.level}{where}, {'opt-in' if entry.opt_in else 'on'} ({switch})"


def _tree(operand: PatternInput, indent: str = "") -> Iterator[str]:
    """A pattern as a tree: the root, and below each node its inputs, indented."""
    from ortconv.optimizer.catalog import operators, pattern_text
    from ortconv.optimizer.pattern import P

    if not isinstance(operand, P):
        yield indent + pattern_text(operand)
        return
    notes = ((operand.commutative, "either order"), (operand.shared, "others may read it"))
    conditions = ", ".join(text for holds, text in notes if holds)
    yield f"{indent}{click.style(operators(operand), bold=True)}{f' ({conditions})' if conditions else ''}"
    for inner in operand.inputs:
        yield from _tree(inner, indent + "    ")
