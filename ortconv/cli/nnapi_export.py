"""ortconv nnapi export"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import options as shared
from ortconv.cli import present, printable
from ortconv.cli.render import columns, labeled, proof, size
from ortconv.wording import counted, listed

if TYPE_CHECKING:
    from ortconv.pipeline.export_tflite import ExportResult


@click.command(name="export")
@click.argument("model", type=shared.FILE)
@shared.output("The directory to write to.", type=shared.OUTPUT_FOLDER, required=True)
@shared.flag("--whole", help="Write the whole model as one file; an error if a node is refused.")
@shared.ANALYSIS_LEVEL
@shared.flag("--maximize-offload", "maximize", help="Rewrite refused nodes as convert --maximize-offload does.")
@shared.FIX_DIM
@shared.add(shared.NNAPI[1:])
@click.option(
    "--validate/--no-validate", default=True, help="Run the model with the files on LiteRT and compare with the source."
)
@shared.add(shared.VALIDATION)
@shared.flag("--allow-unchecked", help="Write the files even if they could not be checked.")
@shared.fail_on("nnapi export", "partitions>3,coverage<80%", "No files are then written.")
@shared.add(shared.JSON_AND_QUIET)
def command(model: Path, output: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write each NNAPI partition of MODEL (.onnx or .ort) as a .tflite file for LiteRT.

    Files are put in place only if LiteRT runs them, and the model with them computes the same as the source. The package
    ai-edge-litert is needed for that: pip install 'ortconv[litert]'.
    """
    from ortconv.pipeline.export_tflite import export

    flags = shared.read_values(flags)
    result = export(model, output, stop_ops=flags.pop("nnapi_partitioning_stop_ops"), **flags)
    present(lambda: {"version": 1, **result.to_dict()}, lambda: "\n".join(_lines(result)))


SHOWN_NAMES = 2
SHOWN_REFUSALS = 5


def _lines(result: ExportResult) -> Iterator[str]:
    """A table of the files, the reasons against the other nodes, and the result of validation."""
    folder = click.style(printable(str(Path(result.files[0].file).parent)), bold=True)
    count = counted(len(result.files), "file")
    yield f"{click.style(printable(result.source), bold=True)} -> {count} in {folder}, {result.taken} of {result.nodes} nodes"
    rows = [
        (
            printable(Path(one.file).name),
            f"{len(one.nodes)}",
            f"{one.operators}",
            size(one.bytes),
            printable(listed(one.inputs, SHOWN_NAMES)),
            printable(listed(one.outputs, SHOWN_NAMES)),
        )
        for one in result.files
    ]
    yield columns(("file", ">nodes", ">operators", ">size", "inputs", "outputs"), rows)
    for row in result.refusals[:SHOWN_REFUSALS]:
        yield printable(f"left: {counted(row['nodes'], 'node')}, such as {row['example']}: {row['reason']}")
    if len(result.refusals) > SHOWN_REFUSALS:
        others = sum(row["nodes"] for row in result.refusals[SHOWN_REFUSALS:])
        yield f"left: {counted(others, 'node')} for other reasons; --json names all"
    yield from (labeled(*fact) for fact in proof(result.validation))
