"""ortconv nnapi"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import completion, nnapi_conformance, nnapi_export, present, printable
from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli.nnapi_options import DEVICES, FLAGS_TEXT, MODEL, VLOG, load_devices, messages, prepared
from ortconv.cli.usage import Commands

if TYPE_CHECKING:
    from ortconv.report.benchmark import BenchmarkComparison
    from ortconv.report.nnapi import Compiled

DEFAULT_DEVICES = ("gpu-fp16", "npu-int8")
DEFAULT_FLAGS = ("", "fp16", "nchw")


@click.group(cls=Commands)
def command() -> None:
    """Show the NNAPI models of a model's partitions, compare and check devices, read traces, and export models for LiteRT."""


command.add_command(nnapi_export.command)
command.add_command(nnapi_conformance.command)


@command.command()
@shared.add(MODEL)
@DEVICES
@click.option("--nnapi-flags", metavar="FLAGS", help=f"Flags of the NNAPI provider: {FLAGS_TEXT}.")
@VLOG
@shared.add(shared.drawing("Draw the models and their steps into this file."))
@click.option("--dot", type=shared.OUTPUT_FILE, help="Write the picture as a graph for Graphviz.")
@shared.add(shared.JSON_AND_QUIET)
def dump(model: Path, profiles: tuple[str, ...], nnapi_flags: str | None, vlog: str, **flags: Any) -> None:
    """Show the operands and operations of every partition of MODEL (.onnx or .ort).

    A picture has a frame for each partition, for each step of a partition that several devices share, and for each model within
    control flow.
    """
    from ortconv.backends.nnapi.backend import NnapiOptions, flags_of
    from ortconv.cli.nnapi_view import NOTHING
    from ortconv.report.nnapi import compiled, document, text

    with messages(vlog):
        ready, settings = prepared(model, flags)
        settings |= flags_of(nnapi_flags or "")
        partitions = compiled(ready, NnapiOptions(**settings, devices=tuple(load_devices(profiles))))
    _draw(model, partitions, flags)
    present(
        lambda: {"version": 1, "model": str(model), "partitions": document(partitions)},
        lambda: printable(text(partitions)) if partitions else NOTHING,
    )


def _draw(model: Path, partitions: Compiled, flags: dict[str, Any]) -> None:
    if flags["svg"] is None and flags["dot"] is None:
        return
    from ortconv.files import write_text
    from ortconv.report.blocks import dot, svg
    from ortconv.report.nnapi_picture import partitions_frame

    frame = partitions_frame(model.name, partitions)
    if flags["svg"] is not None:
        write_text(flags["svg"], svg(frame, dark=flags["dark"]))
    if flags["dot"] is not None:
        write_text(flags["dot"], dot(frame))


@command.command()
@shared.add(MODEL)
@DEVICES
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
@VLOG
@shared.PAGE
@shared.JSON
def benchmark(model: Path, html: Path | None, **flags: Any) -> None:
    """Compare NNAPI devices, flags and CPU backends on MODEL (.onnx or .ort): latency, and difference of the outputs.

    Each device runs alone; several devices then run together. Without --device, they are gpu-fp16 and npu-int8. The time of a
    simulated device is the time of its nodes on the numpy backend, scaled by the profile, plus launches and copies.
    """
    from ortconv.cli.nnapi_view import show
    from ortconv.report.benchmark import document

    with messages(flags["vlog"]):
        found = _compared(model, flags)
    if html is not None:
        from ortconv.files import write_text
        from ortconv.report.benchmark import benchmark_page

        write_text(html, benchmark_page(found, shared.given_options()))
    present(lambda: document(found), lambda: show(found))


def _compared(model: Path, flags: dict[str, Any]) -> BenchmarkComparison:
    from ortconv.backends.nnapi.backend import flags_of
    from ortconv.compare.benchmark import benchmark, contenders, expectation
    from ortconv.report.benchmark import BenchmarkComparison

    load_devices(flags["profiles"])  # raises an error if one is invalid
    ready, settings = prepared(model, flags)
    variants = {text: flags_of(text) for text in flags["variants"]}
    entrants = contenders(flags["backends"], flags["profiles"] or DEFAULT_DEVICES, variants, **settings)
    wanted = given.read_inputs(ready.graph, flags["inputs"], flags["texts"])
    expected_by, feeds, expected = expectation(ready, flags["backends"], wanted.arrays, wanted.draws, flags["seed"])
    rows = benchmark(ready, entrants, feeds, expected, flags["repeat"], flags["timing"])
    return BenchmarkComparison(str(model), expected_by, feeds, flags["repeat"], rows)


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
    lines.append(f"compile with: cc program.c -I {folder}/include -L {folder} -lneuralnetworks -Wl,-rpath,{folder}")
    present(lambda: {"version": 1, "files": list(map(str, written))}, lambda: printable("\n".join(lines)))


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
    from ortconv.nnapi.systrace import read_trace
    from ortconv.report.timing import text as timing_text
    from ortconv.report.timing import timings

    found = timings(file, read_trace(file), detail=print_detail)
    present(found.to_dict, lambda: printable(timing_text(found, total_times=total_times, each=per_execution)))
