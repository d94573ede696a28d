"""ortconv verify"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ortconv.cli import VerbResult, printable
from ortconv.cli.options import BATCH, FILE_OR_FOLDER, JSON_LINES, LIMITS_OF_MODELS, QUIET, add
from ortconv.errors import FormatError
from ortconv.wording import counted


@click.command()
@click.argument("model", type=FILE_OR_FOLDER)
@add(BATCH, LIMITS_OF_MODELS, JSON_LINES, QUIET)
def command(model: Path, **_: Any) -> None:
    """Check MODEL, an .ort file or the manifest of one, or those of a directory.

    Of an .ort file: every offset, then everything that a minimal build does not check. Of a manifest: its files, and its source if
    it is present. Exits with 3 if the file is damaged, would mislead a minimal build, or does not match the manifest.
    """
    if model.is_dir():
        from ortconv.cli.folders import models_in, over_folder

        over_folder(
            "verified", verified, ({"model": path} for path in models_in(model, (".ort", ".manifest.json"))), _line
        )
        return
    verified({"model": model}).end()


def verified(parameters: Mapping[str, Any]) -> VerbResult:
    """The result on one file. It refuses a file with findings."""
    model: Path = parameters["model"]
    if model.suffix.lower() == ".json":
        return _verified_manifest(model)
    from ortconv.ortformat.check import check

    report = check(model)

    def refuse() -> None:
        if report.findings:
            count = counted(len(report.findings), "finding")
            raise FormatError(f"{count}, the first: {report.findings[0]}", file=model)

    return VerbResult(
        lambda: {"version": 1, "model": str(model), **asdict(report)}, lambda: _text(model, report), refuse
    )


def _verified_manifest(path: Path) -> VerbResult:
    from ortconv.pipeline.manifest import verify_manifest

    report = verify_manifest(path)

    def refuse() -> None:
        if report.findings:
            more = f"; {len(report.findings) - 1} more" if len(report.findings) > 1 else ""
            raise FormatError(f"{report.findings[0]}{more}", file=path)

    return VerbResult(report.to_dict, lambda: _text(path, report), refuse)


def _text(path: Path, report: object) -> str:
    return f"{click.style(printable(str(path)), bold=True)}: {printable(str(report))}"


def _line(document: dict[str, Any]) -> str:
    if "manifest" in document:
        return f"{counted(len(document['manifest']['files']), 'file')} as described"
    loads = document["oldest_onnxruntime"]
    return f"{counted(document['nodes'], 'node')}, {counted(document['bytes'], 'byte')}, loads in onnxruntime {loads} and later"
