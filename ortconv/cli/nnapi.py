"""ortconv nnapi"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import REFERENCE_DEVICE
from ortconv.cli import LINES, completion, present, printable
from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli.nnapi_options import DEVICES, FLAGS_TEXT, MODEL, VLOG, load_devices, messages, prepared
from ortconv.cli.progress import stage_line
from ortconv.cli.render import columns, labeled
from ortconv.cli.usage import Commands
from ortconv.cli.values import given_options, read_values
from ortconv.errors import MismatchError
from ortconv.files import size, write_text
from ortconv.wording import command_line, counted, listed

if TYPE_CHECKING:
    from ortconv.compare.benchmark import BenchmarkRow
    from ortconv.pipeline.export_tflite import ExportResult
    from ortconv.report.nnapi.benchmark import BenchmarkComparison
    from ortconv.report.nnapi.dump import Compiled

DEFAULT_DEVICES = ("gpu-fp16", "npu-int8")
DEFAULT_FLAGS = ("", "fp16", "nchw")
MODES = ("sync", "async", "burst", "fenced", "dynamic")

NOTHING = (
    "NNAPI supports no node of this model; ortconv partition says why, --fix-dim gives symbolic dimensions numbers"
)

SHOWN_NAMES = 2
SHOWN_REFUSALS = 5


@click.group(cls=Commands)
def command() -> None:
    """Show the NNAPI models of a model's partitions, compare and check devices, read traces, and export models for LiteRT."""


@command.command()
@shared.add(MODEL, DEVICES)
@click.option("--nnapi-flags", metavar="FLAGS", help=f"Flags of the NNAPI provider: {FLAGS_TEXT}.")
@VLOG
@shared.add(shared.drawing("Draw the models and their steps into this file."))
@shared.written("--dot", role=shared.Role.PICTURE, help="Write the picture as a graph for Graphviz.")
@shared.add(shared.JSON_AND_QUIET)
def dump(model: Path, profiles: tuple[str, ...], nnapi_flags: str | None, vlog: str | None, **flags: Any) -> None:
    """Show the operands and operations of every partition of MODEL (.onnx or .ort).

    A picture has a frame for each partition, for each step of a partition that several devices share, and for each model within
    control flow.
    """
    from ortconv.backends.nnapi.backend import NnapiOptions, flags_of
    from ortconv.report.nnapi.dump import compiled, document, text

    with messages(vlog):
        ready, settings = prepared(model, flags)
        settings |= flags_of(nnapi_flags or "")
        partitions = compiled(ready, NnapiOptions(**settings, devices=tuple(load_devices(profiles))))
    _draw(model, partitions, flags)
    present(lambda: document(model, partitions), lambda: printable(text(partitions), LINES) if partitions else NOTHING)


def _draw(model: Path, partitions: Compiled, flags: dict[str, Any]) -> None:
    if flags["svg"] is None and flags["dot"] is None:
        return
    from ortconv.report.blocks import dot, svg
    from ortconv.report.nnapi.picture import partitions_frame

    frame = partitions_frame(model.name, partitions)
    if flags["svg"] is not None:
        write_text(flags["svg"], svg(frame, dark=flags["dark"]))
    if flags["dot"] is not None:
        write_text(flags["dot"], dot(frame))


@command.command()
@shared.add(MODEL, DEVICES)
@click.option(
    "--nnapi-flags",
    "variants",
    multiple=True,
    default=DEFAULT_FLAGS,
    show_default="none, fp16, nchw",
    metavar="FLAGS",
    help="Flags to compare, such as fp16 or fp16,nchw; may be repeated. An empty text means no flags.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    default=("numpy", "onnxruntime"),
    metavar="BACKEND",
    shell_complete=completion.backends,
    help="CPU backends to compare with; may be repeated. The first one that runs the model is the reference for all outputs.",
)
@shared.add(given.OPTIONS)
@click.option("--repeat", type=shared.COUNT, default=10, help="Number of runs for each median.")
@shared.flag("--timing", help="Show the time of application, runtime, driver and CPU by phase.")
@shared.add(VLOG, shared.PAGE, shared.JSON)
def benchmark(model: Path, **flags: Any) -> None:
    """Compare NNAPI devices, flags and CPU backends on MODEL (.onnx or .ort): latency, and difference of the outputs.

    Each device runs alone; several devices then run together. Without --device, they are gpu-fp16 and npu-int8. The time of a
    simulated device is the time of its nodes on the numpy backend, scaled by the profile, plus launches and copies.
    """
    from ortconv.report.nnapi.benchmark import document, page_of

    with messages(flags["vlog"]):
        found = _compared(model, flags)
    present(lambda: document(found), lambda: _benchmarked(found), lambda: page_of(found, given_options()))


def _compared(model: Path, flags: dict[str, Any]) -> BenchmarkComparison:
    from ortconv.backends.nnapi.backend import flags_of
    from ortconv.compare.benchmark import benchmark, contenders
    from ortconv.inputs.candidates import run_on_first
    from ortconv.report.nnapi.benchmark import BenchmarkComparison

    load_devices(flags["profiles"])  # raises an error if one is invalid
    ready, settings = prepared(model, flags)
    variants = {text: flags_of(text) for text in flags["variants"]}
    entrants = contenders(flags["backends"], flags["profiles"] or DEFAULT_DEVICES, variants, **settings)
    wanted = given.read_inputs(ready.graph, flags["inputs"], flags["texts"])
    expected_by, feeds, expected = run_on_first(ready, flags["backends"], wanted.arrays, wanted.draws, flags["seed"])
    rows = benchmark(ready, entrants, feeds, expected, flags["repeat"], flags["timing"])
    return BenchmarkComparison(str(model), expected_by, feeds, flags["repeat"], rows)


def _benchmarked(found: BenchmarkComparison) -> str:
    """A table of the rows, the failures, and with a trace the time of each layer and phase."""
    from ortconv.report.nnapi.benchmark import title

    good = [row for row in found.rows if row.error is None]
    ratio = f">ratio to {title(good[0])}" if good else "ratio"
    header = ("", ">nodes", "operations", ">ms here", ">ms simulated", ratio, f"off from {found.expected_by} by")
    rows = [_cells(row, good[0]) for row in good]
    runs = f"median of {found.repeat} runs" if found.repeat > 1 else "one run"
    lines = [f"{click.style(printable(found.model), bold=True)}, {runs} of each, taking turns", columns(header, rows)]
    lines += [printable(f"{title(row)} fails: {row.error}") for row in found.rows if row.error is not None]
    if not any(row.partitions for row in good):
        lines.append(NOTHING)
    return "\n".join([*lines, *_timings(found)])


def _timings(found: BenchmarkComparison) -> Iterator[str]:
    """The tables of the rows with a trace."""
    from ortconv.nnapi.tracing import timing
    from ortconv.report.nnapi.benchmark import title

    for row in found.rows:
        if row.error is None and row.summary is not None:
            name = click.style(printable(title(row)), bold=True)
            yield from ("", f"{name}: lowered, compiled and run {found.repeat} times", timing.table(row.summary))


def _cells(row: BenchmarkRow, base: BenchmarkRow) -> tuple[str, ...]:
    from ortconv.report.nnapi.benchmark import accuracy, operations, title

    return (
        title(row),
        f"{row.nodes}/{row.total}" if row.contender.options else "",
        operations(row),
        f"{statistics.median(row.times) * 1e3:.3f}",
        f"{row.latency * 1e3:.3f}" if row.simulated else "",
        f"{row.latency / base.latency:.2f}",
        accuracy(row),
    )


@command.command()
@shared.output(
    "Folder for include/android and libneuralnetworks.so.", "folder", type=shared.OUTPUT_FOLDER, required=True
)
@shared.JSON
def ndk(folder: Path, **_: Any) -> None:
    """Write the NDK's headers and build libneuralnetworks.so: C and C++ programs that use NNAPI then run on this machine.

    The library embeds this Python and its ortconv. It needs a C compiler (cc, or the one in CC) and Python's headers. Programs read
    their settings from ORTCONV_NNAPI_DEVICES (profiles), _VLOG, _TRACE (a file), _PARTITION, _CPU_ONLY and _FEATURE_LEVEL.
    """
    from ortconv.nnapi.ndk.library import write

    written = write(folder)
    lines = [f"written {path}" for path in written]
    link = ["-L", str(folder), "-lneuralnetworks", f"-Wl,-rpath,{folder.absolute()}"]
    lines.append(f"compile with: {command_line(['cc', 'program.c', '-I', f'{folder}/include', *link])}")
    present(lambda: {"version": 1, "files": list(map(str, written))}, lambda: printable("\n".join(lines), LINES))


@command.command()
@click.argument("file", type=shared.FILE)
@shared.flag("--total-times", help="Include the time that a layer waits for the layers below it.")
@shared.flag("--per-execution", help="Show only the parts of one execution, on average.")
@shared.flag("--print-detail", help="List all marks too, by thread and time.")
@shared.JSON
def trace(file: Path, total_times: bool, per_execution: bool, print_detail: bool, **_: Any) -> None:
    """Show where NNAPI's time went in FILE, a system trace of a phone: the time of each layer in each phase.

    FILE is a trace of Perfetto, or the text or HTML of systrace or atrace, recorded with the category nnapi of atrace; or a file
    that run --systrace or ORTCONV_NNAPI_TRACE wrote. Each mark [NN_LA_PO] of the program starts a separate table.
    """
    from ortconv.nnapi.tracing.systrace import read_trace
    from ortconv.report.nnapi.trace import text as timing_text
    from ortconv.report.nnapi.trace import timings

    found = timings(file, read_trace(file), detail=print_detail)
    present(found.to_dict, lambda: printable(timing_text(found, total_times=total_times, each=per_execution), LINES))


@command.command()
@click.option(
    "--specs",
    "folder",
    required=True,
    envvar="ORTCONV_NNAPI_SPECS",
    type=shared.FOLDER,
    help="The folder of conformance records; docs/nnapi.md describes their format.  "
    "[default: that of ORTCONV_NNAPI_SPECS]",
)
@click.option(
    "--device",
    "name",
    default=REFERENCE_DEVICE,
    metavar="DEVICE",
    shell_complete=completion.devices,
    help="The device: the CPU, a simulated device by its name or TOML file, or an installed one by its name.",
)
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    default=MODES,
    show_default="all",
    help="Mode of execution; may be repeated. In mode dynamic, models do not state the dimensions of their outputs.",
)
@click.option(
    "--op",
    "operations",
    multiple=True,
    metavar="OPERATION",
    help="Test only records with this operation; may be repeated.",
)
@shared.flag("--core", help="Leave out records that repeat others with other lifetimes of their operands.")
@shared.add(VLOG, shared.PAGE, shared.MARKDOWN, shared.JSON_AND_QUIET)
def conformance(folder: Path, name: str, vlog: str | None, quiet: bool, **flags: Any) -> None:
    """Test an NNAPI device with conformance records: models with inputs and expected outputs.

    A record that the device does not support as a whole is skipped. Exit code 4 if one fails.
    """
    from ortconv.nnapi import get_device
    from ortconv.nnapi.conformance.check import Mode
    from ortconv.nnapi.conformance.run import check_device
    from ortconv.report.nnapi.conformance import headline, page_of, sections
    from ortconv.report.sections import Section

    device = get_device(name) if name == REFERENCE_DEVICE else load_devices([name])[0]
    with messages(vlog), stage_line(device.name, shown=not quiet and not vlog) as progress:
        found = check_device(
            device,
            folder,
            modes=list(map(Mode, dict.fromkeys(flags["modes"]))),
            operations=flags["operations"],
            variations=not flags["core"],
            progress=progress,
        )
    present(found.to_dict, lambda: [Section(headline(found), [str(folder)]), *sections(found)], lambda: page_of(found))
    if found.failures:
        raise MismatchError(headline(found))


@command.command()
@click.argument("model", type=shared.FILE)
@shared.output("The directory to write to.", type=shared.OUTPUT_FOLDER, required=True)
@shared.flag("--whole", help="Write the whole model as one file; an error if a node is refused.")
@shared.ANALYSIS_LEVEL
@shared.flag("--maximize-offload", "maximize", help="Rewrite refused nodes as convert --maximize-offload does.")
@shared.add(shared.INPUT_CHANGES, shared.NNAPI[1:])
@click.option(
    "--validate/--no-validate", default=True, help="Run the model with the files on LiteRT and compare with the source."
)
@shared.add(shared.VALIDATION)
@shared.flag("--allow-unchecked", help="Write the files even if they could not be checked.")
@shared.fail_on("nnapi export", "partitions>3,coverage<80%", "No files are then written.")
@shared.add(shared.JSON_AND_QUIET)
def export(model: Path, output: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write each NNAPI partition of MODEL (.onnx or .ort) as a .tflite file for LiteRT.

    Files are put in place only if LiteRT runs them, and the model with them computes the same as the source. The package
    ai-edge-litert is needed for that: pip install 'ortconv[litert]'.
    """
    from ortconv.pipeline.export_tflite import export as write

    flags = read_values(flags)
    result = write(model, output, stop_ops=flags.pop("nnapi_partitioning_stop_ops"), **flags)
    present(lambda: {"version": 1, **result.to_dict()}, lambda: "\n".join(_exported(result)))


def _exported(result: ExportResult) -> Iterator[str]:
    """A table of the files, the reasons against the other nodes, and the result of validation."""
    folder = click.style(printable(str(Path(result.files[0].file).parent)), bold=True)
    count = counted(len(result.files), "file")
    yield f"{click.style(printable(result.source), bold=True)} -> {count} in {folder}, {result.taken} of {result.nodes} nodes"
    rows = []
    for one in result.files:
        ends = (listed(one.inputs, SHOWN_NAMES), listed(one.outputs, SHOWN_NAMES))
        rows.append((Path(one.file).name, len(one.nodes), one.operators, size(one.bytes), *ends))
    yield columns(("file", ">nodes", ">operators", ">size", "inputs", "outputs"), rows)
    for row in result.refusals[:SHOWN_REFUSALS]:
        yield printable(f"left: {counted(row.nodes, 'node')}, such as {row.example}: {row.reason}")
    if len(result.refusals) > SHOWN_REFUSALS:
        others = sum(row.nodes for row in result.refusals[SHOWN_REFUSALS:])
        yield f"left: {counted(others, 'node')} for other reasons; --json names all"
    from ortconv.report.convert import proof

    yield from (labeled(*fact) for fact in proof(result.validation))
