"""The work on one model of a batch, done in a worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ortconv.batch import journal
from ortconv.batch.journal import FinishedModel
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import digest, temporary_folder
from ortconv.models import is_ort
from ortconv.onnxio.load import names_in
from ortconv.pipeline.conversion import convert
from ortconv.pipeline.options import Options
from ortconv.pipeline.result import Result
from ortconv.pipeline.stages import Observer

FACTS = ("nodes_before", "nodes_after", "bytes_before", "bytes_after", "warnings")


class Journaling(Enum):
    """The writer of the journal: none, the worker before it puts files in place, or the process that runs the batch."""

    NONE = 0
    WORKER = 1
    CALLER = 2


Outcome = tuple[Result, FinishedModel | None]
"""The result of a model, and its line for the journal."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """One model of a batch: its file, the file to write below the folder of the batch, and its record from an earlier batch.

    A location is a path, or the text of a URL: see `ortconv.batch.locations`.
    """

    source: Path | str
    folder: Path | str
    output: str
    options: Options
    journaling: Journaling = Journaling.NONE
    known: FinishedModel | None = None


def convert_one(item: Conversion, observer: Observer | None = None) -> Outcome:
    """The result of a conversion, or the recorded one if the conversion would change nothing. Source and folder are paths."""
    source, folder, known = Path(item.source), Path(item.folder), item.known
    if known is not None and journal.is_current(known, source, folder, item.options):
        files = [str(folder / name) for name in known.files]
        return Result(str(source), files, unchanged=True, required=known.operators, **known.facts), None
    target = folder / item.output
    if target.is_dir():
        raise UsageError("cannot write: it is a directory", file=target)
    records: list[FinishedModel] = []

    def note(result: Result, draft: Path) -> None:
        records.append(_record(item.output, result, draft, source, folder, item.options))
        if item.journaling is Journaling.WORKER:
            journal.append(folder / journal.NAME, records[-1])

    placing = None if item.journaling is Journaling.NONE else note
    result = convert(source, target, options=_fitting(item.options, source), observer=observer, placing=placing)
    return result, records[-1] if records else None


def _record(output: str, result: Result, draft: Path, source: Path, folder: Path, options: Options) -> FinishedModel:
    """The journal line of a result whose files are still drafts."""
    others = map(Path, result.files[1:])
    return FinishedModel(
        output,
        str(source),
        journal.key(source, result.external, options),
        result.external,
        {output: digest(draft), **{other.relative_to(folder).as_posix(): digest(other) for other in others}},
        {name: getattr(result, name) for name in FACTS},
        result.required,
    )


def _fitting(options: Options, source: Path) -> Options:
    """The options that apply to one model of many: without names that only others have, and without an operator config."""
    stop_ops = options.nnapi_partitioning_stop_ops
    no_dims, no_ops = absent_names(source, options.fix_dims, stop_ops or ())
    return replace(
        options,
        write_config=False,
        fix_dims={name: size for name, size in options.fix_dims.items() if name not in no_dims},
        nnapi_partitioning_stop_ops=None if stop_ops is None else tuple(op for op in stop_ops if op not in no_ops),
    )


def absent_names(source: Path, fix_dims: Iterable[str], stop_ops: Iterable[str]) -> tuple[set[str], set[str]]:
    """The dimensions to fix, and the stop operators of other domains, that an .onnx file lacks; none if it cannot be read."""
    dims, ops = set(fix_dims), unknown_operators(stop_ops)
    if not (dims or ops) or is_ort(source):
        return set(), set()
    try:
        known = names_in(source)
    except OrtconvError:
        return set(), set()
    return dims - known.dims, ops - known.operators


def unknown_operators(names: Iterable[str]) -> set[str]:
    """Stop operators that neither ONNX nor ONNX Runtime has. A model may have them from another domain."""
    names = set(names)
    if not names:
        return names
    from ortconv.partition.partitioner import is_operator

    return {name for name in names if not is_operator(name)}


def warm_up() -> None:
    """Import the modules that conversions need, by converting a small model."""
    from ortconv.backends.onnxruntime_cpu import runtime

    runtime()
    _convert_small_one(Options(validate_on="numpy", write_config=False))


def warm_up_to_convert() -> None:
    """Import the modules that conversions without validation need."""
    _convert_small_one(Options(validate=False, write_config=False))


def _convert_small_one(options: Options) -> None:
    from ortconv.onnxproto import ModelProto

    proto = ModelProto(ir_version=8)
    proto.opset_import.add(version=17)
    proto.graph.name = "g"
    proto.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    for name, infos in (("x", proto.graph.input), ("y", proto.graph.output)):
        tensor = infos.add(name=name).type.tensor_type
        tensor.elem_type = 1
        tensor.shape.dim.add(dim_value=1)
    with temporary_folder() as folder:
        source = folder / "m.onnx"
        source.write_bytes(proto.SerializeToString())
        convert(source, folder / "m.ort", options=options)
