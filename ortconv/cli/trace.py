"""The trace of an optimization: one line for each rewrite, and a table of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ortconv.cli import color, printable
from ortconv.cli.render import columns, size
from ortconv.wording import listed

if TYPE_CHECKING:
    from ortconv.ir.journal import NodeChanges
    from ortconv.optimizer.engine import Rewrite

SHOWN_NODES = 6
BAR = 20


def show(source: str, trace: Iterable[Rewrite]) -> None:
    """Print every rewrite of a model, then the totals of each rule, to stderr."""
    trace = list(trace)
    for number, rewrite in enumerate(trace, 1):
        click.echo(f"{source}: {line(number, rewrite)}", err=True, color=color())
    if trace and all(rewrite.change is not None for rewrite in trace):
        _table(trace)


def line(number: int, rewrite: Rewrite) -> str:
    """One rewrite: its number (for --stop-after), rule, root, removed and added nodes, and its effect on cost."""
    text = f"{number} {click.style(rewrite.rule, bold=True)} at {printable(rewrite.root)}: "
    change = rewrite.change
    if change is None:
        return f"{text}-{rewrite.removed} +{rewrite.added}"
    nodes = f"{change.nodes_before} -> {change.nodes_after} nodes"
    parts = [_labels(change.consumed, "-"), _labels(change.made, "+"), nodes]
    if change.bytes_after != change.bytes_before:
        parts.append(_signed(change.bytes_after - change.bytes_before))
    parts.append(f"{change.seconds * 1e3:.2f} ms")
    return text + "; ".join(filter(None, parts))


def _labels(labels: tuple[str, ...], sign: str) -> str:
    return f"{sign} {printable(listed(labels, SHOWN_NODES))}" if labels else ""


def _signed(count: int) -> str:
    return f"{'+' if count >= 0 else '-'}{size(abs(count))}"


def _table(trace: list[Rewrite]) -> None:
    by_rule: dict[str, list[NodeChanges]] = {}
    for rewrite in trace:
        assert rewrite.change is not None
        by_rule.setdefault(rewrite.rule, []).append(rewrite.change)
    seconds = {rule: sum(c.seconds for c in changes) for rule, changes in by_rule.items()}
    longest = max(seconds.values()) or 1
    rows = []
    for rule in sorted(seconds, key=lambda rule: -seconds[rule]):
        changes, bar = by_rule[rule], "█" * round(BAR * seconds[rule] / longest)
        nodes = sum(c.nodes_after - c.nodes_before for c in changes)
        constants = sum(c.bytes_after - c.bytes_before for c in changes)
        rows.append((rule, len(changes), f"{nodes:+}", _signed(constants), f"{seconds[rule] * 1e3:.2f}", bar))
    header = ("rule", ">rewrites", ">nodes", ">constants", ">ms", "time")
    click.echo(columns(header, rows), err=True, color=color())
