"""The trace of an optimization: one line for each rewrite, and a table of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ortconv.cli import color, printable
from ortconv.cli.render import columns
from ortconv.files import size
from ortconv.wording import listed

if TYPE_CHECKING:
    from ortconv.ir.journal import NodeChanges
    from ortconv.optimizer.engine import Rewrite

SHOWN_NODES = 6
BAR = 20


def show(source: str, trace: Sequence[Rewrite]) -> None:
    """Print every rewrite of a model, then the totals of each rule, to stderr. The rewrites have their changes."""
    changes = [rewrite.change for rewrite in trace if rewrite.change is not None]
    name = printable(source)
    for number, (rewrite, change) in enumerate(zip(trace, changes, strict=True), 1):
        click.echo(f"{name}: {number} {_line(rewrite, change)}", err=True, color=color())
    if trace:
        _table(trace, changes)


def _line(rewrite: Rewrite, change: NodeChanges) -> str:
    """One rewrite: its rule, root, removed and added nodes, and its effect on cost."""
    text = f"{click.style(rewrite.rule, bold=True)} at {printable(rewrite.root)}: "
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


def _table(trace: Sequence[Rewrite], changes: Sequence[NodeChanges]) -> None:
    by_rule: dict[str, list[NodeChanges]] = {}
    for rewrite, change in zip(trace, changes, strict=True):
        by_rule.setdefault(rewrite.rule, []).append(change)
    seconds = {rule: sum(c.seconds for c in own) for rule, own in by_rule.items()}
    longest = max(seconds.values()) or 1
    rows = []
    for rule in sorted(seconds, key=lambda rule: -seconds[rule]):
        own, bar = by_rule[rule], "█" * round(BAR * seconds[rule] / longest)
        nodes = sum(c.nodes_after - c.nodes_before for c in own)
        constants = sum(c.bytes_after - c.bytes_before for c in own)
        rows.append((rule, len(own), f"{nodes:+}", _signed(constants), f"{seconds[rule] * 1e3:.2f}", bar))
    header = ("rule", ">rewrites", ">nodes", ">constants", ">ms", "time")
    click.echo(columns(header, rows), err=True, color=color())
