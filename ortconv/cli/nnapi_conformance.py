"""ortconv nnapi conformance"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortconv.cli import completion, present
from ortconv.cli.nnapi_options import VLOG, load_devices, messages
from ortconv.cli.options import FOLDER, JSON_AND_QUIET, MARKDOWN, PAGE, add, flag
from ortconv.cli.progress import stage_line
from ortconv.errors import MismatchError

MODES = ("sync", "async", "burst", "fenced", "dynamic")
REFERENCE = "nnapi-reference"


@click.command(name="conformance")
@click.option(
    "--specs",
    "folder",
    required=True,
    envvar="ORTCONV_NNAPI_SPECS",
    type=FOLDER,
    help="The folder of conformance records; docs/nnapi.md describes their format.  "
    "[default: that of ORTCONV_NNAPI_SPECS]",
)
@click.option(
    "--device",
    "name",
    default=REFERENCE,
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
@flag("--core", help="Leave out records that repeat others with other lifetimes of their operands.")
@VLOG
@PAGE
@MARKDOWN
@add(JSON_AND_QUIET)
def command(folder: Path, name: str, vlog: str, html: Path | None, quiet: bool, **flags: Any) -> None:
    """Test an NNAPI device with conformance records: models with inputs and expected outputs.

    A record that the device does not support as a whole is skipped. Exit code 4 if one fails.
    """
    from ortconv.nnapi import get_device
    from ortconv.nnapi.conformance.check import Mode
    from ortconv.nnapi.conformance.run import check_device
    from ortconv.report.conformance import conformance_page, headline, sections
    from ortconv.report.sections import Section

    device = get_device(REFERENCE) if name == REFERENCE else load_devices([name])[0]
    with messages(vlog), stage_line(device.name, shown=not quiet and not vlog) as progress:
        found = check_device(
            device,
            folder,
            modes=list(map(Mode, dict.fromkeys(flags["modes"]))),
            operations=flags["operations"],
            variations=not flags["core"],
            progress=progress,
        )
    if html is not None:
        from ortconv.files import write_text

        write_text(html, conformance_page(found))
    present(found.to_dict, lambda: [Section(headline(found), [str(folder)]), *sections(found)])
    if found.failures:
        raise MismatchError(headline(found))
