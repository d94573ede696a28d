"""The view of `ortconv run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ortconv.cli import printable
from ortconv.cli.render import grid, room, size

MOST_ROWS = 60
"""Number of rows of a table that are shown; --json has all."""
BAR = 20


def show(document: dict[str, Any]) -> None:
    """Print the results of a run to stdout."""
    console = stdout()
    on = ", ".join(dict.fromkeys(document["backends"])) or "no backend"
    console.print(Text.assemble((printable(document["model"]), "bold"), f" on {on}"))
    for name, about in document["inputs"].items():
        note = " (generated)" if name in document["made_up"] else ""
        console.print(Text(f"  input   {printable(name)}  {_about(about)}{note}"))
    for name, about in document["outputs"].items():
        console.print(Text(f"  output  {printable(name)}  {_about(about)}"))
    console.print(Text(_time(document)))
    if "check" in document and not document["check"]["differences"]:
        console.print(Text(f"  check   {len(document['check']['expected'])} as expected", style="green"))
    for name, part in PARTS.items():
        if name in document:
            console.print(part(document[name]))


def _about(about: dict[str, Any]) -> str:
    if "length" in about:
        return f"{about['type']} of {about['length']}"
    numbers = "".join(f"  {name} {_number(about[name])}" for name in ("min", "max", "mean") if name in about)
    return f"{about['type']}{about['shape']}{numbers}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _time(document: dict[str, Any]) -> str:
    median, p90 = (document[f"{name}_seconds"] * 1e3 for name in ("median", "p90"))
    runs = f"median {median:.3f} ms, p90 {p90:.3f} ms of {document['runs']} runs"
    memory = "" if document["peak_bytes"] is None else f", peak memory of the process {size(document['peak_bytes'])}"
    runs = runs if document["runs"] > 1 else f"first run {median:.3f} ms"
    return f"  time    load {document['load_seconds'] * 1e3:.1f} ms, {runs}{memory}"


def _top(top: dict[str, list[dict[str, Any]]]) -> Rows:
    made = table("output", "row", ">class", ">value")
    for name, rows in top.items():
        fill(made, [(name, str(r["row"]), str(r["class"]), _number(r["value"])) for r in rows])
    return made


def _profile(shares: Sequence[dict[str, Any]]) -> Rows:
    made = table("operator", "backend", ">steps", ">ms", ">share", "")
    rows = [
        (s["op"], s["backend"], str(s["steps"]), f"{s['seconds'] * 1e3:.3f}", f"{s['share']:.1%}", "█" * round(BAR * s["share"]))
        for s in shares
    ]  # fmt: skip
    fill(made, rows)
    return made


def _timing(summary: Mapping[str, Mapping[str, float | None]]) -> Text:
    from ortconv.nnapi.timing import table as timing_table

    return Text(timing_table(summary))


def _plan(plan: Sequence[dict[str, Any]]) -> Rows:
    made = table("node", "backend", "why not on an earlier backend")
    fill(made, [(p["node"], _where(p), "; ".join(f"{b}: {r}" for b, r in p["refused"].items())) for p in plan])
    return made


PARTS: dict[str, Callable[[Any], Rows | Text]] = {"top": _top, "profile": _profile, "timing": _timing, "plan": _plan}
"""The tables of the optional parts of a document."""


def _where(place: dict[str, Any]) -> str:
    """The backend of a node, and the number of its partition if it has one."""
    return place["backend"] if place["partition"] is None else f"{place['backend']} {place['partition']}"


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to `cli.main`, as other output does. rich would end the process."""
        raise BrokenPipeError


def stdout() -> Console:
    return _Stdout(no_color=True if os.environ.get("NO_COLOR") else None, highlight=False, soft_wrap=True)


class Rows:
    """A table to print. A column whose name begins with > is aligned to the right. Nothing is cut, see `grid`."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self.rows: list[tuple[str, ...]] = []
        self.more = 0

    def __rich__(self) -> Text:
        head, body = grid(self.columns, self.rows, room())
        if self.more:
            body.append(f"and {self.more} more; --json lists them all")
        return Text("\n").join([*(Text(line, "dim") for line in head), *map(Text, body)])


def table(*columns: str) -> Rows:
    """An empty table."""
    return Rows(columns)


def fill(made: Rows, rows: Sequence[tuple[str, ...]]) -> None:
    """Add rows to a table, up to the number that is shown."""
    made.rows = list(rows[:MOST_ROWS])
    made.more = len(rows) - len(made.rows)
