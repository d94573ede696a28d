"""The trace of an optimization: one line for each rewrite, and a table of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ortconv.cli import color, printable
from ortconv.cli.render import columns, size
from ortconv.wording import listed

if TYPE_CHECKING:
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
    rows: dict[str, list[float]] = {}
    for rewrite in trace:
        change = rewrite.change
        assert change is not None
        row = rows.setdefault(rewrite.rule, [0, 0, 0, 0])
        nodes, count = change.nodes_after - change.nodes_before, change.bytes_after - change.bytes_before
        for i, amount in enumerate((1, nodes, count, change.seconds)):
            row[i] += amount
    longest = max(row[3] for row in rows.values()) or 1
    header = ("rule", ">rewrites", ">nodes", ">constants", ">ms", "time")
    cells = [
        (
            rule,
            f"{times:.0f}",
            f"{net:+.0f}",
            _signed(int(held)),
            f"{seconds * 1e3:.2f}",
            "█" * round(BAR * seconds / longest),
        )
        for rule, (times, net, held, seconds) in sorted(rows.items(), key=lambda item: -item[1][3])
    ]
    click.echo(columns(header, cells), err=True, color=color())
