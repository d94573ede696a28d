"""Write the generated documentation: the command reference from `--help`, tables from the code's own tables, pictures.

python docs/generate.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from click.testing import CliRunner
from documents import DOCUMENTS
from json_schema import document_schema

from ortconv.checking import baseline, check
from ortconv.choices import COREML_FORMATS
from ortconv.cli import VERBS, cli
from ortconv.differences import diff
from ortconv.exporting import export
from ortconv.gates import METRICS
from ortconv.inspection import inspect
from ortconv.nnapi.conformance import run as conformance
from ortconv.nnapi.ndk.functions import by_name as functions
from ortconv.nnapi.operations import rows
from ortconv.nnapi.operations.table import LETTERS
from ortconv.optimizer.catalog import entries
from ortconv.ortformat import reduced_build
from ortconv.partition.coreml import rules as coreml
from ortconv.partition.nnapi import rules as nnapi
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.pipeline import manifest
from ortconv.project import build
from ortconv.reduction import bundle, reduce
from ortconv.report.nnapi import trace
from ortconv.tuning import result

FOLDER = Path(__file__).parent
NOTE = "This page is written by `make docs` from the program itself.\n"


def commands() -> str:
    """The command reference."""
    parts = [f"# Commands\n\n{NOTE}"]
    for arguments in ([], *_verbs()):
        name = " ".join(["ortconv", *arguments])
        shown = CliRunner().invoke(cli, [*arguments, "--help"], prog_name="ortconv", terminal_width=100).output
        parts.append(f"\n## {name}\n\n```\n{shown.rstrip()}\n```\n")
    return "".join(parts)


def _verbs() -> Iterator[list[str]]:
    """Every verb, and after it those that it groups."""
    context = click.Context(cli)
    for verb in VERBS:
        yield [verb]
        command = cli.get_command(context, verb)
        if isinstance(command, click.Group):
            yield from ([verb, inner] for inner in command.commands)


PASSES_HEAD = """
The passes are in the order in which the levels run them. The second column has the names of ONNX Runtime 1.31.
`ortconv passes explain NAME` shows the patterns of a pass. `ortconv passes list --as-text` prints the pipeline as text, for
`ortconv convert --pipeline`.

The last column is the result of a proof in exact arithmetic. The plain kernels compute every golden case of a rewrite, before and
after it, at several points and shapes: on rationals, or with 50 digits if there are roots or exponentials. "To N digits": only
constants differ, since their type has no more digits. Each proof also compares the shapes of all values with their types.
"""


def passes() -> str:
    """The tables of passes, one for each level, and why some run only on request."""
    every = entries()
    proofs = json.loads((FOLDER / "proofs.json").read_text(encoding="utf-8"))
    if new := [entry.name for entry in every if entry.name not in proofs]:
        command = "UPDATE_GOLDEN=1 pytest tests/optimizer/test_proofs.py -k test_table"
        sys.exit(f"docs/proofs.json has no result for {', '.join(new)}; run: {command}")
    parts = [f"# Passes\n\n{NOTE}{PASSES_HEAD}"]
    for level in dict.fromkeys(entry.level for entry in every):
        head = "| pass | in ONNX Runtime | what it does | how it differs | proved |\n|---|---|---|---|---|\n"
        parts.append(f"\n## Level {level}\n\n{head}")
        for entry in (e for e in every if e.level == level):
            name = f"{entry.name} (opt-in)" if entry.opt_in else entry.name
            cells = (name, "; ".join(entry.counterpart), *map(_lines, (entry.doc, entry.differs)), proofs[entry.name])
            parts.append(f"| {' | '.join(cells)} |\n")
    parts.append("\n## Opt-in\n\nThese run only with `--enable-pass NAME`.\n\n| pass | why |\n|---|---|\n")
    parts += [f"| {entry.name} | {_lines(entry.why_opt_in)} |\n" for entry in every if entry.opt_in]
    return "".join(parts)


def _lines(texts: tuple[str, ...]) -> str:
    return "<br>".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") for text in texts)


def gates() -> str:
    """The page with its table of metrics written anew."""
    rows = ((m.name, m.help, f"`{m.name}{m.example}`", ", ".join(m.verbs)) for m in METRICS.values())
    return _with_table("gates.md", ("metric", "meaning", "example", "verbs"), rows)


def nnapi_rules() -> str:
    """The page with its table of operators written anew."""
    head = ("operator", "domain", "least version", "least feature level", "QDQ")
    rows = (
        (op, _domains(row.domains), str(row.since), _level(row), "yes" if row.qdq else "")
        for op, row in sorted(nnapi.ROWS.items())
    )
    return _with_table("nnapi_rules.md", head, rows)


def _level(row: NnapiRow) -> str:
    return "28 for uint8, else 29" if callable(row.level) else str(row.level)


def coreml_rules() -> str:
    """The page with its table of operators written anew."""
    rows = (
        (op, _domains(row.domains), str(row.since), *("yes" if f in row.formats else "" for f in COREML_FORMATS))
        for op, row in sorted(coreml.ROWS.items())
    )
    return _with_table("coreml_rules.md", ("operator", "domain", "least version", *COREML_FORMATS), rows)


def _domains(domains: Iterable[str]) -> str:
    return ", ".join(domain or "ai.onnx" for domain in domains)


def _with_table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A page whose only table with this head is replaced."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    start = text.index(f"| {' | '.join(head)} |\n")
    end = text.index("\n\n", start)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return text[:start] + "\n".join(lines) + text[end:]


NNAPI_HEAD = """
Each row describes one operation, as defined in `ortconv/nnapi/operations/`; its `table.py` explains the notation of operands.
Types are those of the main operand T: F float32, H float16, Q and S quantized 8-bit without and with sign, I int32, B bool;
a level behind a type is the feature level that introduced it. Vectors: Android's conformance records with the operation, and how
many of them pass.

| code | operation | level | operands | results | types | vectors |
|---|---|---|---|---|---|---|
"""


def nnapi_operations() -> str:
    """The table of NNAPI operations."""
    counts = json.loads((FOLDER / "nnapi_vectors.json").read_text(encoding="utf-8"))
    parts = [f"# Operations of the NNAPI runtime\n\n{NOTE}{NNAPI_HEAD}"]
    for code, row in rows().items():
        types = " ".join(
            LETTERS[kind] + (f"@{needs.ordinal}" if needs > row.level else "") for kind, needs in row.types.items()
        )
        operands, results = (
            "<br>".join(f"`{form.text}`" for form in forms).replace("|", "\\|") for forms in (row.forms, row.outputs)
        )
        vectors = "{} of {}".format(*counts[code.name]) if code.name in counts else "none"
        cells = (
            str(code.value),
            code.name,
            str(row.level.ordinal),
            operands,
            results,
            types or "see operands",
            vectors,
        )
        parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts)


FUNCTIONS_HEAD = """
`ortconv nnapi ndk` makes the C headers and `libneuralnetworks.so` from these rows, the table of `ortconv/nnapi/ndk/`. A level is
the feature level that introduced the function. The counterpart is in `ortconv.nnapi`; [nnapi.md](nnapi.md) describes both.

| header | C | level | in Python |
|---|---|---|---|
"""


def nnapi_functions() -> str:
    """The table of the NDK's functions."""
    parts = [f"# Functions of the NNAPI runtime\n\n{NOTE}{FUNCTIONS_HEAD}"]
    for row in functions().values():
        parts.append(f"| {row.header} | `{row.signature}` | {row.level} | `{row.python}` |\n")
    return "".join(parts)


def picture(*options: str) -> str:
    """The partitions of the digit model, as `ortconv partition --svg` draws them."""
    with TemporaryDirectory() as folder:
        drawn = Path(folder) / "picture.svg"
        arguments = ["partition", str(FOLDER.parent / "sample_models/mnist.onnx"), "--quiet", "--svg", str(drawn)]
        CliRunner().invoke(cli, [*arguments, *options], catch_exceptions=False)
        return drawn.read_text(encoding="utf-8")


SCHEMAS: dict[str, type] = {
    "bundle": bundle.Bundle,
    "diff": diff.ModelDiff,
    "build": build.Build,
    "baseline": baseline.Baseline,
    "check": check.Check,
    "export": export.Export,
    "inspect": inspect.Inspection,
    "nnapi_conformance": conformance.Conformance,
    "nnapi_trace": trace.Timings,
    "reduce": reduce.Reduction,
    **DOCUMENTS,
    "tune": result.Tuning,
    "manifest": manifest.Manifest,
    "ops_build_command": reduced_build.ReducedBuild,
    "verify_manifest": manifest.ManifestReport,
}
"""By the name of the schema: what the JSON document consists of."""

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "passes.md": passes,
    "nnapi_operations.md": nnapi_operations,
    "nnapi_functions.md": nnapi_functions,
    "gates.md": gates,
    "nnapi_rules.md": nnapi_rules,
    "coreml_rules.md": coreml_rules,
    "pictures/mnist.svg": picture,
    "pictures/mnist-dark.svg": partial(picture, "--dark"),
    **{f"schemas/{verb}.json": partial(document_schema, verb, kind) for verb, kind in SCHEMAS.items()},
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        page, text = FOLDER / name, write()
        if "--check" not in sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            sys.exit(f"{name} is out of date: run `make docs`")
