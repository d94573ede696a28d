"""The bundle for a bug report: the model, inputs, versions, the command and its output; nothing private."""

from __future__ import annotations

import io
import platform
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.documents import Document
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import read_bytes, temporary_folder, write_bytes
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.public import public
from ortconv.reduction.command import Command, CommandResult
from ortconv.reduction.models import SECONDS, model_bytes
from ortconv.reduction.strip import without_texts, without_weights
from ortconv.runtime.deadline import within
from ortconv.wording import counted, installed

PACKAGES = ("ortconv", "onnx", "onnxruntime", "numpy", "flatbuffers", "ml_dtypes")
LARGEST_INPUTS = 1 << 28
"""Limit on the bytes of generated inputs in a bundle."""

DATE = (1980, 1, 1, 0, 0, 0)
"""Time stamp of all files in an archive, so that the same bundle has the same bytes."""


@dataclass
class Bundle(Document):
    """The contents of a bundle. `exit_code` is that of the command on the bundled model."""

    source: str
    output: str
    files: dict[str, int] = field(default_factory=dict)
    """Sizes of the files in bytes, by name."""
    stripped: int = 0
    """Number of constants that were replaced."""
    command: str | None = None
    exit_code: int | None = None
    notes: list[str] = field(default_factory=list)
    """Remarks for the reader of the report."""


@public
def bundle(
    source: ModelSource,
    output: str | Path,
    *,
    command: str | Command | None = None,
    inputs: Mapping[str, Any] | None = None,
    strip_weights: bool = False,
    expect_exit: int | None = None,
) -> Bundle:
    """Write a folder, or an archive if `output` ends with .zip, with a model and all that a bug report needs.

    Descriptions and metadata of the model are left out, and absolute paths in the command's output. With `strip_weights`, the
    larger constants are replaced by random ones of the same statistics. `inputs` are arrays by name; without them, generated ones
    are included if the model accepts such. A `command` runs on the whole model and on the bundled one. UsageError if it ends
    otherwise there, or with another exit code than `expect_exit`; or if `output` exists.
    """
    target = Path(output)
    if target.exists():
        raise UsageError("exists already", file=target, hint="choose another name")
    wanted = Command(command) if isinstance(command, str) else command
    with as_file(source) as (path, label), temporary_folder() as folder:
        found = Bundle(label, str(target), command=None if wanted is None else scrubbed(wanted.text, {}))
        before = None if wanted is None else _first(wanted, path, expect_exit)
        name = f"model{'.ort' if is_ort(path) else '.onnx'}"
        data = _model_bytes(path, found, strip_weights=strip_weights)
        draft = folder / name
        after = _tried(draft, data, wanted)
        if before is not None and after is not None and before.exit_code != after.exit_code:
            if strip_weights:
                why = f"with other weights, the command ends with {after.exit_code} and not {before.exit_code}"
                raise UsageError(why, file=label, hint="leave out --strip-weights, or reduce the model first")
            found.notes.append(
                "the model is as it was, descriptions and metadata included: without them, nothing fails"
            )
            data = read_bytes(path)
            after = _tried(draft, data, wanted)
        files = {name: data, **_inputs(data, inputs, found)}
        if after is not None:
            found.exit_code = after.exit_code
            files["output.txt"] = scrubbed(after.output, {str(folder): ""}).encode()
        files["report.md"] = _report(found, name, files).encode()
    found.files = {name: len(content) for name, content in sorted(files.items())}
    _write(target, files)
    return found


def _first(command: Command, path: Path, expect_exit: int | None) -> CommandResult:
    outcome = command.run(path)
    if expect_exit is not None and outcome.exit_code != expect_exit:
        why = f"the command ends with {outcome.exit_code} and not {expect_exit}"
        raise UsageError(why, file=path, hint=f"try it by itself: {command.line(path)}")
    return outcome


def _tried(draft: Path, data: bytes, command: Command | None) -> CommandResult | None:
    if command is None:
        return None
    draft.write_bytes(data)
    return command.run(draft)


# ------------------------------------------------------------------ the model and its inputs


def _model_bytes(path: Path, found: Bundle, *, strip_weights: bool) -> bytes:
    """The model without texts, and without weights if wanted; unchanged if it cannot be read."""
    try:
        model = load(path, only_to_run=True)
    except OrtconvError as error:
        if strip_weights:
            raise
        found.notes.append(f"the model is as it was, since ortconv does not read it: {scrubbed(error.message, {})}")
        return read_bytes(path)
    without_texts(model)
    if strip_weights:
        found.stripped = without_weights(model)
    return model_bytes(model, ort=is_ort(path))


def _inputs(data: bytes, given: Mapping[str, Any] | None, found: Bundle) -> dict[str, bytes]:
    """The file of inputs: the given ones, else generated ones; no file if none can be generated."""
    arrays = given
    if arrays is None:
        try:
            arrays = _made_up(data)
        except OrtconvError as error:
            found.notes.append(f"no inputs: {scrubbed(error.message, {})}")
            return {}
    if not arrays:
        return {}
    file = io.BytesIO()
    named: dict[str, Any] = {name: np.asarray(array) for name, array in sorted(arrays.items())}
    np.savez(file, **named)
    return {"inputs.npz": file.getvalue()}


def _made_up(data: bytes) -> dict[str, Any]:
    """The first generated inputs that the model accepts on numpy. If it does not run there, inputs that fit its declared types."""
    from ortconv.inputs.candidates import candidates, first_run
    from ortconv.runtime.session import Session

    model = load(data, only_to_run=True)
    try:
        with within(SECONDS), Session(model) as session:
            feeds, _ = first_run(session)
    except OrtconvError:
        feeds = next(iter(candidates(model.graph)), {})
    arrays = {name: array for name, array in feeds.items() if isinstance(array, np.ndarray) and array.dtype != object}
    return arrays if sum(array.nbytes for array in arrays.values()) <= LARGEST_INPUTS else {}


# ------------------------------------------------------------------ the report

_PATH = re.compile(r"(?<![\w.~/-])(?:[A-Za-z]:[\\/]|/)(?:[^\s\\/:'\"<>|*?,;()\[\]]+[\\/])*[^\s\\/:'\"<>|*?,;()\[\]]+")


def scrubbed(text: str, folders: Mapping[str, str]) -> str:
    """A text in which each absolute path of this machine is cut to its last part. `folders` are replaced first."""
    for folder, name in folders.items():
        text = text.replace(f"{folder}/", name).replace(f"{folder}\\", name).replace(folder, name)
    return _PATH.sub(lambda found: _without_folders(found[0]), text)


def _without_folders(path: str) -> str:
    """The last part of a path that begins in a folder of this machine. Other texts, such as names of nodes, are unchanged."""
    anchor = Path(path).parts[:2]
    is_path = len(anchor) == 2 and Path(*anchor).exists()
    return Path(path).name if is_path else path


def versions() -> dict[str, str]:
    """The versions that can affect a result: packages, Python, the system."""
    return {
        **installed(PACKAGES),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _report(found: Bundle, model: str, files: Mapping[str, bytes]) -> str:
    lines = ["# Report", "", "What is expected, and what happens instead: (fill in)", ""]
    if found.command is not None:
        lines += ["## Command", "", "```", Command(found.command).line(Path(model)), "```", ""]
        lines += [f"It ends with exit code {found.exit_code} and prints what is in output.txt.", ""]
    lines += ["## Files", "", "| file | bytes |", "|---|--:|"]
    lines += [f"| {name} | {len(content)} |" for name, content in sorted(files.items())]
    if found.stripped:
        random = counted(found.stripped, "constant of the model is random", "constants of the model are random")
        lines += ["", f"{random}, with the same ranges, means and deviations."]
    lines += ["", *(f"* {note}" for note in found.notes)] if found.notes else []
    lines += ["", "## Versions", "", "| name | version |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in versions().items()]
    return "\n".join(lines) + "\n"


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder or an archive. The bytes of an archive depend on nothing but its files."""
    if target.suffix.lower() != ".zip":
        try:
            for name, content in sorted(files.items()):
                write_bytes(target / name, content)
        except OrtconvError:
            shutil.rmtree(target, ignore_errors=True)  # a part of it would refuse the next attempt
            raise
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{target.stem}/{name}", DATE)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            archive.writestr(entry, content)
    write_bytes(target, packed.getvalue())
