"""ortconv run"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.nnapi_options import OBSERVED, OF_BACKEND, configured, observed
from ortconv.errors import MismatchError, UsageError
from ortconv.watch import note_stage

if TYPE_CHECKING:
    from ortconv.ir.tensor import Array
    from ortconv.nnapi.tracing.timing import Summary, Trace
    from ortconv.runtime.session import Session


@click.command()
@click.argument("model", type=shared.FILE_OR_FOLDER)
@shared.add(given.OPTIONS)
@click.option("--outputs", metavar="NAMES", help="Outputs to show and save, comma separated.  [default: all]")
@click.option(
    "--nodes",
    multiple=True,
    metavar="NAME",
    help="Also show and save this value inside the graph, or the results of the node with this name; may be repeated. Such a "
    "value is computed in a run of its own, node by node, so that the outputs do not change.",
)
@click.option("--save", type=shared.OUTPUT_FILE, help="Write the results as .npz.")
@click.option("--top", type=shared.COUNT, help="Show the N classes with the largest scores.")
@click.option(
    "--check",
    type=shared.FILE_OR_FOLDER,
    metavar="FILE",
    help="Expected outputs; exit with 4 if the results differ. An .npz by name, a test_data_set folder, or the file of a "
    "model's only output.",
)
@click.option(
    "--rtol", type=click.FloatRange(0), metavar="X", default=1e-3, help="For --check: relative tolerance of floats."
)
@click.option(
    "--atol", type=click.FloatRange(0), default=1e-5, metavar="X", help="For --check: absolute tolerance of floats."
)
@click.option(
    "--repeat",
    type=shared.COUNT,
    default=1,
    help="Number of runs. Of several, the median and p90 of the times are shown; a first run before them does not count.",
)
@click.option("--threads", type=shared.COUNT, default=1, help="Threads of numpy's BLAS and of onnxruntime.")
@click.option(
    "--profile",
    type=shared.OUTPUT_FILE,
    help="Write the time of every step as a Chrome trace, and show the times by operator.",
)
@shared.add(shared.BACKENDS, OF_BACKEND, OBSERVED)
@shared.flag("--plan", "-v", "--verbose", help="Show which node runs on which backend, and why.")
@shared.fail_on("run", "latency>20ms,memory>200MB")
@shared.add(shared.BATCH, shared.LIMITS_OF_MODELS, shared.JSON_LINES, shared.QUIET)
def command(model: Path, backends: tuple[str, ...], custom_op_library: Path | None, **flags: Any) -> None:
    """Run MODEL (.onnx or .ort) once or several times and show its outputs.

    With a directory, runs each model in it that has test_data_set folders next to it on all of these, and checks the outputs.
    """
    if model.is_dir():
        _check_all(model, backends, flags)
        return
    from ortconv.cli.run_view import view
    from ortconv.gates import check_gates, parse_gates

    conditions = parse_gates(flags["fail_on"], "run")
    document, results = _run(model, backends, custom_op_library, flags)
    if flags["save"] is not None:
        from ortconv.compare.arrays import write_npz

        write_npz(flags["save"], results)
    present(lambda: document, lambda: view(document))
    if "check" in document:
        _refuse(document["check"], model)
    check_gates(conditions, _metrics(document))


def _run(
    model: Path, backends: Sequence[str], custom_op_library: Path | None, flags: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load and run one model. Return the document about it, and the results by name."""
    from ortconv.runtime.session import Session

    trace = click.get_current_context().with_resource(observed(backends, flags))
    start = time.perf_counter()
    note_stage("load")
    session = Session(
        model,
        configured(backends, flags, flags["repeat"]),
        keep=flags["nodes"],
        custom_op_library=custom_op_library,
        threads=flags["threads"],
    )
    loaded = time.perf_counter() - start
    expected = None if flags["check"] is None else given.read_expected(flags["check"], session.model.graph.outputs)
    names = _names(session, flags["outputs"], expected or {})
    note_stage("run")
    measured = _measured(session, names, flags)
    document = {
        "version": 1,
        "model": str(model),
        "backends": [name for name, _ in session.regions],
        "load_seconds": round(loaded, 6),
        **measured.figures,
        "inputs": _described(measured.feeds),
        "outputs": _described(measured.results),
        **_requested(session, trace, measured, flags),
    }
    if expected is not None:
        differences = _differences(expected, measured.results, flags)
        document["check"] = {"expected": sorted(expected), "differences": differences}
    return document, measured.results


def _requested(session: Session, trace: Trace | None, measured: _Measured, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the document that options request. With a trace, this closes the session."""
    profile = None if flags["profile"] is None else _profile(session, measured.feeds, flags["profile"])
    timing = None if trace is None else _summary(session, trace)
    parts = {
        "timing": timing if flags["timing"] else None,
        "top": None if flags["top"] is None else _top(measured.results, flags["top"]),
        "profile": profile,
        "plan": _plan(session) if flags["plan"] else None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _refuse(check: Mapping[str, Any], model: Path) -> None:
    """MismatchError if one of the outputs differs from the expected one."""
    differences, count = check["differences"], len(check["expected"])
    if differences:
        name, text = next(iter(differences.items()))
        more = f"; so do {len(differences) - 1} more of {count} outputs" if len(differences) > 1 else ""
        raise MismatchError(f"'{name}' differs: {text}{more}", file=model, hint="--rtol and --atol allow for rounding")


def _metrics(document: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that conditions can name, as far as they are known."""
    fields = {"latency": "median_seconds", "p90": "p90_seconds", "load": "load_seconds", "memory": "peak_bytes"}
    return {name: document[field] for name, field in fields.items() if document[field] is not None}


def _check_all(folder: Path, backends: Sequence[str], flags: Mapping[str, Any]) -> None:
    """Run the models of a folder on the data sets next to them."""
    from ortconv.cli.folders import data_sets, over_folder
    from ortconv.gates import parse_gates
    from ortconv.runtime.backend import get_backend

    parse_gates(flags["fail_on"], "run")
    for name in ("inputs", "texts", "outputs", "nodes", "save", "profile", "systrace"):
        if flags[name]:
            raise UsageError(f"--{name.removesuffix('s')} is for one model", hint="give a model, not a directory")
    if flags["check"] not in (None, folder):
        raise UsageError(
            "with a directory, --check is that directory", hint="the folders test_data_set_* in it are read"
        )
    for backend in backends:
        get_backend(backend)
    pairs = data_sets(folder)
    over_folder("checked", ({"model": m, "inputs": (d,), "check": d} for m, d in pairs), _checked)


def _checked(document: dict[str, Any]) -> str:
    return f"{len(document['check']['expected'])} outputs as expected, {1e3 * document['median_seconds']:.2f} ms"


def _names(session: Session, outputs: str | None, expected: Iterable[str]) -> list[str]:
    """The names to run for: requested outputs, kept values, and outputs to check."""
    names = every = [a.name for a in session.get_outputs()]
    if outputs is not None:
        names = [outputs] if outputs in every else [name.strip() for name in outputs.split(",")]
    names = [*names, *(v.name for v in session.kept)]
    known = {*every, *names}
    unknown = [name for name in expected if name not in known]
    if unknown:
        hint = f"there are {', '.join(sorted(known))}; --nodes NAME adds values inside the graph"
        raise UsageError(f"--check expects '{unknown[0]}', which is not a result of this run", hint=hint)
    return list(dict.fromkeys((*names, *expected)))


def _top(results: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The classes with the largest scores, for each result that has classes."""
    found = {name: _largest(value, count) for name, value in results.items()}
    return {name: rows for name, rows in found.items() if rows}


def _plan(session: Session) -> list[dict[str, Any]]:
    """The backend of each node, and why the backends before it do not run it."""
    return [
        {"node": p.node.label, "backend": p.backend, "partition": p.claim, "refused": dict(p.refused)}
        for p in session.plan
    ]


class _Measured(NamedTuple):
    """What the runs took and made. `figures` is the part of the document about their number, time and memory."""

    feeds: dict[str, Any]
    figures: dict[str, Any]
    results: dict[str, Any]


def _measured(session: Session, names: Sequence[str], flags: Mapping[str, Any]) -> _Measured:
    """Run the model as often as requested.

    The first run determines the feeds. It counts if it is the only one and computes nothing but outputs.
    """
    from ortconv.process import peak_bytes, reset_peak

    wanted = given.read_inputs(session.model.graph, flags["inputs"], flags["texts"])
    times: list[float] = []

    def run(names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        start = time.perf_counter()
        results = session.run(names, feeds)
        times.append(time.perf_counter() - start)
        return results

    reset_peak()
    feeds, results = _first(session, partial(run, names), wanted, flags["seed"])
    found = dict(zip(names, results, strict=True))
    if flags["repeat"] > 1 or session.kept:
        times.clear()
        kept = {v.name for v in session.kept}
        timed = [name for name in names if name not in kept] or names
        for _ in range(flags["repeat"]):
            found |= zip(timed, run(timed, feeds), strict=True)
    ranked, count = sorted(times), len(times)
    figures = {
        "runs": count,
        "median_seconds": round((ranked[(count - 1) // 2] + ranked[count // 2]) / 2, 9),
        "p90_seconds": round(ranked[-(-9 * count // 10) - 1], 9),
        "peak_bytes": peak_bytes(),
        "made_up": [name for name in feeds if name not in wanted.arrays],
    }
    return _Measured(feeds, figures, found)


def _first(
    session: Session, run: Callable[[dict[str, Any]], list[Any]], wanted: given.Inputs, seed: int
) -> tuple[dict[str, Any], list[Any]]:
    """The given or generated feeds, and the results."""
    needed, known = ({i.name for i in some} for some in (session.get_inputs(), session.model.graph.inputs))
    if not wanted.draws and needed <= wanted.arrays.keys() <= known:
        feeds = dict(wanted.arrays)
        return feeds, run(feeds)
    from ortconv.compare.candidates import accepted

    return accepted(session.model.graph, run, wanted.arrays, wanted.draws, seed)


def _summary(session: Session, trace: Trace) -> Summary:
    """NNAPI's time by layer and phase. This closes the session, so that the release of its models counts."""
    from ortconv.nnapi.tracing.timing import summary

    session.close()
    return summary(trace)


def _profile(session: Session, feeds: Mapping[str, Any], target: Path) -> list[dict[str, Any]]:
    from ortconv.files import write_text
    from ortconv.report.run import by_operator, chrome_trace

    events = session.profile(feeds)
    write_text(target, json.dumps(chrome_trace(events)))
    return [share._asdict() for share in by_operator(events)]


def _differences(expected: Mapping[str, Any], results: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    from ortconv.compare.difference import beyond

    found = {name: beyond(want, results[name], flags["rtol"], flags["atol"]) for name, want in expected.items()}
    return {name: text for name, text in found.items() if text is not None}


def _described(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _describe(value) for name, value in values.items()}


def _describe(value: Any) -> dict[str, Any]:
    import numpy as np

    from ortconv.compare.difference import element_type

    if value is None or isinstance(value, list):
        return {"type": "sequence" if isinstance(value, list) else "empty", "length": len(value or ())}
    array = np.asarray(value)
    found: dict[str, Any] = {"type": element_type(array), "shape": list(array.shape)}
    if array.size and _is_numeric(array):
        numbers = array.astype(np.float64)
        with np.errstate(all="ignore"):
            found |= {"min": _finite(numbers.min()), "max": _finite(numbers.max()), "mean": _finite(numbers.mean())}
    return found


def _is_numeric(array: Array) -> bool:
    """True for integers and floating-point numbers, those of numpy's extensions included."""
    return array.dtype.kind not in "bcOUST"


def _finite(value: Any) -> float | None:
    """A number as JSON can hold it: None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def _largest(value: Any, count: int) -> list[dict[str, Any]]:
    """The largest elements of each row, largest first; empty for a value that is not a numeric tensor with one axis of classes."""
    import numpy as np

    if value is None or isinstance(value, list):
        return []
    array = np.asarray(value)
    if not _is_numeric(array) or array.size < 2 or sum(n > 1 for n in array.shape[1:]) > 1:
        return []
    rows = array.reshape(array.shape[0] if array.ndim > 1 else 1, -1).astype(np.float64)
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return [{"row": n, "class": int(i), "value": _finite(rows[n, i])} for n, best in enumerate(order) for i in best]
