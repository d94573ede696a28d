"""ortconv nnapi trace"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortconv.cli import present, printable
from ortconv.cli.options import FILE, JSON


@click.command(name="trace")
@click.argument("file", type=FILE)
@click.option("--total-times", is_flag=True, help="Include the time that a layer waits for the layers below it.")
@click.option("--per-execution", is_flag=True, help="Show only the parts of one execution, on average.")
@click.option("--print-detail", is_flag=True, help="List all marks too, by thread and time.")
@JSON
def command(file: Path, total_times: bool, per_execution: bool, print_detail: bool, **_: Any) -> None:
    """Show where NNAPI's time went in FILE, a system trace of a phone: the time of each layer in each phase.

    FILE is a trace of Perfetto, or the text or HTML of systrace or atrace, recorded with the category nnapi of atrace; or a file
    that run --systrace or ORTCONV_NNAPI_TRACE wrote. Each mark [NN_LA_PO] of the program starts a separate table.
    """
    from ortconv.nnapi.systrace import read_trace
    from ortconv.report.timing import text, timings

    found = timings(file, read_trace(file), detail=print_detail)
    present(found.to_dict, lambda: printable(text(found, total_times=total_times, each=per_execution)))
