"""`ortconv.tune` against a measurement of every candidate to the end: is the choice as good, and how long does each take?

python tests/bench/tune.py MODEL ... [--goal GOAL] [--only AXIS=VALUES]

Prints a row of Markdown for each model. `off by` is how much slower the choice is than the fastest candidate, in the exhaustive
measurement, where all candidates took part in every block.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import ortconv
from ortconv.cli.tune import chosen_values
from ortconv.tuning.result import Row, Tuning

HEAD = "| model | candidates | files | choice | latency | interval | s | fastest of all | latency | off by | s |"


def row_of(found: Tuning, label: str) -> Row:
    return next(row for row in found.rows if row.label == label)


def ratio(row: Row) -> float:
    assert row.measured is not None
    return row.measured.latency.ratio


def compare(model: Path, only: dict[str, tuple[str, ...]]) -> str:
    """The row of a model."""
    found = ortconv.tune(model, only=only)
    every = ortconv.tune(model, only=only, exhaustive=True)
    assert found.recommended is not None
    chosen = row_of(found, found.recommended.label)
    fastest = min((row for row in every.rows if row.measured is not None), key=ratio)
    assert chosen.measured is not None
    interval = chosen.measured.latency
    off = ratio(row_of(every, chosen.label)) / ratio(fastest) - 1
    cells = (
        model.stem, found.candidates, found.files, chosen.label, f"{interval.ratio:.3f}",
        f"{interval.low:.3f} to {interval.high:.3f}", f"{found.seconds:.0f}", fastest.label, f"{ratio(fastest):.3f}",
        f"{off:.1%}", f"{every.seconds:.0f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tunings against exhaustive measurements.")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=["threads=1"])
    options = parser.parse_args()
    print(HEAD, "|---" * HEAD.count(" | ") + "|---|", sep="\n", flush=True)
    for model in options.models:
        print(compare(model, chosen_values(tuple(options.only))), flush=True)
    print("load average at the end:", os.getloadavg()[0])


if __name__ == "__main__":
    main()
