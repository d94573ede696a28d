"""The view of `ortconv run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from ortconv.cli import printable
from ortconv.cli.render import columns
from ortconv.files import size

MOST_ROWS = 60
"""Number of rows of a table that are shown; --json has all."""
BAR = 20


def view(document: dict[str, Any]) -> str:
    """The results of a run as text."""
    return "\n".join(_lines(document))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    on = ", ".join(dict.fromkeys(document["backends"])) or "no backend"
    yield f"{click.style(printable(document['model']), bold=True)} on {on}"
    for name, about in document["inputs"].items():
        note = " (generated)" if name in document["made_up"] else ""
        yield f"  input   {printable(name)}  {_about(about)}{note}"
    for name, about in document["outputs"].items():
        yield f"  output  {printable(name)}  {_about(about)}"
    yield _time(document)
    if "check" in document and not document["check"]["differences"]:
        yield click.style(f"  check   {len(document['check']['expected'])} as expected", fg="green")
    yield from (part(document[name]) for name, part in PARTS.items() if name in document)


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


def _top(top: dict[str, list[dict[str, Any]]]) -> str:
    rows = [(name, row["row"], row["class"], _number(row["value"])) for name, own in top.items() for row in own]
    return _table(("output", "row", ">class", ">value"), rows)


def _profile(shares: Sequence[dict[str, Any]]) -> str:
    rows = [
        (s["op"], s["backend"], s["steps"], f"{s['seconds'] * 1e3:.3f}", f"{s['share']:.1%}", "█" * round(BAR * s["share"]))
        for s in shares
    ]  # fmt: skip
    return _table(("operator", "backend", ">steps", ">ms", ">share", ""), rows)


def _timing(summary: Mapping[str, Mapping[str, float | None]]) -> str:
    from ortconv.nnapi.tracing.timing import table

    return table(summary)


def _plan(plan: Sequence[dict[str, Any]]) -> str:
    rows = [(p["node"], _where(p), "; ".join(f"{b}: {r}" for b, r in p["refused"].items())) for p in plan]
    return _table(("node", "backend", "why not on an earlier backend"), rows)


PARTS: dict[str, Callable[[Any], str]] = {"top": _top, "profile": _profile, "timing": _timing, "plan": _plan}
"""The tables of the optional parts of a document."""


def _where(place: dict[str, Any]) -> str:
    """The backend of a node, and the number of its partition if it has one."""
    return place["backend"] if place["partition"] is None else f"{place['backend']} {place['partition']}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with the first rows, and the number of the others."""
    more = len(rows) - MOST_ROWS
    return columns(header, rows[:MOST_ROWS]) + (f"\nand {more} more; --json lists them all" if more > 0 else "")
