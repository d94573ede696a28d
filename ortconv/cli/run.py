"""ortconv run"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click

from ortconv.cli import color
from ortconv.errors import BackendError


@click.command(context_settings={"show_default": True})
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Inputs by name, as .npz; made up otherwise.",
)
@click.option("--outputs", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the outputs, as .npz.")
@click.option(
    "--backend", "backends", multiple=True, default=["numpy"], help="Backend to run on; several in order of preference."
)
@click.option("--repeat", type=click.IntRange(1), default=1, help="Run so often and report the median time.")
@click.option("--seed", type=int, default=0, help="Seed of made-up inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    model: Path,
    inputs: Path | None,
    outputs: Path | None,
    backends: tuple[str, ...],
    repeat: int,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run MODEL (.onnx or .ort) once or several times and say what comes out."""
    from ortconv.cli.arrays import read_npz, write_npz
    from ortconv.session import Session

    start = time.perf_counter()
    session = Session(model, backends=backends)
    loaded = time.perf_counter() - start
    feeds, results = _first_run(session, None if inputs is None else read_npz(inputs), seed)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        results = session.run(None, feeds)
        times.append(time.perf_counter() - start)
    named = {arg.name: result for arg, result in zip(session.get_outputs(), results, strict=True)}
    if outputs is not None:
        write_npz(outputs, named)
    document = {
        "version": 1,
        "model": str(model),
        "backends": [name for name, _ in session.regions],
        "load_seconds": round(loaded, 6),
        "runs": repeat,
        "median_seconds": round(statistics.median(times), 9),
        "p90_seconds": round(sorted(times)[int(0.9 * (len(times) - 1))], 9),
        "inputs": {name: _describe(value) for name, value in feeds.items()},
        "outputs": {name: _describe(value) for name, value in named.items()},
    }
    if as_json:
        click.echo(json.dumps(document, indent=1))
    elif not quiet:
        click.echo(_text(document, inputs is None), color=color())


def _first_run(session: Any, given: dict[str, Any] | None, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """The feeds, and the outputs of a first run that warms up; of made-up feeds the first that the model accepts."""
    from ortconv.compare.feeds import candidates, from_arrays

    graph = session.model.graph
    failure = None
    for feeds in [from_arrays(graph, given)] if given is not None else candidates(graph, seed):
        try:
            return feeds, session.run(None, feeds)
        except BackendError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _describe(value: Any) -> dict[str, Any]:
    import numpy as np

    if value is None or isinstance(value, list):
        return {"type": "sequence" if isinstance(value, list) else "empty", "length": len(value or ())}
    array = np.asarray(value)
    found: dict[str, Any] = {"type": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub" and array.dtype.kind != "b":
        numbers = array.astype(np.float64)
        found |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return found


def _text(document: dict[str, Any], made_up: bool) -> str:
    lines = [
        f"{click.style(document['model'], bold=True)} on {', '.join(dict.fromkeys(document['backends'])) or 'no backend'}"
    ]
    for kind in ("inputs", "outputs"):
        for name, d in document[kind].items():
            note = " (made up)" if kind == "inputs" and made_up else ""
            numbers = f"  min {d['min']:.6g}  max {d['max']:.6g}  mean {d['mean']:.6g}" if "min" in d else ""
            lines.append(f"  {kind[:-1]:7} {name}  {d['type']}{d.get('shape', '')}{numbers}{note}")
    runs = f"median of {document['runs']} runs " if document["runs"] > 1 else "run "
    lines.append(
        f"  time    load {document['load_seconds'] * 1e3:.1f} ms, {runs}{document['median_seconds'] * 1e3:.3f} ms"
    )
    return "\n".join(lines)
