"""ortconv inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.values import given_options, sizes_in


@click.command()
@click.argument("model", type=shared.FILE)
@shared.FIX_DIM
@click.option(
    "--lint",
    type=click.Choice(["quantization"]),
    help="Also show for each QDQ group if NNAPI and CoreML support it, and advice.",
)
@shared.PAGE
@shared.fail_on("inspect", "onnxruntime>1.17,size>5MB")
@shared.add(shared.MARKDOWN, shared.JSON_AND_QUIET)
@shared.view("-v", "--verbose", help="List every operator, input and reason, not only the first ones.")
def command(model: Path, lint: Literal["quantization"] | None, verbose: bool, **flags: Any) -> None:
    """Show the interface of MODEL (.onnx or .ort), its operators, cost, memory, quantization, and unusual facts."""
    from ortconv.gates import check_gates, parse_gates
    from ortconv.inspection.inspect import inspect
    from ortconv.report.inspect import page_of, sections

    conditions = parse_gates(flags["fail_on"], "inspect")
    fix_dims = sizes_in(flags["fix_dims"])
    found = inspect(model, fix_dims=fix_dims, lint=lint)
    present(
        found.to_dict,
        lambda: sections(found, everything=verbose),
        lambda: page_of(found, model, fix_dims, given_options()),
    )
    check_gates(conditions, found.metrics(), file=model)
