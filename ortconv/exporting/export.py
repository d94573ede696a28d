"""Export of .ort files: back to ONNX models, or from older format versions to the present one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ortconv.documents import Document
from ortconv.errors import UnsupportedError, UsageError, located
from ortconv.executor.guard import guarded
from ortconv.exporting.standard import STANDARD
from ortconv.files import write_bytes
from ortconv.ir.model import Model
from ortconv.ir.operators import MICROSOFT
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.optimizer.engine import Context
from ortconv.optimizer.levels import run_passes
from ortconv.public import public

SavedFusions = Literal["apply", "drop"]


LISTED_INITIALIZERS = 4
"""The IR version from which on initializers need not be graph inputs."""


@dataclass
class Export(Document):
    """The result of an export."""

    source: str
    output: str
    nodes: int = 0
    bytes: int = 0
    rewrites: dict[str, int] = field(default_factory=dict)
    """Number of applications by rule of --standard."""
    own_operators: dict[str, int] = field(default_factory=dict)
    """Number of nodes by operator, for operators of other domains than ONNX's in the result."""
    saved_fusions: int = 0
    """The fusions that the source has saved for onnxruntime."""
    saved_fusions_made: int = 0
    providers: list[str] = field(default_factory=list)
    """Execution providers that the source assigns nodes to. ONNX cannot store this."""
    upgraded_from: str | None = None
    """The format version of the source, if the file was upgraded."""


@public
def export(
    source: ModelSource, output: str | Path, *, standard: bool = False, saved_fusions: SavedFusions = "drop"
) -> Export:
    """Write a model as .onnx or, if `output` ends with .ort, as an .ort file of the present format version.

    The graph stays as it is: converting the result at level disable gives the source's bytes. `standard` rewrites operators of
    ONNX Runtime's own domains into standard ones. `saved_fusions` drops or applies the fusions that a file of Runtime style leaves
    to onnxruntime. UsageError if `output` exists: it might be the model from which the source was made.
    """
    target = Path(output)
    with as_file(source) as (path, label):
        upgrades = _checked(path, target, saved_fusions)
        model = load(path, only_to_run=True)
        found = Export(label, str(target), saved_fusions=len(model.saved))
        found.providers = sorted({node.ep for node in model.graph.walk() if node.ep})
        if upgrades:
            from ortconv.ortformat.reader import format_version

            found.upgraded_from = format_version(path)
        with guarded(model.graph, "exporting"):
            _prepare(model, found, standard=standard, saved_fusions=saved_fusions, keep=upgrades)
        with located(label):
            _write(model, target)
    found.nodes = sum(1 for _ in model.graph.walk())
    found.bytes = target.stat().st_size
    foreign = (n for n in model.graph.walk() if n.domain and not n.domain.startswith("ai.onnx"))
    own = Counter(node.operator for node in foreign)
    found.own_operators = dict(own.most_common())
    return found


def _checked(source: Path, target: Path, saved_fusions: str) -> bool:
    """Whether to upgrade an .ort file. UsageError for paths or options that are not possible."""
    if saved_fusions not in ("apply", "drop"):
        raise UsageError(f"saved_fusions is '{saved_fusions}', not apply or drop")
    suffix = target.suffix.lower()
    if suffix not in (".onnx", ".ort"):
        raise UsageError("export writes .onnx or .ort files", file=target, hint=f"name it {target.stem}.onnx")
    if suffix == ".ort" and not is_ort(source):
        raise UsageError("export makes .ort files of .ort files only", file=source, hint="use ortconv convert")
    if target.exists():
        raise UsageError("exists already, and export writes over no model", file=target, hint="choose another name")
    return suffix == ".ort"


def _prepare(model: Model, found: Export, *, standard: bool, saved_fusions: SavedFusions, keep: bool) -> None:
    """Apply or drop saved fusions; an upgraded file keeps them. Then rewrite operators into standard ones if asked to."""
    if model.saved and saved_fusions == "apply":
        from ortconv.optimizer import recipe
        from ortconv.optimizer.runtime_style import replay

        found.saved_fusions_made = replay(model, recipe.make("extended"), "arm")
    elif not keep:
        model.saved = []
    if standard:
        model.saved = []
        context = Context()
        for _ in run_passes(model.graph, (STANDARD,), context):
            pass
        found.rewrites = context.counts()
        if not any(node.domain == MICROSOFT for node in model.graph.walk()):
            model.graph.opsets.pop(MICROSOFT, None)


def _write(model: Model, target: Path) -> None:
    if target.suffix.lower() == ".ort":
        from ortconv.ortformat.functions import expand_functions
        from ortconv.ortformat.writer import save

        expand_functions(model)
        save(model, target)
        return
    write_bytes(target, onnx_bytes(model))


def onnx_bytes(model: Model) -> bytes:
    """The model as the content of an .onnx file, its IR version kept. UnsupportedError beyond protobuf's limit of 2 GiB."""
    from google.protobuf.message import EncodeError

    from ortconv.onnxio.complete_types import mark
    from ortconv.onnxio.proto import model_proto, value_info
    from ortconv.ortformat.capacity import too_large
    from ortconv.ortformat.layout import LARGEST_FILE

    size = model.graph.constant_bytes
    if size > LARGEST_FILE:
        raise too_large(size, "one .onnx file holds").at(file=model.path)
    try:
        proto = model_proto(model)
        mark(proto)
        if model.ir_version < LISTED_INITIALIZERS and not any(g.initializers for g in list(model.graph.graphs())[1:]):
            proto.ir_version = model.ir_version
            proto.graph.input.extend(map(value_info, model.graph.initializers.values()))
        data: bytes = proto.SerializeToString(deterministic=True)
    except (ValueError, MemoryError, EncodeError) as error:
        raise UnsupportedError(f"the model does not fit into one .onnx file: {error}") from error
    return data
