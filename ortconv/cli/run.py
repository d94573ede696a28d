"""ortconv run"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ortconv.cli import VerbResult, printable
from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli.nnapi_options import OBSERVED, OF_BACKEND, configured, observed
from ortconv.cli.render import columns
from ortconv.errors import MismatchError, UsageError
from ortconv.files import size, write_text
from ortconv.watch import note_stage
from ortconv.wording import counted

if TYPE_CHECKING:
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
@shared.written("--save", help="Write the results as .npz.")
@click.option("--top", type=shared.COUNT, help="Show the N classes with the largest scores.")
@click.option(
    "--check",
    type=shared.FILE_OR_FOLDER,
    metavar="FILE",
    help="Expected outputs; exit with 4 if the results differ. An .npz by name, a test_data_set folder, or the file of a "
    "model's only output.",
)
@click.option("--rtol", type=shared.Real(0), default=1e-3, help="For --check: relative tolerance of floats.")
@click.option("--atol", type=shared.Real(0), default=1e-5, help="For --check: absolute tolerance of floats.")
@click.option(
    "--repeat",
    type=shared.COUNT,
    default=1,
    help="Number of runs. Of several, the median and p90 of the times are shown; a first run before them does not count.",
)
@click.option("--threads", type=shared.COUNT, default=1, help="Threads of numpy's BLAS and of onnxruntime.")
@shared.written("--profile", help="Write the time of every step as a Chrome trace, and show the times by operator.")
@shared.add(shared.BACKENDS, OF_BACKEND, OBSERVED)
@shared.flag("--plan", "-v", "--verbose", help="Show which node runs on which backend, and why.")
@shared.fail_on("run", "latency>20ms,memory>200MB")
@shared.add(shared.BATCH, shared.LIMITS_OF_MODELS, shared.JSON_LINES, shared.QUIET)
def command(model: Path, **flags: Any) -> None:
    """Run MODEL (.onnx or .ort) once or several times and show its outputs.

    With a directory, runs each model in it that has test_data_set folders next to it on all of these, and checks the outputs.
    """
    if model.is_dir():
        _check_all(model, flags)
    else:
        ran({"model": model, **flags}).end()


def ran(flags: Mapping[str, Any]) -> VerbResult:
    """The result on one model. It refuses outputs that are not as expected, and models for which a condition holds."""
    from ortconv.gates import check_gates, parse_gates
    from ortconv.report.run import metrics

    conditions = parse_gates(flags["fail_on"], "run")
    with observed(flags["backends"], flags) as trace:
        document, results = _run(flags, trace)
    if flags["save"] is not None:
        from ortconv.arrays import write_npz

        write_npz(flags["save"], results)

    def refuse() -> None:
        if "check" in document:
            _refuse(document["check"], flags["model"])
        check_gates(conditions, metrics(document))

    return VerbResult(lambda: document, lambda: "\n".join(_lines(document)), refuse)


def _run(flags: Mapping[str, Any], trace: Trace | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load and run one model. Return the document about it, and the results by name."""
    from ortconv.report.run import described
    from ortconv.runtime.session import Session

    start = time.perf_counter()
    note_stage("load")
    session = Session(
        flags["model"],
        configured(flags["backends"], flags, flags["repeat"]),
        keep=flags["nodes"],
        custom_op_library=flags["custom_op_library"],
        threads=flags["threads"],
    )
    loaded = time.perf_counter() - start
    expected = None if flags["check"] is None else given.read_expected(flags["check"], session.model.graph.outputs)
    names = _names(session, flags["outputs"], expected or {})
    note_stage("run")
    measured = _measured(session, names, flags)
    document = {
        "version": 1,
        "model": str(flags["model"]),
        "backends": [name for name, _ in session.regions],
        "load_seconds": round(loaded, 6),
        **measured.figures,
        "inputs": described(measured.feeds),
        "outputs": described(measured.results),
        **_requested(session, trace, measured, flags),
    }
    if expected is not None:
        differences = _differences(expected, measured.results, flags)
        document["check"] = {"expected": sorted(expected), "differences": differences}
    return document, measured.results


def _requested(session: Session, trace: Trace | None, measured: _Measured, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the document that options request. With a trace, this closes the session."""
    from ortconv.report.run import largest, plan

    profile = None if flags["profile"] is None else _profile(session, measured.feeds, flags["profile"])
    timing = None if trace is None else _summary(session, trace)
    parts = {
        "timing": timing if flags["timing"] else None,
        "top": None if flags["top"] is None else largest(measured.results, flags["top"]),
        "profile": profile,
        "plan": plan(session) if flags["plan"] else None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _refuse(check: Mapping[str, Any], model: Path) -> None:
    """MismatchError if one of the outputs differs from the expected one."""
    differences, count = check["differences"], len(check["expected"])
    if differences:
        name, text = next(iter(differences.items()))
        more = f"; so do {len(differences) - 1} more of {count} outputs" if len(differences) > 1 else ""
        raise MismatchError(f"'{name}' differs: {text}{more}", file=model, hint="--rtol and --atol allow for rounding")


def _check_all(folder: Path, flags: Mapping[str, Any]) -> None:
    """Run the models of a folder on the data sets next to them."""
    from ortconv.cli.folders import data_sets, over_folder
    from ortconv.gates import parse_gates
    from ortconv.runtime.backend import get_backend

    parse_gates(flags["fail_on"], "run")
    for name in ("inputs", "texts", "outputs", "nodes", "save", "profile", "systrace"):
        if flags[name]:
            option = "input" if name == "texts" else name
            raise UsageError(f"--{option} is for one model", hint="give a model, not a directory")
    if flags["check"] not in (None, folder):
        raise UsageError(
            "with a directory, --check is that directory", hint="the folders test_data_set_* in it are read"
        )
    for backend in flags["backends"]:
        get_backend(backend)
    pairs = data_sets(folder)
    over_folder("checked", ran, ({"model": m, "inputs": (d,), "check": d} for m, d in pairs), _checked)


def _checked(document: dict[str, Any]) -> str:
    count = counted(len(document["check"]["expected"]), "output")
    return f"{count} as expected, {1e3 * document['median_seconds']:.2f} ms"


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
    from ortconv.inputs.candidates import accepted

    return accepted(session.model.graph, run, wanted.arrays, wanted.draws, seed)


def _summary(session: Session, trace: Trace) -> Summary:
    """NNAPI's time by layer and phase. This closes the session, so that the release of its models counts."""
    from ortconv.nnapi.tracing.timing import summary

    session.close()
    return summary(trace)


def _profile(session: Session, feeds: Mapping[str, Any], target: Path) -> list[dict[str, Any]]:
    from ortconv.report.run import by_operator, chrome_trace

    events = session.profile(feeds)
    write_text(target, json.dumps(chrome_trace(events)))
    return [share._asdict() for share in by_operator(events)]


def _differences(expected: Mapping[str, Any], results: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    from ortconv.compare.pairs import beyond

    found = {name: beyond(want, results[name], flags["rtol"], flags["atol"]) for name, want in expected.items()}
    return {name: text for name, text in found.items() if text is not None}


# ------------------------------------------------------------------ text

MOST_ROWS = 60
"""Number of rows of a table that are shown; --json has all."""
BAR = 20


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """The results of a run as text."""
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


def _top_text(top: dict[str, list[dict[str, Any]]]) -> str:
    rows = [(name, row["row"], row["class"], _number(row["value"])) for name, own in top.items() for row in own]
    return _table(("output", "row", ">class", ">value"), rows)


def _profile_text(shares: Sequence[dict[str, Any]]) -> str:
    rows = [
        (s["op"], s["backend"], s["steps"], f"{s['seconds'] * 1e3:.3f}", f"{s['share']:.1%}", "█" * round(BAR * s["share"]))
        for s in shares
    ]  # fmt: skip
    return _table(("operator", "backend", ">steps", ">ms", ">share", ""), rows)


def _timing_text(summary: Mapping[str, Mapping[str, float | None]]) -> str:
    from ortconv.nnapi.tracing.timing import table

    return table(summary)


def _plan_text(plan: Sequence[dict[str, Any]]) -> str:
    rows = [(p["node"], _where(p), "; ".join(f"{b}: {r}" for b, r in p["refused"].items())) for p in plan]
    return _table(("node", "backend", "why not on an earlier backend"), rows)


PARTS: dict[str, Callable[[Any], str]] = {
    "top": _top_text,
    "profile": _profile_text,
    "timing": _timing_text,
    "plan": _plan_text,
}
"""The tables of the optional parts of a document."""


def _where(place: dict[str, Any]) -> str:
    """The backend of a node, and the number of its partition if it has one."""
    return place["backend"] if place["partition"] is None else f"{place['backend']} {place['partition']}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with the first rows, and the number of the others."""
    more = len(rows) - MOST_ROWS
    return columns(header, rows[:MOST_ROWS]) + (f"\nand {more} more; --json lists them all" if more > 0 else "")
